"""Approximate search: a graph (HNSW, by usearch) over the vectors of an index, kept beside it as a cache.

Vectors and database are the truth. The graph holds a 16-bit copy of every row and is memory-mapped for searching; what it finds is
scored again with the vectors themselves, so that scores are exact and only a neighbour can be missed. How hard it searches is
measured when it is made: harder and harder until, on a sample, 98 of the true 100 first ten are found. A graph that is missing,
damaged or of other rows is passed over, and the next update makes it again; rows newer than it are searched exactly.
"""

from __future__ import annotations

import errno
import json
import math
import os
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmend.search import store
from clipmend.search.database import Database
from clipmend.search.embed import progress_bar
from clipmend.search.exact import Layout, Shards
from clipmend.search.store import Manifest

if TYPE_CHECKING:
    from usearch.index import Index

__all__ = ["APPROXIMATE_FROM", "Graph", "keep_graph"]

APPROXIMATE_FROM = 50_000
"""From so many images on a graph is made unless told otherwise; fewer are searched exactly in no time."""
RECALL = 0.98
CONNECTIVITY, EXPANSION_ADD = 16, 128
EXPANSIONS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
SAMPLE = 200
STALE = 4096
"""A graph is extended once it lacks more rows than this and a twentieth of its own."""
_BLOCK = 8192
_FORMAT = {"format": "clipmend-nearest", "version": 1, "connectivity": CONNECTIVITY, "scalar": "f16", "metric": "ip"}


@dataclass(frozen=True)
class About:
    """What ``nearest.json`` says.

    Attributes:
        file: the graph's.
        bytes: its size.
        crc32: of its bytes.
        rows: how many rows, from 0 on, it holds.
        expansion: how hard it must search.
        recall: of the first ten neighbours, on the sample, then.
    """

    file: str
    bytes: int
    crc32: int
    rows: int
    expansion: int
    recall: float


class Graph:
    """A graph opened for searching; safe to use from several threads.

    Attributes:
        about: see :class:`About`.
    """

    def __init__(self, directory: Path, about: About, embed_dim: int) -> None:
        self.about = about
        self._index = _empty(embed_dim)
        self._index.view(str(directory / about.file))
        self._lock = threading.Lock()

    @classmethod
    def open(cls, directory: Path, manifest: Manifest, epoch: int) -> tuple[Graph | None, str]:
        """The graph of these rows, and what is wrong where there is none that can be used (empty: there is none at all)."""
        about, problem = read_about(directory, manifest, epoch)
        if about is None:
            return None, problem
        path = directory / about.file
        try:
            if path.stat().st_size != about.bytes or crc32(path) != about.crc32:  # usearch would follow whatever it reads
                return None, f"{about.file} is damaged"
            return cls(directory, about, manifest.embed_dim), ""
        except (OSError, RuntimeError, ValueError) as error:
            return None, f"{about.file} cannot be opened ({error})"
        except ImportError:
            return None, "usearch is not installed"

    def search(self, query: np.ndarray, k: int) -> np.ndarray:
        """The rows, about ``k``, that it finds for a unit query ``[D]``."""
        count = min(k, len(self._index))
        with self._lock:
            _search_as_hard_as(self._index, max(self.about.expansion, 2 * count))
            return np.asarray(self._index.search(query, count, threads=1).keys, np.int64)


def read_about(directory: Path, manifest: Manifest, epoch: int) -> tuple[About | None, str]:
    """What is said of the graph, if it is one of this index and these rows."""
    try:
        fields: Any = json.loads((directory / store.NEAREST).read_bytes())
        if any(fields[name] != value for name, value in _FORMAT.items()):
            return None, "it was made by another release"
        if (fields["index"], fields["epoch"]) != (manifest.id, epoch):
            return None, "it is of other rows"
        about = About(**{name: fields[name] for name in About.__dataclass_fields__})
        numbers = (about.bytes, about.crc32, about.rows, about.expansion)
        named = Path(about.file).name == about.file and about.file.isascii() and about.file.isprintable()
        if not named or not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(about)
        if not math.isfinite(about.recall):
            raise ValueError(about)
        return about, ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, f"{store.NEAREST} is damaged"


def keep_graph(
    directory: Path, manifest: Manifest, database: Database, *, approximate: bool | None, progress: bool, workers: int | None
) -> set[str]:
    """Make, extend or drop the graph as is fit; gives the names of its files.

    Args:
        directory, manifest, database: the index, locked by the caller.
        approximate: True: have one; False: have none; ``None``: have one from 50,000 images on, or where there is one.
        progress, workers: as for :func:`clipmend.search.build_index`.
    """
    epoch = int(database.meta("epoch"))
    shards = Shards(directory, database.shards(), manifest.embed_dim, manifest.dtype)
    live = int(database.one("SELECT count(*) FROM images WHERE gone = 0"))
    about, _ = read_about(directory, manifest, epoch)
    there = (directory / store.NEAREST).exists()
    wanted = (live >= APPROXIMATE_FROM or there) if approximate is None else approximate
    if not wanted or not len(shards):
        return set()
    if about is not None and about.rows <= len(shards):
        path = directory / about.file
        if path.is_file() and path.stat().st_size == about.bytes and crc32(path) == about.crc32:
            lacks = len(shards) - about.rows
            if not lacks or (approximate is None and lacks <= max(STALE, about.rows // 20)):
                return {store.NEAREST, about.file}
            index = _empty(manifest.embed_dim)
            index.load(str(path))  # a view could not be added to
            return _write(directory, manifest, epoch, shards, index, about.rows, progress, workers)
    return _write(directory, manifest, epoch, shards, _empty(manifest.embed_dim), 0, progress, workers)


def _write(
    directory: Path,
    manifest: Manifest,
    epoch: int,
    shards: Shards,
    index: Index,
    first: int,
    progress: bool,
    workers: int | None,
) -> set[str]:
    """Add the rows from ``first`` on, measure, save beside and rename into place."""
    threads = workers or min(8, os.cpu_count() or 1)
    with progress_bar("Graph for approximate search", len(shards) - first, progress) as advance:
        for low in range(first, len(shards), _BLOCK):
            rows = np.arange(low, min(low + _BLOCK, len(shards)))
            vectors = shards.gather(rows)
            if not np.isfinite(vectors).all():
                raise store.damaged(directory, "a vector holds NaN or infinity")
            index.add(rows.astype(np.uint64), vectors, threads=threads)
            for _ in rows:
                advance()
    expansion, recall = calibrate(index, shards)
    number = 1 + max((int(path.stem.split("-")[1]) for path in directory.glob("nearest-*.usearch")), default=-1)
    path = directory / f"nearest-{number}.usearch"
    beside = path.with_name(path.name + ".tmp")
    try:
        try:
            index.save(str(beside))
        except RuntimeError as error:  # usearch says what is wrong, not what kind of error it is
            what = f"the graph for approximate search cannot be written ({error}); the index itself is whole"
            raise OSError(errno.EIO, what, str(path)) from error
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    about = About(path.name, path.stat().st_size, crc32(path), len(shards), expansion, recall)
    fields: Mapping[str, object] = {**_FORMAT, "index": manifest.id, "epoch": epoch, **about.__dict__}
    store.write_atomically(directory / store.NEAREST, (json.dumps(fields, indent=2) + "\n").encode())
    return {store.NEAREST, about.file}


def calibrate(index: Index, shards: Shards, seed: int = 0) -> tuple[int, float]:
    """The least expansion with which the graph finds 98 % of the true first ten, and what it then finds.

    Half of the sample are vectors of the index. The other half lie between and off them, sums and differences of two, as the
    vectors of texts do, which are no image's neighbours and harder to find the way for. The lesser of the two recalls counts.
    """
    rng = np.random.default_rng(seed)
    count = min(SAMPLE, len(shards))
    images = shards.gather(np.sort(rng.choice(len(shards), count, replace=False)))
    other = shards.gather(rng.integers(0, len(shards), count))
    mixed = images + other * rng.uniform(-0.7, 0.7, (count, 1)).astype(np.float32)
    kept = np.linalg.norm(mixed, axis=1) > 1e-3
    groups = [images, mixed[kept] / np.linalg.norm(mixed[kept], axis=1, keepdims=True)]
    groups = [group for group in groups if len(group)]
    layout = Layout(np.arange(len(shards)))
    k = min(10, len(shards))
    scores = [shards.search(group, layout, k)[0] for group in groups]
    recall, expansion = 0.0, EXPANSIONS[0]
    for expansion in EXPANSIONS:
        _search_as_hard_as(index, expansion)
        recall = min(_recall(index, shards, group, true[:, -1], k) for group, true in zip(groups, scores, strict=True))
        if recall >= RECALL:
            break
    return expansion, round(recall, 4)


def _recall(index: Index, shards: Shards, queries: np.ndarray, least: np.ndarray, k: int) -> float:
    """The part of the true first ``k`` that is found; one that is as near as the last of them is one of them."""
    found = 0
    for query, worst in zip(queries, least, strict=True):
        rows = np.asarray(index.search(query, k, threads=1).keys, np.int64)
        found += int((shards.gather(rows) @ query >= worst - 1e-5).sum())
    return found / (k * len(queries))


def _search_as_hard_as(index: Index, expansion: int) -> None:
    index.expansion_search = expansion  # type: ignore[misc]  # usearch hides the setter from type checkers


def crc32(path: Path) -> int:
    """Of a file's bytes, some gigabytes a second: against damage, not against malice."""
    total = 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            total = zlib.crc32(piece, total)
    return total


def _empty(embed_dim: int) -> Index:
    from usearch.index import Index

    return Index(ndim=embed_dim, metric="ip", dtype="f16", connectivity=CONNECTIVITY, expansion_add=EXPANSION_ADD)
