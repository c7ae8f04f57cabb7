"""Muon: momentum whose update of each matrix is made orthogonal, so that all its directions are learnt at one speed.

After Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, with the size of the update of Liu et al.,
"Muon is scalable for LLM training", 2025. torch.optim.Muon takes matrices alone, and orthogonalises in bfloat16, which a processor
without such instructions emulates, some fifty times slower: here it is done in float32, and a convolution counts as a matrix too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Muon", "orthogonal"]

_POLYNOMIAL = (3.4445, -4.7750, 2.0315)  # the published one: singular values end between about .7 and 1.2


@torch.no_grad()
def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """About the nearest matrices with orthonormal rows, by Newton-Schulz iteration.

    Args:
        matrices: ``[N, R, C]`` with R at most C. A matrix of zeros stays so.
        iterations: of the quintic polynomial.

    Returns:
        ``[N, R, C]`` with singular values near 1.
    """
    a, b, c = _POLYNOMIAL
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    for _ in range(iterations):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(Optimizer):
    """Muon for matrices and the kernels of convolutions, which are read as matrices with a row for each output.

    Args:
        parameters: tensors of two dimensions or more, in float32.
        lr: root mean square of an update, in fifths; as large as one that AdamW takes.
        momentum: decay of the gradients' average; Nesterov's.
        weight_decay: share of ``lr`` by which weights shrink.

    Raises:
        ValueError: a parameter of one dimension.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float = 3e-3, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        flat = [tuple(p.shape) for group in self.param_groups for p in group["params"] if p.dim() < 2]
        if flat:
            raise ValueError(f"Muon is for matrices and kernels, not for a parameter of shape {flat[0]}: give that to AdamW")

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is ever given
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[nn.Parameter, Tensor, bool]]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                kept = self.state[p]["momentum"]
                kept.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(kept, group["momentum"]).flatten(1)
                tall = update.shape[0] > update.shape[1]
                update = update.T if tall else update
                by_shape.setdefault(tuple(update.shape), []).append((p, update, tall))
            for shape, rows in by_shape.items():  # matrices of one shape at once: fewer, larger products
                size = group["lr"] * 0.2 * max(shape) ** 0.5
                for (p, _, tall), made in zip(rows, orthogonal(torch.stack([row for _, row, _ in rows])), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_((made.T if tall else made).reshape(p.shape), alpha=-size)
