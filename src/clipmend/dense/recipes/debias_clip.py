"""DeBias-CLIP: captions without their summary, in another order and at other positions, beside the whole ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clipmend.data.sentences import join_sentences, split_sentences
from clipmend.dense.recipes.base import Example, register
from clipmend.dense.recipes.long_clip import LongClipRecipe

if TYPE_CHECKING:
    from clipmend.dense.pairs import Pairs

__all__ = ["DebiasClipRecipe", "pad_front"]


def pad_front(ids: list[int], amount: int, pad_id: int) -> list[int]:
    """Token ids with padding in front of the words, so that they stand at later positions.

    A start token stays first, where the model knows it. It is recognised by its id, which in the vocabularies of CLIP and BERT is
    the one before the end token's; ids of a tokenizer without one (SigLIP's) are padded in front of everything. Models of
    transformers pad with the end token, at the first of which a CLIP reads its embedding off: where padding and an end or start
    token are one, 0 is put in, which CLIP's own tokenizer pads with.

    Args:
        ids: of a text, special tokens included.
        amount: how many to put in.
        pad_id: the padding token's.
    """
    start = int(len(ids) > 1 and ids[0] + 1 == ids[-1])
    filler = 0 if pad_id in (ids[0], ids[-1]) else pad_id
    return [*ids[:start], *[filler] * amount, *ids[start:]]


@register
@dataclass(frozen=True, kw_only=True)
class DebiasClipRecipe(LongClipRecipe):
    r"""``L(image, caption) + short_weight * L(PCA(image), changed caption)``: Long-CLIP's recipe without its short captions.

    Long captions open with a summary, and models learn to read little else: without the first sentence Long-CLIP loses 17 points on
    DOCCI, and nearly 10 with the first and the fourth exchanged. Here the second text of a pair is, newly drawn at every step,

    1. the caption *without its first sentence*,
    2. of the other sentences a random number, at least one, in a *random order*,
    3. with a random amount of *padding in front* of its words (:func:`pad_front`), up to all the room there is.

    A caption of *one sentence* has nothing left without it: that sentence is used, and only its position changes (a note says for
    how many). A caption of no sentence is an empty text. What is drawn depends on seed, step and pair alone.

    The paper's summary leaves open how many sentences are kept and how long the padding is; both are uniform here. That the start
    token stays in front of the padding, and that the changed caption stands where Long-CLIP has its short one, with the PCA
    (``components=0``: without), is this library's reading too. A short caption of the data is not used. As with Long-CLIP, the PCA
    does nothing up to 33 pairs a batch, and two pairs that have the same changed text are no negatives of each other.

    Train at 248 positions (``length=248``): at 77 there is little room to move a long caption in.

    Source: DeBias-CLIP (arXiv 2602.22419).

    Args:
        drop_summary: leave the first sentence out.
        sample: keep a random number of the sentences; else all of them.
        permute: put them in a random order.
        padding: share of the free positions that padding may take up; 0 for none.
        gamma, short_weight, components, label_smoothing, learning_rate, weight_decay, fixed_positions: see
            :class:`~clipmend.dense.recipes.long_clip.LongClipRecipe`; the short term is the one with changed captions.
        margin, global_loss, head_learning_rate: see :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "debias-clip"
    about: ClassVar[str] = "whole captions, and others without summary, reordered and moved (DeBias-CLIP)"

    drop_summary: bool = True
    sample: bool = True
    permute: bool = True
    padding: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.padding <= 1:
            raise ValueError(f"padding is {self.padding}; it is a share of the free positions, from 0 to 1")

    def check(self, pairs: Pairs) -> list[str]:
        alone = sum(len(split_sentences(caption)) < 2 for caption in pairs.captions)
        if not (self.short_weight and self.drop_summary and alone):
            return []
        share = 100 * alone / len(pairs)
        return [f"{alone:,} of {len(pairs):,} captions ({share:.1f}%) have one sentence: it is kept, and only its position changes"]

    def other_text(self, example: Example, rng: np.random.Generator) -> str:
        sentences = split_sentences(example.caption)
        if self.drop_summary and len(sentences) > 1:
            sentences = sentences[1:]
        kept = np.arange(len(sentences))
        if self.sample and len(kept):
            kept = np.sort(rng.choice(len(kept), int(rng.integers(1, len(kept) + 1)), replace=False))
        if self.permute:
            kept = rng.permutation(kept)
        return join_sentences([sentences[place] for place in kept])

    def token_ids(self, name: str, ids: list[int], limit: int, pad_id: int, rng: np.random.Generator) -> list[int]:
        most = int(self.padding * max(0, limit - len(ids)))
        if name != "text/short" or not most:
            return ids
        return pad_front(ids, int(rng.integers(0, most + 1)), pad_id)
