"""Very long, narrow images: the same pixels as the encoder's own preprocessing keeps, without the work."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.poolformer.image_processing_pil_poolformer import PoolFormerImageProcessorPil

import clipmend
from backbones import tiny
from clipmend.backbones.strips import LONGEST, crop_of_processor, crop_of_transform

# Above the limit, both ways round, enlarged and reduced, with lengths that resize to whole pixels and that do not.
NARROW = [
    (500, 1),
    (1, 501),
    (1000, 7),
    (7, 1001),
    (997, 41),
    (41, 997),
    (1300, 133),
    (133, 1301),
    (9001, 1000),
    (320, 32),
    (290, 32),
]
# Not the box filter and the nearest pixel: they jump, so that which of two pixels they take at a tie is up to rounding.
FILTERS = [Image.Resampling.BICUBIC, Image.Resampling.BILINEAR, Image.Resampling.LANCZOS, Image.Resampling.HAMMING]


def noise(width: int, height: int) -> Image.Image:
    """The hardest picture for a shifted or stretched copy to be like."""
    generator = np.random.default_rng(width * 7919 + height)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def processor(edge: int = 32, crop: tuple[int, int] = (32, 32), resample: int = Image.Resampling.BICUBIC) -> Any:
    """CLIP's preprocessing, less the normalisation, so that its results are levels of 0..255."""
    return CLIPImageProcessorPil(
        size={"shortest_edge": edge},
        crop_size={"height": crop[0], "width": crop[1]},
        resample=resample,
        do_rescale=False,
        do_normalize=False,
    )


def pixels(how: Any, image: Image.Image) -> torch.Tensor:
    return how(images=[image], return_tensors="pt")["pixel_values"][0].to(torch.int16)


def assert_same(how: Any, image: Image.Image) -> None:
    crop = crop_of_processor(how)
    assert crop is not None
    cut = crop(image)
    assert cut is not image
    assert max(cut.size) <= LONGEST * max(how.size["shortest_edge"], *dict(how.crop_size).values())
    expected, found = pixels(how, image), pixels(how, cut)
    assert found.shape == expected.shape
    difference = (found - expected).abs()
    assert difference.max() <= 1, f"{image.size}: {difference.max()} levels"
    changed = float((difference > 0).float().mean())
    assert changed < 0.01, f"{image.size}: {changed:.1%} of the pixels differ by a level"


@pytest.mark.parametrize("size", NARROW)
def test_the_centre_is_what_the_processor_would_have_kept(size: tuple[int, int]) -> None:
    assert_same(processor(), noise(*size))


@pytest.mark.parametrize("resample", FILTERS)
def test_every_filter(resample: Image.Resampling) -> None:
    for size in ((1000, 7), (41, 997)):
        assert_same(processor(resample=resample), noise(*size))


@pytest.mark.parametrize("settings", [(40, (32, 32)), (41, (32, 32)), (32, (40, 40)), (32, (33, 47)), (33, (20, 31))])
def test_other_sizes_of_crop(settings: tuple[int, tuple[int, int]]) -> None:
    for size in ((1000, 7), (7, 1001), (997, 41)):
        assert_same(processor(*settings), noise(*size))


@pytest.mark.parametrize("settings", [(32, 224 / 256), (33, 0.9), (32, 1.0)])
def test_processors_that_keep_a_share(settings: tuple[int, float]) -> None:
    """ConvNeXT's (ResNet's too) crops within its resizing, PoolFormer's afterwards; both resize to more than they keep."""
    edge, share = settings
    plain = {"resample": Image.Resampling.BICUBIC, "do_rescale": False, "do_normalize": False}
    square = {"height": edge, "width": edge}
    convnext = ConvNextImageProcessorPil(size={"shortest_edge": edge}, crop_pct=share, **plain)
    poolformer = PoolFormerImageProcessorPil(size={"shortest_edge": edge}, crop_size=square, crop_pct=share, **plain)
    for how in (convnext, poolformer):
        crop = crop_of_processor(how)
        assert crop is not None
        for size in ((1000, 7), (7, 1001), (997, 41)):
            cut = crop(noise(*size))
            assert min(cut.size) == int(edge / share)
            difference = (pixels(how, cut) - pixels(how, noise(*size))).abs()
            assert difference.max() <= 1
            assert float((difference > 0).float().mean()) < 0.01


def test_a_processor_that_warps_is_left_alone() -> None:
    assert crop_of_processor(ConvNextImageProcessorPil(size={"shortest_edge": 384})) is None


@pytest.mark.parametrize("size", [(30, 10), (10, 30), (96, 32), (LONGEST * 20, 20), (20, LONGEST * 20), (1, 1), (64, 64)])
def test_moderate_images_are_not_touched(size: tuple[int, int]) -> None:
    crop = crop_of_processor(processor())
    assert crop is not None
    image = noise(*size)
    assert crop(image) is image


def test_other_preprocessing_is_left_alone() -> None:
    assert crop_of_processor(tiny.siglip_processor()) is None
    assert crop_of_processor(None) is None
    assert crop_of_processor(CLIPImageProcessorPil(do_center_crop=False)) is None
    assert crop_of_processor(CLIPImageProcessorPil(size={"height": 32, "width": 32})) is None
    assert crop_of_processor(CLIPImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64})) is None
    assert crop_of_transform(lambda image: image) is None


@pytest.mark.parametrize("size", [(20_000, 1), (1, 20_000), (60_000, 3)])
def test_a_strip_costs_what_any_image_does(size: tuple[int, int]) -> None:
    how = CLIPImageProcessorPil()  # 224 pixels, as all CLIPs have
    crop = crop_of_processor(how)
    assert crop is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    cut = crop(noise(*size))
    result = how(images=[cut], return_tensors="pt")["pixel_values"]
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024  # MiB
    assert sorted(cut.size) == [224, LONGEST * 224]
    assert result.shape == (1, 3, 224, 224)
    assert seconds < 5, f"{seconds:.1f} s"
    assert grown < 200, f"{grown:.0f} MiB"


def test_encoders_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny.clip_tokenizer()
    model, how = tiny.clip_model(tokenizer), tiny.clip_processor()
    encoder = clipmend.load(model, tokenizer=tokenizer, processor=how)
    strips = [noise(1000, 7), noise(40, 30), noise(5, 700)]
    with torch.no_grad():
        expected = model.get_image_features(pixel_values=how(images=strips, return_tensors="pt")["pixel_values"]).pooler_output
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        encoder,
        "image_processor",
        _Watched(how, seen),
    )
    encoder.encode_images(strips[:1])  # what is resized beforehand is tried out once, on other images
    seen.clear()
    found = encoder.encode_images(strips, normalize=False)
    assert seen == [(256, 32), (42, 32), (32, 256)]
    assert_close(found, expected, atol=0.02, rtol=0)
    assert_close(found[1], expected[1], atol=1e-5, rtol=0)


class _Watched:
    """An image processor that notes the sizes of what it is given."""

    def __init__(self, inner: Any, seen: list[tuple[int, int]]) -> None:
        self._inner, self._seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, images: list[Image.Image], **kwargs: Any) -> Any:
        self._seen.extend(image.size for image in images)
        return self._inner(images=images, **kwargs)
