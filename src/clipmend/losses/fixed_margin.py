"""InfoNCE with one margin for every negative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clipmend.losses.rivals import DirectedLoss, own_column

__all__ = ["FixedMarginLoss"]


class FixedMarginLoss(DirectedLoss):
    r"""``CE(s (S + m (1 - I)), i)``, both ways: each negative must be beaten by ``m``, twin or stranger.

    What is left of an adaptive margin when it does not adapt: a comparison for
    :class:`~clipmend.losses.hard_negative.HardNegativeLoss`. ``margin=0`` is InfoNCE.

    Source: additive margin softmax (Wang et al. 2018, arXiv 1801.05599), on both directions of a batch.

    Args:
        margin: ``m``, in units of the cosine.
        gather, local_loss, group: see :class:`~clipmend.losses.contrastive.ContrastiveLoss`.

    Example::

        FixedMarginLoss(margin=0.4)(image_features, text_features, model.logit_scale.exp()).backward()
    """

    def __init__(self, margin: float = 0.4, *, gather: bool = False, local_loss: bool = False, group: Any = None) -> None:
        super().__init__(gather=gather, local_loss=local_loss, group=group)
        if not 0 <= margin < float("inf"):
            raise ValueError(f"margin={margin}: 0 (InfoNCE) or more")
        self.margin = margin

    def per_row(self, scores: Tensor, scale: Tensor, first: int, left_out: Tensor | None) -> Tensor:
        own, negative = own_column(scores, first, left_out)
        logits = scale * (scores + self.margin * negative.to(scores.dtype))
        if left_out is not None:
            logits = logits.masked_fill(left_out, -torch.inf)
        return logits.logsumexp(1) - scale * own
