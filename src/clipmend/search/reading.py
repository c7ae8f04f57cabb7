"""What an opened image index answers: vectors by position, and everything that a gallery does."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clipmend.data.images import display_path
from clipmend.search import migrate, store
from clipmend.search.arrays import file_within, known_path
from clipmend.search.connections import Connections
from clipmend.search.database import raw, where_sql
from clipmend.search.exact import CHUNK, Layout, top_k
from clipmend.search.gallery import Condition, FieldType, Gallery, Item, Nearest, int64_ids
from clipmend.search.nearest import Graph
from clipmend.search.snapshot import Entries, Snapshot
from clipmend.search.store import ImageIndexError

__all__ = ["IndexReader"]

FEW = 20_000
"""So few images that fulfil the conditions are compared one by one; the graph would have to look far for them."""
_DEEPEST = 4096
_BASE_COLUMNS = ("id", "path", "folder", "name", "date", "size", "width", "height")


class IndexReader(Gallery):
    """The reading half of :class:`clipmend.search.index.ImageIndex`, which see."""

    error = ImageIndexError

    def __init__(self, directory: Path, *, verify: bool = False) -> None:
        self.directory = directory
        self.name = f"the index {display_path(directory)}"
        self.images: Path | None = None
        self._manifest = migrate.current(directory)
        self._connections = Connections(directory)
        self._lock = threading.RLock()
        self._loaded: Snapshot | None = None
        try:
            self._load(verify)
        except BaseException:
            self._connections.close()
            raise

    def _load(self, verify: bool = False) -> Snapshot:
        with self._lock:
            self._marks = {name: _mark(self.directory / name) for name in (store.MANIFEST, store.NEAREST)}
            self._loaded = Snapshot(self.directory, self._manifest, self._connections, verify=verify)
            return self._loaded

    @property
    def _snapshot(self) -> Snapshot:
        loaded = self._loaded
        return loaded if loaded is not None else self._load()

    def __len__(self) -> int:
        return len(self._snapshot.ids)

    @property
    def edition(self) -> str:
        """The index, and after a point the generation of its last change."""
        return f"{self._manifest.id[:12]}.{self._snapshot.changed}"

    def changed(self) -> bool:
        """Whether images, fields, folders or graph are others than were opened; what this very handle added is no change."""
        loaded = self._loaded
        if loaded is None:
            return False
        try:
            mark = _mark(self.directory / store.MANIFEST)
            if mark != self._marks[store.MANIFEST]:
                if store.read_manifest(self.directory).id != self._manifest.id:
                    return True
                self._marks[store.MANIFEST] = mark  # written at the end of an update, with the database's digest
            if _mark(self.directory / store.NEAREST) != self._marks[store.NEAREST] or self._connections.replaced():
                return True
            meta = dict(self._connections.rows("SELECT key, value FROM meta WHERE key IN ('id', 'generation', 'changed')"))
        except (ImageIndexError, OSError):  # opening it says what is wrong
            return True
        return (meta.get("id"), meta.get("changed", meta.get("generation"))) != (self._manifest.id, loaded.changed)

    def reopened(self) -> IndexReader:
        opened = type(self)(self.directory)
        opened.images = self.images
        return opened

    @property
    def backbone(self) -> str:  # type: ignore[override]
        """Name of the encoder that made the index, fit for :func:`clipmend.load`."""
        return self._manifest.backbone["name"]

    @property
    def image_digest(self) -> str:  # type: ignore[override]
        """Digest of the encoder's image side."""
        return self._manifest.backbone["image"]

    @property
    def embed_dim(self) -> int:  # type: ignore[override]
        return self._manifest.embed_dim

    @property
    def dtype(self) -> str:
        return self._manifest.dtype

    @property
    def fields(self) -> Mapping[str, FieldType]:  # type: ignore[override]
        """The fields that conditions may name: those of every file, and the imported ones."""
        return self._snapshot.types

    @property
    def roots(self) -> dict[str, Path]:
        return {root.name: root.path for root in self._snapshot.roots}

    @property
    def root(self) -> Path:
        roots = [root.path for root in self._snapshot.roots]
        if not roots:
            return self.directory
        return roots[0] if len(roots) == 1 else Path(os.path.commonpath(roots))

    @property
    def entries(self) -> Entries:
        return Entries(self._snapshot, self._connections)

    @property
    def paths(self) -> list[Path]:
        """Paths of all images, by position."""
        return [self._path(entry.path) for entry in self.entries]

    def path(self, position: int) -> Path:
        """Path of the image at ``position``."""
        return self._path(self.entries[int(position)].path)

    def _path(self, spelled: str) -> Path:
        if self.images is not None:
            return self.images / spelled
        for root in self._snapshot.roots:
            if spelled.startswith(root.prefix):
                return root.path / spelled[len(root.prefix) :]
        return self.root / spelled

    @property
    def skipped(self) -> dict[str, str]:
        """Path and reason of every file that could not be indexed."""
        return store.read_skipped(self.directory)

    # ---- vectors by position ------------------------------------------------------------------------------------------------

    def embeddings(self, positions: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """float32 ``[n, D]``: the L2-normalised vectors of the images at ``positions`` (default: all)."""
        snapshot = self._snapshot
        rows = snapshot.rows if positions is None else snapshot.rows[np.asarray(positions, np.int64)]
        return snapshot.shards.gather(rows)

    def mean_embedding(self) -> np.ndarray:
        """float32 ``[D]``: the mean vector of the images (not normalised), where the image side of the space has its centre."""
        snapshot = self._snapshot
        if not len(self):
            raise ImageIndexError(f"{self.name} is empty")
        total = np.zeros(self.embed_dim, np.float64)
        for _, which, vectors in snapshot.shards.chunks(snapshot.layout):
            weights = np.ones(len(vectors)) if which is None else np.bincount(which, minlength=len(vectors)).astype(np.float64)
            total += weights @ vectors.astype(np.float64)
        return (total / len(self)).astype(np.float32)

    def scores(self, query: Any, *, chunk: int = CHUNK) -> np.ndarray:
        """Cosine of a query with every image.

        Args:
            query: ``[D]`` or ``[Q, D]`` array or CPU tensor; normalised here.
            chunk: rows of the index at a time.

        Returns:
            float32 ``[N]`` or ``[Q, N]``, by position.

        Raises:
            ValueError: another width than the index's, a NaN or infinity, or a zero vector.
        """
        snapshot = self._snapshot
        queries = self._queries(query)
        found = np.empty((len(queries), len(self)), np.float32)
        for positions, which, vectors in snapshot.shards.chunks(snapshot.layout, chunk):
            found[:, positions] = snapshot.shards.cosines(queries, vectors, which)
        return found[0] if np.ndim(query) == 1 else found

    def search(self, query: Any, k: int, *, chunk: int = CHUNK) -> tuple[np.ndarray, np.ndarray]:
        """The ``k`` images nearest to a query by cosine, best first; always exact.

        Args:
            query: ``[D]`` or ``[Q, D]`` array or CPU tensor; normalised here.
            k: how many; more than the index holds gives all of it.
            chunk: rows of the index at a time; memory is about ``chunk * (D + Q) * 4`` bytes.

        Returns:
            float32 scores and int64 positions, each ``[min(k, N)]`` or ``[Q, min(k, N)]``. Equal scores go by path.

        Raises:
            ValueError: as :meth:`scores`, or ``k`` below 1.
        """
        queries = self._queries(query, k)
        snapshot = self._snapshot
        best, where = snapshot.shards.search(queries, snapshot.layout, k, chunk)
        return (best[0], where[0]) if np.ndim(query) == 1 else (best, where)

    def _queries(self, query: Any, k: int = 1) -> np.ndarray:
        if k < 1:
            raise ValueError(f"k must be at least 1 (got {k})")
        queries = np.atleast_2d(np.asarray(query, np.float32))
        if queries.ndim != 2 or queries.shape[1] != self.embed_dim:
            raise ValueError(f"a query must have {self.embed_dim} dimensions like the index (got shape {np.shape(query)})")
        if not np.isfinite(queries).all():
            raise ValueError("a query embedding holds NaN or infinity")
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        if not norms.all():
            raise ValueError("a query embedding is zero: it has no direction to search in")
        return queries / norms

    # ---- the gallery --------------------------------------------------------------------------------------------------------

    def count(self, where: Sequence[Condition] = ()) -> int:
        return len(self._layout(self._snapshot, where).order)

    def ids(self, where: Sequence[Condition] = (), *, block: int = 4096) -> Iterator[np.ndarray]:
        snapshot = self._snapshot
        chosen = np.sort(snapshot.ids[self._layout(snapshot, where).order])
        for low in range(0, len(chosen), block):
            yield chosen[low : low + block]

    def _layout(self, snapshot: Snapshot, where: Sequence[Condition]) -> Layout:
        """The images that fulfil all conditions; those of the last few questions are remembered."""
        key = tuple(where)
        if not key:
            return snapshot.layout
        with self._lock:
            if key in snapshot.matching:
                snapshot.matching.move_to_end(key)
                return snapshot.matching[key]
        join, expression, values = where_sql(key, snapshot.fields, self.name)
        ids = self._connections.integers(f"SELECT images.id FROM images{join} WHERE images.gone = 0 AND {expression}", values)
        positions = np.sort(snapshot.positions(ids, missing=True))
        layout = Layout(snapshot.rows[positions], positions)
        with self._lock:
            snapshot.matching[key] = layout
            if len(snapshot.matching) > 8:
                snapshot.matching.popitem(last=False)
        return layout

    def nearest(self, queries: Any, k: int, *, where: Sequence[Condition] = (), exact: bool | None = None) -> Nearest:
        """See :meth:`Gallery.nearest`; approximate where there is a graph, and few conditions or wide ones."""
        unit = self._queries(queries, k)
        snapshot = self._snapshot
        layout = self._layout(snapshot, where)
        matching = len(layout.order)
        graph = None if exact or matching <= FEW // 10 or (where and matching <= FEW) else self._open_graph(snapshot)
        if graph is not None:
            found = self._by_graph(graph, snapshot, layout, unit, min(k, matching))
            if found is not None:
                return Nearest(found[0], snapshot.ids[found[1]], False)
        scores, positions = snapshot.shards.search(unit, layout, k)
        return Nearest(scores, snapshot.ids[positions], True)

    def _open_graph(self, snapshot: Snapshot) -> Graph | None:
        with self._lock:
            if not snapshot.graph_tried:
                snapshot.graph_tried = True
                snapshot.graph, problem = Graph.open(self.directory, self._manifest, snapshot.epoch)
                if problem:
                    warnings.warn(
                        f"{self.name}: the graph for approximate search is not used ({problem}), so search is exact and slower; "
                        "the next 'clipmend index' makes it again",
                        stacklevel=4,
                    )
            return snapshot.graph

    @staticmethod
    def _by_graph(
        graph: Graph, snapshot: Snapshot, layout: Layout, unit: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Scores and positions by the graph, ``None`` where it would have to find too many."""
        covered = int(np.searchsorted(layout.rows, graph.about.rows))
        newer = layout.rows[covered:]
        if len(newer) > max(CHUNK, graph.about.rows // 10):  # many were added since: an exact search takes them in pieces
            return None
        wanted = k if covered == graph.about.rows else 16 + 3 * k * graph.about.rows // (2 * max(1, covered))
        scores, where = [], []
        for query in unit:
            deep = wanted  # of what it finds, a part fulfils the conditions
            while True:
                if deep > _DEEPEST or 4 * deep > graph.about.rows:
                    return None
                positions = layout.positions(np.concatenate([graph.search(query, deep), newer]))
                if len(positions) >= k:
                    break
                deep *= 4
            cosines = snapshot.shards.cosines(query[None], snapshot.shards.gather(snapshot.rows[positions]))[0]
            keep = top_k(cosines, positions, k)
            scores.append(cosines[keep])
            where.append(positions[keep])
        return np.stack(scores), np.stack(where)

    def vectors(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        return self.embeddings(self._snapshot.positions(int64_ids(ids, self.name)))

    def items(self, ids: Sequence[int] | np.ndarray) -> list[Item]:
        snapshot = self._snapshot
        wanted = int64_ids(ids, self.name).tolist()
        snapshot.positions(np.asarray(wanted, np.int64))  # an image that was removed has its row in the database still
        extra = [name for name, (_, place) in snapshot.fields.items() if place.startswith("extra.")]
        columns = [f"images.{name}" for name in _BASE_COLUMNS] + [snapshot.fields[name][1] for name in extra]
        join = " LEFT JOIN extra ON extra.id = images.id" if extra else ""
        sql = (
            f"SELECT contents.sha256, {', '.join(columns)} FROM images LEFT JOIN contents ON contents.row = images.row{join}"
            " WHERE images.id IN ({})"
        )
        names = (*_BASE_COLUMNS[2:], *extra)
        found: dict[int, Item] = {}
        for low in range(0, len(wanted), 500):
            part = wanted[low : low + 500]
            for sha256, id_, path, *values in self._connections.rows(sql.format(", ".join("?" for _ in part)), part):
                fields = {
                    name: value if isinstance(value, str) else float(value)
                    for name, value in zip(names, values, strict=True)
                    if value is not None
                }
                found[id_] = Item(id_, path, fields, "" if sha256 is None else bytes(sha256).hex())
        lacking = next((id_ for id_ in wanted if id_ not in found), None)
        if lacking is not None:
            raise ImageIndexError(f"no image {lacking} in {self.name}")
        return [found[id_] for id_ in wanted]

    def file(self, item: Item) -> Path | None:
        if self.images is not None:
            return file_within(self.images, item.path)
        rows = self._connections.rows("SELECT root, path FROM images WHERE id = ?", (item.id,))
        root = next((root for root in self._snapshot.roots if rows and root.id == rows[0][0]), None)
        if root is None or not rows[0][1].startswith(root.prefix):
            return None
        relative = Path(rows[0][1][len(root.prefix) :])
        if relative.is_absolute() or ".." in relative.parts:  # never written by an update
            return None
        return root.path / relative

    def find(self, path: str) -> int | None:
        return self.find_by(path, self._connections.rows)

    def find_by(self, path: str, rows: Callable[[str, tuple[bytes]], Sequence[tuple[Any, ...]]]) -> int | None:
        """As :meth:`find`; ``rows`` asks the database, over a connection that writes to it, for one."""
        try:
            raw(path)
        except UnicodeEncodeError:  # no path that could be stored
            return None
        for spelled in self._spellings(path):
            found = rows("SELECT id FROM images WHERE gone = 0 AND path = CAST(? AS TEXT) ORDER BY id LIMIT 1", (raw(spelled),))
            if found:
                return int(found[0][0])
        return None

    def _spellings(self, path: str) -> Iterator[str]:
        """The path as it is, and as that of a file under one of the folders."""
        yield path
        if "\0" in path:
            return
        if self.images is not None:
            yield from known_path(self.images, path)[1:]
            return
        place = os.path.abspath(path)
        for candidate in dict.fromkeys((Path(place), Path(os.path.realpath(place)))):
            for root in self._snapshot.roots:
                if candidate.is_relative_to(root.path):
                    yield root.prefix + candidate.relative_to(root.path).as_posix()

    def values(self, name: str, limit: int = 100) -> list[tuple[str, int]]:
        type_, place = self._snapshot.fields.get(name, (None, ""))
        if type_ not in ("text", "folder"):
            known = ", ".join(field for field, kind in self.fields.items() if kind in ("text", "folder"))
            raise ImageIndexError(f"{self.name} has no field {name!r} of texts; such fields: {known}")
        join = " LEFT JOIN extra ON extra.id = images.id" if place.startswith("extra.") else ""
        sql = (
            f"SELECT {place} AS value, count(*) AS number FROM images{join} WHERE images.gone = 0 AND value IS NOT NULL"
            " GROUP BY value ORDER BY number DESC, value LIMIT ?"
        )
        return [(str(value), int(number)) for value, number in self._connections.rows(sql, (limit,))]


def _mark(path: Path) -> tuple[int, ...] | None:
    """A file as it is: one that is written again or replaced has another."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
