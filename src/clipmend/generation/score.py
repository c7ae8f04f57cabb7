"""The negation score: does a generated image show what its prompt asks for, and nothing of what it rules out?

An image hits if every required thing is in it and no excluded one. Beside the share of hits stand its two halves, since a
generator that draws nothing at all respects every exclusion: presence recall, the share of required things that are there, and
exclusion success, the share of images with exclusions in which nothing excluded is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipmend.evaluation.intervals import PairedDifference, bootstrap_mean, paired_difference

__all__ = ["Score", "ScoreDifference", "negation_score", "score_difference"]

Floats = NDArray[np.float64]
Interval = tuple[float, float]
_NAMES = ("score", "presence_recall", "exclusion_success")


@dataclass(frozen=True)
class Score:
    """What a set of generated images shows. Shares lie in 0..1; NaN where nothing asks for them.

    Args:
        score: share of images that hit.
        presence_recall: share of required things that are in their image.
        exclusion_success: of the images whose prompt excludes something, the share that shows nothing of it.
        n: images that count towards ``score``.
        interval: of ``score``, drawing whole clusters.
        presence_interval, exclusion_interval: of the other two.
        unjudged: images left out of ``score``, because the judge could not tell of a thing that their prompt speaks of.
        hits: ``[N]`` 1, 0, or NaN for an image that is left out.
        presence: ``[N]`` share of each image's required things that are there, NaN where none is required (or told of).
        exclusion: ``[N]`` 1 where nothing excluded is there, NaN where nothing is excluded (or told of).
        required_counts: ``[N]`` required things that were told of: the weights of ``presence``.
        clusters: ``[N]`` which images belong together (the seeds of one prompt).
    """

    score: float
    presence_recall: float
    exclusion_success: float
    n: int
    interval: Interval
    presence_interval: Interval = (float("nan"), float("nan"))
    exclusion_interval: Interval = (float("nan"), float("nan"))
    unjudged: int = 0
    hits: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    presence: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    exclusion: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    required_counts: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    clusters: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON: shares and intervals in 0..1, ``None`` for NaN."""
        intervals = {
            "score": self.interval,
            "presence_recall": self.presence_interval,
            "exclusion_success": self.exclusion_interval,
        }
        shown: dict[str, Any] = {name: _plain(getattr(self, name)) for name in _NAMES}
        shown |= {f"{name}_interval": [_plain(bound) for bound in bounds] for name, bounds in intervals.items()}
        return {**shown, "n": self.n, "unjudged": self.unjudged}


@dataclass(frozen=True)
class ScoreDifference:
    """How two sets of images of the same prompts and seeds differ: ``after - before``, paired, drawing whole clusters.

    Args:
        score, presence_recall, exclusion_success: each with its interval; ``None`` where nothing asks for it.
    """

    score: PairedDifference | None
    presence_recall: PairedDifference | None
    exclusion_success: PairedDifference | None


def negation_score(
    required: Sequence[Iterable[str]],
    excluded: Sequence[Iterable[str]],
    present: Sequence[Iterable[str]] | ArrayLike,
    *,
    things: Sequence[str] | None = None,
    clusters: Sequence[int] | ArrayLike | None = None,
    threshold: float = 0.5,
    level: float = 0.95,
    seed: int = 0,
) -> Score:
    """Score generated images.

    Args:
        required: for each image, what its prompt asks for.
        excluded: for each image, what its prompt rules out.
        present: for each image, all that is in it; or ``[N, K]``, bool, or a judge's probability of each of ``things``, NaN where
            it cannot tell.
        things: the columns of a ``present`` that is an array.
        clusters: which images belong together, such as the seeds of one prompt (default: every image its own).
        threshold: a thing is there from this probability on.
        level: coverage of the intervals.
        seed: of their bootstrap.

    Raises:
        ValueError: nothing to score, lengths that differ, a thing both required and excluded, one that no column is of, or a
            threshold outside 0..1.

    Example:
        >>> negation_score([{"cup"}, {"cup"}], [{"cat"}, {"cat"}], [{"cup"}, {"cup", "cat"}]).score
        0.5
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"the threshold is a probability, above 0 and at most 1, not {threshold:g}")
    wanted, barred = _sets(required, "required"), _sets(excluded, "excluded")
    if not wanted:
        raise ValueError("no images to score")
    if len(wanted) != len(barred):
        raise ValueError(f"{len(wanted)} images with required things, {len(barred)} with excluded ones")
    both = next(((row, w & b) for row, (w, b) in enumerate(zip(wanted, barred, strict=True)) if w & b), None)
    if both is not None:
        raise ValueError(f"image {both[0]}: {', '.join(sorted(both[1]))} is both required and excluded")
    told = _told(present, things, len(wanted), threshold)
    hits, presence, exclusion, counts = (np.full(len(wanted), np.nan) for _ in range(4))
    for row, (want, bar) in enumerate(zip(wanted, barred, strict=True)):
        there, gone = told(row, sorted(want)), 1 - told(row, sorted(bar))
        known = there[~np.isnan(there)]
        counts[row] = len(known)
        presence[row] = known.mean() if len(known) else np.nan
        exclusion[row] = _all(gone) if len(gone) else np.nan
        if not (want or bar):
            raise ValueError(f"image {row}: nothing is required and nothing excluded, so that there is nothing to score")
        hits[row] = _all(np.concatenate([there, gone]))
    labels = np.arange(len(wanted)) if clusters is None else np.asarray(clusters, np.int64)
    if labels.shape != (len(wanted),):
        raise ValueError(f"{len(labels)} cluster labels for {len(wanted)} images")
    scored = ~np.isnan(hits)
    value, interval = _mean(hits, labels, level, seed)
    success, success_interval = _mean(exclusion, labels, level, seed)
    recall, recall_interval = _mean(*_expanded(presence, counts, labels), level, seed)
    return Score(
        value, recall, success, int(scored.sum()), interval, recall_interval, success_interval,
        int((~scored).sum()), hits, presence, exclusion, counts, labels,
    )  # fmt: skip


def score_difference(before: Score, after: Score, *, level: float = 0.95, seed: int = 0) -> ScoreDifference:
    """``after - before`` on the same images' prompts and seeds, in the same order; an image that either lacks is left out.

    Raises:
        ValueError: scores of different sets.
    """
    if len(before.hits) != len(after.hits) or not np.array_equal(before.clusters, after.clusters):
        raise ValueError(f"scores of different sets: {len(before.hits)} and {len(after.hits)} images")

    def paired(a: Floats, b: Floats, weights: Floats | None = None) -> PairedDifference | None:
        keep = ~(np.isnan(a) | np.isnan(b))
        if not keep.any():
            return None
        times = np.ones(int(keep.sum()), np.int64) if weights is None else weights[keep].astype(np.int64)
        first, second, labels = (np.repeat(values[keep], times) for values in (a, b, before.clusters))
        return paired_difference(first, second, labels, level=level, seed=seed, share=True)

    weights = np.fmin(before.required_counts, after.required_counts)
    return ScoreDifference(
        paired(before.hits, after.hits),
        paired(before.presence, after.presence, weights),
        paired(before.exclusion, after.exclusion),
    )


def _sets(rows: Sequence[Iterable[str]], what: str) -> list[frozenset[str]]:
    lone = next((row for row in rows if isinstance(row, str)), None)
    if lone is not None:
        raise ValueError(f"{what} is a set of things for each image, not a text: {lone!r}")
    return [frozenset(row) for row in rows]


def _told(present: Any, things: Sequence[str] | None, count: int, threshold: float) -> Any:
    """A function (image, things) -> float ``[K]`` of 1, 0 or NaN."""
    if things is None:
        there = _sets(present, "present")
        if len(there) != count:
            raise ValueError(f"{len(there)} images with what is present, {count} with what is required")
        return lambda row, asked: np.array([float(thing in there[row]) for thing in asked])
    table = np.asarray(present, np.float64)
    if table.shape != (count, len(things)):
        raise ValueError(f"present must be [{count}, {len(things)}], of images and things, not {list(table.shape)}")
    column = {thing: place for place, thing in enumerate(things)}

    def look(row: int, asked: Sequence[str]) -> Floats:
        missing = [thing for thing in asked if thing not in column]
        if missing:
            raise ValueError(f"image {row}: no column tells of {', '.join(missing)}")
        values = table[row, [column[thing] for thing in asked]]
        return np.where(np.isnan(values), np.nan, (values >= threshold).astype(np.float64))

    return look


def _all(values: Floats) -> float:
    """1 if all are 1, else 0; NaN if one is unknown, even where another is 0 already: if of such images only those that fail were
    counted, what a judge cannot tell of would lower the score."""
    return float("nan") if np.isnan(values).any() else float((values == 1).all())


def _expanded(presence: Floats, counts: Floats, labels: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """One value a required thing, so that a prompt that asks for two weighs twice."""
    times = counts.astype(np.int64)
    return np.repeat(presence, times), np.repeat(labels, times)


def _mean(values: Floats, labels: NDArray[np.int64], level: float, seed: int) -> tuple[float, Interval]:
    keep = ~np.isnan(values)
    if not keep.any():
        return float("nan"), (float("nan"), float("nan"))
    return float(values[keep].mean()), bootstrap_mean(values[keep], labels[keep], level=level, seed=seed, share=True)


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
