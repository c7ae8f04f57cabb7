"""GOAL: parts of an image and the sentences about them, beside whole images and captions."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from clipmend.dense.boxes import Box, clip_box, crop_box, patch_coverage
from clipmend.dense.recipes.base import Example, Joined, Moment, Recipe, Views, register, zero_like

if TYPE_CHECKING:
    from clipmend.dense.pairs import Pairs

__all__ = ["GoalRecipe", "best_parts", "contrast", "find_sentence", "text_id"]


@register
@dataclass(frozen=True, kw_only=True)
class GoalRecipe(Recipe):
    r"""``L_org + .5 L_seg + L_patch + L_text``.

    - ``L_org``: the global term, between images and captions; InfoNCE, or with ``gamma`` the hard-negative loss.
    - ``L_seg``: InfoNCE between parts cut out of the images and their sentences, over those of the whole batch.
    - ``L_patch``: mean ``(1 - cos)^2`` between the patches of the whole image under a part's box, averaged, and the part's own
      embedding.
    - ``L_text``: mean ``(1 - cos)^2`` between a sentence's words within the caption, averaged, and the sentence's own embedding.

    Both sides of either cosine learn. The parts come with the data: GOAL's JSON, or what ``clipmend data segments`` makes of any
    images and captions. An image without a part takes part in the global term alone; a sentence that is not in the caption, or lies
    behind its last token, is left out of ``L_text``; a box that the encoder's crop cuts away, of ``L_patch``.

    Where this differs from the released code:

    - *Boxes.* That divides a box's corners by the box's *own* width and height, which its files give as ``width`` and ``height``,
      and takes the result for places in the image, so that ``L_patch`` averages the patches of another region, mostly one at the
      right and lower edge. It also takes the image for squeezed into a square, while CLIP's preprocessing cuts a square out of its
      middle. Here a box lies where the encoder sees it.
    - *Patches.* That averages all patches that a box touches, before the last norm and projection; here each is projected,
      normalised, and weighted by the area that the box has of it.
    - *Sentences behind the last position.* That takes the last tokens of the caption in their stead, whatever they say.
    - *Repeated pairs.* Two captions of one image, or one sentence twice, are negatives of each other there; here they leave the
      denominators.

    Source: GOAL (Choi et al., CVPR 2025, arXiv 2503.17782).

    Args:
        segment_weight: of ``L_seg``; .5. With 0 in all three weights nothing but the global term is left, and costs nothing.
        patch_weight: of ``L_patch``; 1.
        text_weight: of ``L_text``; 1.
        parts: parts taken of an image in a step; 1 as published. Each costs as much as a further image and a short text.
        choose: ``"best"``: those of the highest score, as published; ``"random"``: others in each step.
        learning_rate: 5e-6, the paper's.
        weight_decay: .05, the paper's.
        gamma, margin, label_smoothing, global_loss, head_learning_rate, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "goal"
    about: ClassVar[str] = "parts of images with their sentences, patches and words under them (GOAL)"

    segment_weight: float = 0.5
    patch_weight: float = 1.0
    text_weight: float = 1.0
    parts: int = 1
    choose: Literal["best", "random"] = "best"
    learning_rate: float = 5e-6
    weight_decay: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("segment_weight", "patch_weight", "text_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.parts < 1:
            raise ValueError(f"parts is {self.parts}; it must be at least 1")
        if self.choose not in ("best", "random"):
            raise ValueError(f"choose is {self.choose!r}; it must be 'best' or 'random'")

    @property
    def _local(self) -> bool:
        return bool(self.segment_weight or self.patch_weight or self.text_weight)

    def tokens(self) -> frozenset[str]:
        return frozenset({"image"} if self.patch_weight else ()) | frozenset({"text"} if self.text_weight else ())

    def check(self, pairs: Pairs) -> list[str]:
        if not self._local:
            return []
        count = sum(any(part.box is not None for part in parts) for parts in pairs.segments or ())
        if not count:
            raise ValueError(
                f"the recipe goal trains on parts of images with their sentences, and {pairs.name} has none. Make them with: "
                "clipmend data segments DATA -o parts.json --match MODEL, and train on goal:parts.json"
            )
        without = len(pairs.images) - count
        return [f"{without:,} of {len(pairs.images):,} images have no part with a box: the global term alone"] if without else []

    def views(self, example: Example, rng: np.random.Generator) -> Views:
        if not self._local:
            return Views()
        chosen = best_parts(example, self.parts, self.choose, rng)
        missing = self.parts - len(chosen)
        empty = Image.new("RGB", (8, 8))
        text = " ".join(example.caption.split())
        words = [self._words(example, text, sentence) for _, sentence in chosen]
        return Views(
            images={"part": [crop_box(example.image, box) for box, _ in chosen] + [empty] * missing},
            texts={"sentence": [sentence for _, sentence in chosen] + ["none"] * missing},
            numbers={
                "part_there": np.array([1.0] * len(chosen) + [0.0] * missing, np.float32),
                "part_box": np.array([box for box, _ in chosen] + [(0, 0, 0, 0)] * missing, np.int64),
                "part_view": np.array([example.in_view(box) for box, _ in chosen] + [(0.0,) * 4] * missing, np.float32),
                "part_words": np.array(words + [(0, 0)] * missing, np.int64),
                "part_text": np.array([text_id(sentence) for _, sentence in chosen] + [0] * missing, np.int64),
            },
        )

    def _words(self, example: Example, text: str, sentence: str) -> tuple[int, int]:
        """Which words of the caption are the sentence's, from the first to before the last; ``(0, 0)`` if it is not there."""
        found = find_sentence(text, sentence) if self.text_weight else None
        if found is None:
            return 0, 0
        return example.count_words(text[: found[0]].rstrip()), example.count_words(text[: found[1]])

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        terms = {"global": self.global_term(batch)}
        if not self._local:
            return terms
        there = batch.numbers["part_there"] > 0.5  # [N, K]
        rows = there.nonzero()[:, 0]  # [M]
        parts, sentences = batch.outputs["image/part"][there], batch.outputs["text/sentence"][there]  # [M, D]
        if self.segment_weight:
            places = torch.cat([batch.image_ids[rows][:, None], batch.numbers["part_box"][there]], 1)
            ids = torch.unique(places, dim=0, return_inverse=True)[1] if len(places) else rows
            terms["parts"] = self.segment_weight * contrast(self, batch, parts, sentences, ids, batch.numbers["part_text"][there])
        if self.patch_weight:
            patches = batch.outputs["image_tokens"]
            weights = patch_coverage(batch.numbers["part_view"][there].to(patches.dtype), patches.shape[1])
            terms["patches"] = self.patch_weight * _apart(batch, patches, rows, weights, parts)
        if self.text_weight:
            words = batch.masks["text_words"]
            place = (words.cumsum(1) - 1)[rows]  # of each word among the words
            begin, end = batch.numbers["part_words"][there].unbind(1)
            chosen = words[rows] & (place >= begin[:, None]) & (place < end[:, None])
            tokens = batch.outputs["text_tokens"]
            terms["words"] = self.text_weight * _apart(batch, tokens, rows, chosen.to(tokens.dtype), sentences)
        return terms


def _apart(batch: Joined, tokens: Tensor, rows: Tensor, weights: Tensor, whole: Tensor) -> Tensor:
    """Mean ``(1 - cos)^2`` between weighted tokens ``[M, T]`` of the ``rows`` and ``whole`` ``[M, D]``, where a weight is not 0."""
    seen = weights.sum(1) > 0
    if not bool(seen.any()):
        return zero_like(batch)
    pooled = torch.einsum("mt,mtd->md", weights[seen], tokens[rows[seen]])
    return (1 - (F.normalize(pooled, dim=-1) * whole[seen]).sum(-1)).square().mean()


def contrast(recipe: Recipe, batch: Joined, images: Tensor, texts: Tensor, image_ids: Tensor, text_ids: Tensor) -> Tensor:
    """InfoNCE (of a SigLIP its own loss) between other rows than the batch's images and captions; 0 where there are none.

    The logit scale is the batch's. The margin of ``gamma`` belongs to the global term and is not used here.
    """
    if not len(images):
        return zero_like(batch)
    named = ("logit_scale", "logit_bias")
    outputs = {"image": images, "text": texts, **{name: batch.outputs[name] for name in named if name in batch.outputs}}
    plain = replace(recipe, gamma=0.0, margin="live", label_smoothing=0.0)
    return plain.global_term(Joined(outputs, image_ids, text_ids))


def best_parts(example: Example, count: int, choose: Literal["best", "random"], rng: np.random.Generator) -> list[tuple[Box, str]]:
    """At most ``count`` boxes of an example with their sentences, within the image.

    Raises:
        ValueError: a box outside the image; names the pair.
    """
    known: Sequence[Any] = [part for part in example.segments if part.box is not None]
    if choose == "random":
        order = rng.permutation(len(known)).tolist()
    else:
        score = lambda k: -math.inf if math.isnan(known[k].score) else known[k].score  # noqa: E731
        order = sorted(range(len(known)), key=score, reverse=True)
    found = []
    for k in order[:count]:
        box = clip_box(known[k].box, example.image.size)
        if box is None:
            width, height = example.image.size
            raise ValueError(
                f"pair {example.row} ({example.caption[:40]!r}): the box {known[k].box} lies outside its image, which has "
                f"{width} x {height} pixels; the parts were made for another size of it"
            )
        found.append((box, known[k].caption))
    return found


def find_sentence(text: str, sentence: str) -> tuple[int, int] | None:
    """Where a sentence stands in a text (single spaces), as it is written, else in any case and without its last mark."""
    wanted = " ".join(sentence.split())
    for pattern, flags in ((wanted, 0), (wanted.rstrip(" .!?;,"), re.IGNORECASE)):
        if pattern:
            found = re.search(rf"(?<!\w){re.escape(pattern)}(?!\w)", text, flags)
            if found:
                return found.span()
    return None


def text_id(text: str) -> int:
    """A number for a text, of 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)
