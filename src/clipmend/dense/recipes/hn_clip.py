"""HN-CLIP: the hard-negative loss between whole images and captions, and a late interaction between patches and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clipmend.dense.recipes.base import Joined, Moment, Recipe, register
from clipmend.losses.late_interaction import LateInteractionLoss

__all__ = ["HNClipRecipe"]


@register
@dataclass(frozen=True, kw_only=True)
class HNClipRecipe(Recipe):
    r"""``L_HN + token_weight * L_tok``.

    ``L_HN`` is :class:`~clipmend.losses.HardNegativeLoss` with ``gamma=.5``, ``L_tok``
    :class:`~clipmend.losses.LateInteractionLoss`: each word with its best patch and back, averaged, with in-batch negatives.

    Patches and words are the last states of either tower, each through that tower's own final norm and projection into the joint
    space, and L2-normalised. A SigLIP's image side has no projection but a pooling head: a patch is what the head gives when it
    attends to that patch alone.

    What the paper leaves open, and what is done here:

    - *masking*: the image's class token is no patch; a caption's start and end tokens and its padding are no words. A caption of
      no word keeps its end token.
    - *temperature*: the model's own learned logit scale, unless ``token_scale`` fixes another.

    Source: HN-CLIP (arXiv 2608.18521); late interaction: FILIP (arXiv 2111.07783).

    Args:
        gamma: .5, the paper's.
        token_weight: weight of ``L_tok``, 1 in the paper; 0 leaves it out (and saves its time).
        token_scale: inverse temperature of ``L_tok``; 0: the model's own logit scale, which then learns from both terms.
        margin, label_smoothing, global_loss, learning_rate, weight_decay, head_learning_rate, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "hn-clip"
    about: ClassVar[str] = "adaptive-margin loss and late interaction (HN-CLIP)"

    gamma: float = 0.5
    token_weight: float = 1.0
    token_scale: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("token_weight", "token_scale"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")

    def tokens(self) -> frozenset[str]:
        return frozenset({"image", "text"}) if self.token_weight else frozenset()

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        terms = {"global": self.global_term(batch)}
        if self.token_weight:
            value = LateInteractionLoss()(
                batch.outputs["image_tokens"], batch.outputs["text_tokens"], self.token_scale or batch.scale,
                text_mask=batch.masks["text_words"], **batch.ids(),
            )  # fmt: skip
            terms["tokens"] = self.token_weight * value
        return terms
