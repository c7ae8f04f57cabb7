"""DoRA: LoRA with a magnitude of its own for every output of an adapted matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clipmend.dense.recipes.base import register
from clipmend.dense.recipes.lora import AdapterRecipe

__all__ = ["DoraRecipe"]


@register
@dataclass(frozen=True, kw_only=True)
class DoraRecipe(AdapterRecipe):
    """InfoNCE with DoRA adapters (Liu et al., ICML 2024); with ``gamma=.5``, HN-CLIP's "DoRA + L_HN".

    For models of transformers. open_clip packs query, key and value into one matrix, which DoRA does not know how to adapt; there,
    ``targets="mlp"`` or the recipe ``lora``.

    Args:
        rank, alpha, dropout, targets, positions: see :class:`~clipmend.dense.recipes.lora.AdapterRecipe`.
        gamma, margin, label_smoothing, global_loss, learning_rate, weight_decay, head_learning_rate, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "dora"
    about: ClassVar[str] = "InfoNCE, weight-decomposed adapters alone trained and merged (DoRA)"

    dora: ClassVar[bool] = True
