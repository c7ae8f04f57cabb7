"""SigLIP's pairwise loss, with the adaptive margin of HN-CLIP on its negatives."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from clipmend.losses.contrastive import Features
from clipmend.losses.hard_negative import HardNegativeLoss
from clipmend.losses.softmax import Contrast

__all__ = ["SigmoidHardNegativeLoss"]


class SigmoidHardNegativeLoss(HardNegativeLoss):
    r"""SigLIP's loss whose negatives are raised by their captions' likeness.

    .. math:: L = -\frac1B \sum_{ij} \log \sigma( z_{ij} (s (S_{ij} + \gamma G_{ij}) + b) ), \quad z_{ii} = 1,\ z_{ij} = -1

    with ``G = stopgrad(t t^T)`` and a zero diagonal. ``gamma=0`` is SigLIP's loss. Pairs that share an image or a caption id are
    left out.

    Source: the loss is SigLIP's (Zhai et al. 2023, arXiv 2303.15343), the margin HN-CLIP's (arXiv 2608.18521); bringing them
    together is this library's extension, of which nothing is published.

    Takes what :class:`~clipmend.losses.hard_negative.HardNegativeLoss` takes, and needs ``logit_bias``: ``model.logit_bias`` of a
    SigLIP model.

    Args:
        gamma: margin's weight.
        margin: ``"live"`` or ``"frozen"``.
        block: rows of the score matrix at a time; ``None``: by size.
        gather, local_loss, group: see :class:`~clipmend.losses.contrastive.ContrastiveLoss`.

    Example::

        loss = SigmoidHardNegativeLoss(gamma=0.25)
        loss(image_features, text_features, model.logit_scale.exp(), model.logit_bias).backward()
    """

    def __init__(
        self,
        gamma: float = 0.5,
        margin: Literal["live", "frozen"] = "live",
        *,
        block: int | None = None,
        gather: bool = False,
        local_loss: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(gamma, margin, block=block, gather=gather, local_loss=local_loss, group=group)

    _others = ("texts",)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}, margin={self.margin!r}"

    def _loss(self, features: Features) -> Tensor:
        if features.bias is None:
            raise ValueError("a sigmoid loss needs logit_bias: model.logit_bias of a SigLIP model (its training starts at -10)")
        left, right = self._forth(features)
        terms = self._terms(features, left, right, both=False)
        total: Tensor = _SigmoidContrast.apply(features.images, features.all_texts, features.scale, features.bias, terms)
        return total / len(features.images)


class _SigmoidContrast(torch.autograd.Function):
    """Sum over the rows; gradients come from the same pass, a block of rows at a time."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor, terms: Contrast) -> Tensor:
        step = terms.rows_at_once()
        own = (rows * columns[terms.first : terms.first + len(rows)]).sum(-1)
        value, to_scale, to_bias = rows.new_zeros(()), rows.new_zeros(()), rows.new_zeros(())
        to_rows, to_columns = torch.empty_like(rows), torch.zeros_like(columns)
        for begin in range(0, len(rows), step):
            here = slice(begin, begin + step)
            scores, out = terms.scores(begin, step, own)
            sign = torch.full_like(scores, -1.0)
            diagonal = torch.arange(len(scores), device=scores.device)
            sign[diagonal, terms.first + begin + diagonal] = 1.0
            signed = sign * (scale * scores + bias)
            cost = F.softplus(-signed)
            slope = -sign * torch.sigmoid(-signed)
            if out is not None:
                cost, slope = cost.masked_fill(out, 0.0), slope.masked_fill(out, 0.0)
            value += cost.sum()
            to_scale += (slope * scores).sum()
            to_bias += slope.sum()
            slope *= scale
            torch.matmul(slope, columns, out=to_rows[here])
            to_columns.addmm_(slope.T, rows[here])
        ctx.save_for_backward(to_rows, to_columns, to_scale, to_bias)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        return (*(weight * gradient for gradient in ctx.saved_tensors), None)
