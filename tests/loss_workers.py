"""What each process of the distributed tests runs; started afresh, so that it holds nothing of the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from clipmend.losses import (
    ContrastiveLoss,
    HardestTripletLoss,
    HardNegativeLoss,
    HardnessReweightedLoss,
    InfoNCELoss,
    SigmoidHardNegativeLoss,
    cached_backward,
)

WIDTH = 5
LOSSES: dict[str, Any] = {
    "hard negative": lambda **how: HardNegativeLoss(0.5, **how),
    "blocks": lambda **how: HardNegativeLoss(0.5, block=2, **how),
    "frozen": lambda **how: HardNegativeLoss(0.5, "frozen", **how),
    "smoothed": lambda **how: InfoNCELoss(0.1, **how),
    "sigmoid": lambda **how: SigmoidHardNegativeLoss(0.5, **how),
    "reweighted": lambda **how: HardnessReweightedLoss(0.5, **how),
    "triplet": lambda **how: HardestTripletLoss(0.4, **how),
}


class Towers(nn.Module):
    """Two linear towers and what scales their cosines, with dropout on request."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.image = nn.Parameter(torch.randn(7, WIDTH, generator=generator, dtype=torch.float64))
        self.text = nn.Parameter(torch.randn(6, WIDTH, generator=generator, dtype=torch.float64))
        self.logit_scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor(-2.0, dtype=torch.float64))
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        images, texts = self.dropout(images) @ self.image, self.dropout(texts) @ self.text
        return F.normalize(images, dim=-1), F.normalize(texts, dim=-1), self.logit_scale.exp(), self.bias + 0


def data(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(8)
    draw = lambda width: torch.randn(rows, width, generator=generator, dtype=torch.float64)  # noqa: E731
    return {
        "images": draw(7), "texts": draw(6), "margins": draw(3),
        "image_ids": torch.randint(0, rows, (rows,), generator=generator),
        "caption_ids": torch.randint(0, 3 * rows, (rows,), generator=generator),
    }  # fmt: skip


def contrast(loss: ContrastiveLoss, out: tuple[Tensor, ...], part: dict[str, Tensor]) -> Tensor:
    frozen = getattr(loss, "margin", None) == "frozen"
    value = loss(
        *out, image_ids=part["image_ids"], caption_ids=part["caption_ids"], margin_features=part["margins"] if frozen else None
    )
    assert isinstance(value, Tensor)
    return value + 0 * (out[2] + out[3])  # not every loss uses both, and DistributedDataParallel waits for all


def work(rank: int, sizes: list[int], start: str, out: str) -> None:
    """One rank: its rows of the joined batch through every loss, both ways of gathering; value and gradients written down."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{start}", rank=rank, world_size=len(sizes))
    rows = data(sum(sizes))
    begin = sum(sizes[:rank])
    part = {name: value[begin : begin + sizes[rank]] for name, value in rows.items()}
    found: dict[str, Any] = {}
    for name, make in LOSSES.items():
        for local in (False, True):
            model = DistributedDataParallel(Towers())
            value = contrast(make(gather=True, local_loss=local), model(part["images"], part["texts"]), part)
            value.backward()
            found[f"{name}/{local}"] = summary(value, model.module)
    # The two-pass step: micro-batches of two rows on every rank, gathered, one exchange of gradients.
    model = DistributedDataParallel(Towers())
    loss = HardNegativeLoss(0.5, gather=True)
    step = cached_backward(
        model, lambda m: model(m["images"], m["texts"]), micro(part, 2) or [part], lambda *o: contrast(loss, o, part), gathers=loss
    )
    found["cached"] = summary(step.loss, model.module)
    found["negatives"] = step.negatives_per_query
    torch.save(found, Path(out) / f"{rank}.pt")
    dist.destroy_process_group()


def micro(part: dict[str, Tensor], rows: int) -> list[dict[str, Tensor]]:
    return [{name: value[k : k + rows] for name, value in part.items()} for k in range(0, len(part["images"]), rows)]


def summary(value: Tensor, model: Towers) -> dict[str, Tensor]:
    zero = torch.zeros((), dtype=torch.float64)
    return {"value": value.detach(), **{n: zero if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}}
