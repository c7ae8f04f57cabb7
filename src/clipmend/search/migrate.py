"""Bring an index of format version 1 (a table in JSON lines) to the present one, in place: its vectors stay as they are.

The new manifest is renamed into place last: killed before that, the index is of version 1 still, and the next run starts over.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import Any

from clipmend.data.images import display_path
from clipmend.search import store
from clipmend.search.database import Database, raw
from clipmend.search.maintain import seal
from clipmend.search.store import ImageIndexError, Manifest, Shard

__all__ = ["current"]

_OLD_SHARD = re.compile(r"vectors-(\d{6,})\.npy")
_OLD_TABLE = re.compile(r"images-\d+\.jsonl")


def current(directory: Path) -> Manifest:
    """The manifest of an index, which is brought to the present format first if it is of an older one.

    Raises:
        ImageIndexError: no index, damage, a version that is not known, or an old one in a folder that cannot be written.
    """
    if store.read_fields(directory).get("version") == 1:
        try:
            with store.locked(directory):
                fields = store.read_fields(directory)
                if fields.get("version") == 1:  # still, now that nobody else writes
                    _migrate(directory, fields)
        except OSError as error:
            raise ImageIndexError(
                f"the index {display_path(directory)} is of format version 1 and cannot be brought to version {store.VERSION} "
                f"({error.strerror or error}): make its folder writable, or copy it, and open it again"
            ) from error
    return store.read_manifest(directory)


def _migrate(directory: Path, fields: dict[str, Any]) -> None:
    try:
        backbone = {name: str(fields["backbone"][name]) for name in ("name", "image")}
        manifest = Manifest(secrets.token_hex(16), backbone, int(fields["embed_dim"]), str(fields["dtype"]))
        named = [_Old(str(s["file"]), int(s["rows"]), str(s["sha256"])) for s in fields["shards"]]
        next_shard, complete = int(fields["next_shard"]), bool(fields["complete"])
        root, relative, skipped = str(fields["root"]), str(fields["relative_root"]), int(fields["skipped"])
        table = dict(fields["table"])
        if manifest.dtype not in ("float32", "float16") or not all(_OLD_SHARD.fullmatch(shard.file) for shard in named):
            raise ValueError("bad values")
    except (KeyError, TypeError, ValueError) as error:
        raise store.damaged(directory, f"{store.MANIFEST} lacks what it must say ({error})") from None
    entries = _entries(directory, table)
    committed = sum(shard.rows for shard in named)
    if any(not 0 <= entry["row"] < committed for entry in entries) or (complete and len(entries) != fields.get("count")):
        raise store.damaged(directory, f"{table.get('file')} does not fit the manifest")
    named += _left_by_a_killed_run(directory, next_shard, backbone["image"])
    for name in (store.DATABASE, f"{store.DATABASE}-journal"):
        (directory / name).unlink(missing_ok=True)
    database = Database(directory, manifest, create=True)
    try:
        with database.transaction():
            first = 0
            for shard in named:
                vectors = store.open_vectors(directory, shard.at(first), manifest.embed_dim, manifest.dtype)
                records = _records(directory, shard)
                database.execute("INSERT INTO shards VALUES(?, ?, ?, ?)", (shard.number, first, len(vectors), shard.sha256))
                database.many(
                    "INSERT INTO contents VALUES(?, ?, ?, ?, NULL)",
                    ((first + i, bytes.fromhex(r["sha256"]), r["width"], r["height"]) for i, r in enumerate(records)),
                )
                first += shard.rows
            database.execute(
                "INSERT INTO roots VALUES(1, CAST(? AS TEXT), '', CAST(? AS TEXT), CAST(? AS TEXT))",
                (raw(Path(root).name or "root"), raw(root), raw(relative)),
            )
            database.many(
                "INSERT INTO images(id, path, root, folder, name, size, mtime_ns, date, row, width, height)"
                " VALUES(?, CAST(? AS TEXT), 1, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?, ?, ?, ?, ?)",
                (
                    (
                        id_,
                        raw(e["path"]),
                        raw(e["path"].rpartition("/")[0]),
                        raw(e["path"].rpartition("/")[2]),
                        e["size"],
                        e["mtime_ns"],
                        e["mtime_ns"] / 1e9,
                        e["row"],
                        e["width"],
                        e["height"],
                    )
                    for id_, e in enumerate(entries)
                ),
            )
            number = 1 + max((shard.number for shard in named), default=-1)
            database.set_meta(
                complete=int(complete),
                next_id=len(entries),
                next_shard=max(next_shard, number),
                committed=committed,
                skipped=skipped,
            )
        store.write_manifest(directory, manifest)
        seal(directory, manifest, database)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ImageIndexError):
            raise
        raise store.damaged(directory, f"its lists do not parse ({error})") from None
    finally:
        database.close()
    store.remove_leftovers(directory, {shard.file for shard in named})


class _Old:
    """One file of vectors, with the list of what its rows embed beside it."""

    def __init__(self, file: str, rows: int, sha256: str) -> None:
        self.file, self.rows, self.sha256 = file, rows, sha256

    @property
    def number(self) -> int:
        return int(self.file.split("-")[1].split(".")[0])

    def at(self, first: int) -> Shard:
        return Shard(self.number, first, self.rows, self.sha256)


def _entries(directory: Path, table: dict[str, Any]) -> list[dict[str, Any]]:
    if not table:
        return []
    file = str(table.get("file"))
    if not _OLD_TABLE.fullmatch(file):
        raise store.damaged(directory, f"{store.MANIFEST} lacks what it must say (table)")
    try:
        data = (directory / file).read_bytes()
    except OSError as error:
        raise store.damaged(directory, f"{file} cannot be read ({error.strerror})") from None
    if store.digest(data) != table.get("sha256"):
        raise store.damaged(directory, f"{file} is not what the manifest says (its digest differs)")
    try:
        return [json.loads(line) for line in data.splitlines()]
    except ValueError as error:
        raise store.damaged(directory, f"{file} does not parse ({error})") from None


def _records(directory: Path, shard: _Old) -> list[dict[str, Any]]:
    path = directory / shard.file.replace(".npy", ".jsonl")
    try:
        header, *rows = (json.loads(line) for line in path.read_bytes().splitlines())
        if len(rows) != shard.rows or header["sha256"] != shard.sha256:
            raise ValueError(f"it does not fit {shard.file}")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise store.damaged(directory, f"{path.name} cannot be read ({error})") from None
    return rows


def _left_by_a_killed_run(directory: Path, next_shard: int, image_digest: str) -> list[_Old]:
    """Whole shards, newer than the manifest, of a run by the same encoder."""
    found = []
    for path in sorted(directory.glob("vectors-*.npy")):
        match = _OLD_SHARD.fullmatch(path.name)
        if match is None or int(match[1]) < next_shard:
            continue
        try:
            header = json.loads(path.with_suffix(".jsonl").read_bytes().splitlines()[0])
            shard = _Old(str(header["file"]), int(header["rows"]), str(header["sha256"]))
            if header["image"] == image_digest and shard.file == path.name and store.file_digest(path) == shard.sha256:
                _records(directory, shard)
                found.append(shard)
        except (OSError, ValueError, KeyError, IndexError, TypeError):  # damaged: worth nothing, its images are embedded again
            continue
    return found
