"""``clipmend diagnose`` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import clipmend
from clipmend.cli import diagnose as command
from clipmend.negation.diagnosis import Diagnosis
from helpers import RandomDualEncoder

runner = CliRunner()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setattr(clipmend, "load", lambda name, device=None: RandomDualEncoder(name=name), raising=False)
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)
    return app


def test_writes_both_files_and_prints_table_and_suggestion(app: typer.Typer, tmp_path: Path) -> None:
    out = tmp_path / "a b" / "out"
    for _ in range(2):  # a folder that is there is fine, its files are replaced
        result = runner.invoke(app, ["diagnose", "toy", "-o", str(out), "--bootstrap", "20", "--kind", "negation, count"])
        assert result.exit_code == 0, result.output
        assert sorted(path.name for path in out.iterdir()) == ["diagnosis.json", "diagnosis.png"]
    found = Diagnosis.from_json(out / "diagnosis.json")
    assert list(found.kinds) == ["negation", "count"]
    assert found.bootstrap == 20
    assert f"peak {found.peak}, anchor {found.anchor}, score correction {list(found.scn_layers)}" in result.output
    assert "toy: negation, 180 pairs" in result.output
    assert "toy: count, 150 pairs" in result.output


def test_a_users_table(app: typer.Typer, tmp_path: Path) -> None:
    table = tmp_path / "mine.tsv"
    table.write_text("positive\tcontrast\na cat\tno cat\na dog\tno dog\na dog\tno dog\n")
    result = runner.invoke(
        app,
        ["diagnose", "toy", "--pairs", str(table), "--kind", "mine", "-o", str(tmp_path / "o"), "--bootstrap", "0", "--no-probes"],
    )
    assert result.exit_code == 0, result.output
    values = json.loads((tmp_path / "o" / "diagnosis.json").read_text())
    assert values["kinds"]["mine"]["count"] == 2
    assert "1 repeated row dropped" in result.output


def test_columns_of_other_names(app: typer.Typer, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("a,b\na cat,no cat\na dog,no dog\n")
    arguments = ["diagnose", "toy", "--pairs", str(table), "-o", str(tmp_path / "o"), "--bootstrap", "0"]
    refused = runner.invoke(app, arguments)
    assert "no column positive" in str(refused.exception)
    assert "--columns" in str(refused.exception)
    result = runner.invoke(app, [*arguments, "--columns", "a,b"])
    assert result.exit_code == 0, result.output
    assert "which denied" not in result.output
    assert "too few" in result.output


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--kind", "nothing"], ValueError, "no built-in pairs of kind 'nothing'"),
        (["--kind", ","], ValueError, "no kind"),
        (["--images", "."], ValueError, "--images needs --pairs"),
        (["--pairs", "none.csv"], FileNotFoundError, "none.csv"),
        (["--columns", "a,b"], ValueError, "--columns needs --pairs"),
        (["--pairs", "none.csv", "--columns", "a"], ValueError, "wants two names with a comma between, not 'a'"),
    ],
)
def test_mistakes_leave_no_files(
    app: typer.Typer, tmp_path: Path, arguments: list[str], error: type[Exception], message: str
) -> None:
    result = runner.invoke(app, ["diagnose", "toy", "-o", str(tmp_path / "o"), *arguments])
    assert isinstance(result.exception, error)
    assert message in str(result.exception)
    assert not (tmp_path / "o").exists()


def test_output_that_is_a_file(app: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "o").write_text("")
    result = runner.invoke(app, ["diagnose", "toy", "-o", str(tmp_path / "o")])
    assert isinstance(result.exception, NotADirectoryError)


def test_help_has_an_example(app: typer.Typer) -> None:
    result = runner.invoke(app, ["diagnose", "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert "clipmend diagnose" in result.output
