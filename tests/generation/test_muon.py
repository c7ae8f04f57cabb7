"""Muon against PyTorch's own on matrices, and on what that does not take."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from clipmend.generation.muon import Muon, orthogonal


def gradients(shape: tuple[int, ...], count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def updated(optimizer: torch.optim.Optimizer, p: nn.Parameter, told: list[Tensor]) -> Tensor:
    for gradient in told:
        p.grad = gradient.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("shape", [(12, 12), (6, 20), (20, 6)])
def test_matrices_go_where_pytorch_takes_them(shape: tuple[int, int]) -> None:
    start, told = gradients(shape, 1)[0], gradients(shape, 4)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours = updated(Muon([mine], lr=0.1, weight_decay=0.1), mine, told)
    known = updated(torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), theirs, told)
    assert float((ours - known).norm()) < 0.03 * float((known - start).norm())  # theirs is of bfloat16


def test_a_kernel_is_updated_as_the_matrix_with_a_row_for_each_output() -> None:
    start, told = gradients((8, 3, 3, 3), 1)[0], gradients((8, 3, 3, 3), 3)
    kernel, matrix = nn.Parameter(start.clone()), nn.Parameter(start.flatten(1).clone())
    updated(Muon([kernel]), kernel, told)
    updated(Muon([matrix]), matrix, [gradient.flatten(1) for gradient in told])
    assert torch.equal(kernel.flatten(1), matrix)


def test_matrices_beside_each_other_change_nothing_and_none_without_gradient_moves() -> None:
    told = gradients((6, 20), 2)
    alone = nn.Parameter(torch.zeros(6, 20))
    updated(Muon([alone]), alone, told)
    some = [nn.Parameter(torch.zeros(6, 20)), nn.Parameter(torch.zeros(20, 6)), nn.Parameter(torch.ones(6, 20))]
    optimizer = Muon(some)
    for gradient in told:
        some[0].grad, some[1].grad = gradient.clone(), gradient.T.clone()
        optimizer.step()
    assert torch.allclose(some[0], alone, atol=1e-6)
    assert torch.allclose(some[1], alone.T, atol=1e-6)
    assert torch.equal(some[2], torch.ones(6, 20))


@given(rows=st.integers(1, 8), more=st.integers(0, 8), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 2**16))
def test_what_is_made_has_singular_values_near_one_whatever_its_scale(rows: int, more: int, scale: float, seed: int) -> None:
    u, _, v = torch.linalg.svd(torch.randn(rows, rows + more, generator=torch.Generator().manual_seed(seed)), full_matrices=False)
    values = torch.linspace(0.1, 1, rows)
    made = orthogonal(scale * (u * values @ v)[None])[0]
    found = torch.linalg.svdvals(made)
    assert 0.6 < float(found.min()) <= float(found.max()) < 1.3
    assert float((made * (u @ v)).sum()) > 0.6 * rows  # of the same directions


def test_no_gradient_at_all_moves_nothing_and_stays_finite() -> None:
    p = nn.Parameter(torch.ones(4, 4))
    updated(Muon([p], weight_decay=0.0), p, [torch.zeros(4, 4)])
    assert torch.equal(p, torch.ones(4, 4))


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(5,\): give that to AdamW"):
        Muon([nn.Parameter(torch.zeros(5))])
