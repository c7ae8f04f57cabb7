"""Ranks of the right items, both ways, without a relevance matrix and without sorting.

A rank needs a count, not an order: ``1 +`` the number of other items that score at least as high. Texts are scored against all
images in blocks, and each block serves both directions.
"""

from __future__ import annotations

from math import comb
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from clipmend.backbones.base import DualEncoder, PreparedTexts
from clipmend.evaluation.embed import pair_scores

__all__ = ["oracle_recall", "ranks_both_ways", "rerank_both_ways"]

NO_OWN_ITEM = 0


def _block_rows(columns: int, block: int | None) -> int:
    # About 4 MB of scores a block: it stays in cache between the product and the two counts.
    return block or max(16, min(1024, (1 << 20) // max(columns, 1)))


def ranks_both_ways(
    texts: Tensor, images: Tensor, image_of: Tensor, *, block: int | None = None, tie_tolerance: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Rank of each text's image among all images, and of each image's best own text among all texts.

    text -> image: ``1 + #{other images scoring >= the own image}``. image -> text: the image's best own text scores b; the rank
    is ``1 + #{texts of other images scoring >= b}``. Ties count against the model both ways.

    Args:
        texts: ``[M, D]`` normalised float32.
        images: ``[N, D]`` normalised float32, on the same device.
        image_of: int64 ``[M]`` the image that each text belongs to.
        block: texts scored at once (default: about 4 MB of scores).
        tie_tolerance: scores this close are tied: matrix products round differently from column to column.

    Returns:
        int64 ``[M]`` and int64 ``[N]``, on the CPU; 0 for an image without any text.

    Raises:
        ValueError: shapes that do not fit, an image number out of range, or embeddings that are not finite.
    """
    if texts.ndim != 2 or images.ndim != 2 or texts.shape[1] != images.shape[1]:
        raise ValueError(f"texts {tuple(texts.shape)} and images {tuple(images.shape)} do not share an embedding size")
    if image_of.shape != (len(texts),):
        raise ValueError(f"image_of has shape {tuple(image_of.shape)} for {len(texts)} texts")
    if not len(texts) or not len(images):
        raise ValueError("nothing to rank: no texts or no images")
    if int(image_of.min()) < 0 or int(image_of.max()) >= len(images):
        raise ValueError(f"image_of names images outside 0..{len(images) - 1}")
    for what, vectors in (("text", texts), ("image", images)):
        finite = torch.isfinite(vectors.sum(1))  # a row's sum is finite only if the row is, and needs no [N, D] copy
        if not bool(finite.all()):
            raise ValueError(f"the embedding of {what} {int((~finite).nonzero()[0])} is not finite")
    device, rows = images.device, _block_rows(len(images), block)
    image_of = image_of.to(device)
    with torch.inference_mode():
        best = torch.full((len(images),), -torch.inf, device=device)
        for start in range(0, len(texts), rows):
            part = slice(start, start + rows)
            best.scatter_reduce_(0, image_of[part], (texts[part] * images[image_of[part]]).sum(1), "amax")
        threshold = best - tie_tolerance
        text_ranks = torch.empty(len(texts), dtype=torch.int64, device=device)
        above = torch.zeros(len(images), dtype=torch.int64, device=device)
        transposed = images.T.contiguous()
        for start in range(0, len(texts), rows):
            own_images = image_of[start : start + rows]
            scores = texts[start : start + rows] @ transposed  # [b, N]
            own = scores.gather(1, own_images[:, None])  # [b, 1]
            # The own image is among those counted, hence no "1 +".
            text_ranks[start : start + rows] = torch.count_nonzero(scores >= own - tie_tolerance, dim=1)
            above += torch.count_nonzero(scores >= threshold, dim=0)
            above.index_add_(0, own_images, (own[:, 0] >= threshold[own_images]).to(torch.int64), alpha=-1)
        image_ranks = torch.where(torch.isneginf(best), NO_OWN_ITEM, above + 1)
    return text_ranks.cpu(), image_ranks.cpu()


def rerank_both_ways(
    encoder: DualEncoder,
    texts: PreparedTexts,
    images: Tensor,
    image_of: Tensor,
    text_ranks: Tensor,
    image_ranks: Tensor,
    *,
    top: int,
    block: int | None = None,
    tie_tolerance: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Ranks after the best ``top`` of each query are put in order by ``encoder.score``.

    A query's short list is every item that scores at least as high, by embedding, as its ``top``-th best; the short list is ordered
    by ``encoder.score``, and everything else stays below it in the order of the embeddings. So a query whose own item has a
    (pessimistic) rank beyond ``top`` keeps that rank, and any other gets ``1 +`` the number of other items of the short list whose
    corrected score is at least the own item's. For an image, the own item is the best of its own texts within the short list.

    Args:
        encoder: its ``score`` orders the short lists.
        texts: ``M`` prepared texts.
        images: ``[N, D]`` normalised.
        image_of: int64 ``[M]``.
        text_ranks: int64 ``[M]``, from :func:`ranks_both_ways`.
        image_ranks: int64 ``[N]``, likewise.
        top: length of the short list.
        block: queries handled at once.
        tie_tolerance: scores this close are tied.

    Returns:
        New ranks, int64 ``[M]`` and ``[N]``.

    Raises:
        ValueError: ``top`` below 1, or a corrected score that is not finite.
    """
    if top < 1:
        raise ValueError(f"re-ranking needs a short list of 1 or more, not {top}")
    embedding = texts.embedding.to(images)
    new_text_ranks, new_image_ranks = text_ranks.clone(), image_ranks.clone()

    def short_lists(queries: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
        scores = queries @ gallery.T
        edge = scores.topk(min(top, len(gallery)), dim=1).values[:, -1:]
        row, item = (scores >= edge - tie_tolerance).nonzero(as_tuple=True)
        return row.cpu(), item.cpu()

    def counted(row: Tensor, scores: Tensor, own: Tensor, queries: int) -> Tensor:
        """1 + number of others of the short list at or above the best own item."""
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("encoder.score gave a score that is not finite while re-ranking")
        best = torch.full((queries,), -torch.inf).scatter_reduce_(0, row[own], scores[own], "amax")
        return 1 + torch.bincount(row[(scores >= best[row] - tie_tolerance) & ~own], minlength=queries)

    with torch.inference_mode():
        rows = _block_rows(len(images), block)
        for chunk in ((text_ranks > 0) & (text_ranks <= top)).nonzero().flatten().split(rows):
            row, image = short_lists(embedding[chunk], images)
            corrected = pair_scores(encoder, images, texts, torch.stack([image, chunk[row]], 1))
            new_text_ranks[chunk] = counted(row, corrected, image_of[chunk[row]] == image, len(chunk))
        rows = _block_rows(len(embedding), block)
        for chunk in ((image_ranks > 0) & (image_ranks <= top)).nonzero().flatten().split(rows):
            row, text = short_lists(images[chunk], embedding)
            corrected = pair_scores(encoder, images, texts, torch.stack([chunk[row], text], 1))
            new_image_ranks[chunk] = counted(row, corrected, image_of[text] == chunk[row], len(chunk))
    return new_text_ranks, new_image_ranks


def oracle_recall(
    truth: ArrayLike, k: int, image_of: ArrayLike | None = None, direction: Literal["image", "text"] = "image"
) -> float:
    """Recall at k of a scorer that knows which captions are true of which image, and nothing more: the ceiling for short captions.

    A caption that is true of m images cannot tell them apart, so its own image is among the first k with probability
    ``min(1, k / m)``. The other way, an image with c own captions among t true ones has one of them among the first k with
    probability ``1 - C(t - c, k) / C(t, k)``.

    Args:
        truth: ``[N, M]`` images x captions; above 0 is true (:data:`clipmend.data.records.TRUE`), unknown counts as not true.
        k: cut-off.
        image_of: int ``[M]`` each caption's own image, always true of it. Needed for ``direction="text"``; without it a caption is
            taken to be true of its own image already.
        direction: ``"image"`` finds images by text, ``"text"`` finds texts by image.

    Returns:
        Expected recall, 0 to 1.
    """
    true = np.asarray(truth) > 0
    if true.ndim != 2 or not true.size:
        raise ValueError(f"truth must be [images, captions], not {true.shape}")
    if k < 1:
        raise ValueError(f"recall is taken at 1 or more, not at {k}")
    owner: NDArray[np.int64] | None = None
    if image_of is not None:
        owner = np.asarray(image_of, np.int64)
        if owner.shape != (true.shape[1],):
            raise ValueError(f"image_of has shape {owner.shape} for {true.shape[1]} captions")
        true[owner, np.arange(len(owner))] = True  # `>` made a copy: the caller's matrix stays as it is
    if direction == "image":
        matches = true.sum(0)
        if (matches == 0).any():
            raise ValueError(f"caption {int(np.flatnonzero(matches == 0)[0])} is true of no image; give image_of")
        return float(np.minimum(1.0, k / matches).mean())
    if direction != "text":
        raise ValueError(f"direction is 'image' or 'text', not {direction!r}")
    if owner is None:
        raise ValueError("the oracle for texts by image needs image_of")
    total, own = true.sum(1), np.bincount(owner, minlength=len(true))
    queries = np.flatnonzero(own)
    missed = [comb(int(total[i] - own[i]), k) / comb(int(total[i]), k) if k <= total[i] else 0.0 for i in queries]
    return float(1 - np.mean(missed))
