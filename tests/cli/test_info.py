"""``clipmend info``: what an index holds, in words and as JSON, and what of indexes that are broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from clipmend import __version__
from clipmend.cli.app import app
from clipmend.search import ImageIndex, Item, build_index
from clipmend.search.info import index_info
from search.fakes import DIM, FakeEncoder, colour_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Twenty images in three folders, one of them a copy, two files that are none, and two columns."""
    photos = tmp_path / "photos"
    colour_folder(photos, 19)
    shutil.copy(photos / "a/000.png", photos / "b/copy.png")
    (photos / "a/broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    (photos / "ünreadable \U0001f600.jpg").write_bytes(b"")
    build_index(FakeEncoder(), photos, tmp_path / "my.index")
    table = tmp_path / "columns.csv"
    table.write_text("path,label,seen\na/000.png,favourite,2024-05-01\nb/001.png,,2024-05-02\n")
    with ImageIndex.open(tmp_path / "my.index") as index:
        index.import_columns(table)
    return tmp_path


def told(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["info", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def as_json(*arguments: str) -> dict[str, Any]:
    return json.loads(told(*arguments, "--json"))


def test_everything_that_an_index_holds(place: Path) -> None:
    index = place / "my.index"
    found = as_json(str(index))
    assert found["backbone"] == "fake"
    assert found["image_digest"] == "image-side"
    assert (found["embed_dim"], found["dtype"], found["version"]) == (DIM, "float32", 2)
    assert (found["images"], found["contents"]) == (20, 19)
    assert found["roots"] == [{"name": "photos", "path": str(place / "photos"), "there": True, "images": 20}]
    assert found["elsewhere"] == 0
    assert found["folders"] == {"a": 7, "b": 7, "c": 6}
    assert found["columns"] == [
        {"name": "label", "type": "text", "images": 1},
        {"name": "seen", "type": "time", "images": 2},
    ]
    assert [row["path"] for row in found["skipped"]] == ["a/broken.png", "ünreadable \U0001f600.jpg"]
    assert all(row["reason"] for row in found["skipped"])
    assert (found["shards"], found["rows"], found["dead"], found["resumable"]) == (1, 19, 0, 0)
    assert found["graph"]["state"] == "none"
    sizes = {path.name: path.stat().st_size for path in index.iterdir()}
    assert found["bytes"]["total"] == sum(sizes.values())
    assert found["bytes"]["vectors"] == sizes["vectors-000000.npy"]
    assert found["bytes"]["database"] == sizes["index.sqlite"]
    assert sum(size for name, size in found["bytes"].items() if name != "total") == found["bytes"]["total"]
    assert found["written_by"] == __version__
    written = datetime.fromisoformat(found["written"])
    assert abs(datetime.now(timezone.utc) - written) < timedelta(minutes=5)
    with ImageIndex.open(index) as opened:
        assert found["edition"] == opened.edition
    assert found["verified"] is False


def test_in_words(place: Path) -> None:
    said = told(str(place / "my.index"))
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[0] == str(place / "my.index")
    for line in (
        "encoder fake (image side image-side); 8 dimensions, float32",
        "images 20 of 19 different contents",
        f"of folders 20 {place / 'photos'}",
        "by folder 7 a",
        "7 b",
        "columns label: text, 1 image",
        "seen: time, 2 images",
        "unreadable 2 files",
        "vectors 19 in 1 file",
        "graph none: search is exact",
    ):
        assert line in lines, said
    assert re.search(
        rf"written {datetime.now().year}-\d\d-\d\d .* by clipmend {re.escape(__version__)}; format 2, edition", "\n".join(lines)
    )
    assert "KB (vectors" in said
    assert "verified" not in said


def test_long_lists_are_cut_and_say_so(place: Path) -> None:
    said = told(str(place / "my.index"), "--most", "1")
    assert said.count("... and 2 more") == 1  # folders
    assert said.count("... and 1 more") == 2  # columns and unreadable files
    assert "... and" not in told(str(place / "my.index"), "--most", "0")
    assert len(as_json(str(place / "my.index"), "--most", "1")["folders"]) == 3


def test_several_folders_and_one_that_is_away(place: Path) -> None:
    colour_folder(place / "scans", 4, seed=3)
    build_index(FakeEncoder(), [place / "photos", place / "scans"], place / "my.index")
    os.rename(place / "scans", place / "away")
    found = as_json(str(place / "my.index"))
    assert {(root["name"], root["images"], root["there"]) for root in found["roots"]} == {("photos", 20, True), ("scans", 4, False)}
    assert found["folders"]["scans/a"] == 2
    assert "(not there)" in told(str(place / "my.index"))


def test_the_graph(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, photos = place / "my.index", place / "photos"
    build_index(FakeEncoder(), photos, index, approximate=True)
    assert as_json(str(index))["graph"] | {"recall": 1.0} == {
        "state": "current",
        "rows": 19,
        "missing": 0,
        "recall": 1.0,
        "problem": "",
    }
    assert "current: 19 vectors" in told(str(index))
    colour_folder(photos / "more", 3, seed=9)
    build_index(FakeEncoder(), photos, index)
    found = as_json(str(index))["graph"]
    assert (found["state"], found["rows"], found["missing"]) == ("behind", 19, 3)
    assert "3 vectors behind" in told(str(index))
    graph = next(index.glob("nearest-*.usearch"))
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    assert as_json(str(index))["graph"]["state"] == "behind"  # nothing is read for it
    assert as_json(str(index), "--verify")["graph"]["state"] == "unusable"
    graph.unlink()
    found = as_json(str(index))["graph"]
    assert found["state"] == "unusable"
    assert "cannot be read" in found["problem"]
    assert "search is exact" in told(str(index))


def test_dead_vectors_and_those_of_a_run_that_was_cut_short(place: Path) -> None:
    index, photos = place / "my.index", place / "photos"
    (photos / "a/003.png").unlink()
    build_index(FakeEncoder(), photos, index)
    found = as_json(str(index))
    assert (found["images"], found["rows"], found["dead"], found["resumable"]) == (19, 19, 1, 0)
    colour_folder(photos / "more", 8, seed=9)

    def stop(embedded: int) -> None:
        if embedded >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(FakeEncoder(before_batch=stop), photos, index, batch_size=2)
    found = as_json(str(index))
    assert (found["images"], found["rows"], found["dead"], found["resumable"]) == (19, 23, 1, 4)
    said = told(str(index))
    assert "1 are of no image any more" in said
    assert "4 are of a run that was cut short" in said
    build_index(FakeEncoder(), photos, index)
    assert as_json(str(index))["resumable"] == 0


def test_an_index_of_vectors_from_elsewhere(tmp_path: Path) -> None:
    with ImageIndex.create(tmp_path / "copy", backbone="", image_digest="", embed_dim=3, dtype="float16") as index:
        index.add([Item(7, "http://a.example/1.png", {"stars": 5.0}), Item(9, "2.png")], np.eye(3)[:2])
    found = as_json(str(tmp_path / "copy"))
    assert (found["images"], found["elsewhere"], found["roots"]) == (2, 2, [])
    assert (found["backbone"], found["image_digest"], found["dtype"]) == ("", "", "float16")
    assert found["columns"] == [{"name": "stars", "type": "number", "images": 1}]
    said = told(str(tmp_path / "copy"))
    assert "unknown (image side unknown)" in said
    assert "none: 2 images added without a file" in said
    with ImageIndex.create(tmp_path / "empty", backbone="x", image_digest="y", embed_dim=3):
        pass
    assert as_json(str(tmp_path / "empty"))["images"] == 0
    assert "0" in told(str(tmp_path / "empty"))


def test_names_that_are_not_utf8_and_that_move_the_cursor(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    colour_folder(photos, 2)
    try:
        os.rename(os.fsencode(photos / "a"), os.fsencode(photos) + b"/\xff\x1b[2J[bold]")
    except OSError:
        pytest.skip("this file system takes no such name")
    (photos / os.fsdecode(b"no\xfe.png")).write_bytes(b"x")
    build_index(FakeEncoder(), photos, tmp_path / "my.index")
    found = as_json(str(tmp_path / "my.index"))
    assert found["folders"] == {"\\xff\x1b[2J[bold]": 1, "b": 1}
    assert found["skipped"][0]["path"] == "no\\xfe.png"
    said = told(str(tmp_path / "my.index"))
    assert "\x1b" not in said
    assert "[bold]" in said


def test_nothing_is_written(place: Path) -> None:
    index = place / "my.index"
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in index.iterdir()}
    told(str(index))
    told(str(index), "--verify", "--json")
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in index.iterdir()} == before


# ---- what is wrong


def no_manifest(index: Path) -> None:
    (index / "manifest.json").unlink()


def no_json(index: Path) -> None:
    (index / "manifest.json").write_text('{"format":')


def newer(index: Path) -> None:
    fields = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps({**fields, "version": 3}))


def no_database(index: Path) -> None:
    (index / "index.sqlite").unlink()


def no_shard(index: Path) -> None:
    next(index.glob("vectors-*.npy")).unlink()


def short_shard(index: Path) -> None:
    shard = next(index.glob("vectors-*.npy"))
    shard.write_bytes(shard.read_bytes()[:-40])


def other_database(index: Path) -> None:
    (index / "index.sqlite").write_bytes(b"SQLite format 3\0" + bytes(4096))


def no_list_of_skipped(index: Path) -> None:
    (index / "skipped.json").write_text("[{]")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_manifest, "no image index"),
        (no_json, "not JSON"),
        (newer, "format version 3"),
        (no_database, "index.sqlite is missing"),
        (no_shard, "vectors-000000.npy cannot be read"),
        (short_shard, "vectors-000000.npy"),
        (other_database, "index.sqlite"),
        (no_list_of_skipped, "skipped.json is damaged"),
    ],
)
def test_a_broken_index_is_one_clear_line(place: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(place / "my.index")
    program = [sys.executable, "-c", "from clipmend.cli import main; main()", "info", "my.index", "--json"]
    done = subprocess.run(program, cwd=place, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert "my.index" in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("nothing", "no image index"), ("photos", "no image index"), ("columns.csv", "no image index"), ("qdrant:x/y", "Qdrant")],
)
def test_what_is_no_index(place: Path, name: str, words: str) -> None:
    done = CliRunner().invoke(app, ["info", name if ":" in name else str(place / name)])
    assert done.exit_code == 1
    assert words in str(done.exception)


def test_one_never_finished(place: Path) -> None:
    def stop(embedded: int) -> None:
        raise KeyboardInterrupt

    (place / "photos/a/000.png").touch()
    with pytest.raises(KeyboardInterrupt):
        build_index(
            FakeEncoder(before_batch=lambda n: stop(n) if n else None), place / "photos", place / "second.index", batch_size=2
        )
    done = CliRunner().invoke(app, ["info", str(place / "second.index")])
    assert done.exit_code == 1
    assert "never finished" in str(done.exception)


def test_verify_finds_what_a_look_does_not(place: Path) -> None:
    index = place / "my.index"
    assert told(str(index), "--verify").rstrip().endswith("everything is as it was written")
    assert as_json(str(index), "--verify")["verified"] is True
    shard = next(index.glob("vectors-*.npy"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    told(str(index))
    done = CliRunner().invoke(app, ["info", str(index), "--verify"])
    assert done.exit_code == 1
    assert "digest differs" in str(done.exception)


def test_it_is_written_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is told is of one state."""
    from clipmend.search import info

    real, times = info._graph, []

    def written(index: ImageIndex, rows: int, verify: bool) -> Any:
        if not times:
            colour_folder(place / "photos/more", 5, seed=9)
            build_index(FakeEncoder(), place / "photos", place / "my.index")
        times.append(rows)
        return real(index, rows, verify)

    monkeypatch.setattr(info, "_graph", written)
    found = index_info(place / "my.index")
    assert times == [19, 24]
    assert found.images == sum(found.folders.values()) == 25
    assert found.rows == 24


def test_no_model_is_loaded(place: Path) -> None:
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom clipmend.cli.app import app\n"
        "done = CliRunner().invoke(app, ['info', 'my.index'])\nassert done.exit_code == 0, done.output\n"
        "heavy = {'torch', 'transformers', 'sklearn', 'pandas'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
