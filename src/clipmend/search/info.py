"""What an image index holds, without a model and without reading its vectors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from clipmend.search import store
from clipmend.search.gallery import BASE_FIELDS, FieldType
from clipmend.search.index import ImageIndex
from clipmend.search.nearest import crc32, read_about
from clipmend.search.spelling import plain

__all__ = ["Column", "Folder", "GraphInfo", "IndexInfo", "index_info"]


@dataclass(frozen=True)
class Folder:
    """A folder that an index is of.

    Attributes:
        name: its own; several folders have different ones.
        path: where it is.
        there: whether it can be found on this machine.
        images: how many of the index lie in it.
    """

    name: str
    path: Path
    there: bool
    images: int


@dataclass(frozen=True)
class Column:
    """An imported column, which conditions may name.

    Attributes:
        name: of it.
        type: what its values are.
        images: how many have a value.
    """

    name: str
    type: FieldType
    images: int


@dataclass(frozen=True)
class GraphInfo:
    """The graph for approximate search.

    Attributes:
        state: ``"none"``; ``"current"``: it holds every row; ``"behind"``: rows were added since, which are searched one by one;
            ``"unusable"``: it is passed over, and search is exact.
        rows: how many it holds.
        missing: how many it lacks.
        recall: of the true first ten neighbours, on a sample, when it was made; 0 where there is none.
        problem: what is wrong with one that cannot be used; else empty.
    """

    state: Literal["none", "current", "behind", "unusable"]
    rows: int = 0
    missing: int = 0
    recall: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds, all of one state of it.

    Attributes:
        directory: where it is.
        version: of the format.
        edition: names the index and its last change; see :attr:`clipmend.search.gallery.Gallery.edition`.
        written: when it was last written; local time with its zone.
        written_by: the release of clipmend that did so last; empty where it does not say.
        backbone: name of the encoder that made the vectors.
        image_digest: digest of its image side.
        embed_dim: width of the vectors.
        dtype: how they are stored, ``"float32"`` or ``"float16"``.
        images: that can be searched.
        contents: different ones among them; copies of one content share a vector.
        roots: the folders that it is of.
        elsewhere: images that lie in none of them: of an index that was copied or added to.
        folders: folder of an image to how many lie right in it, most first; ``""`` is the top.
        columns: imported ones, in the order in which they came.
        skipped: path and reason of every file that could not be read.
        shards: files of vectors.
        rows: vectors in them.
        dead: of these, vectors that no image uses (any more); an update drops them once they are many.
        resumable: of these, vectors that a run left which did not get to its end; the next one uses them.
        graph: for approximate search.
        bytes: on the disk: ``vectors``, ``database``, ``graph``, ``other`` and ``total``.
        verified: whether everything was read and compared with its digests.
    """

    directory: Path
    version: int
    edition: str
    written: datetime
    written_by: str
    backbone: str
    image_digest: str
    embed_dim: int
    dtype: str
    images: int
    contents: int
    roots: list[Folder]
    elsewhere: int
    folders: dict[str, int]
    columns: list[Column]
    skipped: dict[str, str]
    shards: int
    rows: int
    dead: int
    resumable: int
    graph: GraphInfo
    bytes: dict[str, int]
    verified: bool

    def as_json(self) -> dict[str, Any]:
        r"""Everything, fit for JSON: paths as texts, bytes that are not UTF-8 as ``\xff``, times as ISO 8601 writes them."""
        told = asdict(self)
        told["directory"] = plain(str(self.directory))
        for name in ("written_by", "backbone", "image_digest"):
            told[name] = plain(told[name])
        told["written"] = self.written.isoformat(timespec="seconds")
        told["roots"] = [{**asdict(root), "name": plain(root.name), "path": plain(str(root.path))} for root in self.roots]
        told["folders"] = {plain(name): count for name, count in self.folders.items()}
        told["columns"] = [{**asdict(column), "name": plain(column.name)} for column in self.columns]
        told["skipped"] = [{"path": plain(path), "reason": plain(reason)} for path, reason in self.skipped.items()]
        return told


def index_info(directory: str | os.PathLike[str], *, verify: bool = False) -> IndexInfo:
    """Look at an index; neither a model is loaded nor, unless asked, a vector read.

    Args:
        directory: the index.
        verify: also read database, vectors and graph, and compare them with their digests.

    Raises:
        ImageIndexError: no index, one never finished, or one that is damaged.
        OSError: a file that cannot be read.
    """
    place = Path(directory)
    for last in (False, False, True):
        with ImageIndex.open(place, verify=verify) as index:
            told = _told(index, verify)
            if last or not index.changed():  # else it was written meanwhile, and this may be half of the one and half of the other
                return told
    raise AssertionError


def _told(index: ImageIndex, verify: bool) -> IndexInfo:
    place, snapshot, ask = index.directory, index._snapshot, index._connections.rows
    fields = store.read_fields(place)
    by_root: Mapping[int | None, int] = dict(ask("SELECT root, count(*) FROM images WHERE gone = 0 GROUP BY root"))
    roots = [Folder(root.name, root.path, root.path.is_dir(), by_root.get(root.id, 0)) for root in snapshot.roots]
    folders = ask(
        "SELECT coalesce(folder, ''), count(*) AS number FROM images WHERE gone = 0 GROUP BY coalesce(folder, '')"
        " ORDER BY number DESC, coalesce(folder, '')"
    )
    imported = [(name, type_, where) for name, (type_, where) in snapshot.fields.items() if name not in BASE_FIELDS]
    counts: tuple[Any, ...] = ()
    if imported:
        wanted = ", ".join(f"count({where})" for _, _, where in imported)
        (counts,) = ask(f"SELECT {wanted} FROM images LEFT JOIN extra ON extra.id = images.id WHERE images.gone = 0")
    ((committed,),) = ask("SELECT value FROM meta WHERE key = 'committed'")
    used = len(snapshot.layout.rows)
    rows = len(snapshot.shards)
    files = _files(place)
    newest = max(files[name].st_mtime for name in (store.MANIFEST, store.DATABASE) if name in files)
    resumable = max(0, rows - int(committed))
    return IndexInfo(
        directory=place,
        version=store.VERSION,
        edition=index.edition,
        written=datetime.fromtimestamp(newest).astimezone(),
        written_by=str(fields.get("clipmend") or ""),
        backbone=index.backbone,
        image_digest=index.image_digest,
        embed_dim=index.embed_dim,
        dtype=index.dtype,
        images=len(index),
        contents=used,
        roots=roots,
        elsewhere=len(index) - sum(root.images for root in roots),
        folders={str(name): int(count) for name, count in folders},
        columns=[Column(name, type_, int(count)) for (name, type_, _), count in zip(imported, counts, strict=True)],
        skipped=index.skipped,
        shards=len(snapshot.shards.shards),
        rows=rows,
        dead=max(0, rows - used - resumable),
        resumable=resumable,
        graph=_graph(index, rows, verify),
        bytes=_bytes({name: status.st_size for name, status in files.items()}),
        verified=verify,
    )


def _graph(index: ImageIndex, rows: int, verify: bool) -> GraphInfo:
    about, problem = read_about(index.directory, index._manifest, index._snapshot.epoch)
    if about is None:
        return GraphInfo("unusable" if problem else "none", problem=problem)
    path = index.directory / about.file
    try:
        damaged = path.stat().st_size != about.bytes or (verify and crc32(path) != about.crc32)
        problem = f"{about.file} is damaged" if damaged else ""
    except OSError as error:
        problem = f"{about.file} cannot be read ({error.strerror or error})"
    if problem:
        return GraphInfo("unusable", about.rows, max(0, rows - about.rows), about.recall, problem)
    missing = max(0, rows - about.rows)
    return GraphInfo("behind" if missing else "current", about.rows, missing, about.recall)


def _files(place: Path) -> dict[str, os.stat_result]:
    """The files in the folder, those that are links too, by name."""
    files = {}
    with os.scandir(place) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a journal that came and went while it was written, a link to nowhere
                if entry.is_file():
                    files[entry.name] = os.stat(entry.path)
    return files


def _bytes(files: Mapping[str, int]) -> dict[str, int]:
    sizes = {"vectors": 0, "database": 0, "graph": 0, "other": 0}
    for name, size in files.items():
        kind = "other"
        if name.startswith("vectors-"):
            kind = "vectors"
        elif name.startswith(store.DATABASE):
            kind = "database"
        elif name.startswith("nearest"):
            kind = "graph"
        sizes[kind] += size
    return {**sizes, "total": sum(sizes.values())}
