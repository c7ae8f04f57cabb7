"""Contrast with negatives weighted by their own score."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from clipmend.losses.rivals import DirectedLoss, own_column

__all__ = ["HardnessReweightedLoss", "ImportanceSampledLoss"]


class HardnessReweightedLoss(DirectedLoss):
    r"""Negatives as if drawn in proportion to ``exp(beta s S_ij)``, corrected for those that may be positives.

    With ``N`` negatives, weights ``w_ij = N exp(beta s S_ij) / sum_k exp(beta s S_ik)`` held fixed in the gradient and ``tau`` the
    chance that a negative is a positive,

    .. math:: L_i = -\log \frac{e^{s S_{ii}}}{e^{s S_{ii}} + R_i}, \quad
              R_i = \max\Big( \frac{\sum_j w_{ij} e^{s S_{ij}} - \tau N e^{s S_{ii}}}{1 - \tau},\; N e^{-s} \Big)

    ``beta=0, tau=0`` is InfoNCE. Here hardness is the *current score*; with
    :class:`~clipmend.losses.hard_negative.HardNegativeLoss` it is the captions' likeness, which a confused encoder cannot talk
    away.

    Source: Robinson et al., "Contrastive Learning with Hard Negative Samples" (ICLR 2021, arXiv 2010.04592).

    Args:
        beta: concentration on hard negatives.
        tau: ``tau+`` of the paper; 0 for no correction.
        gather, local_loss, group: see :class:`~clipmend.losses.contrastive.ContrastiveLoss`.

    Example::

        HardnessReweightedLoss(beta=0.25)(image_features, text_features, model.logit_scale.exp()).backward()
    """

    def __init__(
        self, beta: float = 0.25, tau: float = 0.0, *, gather: bool = False, local_loss: bool = False, group: Any = None
    ) -> None:
        super().__init__(gather=gather, local_loss=local_loss, group=group)
        if not 0 <= beta < math.inf or not 0 <= tau < 1:
            raise ValueError(f"beta={beta}, tau={tau}: beta must be finite and not negative, and tau from 0 up to, but not, 1")
        self.beta, self.tau = beta, tau

    def per_row(self, scores: Tensor, scale: Tensor, first: int, left_out: Tensor | None) -> Tensor:
        own, negative = own_column(scores, first, left_out)
        weighted, count = _weighted_negatives(scores, scale, negative, self.beta)  # logs
        own = scale * own
        if self.tau:
            # log((e^weighted - tau N e^own) / (1 - tau)), never under log(N e^-scale): the cosine is at least -1.
            taken = math.log(self.tau) + count.log() + own - weighted
            some = taken < 0  # elsewhere nothing is left, and the floor is what counts
            left = weighted + torch.log1p(-torch.where(some, taken, -1.0).exp()) - math.log1p(-self.tau)
            floor = count.log() - scale
            weighted = torch.where(some, torch.maximum(left, floor), floor).masked_fill(~negative.any(1), -torch.inf)
        return torch.logaddexp(own, weighted) - own


class ImportanceSampledLoss(DirectedLoss):
    r"""DiHT's contrast: negatives weighted by importance, the positive's share of the denominator weighed by ``alpha``.

    .. math:: L_i = -\log \frac{e^{s S_{ii}}}{\alpha e^{s S_{ii}} + \sum_{j \ne i} w_{ij} e^{s S_{ij}}}

    with ``w_ij`` as in :class:`HardnessReweightedLoss`. ``alpha=1, beta=0`` is InfoNCE. With ``alpha`` under 1 the loss can be
    negative. With ``alpha=0`` a row without a negative costs nothing. That the weights are held fixed in the gradient is this
    library's reading.

    Source: Radenovic et al., "Filtering, Distillation, and Hard Negatives for Vision-Language Pre-Training" (CVPR 2023,
    arXiv 2301.02280).

    Args:
        alpha: weight of the positive in the denominator.
        beta: concentration on hard negatives.
        gather, local_loss, group: see :class:`~clipmend.losses.contrastive.ContrastiveLoss`.

    Example::

        ImportanceSampledLoss()(image_features, text_features, model.logit_scale.exp()).backward()
    """

    def __init__(
        self, alpha: float = 0.999, beta: float = 0.25, *, gather: bool = False, local_loss: bool = False, group: Any = None
    ) -> None:
        super().__init__(gather=gather, local_loss=local_loss, group=group)
        if not 0 <= beta < math.inf or not 0 <= alpha <= 1:
            raise ValueError(f"alpha={alpha}, beta={beta}: alpha lies from 0 to 1, and beta must be finite and not negative")
        self.alpha, self.beta = alpha, beta

    def per_row(self, scores: Tensor, scale: Tensor, first: int, left_out: Tensor | None) -> Tensor:
        own, negative = own_column(scores, first, left_out)
        weighted, _ = _weighted_negatives(scores, scale, negative, self.beta)
        own = scale * own
        if self.alpha:
            return torch.logaddexp(own + math.log(self.alpha), weighted) - own
        some = negative.any(1)  # without a negative nothing would be left of the denominator
        return torch.where(some, torch.where(some, weighted, 0.0) - own, 0.0)


def _weighted_negatives(scores: Tensor, scale: Tensor, negative: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """``[B]`` logs of ``sum_j w_ij exp(s S_ij)`` (``-inf`` without a negative) and ``[B]`` counts of negatives, 1 at least."""
    logits = (scale * scores).masked_fill(~negative, -torch.inf)
    count = negative.sum(1).clamp(min=1).to(scores.dtype)
    # A row without a negative has nothing to weigh: its softmax would not be a number, and neither would its gradient.
    lonely = ~negative.any(1, keepdim=True)
    with torch.no_grad():
        log_weights = torch.log_softmax((beta * logits).masked_fill(lonely, 0.0).masked_fill(~negative & ~lonely, -torch.inf), 1)
        log_weights = (log_weights + count.log()[:, None]).masked_fill(~negative, 0.0)
    total = torch.logsumexp((logits + log_weights).masked_fill(lonely, 0.0), 1)
    return total.masked_fill(lonely[:, 0], -torch.inf), count
