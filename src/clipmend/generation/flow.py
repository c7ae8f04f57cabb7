"""Flow matching along straight lines: the loss that trains a velocity, and the steps that follow one from noise to data.

``x_t = (1 - t) * noise + t * data``, so that ``t`` is 0 at the noise and 1 at the data, and the velocity is ``data - noise``
(Lipman et al., "Flow matching for generative modeling", ICLR 2023; Liu et al., "Flow straight and fast", ICLR 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

__all__ = ["METHODS", "Method", "flow_loss", "integrate", "interpolate", "sample_times", "time_grid"]

Method = Literal["euler", "heun"]
METHODS: tuple[Method, ...] = ("euler", "heun")
Velocity = Callable[[Tensor, Tensor], Tensor]


def sample_times(count: int, generator: torch.Generator, mean: float = -0.4, std: float = 1.0) -> Tensor:
    """Times to train at, ``[count]`` in 0..1: ``sigmoid(mean + std * normal)``.

    The middle of the way is where there is most to learn (Esser et al., "Scaling rectified flow transformers", ICML 2024); a mean
    below 0 leans to the noise, since neighbouring patches of a picture agree and so tell more of it than one of them would.
    """
    return torch.sigmoid(mean + std * torch.randn(count, generator=generator))


def interpolate(data: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """``x_t`` of ``data`` and ``noise``, ``[B, ...]`` both, at ``times [B]``."""
    t = times.view(-1, *[1] * (data.dim() - 1))
    return (1 - t) * noise + t * data


def flow_loss(velocity: Velocity, data: Tensor, noise: Tensor, times: Tensor) -> Tensor:
    """Mean square error of a velocity, a number.

    Args:
        velocity: ``(x_t [B, ...], t [B])`` to the velocity there, ``[B, ...]``.
        data, noise: ``[B, ...]``.
        times: ``[B]``.
    """
    return (velocity(interpolate(data, noise, times), times).float() - (data - noise)).square().mean()


def time_grid(steps: int, shift: float = 1.0) -> Tensor:
    """``[steps + 1]`` times from 0 to 1; a ``shift`` above 1 takes smaller steps near the noise, where the layout is decided.

    Raises:
        ValueError: no steps, or a shift that is not positive.
    """
    if steps < 1 or not shift > 0:
        raise ValueError(f"steps must be at least 1 and shift positive, not {steps} and {shift:g}")
    u = torch.linspace(0, 1, steps + 1)
    return u / (u + shift * (1 - u))


@torch.no_grad()
def integrate(velocity: Velocity, noise: Tensor, steps: int = 16, method: Method = "heun", shift: float = 1.0) -> Tensor:
    """Follow a velocity from noise to data.

    Args:
        velocity: as for :func:`flow_loss`.
        noise: ``[B, ...]``.
        steps: how many; ``"heun"`` asks for the velocity twice in each but the last.
        method: ``"euler"``, or ``"heun"``, which corrects each step by the velocity at its end.
        shift: as for :func:`time_grid`.

    Raises:
        ValueError: an unknown method, no steps.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    grid = time_grid(steps, shift)
    x = noise
    for step in range(steps):
        here, there = float(grid[step]), float(grid[step + 1])
        v = velocity(x, torch.full((len(x),), here, device=x.device))
        ahead = x + (there - here) * v
        if method == "heun" and step + 1 < steps:
            after = velocity(ahead, torch.full((len(x),), there, device=x.device))
            ahead = x + (there - here) * (v + after) / 2
        x = ahead
    return x
