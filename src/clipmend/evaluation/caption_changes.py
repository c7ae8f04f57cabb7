"""Dense captions changed sentence by sentence: what is said stays or is cut, where it is said changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from clipmend.data.sentences import join_sentences, split_sentences
from clipmend.suggest import did_you_mean

__all__ = ["AS_THEY_ARE", "CHANGES", "FILLER", "CaptionChange", "Changed", "change_captions", "position_changes"]

FILLER = ("This is a photo.",)
AS_THEY_ARE = "as-they-are"

Sentences = list[str]


@dataclass(frozen=True)
class CaptionChange:
    """One way to change a caption.

    Args:
        name: short name, in files and options.
        about: the same in words, for tables.
        needs: sentences a caption must have; a shorter one keeps its text.
        apply: new sentences of ``needs`` or more old ones.
    """

    name: str
    about: str
    needs: int
    apply: Callable[[Sentences, np.random.Generator], Sentences]


def _moved(sentences: Sentences, rng: np.random.Generator) -> Sentences:
    return [*sentences[1:4], sentences[0], *sentences[4:]]


def _shuffled(sentences: Sentences, rng: np.random.Generator) -> Sentences:
    """Any order but the given one, each as likely as the other."""
    order = np.arange(len(sentences))
    while (order == np.arange(len(sentences))).all():
        order = rng.permutation(len(sentences))
    return [sentences[k] for k in order]


CHANGES: dict[str, CaptionChange] = {
    change.name: change
    for change in (
        CaptionChange("swapped", "first two swapped", 2, lambda s, rng: [s[1], s[0], *s[2:]]),
        CaptionChange("first-and-fourth", "1st and 4th swapped", 4, lambda s, rng: [s[3], s[1], s[2], s[0], *s[4:]]),
        CaptionChange("fourth", "first moved to 4th", 4, _moved),
        CaptionChange("shuffled", "random order", 2, _shuffled),
        CaptionChange("no-first", "without the first", 2, lambda s, rng: s[1:]),
        CaptionChange("first", "the first alone", 2, lambda s, rng: s[:1]),
        CaptionChange("last", "the last alone", 2, lambda s, rng: s[-1:]),
    )
}
"""By name. The first five sound like the caption to a reader, or nearly; of the last two only a part is said."""


def position_changes(
    names: Sequence[str] | None = None, *, fillers: Sequence[int] = (1, 3), filler: Sequence[str] = FILLER
) -> list[CaptionChange]:
    """What :func:`~clipmend.evaluation.position_lens.evaluate_positions` looks at besides the captions as they are.

    Args:
        names: of :data:`CHANGES` (default: all).
        fillers: how many sentences of filler are put in front, one change each, called ``filler-N``.
        filler: those sentences, taken in turn.

    Raises:
        ValueError: a name that is none, a number below 1, empty filler, or nothing to change.
    """
    if not filler or not all(text.strip() for text in filler):
        raise ValueError("filler must be one sentence or more, none of them empty")
    if any(count < 1 for count in fillers):
        raise ValueError(f"filler goes in front once or more often, not {min(fillers)} times")
    asked = list(CHANGES) if names is None else list(dict.fromkeys(names))
    unknown = [name for name in asked if name not in CHANGES]
    if unknown:
        raise ValueError(f"there is no change {unknown[0]!r}{did_you_mean(unknown[0], CHANGES)}; there are {', '.join(CHANGES)}")
    found = [_filler(count, tuple(filler)) for count in dict.fromkeys(fillers)] + [CHANGES[name] for name in asked]
    if not found:
        raise ValueError("name a change, or a number of filler sentences")
    return found


def _filler(count: int, filler: tuple[str, ...]) -> CaptionChange:
    front = [filler[k % len(filler)].strip() for k in range(count)]
    about = f"{count} × filler in front"
    return CaptionChange(f"filler-{count}", about, 1, lambda sentences, rng: [*front, *sentences])


@dataclass(frozen=True)
class Changed:
    """Changed captions.

    Args:
        texts: ``[M]``, in the order of the captions.
        unchanged: how many keep their text: too few sentences, or sentences that are equal.
    """

    texts: list[str]
    unchanged: int


def change_captions(captions: Sequence[str], change: CaptionChange, *, seed: int = 0) -> Changed:
    """Change captions sentence by sentence; white space between sentences becomes one space where anything changes.

    Args:
        captions: ``[M]``; sentences by :func:`clipmend.data.sentences.split_sentences`.
        change: how.
        seed: with the caption itself, fixes a random order: equal captions get equal orders, wherever they stand.
    """
    texts = []
    unchanged = 0
    for caption in captions:
        sentences = split_sentences(caption)
        changed = change.apply(list(sentences), _generator(caption, seed)) if len(sentences) >= change.needs else sentences
        same = changed == sentences
        unchanged += same
        texts.append(caption if same else join_sentences(changed))
    return Changed(texts, unchanged)


def _generator(caption: str, seed: int) -> np.random.Generator:
    own = hashlib.sha256(caption.encode("utf-8", "surrogatepass")).digest()[:8]
    return np.random.default_rng([seed, int.from_bytes(own, "little")])
