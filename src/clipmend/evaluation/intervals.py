"""Confidence intervals: Wilson's for a share, the percentile bootstrap for everything else.

Evaluation items come in clusters (several questions or captions share an image), so the bootstrap draws whole clusters. A draw
is a vector of weights, how often each cluster was drawn; the same seed gives the same draws, which makes the difference of two
systems on the same items a *paired* one.

The percentiles of a bootstrap are too narrow for few clusters: at 20 items and rare differences such an interval holds the
truth in a third to nine tenths of all samples, and where all items agree it has no width at all. Two remedies, both negligible
from a few hundred items on: the percentiles are taken farther out, as Student's distribution asks (*expanded* percentiles:
Hesterberg 2015, American Statistician 69:371), and those of a share are spanned with ones to which a few items of either kind
were added (Agresti and Coull 1998, American Statistician 52:119; for paired differences Agresti and Min 2005, Statistics in
Medicine 24:729, add two, here four, since two leave gaps where changes are rare and all go one way).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "FEW",
    "PairedDifference",
    "Span",
    "bootstrap_mean",
    "median_interval",
    "paired_difference",
    "percentile",
    "resample_weights",
    "share_interval",
    "wilson",
]

FEW = 300
"""Below this many items tables say how large a difference may be mere chance."""

Span = Literal["share", "difference"]
"""What a number is made of: values in 0..1, or differences of such, in -1..1."""

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


def expanded_level(level: float, count: int) -> float:
    """The level whose normal percentiles lie where Student's of ``level`` do, with the sample's own variance made unbiased.

    ``2 Phi(sqrt(n / (n - 1)) t) - 1`` with the quantile ``t`` of ``n - 1`` degrees of freedom.
    """
    z, free = _z(level), count - 1
    # Cornish and Fisher's expansion: to .5 % from 5 degrees on; with fewer, the level is near 1 and the ends of the draws count.
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return 2 * NormalDist().cdf(sqrt(count / free) * t) - 1


def percentile(draws: ArrayLike, level: float = 0.95, count: int | None = None) -> tuple[float, float]:
    """Percentile interval of bootstrap draws ``[S]``; draws that are NaN (a class was not drawn) are left out.

    Args:
        draws: the draws.
        level: nominal coverage.
        count: how many clusters were drawn from: the percentiles are expanded accordingly. ``None``: plain percentiles.

    Returns:
        Lower and upper bound; NaN, NaN where no draw is a number, or fewer than two clusters leave nothing to resample.
    """
    _z(level)
    values = np.asarray(draws, np.float64)
    values = values[~np.isnan(values)]
    if not len(values) or (count is not None and count < 2):
        return float("nan"), float("nan")
    wide = level if count is None else expanded_level(level, count)
    low, high = np.quantile(values, [(1 - wide) / 2, (1 + wide) / 2])
    return float(low), float(high)


def share_interval(
    draws: ArrayLike,
    value: float,
    count: int,
    clusters: int | None = None,
    *,
    span: Span = "share",
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of a share, or of the difference of two, from its bootstrap draws; honest for few items and where all agree.

    It spans the expanded percentiles of the draws, the same with four pseudo-items added to every draw (to a share half of them
    hits; to a difference half of them changes, either way), and the value itself.

    Args:
        draws: ``[S]``; NaN is left out.
        value: what was measured.
        count: items.
        clusters: what was drawn, where that is fewer; pseudo-items are whole clusters where the draws do not differ at all.
        span: ``"share"`` for values in 0..1, ``"difference"`` for -1..1.
        level: nominal coverage.
        seed: fixes the pseudo-items.

    Returns:
        Lower and upper bound within the span; NaN, NaN where no draw is a number or nothing was counted.
    """
    values = np.asarray(draws, np.float64)
    values = values[~np.isnan(values)]
    drawn = count if clusters is None else min(count, clusters)
    if not len(values) or drawn < 1:
        return float("nan"), float("nan")
    rng = np.random.default_rng((seed, 3))
    if span == "share":
        least, items = 0.0, rng.binomial(4, 0.5, len(values))
    else:
        changes = rng.binomial(4, 0.5, len(values))
        least, items = -1.0, 2 * rng.binomial(changes, 0.5) - changes
    weight = count if np.ptp(values) > 0 else drawn
    bounds = [*percentile((weight * values + items) / (weight + 4), level, max(drawn, 2)), value]
    if drawn > 1:
        bounds += percentile(values, level, drawn)
    return max(least, min(bounds)), min(1.0, max(bounds))


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
    values: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    samples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    share: bool = False,
) -> tuple[float, float]:
    """Interval of a mean, drawing whole clusters.

    Args:
        values: ``[n]`` one value an item.
        clusters: ``[n]`` label of each item's cluster (default: every item its own).
        samples: bootstrap draws.
        seed: fixes the draws.
        level: nominal coverage.
        share: the values lie in 0..1, so that :func:`share_interval` applies.
    """
    change = np.asarray(values, np.float64)
    draws, count = _mean_draws(change, clusters, samples, seed)
    if share:
        return share_interval(draws, float(change.mean()), len(change), count, level=level, seed=seed)
    return percentile(draws, level, count)


@dataclass(frozen=True)
class PairedDifference:
    """Mean of ``b - a`` over paired items, with its interval and the number of items."""

    difference: float
    low: float
    high: float
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    samples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    share: bool = False,
) -> PairedDifference:
    """Difference of two systems on the same items: mean of ``b - a`` with a bootstrap interval over whole clusters.

    Args:
        a: ``[n]`` values of the first system.
        b: ``[n]`` values of the second, aligned with ``a``.
        clusters: ``[n]`` cluster labels (an image's questions belong together); default: every item its own.
        samples: bootstrap draws.
        seed: fixes the draws.
        level: nominal coverage.
        share: the values lie in 0..1, so that :func:`share_interval` applies.

    Raises:
        ValueError: different lengths, no items, or a value that is not a number.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"paired values must be two vectors of one length, not {first.shape} and {second.shape}")
    change = second - first
    draws, count = _mean_draws(change, clusters, samples, seed)
    if share:
        interval = share_interval(draws, float(change.mean()), len(change), count, span="difference", level=level, seed=seed)
    else:
        interval = percentile(draws, level, count)
    return PairedDifference(float(change.mean()), *interval, len(change))


def _mean_draws(values: Floats, clusters: ArrayLike | None, samples: int, seed: int) -> tuple[Floats, int]:
    """``[samples]`` means over drawn clusters, and how many clusters there are."""
    if not len(values):
        raise ValueError("no items to compare")
    if np.isnan(values).any():
        raise ValueError(f"item {int(np.flatnonzero(np.isnan(values))[0])} is NaN; a mean needs numbers")
    labels = np.arange(len(values)) if clusters is None else np.asarray(clusters)
    if len(labels) != len(values):
        raise ValueError(f"{len(labels)} cluster labels for {len(values)} items")
    names, position = np.unique(labels, return_inverse=True)
    sums = cluster_sums(values, position, len(names))
    sizes = np.bincount(position, minlength=len(names)).astype(np.float64)
    return np.concatenate([(sums @ w) / (sizes @ w) for w in resample_weights(len(names), samples, seed)]), len(names)


def median_interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Interval of a median from order statistics (binomial, normal approximation), without assumption on the distribution.

    NaN, NaN where even the least and the greatest value do not hold the median that often (fewer than six values, for 95 %).
    """
    ordered = np.sort(np.asarray(values, np.float64))
    n = len(ordered)
    if n == 0 or 1 - 2.0 ** (1 - n) < level:
        return float("nan"), float("nan")
    half = _z(level) * sqrt(n) / 2
    low, high = int(np.floor(n / 2 - half)), int(np.ceil(n / 2 + half))
    return float(ordered[max(low, 0)]), float(ordered[min(high, n - 1)])
