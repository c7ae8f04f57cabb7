"""``clipmend generate``, with a tiny generator of random weights."""

from __future__ import annotations

import sys
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
        DecoderConfig(embed_dim=16, image_size=16, components=4, width=16, heads=2, layers=1, tokens=1, embedding=16, refiner=0)
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


def test_the_extra_is_named_whole(generator: Path) -> None:
    code, said = run("--help")
    assert code == 0
    assert "clipmend[generate]" in " ".join(said.replace("│", " ").split())


@pytest.mark.parametrize("guidance", ["inf", "1e39"])
def test_no_sheet_of_what_is_not_a_picture(generator: Path, tmp_path: Path, guidance: str) -> None:
    code, said = run("a cup", "--generator", generator, "-n", "1", "--guidance", guidance, "-o", tmp_path / "x.png")
    assert code != 0
    assert "guidance" in said
    assert not (tmp_path / "x.png").exists()


def test_where_no_sheet_can_be_is_told_before_anything_is_drawn(
    generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **options: object) -> None:
        raise AssertionError("drawn")

    monkeypatch.setattr(SceneGenerator, "draw", never)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_bytes(b"mine")
    for out, told in (
        (tmp_path / "folder.png", f"is a folder; name a file in it: {tmp_path / 'folder.png' / 'sheet.png'}"),
        (tmp_path / "file" / "deeper" / "x.png", f"{tmp_path / 'file'} is a file"),
    ):
        code, said = run("a cup", "--generator", generator, "--overwrite", "-o", out)
        assert code != 0
        assert told in said
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, said = run("a cup", "--generator", generator, "-o", tmp_path / "x.png")
    assert code != 0
    assert "cannot be written to" in said
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_what_was_there(
    generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    out = tmp_path / "new" / "sheet.png"
    out.parent.mkdir()
    out.write_bytes(b"mine")

    def half(self: Image.Image, path: Path) -> None:
        Path(path).write_bytes(b"\x89PNG half")
        raise failure

    monkeypatch.setattr(Image.Image, "save", half)
    code, said = run("a cup", "--generator", generator, "-n", "1", "--steps", "1", "--overwrite", "-o", out)
    assert code != 0
    if isinstance(failure, OSError):
        assert f"{out} cannot be written: No space left on device" in said
    assert out.read_bytes() == b"mine"
    assert list(out.parent.iterdir()) == [out]


class _Patch:
    """Stands for a patch that turns embeddings round, by ``strength``."""

    def apply(self, encoder: RandomDualEncoder, strength: float = 1.0, gate: bool | None = None) -> RandomDualEncoder:
        if strength == 0:
            return encoder
        turned = RandomDualEncoder()
        plain = turned.encode_texts
        turned.encode_texts = lambda texts, **options: -plain(texts, **options)  # type: ignore[method-assign]
        return turned


def test_before_and_after_differ_by_the_embedding_alone(generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clipmend.negation import PeakPatch

    monkeypatch.setattr(PeakPatch, "from_pretrained", lambda name: _Patch())
    shared = ("--generator", generator, "-n", "3", "--steps", "1", "--patch", "p")
    code, said = run("a cup but no cat", *shared, "--strength", "0", "-o", tmp_path / "none.png")
    assert code == 0, said
    assert "before and after" in said
    assert "no negation cue" not in said
    code, said = run("a cup but no cat", *shared, "-o", tmp_path / "full.png")
    assert code == 0, said
    none, full = (Image.open(tmp_path / name) for name in ("none.png", "full.png"))
    assert none.size == full.size
    drawn = []
    for sheet in (none, full):  # find the two rows of pictures by the frame of the tiles
        top = next(y for y in range(sheet.height) if sheet.getpixel((8, y)) != (255, 255, 255) and y > 20)
        step = (sheet.height - top) // 2
        drawn.append([sheet.crop((8, top + k * step, 136, top + k * step + 128)).tobytes() for k in range(2)])
    assert drawn[0][0] == drawn[0][1]  # strength 0: the same to the bit
    assert drawn[1][0] == drawn[0][0]  # before is before, whatever the patch
    assert drawn[1][0] != drawn[1][1]


def test_a_prompt_without_negation_is_told_of(generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clipmend.negation import PeakPatch

    monkeypatch.setattr(PeakPatch, "from_pretrained", lambda name: _Patch())
    shared = ("--generator", generator, "-n", "1", "--steps", "1")
    assert "no negation cue" in run("a red cup", *shared, "--patch", "p", "-o", tmp_path / "a.png")[1]
    assert "no negation cue" not in run("a red cup", *shared, "-o", tmp_path / "b.png")[1]  # nothing is mended


def test_without_diffusers_the_extra_is_named(generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers.models.attention", None)
    code, said = run("a cup", "--generator", generator, "-o", tmp_path / "x.png")
    assert code != 0
    assert "pip install 'clipmend[generate]'" in said
