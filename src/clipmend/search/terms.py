"""Terms of a query as one vector, and what a patch's score correction adds by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmend.search.gallery import Gallery
from clipmend.search.grammar import Query, QueryError

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder, OnLong, PreparedTexts

__all__ = ["Correction", "TermVectors", "combined"]

_CANCELLED = 1e-5  # of the sum of weights: below that, what is left of the sum is rounding


@dataclass(frozen=True)
class TermVectors:
    """``query [D]`` of unit length; ``terms [T, D]`` unit vectors; ``norm`` of the weighted sum."""

    query: np.ndarray
    terms: np.ndarray
    norm: float


class Correction:
    """What the score correction adds to images: that of each text by its share in the query's vector.

    For a query of one text that is the encoder's score less the cosine. The texts are read once, and only if it is asked.
    """

    def __init__(self, gallery: Gallery, encoder: DualEncoder, query: Query, norm: float, on_long: OnLong) -> None:
        self.gallery, self.encoder, self.texts = gallery, encoder, list(query.texts)
        self.weights = np.array([term.weight for term in query.terms if term.kind == "text"]) / norm
        self.on_long: OnLong = "truncate" if on_long == "warn" else on_long  # the search itself has warned
        self.prepared: PreparedTexts | None = None

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """float64 ``[n]``."""
        if not self.texts or not len(ids):
            return np.zeros(len(ids), np.float64)
        import torch

        if self.prepared is None:
            self.prepared = self.encoder.prepare_texts(self.texts, on_long=self.on_long)
        images = torch.from_numpy(np.ascontiguousarray(self.gallery.vectors(ids)))
        scores = self.encoder.score(images, self.prepared).double().cpu()
        cosines = (images @ self.prepared.embedding.to(images).T).double()
        return (scores - cosines).numpy() @ self.weights


def combined(query: Query, texts: Sequence[Any] | np.ndarray, others: Sequence[np.ndarray]) -> TermVectors:
    """The weighted sum of the terms' unit vectors, itself of unit length."""
    from_texts, from_others = iter(texts), iter(others)
    terms = np.stack([np.asarray(next(from_texts if term.kind == "text" else from_others), np.float64) for term in query.terms])
    lengths = np.linalg.norm(terms, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise QueryError("the embedding of a term of the query is zero or not finite: it has no direction to search in")
    terms /= lengths
    weights = np.array([term.weight for term in query.terms])
    total = weights @ terms
    norm = float(np.linalg.norm(total))
    if norm <= _CANCELLED * np.abs(weights).sum():
        raise QueryError("the terms of the query cancel each other out: nothing is left to look for")
    return TermVectors((total / norm).astype(np.float32), terms.astype(np.float32), norm)
