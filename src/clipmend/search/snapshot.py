"""What one opened index knows: a view of the database at one moment, and the vectors that belong to it."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from clipmend.data.images import display_path
from clipmend.search import store
from clipmend.search.connections import Connections
from clipmend.search.database import check_bytes, check_identity, guard, integers, read_fields, read_shards, translated
from clipmend.search.exact import Layout, Shards
from clipmend.search.gallery import Condition, FieldType, GalleryError
from clipmend.search.nearest import Graph
from clipmend.search.roots import Root, read_roots
from clipmend.search.store import Entry, ImageIndexError, Manifest

__all__ = ["Entries", "Snapshot"]


class Snapshot:
    """Ids and rows by position (the order of paths), the folders, fields and shards, all of one generation.

    Raises:
        ImageIndexError: a database that is not the manifest's, damaged, or of an index never finished.
    """

    def __init__(self, directory: Path, manifest: Manifest, connections: Connections, *, verify: bool = False) -> None:
        self.directory, self.manifest = directory, manifest
        with guard.alone(), translated(directory), connections.using() as connection:
            connection.execute("BEGIN")  # one moment: nobody writes while we read
            try:
                self._read(connection, verify)
            except (TypeError, ValueError, OverflowError) as error:
                if isinstance(error, GalleryError):
                    raise
                raise store.damaged(directory, f"{store.DATABASE} holds what it cannot ({error})") from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        self.layout = Layout(self.rows)
        self.matching: OrderedDict[tuple[Condition, ...], Layout] = OrderedDict()  # what the last questions' conditions left
        self.graph: Graph | None = None
        self.graph_tried = False
        by_id = np.argsort(self.ids, kind="stable")
        self._sorted_ids, self._position = self.ids[by_id], by_id

    def _read(self, connection: sqlite3.Connection, verify: bool) -> None:
        manifest = self.manifest
        meta = check_identity(connection, self.directory, manifest)
        self.generation, self.changed, self.epoch = int(meta["generation"]), int(meta["changed"]), int(meta["epoch"])
        if not meta["complete"]:
            raise ImageIndexError(
                f"the index {display_path(self.directory)} was never finished; run the same 'clipmend index' again, it resumes"
            )
        self.shards = Shards(self.directory, read_shards(connection), manifest.embed_dim, manifest.dtype)
        self.fields = read_fields(connection)
        self.roots: list[Root] = read_roots(connection, self.directory)
        pairs = integers(connection.execute("SELECT id, row FROM images WHERE gone = 0 ORDER BY path, id"), 2)
        self.ids, self.rows = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
        if len(self.rows) and not 0 <= self.rows.min() <= self.rows.max() < len(self.shards):
            raise store.damaged(self.directory, f"{store.DATABASE} names rows that are not there")
        check_bytes(connection, self.directory, manifest, verify=verify)

    @property
    def types(self) -> dict[str, FieldType]:
        return {name: type_ for name, (type_, _) in self.fields.items()}

    def positions(self, ids: np.ndarray, *, missing: bool = False) -> np.ndarray:
        """Positions of images by id; ``missing``: leave out those that are not there in place of refusing them."""
        at = np.searchsorted(self._sorted_ids, ids)
        there = at < len(self._sorted_ids)
        there[there] = self._sorted_ids[at[there]] == np.asarray(ids)[there]
        if not missing and not there.all():
            raise ImageIndexError(f"no image {int(np.asarray(ids)[~there][0])} in the index {display_path(self.directory)}")
        return self._position[at[there]]


class Entries(Sequence[Entry]):
    """The images sorted by path, read from the database as they are asked for."""

    _SQL = (
        "SELECT images.path, images.size, images.mtime_ns, contents.sha256, images.width, images.height, images.id FROM images"
        " LEFT JOIN contents ON contents.row = images.row WHERE images.id IN ({})"
    )

    def __init__(self, snapshot: Snapshot, connections: Connections) -> None:
        self._snapshot, self._connections = snapshot, connections

    def __len__(self) -> int:
        return len(self._snapshot.ids)

    @overload
    def __getitem__(self, position: int) -> Entry: ...
    @overload
    def __getitem__(self, position: slice) -> list[Entry]: ...
    def __getitem__(self, position: int | slice) -> Entry | list[Entry]:
        chosen: Any = np.arange(len(self))[position]  # knows slices, negative positions and those beyond the end
        read = self._read(np.atleast_1d(chosen))
        return read if isinstance(position, slice) else read[0]

    def __iter__(self) -> Iterator[Entry]:
        for low in range(0, len(self), 4096):
            yield from self._read(np.arange(low, min(low + 4096, len(self))))

    def _read(self, positions: np.ndarray) -> list[Entry]:
        ids = self._snapshot.ids[positions]
        found: dict[int, tuple[Any, ...]] = {}
        for low in range(0, len(ids), 500):
            part = [int(i) for i in ids[low : low + 500]]
            for *known, id_ in self._connections.rows(self._SQL.format(", ".join("?" for _ in part)), part):
                found[id_] = tuple(known)
        entries = []
        for position, id_ in zip(positions, ids, strict=True):
            if int(id_) not in found:
                raise ImageIndexError(
                    f"the index {display_path(self._snapshot.directory)} was written anew since it was opened, and an image went; "
                    "open it again"
                )
            path, size, mtime_ns, sha256, width, height = found[int(id_)]
            row = int(self._snapshot.rows[position])
            digest = "" if sha256 is None else bytes(sha256).hex()
            entries.append(Entry(path, size or 0, mtime_ns or 0, digest, width or 0, height or 0, row, int(id_)))
        return entries
