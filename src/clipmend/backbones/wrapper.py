"""An encoder around another one that changes what texts become and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from clipmend.backbones.base import DualEncoder, Fingerprint, OnLong, TextStates

__all__ = ["TextSideWrapper"]


class TextSideWrapper(DualEncoder):
    """Images, states, projection, sizes and fingerprint are the wrapped encoder's own: an existing image index keeps working.

    A subclass defines ``name`` and ``encode_texts``.

    Args:
        encoder: the encoder to wrap; it is not changed.
    """

    def __init__(self, encoder: DualEncoder) -> None:
        self.encoder = encoder
        self.embed_dim, self.text_width = encoder.embed_dim, encoder.text_width
        self.num_text_layers, self.context_length = encoder.num_text_layers, encoder.context_length
        self.logit_scale, self.device, self.text_pooling = encoder.logit_scale, encoder.device, encoder.text_pooling

    @property
    def fingerprint(self) -> Fingerprint:
        """The wrapped encoder's: image embeddings, and an index of them, are the same."""
        return self.encoder.fingerprint

    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, normalize: bool = True, progress: bool = False
    ) -> Tensor:
        """The wrapped encoder's image embeddings, untouched."""
        return self.encoder.encode_images(images, batch_size=batch_size, normalize=normalize, progress=progress)

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
        """The wrapped encoder's states, untouched; ``embedding`` too is the plain one."""
        return self.encoder.text_states(
            texts, layers, token_layers=token_layers, embedding=embedding, batch_size=batch_size, on_long=on_long, progress=progress
        )

    def project(self, states: TextStates | Tensor) -> Tensor:
        """The wrapped encoder's projection."""
        return self.encoder.project(states)
