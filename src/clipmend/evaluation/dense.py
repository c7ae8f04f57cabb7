"""Dense captions: retrieval both ways, the part that training has not seen, and near-twins told apart.

The dense-caption papers report recall at 1, 5, 25 and 50 from text to image and back. Ranks here are those of :mod:`.ranking`:
float32, in blocks of rows (never images x captions at once), ties against the model, several captions an image allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.data.dense.collection import DenseData
from clipmend.evaluation.dense_embed import embed_captions, embed_images, present
from clipmend.evaluation.dense_overlap import Overlap
from clipmend.evaluation.dense_twins import Share, leaders, twin_shares
from clipmend.evaluation.embed import OnMissing
from clipmend.evaluation.intervals import bootstrap_mean, cluster_sums, wilson
from clipmend.evaluation.ranking import ranks_both_ways
from clipmend.evaluation.results import Measure, items_digest, model_names
from clipmend.evaluation.retrieval import RetrievalResult

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["KS", "DenseResult", "dense_retrieval", "evaluate_dense"]

KS = (1, 5, 10, 25, 50)
DIRECTIONS = {"image": "text → image", "text": "image → text"}
"""By what CLIP_benchmark calls what is found."""

PARTS = {
    "unseen": "unseen, all in the gallery",
    "seen": "seen, all in the gallery",
    "unseen_gallery": "unseen alone",
}


@dataclass
class DenseResult(RetrievalResult):
    """Retrieval both ways, as :class:`~clipmend.evaluation.retrieval.RetrievalResult`, and what dense captions need besides.

    Measures: ``image_retrieval_recall@k`` (text to image), ``text_retrieval_recall@k`` (image to text) and the median ranks; with a
    training set ``unseen/...`` and ``seen/...`` (the same gallery, queries apart) and ``unseen_gallery/...`` (the unseen images by
    themselves); with twins ``twins/image_by_text``, ``twins/text_by_image`` and ``twins/group``.

    Args:
        seen: bool ``[N]`` images that training has seen; ``None`` where nothing is known of the training.
        unseen_ranks: ranks of the unseen part as a gallery of its own: texts, images, and the image of each text.
        twin_shares: by name, as in :data:`~clipmend.evaluation.dense_twins.TWINS`.
        leader: int64 ``[N]`` the first image of each image's group of twins; the bootstrap draws whole groups.
        gallery: SHA-256 of the gallery (:meth:`clipmend.data.dense.DenseData.gallery_digest`).
        truncated: how many of the distinct captions the encoder cut; ``None`` where that is not known.
        distinct: how many distinct captions there are.
        context_length: tokens the encoder reads.
        overlap: how images were found to be seen.
        split: the split.
    """

    seen: NDArray[np.bool_] | None = None
    unseen_ranks: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None
    twin_shares: dict[str, Share] = field(default_factory=dict)
    leader: NDArray[np.int64] | None = None
    gallery: str = ""
    truncated: int | None = None
    distinct: int = 0
    context_length: int = 0
    overlap: Overlap | None = None
    split: str = ""

    task: ClassVar[str] = "dense_retrieval"
    title: ClassVar[str] = "Dense captions, recall %"

    @cached_property
    def _shares(self) -> dict[str, Share]:
        """Every recall, by name, and the twins."""
        shares: dict[str, Share] = {}
        for found, ranks, image, gallery in self._directions():
            shares |= _recalls(found, ranks, self._cluster(image), gallery, self.ks)
            if self.seen is not None and self.seen.any():
                known = self.seen[image]
                for part, rows in (("unseen", ~known), ("seen", known)):
                    shares |= _recalls(f"{part}/{found}", ranks[rows], self._cluster(image[rows]), gallery, self.ks)
        if self.unseen_ranks is not None and self.seen is not None:
            text_ranks, image_ranks, image_of = self.unseen_ranks
            alone = RetrievalResult("", "", text_ranks=text_ranks, image_ranks=image_ranks, image_of=image_of)
            there = np.flatnonzero(~self.seen)
            for found, ranks, image, gallery in alone._directions():
                shares |= _recalls(f"unseen_gallery/{found}", ranks, self._cluster(there[image]), gallery, self.ks)
        return shares | {f"twins/{name}": share for name, share in self.twin_shares.items()}

    def _cluster(self, image: NDArray[np.int64]) -> NDArray[np.int64]:
        """Queries about one image, or about near-twins, are not independent: they are drawn together."""
        return image if self.leader is None else self.leader[image]

    def measures(self) -> dict[str, Measure]:
        return self._all_measures

    @cached_property
    def _all_measures(self) -> dict[str, Measure]:
        return dict(self._measures) | {name: _measure(share, self.level) for name, share in self._shares.items()}

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        draws = super().resampled(weights, over)
        count = self.clusters(over)
        with np.errstate(invalid="ignore", divide="ignore"):
            for name, share in self._shares.items():
                total = cluster_sums(np.ones(len(share.hits)), share.cluster, count) @ weights
                draws[name] = (cluster_sums(share.hits, share.cluster, count) @ weights) / total
        return draws

    def details(self) -> dict[str, Any]:
        found = super().details()
        found["gallery"] |= {"sha256": self.gallery, "split": self.split}
        found["truncation"] = {
            "context_length": self.context_length,
            "distinct_captions": self.distinct,
            "truncated": self.truncated,
            "share": None if self.truncated is None or not self.distinct else self.truncated / self.distinct,
        }
        if self.overlap is not None:
            found["overlap"] = self.overlap.to_dict()
        return found

    def table(self, detail: bool = False, fold: str = "") -> Table:
        """A Rich table: a row for each direction and part, a column for each cut-off; the interval beside recall at the first."""
        from clipmend.evaluation.dense_tables import result_table

        return result_table(self)


def _recalls(name: str, ranks: NDArray[np.int64], cluster: NDArray[np.int64], gallery: int, ks: Sequence[int]) -> dict[str, Share]:
    if not len(ranks):
        return {}
    return {f"{name}_retrieval_recall@{k}": Share(ranks <= k, cluster) for k in ks if k < gallery}


def _measure(share: Share, level: float) -> Measure:
    hits, cluster = share.hits, share.cluster
    count = len(np.unique(cluster))
    if count == len(cluster):
        low, high = wilson(int(hits.sum()), len(hits), level)
    elif hits.all() or not hits.any():  # no draw would differ, so that a bootstrap would be certain
        low, high = wilson(count if hits.all() else 0, count, level)
    else:
        low, high = bootstrap_mean(hits, cluster, samples=500, level=level, share=True)
    return Measure(float(hits.mean()), len(hits), low, high)


def dense_retrieval(
    images: Tensor | ArrayLike,
    texts: Tensor | ArrayLike,
    image_of: ArrayLike | None = None,
    *,
    ks: Sequence[int] = KS,
    seen: ArrayLike | None = None,
    twins: Sequence[Sequence[int]] = (),
    level: float = 0.95,
    tie_tolerance: float = 1e-6,
    block: int | None = None,
    dataset: str = "dense captions",
    model: str = "embeddings",
    pretrained: str = "",
    items: Sequence[Any] | None = None,
) -> DenseResult:
    """Retrieval both ways from embeddings.

    Args:
        images: ``[N, D]``; normalised here, in float32.
        texts: ``[M, D]``, likewise.
        image_of: int ``[M]`` image of each text (default: text i belongs to image i).
        ks: cut-offs; one that is not below the size of the gallery is trivially 1, so it is left out and noted.
        seen: bool ``[N]`` images that training has seen: both parts are then reported apart, and the unseen one as a gallery of its
            own too.
        twins: groups of positions of images that are near-duplicates. A caption is right where its own image scores above every
            twin's, an image where its best own caption does; a group where all of it is. Ties are wrong.
        level: nominal coverage of the intervals.
        tie_tolerance: scores this close are tied.
        block: texts scored at once (default: about 4 MB of scores).
        dataset, model, pretrained: names.
        items: what was asked, for the digest that lets two results be compared (default: the numbers of images and texts).

    Raises:
        ValueError: shapes that do not fit, nothing to rank, embeddings that are not finite (image or text named by its number), or
            a position that is out of range.
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"recall is taken at 1 or more, not at {tuple(ks)}")
    ks = tuple(dict.fromkeys(ks))
    pictures, captions = _unit(images, "images"), _unit(texts, "texts").to(_device(images))
    given = np.arange(len(captions)) if image_of is None else np.asarray(image_of)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"image_of must be whole numbers, not {given.dtype}")
    owner = torch.as_tensor(given.astype(np.int64))
    if image_of is None and len(captions) != len(pictures):
        raise ValueError(f"{len(captions)} texts for {len(pictures)} images: give image_of, the image of each text")
    text_ranks, image_ranks = ranks_both_ways(captions, pictures, owner, block=block, tie_tolerance=tie_tolerance)
    notes = []
    for found, gallery in (("image", len(pictures)), ("text", len(captions))):
        trivial = [k for k in ks if k >= gallery]
        if trivial:
            left = ", ".join(f"R@{k}" for k in trivial)
            notes.append(f"{DIRECTIONS[found]}: {left} left out: the gallery has only {gallery} {found}s")
    queries = int((image_ranks > 0).sum())
    if queries < len(pictures):
        notes.append(f"{len(pictures) - queries} images have no caption: in the gallery, but no query")
    known = None
    alone = None
    if seen is not None:
        known = np.asarray(seen)
        if known.shape != (len(pictures),) or known.dtype != bool:
            raise ValueError(f"seen must be true or false for each of {len(pictures)} images, not {known.dtype} {known.shape}")
        alone = _unseen(captions, pictures, owner.numpy(), known, block, tie_tolerance)
    leader = leaders(len(pictures), twins)
    return DenseResult(
        dataset=dataset,
        model=model,
        pretrained=pretrained,
        items=items_digest(items if items is not None else [len(pictures), owner.tolist(), ks]),
        notes=notes,
        level=level,
        text_ranks=text_ranks.numpy(),
        image_ranks=image_ranks.numpy(),
        image_of=owner.numpy(),
        ks=ks,
        seen=known,
        unseen_ranks=alone,
        twin_shares=twin_shares(captions, pictures, owner.numpy(), twins, leader, tie_tolerance),
        leader=leader,
    )


def _unit(vectors: Tensor | ArrayLike, what: str) -> Tensor:
    rows = vectors if isinstance(vectors, Tensor) else torch.as_tensor(np.asarray(vectors))
    if rows.ndim != 2:
        raise ValueError(f"{what} must be [number, size], not {tuple(rows.shape)}")
    return F.normalize(rows.detach().to(torch.float32), dim=-1)


def _device(vectors: Tensor | ArrayLike) -> torch.device:
    return vectors.device if isinstance(vectors, Tensor) else torch.device("cpu")


def _unseen(
    texts: Tensor, images: Tensor, owner: NDArray[np.int64], seen: NDArray[np.bool_], block: int | None, tie_tolerance: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
    """Ranks within the unseen images and their texts; ``None`` where there are none, or where all are unseen."""
    rows = np.flatnonzero(~seen[owner])
    if not len(rows) or not seen.any():
        return None
    place = np.cumsum(~seen) - 1
    own = place[owner[rows]]
    part = texts[torch.from_numpy(rows).to(texts.device)], images[torch.from_numpy(np.flatnonzero(~seen)).to(images.device)]
    text_ranks, image_ranks = ranks_both_ways(*part, torch.from_numpy(own), block=block, tie_tolerance=tie_tolerance)
    return text_ranks.numpy(), image_ranks.numpy(), own


def evaluate_dense(
    encoder: DualEncoder,
    data: DenseData,
    *,
    overlap: Overlap | None = None,
    ks: Sequence[int] = KS,
    on_missing: OnMissing = "error",
    digests: Sequence[str] | None = None,
    batch_size: int = 32,
    text_batch_size: int = 64,
    level: float = 0.95,
    tie_tolerance: float = 1e-6,
    block: int | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> DenseResult:
    """Find each caption's image and each image's caption with an encoder, by the cosine of the embeddings.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`.
        data: the set; its ``twins`` are measured where it has any.
        overlap: what training has seen of it (:func:`~clipmend.evaluation.dense_overlap.find_overlap`).
        ks: cut-offs.
        on_missing: ``"error"``, or ``"skip"`` to leave out images without a file with their captions, counted.
        digests: of the images' files (:meth:`DenseData.digests`), so that they are not read again; default: computed here.
        batch_size, text_batch_size: images, texts a forward pass.
        level, tie_tolerance, block: as :func:`dense_retrieval`.
        model, pretrained: names in tables (default: the encoder's).
        progress: show progress bars on a terminal.

    Raises:
        FileNotFoundError: images missing, unless they are skipped.
        ValueError: no image left, an image that cannot be read, or an embedding that is not finite (image or caption named).
    """
    given = len(data.images)
    data, keep = present(data, on_missing)
    notes = list(data.notes)
    if len(keep) < given:
        overlap = None if overlap is None else replace(overlap, seen=overlap.seen[keep])
        digests = None if digests is None else [digests[k] for k in keep]
    if digests is None:
        digests = data.digests()
    gallery = data.gallery_digest(digests)
    texts = embed_captions(encoder, data.captions, data.where, batch_size=text_batch_size, progress=progress)
    pictures = embed_images(encoder, data, batch_size=batch_size, progress=progress)
    label, weights = model_names(encoder, model, pretrained)
    result = dense_retrieval(
        pictures,
        texts.vectors,
        data.image_of,
        ks=ks,
        seen=None if overlap is None else overlap.seen,
        twins=data.twins,
        level=level,
        tie_tolerance=tie_tolerance,
        block=block,
        dataset=data.name,
        model=label,
        pretrained=weights,
        items=[gallery, data.image_ids, data.captions, data.image_of.tolist(), tuple(ks)],
    )
    same = len(digests) - len(set(digests))
    if same:
        notes.append(f"{same:,} images have the bytes of another one: they tie")
    result.notes[:0] = notes
    result.gallery, result.overlap, result.split = gallery, overlap, data.split
    result.truncated, result.distinct, result.context_length = texts.truncated, texts.distinct, encoder.context_length
    return result
