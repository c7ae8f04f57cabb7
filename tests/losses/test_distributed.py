"""Two and three processes against one: value and gradients of the joined batch, uneven batches, ids and margins included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from clipmend.losses import HardNegativeLoss, InfoNCELoss, cached_backward
from loss_workers import LOSSES, Towers, contrast, data, micro, summary, work


@pytest.mark.parametrize("sizes", [[5, 2], [3, 4, 1], [4, 0]])
def test_processes_equal_one(sizes: list[int], tmp_path: Path) -> None:
    mp.spawn(work, (sizes, str(tmp_path / "start"), str(tmp_path)), nprocs=len(sizes))
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(len(sizes))]
    rows = data(sum(sizes))
    for name, make in LOSSES.items():
        model = Towers()
        value = contrast(make(), model(rows["images"], rows["texts"]), rows)
        value.backward()
        wanted = summary(value, model)
        for local in (False, True):
            values = torch.stack([found[f"{name}/{local}"]["value"] for found in ranks])
            torch.testing.assert_close(values.mean(), wanted["value"])
            if not local:
                torch.testing.assert_close(values, wanted["value"].expand(len(sizes)))
            for found in ranks:  # DistributedDataParallel has averaged: every rank holds the same
                for parameter in ("image", "text", "logit_scale", "bias"):
                    torch.testing.assert_close(found[f"{name}/{local}"][parameter], wanted[parameter], rtol=1e-9, atol=1e-12)
        if name == "hard negative":
            for found in ranks:
                assert found["negatives"] == sum(sizes) - 1
                for parameter, slope in wanted.items():
                    torch.testing.assert_close(found["cached"][parameter], slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 8, 20])
def test_micro_batches_equal_one_batch(size: int) -> None:
    rows, loss = data(8), HardNegativeLoss(0.5)
    model = Towers()
    value = contrast(loss, model(rows["images"], rows["texts"]), rows)
    value.backward()
    wanted = summary(value, model)
    model = Towers()
    step = cached_backward(
        model, lambda m: model(m["images"], m["texts"]), micro(rows, size), lambda *out: contrast(loss, out, rows)
    )
    assert (step.pairs, step.negatives_per_query) == (8, 7)
    for name, slope in summary(step.loss, model).items():
        torch.testing.assert_close(slope, wanted[name], rtol=1e-10, atol=1e-13)


def test_dropout_is_the_same_both_times_and_random_numbers_go_on() -> None:
    rows = data(6)
    torch.manual_seed(3)
    model = Towers(dropout=0.5)
    seen: list[torch.Tensor] = []

    def encode(part):
        out = model(part["images"], part["texts"])
        seen.append(out[0].detach().clone())
        return out

    cached_backward(model, encode, micro(rows, 3), InfoNCELoss())
    torch.testing.assert_close(seen[:2], seen[2:], rtol=0, atol=0)
    after = torch.rand(1)
    torch.manual_seed(3)
    for part in micro(rows, 3):
        model(part["images"], part["texts"])
    torch.testing.assert_close(torch.rand(1), after, rtol=0, atol=0)
    encode(micro(rows, 3)[0])
    assert not torch.equal(seen[0], seen[-1])


def test_under_autocast_gradients_reach_the_weights() -> None:
    rows = {name: value.float() if value.is_floating_point() else value for name, value in data(6).items()}
    model = Towers().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cached_backward(model, lambda m: model(m["images"], m["texts"]), micro(rows, 3), InfoNCELoss())
    whole = Towers().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        InfoNCELoss()(*whole(rows["images"], rows["texts"])).backward()
    for one, other in ((model.image, whole.image), (model.text, whole.text)):
        assert one.grad is not None
        assert torch.nn.functional.cosine_similarity(one.grad.flatten(), other.grad.flatten(), dim=0) > 0.99


def test_a_frozen_tower_and_nothing_to_do() -> None:
    rows, model = data(4), Towers()
    model.image.requires_grad_(False)
    cached_backward(model, lambda m: model(m["images"], m["texts"]), micro(rows, 2), HardNegativeLoss(0.5))
    assert model.image.grad is None
    assert model.text.grad is not None
    with pytest.raises(ValueError, match="no micro-batch"):
        cached_backward(model, lambda m: m, [], InfoNCELoss())
    outputs = iter([(torch.ones(2, 3), torch.ones(())), (torch.ones(2, 3), torch.ones(2, 3))])
    with pytest.raises(ValueError, match="same kinds"):
        cached_backward(model, lambda m: next(outputs), [1, 2], InfoNCELoss())
