"""The losses for comparison, and late interaction, against loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.losses import (
    FixedMarginLoss,
    HardestTripletLoss,
    HardnessReweightedLoss,
    ImportanceSampledLoss,
    InfoNCELoss,
    LateInteractionLoss,
)
from clipmend.losses.late_interaction import late_interaction

ROWS = 6
IDS = [0, 1, 2, 1, 4, 5]


def pairs(seed: int = 0, rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    texts = F.normalize(torch.randn(rows, 5, generator=generator, dtype=torch.float64), dim=-1)
    images = F.normalize(texts + 0.5 * torch.randn(rows, 5, generator=generator, dtype=torch.float64), dim=-1)
    return images.requires_grad_(), texts.requires_grad_(), torch.tensor(5.0, dtype=torch.float64, requires_grad=True)


def by_row(images: Tensor, texts: Tensor, ids: list[int] | None, cost) -> Tensor:
    """Half the mean over both directions of ``cost(own score, list of negative scores)``."""
    scores = images @ texts.T
    total = images.new_zeros(())
    for matrix in (scores, scores.T):
        for i in range(len(images)):
            negatives = [matrix[i, j] for j in range(len(images)) if j != i and (ids is None or ids[i] != ids[j])]
            total = total + cost(matrix[i, i], negatives)
    return total / (2 * len(images))


def weights(negatives: list[Tensor], scale: Tensor, beta: float) -> list[float]:
    raw = [math.exp(beta * scale.item() * n.item()) for n in negatives]
    return [len(raw) * value / sum(raw) for value in raw]


def robinson(scale: Tensor, beta: float, tau: float):
    def cost(own: Tensor, negatives: list[Tensor]) -> Tensor:
        total = sum(w * (scale * n).exp() for w, n in zip(weights(negatives, scale, beta), negatives, strict=True))
        count = len(negatives)
        if tau:
            corrected = (total - tau * count * (scale * own).exp()) / (1 - tau)
            total = torch.maximum(corrected, count * (-scale).exp())
        return -torch.log((scale * own).exp() / ((scale * own).exp() + total))

    return cost


def diht(scale: Tensor, alpha: float, beta: float):
    def cost(own: Tensor, negatives: list[Tensor]) -> Tensor:
        total = sum(w * (scale * n).exp() for w, n in zip(weights(negatives, scale, beta), negatives, strict=True))
        return -torch.log((scale * own).exp() / (alpha * (scale * own).exp() + total))

    return cost


def fixed(scale: Tensor, margin: float):
    def cost(own: Tensor, negatives: list[Tensor]) -> Tensor:
        logits = torch.stack([scale * own, *(scale * (n + margin) for n in negatives)])
        return logits.logsumexp(0) - logits[0]

    return cost


def triplet(margin: float):
    return lambda own, negatives: torch.relu(margin + torch.stack(negatives).max() - own)


@pytest.mark.parametrize("ids", [None, IDS])
@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (HardnessReweightedLoss(0.5), lambda s: robinson(s, 0.5, 0.0)),
        (HardnessReweightedLoss(1.0, 0.05), lambda s: robinson(s, 1.0, 0.05)),
        (HardnessReweightedLoss(0.0, 0.6), lambda s: robinson(s, 0.0, 0.6)),
        (ImportanceSampledLoss(0.9, 0.3), lambda s: diht(s, 0.9, 0.3)),
        (ImportanceSampledLoss(0.0, 0.3), lambda s: diht(s, 0.0, 0.3)),
        (HardnessReweightedLoss(0.5, 0.9), lambda s: robinson(s, 0.5, 0.9)),  # the correction leaves nothing of most negatives
        (FixedMarginLoss(0.3), lambda s: fixed(s, 0.3)),
        (HardestTripletLoss(0.2), lambda s: triplet(0.2)),
    ],
)
def test_value_and_gradients_equal_a_loop(loss, reference, ids) -> None:
    images, texts, scale = pairs()
    inputs = [images, texts] if isinstance(loss, HardestTripletLoss) else [images, texts, scale]
    value = loss(images, texts, scale, image_ids=ids)
    wanted = by_row(images, texts, ids, reference(scale))
    torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12)
    for one, other in zip(torch.autograd.grad(value, inputs), torch.autograd.grad(wanted, inputs), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("ids", [None, IDS])
@pytest.mark.parametrize("loss", [HardnessReweightedLoss(0.0), ImportanceSampledLoss(1.0, 0.0), FixedMarginLoss(0.0)])
def test_switched_off_each_is_info_nce(loss, ids) -> None:
    inputs = pairs(3)
    torch.testing.assert_close(loss(*inputs, caption_ids=ids), InfoNCELoss()(*inputs, caption_ids=ids))


@pytest.mark.parametrize(
    "loss",
    [
        HardnessReweightedLoss(), HardnessReweightedLoss(0.5, 0.1), ImportanceSampledLoss(), ImportanceSampledLoss(0.0),
        FixedMarginLoss(), HardestTripletLoss(),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_without_a_negative_cost_nothing_and_break_nothing(loss, rows) -> None:
    images, texts, scale = pairs(rows=rows)
    value = loss(images, texts, scale, image_ids=[7] * rows)
    slopes = torch.autograd.grad(value, (images, texts))
    assert torch.isfinite(value)
    assert all(torch.isfinite(slope).all() for slope in slopes)
    if not isinstance(loss, ImportanceSampledLoss):
        assert value.item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HardnessReweightedLoss(-1), lambda: HardnessReweightedLoss(1, 1.0), lambda: ImportanceSampledLoss(2.0),
        lambda: HardnessReweightedLoss(math.nan),
        lambda: FixedMarginLoss(-0.1), lambda: HardestTripletLoss(float("inf")), lambda: LateInteractionLoss(block=0),
    ],
)  # fmt: skip
def test_settings_without_sense_are_refused(make) -> None:
    with pytest.raises(ValueError, match="="):
        make()


# ---- late interaction -----------------------------------------------------------------------------------------------------


def tokens(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    patches = F.normalize(torch.randn(4, 5, 3, generator=generator, dtype=torch.float64), dim=-1).requires_grad_()
    words = F.normalize(torch.randn(4, 6, 3, generator=generator, dtype=torch.float64), dim=-1).requires_grad_()
    text_mask = torch.arange(6) < torch.tensor([[6], [2], [1], [4]])
    image_mask = torch.arange(5) < torch.tensor([[5], [5], [3], [1]])
    return patches, words, text_mask, image_mask


@pytest.mark.parametrize("block", [None, 1, 3])
def test_best_matches_equal_a_loop(block: int | None) -> None:
    patches, words, text_mask, image_mask = tokens()
    by_patch, by_word = late_interaction(patches, words, text_mask, image_mask, block)
    for i in range(4):
        for j in range(4):
            cosines = patches[i][image_mask[i]] @ words[j][text_mask[j]].T
            torch.testing.assert_close(by_patch[i, j], cosines.amax(1).mean())
            torch.testing.assert_close(by_word[i, j], cosines.amax(0).mean())


@pytest.mark.parametrize("ids", [None, [0, 1, 0, 3]])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("block", [None, 1, 3])
def test_late_interaction_loss(block: int | None, average: bool, ids: list[int] | None) -> None:
    patches, words, text_mask, image_mask = tokens()
    loss = LateInteractionLoss(average=average, block=block)
    value = loss(patches, words, 7.0, text_mask=text_mask, image_mask=image_mask, caption_ids=ids)
    by_patch, by_word = late_interaction(patches, words, text_mask, image_mask, 4)
    forth, back = ((by_patch + by_word) / 2,) * 2 if average else (by_patch, by_word)
    total = patches.new_zeros(())
    for i in range(4):
        kept = [j for j in range(4) if j == i or ids is None or ids[i] != ids[j]]
        total = total - (7 * forth[i, kept]).log_softmax(0)[kept.index(i)] - (7 * back[kept, i]).log_softmax(0)[kept.index(i)]
    torch.testing.assert_close(value, total / 8)
    for one, other in zip(
        torch.autograd.grad(value, (patches, words)), torch.autograd.grad(total / 8, (patches, words)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_padding_changes_nothing() -> None:
    patches, words, text_mask, image_mask = tokens()
    loss = LateInteractionLoss()
    value = loss(patches, words, 7.0, text_mask=text_mask, image_mask=image_mask)
    with torch.no_grad():
        changed = words.masked_fill(~text_mask[..., None], 9.0), patches.masked_fill(~image_mask[..., None], -9.0)
    torch.testing.assert_close(loss(changed[1], changed[0], 7.0, text_mask=text_mask, image_mask=image_mask), value.detach())


def test_late_interaction_says_what_is_wrong() -> None:
    patches, words, text_mask, _ = tokens()
    with pytest.raises(ValueError, match="row 2 has no token"):
        LateInteractionLoss()(patches, words, 1.0, text_mask=text_mask & (torch.arange(4) != 2)[:, None])
    with pytest.raises(ValueError, match="one row a pair"):
        LateInteractionLoss()(patches[:2], words, 1.0)
    with pytest.raises(ValueError, match="width"):
        LateInteractionLoss()(patches[..., :2], words, 1.0)
    with pytest.raises(ValueError, match="text_mask"):
        LateInteractionLoss()(patches, words, 1.0, text_mask=text_mask[:, :3])
