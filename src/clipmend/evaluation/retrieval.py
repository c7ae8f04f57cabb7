"""Retrieval both ways: recall at k and the median rank, several captions an image, ties against the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from clipmend.backbones.base import DualEncoder
from clipmend.data.readers.tabular import CAPTION_COLUMNS, choose_column
from clipmend.data.records import Caption
from clipmend.data.video import FRAMES
from clipmend.evaluation.accumulate import RankAccumulator
from clipmend.evaluation.embed import ImageEmbeddings, OnMissing, distinct, image_vectors, prepared_texts
from clipmend.evaluation.intervals import bootstrap_mean, cluster_sums, median_interval, wilson
from clipmend.evaluation.ranking import oracle_recall, ranks_both_ways, rerank_both_ways
from clipmend.evaluation.results import Measure, Result, items_digest, model_names
from clipmend.evaluation.tables import duplicates_note, image_column_of, parse_field, read_table, text_field, texts_field

__all__ = ["RetrievalData", "RetrievalResult", "evaluate_retrieval", "read_retrieval"]


@dataclass
class RetrievalData:
    """Images and their captions.

    Args:
        images: names of the distinct images: the gallery.
        captions: every caption, one entry a query.
        image_of: int64 ``[M]`` position of each caption's image.
        parse: what each caption asserts and denies, where the table says so.
        source: the file, or a name.
        notes: what was noticed while reading.
    """

    images: list[str]
    captions: list[str]
    image_of: NDArray[np.int64]
    parse: list[Caption] | None = None
    source: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image_of = np.asarray(self.image_of, np.int64)
        where = self.source or "retrieval data"
        if self.image_of.shape != (len(self.captions),):
            raise ValueError(
                f"{self.source or 'retrieval data'}: {self.image_of.shape} image numbers for {len(self.captions)} captions"
            )
        if len(self.captions) and not 0 <= self.image_of.min() <= self.image_of.max() < len(self.images):
            raise ValueError(f"{where}: an image number lies outside 0..{len(self.images) - 1}")
        if len(set(self.images)) < len(self.images):
            raise ValueError(f"{where}: an image is listed twice in the gallery")


def read_retrieval(path: str | Path, *, image_column: str | None = None, caption_column: str | None = None) -> RetrievalData:
    """Read a NegBench retrieval table.

    Args:
        path: CSV with ``filepath`` and ``captions`` (a Python or JSON list of texts, read as data and never run), or with
            ``filepath`` and ``title`` or ``caption`` (one text a row, as open_clip writes it). Other usual names of such columns
            (``image``, ``text``) will do. The column ``parse`` (JSON list, one object a caption) is used where it is there; others
            are ignored. Rows of one image are joined.
        image_column: column with the images, where it is called otherwise.
        caption_column: column with the captions, likewise: a list where it is called ``captions``, else one text a row.

    Returns:
        The data. A caption repeated for one image is kept once and noted (it would compete with itself); a caption shared by
        several images is kept for each and noted: they tie.

    Raises:
        ValueError: naming file and line: a column missing, a list that is none, an empty list or caption, a broken parse.
    """
    path = Path(path)
    header, rows = read_table(path, ())
    image_column = image_column_of(path, header, ("filepath", "video_path", "image_path"), image_column)
    column = choose_column(str(path), header, caption_column, ("captions", "title", "caption", *CAPTION_COLUMNS), "caption")
    images: dict[str, int] = {}
    texts: list[str] = []
    image_of: list[int] = []
    parses: list[Caption] | None = []
    seen: set[tuple[int, str]] = set()
    repeated = 0
    for line, row in rows:
        captions = texts_field(path, line, row[column]) if column == "captions" else [text_field(path, line, row, column)]
        parse = parse_field(path, line, row.get("parse", ""), captions)
        image = images.setdefault(text_field(path, line, row, image_column), len(images))
        for position, text in enumerate(captions):
            if (image, text) in seen:
                repeated += 1
                continue
            seen.add((image, text))
            texts.append(text)
            image_of.append(image)
            if parse is None:
                parses = None
            elif parses is not None:
                parses.append(parse[position])
    notes = duplicates_note(path, [(line, (row[image_column], row[column])) for line, row in rows], "rows")
    if repeated:
        notes.append(f"{path.name}: {repeated} captions repeated for one image, kept once")
    shared = len(texts) - len(set(texts))
    if shared:
        notes.append(f"{path.name}: {shared} captions stand under more than one image: each is a query and ties with the others")
    return RetrievalData(list(images), texts, np.array(image_of, np.int64), parses, str(path), notes)


@dataclass
class RetrievalResult(Result):
    """Ranks both ways. Measures bear CLIP_benchmark's names: ``image_retrieval_*`` finds images by text.

    Args:
        text_ranks: int ``[M]`` rank of each caption's image (text -> image).
        image_ranks: int ``[N]`` rank of each image's best own caption (image -> text); 0 for an image without captions.
        image_of: int ``[M]``.
        ks: cut-offs that say something (below the size of the gallery).
        oracle: recall of a scorer that knows the truth, by measure name, where the data has a truth matrix.
    """

    text_ranks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    image_ranks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    image_of: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    ks: tuple[int, ...] = (1, 5, 10)
    oracle: dict[str, float] = field(default_factory=dict)

    task: ClassVar[str] = "zeroshot_retrieval"
    title: ClassVar[str] = "Retrieval, recall %"

    def _directions(self) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64], int]]:
        """``(direction, ranks, image of each query, size of the gallery)``."""
        asked = np.flatnonzero(self.image_ranks > 0)
        return [
            ("image", self.text_ranks, self.image_of, len(self.image_ranks)),
            ("text", self.image_ranks[asked], asked, len(self.text_ranks)),
        ]

    def measures(self) -> dict[str, Measure]:
        return self._measures

    @cached_property
    def _measures(self) -> dict[str, Measure]:
        measures: dict[str, Measure] = {}
        for direction, ranks, cluster, gallery in self._directions():
            for k in self.ks:
                if k >= gallery:
                    continue
                hits = ranks <= k
                if len(np.unique(cluster)) == len(cluster):
                    low, high = wilson(int(hits.sum()), len(hits), self.level)
                else:  # captions of one image are not independent: draw images
                    low, high = bootstrap_mean(hits, cluster, samples=500, level=self.level, share=True)
                measures[f"{direction}_retrieval_recall@{k}"] = Measure(float(hits.mean()), len(hits), low, high)
            middle = median_interval(ranks, self.level)
            measures[f"{direction}_retrieval_median_rank"] = Measure(float(np.median(ranks)), len(ranks), *middle, kind="rank")
        for name, value in self.oracle.items():
            asked = len(self.text_ranks) if name.startswith("image") else int((self.image_ranks > 0).sum())
            measures[name] = Measure(value, asked)
        return measures

    def clusters(self, over: str = "images") -> int:
        if over != "images":
            raise ValueError(f"a retrieval result is resampled over images, not {over!r}")
        return len(self.image_ranks)

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        count = self.clusters(over)
        draws: dict[str, NDArray[np.float64]] = {}
        with np.errstate(invalid="ignore", divide="ignore"):
            for direction, ranks, cluster, gallery in self._directions():
                total = cluster_sums(np.ones(len(ranks)), cluster, count) @ weights
                for k in self.ks:
                    if k < gallery:
                        draws[f"{direction}_retrieval_recall@{k}"] = (cluster_sums(ranks <= k, cluster, count) @ weights) / total
                draws[f"{direction}_retrieval_median_rank"] = _weighted_medians(ranks, weights, cluster)
        for name, value in self.oracle.items():
            draws[name] = np.full(weights.shape[1], value)
        return draws

    def details(self) -> dict[str, Any]:
        return {"gallery": {"images": len(self.image_ranks), "texts": len(self.text_ranks)}}


def _weighted_medians(ranks: NDArray[np.int64], weights: NDArray[np.float32], cluster: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weighted median of ``ranks`` for each draw, the mean of the middle two where they differ, as ``numpy.median`` has it."""
    order = np.argsort(ranks, kind="stable")
    medians = np.full(weights.shape[1], np.nan)
    for column in range(weights.shape[1]):  # one column at a time: [M, s] at once would be large for nothing
        mass = np.cumsum(weights[cluster[order], column], dtype=np.float64)
        if mass[-1] > 0:
            middle = order[[np.searchsorted(mass, mass[-1] / 2, side) for side in ("left", "right")]]
            medians[column] = ranks[middle].mean()
    return medians


def evaluate_retrieval(
    encoder: DualEncoder,
    data: RetrievalData,
    *,
    image_root: str | Path | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    ks: Sequence[int] = (1, 5, 10),
    rerank: int = 0,
    truth: ArrayLike | None = None,
    on_missing: OnMissing = "error",
    tie_tolerance: float = 1e-6,
    block: int | None = None,
    batch_size: int = 64,
    level: float = 0.95,
    frames: int = FRAMES,
    dataset: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> RetrievalResult:
    """Find each caption's image among all images, and each image's captions among all captions.

    By the cosine of the (corrected) embeddings, as an index would; with ``rerank`` the best of each query are then ordered by
    ``encoder.score`` (see :func:`~clipmend.evaluation.ranking.rerank_both_ways`). Ties count against the model.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`.
        data: images and captions.
        image_root: folder that image names start from.
        image_embeddings: ready image vectors instead: ``[N, D]`` in the order of ``data.images``, or a mapping by name.
        ks: cut-offs; one that is not below the size of the gallery is trivially 1, so it is left out and noted.
        rerank: length of the short list that ``encoder.score`` puts in order, where it corrects scores; 0 for none.
        truth: ``[N, M]`` images x captions (above 0 is true): adds the oracle's recall, the ceiling.
        on_missing: ``"error"``, or ``"skip"`` to leave out missing images with their captions, counted.
        tie_tolerance: scores this close are tied.
        block: texts scored at once (default: about 4 MB of scores).
        batch_size: texts a forward pass.
        level: coverage of the intervals.
        frames: frames a video is averaged over.
        dataset: name of the data (default: the table's).
        model: name of the model in tables (default: the encoder's).
        pretrained: weights or patch.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: no captions, an embedding that is not finite (image or text named), or ``rerank`` with an encoder whose score
            is the cosine.
        FileNotFoundError: images missing, unless they are skipped.
    """
    if not data.captions:
        raise ValueError(f"{data.source or 'the data'}: no captions to retrieve by")
    if not ks or min(ks) < 1:
        raise ValueError(f"recall is taken at 1 or more, not at {tuple(ks)}")
    if rerank and not encoder.corrects_scores:
        raise ValueError(f"rerank orders by a score correction, and {encoder.name} has none: leave rerank out")
    notes = list(data.notes)
    images, kept = image_vectors(
        encoder,
        data.images,
        image_root=image_root,
        image_embeddings=image_embeddings,
        on_missing=on_missing,
        frames=frames,
        progress=progress,
    )
    captions, image_of, names = list(data.captions), data.image_of, data.images
    columns = np.arange(len(captions))
    if len(kept) < len(names):
        position = {old: new for new, old in enumerate(kept)}
        columns = np.array([j for j, image in enumerate(image_of) if image in position], np.int64)
        captions = [captions[j] for j in columns]
        notes.append(
            f"{len(names) - len(kept)} of {len(names)} images missing: skipped with {len(image_of) - len(columns)} captions"
        )
        image_of = np.array([position[image] for image in image_of[columns]], np.int64)
        names = [names[i] for i in kept]
        if not captions:
            raise ValueError(f"{data.source or 'the data'}: none of the images found has a caption")
    unique, text_of = distinct(captions)
    prepared = prepared_texts(encoder, unique, batch_size=batch_size, progress=progress)[torch.from_numpy(text_of)]
    owner = torch.from_numpy(image_of)
    text_ranks, image_ranks = ranks_both_ways(prepared.embedding.float(), images, owner, block=block, tie_tolerance=tie_tolerance)
    if rerank:
        text_ranks, image_ranks = rerank_both_ways(
            encoder, prepared, images, owner, text_ranks, image_ranks, top=rerank, block=block, tie_tolerance=tie_tolerance
        )
        notes.append(f"the best {rerank} of each query were put in order by the score correction")
    found, asked = RankAccumulator(ks), np.flatnonzero(image_ranks.numpy() > 0)
    found.update(columns, text_ranks.numpy())
    for direction, gallery in (("image", len(names)), ("text", len(captions))):
        trivial = [k for k in ks if k >= gallery]
        if trivial:
            left = ", ".join(f"R@{k}" for k in trivial)
            notes.append(f"{direction} retrieval: {left} left out: the gallery has only {gallery} {direction}s")
    if len(asked) < len(names):
        notes.append(f"{len(names) - len(asked)} images have no caption: in the gallery, but no query")
    oracle = {}
    if truth is not None:
        part = np.asarray(truth)[np.asarray(kept)[:, None], columns[None, :]]
        for direction, gallery in (("image", len(names)), ("text", len(captions))):
            for k in (k for k in ks if k < gallery):
                value = oracle_recall(part, k, image_of, "image" if direction == "image" else "text")
                oracle[f"{direction}_retrieval_oracle_recall@{k}"] = value
    label, weights = model_names(encoder, model, pretrained)
    return RetrievalResult(
        dataset=dataset or (Path(data.source).stem if data.source else "retrieval"),
        model=label,
        pretrained=weights,
        items=items_digest([names, captions, image_of.tolist(), tuple(ks)]),
        notes=notes,
        level=level,
        text_ranks=found.rows()["rank"],
        image_ranks=image_ranks.numpy(),
        image_of=image_of,
        ks=tuple(ks),
        oracle=oracle,
    )
