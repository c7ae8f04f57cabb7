"""``DualEncoder``: the one interface that everything else rests on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["DualEncoder", "Fingerprint", "LongTextsWarning", "OnLong", "PreparedTexts", "TextStates"]

OnLong = Literal["warn", "error", "truncate"]


class LongTextsWarning(UserWarning):
    """Texts were cut to the context length.

    Args:
        message: what happened.
        count: how many texts were cut, so that a caller who works in batches can report them all at once.
    """

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


@dataclass(frozen=True)
class Fingerprint:
    """SHA-256 digests of what makes an encoder: equal digests, equal embeddings (up to the arithmetic of the machine).

    Args:
        text: every weight of the text side, under canonical names, before any cast.
        image: every weight of the image side and the preprocessing; ``""`` for a text-only encoder.
        tokenizer: vocabulary and rules of the tokenizer.
    """

    text: str
    image: str
    tokenizer: str

    def to_dict(self) -> dict[str, str]:
        return {"text": self.text, "image": self.image, "tokenizer": self.tokenizer}


@dataclass(frozen=True)
class TextStates:
    """Intermediate states of the text encoder for ``N`` texts at ``L`` layers, all through the encoder's final layer norm.

    Args:
        layers: the layers, 1-indexed (layer ``l`` is the output of the ``l``-th block), in the order asked for.
        tokens: ``[N, Lt, T, W]`` token states at ``token_layers``; positions outside ``mask`` are zero.
        token_layers: the layers of ``tokens``.
        mask: ``[N, T]`` bool, True at the valid tokens (up to and including EOS for CLIP, non-pad otherwise).
        eos: ``[N, L, W]`` the state of the one token that stands for the sentence: EOS, last position or CLS.
        pooled: ``[N, L, W]`` the encoder's own pooling (EOS, last, CLS or mean) of the states.
        embedding: ``[N, D]`` the final joint embedding, *not* normalised; ``None`` where it was not asked for.
    """

    layers: tuple[int, ...]
    tokens: Tensor
    token_layers: tuple[int, ...]
    mask: Tensor
    eos: Tensor
    pooled: Tensor
    embedding: Tensor | None

    def tokens_at(self, layer: int) -> Tensor:
        """``[N, T, W]`` token states after ``layer``."""
        return self.tokens[:, self.token_layers.index(layer)]

    def eos_at(self, layer: int) -> Tensor:
        """``[N, W]`` sentence-token state after ``layer``."""
        return self.eos[:, self.layers.index(layer)]

    def pooled_at(self, layer: int) -> Tensor:
        """``[N, W]`` pooled state after ``layer``."""
        return self.pooled[:, self.layers.index(layer)]


@dataclass(frozen=True)
class PreparedTexts:
    """Texts ready to be scored many times: embeddings, and what a score correction needs besides.

    Args:
        embedding: ``[N, D]`` L2-normalised joint embeddings.
        context: ``[N, L, D]`` normalised per-layer embeddings for a score correction; ``None`` for a plain encoder.
    """

    embedding: Tensor
    context: Tensor | None = None

    def __len__(self) -> int:
        return self.embedding.shape[0]

    def __getitem__(self, rows: Any) -> PreparedTexts:
        return PreparedTexts(self.embedding[rows], None if self.context is None else self.context[rows])


class DualEncoder(ABC):
    """An image encoder and a text encoder that share one embedding space, frozen, behind one interface.

    Attributes:
        name: what :func:`clipmend.load` was given, or the model's own name.
        embed_dim: size ``D`` of the joint space.
        text_width: width ``W`` of the text encoder's token states.
        num_text_layers: number of text blocks; layers are 1-indexed.
        context_length: most tokens a text may have, special tokens included.
        logit_scale: the multiplier of the cosine in the encoder's own loss (100 for CLIP).
        device: where the weights are.
        text_pooling: how the encoder pools token states: ``"eos"``, ``"last"``, ``"cls"`` or ``"mean"``.
    """

    name: str
    embed_dim: int
    text_width: int
    num_text_layers: int
    context_length: int
    logit_scale: float
    device: torch.device
    text_pooling: Literal["eos", "last", "cls", "mean"]

    @property
    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Digests of weights, preprocessing and tokenizer; computed once, on first use."""

    @abstractmethod
    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, normalize: bool = True, progress: bool = False
    ) -> Tensor:
        """Embed images.

        Args:
            images: paths (``str`` or ``Path``), binary files or PIL images.
            batch_size: images a forward pass.
            normalize: L2-normalise the rows.
            progress: show a progress bar on a terminal.

        Returns:
            float32 ``[N, D]`` on the CPU.
        """

    @abstractmethod
    def text_states(
        self,
        texts: Sequence[str],
        layers: Sequence[int],
        *,
        token_layers: Sequence[int] | None = None,
        embedding: bool = True,
        batch_size: int = 64,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> TextStates:
        """States after the given blocks, in one pass that stops at the last layer needed.

        Args:
            texts: the texts.
            layers: 1-indexed layers whose ``eos`` and ``pooled`` states are wanted.
            token_layers: the layers whose token states are kept (default: all of ``layers``).
            embedding: also run to the end and return the final embedding.
            batch_size: texts a forward pass.
            on_long: what to do with texts over ``context_length``: ``"warn"`` (truncate, count, report once a call),
                ``"error"``, or ``"truncate"`` silently.
            progress: show a progress bar on a terminal.

        Returns:
            float32 states on the CPU, padded to the longest of ``texts``.

        Raises:
            ValueError: a layer outside 1..num_text_layers, or a long text with ``on_long="error"``.
        """

    @abstractmethod
    def project(self, states: TextStates | Tensor) -> Tensor:
        """Map pooled states ``[..., W]`` (or the pooled states of a :class:`TextStates`) into the joint space ``[..., D]``."""

    @abstractmethod
    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        normalize: bool = True,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> Tensor:
        """Embed texts: float32 ``[N, D]`` on the CPU, L2-normalised unless ``normalize=False``.

        An empty text is an error that names its row, as for ``clipmend encode``.
        """

    @property
    def corrects_scores(self) -> bool:
        """Whether :meth:`score` says more than the cosine of the embeddings, so that it may order a short list anew."""
        return type(self).score is not DualEncoder.score or type(self)._score is not DualEncoder._score

    def pooled(self, states: TextStates) -> Tensor:
        """``[N, L, W]``: the encoder's own pooling of ``states``."""
        return states.pooled

    def prepare_texts(
        self, texts: Sequence[str], *, batch_size: int = 64, on_long: OnLong = "warn", progress: bool = False
    ) -> PreparedTexts:
        """Everything about ``texts`` that :meth:`score` needs, computed once."""
        return PreparedTexts(self.encode_texts(texts, batch_size=batch_size, on_long=on_long, progress=progress))

    def score(
        self,
        images: Tensor | Sequence[Any],
        texts: Sequence[str] | PreparedTexts,
        *,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """Score images against texts; cosine here, a mended encoder adds its correction.

        Args:
            images: ``[N, D]`` normalised image embeddings (a tensor or an array, of any floating-point type), or images to embed.
            texts: texts, or :meth:`prepare_texts` of them.
            pairs: int64 ``[P, 2]`` of (image, text) indices: score only these.

        Returns:
            float32 ``[N, M]``, or ``[P]`` with ``pairs``, where the image embeddings are.

        Raises:
            ValueError: embeddings or pairs of another shape.
        """
        numbers = _as_tensor(images)
        image_embeddings = self.encode_images(images) if numbers is None else numbers.to(torch.float32)  # type: ignore[arg-type]
        if image_embeddings.ndim != 2 or image_embeddings.shape[1] != self.embed_dim:
            raise ValueError(f"image embeddings must be [N, {self.embed_dim}], not {list(image_embeddings.shape)}")
        prepared = texts if isinstance(texts, PreparedTexts) else self.prepare_texts(texts)
        if pairs is not None:
            pairs = torch.as_tensor(pairs, dtype=torch.long)
            if pairs.ndim != 2 or pairs.shape[1] != 2:
                raise ValueError(f"pairs must be [P, 2], of image and text indices, not {list(pairs.shape)}")
        return self._score(image_embeddings, prepared, pairs)

    def _score(self, images: Tensor, texts: PreparedTexts, pairs: Tensor | None) -> Tensor:
        embedding = texts.embedding.to(images)
        if pairs is None:
            return images @ embedding.T
        return (images[pairs[:, 0]] * embedding[pairs[:, 1]]).sum(-1)


def _as_tensor(images: Any) -> Tensor | None:
    """Embeddings given as a tensor or as an array of numbers; ``None`` for anything else."""
    if isinstance(images, Tensor):
        return images
    if not isinstance(images, np.ndarray) or images.dtype.kind != "f":
        return None
    return torch.from_numpy(images if images.flags.writeable else images.copy())  # torch warns of read-only memory


def normalize(x: Tensor) -> Tensor:
    """L2-normalise the last dimension; a zero row stays zero."""
    return F.normalize(x, dim=-1)
