"""Long-CLIP: the caption with the image, and a short caption with what is left of the image after a PCA of the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from clipmend.backbones.positions import find_positions
from clipmend.data.sentences import first_sentence
from clipmend.dense.recipes.base import Example, Joined, Moment, Recipe, Views, register

__all__ = ["LongClipRecipe", "principal_part", "text_key"]


def principal_part(features: Tensor, components: int) -> Tensor:
    """Rows put together again from their mean and their first principal directions.

    With the mean ``m`` of the rows and the ``components`` right singular vectors ``V`` of ``X - m`` with the largest singular
    values: ``m + (X - m) V V^T``. Gradients flow through ``X`` and ``m``; ``V`` counts as given. The gradient of the singular
    vectors themselves divides by differences of singular values, which may be as small as rounding makes them.

    Up to ``components + 1`` rows (or columns up to ``components``) nothing is lost, and ``features`` itself is given back.

    Args:
        features: ``[N, D]``.
        components: number of directions, at least 1.

    Returns:
        ``[N, D]``, not normalised again.
    """
    count, width = features.shape
    # What is not finite has no decomposition; the loss of it says so better than an error from there.
    if count <= components + 1 or width <= components or not features.isfinite().all():
        return features
    mean = features.mean(0)
    centred = features - mean
    directions = torch.linalg.svd(centred.detach(), full_matrices=False).Vh[:components]  # [K, D]
    return mean + centred @ directions.T @ directions


def text_key(text: str) -> np.int64:
    """A whole number for a text: the same for equal ones, on every process."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.int64(int.from_bytes(digest, "big", signed=True))


@register
@dataclass(frozen=True, kw_only=True)
class LongClipRecipe(Recipe):
    r"""``L(image, caption) + short_weight * L(PCA(image), short caption)``, both InfoNCE with label smoothing .1.

    The short caption is the data's own where they have one, else the caption's first sentence. It is matched with the batch's image
    features put together again from their 32 principal directions (:func:`principal_part`), so that a short text need not account
    for every detail. The first 20 rows of the table of positions stay as they are. Train at 248 positions (``length=248``), with
    ``warmup=200`` steps as published; its authors start from a logit scale of 100 and see each pair of 1.2 million twice, in
    batches of 128 a GPU.

    Where the published code does otherwise:

    - It works out the PCA of each GPU's own part of the batch; here it is that of the whole batch, and the same for any number of
      processes and micro-batches.
    - *Up to 33 pairs a batch* the reconstruction is exact and the PCA does nothing. That holds here too; the notes at the start of
      a training say so.
    - Its gradient goes through the singular vectors too, where almost equal singular values blow it up; here the directions count
      as given.
    - Its first sentence ends at the first full stop with a space behind it, ``e.g. `` included; here see
      :func:`~clipmend.data.sentences.split_sentences`.
    - Two images of one short caption ("A photo of a street.") are negatives of each other there, and are not here.

    Neither normalises the reconstruction again: its rows are a little shorter than 1.

    Source: Long-CLIP (Zhang et al., ECCV 2024, arXiv 2403.15378).

    Args:
        gamma: of the term with whole captions; HN-CLIP's "Long-CLIP + L_HN" with .5. The short term stays InfoNCE.
        short_weight: weight of the short term, 1 as published; 0 leaves it out.
        components: principal directions; 0 for the image features as they are.
        label_smoothing: .1, of both terms. A SigLIP's own sigmoid loss has none.
        learning_rate: 1e-6.
        weight_decay: 1e-2.
        fixed_positions: 20. Give 0 where the text side is frozen, and for a SigLIP, which has no such table.
        margin, global_loss, head_learning_rate: see :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "long-clip"
    about: ClassVar[str] = "whole captions, and short ones with a PCA of the images (Long-CLIP)"

    short_weight: float = 1.0
    components: int = 32
    label_smoothing: float = 0.1
    learning_rate: float = 1e-6
    weight_decay: float = 1e-2
    fixed_positions: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.short_weight < float("inf"):
            raise ValueError(f"short_weight is {self.short_weight}; it must be 0 or more")
        if self.components < 0:
            raise ValueError(f"components is {self.components}; it must be 0 or more")

    def prepare(self, model: nn.Module, sides: Sequence[str]) -> Any:
        """See that there are positions to hold fixed."""
        if self.fixed_positions:
            way_out = f"{self.name} holds the first {self.fixed_positions} positions fixed; say fixed_positions=0"
            if "text" not in sides:
                raise ValueError(f"the text side is frozen, with all its positions, and {way_out}")
            try:
                rows = find_positions(model).length
            except ValueError as error:
                raise ValueError(f"{way_out}: {error}") from error
            if rows < self.fixed_positions:
                raise ValueError(f"{way_out}, or fewer than the {rows} there are")
        return None

    def notes(self, negatives: int) -> list[str]:
        if not (self.short_weight and self.components) or negatives > self.components:
            return []
        return [
            f"the PCA of {self.name} does nothing: {negatives + 1} pairs a batch are put together again exactly from "
            f"{self.components} directions; choose a batch_size above {self.components + 1}, or fewer components"
        ]

    def other_text(self, example: Example, rng: np.random.Generator) -> str:
        """What stands in the second term."""
        return example.short.strip() or first_sentence(example.caption)

    def views(self, example: Example, rng: np.random.Generator) -> Views:
        if not self.short_weight:
            return Views()
        text = self.other_text(example, rng)
        return Views(texts={"short": text}, numbers={"short_key": text_key(text)})

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        terms = {"global": self.global_term(batch)}
        if self.short_weight:
            image = principal_part(batch.image, self.components) if self.components else batch.image
            outputs = {**batch.outputs, "image": image, "text": batch.outputs["text/short"]}
            other = Joined(outputs, batch.image_ids, batch.numbers["short_key"])
            terms["short"] = self.short_weight * replace(self, gamma=0.0, margin="live").global_term(other)
        return terms
