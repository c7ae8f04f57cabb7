"""Append vectors to an index, shard by shard, and name them in the database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clipmend.search import store
from clipmend.search.database import Database, raw
from clipmend.search.exact import Shards
from clipmend.search.roots import Root
from clipmend.search.store import Manifest

__all__ = ["SHARD_ROWS", "SHARD_SECONDS", "Content", "Writer"]

SHARD_ROWS = 16_384
SHARD_SECONDS = 30.0
"""A shard is written after this many rows or seconds, whichever comes first: what a kill can cost."""


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
        self.rows = self.first = len(Shards(database.directory, database.shards(), manifest.embed_dim, manifest.dtype))
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
        with self.database.transaction():
            self.insert(vectors, contents)

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
