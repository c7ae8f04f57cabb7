"""Exclusion: does "no X" put images without X above images with X? And presence: does "a photo of an X" do the reverse?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from clipmend.backbones.base import DualEncoder
from clipmend.data.phrases import photo_of
from clipmend.data.records import Caption
from clipmend.evaluation.areas import auroc, kind_means, kind_members, macro, split_kinds, weighted_auroc
from clipmend.evaluation.embed import ImageEmbeddings, OnMissing, distinct, image_vectors, prepared_texts
from clipmend.evaluation.intervals import percentile, resample_weights
from clipmend.evaluation.presence import Presence
from clipmend.evaluation.results import Measure, Result, items_digest, model_names
from clipmend.evaluation.tables import Rows, duplicates_note, problem, read_table, text_field

__all__ = [
    "ExclusionQuery",
    "ExclusionResult",
    "PresenceResult",
    "evaluate_exclusion",
    "presence_auroc",
    "read_exclusion",
]


@dataclass(frozen=True, slots=True)
class ExclusionQuery:
    """One query that asks for images without a kind of thing.

    Args:
        query: the text.
        absent: the kind that must not be there; several, none of which may be there, are separated by ``|``.
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
        return Caption(self.query, form="negative", denies=split_kinds(self.absent), wording=self.wording)


def read_exclusion(path: str | Path) -> Rows[ExclusionQuery]:
    """Read exclusion queries: CSV with ``query, absent`` and, where they are there, ``wording`` and ``subset``.

    ``absent`` is a kind, or several separated by ``|`` for a query like "neither cats nor dogs".

    Raises:
        ValueError: naming file and line: a column missing or a field blank.
    """
    path = Path(path)
    _, rows = read_table(path, ("query", "absent"))
    queries = [
        ExclusionQuery(
            text_field(path, line, row, "query"),
            _absent(path, line, row),
            row.get("wording", "").strip(),
            row.get("subset", "").strip(),
            line,
        )
        for line, row in rows
    ]
    return Rows(queries, str(path), duplicates_note(path, [(q.row, (q.query, q.absent)) for q in queries], "queries"))


def _absent(path: Path, line: int, row: dict[str, str]) -> str:
    kinds = split_kinds(text_field(path, line, row, "absent"))
    if not kinds:
        raise problem(path, line, "absent names no kind")
    return "|".join(kinds)


@dataclass
class ExclusionResult(Result):
    """AUROC per query, macro over kinds, by subset, by wording and by kind.

    Args:
        values: float ``[Q]`` AUROC of each query, NaN where all images or none have the kind.
        kinds: ``[Q]`` the absent kind, or several separated by ``|``.
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
        for label, column in (("", self.subsets), ("wording=", self.wordings)):
            for name in sorted(set(column)) if len(set(column)) > 1 else []:
                groups[f"{self.metric}/{label}{name or 'none'}"] = (np.flatnonzero(np.asarray(column) == name), False)
        return groups

    @cached_property
    def _members(self) -> tuple[list[str], NDArray[np.float64]]:
        return kind_members(self.kinds)

    def _grouped(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """Every measure from the values ``[Q]`` or ``[Q, s]`` of the queries."""
        found: dict[str, Any] = {}
        names, member = self._members
        for name, (group, _) in self._groups.items():
            found[name] = macro(values[group], [self.kinds[q] for q in group])
        for kind, row in zip(names, kind_means(values, member), strict=True):
            found[f"{self.metric}/kind={kind}"] = row
        return found

    def measures(self) -> dict[str, Measure]:
        return self._measures

    @cached_property
    def _measures(self) -> dict[str, Measure]:
        draws: dict[str, list[NDArray[np.float64]]] = {}
        if not np.isnan(self.values).all():
            for weights in resample_weights(self.clusters(self.over), self.samples, self.seed):
                for name, values in self.resampled(weights, self.over).items():
                    draws.setdefault(name, []).append(values)
        names, member = self._members
        counted = ~np.isnan(self.values)
        measures = {}
        for name, value in self._grouped(self.values).items():
            detail = name not in self._groups
            rows = (
                member[names.index(name.partition("/kind=")[2])] > 0
                if detail
                else np.isin(np.arange(len(counted)), self._groups[name][0])
            )
            low, high = self._interval(draws.get(name))
            if self.over == "kinds" and (member[:, rows].sum(1) > 0).sum() < 2:
                low = high = float("nan")  # one kind cannot show how kinds differ
            measures[name] = Measure(float(value), int((counted & rows).sum()), low, high, "auroc", detail)
        return measures

    def _interval(self, draws: list[NDArray[np.float64]] | None) -> tuple[float, float]:
        if draws is None:
            return float("nan"), float("nan")
        return percentile(np.concatenate(draws), self.level, self.clusters(self.over))

    def clusters(self, over: str = "images") -> int:
        if over == "images":
            return self.present.shape[1]
        if over == "kinds":
            return len(self._members[0])
        raise ValueError(f"an exclusion result is resampled over images or kinds, not {over!r}")

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        if over == "images":
            per_query = np.full((len(self.kinds), weights.shape[1]), np.nan)
            for q in np.flatnonzero(~np.isnan(self.values)):
                per_query[q] = weighted_auroc(self.scores[q], self._good(self.present[q]), weights, self.tie_tolerance)
            return self._grouped(per_query)
        self.clusters(over)
        names, member = self._members
        draws = {}
        with np.errstate(invalid="ignore", divide="ignore"):
            for name, (group, _) in self._groups.items():
                per_kind = kind_means(self.values[group], member[:, group])
                draws[name] = (np.nan_to_num(per_kind) @ weights) / ((~np.isnan(per_kind)).astype(np.float64) @ weights)
            for kind, value in zip(names, kind_means(self.values, member), strict=True):
                draws[f"{self.metric}/kind={kind}"] = np.full(weights.shape[1], value)
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

    Macro: the queries of a kind are averaged first, then the kinds, so that a kind asked for in many wordings counts once; a query
    about several kinds ("neither cats nor dogs": an image with either is a wrong one) counts for each of them. Queries of which no
    image, or every image, has the kind are skipped and counted.

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
    names, member = result._members
    there = presence.matrix(names)[:, kept]
    # A query about several kinds is wrong about an image that has any of them.
    result.present = np.stack([there[row > 0].any(0) for row in member.T])
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
