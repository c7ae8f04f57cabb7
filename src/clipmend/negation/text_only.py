"""Text-only training: sets of nouns stand in for images, so that negation is learned as an operation and not about trained nouns.

A set such as {cat, teapot} stands for a picture of both. The encoder's own embedding of the affirmative caption, moved from
where texts lie to where images lie, stands in for the picture's embedding; negated captions that are true of the set and
captions that are false of it follow from the set alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.data.naming import noun_of
from clipmend.data.nouns import Noun, load_nouns
from clipmend.data.records import Caption, NegationData, Question
from clipmend.data.scenes.wordings import WORDINGS, Wording
from clipmend.data.statements import fill, listed

__all__ = ["text_only_captions", "text_only_data"]

_T = TypeVar("_T")
WORLD_NOUNS = 24  # nouns that the sets of one world share
WORLD_SETS = 32  # sets a world; a training batch comes from one world, so it holds sets with and without each noun
SENTENCES = 0.3  # share of captions that assert and deny in two sentences

_AFFIRMATIVE = (
    "{}", "a photo of {}", "a picture of {}", "an image with {}", "a scene with {}", "there is {}", "this image features {}",
    "you can see {}", "the picture shows {}", "a photograph showing {}",
)  # fmt: skip
_PLACES = ("a photo", "a picture", "an image", "a scene", "a photograph")


def text_only_data(
    encoder: DualEncoder,
    nouns: Sequence[str] | int | None = None,
    *,
    count: int = 4800,
    seed: int = 0,
    image_mean: Tensor | None = None,
    exclude: Collection[str] = (),
    progress: bool = False,
) -> tuple[NegationData, Tensor, np.ndarray]:
    """Noun sets with captions and questions, and embeddings that stand in for their images.

    Args:
        encoder: embeds the affirmative captions.
        nouns: the nouns to speak of, or how many of the shipped list to take (evenly), or ``None`` for the whole list.
        count: number of sets.
        seed: fixes everything.
        image_mean: ``[D]`` mean of image embeddings where one is known; stand-ins are then moved there from the texts' mean.
        exclude: words no noun may hold, on their own or at a word's end: "dog" leaves out "dog", "hot dog" and "bulldog".
        progress: show a progress bar while embedding.

    Returns:
        the data (its ``images`` are the affirmative captions), ``[count, D]`` unit stand-ins, ``[count]`` the world of each set.

    Raises:
        ValueError: fewer than 8 nouns.
    """
    data, groups = text_only_captions(chosen_nouns(nouns, exclude), count, seed)
    stand_ins = encoder.encode_texts(list(data.images), progress=progress)
    if image_mean is not None:
        stand_ins = stand_ins - stand_ins.mean(0) + image_mean
    return data, F.normalize(stand_ins, dim=-1), groups


def text_only_captions(nouns: Sequence[Noun], count: int, seed: int) -> tuple[NegationData, np.ndarray]:
    """The captions and questions of :func:`text_only_data`, and the world of each set; no encoder is needed."""
    if len(nouns) < 8:
        raise ValueError(f"text-only training needs at least 8 nouns, not {len(nouns)}; a few hundred are better")
    rng = np.random.default_rng((seed, 11))
    by_name = {noun.singular: noun for noun in nouns}
    facts: list[frozenset[str]] = []
    stand_ins: list[str] = []
    captions: list[Caption] = []
    questions: list[Question] = []
    groups: list[int] = []
    deck: list[str] = []
    world: list[str] = []
    for number in range(count):
        if number % WORLD_SETS == 0:  # deal the next world; every noun is dealt before any comes again
            while len(deck) < min(WORLD_NOUNS, len(nouns)):
                deck.extend(rng.permutation(sorted(by_name)).tolist())
            world = list(dict.fromkeys(deck[:WORLD_NOUNS]))
            deck = deck[WORLD_NOUNS:]
        order = rng.permutation(world).tolist()
        size = int(rng.integers(1, 1 + min(4, len(order) - 2)))
        present, absent = [by_name[n] for n in order[:size]], [by_name[n] for n in order[size:]]
        writer = _Writer(rng, present, absent, number)
        facts.append(frozenset(n.singular for n in present))
        groups.append(number // WORLD_SETS)
        stand_ins.append(writer.affirmative(present).text)
        first = len(captions)
        captions.extend(writer.captions())
        questions.append(writer.question(captions[first:], first))
    return NegationData(stand_ins, facts, captions, questions, name="text-only"), np.asarray(groups)


class _Writer:
    """Writes the captions of one set."""

    def __init__(self, rng: np.random.Generator, present: list[Noun], absent: list[Noun], number: int) -> None:
        self.rng, self.present, self.absent, self.number = rng, present, absent, number

    def captions(self) -> list[Caption]:
        """True: affirmative, two negative, one or two hybrid. False: one affirmative, two negative, two hybrid."""
        here, gone = self.present, self.absent
        mixed = [self._one(here), self._one(gone)]
        return [
            self.affirmative(self._some(here)),
            self.negative(self._one(gone)),
            self.negative(self._one(gone)),
            self.hybrid(self._some(here), self._one(gone)),
            self.hybrid(self._some(here), self._one(gone)),
            # False of the set; without an image of their own, so that their truth for every set follows from the atoms.
            self.affirmative(mixed, own=False),
            self.negative(self._one(here), own=False),
            self.negative(self._one(here), own=False),
            self.hybrid([self._one(gone)], self._one(here), own=False),
            self.hybrid([self._one(gone)], self._one(gone), own=False),
            self.hybrid([here[0]], here[-1], own=False) if len(here) > 1 else self.negative(here[0], own=False),
        ]

    def question(self, captions: list[Caption], first: int) -> Question:
        """One true caption of a form drawn in equal parts, against three false ones of any form."""
        form = ("affirmative", "negative", "hybrid")[int(self.rng.integers(3))]
        true = [k for k, c in enumerate(captions) if c.image >= 0 and c.form == form]
        false = [k for k, c in enumerate(captions) if c.image < 0 and self._is_false(c)]
        options = [true[self.rng.integers(len(true))], *self.rng.choice(false, 3, replace=False).tolist()]
        order = self.rng.permutation(4).tolist()
        return Question(self.number, tuple(first + options[k] for k in order), order.index(0), form)

    def affirmative(self, nouns: list[Noun], own: bool = True) -> Caption:
        text = self._of(_AFFIRMATIVE).format(listed(nouns))
        return Caption(text, self.number if own else -1, "affirmative", tuple(n.singular for n in nouns))

    def negative(self, noun: Noun, own: bool = True) -> Caption:
        """A sentence or a query that denies and asserts nothing."""
        wording = self._wording()
        template = self._of(wording.sentences + wording.queries)
        denied = self._denied(noun, wording, own)
        text = fill(template, denied, place=self._of(_PLACES))
        return Caption(text, self._own(own, denied), "negative", (), tuple(n.singular for n in denied), wording.name)

    def hybrid(self, asserted: list[Noun], noun: Noun, own: bool = True) -> Caption:
        asserted = [n for n in asserted if n != noun] or [self._one([n for n in self.absent if n != noun])]
        wording = self._wording()
        denied = self._denied(noun, wording, own, asserted)
        if self.rng.random() < SENTENCES:  # "There is no cat. A photo of a teapot."
            parts = [fill(self._of(wording.sentences), denied), self._of(_AFFIRMATIVE).format(listed(asserted))]
            text = as_sentences(self.rng.permutation(parts).tolist())
        else:
            text = fill(self._of(wording.hybrids), denied, pos=listed(asserted))
        return Caption(
            text, self._own(own, denied, asserted), "hybrid", tuple(n.singular for n in asserted),
            tuple(n.singular for n in denied), wording.name,
        )  # fmt: skip

    def _denied(self, noun: Noun, wording: Wording, own: bool, asserted: Sequence[Noun] = ()) -> list[Noun]:
        if wording.kinds == 1:
            return [noun]
        # A second noun that is absent keeps a true caption true and a false one false.
        other = [n for n in self.absent if n != noun and n not in asserted]
        return [noun, self._one(other)] if self.rng.random() < 0.5 else [self._one(other), noun]

    def _own(self, own: bool, denied: list[Noun], asserted: Sequence[Noun] = ()) -> int:
        return self.number if own and not set(denied) & set(self.present) and set(asserted) <= set(self.present) else -1

    def _is_false(self, caption: Caption) -> bool:
        here = {n.singular for n in self.present}
        return bool(set(caption.denies) & here) or not set(caption.asserts) <= here

    def _wording(self) -> Wording:
        return self._of(tuple(WORDINGS.values()))

    def _of(self, options: Sequence[_T]) -> _T:
        return options[int(self.rng.integers(len(options)))]

    def _one(self, nouns: Sequence[Noun]) -> Noun:
        return nouns[int(self.rng.integers(len(nouns)))]

    def _some(self, nouns: Sequence[Noun]) -> list[Noun]:
        count = int(self.rng.integers(1, len(nouns) + 1))
        return [nouns[k] for k in self.rng.permutation(len(nouns))[:count].tolist()]


def as_sentences(parts: Sequence[str]) -> str:
    """``"There is no cat. A photo of a teapot."``"""
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "."


def chosen_nouns(nouns: Sequence[str] | int | None, exclude: Collection[str] = ()) -> list[Noun]:
    """The nouns meant by ``nouns``, without those that hold a word of ``exclude`` (see :func:`text_only_data`)."""
    return _without(_nouns(nouns), exclude)


def _nouns(nouns: Sequence[str] | int | None) -> list[Noun]:
    shipped = load_nouns()
    if nouns is None:
        return list(shipped)
    if isinstance(nouns, int):
        step = max(1, len(shipped) // max(nouns, 1))
        return list(shipped[::step][:nouns])
    odd = next((name for name in nouns if not isinstance(name, str)), None)
    if isinstance(nouns, str) or odd is not None:
        raise ValueError(f"nouns are a list of words, or a number of them, not {(nouns if odd is None else odd)!r}")
    plurals = {noun.plural: noun for noun in shipped if noun.plural}
    known = plurals | {noun.singular: noun for noun in shipped}  # what is both ("glasses") is meant as it stands in the list
    found = [known.get(name) or noun_of(name) for name in (name.strip() for name in nouns) if name]
    return list({noun.singular: noun for noun in found}.values())


def _without(nouns: list[Noun], exclude: Collection[str]) -> list[Noun]:
    endings = tuple(exclude)
    return [noun for noun in nouns if not (endings and any(word.endswith(endings) for word in noun.singular.split()))]
