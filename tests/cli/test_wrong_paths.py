"""Files where folders are wanted, folders where files are, and names that are nearly right: one line, with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import clipmend
from clipmend.cli import main
from clipmend.data.scenes import read_scenes


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some tables")
    (folder / "choice.csv").write_text("image_path,correct_answer\na.png,0\n")
    (folder / "retrieval.csv").write_text("filepath,captions\na.png,['a cat']\n")
    (folder / "pictures").mkdir()
    (folder / "empty").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "pictures" / "a.png")
    return folder


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("evaluate all scenes --data {t}/choice.csv", "choice.csv is a file; give the folder of tables that it is in ({t})"),
        ("evaluate all scenes --data {t}/no", "no: no such folder; make one with: clipmend scenes {t}/no"),
        ("evaluate choice scenes --data {t}", "{t} is a folder; give one of its tables (choice.csv, retrieval.csv)"),
        ("evaluate retrieval scenes --data {t}", "{t} is a folder; give one of its tables"),
        ("fit scenes --data {t}/nothere -o p", "nothere: no such folder; a folder made by `clipmend scenes`"),
        ("fit scenes --data {t}/choice.csv -o p", "choice.csv is a file; a folder made by `clipmend scenes`"),
        ("index scense {t}/pictures -o x", "cannot load 'scense'; did you mean 'scenes'?"),
        ("index scense {t}/empty -o x", "no image under {t}/empty"),  # and no model is loaded to find that out
        ("index scenes {t}/choice.csv -o x", "choice.csv is a file, not a folder; give the folder that holds the images"),
        ("index scenes {t}/no -o x", "there is no folder {t}/no; check how it is spelled"),
        ("encode scenes texts {t}/choice.csv --column image_path --patch Scene -o x.npy", "(did you mean 'scenes'?)"),
    ],
)
def test_one_line_and_the_way_out(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["clipmend", *(word.format(t=tables) for word in arguments.split())])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert told.format(t=tables) in error
    assert list(tmp_path.iterdir()) == []


def test_the_same_in_python(tables: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read_scenes(tables / "nothere")
    with pytest.raises(NotADirectoryError, match="is a file"):
        clipmend.fit(clipmend.load("scenes"), tables / "choice.csv")
