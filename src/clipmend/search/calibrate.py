"""A threshold for scores, chosen on a labelled sample, with what it gives on that sample and on parts it was not chosen on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Aim", "Calibration", "calibrate", "describe"]

FOLDS = 5
FEW = 20
"""Below so many labels of a class a sample says little, and a note says so."""


@dataclass(frozen=True)
class Aim:
    """What a threshold is chosen for.

    Args:
        precision: keep as many as possible while at least this share of the kept fits.
        recall: keep as few as possible while at least this share of what fits is kept.
        sure: the aim must be met by the lower end of a one-sided 95 % interval (Wilson's), not only on the sample itself.

    With neither precision nor recall, the threshold with the best F1.

    Raises:
        ValueError: both, a share outside (0, 1], or ``sure`` without either.
    """

    precision: float | None = None
    recall: float | None = None
    sure: bool = False

    def __post_init__(self) -> None:
        if self.precision is not None and self.recall is not None:
            raise ValueError("a threshold is chosen for a precision or for a recall, not for both: give one of them")
        for name, value in (("precision", self.precision), ("recall", self.recall)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} is a share above 0 and at most 1, not {value}")
        if self.sure and self.precision is None and self.recall is None:
            raise ValueError("sure is about a precision or a recall: give one of them")

    def __str__(self) -> str:
        if self.precision is None and self.recall is None:
            return "best F1"
        name, value = ("precision", self.precision) if self.precision is not None else ("recall", self.recall)
        return f"{name} of at least {value:g}" + (", with 95 % confidence" if self.sure else "")


@dataclass(frozen=True)
class Calibration:
    """A threshold and what it gives.

    Args:
        threshold: images with this score or more are kept.
        aim: what it was chosen for, in words.
        positives, negatives: labels of the sample.
        kept: images of the sample that reach the threshold.
        precision, recall: on the sample it was chosen on, with 95 % intervals (Wilson's).
        precision_interval, recall_interval: those.
        auroc: chance that an image that fits scores above one that does not.
        held_out_precision, held_out_recall: by cross-validation: each part judged with a threshold chosen on the others; NaN where
            the sample is too small to be parted, or (precision) nothing was kept.
        notes: what to know about it.
    """

    threshold: float
    aim: str
    positives: int
    negatives: int
    kept: int
    precision: float
    recall: float
    precision_interval: tuple[float, float]
    recall_interval: tuple[float, float]
    auroc: float
    held_out_precision: float = math.nan
    held_out_recall: float = math.nan
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; NaN becomes ``None``."""
        content = asdict(self)
        for name in ("held_out_precision", "held_out_recall", "precision", "auroc"):
            if math.isnan(content[name]):
                content[name] = None
        return {**content, "notes": list(self.notes)}


def calibrate(scores: ArrayLike, labels: ArrayLike, aim: Aim | None = None, *, seed: int = 0) -> Calibration:
    """Choose a threshold.

    Args:
        scores: ``[n]``, higher for what fits better.
        labels: bool ``[n]``, true for what fits.
        aim: what for; by default the best F1.
        seed: of the parts of the cross-validation.

    Raises:
        ValueError: labels of one class only, a score that is not finite, or an aim that no threshold reaches (the best that one
            reaches is given).
    """
    from clipmend.evaluation.areas import auroc
    from clipmend.evaluation.intervals import wilson

    aim = aim or Aim()
    values, right = np.asarray(scores, np.float64), np.asarray(labels, bool)
    if values.ndim != 1 or values.shape != right.shape:
        raise ValueError(f"scores {values.shape} and labels {right.shape} must be two vectors of one length")
    if not np.isfinite(values).all():
        raise ValueError(f"the score of labelled item {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite")
    positives, negatives = int(right.sum()), int((~right).sum())
    if not positives or not negatives:
        only = "fits" if positives else "does not fit"
        raise ValueError(f"every labelled image {only}: a threshold needs some that fit and some that do not")
    threshold, problem = _choose(values, right, aim)
    if threshold is None:
        raise ValueError(problem)
    kept = values >= threshold
    hits = int((kept & right).sum())
    notes = []
    if min(positives, negatives) < FEW:
        notes.append(f"only {positives:,} labelled images fit and {negatives:,} do not: the threshold is uncertain, label more")
    held = _held_out(values, right, aim, seed)
    if held is None:
        notes.append("too few labels for a cross-validation: the figures are those of the sample that the threshold was chosen on")
    return Calibration(
        threshold=threshold,
        aim=str(aim),
        positives=positives,
        negatives=negatives,
        kept=int(kept.sum()),
        precision=hits / int(kept.sum()),
        recall=hits / positives,
        precision_interval=wilson(hits, int(kept.sum())),
        recall_interval=wilson(hits, positives),
        auroc=auroc(values, right),
        held_out_precision=math.nan if held is None else held[0],
        held_out_recall=math.nan if held is None else held[1],
        notes=tuple(notes),
    )


def _cuts(values: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """``(threshold, kept, hits)`` of every way to part the sample by score, fewest kept first; equal scores are not parted.

    A threshold lies halfway to the next score below, and the last one at the lowest score itself.
    """
    order = np.argsort(-values, kind="stable")
    down = values[order]
    last = np.flatnonzero(np.append(down[1:] < down[:-1], True))
    below = np.append(down[1:], down[-1])[last]
    middle = (down[last] + below) / 2
    # Between two neighbouring numbers there is no middle.
    return np.where(middle > below, middle, down[last]), last + 1, np.cumsum(right[order])[last]


def _choose(values: NDArray[np.float64], right: NDArray[np.bool_], aim: Aim) -> tuple[float | None, str]:
    """The threshold, or why there is none."""
    thresholds, kept, hits = _cuts(values, right)
    total = int(right.sum())
    precision, recall = hits / kept, hits / total
    if aim.precision is None and aim.recall is None:
        f1 = 2 * hits / (kept + total)
        return float(thresholds[int(np.argmax(f1))]), ""
    name = "precision" if aim.precision is not None else "recall"
    target = aim.precision if aim.precision is not None else aim.recall
    assert target is not None
    reached = precision if name == "precision" else recall
    if aim.sure:
        reached = _lower(hits, kept if name == "precision" else np.full_like(kept, total))
    fine = np.flatnonzero(reached >= target)
    if not len(fine):
        best = int(np.argmax(reached))
        sure = " with 95 % confidence" if aim.sure else ""
        return None, (
            f"no threshold reaches a {name} of {target:g}{sure} on the labelled sample; the best is {reached[best]:.3f}, where "
            f"{kept[best]:,} of {len(values):,} are kept: ask for less, label more, or use another query or patch"
        )
    return float(thresholds[fine[-1] if name == "precision" else fine[0]]), ""


def _lower(hits: NDArray[Any], total: NDArray[Any]) -> NDArray[np.float64]:
    """Lower end of Wilson's one-sided 95 % interval of shares."""
    z = NormalDist().inv_cdf(0.95)
    share = hits / total
    half = z * np.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return (share + z * z / (2 * total) - half) / (1 + z * z / total)


def _held_out(values: NDArray[np.float64], right: NDArray[np.bool_], aim: Aim, seed: int) -> tuple[float, float] | None:
    """Precision and recall with each part judged by a threshold chosen on the others; ``None`` for a sample too small."""
    fewest = int(min(right.sum(), (~right).sum()))
    folds = min(FOLDS, fewest)
    if folds < 2:
        return None
    rng = np.random.default_rng(seed)
    part = np.empty(len(values), np.int64)
    for own in (np.flatnonzero(right), np.flatnonzero(~right)):  # each part gets its share of both classes
        part[rng.permutation(own)] = np.arange(len(own)) % folds
    kept = hits = 0
    for fold in range(folds):
        inside = part == fold
        threshold, _ = _choose(values[~inside], right[~inside], aim)
        chosen = inside & (values >= (math.inf if threshold is None else threshold))  # out of reach: nothing is kept
        kept, hits = kept + int(chosen.sum()), hits + int((chosen & right).sum())
    return (hits / kept if kept else math.nan), hits / int(right.sum())


def held_out_words(calibration: Calibration) -> str:
    """The cross-validated figures in words, ``""`` where there are none."""
    if math.isnan(calibration.held_out_recall):
        return ""
    precision = "-" if math.isnan(calibration.held_out_precision) else f"{calibration.held_out_precision:.1%}"
    return f"on parts it was not chosen on: precision {precision}, recall {calibration.held_out_recall:.1%}"


def describe(calibrations: Sequence[Calibration]) -> list[str]:
    """A line or two about each threshold."""
    lines = []
    for c in calibrations:
        low, high = c.precision_interval
        below, above = c.recall_interval
        line = (
            f"threshold {c.threshold:.4f} ({c.aim}): on {c.positives + c.negatives:,} labelled images precision {c.precision:.1%} "
            f"({low:.1%}-{high:.1%}), recall {c.recall:.1%} ({below:.1%}-{above:.1%}), AUROC {c.auroc:.3f}"
        )
        held = held_out_words(c)
        lines.append(line + (f"; {held}" if held else ""))
        lines += c.notes
    return lines
