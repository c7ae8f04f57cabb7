"""clipmend scenes."""

import pytest
from typer.testing import CliRunner

from clipmend.cli.app import app, main

runner = CliRunner()


def test_help_has_an_example():
    result = runner.invoke(app, ["scenes", "--help"], env={"COLUMNS": "120", "TERM": "dumb"})
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert "clipmend scenes world/train" in result.stdout


def test_it_writes_a_folder_and_says_what(tmp_path):
    out = tmp_path / "a world"
    result = runner.invoke(app, ["scenes", str(out), "--count", "9", "--size", "24", "--seed", "3", "--split", "test"])
    assert result.exit_code == 0, result.output
    assert "9 images" in result.stdout
    assert len(list((out / "images").glob("*.png"))) == 9


def test_a_full_folder_is_one_clear_line_and_exit_code_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.txt").write_text("x")
    monkeypatch.setattr("sys.argv", ["clipmend", "scenes", str(tmp_path), "--count", "2"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert "--overwrite" in error
    assert "Traceback" not in error
    monkeypatch.setattr("sys.argv", ["clipmend", "scenes", str(tmp_path), "--count", "2", "--size", "16", "--overwrite"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert not (tmp_path / "mine.txt").exists()


@pytest.mark.parametrize(
    "arguments", [["--count", "0"], ["--size", "8"], ["--size", "1000000"], ["--split", "validation"], ["--seed", "-1"]]
)
def test_bad_options_are_refused(tmp_path, arguments):
    result = runner.invoke(app, ["scenes", str(tmp_path / "x"), *arguments])
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()
