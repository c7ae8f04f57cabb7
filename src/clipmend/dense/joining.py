"""The whole batch on every process: what the towers gave, gathered with gradient."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from clipmend.dense.batches import Batch
from clipmend.dense.recipes import Joined
from clipmend.losses.gathering import gather, gather_counts, world_of

__all__ = ["join"]


def join(outputs: dict[str, Tensor], batch: Batch, image_ids: Tensor, caption_ids: Tensor, margins: Tensor | None = None) -> Joined:
    """The batch as one process would hold it.

    Every process then works out the loss of the whole, so that under DistributedDataParallel, which averages gradients, they are
    those of one process with the joined batch. Texts of different processes are padded to one length.

    Args:
        outputs: of this process's pairs, all micro-batches together.
        batch: its masks and numbers.
        image_ids, caption_ids: int64 ``[N]`` of all pairs.
        margins: ``[N, D]`` of all pairs, for a frozen margin.
    """
    _, processes = world_of()
    masks, numbers = batch.masks, batch.numbers
    if processes > 1:
        counts = gather_counts(len(outputs["image"]), outputs["image"].device)
        masks = {name: gather(_widened(mask.byte(), -1), counts).bool() for name, mask in sorted(masks.items())}
        numbers = {name: gather(number, counts) for name, number in sorted(numbers.items())}
        joined = {}
        for name in sorted(outputs):
            value = outputs[name]
            if value.ndim == 0:
                joined[name] = value
            else:
                joined[name] = gather(_widened(value, -2) if name.endswith("_tokens") else value, counts)
        outputs = joined
    return Joined(outputs, image_ids, caption_ids, masks, numbers, margins)


def _widened(tokens: Tensor, dim: int) -> Tensor:
    """``tokens`` padded with zeros along ``dim``, counted from the end, to the most that any process has."""
    most = max(gather_counts(tokens.shape[dim], tokens.device))
    return F.pad(tokens, [0, 0] * (-1 - dim) + [0, most - tokens.shape[dim]])
