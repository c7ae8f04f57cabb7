"""Flow matching: the loss and the steps, against slow references."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from clipmend.generation.flow import flow_loss, integrate, interpolate, sample_times, time_grid


def test_the_loss_is_that_of_a_slow_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    data, noise = (torch.randn(3, 2, 4, 4, generator=generator) for _ in range(2))
    times = torch.tensor([0.1, 0.5, 0.9])

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return x * t.view(-1, 1, 1, 1) + 0.3

    total, count = 0.0, 0
    for b in range(3):
        for c in range(2):
            for i in range(4):
                for j in range(4):
                    t, d, n = float(times[b]), float(data[b, c, i, j]), float(noise[b, c, i, j])
                    x = (1 - t) * n + t * d
                    total += (x * t + 0.3 - (d - n)) ** 2
                    count += 1
    assert float(flow_loss(velocity, data, noise, times)) == pytest.approx(total / count, rel=1e-5)


def test_the_way_begins_at_the_noise_and_ends_at_the_data() -> None:
    data, noise = torch.ones(2, 3), -torch.ones(2, 3)
    assert torch.equal(interpolate(data, noise, torch.tensor([0.0, 1.0])), torch.stack([noise[0], data[1]]))


@pytest.mark.parametrize("method", ["euler", "heun"])
def test_a_straight_flow_arrives_in_one_step(method: str) -> None:
    data, noise = torch.randn(4, 5), torch.randn(4, 5)
    assert torch.allclose(integrate(lambda x, t: data - noise, noise, 1, method), data, atol=1e-6)  # type: ignore[arg-type]


def test_heun_is_of_second_order_and_euler_of_first() -> None:
    def error(method: str, steps: int) -> float:
        end = integrate(lambda x, t: x, torch.ones(1, 1, dtype=torch.float64), steps, method)  # type: ignore[arg-type]
        return abs(float(end) - math.e)

    assert error("euler", 16) / error("euler", 32) == pytest.approx(2, rel=0.15)
    assert error("heun", 64) < error("euler", 64) / 10  # though its last step is one of Euler's


def test_a_shift_takes_smaller_steps_near_the_noise() -> None:
    plain, shifted = time_grid(8), time_grid(8, 3.0)
    assert plain[0] == shifted[0] == 0
    assert plain[-1] == shifted[-1] == 1
    assert shifted[1] < plain[1] / 2
    assert (shifted.diff() > 0).all()


def test_times_are_inside_and_lean_to_the_noise() -> None:
    times = sample_times(4000, torch.Generator().manual_seed(1), mean=-0.4)
    assert 0 < float(times.min()) < float(times.max()) < 1
    assert float(times.median()) == pytest.approx(1 / (1 + math.exp(0.4)), abs=0.02)


@pytest.mark.parametrize(("steps", "method", "shift"), [(0, "euler", 1.0), (4, "rk4", 1.0), (4, "heun", 0.0)])
def test_bad_options_are_refused(steps: int, method: str, shift: float) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|unknown method"):
        integrate(lambda x, t: x, torch.zeros(1, 1), steps, method, shift)  # type: ignore[arg-type]
