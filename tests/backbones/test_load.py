"""``load``: what it accepts, and how it refuses the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import clipmend
from backbones import tiny
from clipmend.backbones import TextOnlyEncoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tiny.clip_tokenizer()
    where = tmp_path_factory.mktemp("a folder é") / "clip"
    tiny.saved(where, tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())
    return where


def test_an_encoder_is_returned_as_it_is(folder: Path) -> None:
    encoder = clipmend.load(folder, device="cpu")
    assert clipmend.load(encoder) is encoder
    assert encoder.name == str(folder)


def test_live_model_from_a_folder_finds_its_companions(folder: Path) -> None:
    from transformers import CLIPModel

    live = clipmend.load(CLIPModel.from_pretrained(folder))
    assert_close(live.encode_texts(["a dog"]), clipmend.load(folder, device="cpu").encode_texts(["a dog"]))


def test_live_model_without_origin_needs_its_companions() -> None:
    tokenizer = tiny.clip_tokenizer()
    model = tiny.clip_model(tokenizer)
    with pytest.raises(ValueError, match="tokenizer is not known; pass tokenizer="):
        clipmend.load(model)
    with pytest.raises(ValueError, match="image processor is not known; pass processor="):
        clipmend.load(model, tokenizer=tokenizer)


def test_live_model_with_a_processor() -> None:
    from transformers import CLIPProcessor

    tokenizer = tiny.clip_tokenizer()
    processor = CLIPProcessor(image_processor=tiny.clip_processor(), tokenizer=tokenizer)
    encoder = clipmend.load(tiny.clip_model(tokenizer), processor=processor)
    assert encoder.encode_images(tiny.images()).shape == (3, 24)


def test_live_models_are_not_moved(folder: Path) -> None:
    tokenizer = tiny.clip_tokenizer()
    with pytest.raises(ValueError, match="move or cast it yourself"):
        clipmend.load(tiny.clip_model(tokenizer), device="cpu", tokenizer=tokenizer)


def test_text_half_of_a_clip(tmp_path: Path) -> None:
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    tokenizer = tiny.clip_tokenizer()
    model = tiny.clip_model(tokenizer)
    tiny.saved(tmp_path / "whole", model, tokenizer)
    expected = model.get_text_features(**tokenizer(["a dog"], return_tensors="pt")).pooler_output
    projected = CLIPTextModelWithProjection.from_pretrained(tmp_path / "whole").eval()
    encoder = clipmend.load(tiny.saved(tmp_path / "projected", projected, tokenizer), device="cpu")
    assert isinstance(encoder, TextOnlyEncoder)
    assert_close(encoder.encode_texts(["a dog"], normalize=False), expected, atol=1e-5, rtol=0)
    assert_close(
        clipmend.load(projected, tokenizer=tokenizer).encode_texts(["a dog"], normalize=False), expected, atol=1e-5, rtol=0
    )
    bare = CLIPTextModel.from_pretrained(tmp_path / "whole").eval()
    plain = clipmend.load(tiny.saved(tmp_path / "bare", bare, tokenizer), device="cpu", dtype="bfloat16")
    assert plain.embed_dim == 32


def test_naflex_is_refused_with_its_reason(tmp_path: Path) -> None:
    from transformers import Siglip2Config, Siglip2Model

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 101, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
    model = Siglip2Model(Siglip2Config(text_config=text, vision_config=sizes))
    tokenizer = tiny.gemma_tokenizer()
    for candidate in (tiny.saved(tmp_path, model, tokenizer), model):
        with pytest.raises(ValueError, match="flexible resolution"):
            clipmend.load(candidate, **({} if isinstance(candidate, str) else {"tokenizer": tokenizer}))


def test_other_image_text_models_are_refused(tmp_path: Path) -> None:
    from transformers import BlipConfig

    BlipConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'blip', which is not supported"):
        clipmend.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", ValueError, "name is empty"),
        (42, TypeError, r"cannot load 42 \(an int\): give a name, a folder or a live model"),
        ([1.5], TypeError, r"cannot load \[1\.5\] \(a list\)"),
        ("scense", OSError, "cannot load 'scense'; did you mean 'scenes'"),
        ("Photo", OSError, "did you mean 'photos'"),
        ("./nowhere", OSError, r"no folder \./nowhere"),
        ("a/b/c", OSError, "no folder a/b/c"),
        (torch.nn.Linear(2, 2), ValueError, "Linear is a model of neither"),
    ],
)
def test_what_is_no_model(name: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        clipmend.load(name)


def test_a_file_or_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"without config\.json"):
        clipmend.load(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(OSError, match="is a file"):
        clipmend.load(tmp_path / "model.bin")


def test_dtype_is_checked(folder: Path) -> None:
    for wrong in ("float", "int8", torch.int64, "nonsense"):
        if wrong == "float":  # torch.float is float32's other name
            assert clipmend.load(folder, device="cpu", dtype=wrong).tower.dtype == torch.float32  # type: ignore[attr-defined]
            continue
        with pytest.raises(ValueError, match="not a floating-point type"):
            clipmend.load(folder, dtype=wrong)
    with pytest.raises(ValueError, match="float32 only"):
        clipmend.load("scenes", dtype="float16")


def test_missing_parts_of_a_folder(folder: Path, tmp_path: Path) -> None:
    import shutil

    where = tmp_path / "clip"
    shutil.copytree(folder, where)
    for path in where.glob("*processor_config.json"):
        path.unlink()
    with pytest.raises(OSError, match=r"holds no image processor .*preprocessor_config\.json.*save_pretrained.*processor="):
        clipmend.load(where, device="cpu")
    assert clipmend.load(where, device="cpu", processor=tiny.clip_processor()).embed_dim == 24


def test_a_missing_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    import shutil

    where = tmp_path / "clip"
    shutil.copytree(folder, where)
    for path in where.iterdir():
        if path.name not in ("config.json", "model.safetensors", "preprocessor_config.json"):
            path.unlink()
    with pytest.raises(OSError, match=r"holds no tokenizer .*tokenizer\.save_pretrained.*tokenizer="):
        clipmend.load(where, device="cpu")


def test_missing_weights_are_not_made_up(folder: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    where = tmp_path / "clip"
    shutil.copytree(folder, where)
    weights = load_file(where / "model.safetensors")
    del weights["text_projection.weight"]
    save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OSError, match=r"lacks text_projection\.weight"):
        clipmend.load(where, device="cpu")


def test_unknown_hub_id_without_network() -> None:
    code = "import clipmend; clipmend.load('nobody/no-such-model')"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("OSError: cannot load 'nobody/no-such-model'")
    assert "'scenes'" in last


def test_open_clip_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ImportError, match=r"clipmend\[open-clip\]"):
        clipmend.load("open_clip:ViT-B-32/openai")


def test_a_live_model_beside_no_tokenizer_gets_none_made_up(folder: Path, tmp_path: Path) -> None:
    import shutil

    from transformers import AutoModel

    where = tmp_path / "clip"
    where.mkdir()
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        shutil.copy(folder / name, where)
    with pytest.raises(ValueError, match=r"no tokenizer found for the live model .*pass tokenizer="):
        clipmend.load(AutoModel.from_pretrained(where))
