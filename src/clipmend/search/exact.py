"""Vectors in memory-mapped shards, and exact search among them, in pieces: an index larger than memory works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from clipmend.search import store
from clipmend.search.store import Shard

__all__ = ["Layout", "Shards", "top_k"]

CHUNK = 65_536


class Shards:
    """The vectors of an index by row.

    Args:
        directory: the index.
        shards: its files of vectors, by their first row.
        embed_dim: width ``D``.
        dtype: as stored.

    Raises:
        ImageIndexError: a file that is missing, or of another shape or type.
    """

    def __init__(self, directory: Path, shards: Sequence[Shard], embed_dim: int, dtype: str) -> None:
        self.directory, self.shards, self.embed_dim, self.dtype = directory, tuple(shards), embed_dim, dtype
        self._maps = [store.open_vectors(directory, shard, embed_dim, dtype) for shard in shards]
        self._starts = np.cumsum([0, *(shard.rows for shard in shards)])
        if any(shard.first != start for shard, start in zip(shards, self._starts, strict=False)):
            raise store.damaged(directory, "its files of vectors leave a gap")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def gather(self, rows: np.ndarray, *, raw: bool = False) -> np.ndarray:
        """float32 ``[n, D]``, unit; ``raw``: in the stored type, as they are."""
        vectors = np.empty((len(rows), self.embed_dim), self.dtype if raw else np.float32)
        shard_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard_of):
            chosen = shard_of == number
            vectors[chosen] = self._maps[number][rows[chosen] - self._starts[number]]
        return vectors if raw else self._unit(vectors)

    def chunks(self, layout: Layout, size: int = CHUNK) -> Iterator[tuple[np.ndarray, np.ndarray | None, np.ndarray]]:
        """All images of a layout in the order their vectors lie on the disk, at most ``size`` vectors at a time.

        Yields:
            Positions ``[c]``, for each the index of its vector (``None``: its own), and unit float32 vectors ``[v, D]``. Copies of
            one content share a vector, which comes once: their scores are equal to the last bit.
        """
        rows, firsts, order = layout.rows, layout.firsts, layout.order
        for number, vectors in enumerate(self._maps):
            start = self._starts[number]
            begin, end = np.searchsorted(rows, [start, self._starts[number + 1]])
            low = int(begin)
            while low < end:
                high = min(low + size, int(end))
                chosen = rows[low:high] - start
                span = int(chosen[-1] - chosen[0]) + 1
                which: np.ndarray | None = None
                if span <= 2 * len(chosen):  # a view, the rows between included, beats a copy
                    part = vectors[chosen[0] : chosen[-1] + 1]
                    which = chosen - chosen[0] if span > len(chosen) else None
                else:
                    part = vectors[chosen]
                positions = order[firsts[low] : firsts[high]]
                if len(positions) > high - low:
                    which = np.repeat(np.arange(high - low) if which is None else which, np.diff(firsts[low : high + 1]))
                yield positions, which, self._unit(np.asarray(part, np.float32))
                low = high

    def _unit(self, vectors: np.ndarray) -> np.ndarray:
        """Undo what float16 storage did to the norm; float32 vectors are unit as they are."""
        if self.dtype == "float32":
            return vectors
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def cosines(self, queries: np.ndarray, vectors: np.ndarray, which: np.ndarray | None = None) -> np.ndarray:
        cosines = queries @ vectors.T
        if which is not None:
            cosines = cosines[:, which]
        if not np.isfinite(cosines).all():  # the queries were checked, so it is the index; a NaN would upset the order
            raise store.damaged(self.directory, "a vector holds NaN or infinity")
        return cosines

    def search(self, queries: np.ndarray, layout: Layout, k: int, size: int = CHUNK) -> tuple[np.ndarray, np.ndarray]:
        """Scores and positions ``[Q, min(k, n)]`` of the images of a layout nearest to unit queries; equal scores by position."""
        k = min(k, len(layout.order))
        pools = [_Pool(k) for _ in queries]
        for positions, which, vectors in self.chunks(layout, size):
            for pool, scores in zip(pools, self.cosines(queries, vectors, which), strict=True):
                pool.add(scores, positions)
        best = [pool.best() for pool in pools]
        return np.stack([scores for scores, _ in best]), np.stack([found for _, found in best])


class _Pool:
    """The ``k`` best so far and what may yet be among them; sorted only once twice as many are held, or the time would grow with
    the number of chunks times ``k``."""

    def __init__(self, k: int) -> None:
        self.k, self.held, self.least = k, 0, -np.inf
        self.scores, self.positions = list[np.ndarray](), list[np.ndarray]()

    def add(self, scores: np.ndarray, positions: np.ndarray) -> None:
        if self.least > -np.inf:  # what cannot enter is left out at once
            better = np.flatnonzero(scores >= self.least)
            scores, positions = scores[better], positions[better]
        if not len(scores):
            return
        self.scores.append(scores)
        self.positions.append(positions)
        self.held += len(scores)
        if self.held >= 2 * self.k:
            best, where = self.best()
            self.scores, self.positions, self.held, self.least = [best], [where], len(best), float(best[-1])

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        scores = np.concatenate([np.empty(0, np.float32), *self.scores])
        positions = np.concatenate([np.empty(0, np.int64), *self.positions])
        keep = top_k(scores, positions, self.k)
        return scores[keep], positions[keep]


class Layout:
    """Where images lie: positions by the row of their vector.

    Attributes:
        order: positions ``[n]`` in the order of their rows.
        rows: the rows ``[r]`` in use, ascending, each once.
        firsts: ``[r + 1]``: the positions of ``rows[i]`` are ``order[firsts[i]:firsts[i + 1]]``.
    """

    def __init__(self, rows: np.ndarray, positions: np.ndarray | None = None) -> None:
        order = np.argsort(rows, kind="stable")
        self.rows, firsts = np.unique(rows[order], return_index=True)
        self.firsts = np.append(firsts, len(order))
        self.order = order if positions is None else positions[order]

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """All positions whose vectors are among ``rows``; rows that no image uses are passed over."""
        at = np.searchsorted(self.rows, rows)
        at = at[at < len(self.rows)] if not len(at) or at.max() >= len(self.rows) else at
        kept = at[np.isin(self.rows[at], rows)]
        if not len(kept):
            return np.empty(0, np.int64)
        return np.concatenate([self.order[self.firsts[i] : self.firsts[i + 1]] for i in np.unique(kept)])


def top_k(scores: np.ndarray, ties: np.ndarray, k: int) -> np.ndarray:
    """Indices of the ``k`` highest of ``scores``, highest first; equal scores by ascending ``ties``."""
    k = min(k, len(scores))
    if k < 1:
        return np.empty(0, np.int64)
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= threshold)  # k of them, and all that tie with the last
    return candidates[np.lexsort((ties[candidates], -scores[candidates]))[:k]]
