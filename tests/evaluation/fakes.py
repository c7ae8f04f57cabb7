"""A dual encoder that looks its embeddings up, so that tests can say exactly what the scores are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder, Fingerprint, PreparedTexts, TextStates


class LookupEncoder(DualEncoder):
    """Embeddings from tables (a text that is not listed gets ``default``); ``correction`` is added to the score of each pair.

    ``correction(images, texts)`` takes ``[P, D]`` image and text embeddings and gives ``[P]``. ``calls`` counts what was embedded.
    """

    logit_scale = 100.0
    text_pooling = "eos"

    def __init__(
        self,
        texts: Mapping[str, Sequence[float]] | None = None,
        images: Mapping[str, Sequence[float]] | None = None,
        *,
        default: Sequence[float] | None = None,
        correction: Callable[[Tensor, Tensor], Tensor] | None = None,
        name: str = "lookup",
        unit: bool = False,
    ) -> None:
        self.texts, self.images = dict(texts or {}), dict(images or {})
        self.default, self.correction, self.name, self.unit = default, correction, name, unit
        first = next(iter([*self.texts.values(), *self.images.values(), *([default] if default is not None else [])]))
        self.embed_dim = self.text_width = len(first)
        self.num_text_layers, self.context_length = 2, 77
        self.device = torch.device("cpu")
        self.calls = {"texts": 0, "images": 0}

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint("t", "i", "k")

    def _rows(self, values: list[Sequence[float]], normalize: bool) -> Tensor:
        rows = torch.as_tensor(np.asarray(values, np.float32)).reshape(len(values), self.embed_dim)
        return F.normalize(rows, dim=-1) if normalize and self.unit else rows

    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, normalize: bool = True, progress: bool = False
    ) -> Tensor:
        self.calls["images"] += len(images)
        return self._rows([self.images[Path(image).name] for image in images], normalize)

    def encode_texts(
        self, texts: Sequence[str], *, batch_size: int = 64, normalize: bool = True, on_long: Any = "warn", progress: bool = False
    ) -> Tensor:
        self.calls["texts"] += len(texts)
        missing = [t for t in texts if t not in self.texts]
        if missing and self.default is None:
            raise KeyError(missing[0])
        return self._rows([self.texts.get(t, self.default) for t in texts], normalize)  # type: ignore[list-item]

    def text_states(self, texts: Sequence[str], layers: Sequence[int], **options: Any) -> TextStates:
        raise NotImplementedError

    def project(self, states: TextStates | Tensor) -> Tensor:
        assert isinstance(states, Tensor)
        return states

    def _score(self, images: Tensor, texts: PreparedTexts, pairs: Tensor | None) -> Tensor:
        scores = super()._score(images, texts, pairs)
        if self.correction is None:
            return scores
        n, m = len(images), len(texts)
        grid = torch.cartesian_prod(torch.arange(n), torch.arange(m)) if pairs is None else pairs
        extra = self.correction(images[grid[:, 0]], texts.embedding[grid[:, 1]])
        return scores + (extra.reshape(n, m) if pairs is None else extra)


def random_unit(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    rows = rng.normal(size=(n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
