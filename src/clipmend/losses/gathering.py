"""Features of every process, with their gradients, also where the processes hold different numbers of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["gather", "gather_counts", "world_of"]


def world_of(group: Any = None) -> tuple[int, int]:
    """``(rank, processes)``; ``(0, 1)`` where torch.distributed is not in use."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def gather_counts(count: int, device: torch.device, group: Any = None) -> list[int]:
    """How many rows each process holds, in the order of their ranks."""
    own = torch.tensor([count], dtype=torch.int64, device=device)
    found = [torch.zeros_like(own) for _ in range(world_of(group)[1])]
    dist.all_gather(found, own, group=group)
    return [int(value) for value in found]


def gather(rows: Tensor, counts: list[int], group: Any = None) -> Tensor:
    """``[B, ...]`` of this process to ``[sum(counts), ...]`` of all, in the order of their ranks.

    Gradients flow to every process: what a process is given back is the *sum* over all processes of the gradients at its rows. The
    last batch of an epoch may be uneven: shorter ones are padded for the exchange and trimmed after it.

    Args:
        rows: this process's; ``counts[rank]`` of them.
        counts: rows of each process (see :func:`gather_counts`).
        group: process group; ``None`` for all.

    Returns:
        the joined rows, on every process the same.
    """
    if torch.is_grad_enabled() and rows.requires_grad:
        joined: Tensor = _Gather.apply(rows, counts, group)
        return joined
    return _exchange(rows, counts, group)


def _exchange(rows: Tensor, counts: list[int], group: Any) -> Tensor:
    most = max(counts)
    padded = rows.new_zeros((most, *rows.shape[1:]))
    padded[: len(rows)] = rows
    found = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(found, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], group: Any) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return _exchange(rows.detach(), counts, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        slope = slope.contiguous().clone()
        dist.all_reduce(slope, group=ctx.group)
        rank = dist.get_rank(ctx.group)
        begin = sum(ctx.counts[:rank])
        return slope[begin : begin + ctx.counts[rank]], None, None
