"""Where the images of a table are looked for, and which columns are read: the same for every command."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.data.readers import read
from clipmend.evaluation import read_retrieval

runner = CliRunner()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures and a table beside them, seen from another directory."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    for k in range(3):
        Image.new("RGB", (32, 32), (80 * k, 30, 90)).save(folder / f"{k}.png")
    (folder / "mine.csv").write_text("image,caption\n" + "".join(f"{k}.png,a thing {k}\n" for k in range(3)))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return folder / "mine.csv"


def commands(data: Path) -> list[list[str]]:
    return [
        ["data", "check", str(data)],
        ["evaluate", "retrieval", "scenes", "--data", str(data), "--at", "1"],
        ["features", "scenes", "--data", str(data), "-o", "work", "--no-texts"],
    ]


def test_images_are_looked_for_beside_the_table(table: Path) -> None:
    for command in commands(table):
        result = runner.invoke(app, command)
        assert result.exit_code == 0, (command, result.output, result.exception)
        assert "not found" not in result.output
    assert [record.path(read(table).image_root) for record in read(table)] == [table.parent / f"{k}.png" for k in range(3)]


def test_where_they_are_not_each_says_the_same(table: Path) -> None:
    moved = Path("moved.csv")
    table.rename(moved)
    for command in commands(moved):
        result = runner.invoke(app, command, env={"COLUMNS": "200"})
        told = " ".join(f"{result.output} {result.exception}".split())
        assert "not found under .; try --image-root DIR" in told, (command, told)
        again = runner.invoke(app, [*command, "--image-root", str(table.parent)])
        assert again.exit_code == 0, (command, again.output, again.exception)


def test_columns_of_other_names_are_chosen_alike(table: Path) -> None:
    table.write_text("mine,words\n" + "".join(f"{k}.png,a thing {k}\n" for k in range(3)))
    for command in commands(table):
        refused = runner.invoke(app, command)
        assert "--image-column" in f"{refused.output} {refused.exception}"
        result = runner.invoke(app, [*command, "--image-column", "mine", "--caption-column", "words"])
        assert result.exit_code == 0, (command, result.output, result.exception)
    assert read_retrieval(table, image_column="mine", caption_column="words").captions == [f"a thing {k}" for k in range(3)]


def test_captions_alone(table: Path) -> None:
    table.write_text("caption\na thing\n")
    for command in commands(table):
        refused = str(runner.invoke(app, command).exception)
        assert "there are captions and no images" in refused, command
        assert "clipmend encode MODEL texts" in refused
        assert "--text-only" in refused
    refused = str(runner.invoke(app, ["fit", "scenes", "--data", str(table), "-o", "patch"]).exception)
    assert "a fit without images is --text-only" in refused
