"""An index of format version 1, as the release before wrote it, is brought to the present format in place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from clipmend.search import ImageIndex, ImageIndexError, build_index, database, store
from search.fakes import FakeEncoder, colour_folder


def lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def version_1(new: Path, old: Path, photos: Path, *, killed: int = 0) -> None:
    """Write the index ``new`` the old way, in two shards; ``killed``: the last rows are of a run that did not commit them."""
    with ImageIndex.open(new) as index, sqlite3.connect(new / "index.sqlite") as known:
        entries = list(index.entries)
        records = [
            {"sha256": sha256.hex(), "width": width, "height": height}
            for sha256, width, height in known.execute("SELECT sha256, width, height FROM contents ORDER BY row")
        ]
        vectors = index.embeddings()[np.argsort([entry.row for entry in entries])]
        skipped = len(index.skipped)
    assert len(vectors) == len(records)
    old.mkdir()
    shards = []
    cut = len(records) - killed if killed else len(records) // 2
    for number, (low, high) in enumerate(((0, cut), (cut, len(records)))):
        np.save(old / f"vectors-{number:06d}.npy", vectors[low:high])
        digest = hashlib.sha256((old / f"vectors-{number:06d}.npy").read_bytes()).hexdigest()
        header = {"file": f"vectors-{number:06d}.npy", "rows": high - low, "sha256": digest, "image": "image-side"}
        (old / f"vectors-{number:06d}.jsonl").write_bytes(lines([header, *records[low:high]]))
        shards.append({key: header[key] for key in ("file", "rows", "sha256")})
    if killed:
        shards = shards[:1]
        entries = [entry for entry in entries if entry.row < cut]
    names = ("path", "size", "mtime_ns", "sha256", "width", "height", "row")
    table = lines([{name: getattr(entry, name) for name in names} for entry in entries])
    (old / "images-3.jsonl").write_bytes(table)
    shutil.copy(new / "skipped.json", old)
    (old / ".lock").touch()
    manifest = {
        "format": "clipmend-image-index", "version": 1, "clipmend": "0.1.0",
        "backbone": {"name": "fake", "image": "image-side"}, "embed_dim": 8, "dtype": "float32",
        "root": str(photos.resolve()), "relative_root": os.path.relpath(photos, old), "count": len(entries), "skipped": skipped,
        "complete": True, "generation": 3, "next_shard": len(shards),
        "table": {"file": "images-3.jsonl", "sha256": hashlib.sha256(table).hexdigest()}, "shards": shards,
    }  # fmt: skip
    (old / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    colour_folder(tmp_path / "photos")
    (tmp_path / "photos" / "bad.png").write_bytes(b"no")
    return tmp_path / "photos"


def test_everything_is_kept_and_nothing_is_embedded_again(tmp_path: Path, photos: Path) -> None:
    new = ImageIndex.build(FakeEncoder(), photos, tmp_path / "new")
    version_1(tmp_path / "new", tmp_path / "old", photos)
    old = ImageIndex.open(tmp_path / "old", verify=True)
    assert [(e.path, e.sha256, e.size, e.width) for e in old.entries] == [(e.path, e.sha256, e.size, e.width) for e in new.entries]
    assert np.array_equal(old.embeddings(), new.embeddings())
    assert (old.paths, old.skipped, old.backbone, old.roots) == (new.paths, new.skipped, new.backbone, new.roots)
    encoder = FakeEncoder()
    report = build_index(encoder, photos, tmp_path / "old")
    assert (encoder.embedded, report.unchanged, report.resumed) == (0, 20, 0)
    shards = {"vectors-000000.npy", "vectors-000001.npy"}
    assert {path.name for path in (tmp_path / "old").iterdir()} == shards | {
        "manifest.json",
        "index.sqlite",
        "skipped.json",
        ".lock",
    }


def test_an_update_migrates_too_and_takes_what_a_killed_run_left(tmp_path: Path, photos: Path) -> None:
    ImageIndex.build(FakeEncoder(), photos, tmp_path / "new")
    version_1(tmp_path / "new", tmp_path / "old", photos, killed=4)
    encoder = FakeEncoder()
    report = build_index(encoder, photos, tmp_path / "old")
    assert (encoder.embedded, report.resumed, report.added, report.unchanged, report.count) == (0, 4, 4, 16, 20)


def test_killed_while_migrating_it_starts_over(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = ImageIndex.build(FakeEncoder(), photos, tmp_path / "new")
    version_1(tmp_path / "new", tmp_path / "old", photos)

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    for module, name in ((database, "commit"), (store, "write_manifest"), (store, "remove_leftovers")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(Killed):
                ImageIndex.open(tmp_path / "old")
    assert np.array_equal(ImageIndex.open(tmp_path / "old", verify=True).embeddings(), new.embeddings())


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("images-3.jsonl", b"{}\n", "its digest differs"),
        ("vectors-000000.jsonl", b"{}\n", "cannot be read"),
        ("vectors-000000.npy", b"", "cannot be read"),
    ],
)
def test_an_old_index_that_is_damaged_is_left_as_it_is(tmp_path: Path, photos: Path, file: str, data: bytes, message: str) -> None:
    ImageIndex.build(FakeEncoder(), photos, tmp_path / "new")
    version_1(tmp_path / "new", tmp_path / "old", photos)
    (tmp_path / "old" / file).write_bytes(data)
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir() if path.suffix in (".json", ".jsonl", ".npy")}
    with pytest.raises(ImageIndexError, match=message):
        ImageIndex.open(tmp_path / "old")
    for name, data in before.items():
        assert (tmp_path / "old" / name).read_bytes() == data


def test_where_nothing_can_be_written_the_way_out_is_named(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ImageIndex.build(FakeEncoder(), photos, tmp_path / "new")
    version_1(tmp_path / "new", tmp_path / "old", photos)

    def refuse(_: Path) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store, "locked", refuse)
    with pytest.raises(ImageIndexError, match="make its folder writable"):
        ImageIndex.open(tmp_path / "old")


def test_an_old_manifest_without_its_count_is_damaged(tmp_path: Path, photos: Path) -> None:
    ImageIndex.build(FakeEncoder(), photos, tmp_path / "new")
    version_1(tmp_path / "new", tmp_path / "old", photos)
    fields = json.loads((tmp_path / "old" / "manifest.json").read_bytes())
    del fields["count"]
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(ImageIndexError, match="does not fit the manifest"):
        ImageIndex.open(tmp_path / "old")
