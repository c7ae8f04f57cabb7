"""Hinge against the hardest negative of the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clipmend.losses.rivals import DirectedLoss, own_column

__all__ = ["HardestTripletLoss"]


class HardestTripletLoss(DirectedLoss):
    r"""``max_j [m + S_ij - S_ii]_+``, both ways: only the hardest negative of the batch counts.

    A row without negatives costs nothing. The logit scale is not used.

    Source: VSE++ (Faghri et al., BMVC 2018, arXiv 1707.05612).

    Args:
        margin: ``m``, in units of the cosine.
        gather, local_loss, group: see :class:`~clipmend.losses.contrastive.ContrastiveLoss`.

    Example::

        HardestTripletLoss()(image_features, text_features, 1.0).backward()
    """

    def __init__(self, margin: float = 0.2, *, gather: bool = False, local_loss: bool = False, group: Any = None) -> None:
        super().__init__(gather=gather, local_loss=local_loss, group=group)
        if not 0 <= margin < float("inf"):
            raise ValueError(f"margin={margin}: 0 or more")
        self.margin = margin

    def per_row(self, scores: Tensor, scale: Tensor, first: int, left_out: Tensor | None) -> Tensor:
        own, negative = own_column(scores, first, left_out)
        hardest = scores.masked_fill(~negative, -torch.inf).amax(1)
        return torch.relu(self.margin + hardest - own)
