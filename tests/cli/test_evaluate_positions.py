"""``clipmend evaluate positions`` on drawn scenes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.data.scenes.tables import write_scenes

RUN = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


def run(*arguments: str | Path, fails: str = "") -> str:
    done = RUN.invoke(app, ["evaluate", "positions", *map(str, arguments)])
    if fails:
        assert done.exit_code == 1
        assert isinstance(done.exception, (ValueError, OSError))
        assert fails in str(done.exception)
        return str(done.exception)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("worlds") / "test", count=8, size=64, seed=9, split="test").folder


def test_the_bundled_encoder_reads_beyond_the_first_sentence(world: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "positions.json", tmp_path / "positions.png"
    options = ["--change", "first", "--change", "no-first", "--fillers", "2", "--at", "1"]
    shown = run("scenes", "--set", "scenes", "--data", world, *options, "--json", out, "--plot", picture)
    assert "2 × filler in front" in shown
    assert "without the first" in shown
    assert "random order" not in shown
    written = json.loads(out.read_text())
    views = {view["change"]: view for view in written["views"]}
    assert list(views) == ["as-they-are", "filler-2", "first", "no-first"]
    name = "image_retrieval_recall@1"
    assert views["first"]["differences"][name] < -0.3
    assert abs(views["no-first"]["differences"][name]) < 0.3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert written["model"] == "scenes"


def test_what_is_refused(world: Path, tmp_path: Path) -> None:
    scenes = ["scenes", "--set", "scenes", "--data", world]
    run(*scenes, "--change", "second", fails="there is no change 'second'")
    run(*scenes, "--fillers", "x", fails="--fillers wants whole numbers")
    run(*scenes, "--plot", tmp_path / "x.jpg", fails="a .png, .svg or .pdf")
    run(*scenes, "--option", "caption=both", fails="none of these sets takes it")
    run("scenes", "--set", "scenes", "--data", tmp_path / "nothing", fails="no such file or folder")
    run("scenes", "--data", world, fails="looks like --set scenes; the sets are dci, docci, folder,")


def test_help_ends_with_an_example() -> None:
    assert "clipmend evaluate positions scenes --set scenes" in RUN.invoke(app, ["evaluate", "positions", "--help"]).output
