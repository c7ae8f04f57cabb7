"""``clipmend copy``, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.search.opening import open_gallery
from clipmend.search.vectors import write_vectors

pytest.importorskip("qdrant_client")
import search.qdrant_server  # noqa: F401 (which makes local mode quick)

VECTORS = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["copy", *map(str, arguments)], catch_exceptions=True)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    write_vectors(tmp_path / "v.npy", VECTORS, [f"a/{i}.jpg" for i in range(30)])
    return tmp_path / "v.npy"


def test_a_copy_and_the_same_again(vectors: Path, tmp_path: Path) -> None:
    target = f"qdrant:{tmp_path}/store/pictures"
    done = run(vectors, target, "--model", "scenes")
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{target}: 30 of 30 images copied; 30 vectors compared;")
    assert "0 of 30 images copied, 30 were there already" in run(vectors, target).output
    with open_gallery(target) as gallery:
        assert (gallery.backbone, len(gallery), dict(gallery.fields)) == ("scenes", 30, {"folder": "folder", "name": "text"})
        assert gallery.items(gallery.nearest(VECTORS[7], 1).ids[0])[0].path == "a/7.jpg"


def test_rows_that_are_no_vectors(tmp_path: Path) -> None:
    broken = VECTORS.copy()
    broken[3] = np.nan
    np.save(tmp_path / "v.npy", broken)
    failed = run(tmp_path / "v.npy", f"qdrant:{tmp_path}/store/p")
    assert failed.exit_code == 1
    assert "--skip-bad" in str(failed.exception)
    assert not (tmp_path / "store").exists()
    done = run(tmp_path / "v.npy", f"qdrant:{tmp_path}/store/p", "--skip-bad")
    assert "29 of 29 images copied" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["v.npy", "v.npy"], "the same"),
        (["v.npy", "w.npy"], "not into a file"),
        (["v.npy", "there"], "there already"),
        (["none.npy", "index"], "no such file"),
        (["v.npy", "index", "--shards", 3], "for Qdrant"),
        (["v.npy", "qdrant:store/p", "--vector-column", "x"], "vector_column"),
    ],
)
def test_what_cannot_be_copied(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("x")
    before = sorted(path.name for path in tmp_path.iterdir())
    failed = run(*arguments)
    assert failed.exit_code == 1
    assert isinstance(failed.exception, (ValueError, OSError))
    assert message in str(failed.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_shards_are_set_once(vectors: Path, tmp_path: Path) -> None:
    target = f"qdrant:{tmp_path}/store/pictures"
    assert run(vectors, target, "--shards", 2, "--replicas", 1).exit_code == 0
    failed = run(vectors, target, "--shards", 3)
    assert "set when it is made" in str(failed.exception)


def test_the_help_names_its_options() -> None:
    said = CliRunner().invoke(app, ["copy", "--help"], env={"COLUMNS": "200"}).output
    assert "Example" in said
    assert "--skip-bad" in said
