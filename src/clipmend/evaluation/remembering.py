"""Texts that go through the backbone once, however many patches are measured on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from clipmend.backbones.base import DualEncoder, TextStates
from clipmend.backbones.wrapper import TextSideWrapper

__all__ = ["RememberedTexts"]


class RememberedTexts(TextSideWrapper):
    """The backbone as it is, but the states of texts that were asked for before, at the same layers, are not computed again.

    For several patches that read the same layers and are measured on the same texts. Only the states at the layers asked for last
    are held, all of them in memory.

    Args:
        encoder: the backbone.
    """

    def __init__(self, encoder: DualEncoder) -> None:
        super().__init__(encoder)
        self.name = encoder.name
        self._layers: tuple[Any, Any] = ((), ())
        self._states: dict[tuple[str, ...], TextStates] = {}

    def encode_texts(self, texts: Sequence[str], **options: Any) -> torch.Tensor:
        return self.encoder.encode_texts(texts, **options)

    def text_states(
        self, texts: Sequence[str], layers: Sequence[int], *, token_layers: Sequence[int] | None = None, **options: Any
    ) -> TextStates:
        asked = tuple(layers), None if token_layers is None else tuple(token_layers)
        if asked != self._layers:
            self._layers, self._states = asked, {}
        key = tuple(texts)
        if key not in self._states:
            self._states[key] = super().text_states(texts, layers, token_layers=token_layers, **options)
        return self._states[key]
