"""``ArrayGallery``: vectors that lie in NumPy arrays, in memory or memory-mapped, searched exactly."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from clipmend.search.conditions import check_conditions
from clipmend.search.gallery import Condition, FieldType, Gallery, GalleryError, Item, Nearest, int64_ids
from clipmend.search.tables import BLOCK, Rows

__all__ = ["ArrayGallery", "UnnormalisedWarning", "file_within", "known_path", "unit_queries", "unit_rows"]

CHUNK = 1 << 24
"""Numbers of a chunk: 64 MB as float32."""
TOLERANCE = {"float16": 1e-2}
"""How far from 1 a length may be that counts as normalised; 0.001 for the other types."""


class UnnormalisedWarning(UserWarning):
    """Vectors are not of length 1; they are normalised for the comparison."""


class ArrayGallery(Gallery):
    """Vectors in arrays, searched exactly: the cosine with every one, in chunks, so that arrays larger than memory work.

    Every vector is read once when the gallery is made, to find out its length and whether it is a vector at all. Reading only.

    Args:
        vectors: ``[N, D]`` of any floating type, or several such arrays, one after another; memory-mapped ones stay so.
        items: what is known of each row. Default: nothing; the id is the row's number.
        fields: the fields with their types; default: those that the items have.
        name: for messages.
        backbone: the name of the encoder that made them, if known.
        image_digest: the digest of its image side, if known.
        images: the folder that the items' paths start from; without it the gallery knows no files.
        skip_bad: leave out rows that are no vectors (NaN, infinity, zero) instead of refusing the arrays.

    Attributes:
        skipped: how many rows were left out.

    Raises:
        GalleryError: no vectors, a wrong shape or type, rows that are no vectors, items that do not match.

    Warns:
        UnnormalisedWarning: how many vectors are not of length 1.

    Example::

        gallery = ArrayGallery(np.load("pictures.npy", mmap_mode="r"))
        nearest = gallery.nearest(encoder.encode_texts(["a red bus"]), k=5)
    """

    def __init__(
        self,
        vectors: np.ndarray | Sequence[np.ndarray],
        items: Sequence[Item] | Rows | None = None,
        *,
        fields: Mapping[str, FieldType] | None = None,
        name: str = "the array",
        backbone: str = "",
        image_digest: str = "",
        images: str | os.PathLike[str] | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.name, self.backbone, self.image_digest = name, backbone, image_digest
        self.images = None if images is None else Path(images)
        self._parts = _checked_parts(name, [vectors] if isinstance(vectors, np.ndarray) else list(vectors))
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        self.embed_dim = self._parts[0].shape[1]
        count = int(self._starts[-1])
        if isinstance(items, Rows):
            rows = items
        else:
            rows = Rows(count) if items is None else Rows.of_items(items, fields)
        if rows.count != count:
            raise GalleryError(f"{name} has {count:,} vectors, and {rows.count:,} items are given")
        self._rows = rows
        self.fields = {field: column.type for field, column in rows.columns.items()}
        self._scale, bad = self._look_through(count)
        self.skipped = len(bad)
        if len(bad) and not skip_bad:
            raise self._bad_rows(bad)
        self._ids, self._order = _by_id(rows.ids, count, bad)
        self._lock = Lock()
        self._found: dict[tuple[Condition, ...], np.ndarray] = {}
        self._values: dict[str, list[tuple[str, int]]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def count(self, where: Sequence[Condition] = ()) -> int:
        positions = self._positions(where)
        return len(self) if positions is None else len(positions)

    def nearest(self, queries: Any, k: int, *, where: Sequence[Condition] = (), exact: bool | None = None) -> Nearest:
        from clipmend.search.index import top_k

        if k < 1:
            raise ValueError(f"k must be at least 1 (got {k})")
        asked = unit_queries(queries, self.embed_dim)
        positions = self._positions(where)
        k = min(k, len(self) if positions is None else len(positions))
        best = np.empty((len(asked), 0), np.float32)
        found = np.empty((len(asked), 0), np.int64)
        for chunk, vectors in self._chunks(positions):
            best = np.concatenate([best, asked @ vectors.T], axis=1)
            found = np.concatenate([found, np.broadcast_to(chunk, (len(asked), len(chunk)))], axis=1)
            keep = np.stack([top_k(scores, ties, k) for scores, ties in zip(best, found, strict=True)])
            best, found = np.take_along_axis(best, keep, 1), np.take_along_axis(found, keep, 1)
        return Nearest(best, self._ids[found], exact=True)

    def vectors(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        return self._read(self._physical(self._positions_of(ids)))

    def items(self, ids: Sequence[int] | np.ndarray) -> list[Item]:
        positions = self._positions_of(ids)
        return self._rows.items(self._physical(positions), self._ids[positions].tolist())

    def ids(self, where: Sequence[Condition] = (), *, block: int = 4096) -> Iterator[np.ndarray]:
        positions = self._positions(where)
        chosen = self._ids if positions is None else self._ids[positions]
        for first in range(0, len(chosen), block):
            yield chosen[first : first + block].copy()

    def file(self, item: Item) -> Path | None:
        return file_within(self.images, item.path)

    def find(self, path: str) -> int | None:
        for wanted in known_path(self.images, path):
            for first in range(0, self._rows.count, BLOCK):
                block = self._rows.path_block(first, min(first + BLOCK, self._rows.count))
                rows = [first + i for i, value in enumerate(block) if value == wanted]
                ids = [found for row in rows if (found := self._id_of(row)) is not None]
                if ids:
                    return min(ids)
        return None

    def values(self, name: str, limit: int = 100) -> list[tuple[str, int]]:
        type_ = self.fields.get(name)
        if type_ not in ("text", "folder"):
            known = ", ".join(field for field, kind in self.fields.items() if kind in ("text", "folder")) or "none"
            raise GalleryError(f"{self.name} has no text or folder field {name!r}; those it has: {known}")
        with self._lock:
            if name not in self._values:
                column = self._rows.columns[name]
                counts: Counter[str] = Counter()
                for first in range(0, len(column), BLOCK):
                    counts.update(column.block(first, min(first + BLOCK, len(column))).tolist())
                counts.pop(None, 0)  # type: ignore[call-overload]
                self._values[name] = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10_000]
            return self._values[name][:limit]

    def _positions(self, where: Sequence[Condition]) -> np.ndarray | None:
        """Positions (in the order of ids) that fulfil all conditions; ``None`` for all there are."""
        if not where:
            return None
        check_conditions(where, self.fields, self.name)
        key = tuple(where)
        with self._lock:  # pages of one search ask the same again
            found = self._found.get(key)
        if found is None:
            holding = np.ones(self._rows.count, bool)
            for condition in where:
                holding &= self._rows.columns[condition.field].holding(condition)
            found = np.flatnonzero(holding if self._order is None else holding[self._order])
            with self._lock:
                while len(self._found) >= 8:
                    self._found.pop(next(iter(self._found)))
                self._found[key] = found
        return found

    def _positions_of(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        asked = int64_ids(ids, self.name)
        if not len(self):
            positions = np.zeros(len(asked), np.int64)
            there = np.zeros(len(asked), bool)
        else:
            positions = np.minimum(np.searchsorted(self._ids, asked), len(self) - 1)
            there = self._ids[positions] == asked
        if not there.all():
            raise GalleryError(f"{self.name} has no image of the id {asked[~there][0]}")
        return positions

    def _id_of(self, row: int) -> int | None:
        if self._order is None:
            return int(self._ids[row])
        (positions,) = np.nonzero(self._order == row)
        return int(self._ids[positions[0]]) if len(positions) else None  # a row left out has none

    def _physical(self, positions: np.ndarray) -> np.ndarray:
        return positions if self._order is None else self._order[positions]

    def _chunks(self, positions: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions and unit vectors, a chunk at a time."""
        size = max(1, CHUNK // self.embed_dim)
        total = len(self) if positions is None else len(positions)
        for first in range(0, total, size):
            last = min(first + size, total)
            chunk = np.arange(first, last) if positions is None else positions[first:last]
            yield chunk, self._read(self._physical(chunk))

    def _read(self, rows: np.ndarray) -> np.ndarray:
        """float32 ``[n, D]``: the unit vectors of physical rows."""
        number = np.searchsorted(self._starts, rows, side="right") - 1
        gapless = len(rows) and rows[-1] - rows[0] == len(rows) - 1 and number[0] == number[-1] and (np.diff(rows) == 1).all()
        if gapless:
            first = rows[0] - self._starts[number[0]]
            vectors = np.asarray(self._parts[number[0]][first : first + len(rows)], np.float32)  # a view where it is float32
        else:
            vectors = np.empty((len(rows), self.embed_dim), np.float32)
            for part in np.unique(number):
                chosen = number == part
                vectors[chosen] = self._parts[part][rows[chosen] - self._starts[part]]
        return vectors if self._scale is None else vectors * self._scale[rows, None]

    def _look_through(self, count: int) -> tuple[np.ndarray | None, np.ndarray]:
        """What each row is to be multiplied by (``None``: nothing), and the rows that are no vectors."""
        lengths = np.empty(count, np.float64)
        size = max(1, CHUNK // self.embed_dim)
        for part, start in zip(self._parts, self._starts[:-1], strict=True):
            for first in range(0, len(part), size):
                chunk = np.asarray(part[first : first + size], np.float32)
                with np.errstate(all="ignore"):
                    found = np.sqrt(np.einsum("nd,nd->n", chunk, chunk)).astype(np.float64)
                    odd = np.flatnonzero(~np.isfinite(found) | (found < 1e-15))  # perhaps only float32 is too narrow
                    found[odd] = np.linalg.norm(chunk[odd].astype(np.float64), axis=1)
                lengths[start + first : start + first + len(chunk)] = found
        good = np.isfinite(lengths) & (lengths > 0)
        if not good.any():
            return None, np.flatnonzero(~good)
        tolerance = max(TOLERANCE.get(part.dtype.name, 1e-3) for part in self._parts)
        off = good & (np.abs(lengths - 1) > tolerance)
        if off.any():
            warnings.warn(
                UnnormalisedWarning(
                    f"{self.name}: {int(off.sum()):,} of {count:,} vectors are not of length 1 (from {lengths[good].min():.3g} to "
                    f"{lengths[good].max():.3g}); they are normalised here"
                ),
                stacklevel=3,
            )
        if (np.abs(lengths[good] - 1) < 1e-6).all():
            return None, np.flatnonzero(~good)
        scale = np.ones(count, np.float32)
        scale[good] = 1 / lengths[good]
        return scale, np.flatnonzero(~good)

    def _bad_rows(self, bad: np.ndarray) -> GalleryError:
        told = ", ".join(str(row) for row in bad[:5]) + (f" and {len(bad) - 5:,} more" if len(bad) > 5 else "")
        return GalleryError(
            f"{self.name}: {len(bad):,} of {self._rows.count:,} rows hold NaN, infinity or nothing but zeros (row {told}); take "
            "them out, or leave them out with skip_bad=True ('clipmend copy --skip-bad' makes a copy without them)"
        )


def unit_queries(queries: Any, embed_dim: int) -> np.ndarray:
    """float32 ``[Q, D]`` of length 1.

    Raises:
        ValueError: another width, NaN or infinity, or a zero vector.
    """
    asked = np.atleast_2d(np.asarray(queries, np.float32))
    if asked.ndim != 2 or asked.shape[1] != embed_dim:
        raise ValueError(f"a query must have {embed_dim} dimensions like the gallery (got shape {np.shape(queries)})")
    if not np.isfinite(asked).all():
        raise ValueError("a query embedding holds NaN or infinity")
    lengths = np.linalg.norm(asked, axis=1, keepdims=True)
    if not lengths.all():
        raise ValueError("a query embedding is zero: it has no direction to search in")
    return asked / lengths


def unit_rows(items: Sequence[Item], vectors: np.ndarray, embed_dim: int) -> np.ndarray:
    """The vectors of items that are to be added, of length 1.

    Raises:
        ValueError: another width or number, NaN or infinity, a zero vector, an id out of range or twice.
    """
    vectors = np.asarray(vectors, np.float32)
    if vectors.shape != (len(items), embed_dim):
        raise ValueError(f"{len(items)} items of {embed_dim} dimensions need vectors of that shape (got {vectors.shape})")
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise ValueError(f"the id {twice} stands in several of the items to add")
    for item in items:
        if not 0 <= item.id < 1 << 63:
            raise ValueError(f"{item.path}: the id {item.id} is not within 0 and 2^63")
    good = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise ValueError(f"{items[row].path} (id {ids[row]}): its vector holds NaN, infinity or nothing but zeros")
    wide = vectors.astype(np.float64)
    return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)


def file_within(root: Path | None, path: str) -> Path | None:
    """The file of a path below a root, links followed; ``None`` where it lies outside, or no root is known."""
    if root is None or "://" in path:
        return None
    try:
        inside, file = root.resolve(), (root / path).resolve()
    except (OSError, ValueError, RuntimeError):  # no path at all: a NUL, a loop of links
        return None
    return file if file.is_relative_to(inside) and file != inside else None


def known_path(root: Path | None, path: str) -> list[str]:
    """How a gallery may spell a path: as it is, and relative to the root."""
    spelt = [path]
    if root is not None:
        inside, file = os.path.abspath(root), os.path.abspath(path)
        if file.startswith(inside.rstrip(os.sep) + os.sep):
            spelt.append(Path(file).relative_to(inside).as_posix())
    return spelt


def _checked_parts(name: str, parts: list[np.ndarray]) -> list[np.ndarray]:
    if not parts:
        raise GalleryError(f"{name} holds no vectors")
    for part in parts:
        if not isinstance(part, np.ndarray) or part.ndim != 2 or not part.shape[1]:
            raise GalleryError(f"{name}: vectors are an array [N, D], one row an image (got shape {np.shape(part)})")
        if part.dtype.kind != "f":
            raise GalleryError(f"{name}: vectors are floating-point numbers (got {part.dtype})")
        if part.shape[1] != parts[0].shape[1]:
            raise GalleryError(f"{name}: arrays of {parts[0].shape[1]} and of {part.shape[1]} dimensions cannot be one gallery")
    return parts


def _by_id(ids: np.ndarray | None, count: int, bad: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids ascending, and the row of each (``None``: they are in that order as they lie)."""
    if ids is None:
        ids = np.arange(count, dtype=np.int64)
    if not len(bad) and (np.diff(ids) > 0).all():
        return ids, None
    order = np.setdiff1d(np.arange(count), bad)
    order = order[np.argsort(ids[order], kind="stable")]
    return ids[order], order
