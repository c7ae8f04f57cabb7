"""Ask an index in words, in one call; what a patch changed is :class:`clipmend.search.Searcher`'s to say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clipmend.search.index import ImageIndex, top_k

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder, OnLong

__all__ = ["Hit", "negation_hint", "search"]


@dataclass(frozen=True)
class Hit:
    """One image found: ``rank`` counts from 1."""

    path: Path
    score: float
    rank: int


def search(
    index: ImageIndex, encoder: DualEncoder, query: str, k: int = 12, *, rerank: int = 0, on_long: OnLong = "warn"
) -> list[Hit]:
    """Find the images that fit ``query`` best.

    Args:
        index: an index made by ``encoder``'s image side.
        encoder: any encoder over that image side, mended or not.
        query: what to look for, in words.
        k: how many; more than the index holds gives all of it.
        rerank: score the best ``max(rerank, k)`` by cosine again with ``encoder.score`` and order them by that; 0 for cosine
            only. Hits then carry that score. Needs an encoder that corrects scores: one with a patch that has a score correction.
        on_long: what to do with a query longer than the encoder's context.

    Raises:
        ImageIndexError: the index was made by another image side.
        ValueError: an empty query, ``k`` below 1, or ``rerank`` with an encoder whose score is the cosine.
    """
    _check(query, k, rerank, encoder)
    index.check(encoder)
    prepared = encoder.prepare_texts([query], on_long=on_long)
    embedding = prepared.embedding[0].cpu()
    scores, positions = index.search(embedding, max(rerank, k))
    if rerank and len(positions):
        scores = _second_opinion(index, encoder, positions, prepared)
        order = top_k(scores, positions, k)
        scores, positions = scores[order], positions[order]
    return [Hit(index.path(p), float(s), rank) for rank, (s, p) in enumerate(zip(scores, positions, strict=True), 1)]


def negation_hint(query: str, patched: bool, model: str = "", *, served: bool = False) -> str | None:
    """A word of advice where a query denies something and no patch is there to hear it.

    Args:
        query: the query.
        patched: whether a patch is there.
        model: name of the encoder: where a patch of it is bundled, the advice names that one.
        served: whether it is read by who asks a service, and cannot give its command an option.
    """
    if patched:
        return None
    from clipmend.negation.gate import has_negation

    if not has_negation(query):
        return None
    from clipmend.negation.mismatch import ready_patch

    ready = ready_patch(model)
    mends = "a patch mends that: --patch PATCH (clipmend fit makes one)"
    if ready:
        mends = f"the bundled patch mends that: --patch {ready}"
    if served:
        mends = f"start the service with a patch: clipmend serve INDEX --patch {ready or 'PATCH'}"
    return f"this query says what must not be there, which encoders like this one mostly ignore; {mends}"


def _second_opinion(index: ImageIndex, encoder: DualEncoder, candidates: np.ndarray, prepared: object) -> np.ndarray:
    import torch

    images = torch.from_numpy(index.embeddings(candidates))
    pairs = torch.stack([torch.arange(len(candidates)), torch.zeros(len(candidates), dtype=torch.int64)], dim=1)
    scores = encoder.score(images, prepared, pairs=pairs)  # type: ignore[arg-type]
    return scores.float().cpu().numpy()


def _check(query: str, k: int, rerank: int, encoder: DualEncoder) -> None:
    if not query.strip():
        raise ValueError("the query is empty; say what to look for")
    if k < 1:
        raise ValueError(f"k must be at least 1 (got {k})")
    if rerank < 0:
        raise ValueError(f"rerank must be 0 (off) or more (got {rerank})")
    if rerank and not encoder.corrects_scores:
        raise ValueError(
            f"rerank orders by the score correction of a patch, and {encoder.name} has none: leave rerank out, or apply a patch "
            "that was fitted with one"
        )
