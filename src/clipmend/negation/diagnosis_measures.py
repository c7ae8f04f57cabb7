"""What a diagnosis measures, as plain arithmetic on arrays: divergence, spread, alignment, and their intervals.

Nothing here knows an encoder. ``N`` pairs, ``L`` layers, width ``W``, ``B`` bootstrap draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "LEAST_FOR_INTERVAL",
    "NEGLIGIBLE_SPREAD",
    "Estimate",
    "Grouping",
    "bootstrap_weights",
    "distances",
    "estimate",
    "spread",
    "unit_vectors",
]

NEGLIGIBLE_SPREAD = 1e-4
"""Below this mean cosine distance between different objects, a layer's states are all alike and a ratio to it says nothing."""

LEAST_FOR_INTERVAL = 10
"""Resamples of fewer pairs than this are too alike: their percentiles would cover far less than 95%."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval.

    Args:
        value: the point estimate, over all units.
        low, high: percentile bootstrap over whole units (pairs); ``None`` for fewer than ten units, too few to resample.
        count: the units it rests on.
    """

    value: float
    low: float | None
    high: float | None
    count: int

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.3f}" if self.low is None else f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}


def unit_vectors(states: np.ndarray) -> np.ndarray:
    """``[..., W]`` to float64 ``[..., W + 1]`` of length one, in which the zero vector has a direction of its own.

    Two states of length zero are equal, so their distance must be 0; a zero state shares nothing with any other, so that distance
    is 1. The added coordinate, 1 for a zero state and 0 otherwise, gives both.
    """
    states = np.asarray(states, np.float64)
    length = np.linalg.norm(states, axis=-1, keepdims=True)
    zero = length == 0
    return np.concatenate([states / np.where(zero, 1.0, length), zero.astype(np.float64)], -1)


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``1 - cos`` of unit vectors, row by row: ``[..., W]`` twice to ``[...]``, in 0..2; equal rows give exactly 0.

    ``|a - b|^2 / 2`` is the same number, and keeps its digits where the two are nearly equal.
    """
    difference = a - b
    return np.einsum("...w,...w->...", difference, difference) / 2


class Grouping:
    """Which pairs may be compared with each other: those of one frame that are about different objects.

    Args:
        frames: the frame of each pair.
        objects: the object of each pair.
    """

    def __init__(self, frames: Sequence[str], objects: Sequence[str]) -> None:
        self.frames: list[np.ndarray] = []
        self.objects: list[np.ndarray] = []
        object_ids = _ids(objects)
        frame_ids = _ids(frames)
        for frame in range(frame_ids.max(initial=-1) + 1):
            rows = np.flatnonzero(frame_ids == frame)
            self.frames.append(rows)
            self.objects.append(np.unique(object_ids[rows], return_inverse=True)[1])

    @property
    def comparable(self) -> bool:
        """Is there any frame with two different objects?"""
        return any(objects.max(initial=0) > 0 for objects in self.objects)


def spread(unit: np.ndarray, grouping: Grouping, weights: np.ndarray) -> np.ndarray:
    """Mean ``1 - cos`` over all ordered couples of different objects in one frame, each pair counted ``weights`` times.

    Args:
        unit: ``[N, W]`` unit vectors of the positive texts.
        grouping: frames and objects of the pairs.
        weights: ``[B, N]`` how often each pair is drawn; ones for the plain mean.

    Returns:
        ``[B]``; NaN for a draw without two different objects in any frame.
    """
    total = np.zeros(len(weights))
    couples = np.zeros(len(weights))
    for rows, objects in zip(grouping.frames, grouping.objects, strict=True):
        w, u = weights[:, rows], unit[rows]
        members = [np.flatnonzero(objects == k) for k in range(objects.max(initial=-1) + 1)]
        couples += w.sum(1) ** 2 - sum(w[:, m].sum(1) ** 2 for m in members)
        if len(rows) <= u.shape[1]:
            apart = np.clip(1 - u @ u.T, 0, None) * (objects[:, None] != objects[None, :])  # [n, n]
            total += ((w @ apart) * w).sum(1)
        else:  # a long list in one frame: |sum of w u|^2 holds all couples at once; those of one object are taken out
            total += w.sum(1) ** 2 - ((w @ u) ** 2).sum(1)
            for m in members:
                if len(m) > 1:
                    total -= ((w[:, m] @ (1 - u[m] @ u[m].T)) * w[:, m]).sum(1)
    return np.divide(total, couples, out=np.full(len(weights), np.nan), where=couples > 0)


def bootstrap_weights(count: int, draws: int, rng: np.random.Generator, block: int = 4_000_000) -> Iterator[np.ndarray]:
    """``draws`` resamples of ``count`` pairs, as how often each is drawn, in blocks ``[b, count]`` of at most ``block`` numbers."""
    step = max(1, block // max(count, 1))
    for start in range(0, draws, step):
        yield rng.multinomial(count, np.full(count, 1 / count), size=min(step, draws - start)).astype(np.float64)


def estimate(value: float, draws: np.ndarray, count: int) -> Estimate:
    """A point estimate with the 95% percentile interval of its bootstrap draws; undefined draws (NaN) are left out.

    No interval with fewer than ten units, or where most draws are undefined.
    """
    valid = draws[np.isfinite(draws)]
    if count < LEAST_FOR_INTERVAL or len(valid) < max(2, len(draws) / 2):
        return Estimate(float(value), None, None, count)
    low, high = np.percentile(valid, [2.5, 97.5])
    return Estimate(float(value), float(low), float(high), count)


def _ids(names: Sequence[str]) -> np.ndarray:
    return np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)[1]
