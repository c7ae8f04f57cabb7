"""``ImageIndex``: the images of some folders, or any image vectors, in one folder on disk, searched exactly or by a graph."""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmend.data.images import display_path
from clipmend.search import build, migrate, store
from clipmend.search.build import Folders, UpdateReport, build_index
from clipmend.search.columns import ImportReport, import_columns
from clipmend.search.database import Connections, Database, raw, where_sql
from clipmend.search.editing import add_items, declare, remove_items
from clipmend.search.exact import CHUNK, Layout, top_k
from clipmend.search.gallery import Condition, FieldType, Item, Nearest, WritableGallery
from clipmend.search.maintain import maintain, seal
from clipmend.search.nearest import Graph
from clipmend.search.snapshot import Entries, Snapshot
from clipmend.search.store import ImageIndexError

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["ImageIndex", "top_k"]

FEW = 20_000
"""So few images that fulfil the conditions are compared one by one; the graph would have to look far for them."""
_DEEPEST = 4096
_BASE_COLUMNS = ("id", "path", "folder", "name", "date", "size", "width", "height")


class ImageIndex(WritableGallery):
    """An index opened for searching; see :mod:`clipmend.search.store` for its files.

    Search compares the query with every vector, in chunks over memory-mapped files, so that an index larger than memory works; or,
    from 50,000 images on and unless told otherwise, with those that a graph leads to (:mod:`clipmend.search.nearest`). Equal scores
    are ordered by path. An opened index is a snapshot: an update by someone else is seen by opening it again.

    Attributes:
        directory: where it is.
        entries: the images, sorted by path; a *position* is an index into this. Read from the disk as they are asked for.
        root: the folder the paths are relative to; of several folders, the one that holds them all.
        roots: the folders, by name.

    Example::

        index = ImageIndex.build(encoder, "photos/", "photos.index", progress=True)
        scores, positions = index.search(encoder.encode_texts(["a red bus"])[0], k=5)
        [index.path(i) for i in positions]
    """

    def __init__(self, directory: Path, *, verify: bool = False) -> None:
        self.directory = directory
        self.name = f"the index {display_path(directory)}"
        self._manifest = migrate.current(directory)
        self._connections = Connections(directory)
        self._lock = threading.RLock()
        self._loaded: Snapshot | None = None
        self._edited = False
        try:
            self._load(verify)
        except BaseException:
            self._connections.close()
            raise

    def _load(self, verify: bool = False) -> Snapshot:
        with self._lock:
            self._loaded = Snapshot(self.directory, self._manifest, self._connections, verify=verify)
            self._graph: Graph | None = None
            self._graph_tried = False
            self._matching: OrderedDict[tuple[Condition, ...], Layout] = OrderedDict()
            return self._loaded

    @property
    def _snapshot(self) -> Snapshot:
        loaded = self._loaded
        return loaded if loaded is not None else self._load()

    @classmethod
    def build(
        cls,
        encoder: DualEncoder,
        folder: Folders,
        directory: str | os.PathLike[str],
        **options: Any,
    ) -> ImageIndex:
        """Make the index, or update it if it exists, and open it; arguments of :func:`clipmend.search.build_index`."""
        build_index(encoder, folder, directory, **options)
        return cls.open(directory)

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        *,
        backbone: str,
        image_digest: str,
        embed_dim: int,
        dtype: str = "float32",
        fields: Mapping[str, FieldType] | None = None,
    ) -> ImageIndex:
        """An empty index for vectors from elsewhere (:meth:`add`); one that is there is opened if it is of the same encoder.

        Args:
            directory: a new folder, or such an index.
            backbone: name of the encoder that made the vectors; empty if unknown.
            image_digest: the digest of its image side; empty if unknown.
            embed_dim: width of the vectors.
            dtype: how they are stored, ``"float32"`` or ``"float16"``.
            fields: types of fields beyond the usual ones; fields that items bring without are ``text`` or ``number``.

        Raises:
            ImageIndexError: the folder holds something else, or an index of another encoder or width.
        """
        directory = Path(directory)
        if store.exists(directory):
            manifest = migrate.current(directory)
            if (manifest.backbone["image"], manifest.embed_dim) != (image_digest, embed_dim):
                raise ImageIndexError(
                    f"the index {display_path(directory)} is of {manifest.backbone['name']!r} ({manifest.embed_dim} dimensions, "
                    f"image side {manifest.backbone['image'][:12] or 'unknown'}), not of {backbone!r} ({embed_dim}, "
                    f"{image_digest[:12] or 'unknown'}); choose another folder"
                )
        else:
            build.create(directory, backbone, image_digest, embed_dim, dtype)
        with store.locked(directory):
            database = Database(directory, store.read_manifest(directory))
            try:
                if not database.meta("complete") or fields:
                    with database.transaction():
                        database.set_meta(complete=1)
                        for name, type_ in (fields or {}).items():
                            declare(database, name, type_)
                    seal(directory, store.read_manifest(directory), database)
            finally:
                database.close()
        return cls.open(directory)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, verify: bool = False) -> ImageIndex:
        """Open an index and check it: manifest, database (a small one by digest), and shape and type of every shard.

        Args:
            directory: the index. One of an older format is brought to the present one, in place.
            verify: also read the whole database and every shard, and compare their digests.

        Raises:
            ImageIndexError: no index, one never finished, or one that is damaged.
        """
        index = cls(Path(directory), verify=verify)
        if verify:
            try:
                index.verify()
            except ImageIndexError:
                index.close()
                raise
        return index

    def update(self, encoder: DualEncoder, folder: Folders | None = None, **options: Any) -> UpdateReport:
        """Bring the index up to date with its folders (or others) and read it again in place.

        Args:
            encoder: the encoder that made it, or a mended one over the same backbone.
            folder: the images; default the folders it was made of.
            options: further arguments of :func:`clipmend.search.build_index`.
        """
        if folder is None and not self._snapshot.roots:
            raise ImageIndexError(f"{self.name} was not made of a folder; name one")
        report = build_index(encoder, folder if folder is not None else list(self.roots.values()), self.directory, **options)
        self._manifest = store.read_manifest(self.directory)
        self._load()
        return report

    def verify(self) -> None:
        """Read database and shards and compare their digests.

        Raises:
            ImageIndexError: a file is not what was written.
        """
        snapshot = self._snapshot
        for shard in snapshot.shards.shards:
            try:
                found = store.file_digest(self.directory / shard.file)
            except OSError as error:
                raise store.damaged(self.directory, f"{shard.file} cannot be read ({error.strerror})") from None
            if found != shard.sha256:
                raise store.damaged(self.directory, f"{shard.file} is not what was written (its digest differs)")
        Snapshot(self.directory, self._manifest, self._connections, verify=True)

    def check(self, encoder: DualEncoder) -> None:
        """Refuse an encoder whose image side did not make this index; a patch over the same backbone is welcome.

        Raises:
            ImageIndexError: the digests of the image sides differ.
        """
        if self.image_digest:
            build.check_same_encoder(self.directory, self._manifest, encoder)
        if encoder.embed_dim != self.embed_dim:
            raise ImageIndexError(
                f"{self.name} holds vectors of {self.embed_dim} dimensions, {encoder.name!r} makes {encoder.embed_dim}: they "
                "cannot be compared. Use the encoder that made it"
            )

    def close(self) -> None:
        """Let go of the database; after edits, say in the manifest what it holds now."""
        if self._edited:
            self._edit(lambda database: seal(self.directory, self._manifest, database))
            self._edited = False
        self._connections.close()

    def __enter__(self) -> ImageIndex:
        return self

    def __len__(self) -> int:
        return len(self._snapshot.ids)

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
        return len(self._layout(where).order) if where else len(self)

    def ids(self, where: Sequence[Condition] = (), *, block: int = 4096) -> Iterator[np.ndarray]:
        snapshot = self._snapshot
        chosen = np.sort(snapshot.ids[self._layout(where).order] if where else snapshot.ids)
        for low in range(0, len(chosen), block):
            yield chosen[low : low + block]

    def _layout(self, where: Sequence[Condition]) -> Layout:
        """The images that fulfil all conditions; those of the last few questions are remembered."""
        snapshot, key = self._snapshot, tuple(where)
        if not key:
            return snapshot.layout
        with self._lock:
            if key in self._matching:
                self._matching.move_to_end(key)
                return self._matching[key]
        join, expression, values = where_sql(key, snapshot.fields, self.name)
        ids = self._connections.integers(f"SELECT images.id FROM images{join} WHERE images.gone = 0 AND {expression}", values)
        positions = np.sort(snapshot.positions(ids, missing=True))
        layout = Layout(snapshot.rows[positions], positions)
        with self._lock:
            self._matching[key] = layout
            if len(self._matching) > 8:
                self._matching.popitem(last=False)
        return layout

    def nearest(self, queries: Any, k: int, *, where: Sequence[Condition] = (), exact: bool | None = None) -> Nearest:
        """See :meth:`Gallery.nearest`; approximate where there is a graph, and few conditions or wide ones."""
        unit = self._queries(queries, k)
        snapshot, layout = self._snapshot, self._layout(where)
        matching = len(layout.order)
        graph = None if exact or matching <= FEW // 10 or (where and matching <= FEW) else self._open_graph()
        if graph is not None:
            found = self._by_graph(graph, snapshot, layout, unit, min(k, matching))
            if found is not None:
                return Nearest(found[0], snapshot.ids[found[1]], False)
        scores, positions = snapshot.shards.search(unit, layout, k)
        return Nearest(scores, snapshot.ids[positions], True)

    def _open_graph(self) -> Graph | None:
        with self._lock:
            if not self._graph_tried:
                self._graph_tried = True
                self._graph, problem = Graph.open(self.directory, self._manifest, self._snapshot.epoch)
                if problem:
                    warnings.warn(
                        f"{self.name}: the graph for approximate search is not used ({problem}), so search is exact and slower; "
                        "the next 'clipmend index' makes it again",
                        stacklevel=4,
                    )
            return self._graph

    @staticmethod
    def _by_graph(
        graph: Graph, snapshot: Snapshot, layout: Layout, unit: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Scores and positions by the graph, ``None`` where it would have to find too many."""
        covered = int(np.searchsorted(layout.rows, graph.about.rows))
        newer = layout.rows[covered:]
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
        return self.embeddings(self._snapshot.positions(np.asarray(ids, np.int64).reshape(-1)))

    def items(self, ids: Sequence[int] | np.ndarray) -> list[Item]:
        snapshot = self._snapshot
        wanted = [int(i) for i in ids]
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
        rows = self._connections.rows("SELECT root, path FROM images WHERE id = ?", (item.id,))
        root = next((root for root in self._snapshot.roots if rows and root.id == rows[0][0]), None)
        if root is None or not rows[0][1].startswith(root.prefix):
            return None
        relative = Path(rows[0][1][len(root.prefix) :])
        if relative.is_absolute() or ".." in relative.parts:  # never written by an update
            return None
        return root.path / relative

    def find(self, path: str) -> int | None:
        try:
            raw(path)
        except UnicodeEncodeError:  # no path that could be stored
            return None
        for spelled in self._spellings(path):
            sql = "SELECT id FROM images WHERE gone = 0 AND path = CAST(? AS TEXT) ORDER BY id LIMIT 1"
            rows = self._connections.rows(sql, (raw(spelled),))
            if rows:
                return int(rows[0][0])
        return None

    def _spellings(self, path: str) -> Iterator[str]:
        """The path as it is, and as that of a file under one of the folders."""
        yield path
        if "\0" in path:
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

    # ---- editing ------------------------------------------------------------------------------------------------------------

    def _edit(self, change: Callable[[Database], Any]) -> Any:
        with self._lock, store.locked(self.directory):
            database = Database(self.directory, store.read_manifest(self.directory))
            try:
                return change(database)
            finally:
                database.close()
                self._edited = True
                self._loaded = None  # read again when it is asked for

    def add(self, items: Sequence[Item], vectors: np.ndarray) -> None:
        """See :meth:`WritableGallery.add`. No graph is made or renewed by it; :meth:`optimise` does that, and close what was added.

        Raises:
            ImageIndexError: the index is being written by another process.
            ValueError: as said there, or a path or field value that cannot be stored; nothing is added then.
        """
        if len(items):
            self._edit(lambda database: add_items(database, self._manifest, items, vectors))

    def remove(self, ids: Sequence[int] | np.ndarray) -> int:
        removed = int(self._edit(lambda database: remove_items(database, [int(i) for i in ids])))
        return removed

    def optimise(self, *, approximate: bool | None = None, progress: bool = False, workers: int | None = None) -> None:
        """After additions and removals: join small shards, drop dead rows, make or renew the graph for approximate search.

        Args:
            approximate: True: have a graph; False: have none; ``None``: have one from 50,000 images on.
            progress: show a bar on a terminal.
            workers: threads that make the graph (default: one a core, at most 8).
        """

        def change(database: Database) -> None:
            maintain(self.directory, self._manifest, database, approximate=approximate, progress=progress, workers=workers)

        self._edit(change)
        self._edited = False
        self._manifest = store.read_manifest(self.directory)

    def import_columns(self, table: str | os.PathLike[str], key: str = "path") -> ImportReport:
        """Add fields from a table; see :func:`clipmend.search.columns.import_columns`."""
        _ = self._snapshot  # read before the edit, which looks up images in it
        report: ImportReport = self._edit(lambda database: import_columns(database, self, table, key))
        return report
