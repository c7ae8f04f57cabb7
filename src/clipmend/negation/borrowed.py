"""Borrowed denials: an image's own caption with something denied that no annotation speaks of ("a red cup on a beach, no teapot").

Annotated data deny a few dozen kinds; a network fitted on them alone learns those by heart. Text-only noun sets deny thousands,
but in captions of their own. Here both meet: what is asserted is a caption of the data, what is denied a noun of the list.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from clipmend.data.nouns import Noun
from clipmend.data.records import Caption, NegationData
from clipmend.data.scenes.wordings import WORDINGS
from clipmend.data.statements import Speaker, fill
from clipmend.negation.text_only import SENTENCES, as_sentences, chosen_nouns

__all__ = ["with_borrowed_denials"]

_PICTURES = ("a photo", "a picture", "an image", "a drawing", "a photograph")
_SINGLE = tuple(wording for wording in WORDINGS.values() if wording.kinds == 1)


def with_borrowed_denials(
    data: NegationData, nouns: Sequence[str] | int | None = None, *, share: float = 0.35, seed: int = 0,
    exclude: Collection[str] = (),
) -> NegationData:  # fmt: skip
    """Repeat some affirmative captions with a noun denied that the data, captions and annotations, never speak of.

    The data's other captions, questions and images stay as they are, and so do their numbers. Where ``data.vocabulary`` is
    ``None``, what is not annotated is absent and the new captions are true or false of every image like any other. Elsewhere a
    noun drawn from thousands may be in the picture, though it seldom is; one that a caption of the same image has, in either number
    ("two teapots"), gives way to another.

    Args:
        data: annotated images.
        nouns: the nouns to deny, or how many of the shipped list to take, or ``None`` for the whole list.
        share: captions added, as a share of the affirmative captions with an image.
        seed: fixes them.
        exclude: words no noun may hold, as for :func:`~clipmend.negation.text_only.text_only_data`.
    """
    spelt, things = _spoken(data)
    free = [noun for noun in chosen_nouns(nouns, exclude) if _is_free(noun, spelt, things)]
    plain = [row for row, caption in enumerate(data.captions) if caption.image >= 0 and not caption.denies]
    count = round(share * len(plain))
    if not free or not count or len(plain) == sum(caption.image >= 0 for caption in data.captions):
        return data  # data without any negation are refused elsewhere, and not mended here
    rng = np.random.default_rng((seed, 13))
    rows = np.sort(rng.choice(plain, count, replace=count > len(plain)))
    deck = np.concatenate([rng.permutation(len(free)) for _ in range(-(-count // len(free)))])
    told = _told(data)
    added = []
    for row, number in zip(rows.tolist(), deck.tolist(), strict=False):
        caption = data.captions[row]
        if data.vocabulary is None and caption.complete:
            added.append(_deny(rng, caption, free[number]))
            continue
        noun = _not_told(free, number, told.get(caption.image, ""))
        denial = None if noun is None else _deny_written(rng, caption, noun)
        added += [] if denial is None else [denial]
    return replace(data, captions=[*data.captions, *added])


def _spoken(data: NegationData) -> tuple[set[str], set[str]]:
    """The last words of all atoms, of annotations too that no caption speaks of: as spelt, and of things in small letters."""
    said = (atom for caption in data.captions for atom in (*caption.asserts, *caption.denies))
    noted = (atom for atoms in (*data.facts, *(data.unknown or ()), data.vocabulary or ()) for atom in atoms)
    atoms = {*said, *noted}
    # "at mountains" is a place and speaks of no "mountain": the bundled patches were fitted so.
    things = {atom for atom in atoms if not atom.startswith("at ")}
    return {_last(atom) for atom in atoms}, {_last(atom).lower() for atom in things}


def _last(words: str) -> str:
    return words.rsplit(" ", 1)[-1]


def _is_free(noun: Noun, spelt: set[str], things: set[str]) -> bool:
    """Whether the data speak of a noun in neither number: where atoms are "dogs" or "Dog", they speak of a "dog"."""
    return _last(noun.singular) not in spelt and not {_last(noun.singular).lower(), _last(noun.some).lower()} & things


def _plain(text: str) -> str:
    """Words in small letters between single spaces, with one before and one after."""
    return " ".join(["", *re.findall(r"[^\W_]+", text.lower()), ""])


def _told(data: NegationData) -> dict[int, str]:
    """By image the words of its captions that may speak of more than their atoms."""
    told: dict[int, str] = {}
    for caption in data.captions:
        if caption.image >= 0 and (data.vocabulary is not None or not caption.complete):
            told[caption.image] = told.get(caption.image, "") + _plain(caption.text)
    return told


def _not_told(free: Sequence[Noun], number: int, words: str) -> Noun | None:
    """The noun of that number, or the next one that is in no caption of the image in either number; ``None`` if all are."""
    for step in range(len(free)):
        noun = free[(number + step) % len(free)]
        if not any(_plain(form) in words for form in (noun.singular, noun.some)):
            return noun
    return None


def _deny_written(rng: np.random.Generator, caption: Caption, noun: Noun) -> Caption | None:
    """For captions that a person wrote, or annotations were made into: by the grammar that all statements have."""
    own = random.Random(int(rng.integers(2**63)))
    speaker = Speaker({noun.singular: noun}, _SINGLE)
    for wording in own.sample(_SINGLE, len(_SINGLE)):  # some cannot say a mass noun
        denial = speaker.negated(caption.text, caption.asserts, [noun.singular], wording, own, caption.image)
        if denial is not None:
            return replace(denial, complete=caption.complete)
    return None


def _deny(rng: np.random.Generator, caption: Caption, noun: Noun) -> Caption:
    """For drawn scenes. Its texts are what the bundled patches were trained on: another draw, or a rule more, would change them."""
    said = caption.text.strip().rstrip(".")
    if not said[1:2].isupper():  # "TV" keeps its capitals
        said = said[:1].lower() + said[1:]
    pictured = said.startswith(_PICTURES)
    wording = _SINGLE[rng.integers(len(_SINGLE))]
    after = [t for t in wording.hybrids if t.startswith("{pos}") and (pictured or " it " not in t)]
    if not after or ". " in said or rng.random() < SENTENCES:
        denial = fill(wording.sentences[rng.integers(len(wording.sentences))], [noun])
        text = as_sentences([denial, said] if rng.random() < 0.5 else [said, denial])
    else:
        text = fill(after[rng.integers(len(after))], [noun], pos=said)
    return Caption(
        text, caption.image, "hybrid", caption.asserts, (noun.singular,), wording.name, complete=caption.complete
    )  # fmt: skip
