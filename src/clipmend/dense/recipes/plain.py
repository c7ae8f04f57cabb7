"""Plain fine-tuning: the baseline that most methods with more machinery do not beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clipmend.dense.recipes.base import Recipe, register

__all__ = ["PlainRecipe"]


@register
@dataclass(frozen=True, kw_only=True)
class PlainRecipe(Recipe):
    """InfoNCE between images and captions, all weights trained; of a SigLIP, its own sigmoid loss.

    HN-CLIP's tables list it as "plain fine-tuning". With ``gamma`` it is the hard-negative loss alone.

    Args:
        gamma, margin, label_smoothing, global_loss, learning_rate, weight_decay, head_learning_rate, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "plain"
    about: ClassVar[str] = "InfoNCE alone, the baseline"
