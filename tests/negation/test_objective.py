"""The objectives against loops that say what they mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from clipmend.negation.objective import pair_loss, preservation_loss, question_loss, released_loss, truthful_loss


def unit(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return F.normalize(torch.from_numpy(rng.standard_normal(shape)), dim=-1)


def slow_truthful(v, t, truth, own, scale):
    total, count = 0.0, 0
    for j in range(len(t)):
        if own[j] < 0:
            continue
        i = int(own[j])
        right = torch.exp(scale * v[i] @ t[j])
        by_image = right + sum(torch.exp(scale * v[k] @ t[j]) for k in range(len(v)) if truth[k, j] == -1)
        by_caption = right + sum(torch.exp(scale * v[i] @ t[k]) for k in range(len(t)) if truth[i, k] == -1)
        total = total - torch.log(right / by_image) - torch.log(right / by_caption)
        count += 1
    return total / (2 * count) if count else torch.zeros(())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 9))
def test_truthful_loss_equals_the_loop(seed, images, captions):
    rng = np.random.default_rng(seed)
    v, t = unit(rng, images, 5).requires_grad_(), unit(rng, captions, 5).requires_grad_()
    truth = torch.from_numpy(rng.integers(-1, 2, (images, captions)).astype(np.int8))
    own = torch.from_numpy(rng.integers(-1, images, captions))
    fast, slow = truthful_loss(v, t, truth, own, 7.0), slow_truthful(v, t, truth, own, 7.0)
    torch.testing.assert_close(fast, slow.to(fast), check_dtype=False)
    fast.backward(retain_graph=True)
    assert torch.isfinite(v.grad).all()
    assert torch.isfinite(t.grad).all()


def test_true_and_unknown_pairs_are_in_no_denominator():
    rng = np.random.default_rng(0)
    v, t = unit(rng, 3, 4), unit(rng, 3, 4).requires_grad_()
    own = torch.tensor([0, -1, -1])
    truth = torch.tensor([[1, 1, 0], [1, -1, -1], [0, -1, 1]], dtype=torch.int8)
    loss = truthful_loss(v, t, truth, own, 10.0)
    loss.backward()
    assert loss.item() == 0.0  # caption 0 is false of no image, image 0 has no false caption
    assert t.grad.abs().max() == 0


def test_a_false_caption_is_pushed_from_the_image():
    v = F.normalize(torch.tensor([[1.0, 0.0]]), dim=-1)
    t = torch.tensor([[0.8, 0.6], [1.0, 0.0]], requires_grad=True)
    truthful_loss(v, t, torch.tensor([[1, -1]], dtype=torch.int8), torch.tensor([0, -1]), 10.0).backward()
    assert t.grad[0, 0] < 0 < t.grad[1, 0]


def test_released_loss_is_the_published_cross_entropy():
    rng = np.random.default_rng(1)
    v, o, n = unit(rng, 4, 6), unit(rng, 4, 6), unit(rng, 4, 6)
    losses = []
    for i in range(4):
        scores = torch.exp(100 * torch.cat([o, n]) @ v[i])
        losses.append(-torch.log(scores[i] / scores.sum()))
        scores = torch.exp(100 * v @ o[i])
        losses.append(-torch.log(scores[i] / scores.sum()))
    torch.testing.assert_close(released_loss(v, o, n, 100.0), torch.stack(losses).mean())


def test_question_loss_and_penalty():
    scores, corrections = torch.tensor([[0.3, 0.1, 0.0, 0.2]]), torch.tensor([[0.1, 0.0, -0.1, 0.0]])
    expected = -torch.log_softmax(scores / 0.07, 1)[0, 0] + 0.1 * (0.01 + 0.01) / 4
    torch.testing.assert_close(question_loss(scores, torch.tensor([0]), corrections), expected)


def test_pair_loss_falls_as_the_true_caption_comes_nearer():
    v = torch.tensor([[1.0, 0.0]])
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    losses = [pair_loss(v, near, far).item(), pair_loss(v, far, far).item(), pair_loss(v, far, near).item()]
    assert losses == sorted(losses)
    assert losses[1] == pytest.approx(np.log(2))


def test_preservation_of_nothing_is_zero_with_a_gradient():
    empty = torch.zeros(0, 4, requires_grad=True)
    loss = preservation_loss(empty, torch.zeros(0, 4))
    loss.backward()
    assert loss.item() == 0
