"""StructXLIP: images against their edges, captions against what is left of them without colour and material."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from clipmend.dense.boxes import Box, clip_box, crop_box
from clipmend.dense.edges import EdgeMethod, check_edges, edge_image
from clipmend.dense.recipes.base import Example, Joined, Moment, Recipe, Views, register, zero_like
from clipmend.dense.recipes.goal import best_parts, contrast, text_id
from clipmend.dense.structure_words import strip_appearance

if TYPE_CHECKING:
    from clipmend.dense.pairs import Pairs

__all__ = ["StructXlipRecipe", "word_windows"]


@register
@dataclass(frozen=True, kw_only=True)
class StructXlipRecipe(Recipe):
    r"""``L_clip + a1 .25 L_SC + a2 .001 L_RS + a3 .001 L_LSC``.

    - ``L_clip``: the global term, between images and captions; InfoNCE, or with ``gamma`` the hard-negative loss.
    - ``L_SC``: InfoNCE between edge images and captions without words for colour, material and texture
      (:func:`~clipmend.dense.structure_words.strip_appearance`).
    - ``L_RS``: mean ``1 - cos`` between an image and its edge image.
    - ``L_LSC``: each chunk (a few words in a row) of such a caption against parts of the edge images of the whole batch: all parts
      of its own image are right, ``-log`` of their share in the softmax; mean over a caption's chunks, then over captions.

    ``a1, a2, a3`` are 1 until epoch 2, then fall by a cosine to .7, .5 and .4 at epoch 8. Parts are those of the data, the best
    scored (GOAL's JSON, ``clipmend data segments``), else cells of a grid. An image without any edge, or one whose edges a part
    lacks, is left out of the terms in question. The logit scale learns from ``L_clip`` alone, as published.

    Where this differs from the released code:

    - *Weights.* Its defaults are .5, .05 and .1, and they fall from epoch 1 on, in whole epochs; the paper's are above.
    - *Chunks.* It finds the chunks in the stripped caption and takes the tokens at their places out of the *whole* caption, where
      other words stand. Here they are taken out of the stripped one. It weighs a chunk's tokens by their norms, which tokens in
      the joint space do not have here.
    - *Scale of L_LSC.* It divides the logit scale by .07 and cuts at 100, that is, 100 at any scale from 7 on; here it is the
      model's own, unless ``chunk_scale`` gives another (100 for the released behaviour).
    - *Twins.* "A red car" and "a blue car" are one caption without colours, and negatives of each other there; here what is equal
      leaves the denominator, and so do parts of the same image.
    - *Words.* Its list takes every "orange" for a colour; here things stay: "an orange and a knife".
    - *Logit scale.* It is cut at e^3.5 = 33 there; here at 100, like everywhere.

    Source: StructXLIP (CVPR 2026).

    Args:
        structure_weight: of ``L_SC``; .25.
        consistency_weight: of ``L_RS``; .001.
        chunk_weight: of ``L_LSC``; .001.
        structure_end, consistency_end, chunk_end: what ``a1``, ``a2`` and ``a3`` fall to: .7, .5 and .4.
        decay_start, decay_end: epochs at which they begin and end to fall; 2 and 8.
        parts: parts of an edge image; 3. Each costs as much as a further image.
        grid: an image without parts in the data is cut into ``grid x grid`` cells, of which ``parts`` are drawn in each step; 0: it
            stays out of ``L_LSC``, as published.
        chunk_words: words in a chunk, in a sentence of 5 to 10; one less in a shorter one, up to three more in longer ones.
        chunks: most chunks of a caption; 64.
        chunk_scale: inverse temperature of ``L_LSC``; 0: the model's logit scale.
        edges: ``"opencv"`` (extra ``edges``) or ``"skimage"`` (scikit-image).
        edge_size: shorter side to which a larger image is shrunk before its edges are found; 0: never.
        edge_low, edge_high: Canny's thresholds, of an 8-bit image.
        learning_rate: 5e-6, the paper's.
        weight_decay: .05, the released code's.
        gamma, margin, label_smoothing, global_loss, head_learning_rate, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "structxlip"
    about: ClassVar[str] = "edge images and captions without colour and material (StructXLIP)"

    structure_weight: float = 0.25
    consistency_weight: float = 0.001
    chunk_weight: float = 0.001
    structure_end: float = 0.7
    consistency_end: float = 0.5
    chunk_end: float = 0.4
    decay_start: float = 2.0
    decay_end: float = 8.0
    parts: int = 3
    grid: int = 2
    chunk_words: int = 3
    chunks: int = 64
    chunk_scale: float = 0.0
    edges: EdgeMethod = "opencv"
    edge_size: int = 448
    edge_low: float = 100.0
    edge_high: float = 200.0
    learning_rate: float = 5e-6
    weight_decay: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "structure_weight", "consistency_weight", "chunk_weight", "structure_end", "consistency_end", "chunk_end",
            "decay_start", "grid", "chunk_scale", "edge_size",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("parts", "chunk_words", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.decay_start < self.decay_end < float("inf"):
            raise ValueError(f"decay_end is {self.decay_end}; it must be after decay_start, {self.decay_start}")
        if self.edges not in ("opencv", "skimage"):
            raise ValueError(f"edges is {self.edges!r}; it must be 'opencv' or 'skimage'")
        if not 0 <= self.edge_low <= self.edge_high <= 255:
            raise ValueError(f"edge_low is {self.edge_low} and edge_high {self.edge_high}; they must be 0 to 255, in that order")

    @property
    def _any(self) -> bool:
        return bool(self.structure_weight or self.consistency_weight or self.chunk_weight)

    def tokens(self) -> frozenset[str]:
        return frozenset({"text/structure"} if self.chunk_weight else ())

    def check(self, pairs: Pairs) -> list[str]:
        if not self._any:
            return []
        check_edges(self.edges)
        count = sum(any(part.box is not None for part in parts) for parts in pairs.segments or ())
        without = len(pairs.images) - count
        if not self.chunk_weight or not without:
            return []
        what = f"cells of a {self.grid} x {self.grid} grid in their place" if self.grid else "they stay out of the chunks' term"
        return [f"{without:,} of {len(pairs.images):,} images have no part with a box: {what}"]

    def decay(self, end: float, epoch: float) -> float:
        """What a weight is multiplied by at an epoch (with fractions): 1, then along a cosine to ``end``."""
        share = min(max((epoch - self.decay_start) / (self.decay_end - self.decay_start), 0.0), 1.0)
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * share))

    # ---- for each pair ------------------------------------------------------------------------------------------------------

    def views(self, example: Example, rng: np.random.Generator) -> Views:
        if not self._any:
            return Views()
        edges = edge_image(example.image, self.edges, size=self.edge_size, low=self.edge_low, high=self.edge_high)
        text = strip_appearance(example.caption)
        numbers = {"edges_there": np.array(_drawn(edges), np.float32), "structure_text": np.array(text_id(text), np.int64)}
        if not self.chunk_weight:
            return Views(images={"edges": edges}, texts={"structure": text}, numbers=numbers)
        crops = [crop_box(edges, box) for box in self._boxes(example, edges, rng)]
        missing = self.parts - len(crops)
        windows = word_windows(text, example, self.chunk_words)[: self.chunks]
        numbers["parts_there"] = np.array([_drawn(crop) for crop in crops] + [False] * missing, np.float32)
        numbers["chunks"] = np.array(windows + [(0, 0)] * (self.chunks - len(windows)), np.int64).reshape(self.chunks, 2)
        return Views(
            images={"edges": edges, "edge_parts": crops + [Image.new("RGB", (8, 8))] * missing},
            texts={"structure": text},
            numbers=numbers,
        )

    def _boxes(self, example: Example, edges: Image.Image, rng: np.random.Generator) -> list[Box]:
        """At most ``parts`` boxes in the edge image."""
        found: list[Box] = [box for box, _ in best_parts(example, self.parts, "best", rng)]
        across, down = edges.width / example.image.width, edges.height / example.image.height
        if found:
            scaled = [(left * across, top * down, right * across, bottom * down) for left, top, right, bottom in found]
        else:
            width, height = edges.width / max(1, self.grid), edges.height / max(1, self.grid)
            cells = rng.permutation(self.grid**2)[: self.parts]
            corners = [(k % self.grid * width, k // self.grid * height) for k in cells.tolist()]
            scaled = [(left, top, left + width, top + height) for left, top in corners]
        clipped = (clip_box(box, edges.size) for box in scaled)
        return [box for box in clipped if box is not None]

    # ---- for each batch -----------------------------------------------------------------------------------------------------

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        terms = {"global": self.global_term(batch)}
        if not self._any:
            return terms
        there = batch.numbers["edges_there"] > 0.5  # [N]
        edges = batch.outputs["image/edges"]
        if self.structure_weight:
            outputs = {name: value.detach() for name, value in batch.outputs.items() if name.startswith("logit_")}
            fixed = Joined({**batch.outputs, **outputs}, batch.image_ids, batch.caption_ids)
            value = contrast(
                self, fixed, edges[there], batch.outputs["text/structure"][there], batch.image_ids[there],
                batch.numbers["structure_text"][there],
            )  # fmt: skip
            terms["structure"] = self.structure_weight * self.decay(self.structure_end, at.epoch) * value
        if self.consistency_weight:
            apart = 1 - (batch.image * edges).sum(-1)
            value = apart[there].mean() if bool(there.any()) else zero_like(batch)
            terms["consistency"] = self.consistency_weight * self.decay(self.consistency_end, at.epoch) * value
        if self.chunk_weight:
            terms["chunks"] = self.chunk_weight * self.decay(self.chunk_end, at.epoch) * self._chunk_term(batch)
        return terms

    def _chunk_term(self, batch: Joined) -> Tensor:
        there = batch.numbers["parts_there"] > 0.5  # [N, K]
        begin, end = batch.numbers["chunks"].unbind(-1)  # [N, C]
        owners, places = ((end > begin) & there.any(1)[:, None]).nonzero().unbind(1)  # [M]: chunks of images with parts
        if not len(owners):
            return zero_like(batch)
        tokens, words = batch.outputs["text/structure_tokens"], batch.masks["text/structure_words"]
        rank = (words.cumsum(1) - 1)[owners]  # [M, T]
        first, last = begin[owners, places][:, None], end[owners, places][:, None]
        inside = (words[owners] & (rank >= first) & (rank < last)).to(tokens.dtype)
        seen = inside.sum(1) > 0  # others are behind the last position
        if not bool(seen.any()):
            return zero_like(batch)
        owners, inside = owners[seen], inside[seen]
        pooled = torch.stack([weights @ tokens[owner] for owner, weights in zip(owners.tolist(), inside, strict=True)])
        parts, images = batch.outputs["image/edge_parts"][there], there.nonzero()[:, 0]  # [Q, D], [Q]
        scale = self.chunk_scale or batch.scale.detach()
        logits = scale * (F.normalize(pooled, dim=-1) @ parts.T)  # [M, Q]
        right = images[None] == owners[:, None]
        same_image = batch.image_ids[images][None] == batch.image_ids[owners][:, None]
        same_text = batch.numbers["structure_text"][images][None] == batch.numbers["structure_text"][owners][:, None]
        others = ~right & (same_image | same_text)
        own = logits.masked_fill(~right, -torch.inf).logsumexp(1)
        share = own - logits.masked_fill(others, -torch.inf).logsumexp(1)
        per_caption = torch.bincount(owners, minlength=len(there)).to(share.dtype)
        return -(share / per_caption[owners]).sum() / (per_caption > 0).sum()


def _drawn(edges: Image.Image) -> bool:
    """Whether there is any edge."""
    return edges.getbbox() is not None


def word_windows(text: str, example: Example, words: int) -> list[tuple[int, int]]:
    """Chunks of a text: runs of a few words within a sentence, one beginning at each word; from the first token to before the last.

    Args:
        text: single spaces.
        example: counts its tokens.
        words: in a run, of a sentence of 5 to 10 words; see :class:`StructXlipRecipe`.
    """
    pieces = text.split(" ")
    ends, known = [0], dict[str, int]()
    for piece in pieces:
        if piece not in known:
            known[piece] = example.count_words(piece)
        ends.append(ends[-1] + known[piece])
    found: list[tuple[int, int]] = []
    begin = 0
    for k, piece in enumerate(pieces):
        if piece[-1:] not in tuple(".,;:!?") and k + 1 < len(pieces):
            continue
        length = k + 1 - begin
        more = -1 if length <= 4 else 0 if length <= 10 else 1 if length <= 20 else 2 if length <= 40 else 3
        window = min(max(1, words + more), length)
        found += [(ends[n], ends[n + window]) for n in range(begin, k + 2 - window)]
        begin = k + 1
    return found
