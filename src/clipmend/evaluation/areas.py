"""AUROC with ties as one half, for one weighting of the items or many, and its mean over kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["auroc", "kind_means", "kind_members", "macro", "split_kinds", "weighted_auroc"]


def auroc(scores: ArrayLike, positive: ArrayLike, tie_tolerance: float = 0.0) -> float:
    """Probability that a positive scores above a negative, ties one half (Mann-Whitney).

    Args:
        scores: ``[n]``.
        positive: bool ``[n]``.
        tie_tolerance: scores this close are tied.

    Returns:
        0 to 1; NaN where one class is missing.

    Raises:
        ValueError: a score that is NaN.
    """
    values, right = np.asarray(scores, np.float64), np.asarray(positive, bool)
    if values.shape != right.shape or values.ndim != 1:
        raise ValueError(f"scores {values.shape} and classes {right.shape} must be two vectors of one length")
    if np.isnan(values).any():
        raise ValueError(f"the score of item {int(np.flatnonzero(np.isnan(values))[0])} is NaN")
    above, below = values[right], np.sort(values[~right])
    if not len(above) or not len(below):
        return float("nan")
    lower, upper = _tie_bounds(above, below, tie_tolerance)
    return float((lower + upper).sum() / (2 * len(above) * len(below)))


def _tie_bounds(above: NDArray[Any], below: NDArray[Any], tolerance: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number of sorted negatives clearly below each positive, and number not clearly above it."""
    return np.searchsorted(below, above - tolerance, "left"), np.searchsorted(below, above + tolerance, "right")


def weighted_auroc(
    scores: NDArray[Any], positive: NDArray[np.bool_], weights: NDArray[np.float32], tie_tolerance: float = 0.0
) -> NDArray[np.float64]:
    """:func:`auroc` for many weightings of the items at once, ``[n, s]`` to ``[s]``; NaN where a class weighs nothing."""
    values = np.asarray(scores, np.float64)
    negatives = np.flatnonzero(~positive)
    negatives = negatives[np.argsort(values[negatives], kind="stable")]
    lower, upper = _tie_bounds(values[positive], values[negatives], tie_tolerance)
    mass = np.zeros((len(negatives) + 1, weights.shape[1]), np.float64)
    np.cumsum(weights[negatives], axis=0, dtype=np.float64, out=mass[1:])
    own = weights[positive].astype(np.float64)
    beaten = (own * (mass[lower] + mass[upper])).sum(0) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return beaten / (own.sum(0) * mass[-1])


def kind_members(kinds: Sequence[str]) -> tuple[list[str], NDArray[np.float64]]:
    """Distinct kinds, and ``[K, Q]`` 1 where the query is about the kind; one about several counts for each of them."""
    names = sorted({kind for absent in kinds for kind in split_kinds(absent)})
    position = {kind: k for k, kind in enumerate(names)}
    member = np.zeros((len(names), len(kinds)))
    for q, absent in enumerate(kinds):
        for kind in split_kinds(absent):
            member[position[kind], q] = 1
    return names, member


def kind_means(values: NDArray[np.float64], member: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the queries of each kind, ``[K]`` or ``[K, s]``; NaN for a kind without any."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (member @ np.nan_to_num(values)) / (member @ (~np.isnan(values)).astype(np.float64))


def macro(values: ArrayLike, kinds: Sequence[str]) -> Any:
    """Mean over kinds of the mean over a kind's queries; NaN queries are left out, and kinds that have no other.

    Args:
        values: ``[Q]``, or ``[Q, s]`` for many draws at once.
        kinds: ``[Q]`` the absent kind, or several separated by ``|``: such a query counts for each of its kinds.

    Returns:
        A number, or ``[s]``; NaN where no query counts.
    """
    per_kind = kind_means(np.asarray(values, np.float64), kind_members(kinds)[1])
    counted = (~np.isnan(per_kind)).sum(0)
    return np.nan_to_num(per_kind).sum(0) / np.where(counted == 0, np.nan, counted)


def split_kinds(absent: str) -> tuple[str, ...]:
    """``"cat|dog"`` to ``("cat", "dog")``."""
    return tuple(kind.strip() for kind in absent.split("|") if kind.strip())
