"""Append vectors to an index, shard by shard, and name them in the database."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from clipmend.search import store
from clipmend.search.database import Database, raw
from clipmend.search.roots import Root
from clipmend.search.store import Manifest, Shard

__all__ = ["MOST_SHARDS", "SHARD_ROWS", "SHARD_SECONDS", "Content", "Writer", "join_small", "replace_shards"]

SHARD_ROWS = 16_384
SHARD_SECONDS = 30.0
"""A shard is written after this many rows or seconds, whichever comes first: what a kill can cost."""
MOST_SHARDS = 64
"""More than this, beyond those that are full, are joined."""


@dataclass(frozen=True, slots=True)
class Content:
    """What one vector embeds: an image content (SHA-256; ``None`` if unknown) of ``width`` x ``height`` pixels."""

    sha256: bytes | None
    width: int | None = None
    height: int | None = None
    taken: float | None = None


class Writer:
    """Appends rows.

    Attributes:
        first: the first row that this writer wrote, or would.
        rows: rows written and named so far, those of other runs included.
    """

    def __init__(self, database: Database, manifest: Manifest) -> None:
        self.database, self.manifest = database, manifest
        self.directory = database.directory
        shards = database.shards()
        for shard in shards:  # one after the other: many small ones may be more files than a process may have open
            store.open_vectors(database.directory, shard, manifest.embed_dim, manifest.dtype)
        self.rows = self.first = shards[-1].first + shards[-1].rows if shards else 0
        self._contents: list[Content] = []
        self._vectors: list[np.ndarray] = []
        self._asked: set[bytes] = set()
        self._last_flush = time.monotonic()

    def ask(self, sha256: bytes) -> bool:
        """Whether this content is still to be embedded; asked for once, it is on its way."""
        if sha256 in self._asked or self.database.one("SELECT 1 FROM contents WHERE sha256 = ? LIMIT 1", (sha256,)):
            return False
        self._asked.add(sha256)
        return True

    def add(self, content: Content, vector: np.ndarray) -> None:
        self._contents.append(content)
        self._vectors.append(vector)
        if len(self._contents) >= SHARD_ROWS or time.monotonic() - self._last_flush > SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one shard, and name it."""
        if self._contents:
            self.append(np.stack(self._vectors), self._contents)
            self._asked.difference_update(content.sha256 for content in self._contents if content.sha256 is not None)
            self._contents, self._vectors = [], []
        self._last_flush = time.monotonic()

    def append(self, vectors: np.ndarray, contents: Sequence[Content]) -> None:
        """One shard, in a transaction of its own."""
        with self.database.transaction(seen=False):
            self.insert(vectors, contents)
        join_small(self.database, self.manifest)

    def insert(self, vectors: np.ndarray, contents: Sequence[Content]) -> int:
        """One shard, in the caller's transaction; gives its first row."""
        number = max(int(self.database.meta("next_shard")), store.highest_shard(self.directory) + 1)
        shard = store.write_shard(self.directory, number, self.rows, vectors.astype(self.manifest.dtype))
        self.database.execute("INSERT INTO shards VALUES(?, ?, ?, ?)", (shard.number, shard.first, shard.rows, shard.sha256))
        rows = ((shard.first + i, c.sha256, c.width, c.height, c.taken) for i, c in enumerate(contents))
        self.database.many("INSERT INTO contents VALUES(?, ?, ?, ?, ?)", rows)
        self.database.set_meta(next_shard=number + 1)
        self.rows += shard.rows
        return shard.first

    def respell(self, roots: Sequence[Root]) -> None:
        """Spell paths as it befits the number of folders: with the folder's name where there are several."""
        for root in roots:
            old = self.database.one("SELECT prefix FROM roots WHERE id = ?", (root.id,))
            if old is None or old == root.prefix:
                continue
            new, at = raw(root.prefix), len(raw(old)) + 1  # in bytes: a name need not be UTF-8
            run = self.database.execute
            with self.database.transaction():
                run(
                    "UPDATE images SET path = CAST(CAST(? AS BLOB) || substr(CAST(path AS BLOB), ?) AS TEXT) WHERE root = ?",
                    (new, at, root.id),
                )
                run(
                    "UPDATE images SET folder = CAST(substr(CAST(path AS BLOB), 1,"
                    " length(CAST(path AS BLOB)) - length(CAST(name AS BLOB)) - 1) AS TEXT) WHERE root = ?",
                    (root.id,),
                )
                run(
                    "UPDATE roots SET prefix = CAST(? AS TEXT), name = CAST(? AS TEXT) WHERE id = ?", (new, raw(root.name), root.id)
                )


def join_small(database: Database, manifest: Manifest) -> None:
    """Join neighbouring small shards once they are many, each of which an opened index holds open; rows keep their numbers.

    Whoever has the index open has the old files mapped, also once they are deleted here; whoever opens it meanwhile holds off the
    transaction until all are.
    """
    shards = database.shards()
    if len(shards) <= MOST_SHARDS + sum(shard.rows for shard in shards) // SHARD_ROWS:
        return
    directory = database.directory
    number = max(int(database.meta("next_shard")), store.highest_shard(directory) + 1)
    old, new = list[Shard](), list[Shard]()
    try:
        for group in _groups(shards):
            maps = [store.open_vectors(directory, shard, manifest.embed_dim, manifest.dtype) for shard in group]
            new.append(store.write_shard(directory, number + len(new), group[0].first, np.concatenate(maps)))
            old += group
    except OSError:  # a full disk, say: what was to be written is, and small files can wait
        for shard in new:
            (directory / shard.file).unlink(missing_ok=True)
        return
    if not new:
        return
    with database.transaction(seen=False):
        replace_shards(database, old, new)
        database.set_meta(next_shard=number + len(new))
    for shard in old:
        with suppress(OSError):  # the next update removes leftovers
            (directory / shard.file).unlink()


def _groups(shards: Sequence[Shard]) -> Iterator[list[Shard]]:
    """Two or more neighbours of together at most a shard's rows."""
    group: list[Shard] = []
    for shard in shards:
        if group and sum(s.rows for s in group) + shard.rows > SHARD_ROWS:
            if len(group) > 1:
                yield group
            group = []
        group.append(shard)
    if len(group) > 1:
        yield group


def replace_shards(database: Database, old: Sequence[Shard], new: Sequence[Shard]) -> None:
    """In the caller's transaction."""
    database.many("DELETE FROM shards WHERE number = ?", [(shard.number,) for shard in old])
    database.many("INSERT INTO shards VALUES(?, ?, ?, ?)", [(s.number, s.first, s.rows, s.sha256) for s in new])
