"""Fingerprints: every byte counts, nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clipmend
from backbones import tiny
from clipmend.backbones.fingerprint import digest_file, digest_weights


@pytest.fixture
def parts() -> tuple[Any, Any, Any]:
    tokenizer = tiny.clip_tokenizer()
    return tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor()


def live(parts: tuple[Any, Any, Any]) -> Any:
    model, tokenizer, processor = parts
    return clipmend.load(model, tokenizer=tokenizer, processor=processor)


def flip_one_bit(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.view(-1).view(torch.uint8)[-1] ^= 1


def test_stable_across_saving_and_uses(parts: Any, tmp_path: Path) -> None:
    first = live(parts).fingerprint
    folder = tiny.saved(tmp_path / "one", *parts)
    encoder = clipmend.load(folder, device="cpu")
    assert encoder.fingerprint == first
    again = clipmend.load(folder, device="cpu")
    again.encode_texts(["a dog", "a long text " * 20], batch_size=1, on_long="truncate")  # leaves state in the tokenizer
    again.encode_images(tiny.images())
    assert again.fingerprint == first
    assert set(first.to_dict()) == {"text", "image", "tokenizer"}
    assert len({first.text, first.image, first.tokenizer}) == 3


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("text_model.encoder.layers.1.mlp.fc1.weight", "text"),
        ("text_model.embeddings.position_embedding.weight", "text"),
        ("text_projection.weight", "text"),
        ("vision_model.encoder.layers.0.mlp.fc1.bias", "image"),
        ("visual_projection.weight", "image"),
        ("logit_scale", ""),
    ],
)
def test_one_bit_of_one_weight(parts: Any, part: str, changed: str) -> None:
    before = live(parts).fingerprint.to_dict()
    flip_one_bit(parts[0].get_parameter(part))
    after = live(parts).fingerprint.to_dict()
    assert {side for side in before if before[side] != after[side]} == ({changed} if changed else set())


def test_preprocessing_belongs_to_the_image_side(parts: Any) -> None:
    before = live(parts).fingerprint
    parts[2].image_mean = [0.5, 0.5, 0.5]
    after = live(parts).fingerprint
    assert before.image != after.image
    assert (before.text, before.tokenizer) == (after.text, after.tokenizer)


def test_tokenizer(parts: Any) -> None:
    model, tokenizer, processor = parts
    before = live(parts).fingerprint
    tokenizer.add_tokens(["doggo"])
    after = live((model, tokenizer, processor)).fingerprint
    assert before.tokenizer != after.tokenizer
    assert (before.text, before.image) == (after.text, after.image)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16])
def test_casting_changes_nothing(parts: Any, tmp_path: Path, dtype: Any) -> None:
    folder = tiny.saved(tmp_path, *parts)
    whole, cast = clipmend.load(folder, device="cpu"), clipmend.load(folder, device="cpu", dtype=dtype)
    assert cast.tower.dtype != torch.float32  # type: ignore[attr-defined]
    assert cast.fingerprint == whole.fingerprint
    vectors = cast.encode_texts(["a dog", "no dog"])
    assert vectors.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(vectors, whole.encode_texts(["a dog", "no dog"])).min() > 0.99
    assert cast.encode_images(tiny.images()).dtype == torch.float32


def test_a_half_precision_checkpoint_has_its_own(parts: Any, tmp_path: Path) -> None:
    model, tokenizer, processor = parts
    whole = live(parts).fingerprint
    half = tiny.saved(tmp_path, model.to(torch.float16), tokenizer, processor)
    loaded = clipmend.load(half, device="cpu")
    assert loaded.tower.dtype == torch.float32  # type: ignore[attr-defined]
    assert loaded.fingerprint.text != whole.text
    assert clipmend.load(half, device="cpu", dtype="float16").fingerprint == loaded.fingerprint


def test_weights_digest() -> None:
    weights = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.zeros(0),
        "c": torch.tensor(3),
        "d": torch.ones(2, dtype=torch.bfloat16),
    }
    first = digest_weights(weights)
    assert first == digest_weights(dict(reversed(weights.items())))
    assert first == digest_weights({**weights, "a": torch.arange(6.0).reshape(3, 2).reshape(2, 3)})
    different = [
        {**weights, "a": weights["a"].reshape(3, 2)},
        {**weights, "a": weights["a"].double()},
        {**weights, "e": torch.zeros(0)},
        {("z" if name == "a" else name): tensor for name, tensor in weights.items()},
    ]
    assert len({first, digest_weights(weights, {"act": "gelu"}), *(digest_weights(other) for other in different)}) == 6
    assert digest_weights({"a": weights["a"].T}) == digest_weights({"a": weights["a"].T.contiguous()})


def test_file_digest(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_001)
    assert digest_file(path) == hashlib.sha256(b"x" * 3_000_001).hexdigest()
