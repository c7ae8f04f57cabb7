"""More positions for open_clip's models, live and saved, and Long-CLIP's own files in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from typer.testing import CliRunner

import clipmend
from clipmend.cli.app import app
from clipmend.dense import keep_rows_fixed, stretch, stretch_positions

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")

pytestmark = pytest.mark.open_clip

NEAR = {"atol": 1e-6, "rtol": 0.0}
SHORT = ["a dog", ".", "no cat \U0001f436", "a street with no cars"]
LONG = "word " * 200
VISION = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 8}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3}
ARCHITECTURES = ["stretch-plain", "stretch-quickgelu", "stretch-custom", "stretch-eos"]


@pytest.fixture(scope="module", autouse=True)
def architectures(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("architectures")
    for name, settings, text in (
        ("stretch-plain", {}, {}),
        ("stretch-quickgelu", {"quick_gelu": True}, {}),
        ("stretch-custom", {"custom_text": True}, {}),
        ("stretch-eos", {"custom_text": True}, {"pool_type": "eos", "eos_id": 49407}),
    ):
        described = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": {**TEXT, **text}, **settings}
        (folder / f"{name}.json").write_text(json.dumps(described))
    open_clip.add_model_config(folder)


def varied(model: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "logit" not in name:
                scale = 0.1 if parameter.ndim == 1 else 0.5 / parameter.shape[-1] ** 0.5
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval()


def embed(model: Any, tokenizer: Any, texts: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return model.encode_text(tokenizer(texts))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_live_models(architecture: str) -> None:
    model, tokenizer = varied(open_clip.create_model(architecture)), open_clip.get_tokenizer(architecture)
    before = embed(model, tokenizer, SHORT)
    text = getattr(model, "text", model)
    old = text.positional_embedding.detach().clone()
    assert stretch(model, tokenizer=tokenizer).factor == 4
    assert torch.equal(text.positional_embedding, stretch_positions(old))
    assert text.positional_embedding.requires_grad
    assert model.context_length == text.context_length == tokenizer.context_length == 248
    ids = tokenizer([*SHORT, LONG])
    assert ids.shape == (5, 248)
    assert ids[4].count_nonzero() == 202
    assert_close(embed(model, tokenizer, SHORT), before, **NEAR)
    ends = embed(model, tokenizer, [LONG + "dog", LONG + "cat"])
    assert (ends[0] - ends[1]).abs().max() > 1e-4
    # The mask is the library's own, and still no part of the state dict.
    assert torch.equal(text.attn_mask, torch.full((248, 248), float("-inf")).triu(1))
    assert not any("attn_mask" in name for name in model.state_dict())
    encoder = clipmend.load(model, preprocess=open_clip.image_transform(32, is_train=False))
    assert encoder.context_length == 248
    assert_close(encoder.encode_texts([*SHORT, LONG], normalize=False), embed(model, tokenizer, [*SHORT, LONG]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"no_causal_mask": True}, "bidirectional"),
        ({"pool_type": "last"}, "pooled at 'last'"),
        ({"embed_cls": True, "context_length": 76}, "class token"),
    ],
)
def test_other_towers_are_refused(text: dict[str, Any], message: str) -> None:
    model = open_clip.CustomTextCLIP(embed_dim=24, vision_cfg=VISION, text_cfg={**TEXT, **text})
    with pytest.raises(ValueError, match=message):
        stretch(model)


def test_kept_rows() -> None:
    model = varied(open_clip.create_model("stretch-custom"))
    stretch(model)
    table = model.text.positional_embedding
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    keep_rows_fixed(model, 20, optimizer)
    before = table.detach().clone()
    tokens = open_clip.SimpleTokenizer(context_length=248)(["word " * 300])
    for _ in range(2):
        optimizer.zero_grad()
        model.encode_text(tokens).square().sum().backward()
        optimizer.step()
    assert torch.equal(table[:20], before[:20])
    assert (table[20:] != before[20:]).any(1).all()


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["stretch", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return " ".join(result.output.split())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.filterwarnings("ignore::clipmend.backbones.activation.ActivationWarning")
def test_save_and_open_in_plain_open_clip(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = varied(open_clip.create_model(architecture))
    torch.save(source.state_dict(), tmp_path / "w.pt")
    (tmp_path / "captions.txt").write_text(f"a dog\n{LONG}\n")
    name = f"open_clip:{architecture}::{tmp_path / 'w.pt'}"
    output = run(name, "-o", tmp_path / "out", "--captions", tmp_path / "captions.txt")
    assert "positions: 20 kept, 228 new from 57 (4 for each)" in output
    assert "truncated of 2 captions: 1 (50.0%) at 77 tokens, 0 (0.0%) at 248" in output

    where = f"local-dir:{tmp_path / 'out'}"
    model, _, preprocess = open_clip.create_model_and_transforms(where)
    model.eval()
    tokenizer = open_clip.get_tokenizer(where)
    assert model.context_length == tokenizer.context_length == 248
    stretch(source)
    assert torch.equal(embed(model, tokenizer, [*SHORT, LONG]), embed(source, tokenizer, [*SHORT, LONG]))
    picture = preprocess(Image.new("RGB", (40, 50), "red"))[None]
    with torch.no_grad():
        assert torch.equal(model.encode_image(picture), source.encode_image(picture))
    ours, plain = clipmend.load(f"open_clip:{where}", device="cpu"), clipmend.load(name, device="cpu")
    assert ours.context_length == 248
    assert ours.fingerprint.image == plain.fingerprint.image
    assert_close(ours.encode_texts(SHORT), plain.encode_texts(SHORT), **NEAR)
    # Once more, from the folder, and the lines of its card.
    assert "all 248 positions" in run(f"open_clip:{where}", "-o", tmp_path / "again")
    code = re.search(r"```python\n(.*?)```", (tmp_path / "again" / "README.md").read_text(), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path / "again")
    namespace: dict[str, Any] = {}
    exec(code[1], namespace)
    assert namespace["embeddings"].shape == (1, 24)


@pytest.mark.parametrize("architecture", ["stretch-quickgelu", "stretch-custom"])
@pytest.mark.filterwarnings("ignore::clipmend.backbones.activation.ActivationWarning")
def test_long_clip_files(architecture: str, tmp_path: Path) -> None:
    source = varied(open_clip.create_model(architecture))
    stretch(source)
    text = getattr(source, "text", source)
    first, second = text.positional_embedding.detach().clone(), torch.randn(248, 32)
    flat = {name.removeprefix("text."): tensor for name, tensor in source.state_dict().items()}
    torch.save({**flat, "positional_embedding": first, "positional_embedding_res": second}, tmp_path / "longclip.pt")
    encoder = clipmend.load(f"open_clip:{architecture}", device="cpu", weights=tmp_path / "longclip.pt")
    assert encoder.context_length == 248
    with torch.no_grad():
        text.positional_embedding.copy_(torch.cat([first[:20], second[20:]]))
    expected = embed(source, open_clip.SimpleTokenizer(context_length=248), [*SHORT, LONG])
    assert_close(encoder.encode_texts([*SHORT, LONG], normalize=False), expected, atol=1e-5, rtol=0)
