"""Softmax contrast with margins: value and gradients worked out by hand, one block of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Contrast", "softmax_contrast"]

_DENSE_ENTRIES = 2**22
"""Entries of the score matrix that are held at once where no block is asked for: 16 MB in float32, a few copies of it at a time."""


@dataclass(frozen=True)
class Contrast:
    """What the scores of one direction, or of both, are made of.

    The score of row ``i`` and column ``j`` is ``left[i] . right[j]``: similarity and margin in one product, since
    ``v_i . t_j + gamma t_i . t_j = (v_i + gamma t_i) . t_j``. The own column of a row carries no margin: its score is
    ``rows[i] . columns[first + i]``.

    Args:
        left: ``[B, K]``, without gradient.
        right: ``[N, K]``, without gradient.
        first: column of the first row's own partner.
        both: add the columns' direction too (``B == N``, ``first == 0``).
        smoothing: label smoothing, spread over the entries that are left.
        row_ids: a list of ``[B]`` integers a kind of id; ``None`` where there are none.
        column_ids: the same of the columns, ``[N]`` each. Entries that share an id of one kind are left out, but for a row's own.
        block: rows at a time; ``None`` chooses by size.
    """

    left: Tensor
    right: Tensor
    first: int = 0
    both: bool = True
    smoothing: float = 0.0
    row_ids: tuple[Tensor, ...] = ()
    column_ids: tuple[Tensor, ...] = ()
    block: int | None = None

    def rows_at_once(self) -> int:
        """How many rows are worked out together."""
        count, columns = len(self.left), len(self.right)
        if self.block is not None:
            return min(self.block, count)
        return min(count, max(64, _DENSE_ENTRIES // max(columns, 1)))

    def scores(self, begin: int, step: int, own: Tensor) -> tuple[Tensor, Tensor | None]:
        """``[b, N]`` scores of the rows from ``begin`` on and ``[b, N]`` bool: what is left out; ``own``: each row's own score."""
        here = slice(begin, begin + step)
        scores = self.left[here] @ self.right.T
        diagonal = torch.arange(len(scores), device=scores.device)
        scores[diagonal, self.first + begin + diagonal] = own[here]
        if not self.row_ids:
            return scores, None
        out = torch.zeros_like(scores, dtype=torch.bool)
        for of_rows, of_columns in zip(self.row_ids, self.column_ids, strict=True):
            out |= of_rows[here, None] == of_columns
        out[diagonal, self.first + begin + diagonal] = False
        return scores, out


def softmax_contrast(rows: Tensor, columns: Tensor, scale: Tensor, terms: Contrast) -> Tensor:
    """Sum over the rows of the cross entropy of ``scale * scores`` with each row's own column as the target.

    With ``terms.both``, half of that sum and half of the same over the columns. Gradients reach ``rows``, ``columns`` and
    ``scale`` (not ``left`` and ``right``); they are worked out in the forward pass, so that no ``[B, N]`` matrix is ever kept, and
    cannot be differentiated again.

    Args:
        rows: ``[B, D]``.
        columns: ``[N, D]``.
        scale: scalar, the exponentiated logit scale.
        terms: the scores and what is left out of them.

    Returns:
        a scalar.
    """
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (rows, columns, scale))
    if not wanted:
        return _value_and_gradients(rows, columns, scale, terms, gradients=False)[0]
    total: Tensor = _SoftmaxContrast.apply(rows, columns, scale, terms)
    return total


class _SoftmaxContrast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, terms: Contrast) -> Tensor:
        value, *gradients = _value_and_gradients(rows, columns, scale, terms, gradients=True)
        ctx.save_for_backward(*gradients)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        return (*(weight * gradient for gradient in ctx.saved_tensors), None)


def _value_and_gradients(
    rows: Tensor, columns: Tensor, scale: Tensor, terms: Contrast, gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count, most = len(rows), len(columns)
    step = terms.rows_at_once()
    share = 0.5 if terms.both else 1.0
    own = (rows * columns[terms.first : terms.first + count]).sum(-1)  # [B]
    scale = scale + (scale == 0) * 1e-30  # its own gradient is worked out from the logits, and divided by it
    kept = None  # the only block's logits, where there is one
    row_lse, row_sum, row_left = rows.new_empty(count), rows.new_zeros(count), rows.new_full((count,), float(most))
    # A column's own score is the first maximum: a block may leave out all of a column.
    column_max = scale * own if terms.both else own
    column_exp = torch.zeros_like(column_max)
    column_sum, column_left = rows.new_zeros(most), rows.new_full((most,), float(count))
    for begin in range(0, count, step):
        logits, out = _block(begin, step, own, scale, terms)
        here = slice(begin, begin + len(logits))
        row_lse[here] = logits.logsumexp(1)
        if terms.both:
            highest = torch.maximum(column_max, logits.amax(0))
            column_exp = column_exp * (column_max - highest).exp() + (logits - highest).exp_().sum(0)
            column_max = highest
        if terms.smoothing:
            finite = logits if out is None else logits.masked_fill(out, 0.0)
            row_sum[here] = finite.sum(1)
            column_sum += finite.sum(0)
        if out is not None:
            row_left[here] -= out.sum(1)
            column_left -= out.sum(0)
        kept = (logits, out) if step >= count else None
    spread = terms.smoothing
    value = share * (row_lse - (1 - spread) * scale * own - spread * row_sum / row_left).sum()
    if terms.both:
        column_lse = column_max + column_exp.log()
        value = value + share * (column_lse - (1 - spread) * scale * own - spread * column_sum / column_left).sum()
    if not gradients:
        return value, own, own, own
    to_rows, to_columns, to_scale = torch.empty_like(rows), torch.zeros_like(columns), torch.zeros_like(scale)
    for begin in range(0, count, step):
        logits, out = kept if kept is not None else _block(begin, step, own, scale, terms)
        here = slice(begin, begin + len(logits))
        # d value / d logit: the softmax of either direction less its target.
        slope = (logits - row_lse[here, None]).exp_()
        if terms.both:
            slope += (logits - column_lse).exp_()
        if spread:
            even = spread / row_left[here, None] + (spread / column_left if terms.both else 0.0)
            slope -= even if out is None else even.masked_fill(out, 0.0)
        diagonal = torch.arange(len(logits), device=rows.device)
        slope[diagonal, terms.first + begin + diagonal] -= (1 - spread) * (2.0 if terms.both else 1.0)
        slope *= share
        if out is not None:
            logits = logits.masked_fill(out, 0.0)  # -inf * 0 is not a number
        to_scale += (slope * logits).sum() / scale
        slope *= scale
        torch.matmul(slope, columns, out=to_rows[here])
        to_columns.addmm_(slope.T, rows[here])
    return value, to_rows, to_columns, to_scale


def _block(begin: int, step: int, own: Tensor, scale: Tensor, terms: Contrast) -> tuple[Tensor, Tensor | None]:
    """``[b, N]`` logits of the rows from ``begin`` on, ``-inf`` where left out, and what is left out."""
    scores, out = terms.scores(begin, step, own)
    scores *= scale
    return (scores if out is None else scores.masked_fill_(out, -torch.inf)), out
