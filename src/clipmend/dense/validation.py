"""Recall on the held-out part of the training data, by which a state is chosen."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clipmend.data.ahead import read_ahead
from clipmend.dense.batches import Preparer
from clipmend.evaluation.ranking import ranks_both_ways
from clipmend.losses.gathering import gather, gather_counts, world_of

__all__ = ["HeldOut", "embed_rows"]

Rows = NDArray[np.int64]
_CUTS = (1, 5, 10)


class HeldOut:
    """Held-out images with their captions.

    Args:
        preparer: makes pixels and ids.
        rows: int64, the pairs: all captions of the held-out images.
        batch_size: pairs a forward pass.
    """

    def __init__(self, preparer: Preparer, rows: Rows, batch_size: int) -> None:
        self.preparer, self.rows, self.batch_size = preparer, rows, batch_size
        images = preparer.pairs.image_of[rows]
        self.images, self.image_of = np.unique(images, return_inverse=True)
        self.first = np.array([rows[np.flatnonzero(images == image)[0]] for image in self.images], np.int64)

    def measure(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Recall at 1, 5 and 10 both ways, in percent, ties against the model; ``score``: the mean of the two at 1.

        Each process embeds its share. The model is called as it is wrapped, equally often on each process.

        Raises:
            ValueError: embeddings that are not finite.
        """
        preparer = self.preparer

        def image(row: int) -> dict[str, Any]:
            return {"image": preparer.plain(row)["image"]}

        def text(row: int) -> dict[str, Any]:
            return {"text": preparer.ids_of(preparer.pairs.captions[row])}

        images = self._embed(model, self.first, image, "image", device)
        texts = self._embed(model, self.rows, text, "text", device)
        forth, back = ranks_both_ways(texts, images, torch.from_numpy(self.image_of))
        back = back[back > 0]
        found = {}
        for k in _CUTS:
            found[f"text_to_image@{k}"] = 100 * float((forth <= k).double().mean())
            found[f"image_to_text@{k}"] = 100 * float((back <= k).double().mean())
        found["score"] = (found["text_to_image@1"] + found["image_to_text@1"]) / 2
        return found

    def _embed(self, model: nn.Module, rows: Rows, make: Any, name: str, device: torch.device) -> Tensor:
        return embed_rows(model, self.preparer, rows, make, name, self.batch_size, device)


def embed_rows(
    model: nn.Module, preparer: Preparer, rows: Rows, make: Any, name: str, batch_size: int, device: torch.device
) -> Tensor:
    """``[N, D]`` unit features of pairs, on the CPU, the same on every process, each of which embeds a share.

    Args:
        model: :class:`~clipmend.dense.towers.Towers`, wrapped or not.
        preparer: collates.
        rows: the pairs.
        make: a row to an example with ``name`` alone.
        name: ``"image"`` or ``"text"``.
        batch_size: pairs a forward pass.
        device: where the model is.
    """
    rank, world = world_of()
    edges = [round(k * len(rows) / world) for k in range(world + 1)]
    own = [int(row) for row in rows[edges[rank] : edges[rank + 1]]]
    passes = math.ceil(max(end - begin for begin, end in pairwise(edges)) / batch_size)
    ready = read_ahead(
        make, list(own) or [int(rows[0])]
    )  # a process without any runs along, for wrappers that wait for one another
    parts: list[Tensor] = []
    with torch.no_grad():
        for _ in range(passes):
            batch = list(islice(ready, batch_size))
            kept = len(batch)
            inputs, _, _ = preparer.collate(batch or [make(int(rows[0]))])
            out = model({key: value.to(device) for key, value in inputs.items()})[name]
            parts.append(out[:kept].float())
    found = torch.cat(parts)[: len(own)]
    if world > 1:
        found = gather(found, gather_counts(len(found), found.device))
    return found.cpu()
