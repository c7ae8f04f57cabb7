"""CLIP_benchmark's way with ``(model, transform, tokenizer)``, on encoders of transformers. Its own code: tests/openclip."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from backbones import tiny
from clipmend.backbones.base import DualEncoder, LongTextsWarning
from clipmend.integrations.clip_benchmark import characters, load_clipmend, loader_tuple, spelled
from helpers import RandomDualEncoder
from negation.attaching import NEAR, patch_for

pytestmark = pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")
CLASSES, TEMPLATES = ["dog", "cat", "car"], ["a photo of a {c}", "a street with no {c}"]


def encoder(kind: str) -> DualEncoder:
    if kind == "clip":
        tokenizer = tiny.clip_tokenizer()
        return clipmend.load(tiny.clip_model(tokenizer), tokenizer=tokenizer, processor=tiny.clip_processor())
    tokenizer = tiny.siglip_tokenizer()
    return clipmend.load(tiny.siglip_model(len(tokenizer)), tokenizer=tokenizer, processor=tiny.siglip_processor())


def zero_shot_logits(model: Any, transform: Any, tokenizer: Any, images: list[Any]) -> Tensor:
    """As its ``zero_shot_classifier`` and ``run_classification`` go about it."""
    columns = []
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for name in CLASSES:
            texts = tokenizer([template.format(c=name) for template in TEMPLATES]).to("cpu")
            mean = F.normalize(model.encode_text(texts), dim=-1).mean(dim=0)
            mean /= mean.norm()
            columns.append(mean)
        pixels = torch.stack([transform(image.convert("RGB")) for image in images])
        return 100.0 * F.normalize(model.encode_image(pixels.to("cpu")), dim=-1) @ torch.stack(columns, dim=1)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("gate", [False, True])
def test_zero_shot(kind: str, gate: bool) -> None:
    plain = encoder(kind)
    mended = patch_for(plain).apply(plain, gate=gate)
    model, transform, tokenizer = loader_tuple(mended, "cpu")
    assert model.eval() is model
    pictures = tiny.images()
    logits = zero_shot_logits(model, transform, tokenizer, pictures)
    weights = []
    for name in CLASSES:
        rows = mended.encode_texts([template.format(c=name) for template in TEMPLATES])
        weights.append(F.normalize(rows.mean(0), dim=0))
    expected = 100 * mended.encode_images(pictures) @ torch.stack(weights, 1)
    assert_close(logits, expected, atol=1e-3, rtol=0)
    assert (logits - zero_shot_logits(*loader_tuple(plain), pictures)).abs().max() > 1
    assert not list(model.parameters()), "moving the model moves nothing: the encoder is where it was loaded"


def test_the_pieces_go_into_a_data_loaders_processes() -> None:
    plain = encoder("clip")
    mended = patch_for(plain).apply(plain)
    _, transform, tokenizer = loader_tuple(mended)
    again, tokenise = pickle.loads(pickle.dumps((transform, tokenizer)))
    picture = tiny.images()[0]
    assert torch.equal(again(picture), transform(picture))
    assert torch.equal(tokenise(["no cat"]), tokenizer(["no cat"]))


def test_truncated_captions_are_counted() -> None:
    model, _, tokenizer = loader_tuple(encoder("clip"))
    with pytest.warns(LongTextsWarning, match="2 of 3 texts exceed 40 tokens"):
        model.encode_text(tokenizer(["a dog", "a b c d e " * 20, "no cat " * 30]))


def test_characters() -> None:
    texts = ["a dog", "", "no \U0001f408!", "  x "]
    numbers = characters(texts)
    assert numbers.dtype == torch.int64
    assert numbers.shape == (4, 5)
    assert spelled(numbers) == texts
    assert spelled(characters("one text")) == ["one text"]
    assert characters([]).shape == (0, 0)
    with pytest.raises(TypeError, match="text 1 is int"):
        characters(["a", 3])  # type: ignore[list-item]


def test_the_loader(tmp_path: Any) -> None:
    tokenizer = tiny.clip_tokenizer()
    folder = tiny.saved(tmp_path / "model", tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())
    own = clipmend.load(folder, device="cpu")
    patch = patch_for(own)
    patch.save_pretrained(tmp_path / "patch")
    texts = ["a dog", "no cat"]
    for pretrained, expected in (("", own), (str(tmp_path / "patch"), patch.apply(own))):
        model, _, tokenise = load_clipmend(model_name=folder, pretrained=pretrained, cache_dir=None, device="cpu")
        assert_close(model.encode_text(tokenise(texts)), expected.encode_texts(texts), **NEAR)


def test_an_encoder_without_single_images() -> None:
    with pytest.raises(ValueError, match="does not prepare its images one by one"):
        loader_tuple(RandomDualEncoder())
