"""``clipmend stretch``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoTokenizer, CLIPModel, CLIPProcessor
from typer.testing import CliRunner

import clipmend
from backbones import plain_clip, tiny
from clipmend.cli.app import app
from clipmend.dense.longer import count_truncated

runner = CliRunner()
LETTERS = "a b c d e f g h i j "
CAPTIONS = ["a dog", LETTERS * 4, LETTERS * 5, LETTERS * 20, LETTERS * 30]  # 42, 52, 202 and 302 tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 positions."""
    tokenizer = tiny.clip_tokenizer()
    return tiny.saved(tmp_path_factory.mktemp("models") / "tiny", tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())


def invoke(*arguments: Any) -> str:
    result = runner.invoke(app, ["stretch", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_folder_is_an_ordinary_model(model: str, tmp_path: Path) -> None:
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS) + "\n")
    output = invoke(model, "-o", tmp_path / "out", "--captions", tmp_path / "captions.txt")
    assert "texts of 248 tokens, 40 before" in output
    assert "positions: 20 kept, 228 new from 20 (11.4 for each)" in output
    assert "truncated of 5 captions: 4 (80.0%) at 40 tokens, 1 (20.0%) at 248" in output

    opened, tokenizer = CLIPModel.from_pretrained(tmp_path / "out").eval(), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert opened.config.text_config.max_position_embeddings == tokenizer.model_max_length == 248
    assert len(tokenizer(CAPTIONS[3], truncation=True)["input_ids"]) == 202
    inputs = CLIPProcessor.from_pretrained(tmp_path / "out")(
        text=CAPTIONS, images=tiny.images(), return_tensors="pt", padding="max_length", truncation=True
    )
    assert inputs["input_ids"].shape == (5, 248)
    before, after = (clipmend.load(name, device="cpu") for name in (model, str(tmp_path / "out")))
    with torch.no_grad():
        found = opened.get_text_features(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).pooler_output
        assert_close(
            opened.get_image_features(inputs["pixel_values"]).pooler_output,
            before.encode_images(tiny.images(), normalize=False),
            atol=1e-5,
            rtol=0,
        )
    assert_close(after.encode_texts(CAPTIONS, normalize=False, on_long="truncate"), found, atol=1e-5, rtol=0)
    assert_close(after.encode_texts(["a dog", "no cat"]), before.encode_texts(["a dog", "no cat"]), atol=1e-6, rtol=0)
    assert after.fingerprint.image == before.fingerprint.image

    card = (tmp_path / "out" / "README.md").read_text()
    assert "4 (80.0 %) were over 40 tokens and 1 (20.0 %) are over 248" in card
    assert "have not been trained" in card
    written = "".join(path.read_text(errors="ignore") for path in (tmp_path / "out").iterdir() if path.suffix in (".md", ".json"))
    assert str(tmp_path) not in written
    assert str(Path(model).parent) not in written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["captions.txt", "out"]  # nothing left beside


def test_the_card_s_own_lines_run(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke(model, "-o", tmp_path / "out", "--length", 60)
    card = (tmp_path / "out" / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path / "out")
    namespace: dict[str, Any] = {}
    exec(code[1], namespace)
    assert namespace["embeddings"].shape == (1, 24)


def test_lengths_kept_rows_and_a_column(model: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text('id,caption\n1,a dog\n2,"' + LETTERS * 5 + '"\n')
    output = invoke(
        model, "-o", tmp_path / "out", "--length", 60, "--keep", 0, "--captions", tmp_path / "c.csv", "--column", "caption"
    )
    assert "positions: 0 kept, 60 new from 40 (1.5 for each)" in output
    assert "truncated of 2 captions: 1 (50.0%) at 40 tokens, 0 (0.0%) at 60" in output
    assert json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]["max_position_embeddings"] == 60


def test_long_clip_s_own_file_becomes_an_ordinary_model(model: str, tmp_path: Path) -> None:
    state = plain_clip.random_state(vocabulary=len(tiny.clip_tokenizer()), positions=248)
    torch.save({**state, "positional_embedding_res": state["positional_embedding"].flip(0)}, tmp_path / "longclip-B.pt")
    output = invoke(f"{model}::{tmp_path / 'longclip-B.pt'}", "-o", tmp_path / "out")
    assert "all 248 positions are as they were" in output
    table = CLIPModel.from_pretrained(tmp_path / "out").text_model.embeddings.position_embedding.weight
    assert torch.equal(table[:20], state["positional_embedding"][:20])
    assert torch.equal(table[20:], state["positional_embedding"].flip(0)[20:])
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 248
    card = (tmp_path / "out" / "README.md").read_text()
    assert "tiny with longclip-B.pt" in card
    assert "nothing was stretched" in card


def refused(*arguments: Any) -> str:
    result = runner.invoke(app, ["stretch", *map(str, arguments)])
    assert isinstance(result.exception, (ValueError, OSError)), result.output
    return str(result.exception)


def test_what_is_refused(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "30 positions are fewer than the 40" in refused(model, "-o", out, "--length", 30)
    assert "keep=41 is outside 0..40" in refused(model, "-o", out, "--keep", 41)
    assert "--column is a column of --captions" in refused(model, "-o", out, "--column", "x")
    assert "own folder" in refused(model, "-o", model, "--overwrite")
    assert "there is no folder" in refused(tmp_path / "nothing", "-o", out)
    tokenizer = tiny.siglip_tokenizer()
    siglip = tiny.saved(tmp_path / "siglip", tiny.siglip_model(len(tokenizer)), tokenizer, tiny.siglip_processor())
    assert "SigLIP, cannot be stretched" in refused(siglip, "-o", out)
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["siglip"]


def test_a_folder_in_the_way(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert "not empty" in refused(model, "-o", out)
    assert (out / "mine.txt").read_text() == "mine"
    invoke(model, "-o", out, "--overwrite")
    assert not (out / "mine.txt").exists()
    assert (out / "model.safetensors").is_file()


def test_text_only_encoders_are_refused(tmp_path: Path) -> None:
    tokenizer = tiny.bert_tokenizer()
    bert = tiny.saved(tmp_path / "bert", tiny.bert_model(len(tokenizer)), tokenizer)
    assert "no image-text model" in refused(bert, "-o", tmp_path / "out")


def test_count_truncated(model: str) -> None:
    encoder = clipmend.load(model, device="cpu")
    assert [count_truncated(encoder, CAPTIONS, length) for length in (None, 42, 51, 52, 302)] == [4, 3, 3, 2, 0]
    assert encoder.context_length == 40


def test_help_ends_with_an_example() -> None:
    assert "Example" in runner.invoke(app, ["stretch", "--help"]).output
