"""Exclusion: does "no X" put images without X above images with X? And presence: does "a photo of an X" do the reverse?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from clipmend.backbones.base import DualEncoder
from clipmend.data.records import Caption
from clipmend.evaluation.embed import ImageEmbeddings, OnMissing, distinct, image_vectors, prepared_texts
from clipmend.evaluation.intervals import percentile, resample_weights
from clipmend.evaluation.presence import Presence
from clipmend.evaluation.results import Measure, Result, items_digest, model_names
from clipmend.evaluation.tables import Rows, duplicates_note, read_table, text_field
from clipmend.evaluation.wording import photo_of

__all__ = [
    "ExclusionQuery",
    "ExclusionResult",
    "PresenceResult",
    "auroc",
    "evaluate_exclusion",
    "macro",
    "presence_auroc",
    "read_exclusion",
]


@dataclass(frozen=True, slots=True)
class ExclusionQuery:
    """One query that asks for images without a kind of thing.

    Args:
        query: the text.
        absent: the kind that must not be there.
        wording: identifier of the negated wording, ``""`` where the table has none.
        subset: part of the data it belongs to, ``""`` for none.
        row: line of the table, 0 for a query that comes from no file.
    """

    query: str
    absent: str
    wording: str = ""
    subset: str = ""
    row: int = 0

    @property
    def caption(self) -> Caption:
        """The query's logical form."""
        return Caption(self.query, form="negative", denies=(self.absent,), wording=self.wording)


def read_exclusion(path: str | Path) -> Rows[ExclusionQuery]:
    """Read exclusion queries: CSV with ``query, absent`` and, where they are there, ``wording`` and ``subset``.

    Raises:
        ValueError: naming file and line: a column missing or a field blank.
    """
    path = Path(path)
    _, rows = read_table(path, ("query", "absent"))
    queries = [
        ExclusionQuery(
            text_field(path, line, row, "query"),
            text_field(path, line, row, "absent"),
            row.get("wording", "").strip(),
            row.get("subset", "").strip(),
            line,
        )
        for line, row in rows
    ]
    return Rows(queries, str(path), duplicates_note(path, [(q.row, (q.query, q.absent)) for q in queries], "queries"))


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


def macro(values: ArrayLike, kinds: Sequence[str]) -> Any:
    """Mean over kinds of the mean over a kind's queries; NaN queries are left out, and kinds that have no other.

    Args:
        values: ``[Q]``, or ``[Q, s]`` for many draws at once.
        kinds: ``[Q]``.

    Returns:
        A number, or ``[s]``; NaN where no query counts.
    """
    table = np.asarray(values, np.float64)
    names, kind_of = np.unique(np.asarray(kinds, dtype=object).astype(str), return_inverse=True)
    member = (kind_of[None, :] == np.arange(len(names))[:, None]).astype(np.float64)  # [K, Q]
    with np.errstate(invalid="ignore", divide="ignore"):
        per_kind = (member @ np.nan_to_num(table)) / (member @ (~np.isnan(table)).astype(np.float64))  # [K] or [K, s]
        counted = ~np.isnan(per_kind)
        return np.nan_to_num(per_kind).sum(0) / np.where(counted.sum(0) == 0, np.nan, counted.sum(0))


@dataclass
class ExclusionResult(Result):
    """AUROC per query, macro over kinds, by subset, by wording and by kind.

    Args:
        values: float ``[Q]`` AUROC of each query, NaN where all images or none have the kind.
        kinds: ``[Q]`` the absent kind.
        wordings: ``[Q]``.
        subsets: ``[Q]``.
        scores: float32 ``[Q, N]`` score of each image; what the bootstrap over images rests on.
        present: bool ``[Q, N]`` True where the image has the kind.
        samples: bootstrap draws of the intervals.
        seed: fixes the draws.
        over: what the intervals draw: ``"images"`` (this sample of images) or ``"kinds"`` (this choice of kinds).
        tie_tolerance: scores this close are tied.
    """

    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    kinds: list[str] = field(default_factory=list)
    wordings: list[str] = field(default_factory=list)
    subsets: list[str] = field(default_factory=list)
    scores: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    present: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), bool))
    samples: int = 500
    seed: int = 0
    over: str = "images"
    tie_tolerance: float = 1e-6

    task: ClassVar[str] = "exclusion"
    title: ClassVar[str] = "Exclusion, AUROC"
    metric: ClassVar[str] = "auroc"

    @property
    def auroc(self) -> float:
        """Macro over kinds, all queries."""
        return self.metrics[self.metric]

    @property
    def skipped(self) -> int:
        """Queries with one class only: no image has the kind, or all have."""
        return int(np.isnan(self.values).sum())

    @cached_property
    def _groups(self) -> dict[str, tuple[NDArray[np.int64], bool]]:
        """Queries of each measure, and whether it is a detail."""
        everything = np.arange(len(self.kinds))
        groups = {self.metric: (everything, False)}
        for label, column, detail in (("", self.subsets, False), ("wording=", self.wordings, False), ("kind=", self.kinds, True)):
            names = sorted(set(column))
            if len(names) > 1 or (detail and names):
                for name in names:
                    groups[f"{self.metric}/{label}{name or 'none'}"] = (np.flatnonzero(np.asarray(column) == name), detail)
        return groups

    def measures(self) -> dict[str, Measure]:
        return self._measures

    @cached_property
    def _measures(self) -> dict[str, Measure]:
        draws: dict[str, list[NDArray[np.float64]]] = {name: [] for name in self._groups}
        if not np.isnan(self.values).all():
            for weights in resample_weights(self.clusters(self.over), self.samples, self.seed):
                for name, values in self.resampled(weights, self.over).items():
                    draws[name].append(values)
        measures = {}
        for name, (group, detail) in self._groups.items():
            low, high = percentile(np.concatenate(draws[name]), self.level) if draws[name] else (float("nan"), float("nan"))
            if self.over == "kinds" and len({self.kinds[q] for q in group}) < 2:
                low = high = float("nan")  # one kind cannot show how kinds differ
            value = float(macro(self.values[group], [self.kinds[q] for q in group]))
            measures[name] = Measure(value, int((~np.isnan(self.values[group])).sum()), low, high, "auroc", detail)
        return measures

    def clusters(self, over: str = "images") -> int:
        if over == "images":
            return self.present.shape[1]
        if over == "kinds":
            return len(set(self.kinds))
        raise ValueError(f"an exclusion result is resampled over images or kinds, not {over!r}")

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        if over == "images":
            per_query = np.full((len(self.kinds), weights.shape[1]), np.nan)
            for q in np.flatnonzero(~np.isnan(self.values)):
                per_query[q] = weighted_auroc(self.scores[q], self._good(self.present[q]), weights, self.tie_tolerance)
            return {name: macro(per_query[group], [self.kinds[q] for q in group]) for name, (group, _) in self._groups.items()}
        self.clusters(over)
        names, kind_of = np.unique(self.kinds, return_inverse=True)
        draws = {}
        for name, (group, _) in self._groups.items():
            per_kind = np.array([_nan_mean(self.values[group[kind_of[group] == k]]) for k in range(len(names))])
            counted = ~np.isnan(per_kind)
            with np.errstate(invalid="ignore", divide="ignore"):
                draws[name] = (np.nan_to_num(per_kind) @ weights) / (counted.astype(np.float64) @ weights)
        return draws

    def _good(self, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The images that should score high."""
        return ~present

    def details(self) -> dict[str, Any]:
        skipped = sorted({kind for kind, value in zip(self.kinds, self.values, strict=True) if np.isnan(value)})
        return {
            "images": self.present.shape[1],
            "skipped_queries": self.skipped,
            "skipped_kinds": skipped,
            "resampled_over": self.over,
        }


@dataclass
class PresenceResult(ExclusionResult):
    """AUROC of images *with* the kind above those without, one query a kind."""

    task: ClassVar[str] = "presence"
    title: ClassVar[str] = "Presence, AUROC"
    metric: ClassVar[str] = "presence_auroc"

    def _good(self, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return present


def _nan_mean(values: NDArray[np.float64]) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def evaluate_exclusion(
    encoder: DualEncoder,
    queries: Sequence[ExclusionQuery],
    presence: Presence,
    *,
    image_root: str | Path | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    score_correction: bool = False,
    on_missing: OnMissing = "error",
    tie_tolerance: float = 1e-6,
    over: str = "images",
    samples: int = 500,
    seed: int = 0,
    batch_size: int = 64,
    level: float = 0.95,
    dataset: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> ExclusionResult:
    """AUROC of images without a kind above images with it, for queries that exclude it.

    Macro: the queries of a kind are averaged first, then the kinds, so that a kind asked for in many wordings counts once. Queries
    of which no image, or every image, has the kind are skipped and counted.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`.
        queries: from :func:`read_exclusion` or made by hand.
        presence: which kinds are in which image, exhaustively.
        image_root: folder that image names start from.
        image_embeddings: ready image vectors instead: ``[N, D]`` in the order of ``presence.images``, or a mapping by name.
        score_correction: False (default) ranks by the cosine of the (corrected) embeddings, as an index does; True by
            ``encoder.score`` of every pair.
        on_missing: ``"error"``, or ``"skip"`` to leave out missing images, counted.
        tie_tolerance: scores this close count as ties.
        over: what the intervals draw: ``"images"`` says how far this sample of images matters, ``"kinds"`` how far this choice of
            kinds does (the wider one, and the one to quote when speaking of kinds not measured).
        samples: bootstrap draws.
        seed: fixes the draws.
        batch_size: texts a forward pass.
        level: coverage of the intervals.
        dataset: name of the data (default: the table's).
        model: name of the model in tables (default: the encoder's).
        pretrained: weights or patch.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: no queries or images, an embedding or a score that is not finite.
        FileNotFoundError: images missing, unless they are skipped.
    """
    result = ExclusionResult(
        dataset=dataset or (Path(source).stem if (source := getattr(queries, "source", "")) else "exclusion"),
        model="",
        notes=list(getattr(queries, "notes", [])) + presence.notes,
        level=level,
        kinds=[q.absent for q in queries],
        wordings=[q.wording for q in queries],
        subsets=[q.subset for q in queries],
        samples=samples,
        seed=seed,
        over=over,
        tie_tolerance=tie_tolerance,
    )
    images = {"image_root": image_root, "image_embeddings": image_embeddings, "on_missing": on_missing, "progress": progress}
    return _fill(result, encoder, [q.query for q in queries], presence, images, score_correction, batch_size, model, pretrained)


def presence_auroc(
    encoder: DualEncoder,
    presence: Presence,
    kinds: Iterable[str] | None = None,
    *,
    template: str = "{photo}",
    image_root: str | Path | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    score_correction: bool = False,
    on_missing: OnMissing = "error",
    tie_tolerance: float = 1e-6,
    over: str = "images",
    samples: int = 500,
    seed: int = 0,
    batch_size: int = 64,
    level: float = 0.95,
    dataset: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> PresenceResult:
    """AUROC of images with a kind above those without it, for "a photo of a X"; per kind, and the mean over kinds.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`.
        presence: which kinds are in which image, exhaustively.
        kinds: the kinds to ask for (default: every kind that some image has).
        template: text of the query: ``{photo}`` stands for "a photo of a X", ``{kind}`` for the bare kind.

    The other arguments are those of :func:`evaluate_exclusion`.
    """
    names = sorted(presence.vocabulary if kinds is None else set(kinds))
    texts = [template.format(photo=photo_of([kind]), kind=kind) for kind in names]
    result = PresenceResult(
        dataset=dataset or (Path(presence.source).stem if presence.source else "presence"),
        model="",
        notes=list(presence.notes),
        level=level,
        kinds=names,
        wordings=[""] * len(names),
        subsets=[""] * len(names),
        samples=samples,
        seed=seed,
        over=over,
        tie_tolerance=tie_tolerance,
    )
    images = {"image_root": image_root, "image_embeddings": image_embeddings, "on_missing": on_missing, "progress": progress}
    filled = _fill(result, encoder, texts, presence, images, score_correction, batch_size, model, pretrained)
    assert isinstance(filled, PresenceResult)
    return filled


def _fill(
    result: ExclusionResult,
    encoder: DualEncoder,
    queries: Sequence[str],
    presence: Presence,
    image_options: dict[str, Any],
    score_correction: bool,
    batch_size: int,
    model: str | None,
    pretrained: str | None,
) -> ExclusionResult:
    """Score the queries and fill in what both tasks share."""
    if not queries:
        raise ValueError(f"{result.dataset}: no queries to ask")
    result.clusters(result.over)  # refuses an unknown `over` before any work
    images, kept = image_vectors(encoder, presence.images, **image_options)
    if len(kept) < len(presence.images):
        result.notes.append(f"{len(presence.images) - len(kept)} of {len(presence.images)} images missing: skipped")
    texts, text_of = distinct(queries)
    prepared = prepared_texts(encoder, texts, batch_size=batch_size, progress=bool(image_options["progress"]))
    scores = np.empty((len(texts), len(images)), np.float32)
    step = max(1, 2_000_000 // max(len(images), 1))
    with torch.inference_mode():
        for start in range(0, len(texts), step):
            part = prepared[slice(start, start + step)]
            block = encoder.score(images, part) if score_correction else images @ part.embedding.to(images).T
            scores[start : start + step] = block.float().cpu().numpy().T
    if not np.isfinite(scores).all():
        text, image = np.argwhere(~np.isfinite(scores))[0]
        raise ValueError(f"the score of image {presence.images[kept[image]]!r} for {texts[text]!r} is not finite")
    result.scores = scores[text_of]
    result.present = presence.matrix(result.kinds)[:, kept]
    result.values = np.array(
        [auroc(s, result._good(p), result.tie_tolerance) for s, p in zip(result.scores, result.present, strict=True)], np.float64
    )
    if result.skipped:
        which = result.details()["skipped_kinds"]
        shown = ", ".join(which[:5]) + (", ..." if len(which) > 5 else "")
        result.notes.append(f"{result.skipped} of {len(queries)} queries skipped: no image, or every image, has {shown}")
    result.model, result.pretrained = model_names(encoder, model, pretrained)
    result.items = items_digest([list(queries), result.kinds, [presence.images[i] for i in kept], result.present.tobytes()])
    return result
