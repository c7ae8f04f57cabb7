"""Filter a data set in words: score every image, keep those above a threshold, and keep the scores.

A score says which of two images fits a query better, and not whether one does: where "fits" begins differs from query to query and
from model to model. So a threshold is chosen on a labelled sample (:mod:`clipmend.search.calibrate`); without one there are ranks,
and on request the best share by rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clipmend.data.images import DEFAULT_MAX_PIXELS, find_image
from clipmend.data.tables import open_table, problem
from clipmend.search.calibrate import Aim, Calibration, calibrate
from clipmend.search.collection import Collection
from clipmend.search.embed import embed_files
from clipmend.search.filter_files import write_filter

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder, PreparedTexts

__all__ = ["UNCALIBRATED", "FilterResult", "filter_images", "read_labels"]

UNCALIBRATED = (
    "no labelled sample: scores order the images, and no score says by itself that an image fits; label some images and choose a "
    "threshold on them (--labelled)"
)
_TRUE, _FALSE = frozenset({"1", "true", "yes", "y", "1.0"}), frozenset({"0", "false", "no", "n", "0.0"})


@dataclass
class FilterResult:
    """Scores of every image, and what is kept.

    Args:
        queries: ``Q`` queries.
        names: ``N`` images, in the order of the data.
        scores: float32 ``[N, Q]``.
        ranks: int ``[N, Q]``, 1 for the best; equal scores in the order of the data.
        kept: bool ``[N]``; ``None`` where nothing says what to keep.
        kept_by: bool ``[N, Q]``, by query; ``None`` likewise.
        thresholds: one a query, where there are any.
        calibrations: how they were chosen, where on a labelled sample.
        skipped: name and reason of every image that could not be read.
        notes: what to know about it.
        about: model, patch and options, for the file.
    """

    queries: list[str]
    names: list[str]
    scores: NDArray[np.float32]
    ranks: NDArray[np.int64]
    kept: NDArray[np.bool_] | None = None
    kept_by: NDArray[np.bool_] | None = None
    thresholds: list[float] = field(default_factory=list)
    calibrations: list[Calibration] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, list[Any]]:
        """The table, best first (of several queries, by the worst of an image's ranks).

        ``image``, then ``score``, ``rank`` and, where known, ``kept``; numbered (``score_1``, ...) for several queries, with
        ``kept`` for all of them together at the end.
        """
        table: dict[str, list[Any]] = {"image": list(self.names)}
        several = len(self.queries) > 1
        for q in range(len(self.queries)):
            suffix = f"_{q + 1}" if several else ""
            table[f"score{suffix}"] = self.scores[:, q].tolist()
            table[f"rank{suffix}"] = self.ranks[:, q].tolist()
            if several and self.kept_by is not None:
                table[f"kept{suffix}"] = self.kept_by[:, q].tolist()
        if self.kept is not None:
            table["kept"] = self.kept.tolist()
        order = np.argsort(self.ranks.max(1), kind="stable").tolist() if len(self.names) else []
        return {name: [values[row] for row in order] for name, values in table.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, ready for JSON."""
        return {
            **self.about,
            "queries": self.queries,
            "thresholds": self.thresholds or None,
            "calibration": [c.to_dict() for c in self.calibrations] or None,
            "images": len(self.names),
            "kept": None if self.kept is None else int(self.kept.sum()),
            "skipped": len(self.skipped),
            "notes": self.notes,
        }

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> list[Path]:
        """Write the table, ``NAME.filter.json`` with all else and, where images were skipped, ``NAME.skipped.json``.

        Each is written beside its place and renamed into it, the table last.

        Args:
            path: the table, ``.csv`` or ``.parquet``.
            overwrite: replace files that are there.

        Returns:
            The files written, the table first.

        Raises:
            FileExistsError: one is there.
        """
        return write_filter(Path(path), self.columns(), self.to_dict(), self.skipped, overwrite=overwrite)


def filter_images(
    encoder: DualEncoder,
    images: Collection,
    queries: Sequence[str],
    *,
    labels: Mapping[str, Mapping[str, bool]] | None = None,
    label_root: str | Path | None = None,
    aim: Aim | None = None,
    quantile: float | None = None,
    match_any: bool = False,
    score_correction: bool = False,
    batch_size: int = 32,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    seed: int = 0,
    progress: bool = False,
) -> FilterResult:
    """Score every image for every query, and decide what is kept.

    Args:
        encoder: any encoder, mended or not.
        images: from :func:`~clipmend.search.collection.open_collection`.
        queries: in words, each for images that are to be kept (``"no watermark"``).
        labels: for each query, image name to whether it fits (:func:`read_labels`). Images that are not in ``images`` are looked
            for under ``label_root`` and embedded as well.
        label_root: folder that their names start from.
        aim: what the thresholds are chosen for.
        quantile: without labels: the share of images kept, by rank, for each query.
        match_any: with several queries: keep what is kept for any of them, instead of for all.
        score_correction: score with the patch's score correction instead of the cosine.
        batch_size: images a forward pass.
        max_pixels: see :func:`clipmend.data.images.open_image`.
        seed: of the cross-validation.
        progress: show a bar on a terminal.

    Raises:
        ValueError: no query, an empty or a repeated one, a query without labels, no image that can be read, labels or an aim that
            give no threshold, a score correction that the encoder does not have.
    """
    queries = list(queries)
    if not queries or not all(query.strip() for query in queries):
        raise ValueError("a query is empty; say what is to be kept" if queries else "no query; say what is to be kept")
    if len(set(queries)) < len(queries):
        raise ValueError("a query is given twice")
    if quantile is not None and not 0 < quantile <= 1:
        raise ValueError(f"quantile is the share that is kept, above 0 and at most 1, not {quantile}")
    if labels is not None and quantile is not None:
        raise ValueError("a labelled sample says where the threshold lies, and a quantile does: give one of them")
    if aim is not None and labels is None:
        raise ValueError("a precision or a recall can only be aimed at with a labelled sample")
    if score_correction and not encoder.corrects_scores:
        raise ValueError(f"{encoder.name} has no score correction: leave score_correction out")
    if labels is not None:
        without = [query for query in queries if not labels.get(query)]
        if without:
            raise ValueError(f"no image is labelled for {without[0]!r}")
    prepared = encoder.prepare_texts(queries)
    names: list[str] = []
    parts: list[np.ndarray] = []
    for own, vectors in images.vectors(encoder, batch_size=batch_size, max_pixels=max_pixels, progress=progress):
        names += own
        parts.append(_scores(encoder, vectors, prepared, score_correction))
    if not names:
        first = f"; the first: {images.skipped[0][0]} {images.skipped[0][1]}" if images.skipped else ""
        raise ValueError(f"{images.name}: none of {len(images.skipped):,} images can be read{first}")
    scores = np.concatenate(parts)
    if not np.isfinite(scores).all():
        row, q = np.argwhere(~np.isfinite(scores))[0]
        raise ValueError(f"the score of {names[row]} for {queries[q]!r} is not finite")
    result = FilterResult(queries, names, scores, _ranks(scores), skipped=list(images.skipped))
    if images.repeated:
        result.notes.append(f"{images.repeated:,} rows name an image again: it is scored once")
    if labels is not None:
        sample = _Sample(encoder, images, names, scores, prepared, score_correction, label_root, batch_size, max_pixels)
        for q, query in enumerate(queries):
            result.calibrations.append(sample.calibrated(q, query, labels[query], aim, seed))
        result.thresholds = [c.threshold for c in result.calibrations]
        result.kept_by = np.asarray(scores.astype(np.float64) >= np.array(result.thresholds), np.bool_)
        result.notes += sample.notes
    elif quantile is not None:
        count = max(1, round(quantile * len(names)))
        result.kept_by = result.ranks <= count
        result.notes.append(f"kept: the best {100 * quantile:g} % by rank for each query, whatever they show; {UNCALIBRATED}")
    else:
        result.notes.append(UNCALIBRATED)
    if result.kept_by is not None:
        result.kept = np.asarray(result.kept_by.any(1) if match_any else result.kept_by.all(1), np.bool_)
    return result


def read_labels(path: str | os.PathLike[str], queries: Sequence[str]) -> dict[str, dict[str, bool]]:
    """A labelled sample: CSV with ``image`` and ``label`` (1, true, yes: it fits the query; 0, false, no: it does not).

    Args:
        path: the table; with several queries it has a column ``query`` too, as the queries are written.
        queries: those asked.

    Returns:
        By query, image name to label.

    Raises:
        ValueError: naming file and line: a column missing, a label that is none, a query that is not asked, an image labelled both
            ways.
    """
    path = Path(path)
    wanted = ("image", "label") if len(queries) == 1 else ("image", "label", "query")
    header, rows = open_table(path, wanted)
    found: dict[str, dict[str, bool]] = {query: {} for query in queries}
    asked = {query.strip(): query for query in queries}
    for line, row in rows:
        image, text = row["image"].strip(), row["label"].strip().lower()
        named = row["query"].strip() if "query" in header else queries[0].strip()
        if named not in asked:
            raise problem(path, line, f"the query {named!r} is not asked; there are {', '.join(map(repr, queries))}")
        query = asked[named]
        if not image:
            raise problem(path, line, "image is empty")
        if text not in _TRUE | _FALSE:
            raise problem(path, line, f"label is {row['label']!r}, neither 1, true, yes nor 0, false, no")
        label = text in _TRUE
        if found[query].setdefault(image, label) != label:
            raise problem(path, line, f"{image} is labelled both ways for {query!r}")
    return found


def _scores(encoder: DualEncoder, vectors: np.ndarray, prepared: PreparedTexts, correction: bool) -> np.ndarray:
    """float32 ``[n, Q]``."""
    import torch

    images = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    with torch.inference_mode():
        if correction:
            scores = encoder.score(images, prepared)
        else:
            scores = images @ prepared.embedding.float().cpu().T
    return scores.float().cpu().numpy()


def _ranks(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    ranks = np.empty(scores.shape, np.int64)
    for q in range(scores.shape[1]):
        ranks[np.argsort(-scores[:, q], kind="stable"), q] = np.arange(1, len(scores) + 1)
    return ranks


@dataclass
class _Sample:
    """Scores of labelled images: those of the data are known already, others are embedded, once for all queries."""

    encoder: DualEncoder
    images: Collection
    names: list[str]
    scores: NDArray[np.float32]
    prepared: PreparedTexts
    correction: bool
    root: str | Path | None
    batch_size: int
    max_pixels: int | None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = {name: row for row, name in enumerate(self.names)}
        self.others: dict[str, np.ndarray | None] = {}
        self.files = dict(self.images.files)
        self.lost = {name for name, _ in self.images.skipped}

    def calibrated(self, q: int, query: str, labels: Mapping[str, bool], aim: Aim | None, seed: int) -> Calibration:
        labels = self._distinct(query, labels)
        self._embed([name for name in labels if name not in self.place and name not in self.others])
        values, right = [], []
        for name, label in labels.items():
            row = self.scores[self.place[name]] if name in self.place else self.others[name]
            if row is not None:
                values.append(row[q])
                right.append(label)
        if not values:
            raise ValueError(f"none of the images labelled for {query!r} can be read")
        try:
            return calibrate(np.array(values, np.float64), right, aim, seed=seed)
        except ValueError as error:
            raise ValueError(f"{query!r}: {error}") from None

    def _find(self, name: str) -> Path | None:
        """The file of a labelled image, where it is one."""
        if name in self.files:
            return self.files[name]
        if name not in self.place and name not in self.lost:
            own = find_image(name, Path(self.root) if self.root is not None else Path())
            if own is not None:
                return own
        return self.images.find(name)

    def _distinct(self, query: str, labels: Mapping[str, bool]) -> dict[str, bool]:
        """One label for each file, under the name that the data have for it, where they have one."""
        chosen: dict[str, str] = {}
        for name in sorted(labels, key=lambda name: name not in self.place):
            file = self._find(name)
            first = chosen.setdefault(name if file is None else os.path.realpath(file), name)
            if labels[first] != labels[name]:
                raise ValueError(f"{first} and {name} are one image, labelled both ways for {query!r}")
        again = len(labels) - len(chosen)
        if again:
            self.notes.append(f"{again:,} labels name an image again: it counts once")
        kept = set(chosen.values())
        return {name: label for name, label in labels.items() if name in kept}

    def _embed(self, names: list[str]) -> None:
        files = {name: self._find(name) for name in names}
        missing = [name for name, file in files.items() if file is None and name not in self.lost]
        if missing:
            where = Path(self.root) if self.root is not None else Path()
            raise FileNotFoundError(
                f"{len(missing):,} labelled images are neither in the data nor under {where}, as {missing[0]}; "
                "name them as the data does, or give their folder"
            )
        there = [name for name in names if name not in self.lost]
        self.others.update(dict.fromkeys(names))
        done = embed_files(
            self.encoder, [str(files[name]) for name in there], batch_size=self.batch_size, max_pixels=self.max_pixels
        )
        if done.kept:
            rows = _scores(self.encoder, done.vectors, self.prepared, self.correction)
            self.others.update({there[k]: row for k, row in zip(done.kept, rows, strict=True)})
        lost = len(names) - len(done.kept)
        if lost:
            self.notes.append(f"{lost:,} labelled images cannot be read and are left out of the sample")
