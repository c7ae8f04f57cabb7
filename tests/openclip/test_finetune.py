"""Fine-tuning open_clip's models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import clipmend
from clipmend.dense import finetune
from clipmend.dense.towers import Towers
from dense import small_training as small

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")
pytest.importorskip("accelerate", reason="needs the extra train")

pytestmark = pytest.mark.open_clip

VISION = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 8}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2}
ARCHITECTURES = ["tune-plain", "tune-custom"]


@pytest.fixture(scope="module", autouse=True)
def architectures(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("architectures")
    for name, settings in (("tune-plain", {}), ("tune-custom", {"custom_text": True})):
        (folder / f"{name}.json").write_text(json.dumps({"embed_dim": 24, "vision_cfg": VISION, "text_cfg": TEXT, **settings}))
    open_clip.add_model_config(folder)


def encoder(architecture: str) -> Any:
    torch.manual_seed(5)
    return clipmend.load(f"open_clip:{architecture}", device="cpu")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_towers_are_the_library_s_features(architecture: str) -> None:
    made = encoder(architecture)
    towers = Towers(made, tokens=frozenset({"image", "text"})).eval()
    texts = ["a dog", "a street with no cars"]
    pixels, ids = torch.randn(2, 3, 32, 32), open_clip.get_tokenizer(architecture)(texts)
    with torch.no_grad():
        out = towers({"pixels": pixels, "ids": ids[:, :9]})
        assert_close(out["image"], made.model.encode_image(pixels, normalize=True), atol=1e-6, rtol=0)
        assert_close(out["text"], made.model.encode_text(ids, normalize=True), atol=1e-6, rtol=0)
    assert out["image_tokens"].shape == (2, 16, 24)
    assert_close(out["text_tokens"][torch.arange(2), ids.argmax(-1)], out["text"], atol=1e-6, rtol=0)
    assert not made.model.visual.output_tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("freeze", ["text", "image"])
def test_a_frozen_side_keeps_its_bytes(architecture: str, freeze: str) -> None:
    before = small.weights(encoder(architecture).model)
    settings = small.config("hn-clip", steps=2, choose="last", freeze=freeze, micro_batches=2, gradient_checkpointing=True)
    after = small.weights(finetune(encoder(architecture), small.pairs(), settings, device="cpu").model)
    for name, value in before.items():
        if name == "logit_scale":
            continue
        assert torch.equal(value, after[name]) == (name.startswith("visual.") == (freeze == "image")), name


def test_the_folder_opens_in_open_clip_at_the_new_length(tmp_path: Path) -> None:
    done = finetune(encoder("tune-plain"), small.pairs(), small.config("hn-clip", steps=2, length=120, choose="last"), device="cpu")
    folder = done.save(tmp_path / "out")
    model, _, _ = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    texts = ["a dog", "word " * 100 + "cat"]
    assert tokenizer(texts).shape == (2, 120)
    with torch.no_grad():
        found = model.eval().encode_text(tokenizer(texts), normalize=True)
    assert_close(found, done.encoder.encode_texts(texts), atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lora_merges_and_dora_is_refused(architecture: str) -> None:
    pytest.importorskip("peft", reason="needs the extra train")
    before = small.weights(encoder(architecture).model)
    settings = small.config("lora", {"rank": 2, "gamma": 0.5}, steps=2, choose="last")
    after = small.weights(finetune(encoder(architecture), small.pairs(), settings, device="cpu").model)
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.endswith("attn.in_proj_weight") for name in changed)
    assert all(".attn." in name or name == "logit_scale" for name in changed), changed
    with pytest.raises(ValueError, match="open_clip packs query, key and value"):
        finetune(encoder(architecture), small.pairs(), small.config("dora"), device="cpu")
    mlp = small.config("dora", {"targets": "mlp", "rank": 2}, steps=1, choose="last")
    assert small.weights(finetune(encoder(architecture), small.pairs(), mlp, device="cpu").model).keys() == before.keys()
