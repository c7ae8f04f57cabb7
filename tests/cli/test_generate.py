"""``clipmend generate``, with a tiny generator of random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import clipmend
from clipmend.cli.app import app
from helpers import RandomDualEncoder

pytest.importorskip("diffusers")

from clipmend.generation.decoder import DecoderConfig, SceneDecoder  # needs what was just looked for
from clipmend.generation.prior import LinearPrior
from clipmend.generation.sampling import SceneGenerator


@pytest.fixture
def generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A generator of the random encoder, which ``clipmend.load`` gives."""
    encoder = RandomDualEncoder()
    monkeypatch.setattr(clipmend, "load", lambda name, device=None: encoder)
    torch.manual_seed(0)
    prior = LinearPrior(16, 16)
    prior.weight.copy_(torch.randn(16, 16))
    decoder = SceneDecoder(
        DecoderConfig(embed_dim=16, image_size=16, components=4, widths=(16, 32), blocks=1, embedding=16, refiner=0)
    )  # fmt: skip
    torch.nn.init.normal_(decoder.last.weight)
    SceneGenerator(decoder, prior, encoder.name, encoder.fingerprint.image, encoder.fingerprint.text).save(tmp_path / "made")
    return tmp_path / "made"


def run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["generate", *map(str, arguments)])
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def test_a_sheet(generator: Path, tmp_path: Path) -> None:
    code, said = run("a red cup", "--generator", generator, "-n", "3", "--steps", "2", "-o", tmp_path / "new" / "sheet.png")
    assert code == 0, said
    assert "3 images" in said
    first = Image.open(tmp_path / "new" / "sheet.png")
    assert first.width > 3 * 128
    assert len(list((tmp_path / "new").iterdir())) == 1
    code, said = run("a red cup", "--generator", generator, "-n", "3", "--steps", "2", "-o", tmp_path / "b.png")
    assert code == 0
    assert first.tobytes() == Image.open(tmp_path / "b.png").tobytes()
    run("a red cup", "--generator", generator, "-n", "3", "--steps", "2", "--seed", "9", "-o", tmp_path / "c.png")
    assert first.tobytes() != Image.open(tmp_path / "c.png").tobytes()


def test_what_is_refused(generator: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    out.write_bytes(b"mine")
    for arguments, told in (
        (("a cup", "-o", out), "is there already"),
        ((" ", "-o", tmp_path / "x.png"), "prompt is empty"),
        (("a cup", "-o", tmp_path / "x.gif"), "must end in .png"),
        (("a cup", "-o", tmp_path / "x.png", "--strength", "2"), "needs --patch"),
        (("a cup", "-o", tmp_path / "x.png", "--generator", tmp_path / "none"), "no trained generator"),
    ):
        code, said = run(*arguments)
        assert code != 0
        assert told in said
    assert out.read_bytes() == b"mine"
