"""A gallery's images in the order of a query: as far as they were asked for, near-duplicates left out, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clipmend.search.gallery import Condition, Gallery

__all__ = ["COLLAPSE_LIMIT", "Order", "Page", "collapsed", "ranks_in"]

COLLAPSE_LIMIT = 2000
"""How far pages without near-duplicates go: each image is compared with all that are kept before it."""
_COLLAPSE_WINDOW = 4 * COLLAPSE_LIMIT


@dataclass(frozen=True)
class Page:
    """Ids of a page, best first, and for each the ids that were left out as its copies."""

    ids: np.ndarray
    copies: list[tuple[int, ...]]


class Order:
    """The images that fulfil ``where``, by cosine with ``query``, best first; fetched as far as :meth:`reach` was told.

    Args:
        gallery: what is searched.
        query: float32 ``[D]`` of unit length.
        where: conditions.
        total: how many fulfil them.
        exact: as for :meth:`Gallery.nearest`.

    Attributes:
        ids: int64 ``[n]``.
        scores: float32 or float64 ``[n]``.
        exact: whether every image was compared.
    """

    def __init__(self, gallery: Gallery, query: np.ndarray, where: Sequence[Condition], total: int, exact: bool | None) -> None:
        self.gallery, self.query, self.where, self.total, self._asked = gallery, query, where, total, exact
        self.ids, self.scores, self.exact = np.empty(0, np.int64), np.empty(0, np.float32), True
        self._again: tuple[np.ndarray, np.ndarray] | None = None

    def reach(self, count: int) -> bool:
        """Fetch the best ``count``; whether there are more than were there."""
        count = min(count, self.total)
        there = len(self.ids)
        if count <= there:
            return False
        nearest = self.gallery.nearest(self.query, count, where=self.where, exact=self._asked)
        ids, scores = np.asarray(nearest.ids).reshape(-1), np.asarray(nearest.scores).reshape(-1)
        self.exact = nearest.exact
        if self._again is not None:  # what was ordered anew stays in front
            first, better = self._again
            rest = ~np.isin(ids, first)
            ids, scores = np.concatenate([first, ids[rest]]), np.concatenate([better, scores[rest]])
        self.ids, self.scores = ids, scores
        return len(ids) > there

    def put_first(self, corrections: np.ndarray) -> None:
        """Order the first ``len(corrections)`` again by score plus correction; equal ones stay in their order."""
        count = len(corrections)
        scores = self.scores[:count].astype(np.float64) + corrections
        order = np.argsort(-scores, kind="stable")
        self._again = self.ids[:count][order], scores[order]
        self.ids = np.concatenate([self._again[0], self.ids[count:]])
        self.scores = np.concatenate([self._again[1], self.scores[count:].astype(np.float64)])

    def scores_of(self, ids: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        """The scores that ids are ordered by; of those that were not reached, ``otherwise``."""
        ranks = ranks_in(self.ids, ids)
        return np.array([o if r is None else self.scores[r - 1] for r, o in zip(ranks, otherwise, strict=True)])

    def page(self, k: int, offset: int, collapse: float | None) -> Page:
        """``k`` images after the first ``offset``; with ``collapse``, of those that are no copy of a better one.

        Raises:
            ValueError: a page beyond ``COLLAPSE_LIMIT`` with ``collapse``.
        """
        if collapse is None:
            self.reach(offset + k)
            ids = self.ids[offset : offset + k]
            return Page(ids, [()] * len(ids))
        end = offset + k
        if end > COLLAPSE_LIMIT:
            raise ValueError(f"near-duplicates are collapsed among the first {COLLAPSE_LIMIT:,} results, not up to {end:,}")
        window = 2 * end
        self.reach(window)
        while True:
            ids = self.ids[:window]
            kept, copies = collapsed(self.gallery.vectors(ids), collapse, end)
            if len(kept) >= end or window >= min(self.total, _COLLAPSE_WINDOW):
                break
            window = min(2 * window, _COLLAPSE_WINDOW)
            if not self.reach(window) and len(self.ids) <= len(ids):
                break  # an approximate search has no more
        chosen = kept[offset:end]
        return Page(ids[chosen], [tuple(int(ids[c]) for c in copies[i]) for i in range(offset, offset + len(chosen))])


def collapsed(vectors: np.ndarray, threshold: float, most: int) -> tuple[list[int], list[list[int]]]:
    """Leave out each vector that is as near as ``threshold`` to one that was kept before it, the first such being its original.

    Args:
        vectors: float32 ``[n, D]`` of unit length, best first.
        threshold: least cosine of a copy.
        most: no more are kept than that; copies of those are still looked for to the end.

    Returns:
        rows that are kept, and for each of them the rows that are its copies.
    """
    kept: list[int] = []
    copies: list[list[int]] = []
    free = np.ones(len(vectors), bool)
    near = np.empty((0, 0), bool)
    block = 0
    for row in range(len(vectors)):
        if not free[row]:
            continue
        if len(kept) == most:
            break
        if row >= block + len(near):  # cosines of the next rows with all that come after, by one product
            block = row
            near = vectors[block : block + 64] @ vectors[block:].T >= threshold
        own = near[row - block]
        own[: row - block + 1] = False
        alike = np.flatnonzero(own & free[block:]) + block
        free[alike] = False
        kept.append(row)
        copies.append(alike.tolist())
    return kept, copies


def ranks_in(order: np.ndarray, ids: np.ndarray) -> list[int | None]:
    """The place of each id in ``order``, counting from 1; ``None`` where it is not there."""
    places = np.flatnonzero(np.isin(order, ids))  # few are asked for, of many: cheaper than sorting
    ranks = {int(order[place]): int(place) + 1 for place in places}
    return [ranks.get(int(wanted)) for wanted in ids]
