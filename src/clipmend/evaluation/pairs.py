"""Minimal pairs: does an image prefer the text that is true of it over the same text with one thing changed?

A colour or a size (attribute), left and right (relation), who has what (order), a number (count), a denial (negation). All but the
last have nothing to do with negation: they show what mending costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from clipmend.backbones.base import DualEncoder
from clipmend.evaluation.embed import ImageEmbeddings, OnMissing, distinct, image_vectors, pair_scores, prepared_texts
from clipmend.evaluation.intervals import cluster_sums, wilson
from clipmend.evaluation.results import Measure, Result, items_digest, model_names
from clipmend.evaluation.tables import Rows, duplicates_note, problem, read_table, text_field

__all__ = ["PairItem", "PairsResult", "evaluate_pairs", "read_image_pairs"]


@dataclass(frozen=True, slots=True)
class PairItem:
    """A text that is true of an image, and one that is not.

    Args:
        image: name of the image.
        positive: the true text.
        contrast: the other.
        kind: what differs: ``"attribute"``, ``"relation"``, ``"order"``, ...
        row: line of the table, 0 for a pair that comes from no file.
    """

    image: str
    positive: str
    contrast: str
    kind: str = ""
    row: int = 0


def read_image_pairs(path: str | Path, kinds: Sequence[str] | None = None) -> Rows[PairItem]:
    """Read pairs: CSV with ``kind, positive, contrast, image`` (``clipmend scenes`` writes ``pairs.csv``).

    Args:
        path: the table.
        kinds: only these kinds (default: all).

    Raises:
        ValueError: naming file and line: a column missing, a field blank, both texts the same; no pair of a kind asked for.
    """
    path = Path(path)
    items = []
    for line, row in read_table(path, ("kind", "positive", "contrast", "image"))[1]:
        kind = row["kind"].strip()
        if kinds is not None and kind not in kinds:
            continue
        positive, contrast = text_field(path, line, row, "positive"), text_field(path, line, row, "contrast")
        if positive == contrast:
            raise problem(path, line, f"positive and contrast are the same text: {positive[:60]!r}")
        items.append(PairItem(text_field(path, line, row, "image"), positive, contrast, kind, line))
    absent = sorted(set(kinds or ()) - {item.kind for item in items})
    if absent or not items:
        raise ValueError(f"{path}: no pair of kind {', '.join(absent)}")
    keys = [(item.row, (item.image, item.positive, item.contrast)) for item in items]
    return Rows(items, str(path), duplicates_note(path, keys, "pairs"))


@dataclass
class PairsResult(Result):
    """Share of pairs in which the true text scores higher, in all and by kind; a tie is wrong.

    Args:
        correct: bool ``[P]``.
        kinds: kind of each pair.
        image_of: int ``[P]`` position of each pair's image among the distinct ones.
        ties: how many were tied.
    """

    correct: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    kinds: list[str] = field(default_factory=list)
    image_of: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    ties: int = 0

    task: ClassVar[str] = "pairs"
    title: ClassVar[str] = "Minimal pairs, accuracy % (chance 50)"

    def _groups(self) -> dict[str, NDArray[np.bool_]]:
        kinds = np.asarray(self.kinds)
        return {"acc": np.ones(len(kinds), bool), **{f"acc_{kind or 'none'}": kinds == kind for kind in dict.fromkeys(self.kinds)}}

    def measures(self) -> dict[str, Measure]:
        measures = {}
        for name, group in self._groups().items():
            right, total = int(self.correct[group].sum()), int(group.sum())
            measures[name] = Measure(right / total, total, *wilson(right, total, self.level))
        return measures

    def clusters(self, over: str = "images") -> int:
        if over != "images":
            raise ValueError(f"a result on pairs is resampled over images, not {over!r}")
        return int(self.image_of.max()) + 1

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        count = self.clusters(over)
        draws = {}
        with np.errstate(invalid="ignore", divide="ignore"):
            for name, group in self._groups().items():
                right = cluster_sums(self.correct & group, self.image_of, count) @ weights
                draws[name] = right / (cluster_sums(group, self.image_of, count) @ weights)
        return draws

    def details(self) -> dict[str, Any]:
        return {"ties": self.ties}


def evaluate_pairs(
    encoder: DualEncoder,
    items: Sequence[PairItem],
    *,
    image_root: str | Path | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    score_correction: bool = False,
    on_missing: OnMissing = "error",
    tie_tolerance: float = 1e-6,
    batch_size: int = 64,
    level: float = 0.95,
    dataset: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> PairsResult:
    """Score each image against both texts of its pairs.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`.
        items: from :func:`read_image_pairs` or made by hand.
        image_root: folder that image names start from.
        image_embeddings: ready image vectors: a mapping by name, or ``[U, D]`` in the order in which the items first name images.
        score_correction: True scores by ``encoder.score``; False (default) by the cosine, as an index does.
        on_missing: ``"error"``, or ``"skip"`` to leave out (and count) pairs whose image is missing.
        tie_tolerance: scores this close are tied, which is wrong.
        batch_size: texts a forward pass.
        level: coverage of the intervals.
        dataset: name of the data (default: the table's).
        model: name of the model in tables (default: the encoder's).
        pretrained: weights or patch.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: no pairs, an embedding or a score that is not finite.
        FileNotFoundError: images missing, unless they are skipped.
    """
    source = getattr(items, "source", "")
    if not items:
        raise ValueError(f"{source or 'the data'}: no pairs")
    notes = list(getattr(items, "notes", []))
    names, image_of = distinct([item.image for item in items])
    images, kept = image_vectors(
        encoder, names, image_root=image_root, image_embeddings=image_embeddings, on_missing=on_missing, progress=progress
    )
    asked = list(items)
    if len(kept) < len(names):
        position = {old: new for new, old in enumerate(kept)}
        asked = [item for item, image in zip(items, image_of, strict=True) if image in position]
        image_of = np.array([position[image] for image in image_of if image in position])
        notes.append(f"{len(items) - len(asked)} of {len(items)} pairs skipped: {len(names) - len(kept)} images missing")
    texts, text_of = distinct([text for item in asked for text in (item.positive, item.contrast)])
    prepared = prepared_texts(encoder, texts, batch_size=batch_size, progress=progress)
    pairs = torch.from_numpy(np.stack([np.repeat(image_of, 2), text_of], 1))
    scores = pair_scores(encoder, images, prepared, pairs, score_correction=score_correction).numpy().reshape(-1, 2)
    bad = np.flatnonzero(~np.isfinite(scores).all(1))
    if len(bad):
        raise ValueError(f"{source or 'pairs'}: line {asked[bad[0]].row}: a score is not finite ({len(bad)} of {len(scores)})")
    gap = scores[:, 0] - scores[:, 1]
    ties = int((np.abs(gap) <= tie_tolerance).sum())
    if ties:
        notes.append(f"{ties} of {len(asked)} pairs tied: counted as wrong")
    label, weights = model_names(encoder, model, pretrained)
    return PairsResult(
        dataset=dataset or (Path(source).stem if source else "pairs"),
        model=label,
        pretrained=weights,
        items=items_digest((item.image, item.positive, item.contrast) for item in asked),
        notes=notes,
        level=level,
        correct=gap > tie_tolerance,
        kinds=[item.kind for item in asked],
        image_of=image_of,
        ties=ties,
    )
