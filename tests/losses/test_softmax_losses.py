"""HardNegativeLoss, InfoNCE and the sigmoid loss against plain lines of autograd, whole and in blocks, in float64 and float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from clipmend.losses import FrozenMargins, HardNegativeLoss, InfoNCELoss, SigmoidHardNegativeLoss


def unit(rows: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, width))), dim=-1).to(dtype)


def leaves(rows: int, width: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    texts = unit(rows, width, seed + 1, dtype)
    images = F.normalize(texts + 0.6 * unit(rows, width, seed, dtype), dim=-1)
    return images.requires_grad_(), texts.requires_grad_(), torch.tensor(9.0, dtype=dtype, requires_grad=True)


def same(ids: list[int] | None, rows: int) -> Tensor:
    if ids is None:
        return torch.zeros(rows, rows, dtype=torch.bool)
    found = torch.tensor(ids)
    return (found[:, None] == found) & ~torch.eye(rows, dtype=torch.bool)


def slow(
    images: Tensor, texts: Tensor, scale: Tensor, gamma: float, margins: Tensor | None = None, out: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The formula, entry by entry."""
    rows = len(images)
    likeness = (
        (texts.detach() @ texts.detach().T) if margins is None else F.normalize(margins, dim=-1) @ F.normalize(margins, dim=-1).T
    )
    logits = scale * (images @ texts.T + gamma * likeness * (1 - torch.eye(rows, dtype=images.dtype)))
    total = images.new_zeros(())
    for matrix in (logits, logits.T):
        for i in range(rows):
            kept = [j for j in range(rows) if out is None or not out[i, j]]
            logs = torch.log_softmax(matrix[i, kept], 0)
            total = total - (1 - smoothing) * logs[kept.index(i)] - smoothing * logs.mean()
    return total / (2 * rows)


def gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs))


def agree(found: list[Tensor], wanted: list[Tensor], **tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **(tolerance or {"rtol": 1e-9, "atol": 1e-11}))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ids", [None, [0, 1, 2, 1, 4, 5, 0, 1, 8]])
@pytest.mark.parametrize("block", [None, 1, 4, 9, 50])
@pytest.mark.parametrize("margin", ["live", "frozen"])
def test_value_and_gradients_equal_the_formula(margin: Any, block: int | None, ids: list[int] | None, smoothing: float) -> None:
    given = leaves(9)
    margins = unit(9, 4, 7) * 3 if margin == "frozen" else None
    loss = HardNegativeLoss(0.5, margin, smoothing, block=block)
    value = loss(*given, margin_features=margins, caption_ids=ids)
    wanted = slow(*given, 0.5, margins, same(ids, 9), smoothing)
    agree([value, *gradients(value, *given)], [wanted, *gradients(wanted, *given)])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 12), block=st.integers(1, 13), seed=st.integers(0, 99), gamma=st.sampled_from([0.0, 0.25, 1.0]),
    repeats=st.integers(1, 12), scale=st.sampled_from([1.0, 14.0, 100.0]),
)  # fmt: skip
def test_any_block_any_repeats(rows: int, block: int, seed: int, gamma: float, repeats: int, scale: float) -> None:
    images, texts, _ = leaves(rows, seed=seed)
    logit_scale = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    rng = np.random.default_rng(seed)
    of_images, of_captions = rng.integers(repeats, size=rows).tolist(), rng.integers(3 * repeats, size=rows).tolist()
    value = HardNegativeLoss(gamma, block=block)(images, texts, logit_scale, image_ids=of_images, caption_ids=of_captions)
    wanted = slow(images, texts, logit_scale, gamma, None, same(of_images, rows) | same(of_captions, rows))
    agree(
        [value, *gradients(value, images, texts, logit_scale)], [wanted, *gradients(wanted, images, texts, logit_scale)],
        rtol=1e-8, atol=1e-10,
    )  # fmt: skip


def test_gamma_zero_is_info_nce_and_info_nce_is_cross_entropy() -> None:
    given = leaves(7)
    logits = given[2] * given[0] @ given[1].T
    target = torch.arange(7)
    wanted = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    slopes = list(torch.autograd.grad(wanted, given, retain_graph=True))
    for loss in (HardNegativeLoss(0.0), InfoNCELoss()):
        value = loss(*given)
        agree([value, *gradients(value, *given)], [wanted, *slopes])
    smoothed = (F.cross_entropy(logits, target, label_smoothing=0.1) + F.cross_entropy(logits.T, target, label_smoothing=0.1)) / 2
    agree([InfoNCELoss(0.1)(*given)], [smoothed])


def test_the_gradient_at_a_score_is_the_published_one() -> None:
    """``dL_i/dS_ij = s p_ij`` and ``p_ij / p_ik = exp(s (S_ij - S_ik)) exp(s gamma (G_ij - G_ik))``, one direction."""
    images, texts, scale = leaves(5, width=5)
    value = HardNegativeLoss(0.5)(images, texts, scale)
    (slope,) = torch.autograd.grad(value, images)
    with torch.no_grad():
        scores, likeness = images @ texts.T, texts @ texts.T
        boosted = scale * (scores + 0.5 * likeness.fill_diagonal_(0))
        p = boosted.softmax(1) + boosted.T.softmax(1).T - 2 * torch.eye(5)
        torch.testing.assert_close(slope, (scale * p @ texts) / 10)
        row = boosted.softmax(1)
        ratio = (scale * (scores[0, 1] - scores[0, 2])).exp() * (scale * 0.5 * (likeness[0, 1] - likeness[0, 2])).exp()
        torch.testing.assert_close(row[0, 1] / row[0, 2], ratio)


def test_margin_carries_no_gradient() -> None:
    images, texts, scale = leaves(6)
    (live,) = torch.autograd.grad(HardNegativeLoss(0.5)(images, texts, scale), texts)
    frozen = HardNegativeLoss(0.5, "frozen")(images, texts, scale, margin_features=texts.detach())
    (without,) = torch.autograd.grad(frozen, texts)
    torch.testing.assert_close(live, without)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_float32_inside(dtype: torch.dtype) -> None:
    rows = 64
    images, texts, _ = leaves(rows, 32, dtype=torch.float64)
    low = [images.detach().to(dtype).requires_grad_(), texts.detach().to(dtype).requires_grad_()]
    logit_scale = torch.tensor(50.0, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = HardNegativeLoss(0.5)(*low, logit_scale)
    assert value.dtype == torch.float32
    given = [one.detach().double().requires_grad_() for one in (*low, logit_scale)]
    wanted = slow(*given, 0.5)
    found = [value.double(), *(g.double() for g in torch.autograd.grad(value, (*low, logit_scale)))]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-3}
    agree(found, [wanted, *gradients(wanted, *given)], **tolerance)
    torch.testing.assert_close(found[0], wanted.detach(), rtol=1e-4, atol=1e-5)  # the value itself in float32 whatever came in


def test_extreme_scores_stay_finite() -> None:
    images = F.normalize(torch.eye(4) - 0.5, dim=-1).requires_grad_()
    texts = (-images.detach()).requires_grad_()
    for block in (1, 4):
        value = HardNegativeLoss(1.0, block=block)(images, texts, 100.0)
        assert torch.isfinite(value)
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(value, (images, texts)))


def test_a_batch_of_one_and_a_batch_of_one_image() -> None:
    images, texts, scale = leaves(1)
    value = HardNegativeLoss()(images, texts, scale)
    assert value.item() == 0
    assert all(float(g.abs().max()) < 1e-12 for g in gradients(value, images, texts, scale))
    images, texts, scale = leaves(4)
    assert HardNegativeLoss()(images, texts, scale, image_ids=[5] * 4).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("block", [None, 2])
def test_a_scale_of_zero_has_a_gradient(block: int | None) -> None:
    images, texts, _ = leaves(5)
    scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = HardNegativeLoss(0.5, block=block)(images, texts, scale)
    wanted = slow(images, texts, scale, 0.5, None, same(None, 5), 0.0)
    agree([value, *gradients(value, images, texts, scale)], [wanted, *gradients(wanted, images, texts, scale)])


def test_strings_and_numbers_are_ids() -> None:
    given = leaves(5)
    loss = HardNegativeLoss()
    one = loss(*given, image_ids=["a", "b", "a", "c", "d"])
    assert one == loss(*given, image_ids=[1, 2, 1, 3, 4]) == loss(*given, caption_ids=torch.tensor([1, 2, 1, 3, 4]))
    assert one == loss(*given, image_ids=["\udce9.jpg", "b", "\udce9.jpg", "c", "d"])  # a name whose bytes are no text
    assert one < loss(*given)
    assert loss(*given, output_dict=True)["contrastive_loss"] == loss(*given)


def test_evaluation_needs_no_gradient_and_gives_the_same_value() -> None:
    given = leaves(9)
    with torch.no_grad():
        quiet = HardNegativeLoss(block=4)(*given)
    torch.testing.assert_close(quiet, HardNegativeLoss(block=4)(*given).detach(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v, t, s: HardNegativeLoss()(v, t[:3], s), "one row a pair"),
        (lambda v, t, s: HardNegativeLoss()(v[:0], t[:0], s), "empty"),
        (lambda v, t, s: HardNegativeLoss(margin="frozen")(v, t, s), "margin_features"),
        (lambda v, t, s: HardNegativeLoss()(v, t, s, margin_features=t), "frozen"),
        (lambda v, t, s: HardNegativeLoss(margin="frozen")(v, t, s, margin_features=t[:2]), "one row a caption"),
        (lambda v, t, s: HardNegativeLoss()(v, t, s, image_ids=[1, 2]), "one id a pair"),
        (lambda v, t, s: HardNegativeLoss()(v, t, s, image_ids=torch.ones(5)), "whole numbers"),
        (lambda v, t, s: HardNegativeLoss()(v, t, s, image_ids=[1.2, 1.7, 3, 4, 5]), "whole numbers"),
        (lambda v, t, s: HardNegativeLoss()(v, t, s, image_ids=[None] * 5), "whole numbers"),
        (lambda v, t, s: HardNegativeLoss()(v, t, s, image_ids=[2**70, 1, 2, 3, 4]), "64 bits"),
        (lambda v, t, s: HardNegativeLoss()(v, t, torch.ones(2)), "logit_scale"),
        (lambda v, t, s: HardNegativeLoss(-0.1), "gamma"),
        (lambda v, t, s: HardNegativeLoss(margin="dead"), "live"),
        (lambda v, t, s: HardNegativeLoss(label_smoothing=1.0), "label_smoothing"),
        (lambda v, t, s: HardNegativeLoss(block=0), "block"),
        (lambda v, t, s: HardNegativeLoss(local_loss=True), "gather"),
        (lambda v, t, s: SigmoidHardNegativeLoss()(v, t, s), "logit_bias"),
    ],
)
def test_what_is_wrong_is_said(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*leaves(5))


@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("ids", [None, [0, 1, 2, 1, 4, 5, 0]])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_sigmoid_equals_the_formula(gamma: float, ids: list[int] | None, block: int | None) -> None:
    images, texts, scale = leaves(7)
    bias = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)
    value = SigmoidHardNegativeLoss(gamma, block=block)(images, texts, scale, bias, image_ids=ids)
    wanted = images.new_zeros(())
    for i in range(7):
        for j in range(7):
            if same(ids, 7)[i, j]:
                continue
            boost = 0.0 if i == j else gamma * float(texts[i].detach() @ texts[j].detach())
            logit = scale * (images[i] @ texts[j] + boost) + bias
            wanted = wanted - F.logsigmoid(logit if i == j else -logit) / 7
    agree([value, *gradients(value, images, texts, scale, bias)], [wanted, *gradients(wanted, images, texts, scale, bias)])


def test_frozen_margins_embed_a_caption_once() -> None:
    asked: list[list[str]] = []

    def encode(texts: list[str]) -> Tensor:
        asked.append(texts)
        return torch.tensor([[float(len(t)), 1.0] for t in texts])

    margins = FrozenMargins(encode)
    first = margins(["a", "bb", "a"], [3, 4, 3])
    second = margins(["bb", "ccc"], [4, 5])
    assert asked == [["a", "bb"], ["ccc"]]
    assert len(margins) == 3
    torch.testing.assert_close(first[1], second[0])
    torch.testing.assert_close(second[1], torch.tensor([3.0, 1.0]) / math.sqrt(10))
    assert margins(["dddd"]).shape == (1, 2)
    with pytest.raises(ValueError, match="2 caption ids for 1"):
        margins(["x"], [1, 2])
