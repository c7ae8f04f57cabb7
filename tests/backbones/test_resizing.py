"""Images are resized before the processor sees them only where its own pixels come out, to the bit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil

import clipmend
from backbones import tiny
from clipmend.backbones.resizing import Resizing

SIZES = ((640, 480), (480, 640), (333, 217), (224, 224), (50, 31), (1999, 300))
PROCESSORS: dict[str, Any] = {
    "CLIP": lambda: CLIPImageProcessorPil(),
    "CLIP at 336": lambda: CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}),
    "bilinear": lambda: CLIPImageProcessorPil(resample=Image.Resampling.BILINEAR),
    "a crop larger than what is resized": lambda: CLIPImageProcessorPil(size={"shortest_edge": 100}),
    "SigLIP": lambda: SiglipImageProcessorPil(),
    "SigLIP, oblong": lambda: SiglipImageProcessorPil(size={"height": 64, "width": 96}),
}


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pixels(processor: Any, image: Image.Image) -> np.ndarray:
    return np.asarray(processor(images=[image], return_tensors="np")["pixel_values"])


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_same_bits(name: str) -> None:
    processor = PROCESSORS[name]()
    resizing = Resizing(processor)
    for size in SIZES:
        image = noise(*size)
        resized = resizing(image)
        assert np.array_equal(pixels(processor, image), pixels(processor, resized))
    big = noise(1600, 1200)
    assert resizing(big) is not big, "it is resized here"


def test_settings_that_change_are_noticed() -> None:
    processor = CLIPImageProcessorPil()
    resizing, image = Resizing(processor), noise(640, 480)
    assert min(resizing(image).size) == 224
    processor.size = {"shortest_edge": 100}
    assert min(resizing(image).size) == 100
    processor.do_resize = False
    assert resizing(image) is image


class Rounded(CLIPImageProcessorPil):
    """Rounds the long side where the original cuts."""

    def resize(self, image: np.ndarray, size: Any, *arguments: Any, **options: Any) -> np.ndarray:
        height, width = image.shape[-2:]
        short = min(height, width)
        scaled = type(size)(height=round(size.shortest_edge * height / short), width=round(size.shortest_edge * width / short))
        return super().resize(image, scaled, *arguments, **options)


class Sharper(CLIPImageProcessorPil):
    """Does something to the whole image before it resizes it."""

    def resize(self, image: np.ndarray, *arguments: Any, **options: Any) -> np.ndarray:
        return super().resize(np.ascontiguousarray(image[..., ::-1] // 2), *arguments, **options)


class Fixed(CLIPImageProcessorPil):
    def preprocess(self, images: Any, *arguments: Any, **options: Any) -> Any:
        raise ValueError("not this one")


@pytest.mark.parametrize("kind", [Rounded, Sharper, Fixed])
def test_processors_that_make_other_pixels_are_left_to_themselves(kind: type[CLIPImageProcessorPil]) -> None:
    image = noise(641, 360)
    assert Resizing(kind())(image) is image


@pytest.mark.parametrize("settings", [{"do_resize": False}, {"size": {"shortest_edge": 50, "longest_edge": 80}}])
def test_other_kinds_of_sizes_are_left_alone(settings: dict[str, Any]) -> None:
    image = noise(640, 480)
    assert Resizing(CLIPImageProcessorPil(**settings))(image) is image
    grey = image.convert("L")
    assert Resizing(CLIPImageProcessorPil())(grey) is grey


def test_an_encoder_embeds_as_its_processor_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch, one image, an image in a thread, and after another processor was put in its place."""
    tokenizer = tiny.clip_tokenizer()
    encoder = clipmend.load(tiny.clip_model(tokenizer), tokenizer=tokenizer, processor=tiny.clip_processor())
    images = [noise(400, 300, seed) for seed in range(3)]

    def plain() -> torch.Tensor:
        return torch.from_numpy(np.concatenate([pixels(encoder.image_processor, image) for image in images]))  # type: ignore[attr-defined]

    prepared: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda image=image: prepared.append(encoder.prepare_image(image))) for image in images]  # type: ignore[attr-defined,misc]
    for thread in threads:
        thread.start()
        thread.join()
    assert torch.equal(torch.stack(prepared), plain())
    with torch.inference_mode():
        expected = encoder._embed_pixels(plain())  # type: ignore[attr-defined]
    assert torch.equal(encoder.encode_images(images, normalize=False), expected.float())
    encoder.image_processor = tiny.clip_processor()  # type: ignore[attr-defined]
    encoder.image_processor.resample = Image.Resampling.NEAREST  # type: ignore[attr-defined]
    assert torch.equal(encoder.prepare_image(images[0]), plain()[0])  # type: ignore[attr-defined]


def test_the_processor_is_handed_a_small_image() -> None:
    """Which is where the time is saved: it converts what it gets to an array and back."""
    small = Resizing(CLIPImageProcessorPil())(noise(3000, 2000))
    assert min(small.size) == 224
    assert max(small.size) == 336
