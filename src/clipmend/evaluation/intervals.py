"""Confidence intervals: Wilson's for a share, the percentile bootstrap for everything else.

Evaluation items come in clusters (several questions or captions share an image), so the bootstrap draws whole clusters. A draw
is a vector of weights, how often each cluster was drawn; the same seed gives the same draws, which makes the difference of two
systems on the same items a *paired* one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["PairedDifference", "bootstrap_mean", "median_interval", "paired_difference", "percentile", "resample_weights", "wilson"]

Floats = NDArray[np.float64]


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1, not {level}")
    return NormalDist().inv_cdf(0.5 + level / 2)


def wilson(successes: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share (Wilson 1927, JASA 22:209).

    Args:
        successes: how many of ``total`` succeeded.
        total: number of independent trials; 0 gives ``(0, 1)``: nothing is known.
        level: nominal coverage.

    Returns:
        Lower and upper bound, within [0, 1].

    Raises:
        ValueError: ``successes`` outside 0..total.
    """
    if not 0 <= successes <= total:
        raise ValueError(f"{successes} successes of {total} trials")
    z = _z(level)
    if total == 0:
        return 0.0, 1.0
    share = successes / total
    scale = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z / scale * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # At 0 and at 1 the bound is the share itself; rounding would put it an ulp away.
    return (0.0 if successes == 0 else max(0.0, centre - half)), (1.0 if successes == total else min(1.0, centre + half))


def percentile(draws: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap draws ``[S]``; draws that are NaN (a class was not drawn) are left out.

    Returns:
        Lower and upper bound; NaN, NaN where no draw is a number.
    """
    _z(level)
    values = np.asarray(draws, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def resample_weights(clusters: int, samples: int, seed: int = 0, block_values: int = 8_000_000) -> Iterator[NDArray[np.float32]]:
    """Bootstrap draws of clusters as weights, in blocks.

    Args:
        clusters: number ``C`` of clusters.
        samples: number of draws in all.
        seed: fixes every draw, whatever the block size.
        block_values: most numbers held at once.

    Yields:
        float32 ``[C, s]``: how often each cluster is in each of ``s`` draws; every column sums to ``C``.
    """
    if clusters < 1 or samples < 1:
        raise ValueError(f"cannot draw {samples} samples of {clusters} clusters")
    rng = np.random.default_rng(seed)
    step = max(1, min(samples, block_values // clusters))
    for start in range(0, samples, step):
        block = np.empty((clusters, min(step, samples - start)), np.float32)
        for column in range(block.shape[1]):
            block[:, column] = np.bincount(rng.integers(0, clusters, clusters), minlength=clusters)
        yield block


def cluster_sums(values: ArrayLike, clusters: NDArray[np.int64], count: int) -> Floats:
    """``[C]`` sums of ``values`` within each cluster."""
    return np.bincount(clusters, np.asarray(values, np.float64), minlength=count).astype(np.float64)


def bootstrap_mean(
    values: ArrayLike, clusters: ArrayLike | None = None, *, samples: int = 2000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of a mean, drawing whole clusters.

    Args:
        values: ``[n]`` one value an item.
        clusters: ``[n]`` label of each item's cluster (default: every item its own).
        samples: bootstrap draws.
        seed: fixes the draws.
        level: nominal coverage.
    """
    return paired_difference(np.zeros(len(np.asarray(values))), values, clusters, samples=samples, seed=seed, level=level).interval


@dataclass(frozen=True)
class PairedDifference:
    """Mean of ``b - a`` over paired items, with its percentile interval and the number of items."""

    difference: float
    low: float
    high: float
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high


def paired_difference(
    a: ArrayLike, b: ArrayLike, clusters: ArrayLike | None = None, *, samples: int = 2000, seed: int = 0, level: float = 0.95
) -> PairedDifference:
    """Difference of two systems on the same items: mean of ``b - a`` with a bootstrap interval over whole clusters.

    Args:
        a: ``[n]`` values of the first system.
        b: ``[n]`` values of the second, aligned with ``a``.
        clusters: ``[n]`` cluster labels (an image's questions belong together); default: every item its own.
        samples: bootstrap draws.
        seed: fixes the draws.
        level: nominal coverage.

    Raises:
        ValueError: different lengths, no items, or a value that is not a number.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"paired values must be two vectors of one length, not {first.shape} and {second.shape}")
    if not len(first):
        raise ValueError("no items to compare")
    change = second - first
    if np.isnan(change).any():
        raise ValueError(f"item {int(np.flatnonzero(np.isnan(change))[0])} is NaN; a difference needs numbers")
    labels = np.arange(len(change)) if clusters is None else np.asarray(clusters)
    if len(labels) != len(change):
        raise ValueError(f"{len(labels)} cluster labels for {len(change)} items")
    names, position = np.unique(labels, return_inverse=True)
    sums = cluster_sums(change, position, len(names))
    sizes = np.bincount(position, minlength=len(names)).astype(np.float64)
    draws = np.concatenate([(sums @ w) / (sizes @ w) for w in resample_weights(len(names), samples, seed)])
    return PairedDifference(float(change.mean()), *percentile(draws, level), len(change))


def median_interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Interval of a median from order statistics (binomial, normal approximation), without assumption on the distribution."""
    ordered = np.sort(np.asarray(values, np.float64))
    n = len(ordered)
    if n == 0:
        return float("nan"), float("nan")
    half = _z(level) * sqrt(n) / 2
    low, high = int(np.floor(n / 2 - half)), int(np.ceil(n / 2 + half))
    return float(ordered[max(low, 0)]), float(ordered[min(high, n - 1)])
