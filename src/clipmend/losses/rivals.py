"""What the base of the losses that weigh or move negatives otherwise shares: one direction at a time, by autograd."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from clipmend.losses.contrastive import ContrastiveLoss, Features

__all__ = ["DirectedLoss", "own_column"]


class DirectedLoss(ContrastiveLoss):
    """Half the mean over images of ``per_row`` on image-to-text scores, and half the same on text-to-image scores.

    Scores are formed whole: these losses are for comparison at the batch sizes of fine-tuning.
    """

    def _loss(self, features: Features) -> Tensor:
        out = features.left_out()
        forth = features.images @ features.all_texts.T  # [B, N]
        back = features.texts @ features.all_images.T
        per_row = self.per_row(forth, features.scale, features.first, out) + self.per_row(back, features.scale, features.first, out)
        return 0.5 * per_row.mean()

    @abstractmethod
    def per_row(self, scores: Tensor, scale: Tensor, first: int, left_out: Tensor | None) -> Tensor:
        """What each row costs.

        Args:
            scores: ``[B, N]`` cosines.
            scale: scalar.
            first: own column of row 0.
            left_out: ``[B, N]`` bool: pairs that are neither the own one nor negatives.

        Returns:
            ``[B]``.
        """


def own_column(scores: Tensor, first: int, left_out: Tensor | None) -> tuple[Tensor, Tensor]:
    """``[B]`` scores of the rows' own columns, and ``[B, N]`` bool: which columns are negatives."""
    rows = torch.arange(len(scores), device=scores.device)
    negative = torch.ones_like(scores, dtype=torch.bool) if left_out is None else ~left_out
    negative[rows, first + rows] = False
    return scores[rows, first + rows], negative
