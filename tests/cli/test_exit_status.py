"""What a shell sees: 1 and one line for what a command refuses, 2 and the usage for what is no command line at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipmend.cli.app import main

REFUSED = [
    "fit scenes -o p",
    "fit scenes --data nowhere --text-only -o p",
    "fit scenes --text-only --config nowhere.json -o p",
    "fit scenes --text-only --nouns nowhere.txt -o p",
    "fit scenes --text-only --index nowhere -o p",
    "search nowhere query",
    "search nowhere query --rerank 3",
    "encode scenes texts nowhere -o out.npy",
    "encode scenes texts file -o out.csv",
    "evaluate choice scenes --data nowhere.csv",
    "evaluate choice scenes --data folder",
    "evaluate retrieval scenes --data file",
    "evaluate exclusion scenes --data nowhere/queries.csv",
    "evaluate all scenes --data nowhere",
    "diagnose scenes --images folder -o d",
    "diagnose scenes --pairs nowhere.csv -o d",
    "diagnose scenes --pairs file -o d",
    "index scenes nowhere -o i",
    "scenes file",
    "demo --photos nowhere",
    "demo --out file",
]
NO_COMMAND_LINE = ["nothing", "search only-an-index", "scenes new --count 0", "index scenes folder -o i --colour red"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("a [b]  c\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def status(line: str, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("sys.argv", ["clipmend", *line.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_line_and_status_1(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(line, monkeypatch) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert "[Errno" not in output.err
    assert sorted(path.name for path in here.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("line", NO_COMMAND_LINE)
def test_no_command_line_is_the_usage_and_status_2(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(line, monkeypatch) == 2
    assert "Usage: " in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["file", "folder"]


def test_a_path_is_shown_as_it_is_written(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would take ``:x:`` for a picture and ``[b]`` for a style."""
    assert status("evaluate dense scenes --set scenes --data a:x:[b]", monkeypatch) == 1
    assert "a:x:[b]" in capsys.readouterr().err
