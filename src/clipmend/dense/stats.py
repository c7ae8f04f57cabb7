"""How alike the captions of a data set are to an encoder: what InfoNCE has to tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from clipmend.backbones.base import DualEncoder
from clipmend.dense.lens import caption_likeness
from clipmend.dense.longer import count_truncated

__all__ = ["CaptionGeometry", "caption_geometry"]

_BATCHES = 200


@dataclass(frozen=True)
class CaptionGeometry:
    """Cosines between captions, in batches as a training meets them.

    Args:
        captions: looked at.
        batch_size: captions a batch.
        mean: cosine between two captions, on average.
        hardest: cosine of each caption to its nearest in the batch, on average.
        hardest_quantiles: at 5, 50 and 95 percent, over captions' nearest.
        truncated: captions over the encoder's length.
        length: that length.
        repeated: captions whose text another one has too.
    """

    captions: int
    batch_size: int
    mean: float
    hardest: float
    hardest_quantiles: tuple[float, float, float]
    truncated: int
    length: int
    repeated: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**vars(self), "hardest_quantiles": list(self.hardest_quantiles)}


def caption_geometry(
    encoder: DualEncoder,
    captions: Sequence[str],
    *,
    batch_size: int = 128,
    limit: int | None = 20_000,
    seed: int = 0,
    progress: bool = False,
) -> CaptionGeometry:
    """Embed captions and measure how alike those of one batch are.

    HN-CLIP's authors report a mean of .84 to .88 and .92 to .94 for the hardest negative, on sets of dense captions.

    Args:
        encoder: any.
        captions: the texts.
        batch_size: captions a batch; batches are drawn at random, up to 200 of them.
        limit: most captions embedded, drawn at random; ``None``: all.
        seed: of both.
        progress: show a bar, on a terminal.

    Raises:
        ValueError: fewer than two different captions.
    """
    if batch_size < 2:
        raise ValueError(f"batch_size is {batch_size}; it takes two captions to compare")
    known: dict[str, int] = {}
    ids = np.array([known.setdefault(caption, len(known)) for caption in captions], np.int64)
    if len(known) < 2:
        raise ValueError("there are no two different captions to compare")
    rng = np.random.default_rng(seed)
    chosen = np.arange(len(captions))
    if limit is not None and len(captions) > limit:
        chosen = np.sort(rng.permutation(len(captions))[:limit])
    texts = [captions[int(k)] for k in chosen]
    features = encoder.encode_texts(texts, on_long="truncate", progress=progress)
    size = min(batch_size, len(texts))
    means, hardest, nearest = [], [], []
    for _ in range(min(_BATCHES, max(1, len(texts) // size))):
        rows = torch.from_numpy(rng.permutation(len(texts))[:size])
        keys = torch.from_numpy(ids[chosen[rows.numpy()]])
        mean, closest = caption_likeness(features[rows], keys)
        if len(closest):  # else one caption many times
            means.append(mean)
            hardest.append(float(closest.mean()))
            nearest.append(closest.numpy())
    if not nearest:
        raise ValueError("no batch drawn holds two different captions; make batches larger")
    low, middle, high = np.quantile(np.concatenate(nearest), [0.05, 0.5, 0.95]).tolist()
    return CaptionGeometry(
        captions=len(texts), batch_size=size, mean=float(np.mean(means)), hardest=float(np.mean(hardest)),
        hardest_quantiles=(low, middle, high), truncated=count_truncated(encoder, texts), length=encoder.context_length,
        repeated=int((np.bincount(ids)[ids] > 1).sum()),
    )  # fmt: skip
