"""InfoNCE whose negatives must be beaten by a margin that grows with how alike the two captions are (HN-CLIP)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from clipmend.losses.contrastive import ContrastiveLoss, Features
from clipmend.losses.softmax import Contrast, softmax_contrast

__all__ = ["HardNegativeLoss"]


class HardNegativeLoss(ContrastiveLoss):
    r"""Adaptive-margin contrastive loss: a drop-in for the global InfoNCE term of any fine-tuning recipe.

    Long captions of one domain resemble each other: the mean cosine between captions is .84 to .88, so that plain InfoNCE is soon
    zero while near-twins stay confused. Here each negative is raised by its caption's similarity to the true one before the
    softmax: with ``S = v t^T``, ``G = stopgrad(t t^T)`` with a zero diagonal and ``s`` the logit scale,

    .. math:: L = \tfrac12 [ CE(s (S + \gamma G), i) + CE(s (S + \gamma G)^T, i) ]

    so that pair ``i`` must beat negative ``j`` by ``gamma * G_ij``; twins weigh more, by ``exp(s gamma (G_ij - G_ik))``.
    ``gamma`` and ``s`` act through their product, the margin carries no gradient, and ``gamma=0`` is InfoNCE.

    Source: HN-CLIP (arXiv 2608.18521). That repeated ids leave the denominator is this library's: the same caption twice has
    ``G = 1``, and a true match would be punished most.

    ========================  ==========  ==================================================================
    input                     shape       what
    ========================  ==========  ==================================================================
    image_features            ``[B, D]``  L2-normalised
    text_features             ``[B, D]``  L2-normalised, row for row
    logit_scale               scalar      ``model.logit_scale.exp()``
    margin_features           ``[B, M]``  with ``margin="frozen"``: the captions by a frozen encoder
    image_ids, caption_ids    ``[B]``     optional; repeated ones are no negatives
    ========================  ==========  ==================================================================

    When to use it: fine-tuning on captions of many sentences, or on any data with near-duplicates. With short captions of varied
    images ``G`` is small and the loss is close to InfoNCE. The logit scale should stay clamped to at most 100.

    Memory and time: the scores are formed a block of rows at a time, similarity and margin in one matrix product, used for both
    directions; gradients come from the same pass, and no ``[B, B]`` matrix is kept.

    Args:
        gamma: margin's weight; the paper's .5 (.25 to 1 are a plateau there).
        margin: ``"live"``: from this step's text features, recomputed as the encoder learns. ``"frozen"``: from ``margin_features``
            (see :class:`~clipmend.losses.margins.FrozenMargins`), which the paper found worse.
        label_smoothing: share of the target spread evenly over the entries; the paper uses none.
        block: rows of the score matrix at a time; ``None``: all at once while it has no more than four million entries.
        gather, local_loss, group: see :class:`~clipmend.losses.contrastive.ContrastiveLoss`.

    Example::

        loss = HardNegativeLoss(gamma=0.5)
        loss(image_features, text_features, model.logit_scale.exp()).backward()
    """

    def __init__(
        self,
        gamma: float = 0.5,
        margin: Literal["live", "frozen"] = "live",
        label_smoothing: float = 0.0,
        *,
        block: int | None = None,
        gather: bool = False,
        local_loss: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(gather=gather, local_loss=local_loss, group=group)
        if not 0 <= gamma < float("inf"):
            raise ValueError(f"gamma={gamma}: the margin's weight is 0 (InfoNCE) or more, .5 in the paper")
        if margin not in ("live", "frozen"):
            raise ValueError(f"margin={margin!r}: say 'live' (this step's captions) or 'frozen' (margin_features)")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} must be from 0 up to, but not, 1")
        if block is not None and block < 1:
            raise ValueError(f"block={block}: at least one row at a time")
        self.gamma, self.margin, self.label_smoothing, self.block = gamma, margin, label_smoothing, block

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}, margin={self.margin!r}, label_smoothing={self.label_smoothing}"

    def _check_margins(self, margin_features: Tensor | None) -> None:
        if self.margin == "frozen" and margin_features is None:
            raise ValueError("margin='frozen' needs margin_features: embeddings of the captions by the frozen encoder, a row each")
        if self.margin == "live" and margin_features is not None:
            raise ValueError("margin_features are of use to margin='frozen' only; this loss takes its margin from the live texts")

    def _loss(self, features: Features) -> Tensor:
        if features.square:  # the other direction is the columns of the same matrix
            forth = self._terms(features, *self._forth(features), both=True)
            # Gathered rows though they are this process's own: another one without any waits for their gradient.
            total = softmax_contrast(features.all_images, features.all_texts, features.scale, forth)
        else:
            forth = self._terms(features, *self._forth(features), both=False)
            back = self._terms(features, *self._back(features), both=False)
            total = 0.5 * (
                softmax_contrast(features.images, features.all_texts, features.scale, forth)
                + softmax_contrast(features.texts, features.all_images, features.scale, back)
            )
        return total / len(features.images)

    def _forth(self, features: Features) -> tuple[Tensor, Tensor]:
        """Both sides of the product that gives ``v_i . t_j + gamma G_ij``: with the live margin ``(v_i + gamma t_i) . t_j``."""
        images, others = features.images.detach(), features.all_texts.detach()
        if self.gamma == 0:
            return images, others
        if features.margins is None or features.all_margins is None:
            return images + self.gamma * features.texts.detach(), others
        return torch.cat([images, self.gamma * features.margins], 1), torch.cat([others, features.all_margins], 1)

    def _back(self, features: Features) -> tuple[Tensor, Tensor]:
        """The same from texts to images, ``t_i . v_j + gamma G_ij``: with the live margin ``t_i . (v_j + gamma t_j)``."""
        texts, others = features.texts.detach(), features.all_images.detach()
        if self.gamma == 0:
            return texts, others
        if features.margins is None or features.all_margins is None:
            return texts, others + self.gamma * features.all_texts.detach()
        return torch.cat([texts, self.gamma * features.margins], 1), torch.cat([others, features.all_margins], 1)

    def _terms(self, features: Features, left: Tensor, right: Tensor, both: bool) -> Contrast:
        return Contrast(left, right, features.first, both, self.label_smoothing, features.ids, features.all_ids, self.block)
