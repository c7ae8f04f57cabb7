"""Borrowed denials: an image's own caption with something denied that no annotation speaks of ("a red cup on a beach, no teapot").

Annotated data deny a few dozen kinds; a network fitted on them alone learns those by heart. Text-only noun sets deny thousands,
but in captions of their own. Here both meet: what is asserted is a caption of the data, what is denied a noun of the list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from clipmend.data.nouns import Noun
from clipmend.data.records import Caption, NegationData
from clipmend.data.scenes.wordings import WORDINGS
from clipmend.data.statements import fill
from clipmend.negation.text_only import SENTENCES, as_sentences, chosen_nouns

__all__ = ["with_borrowed_denials"]

_PICTURES = ("a photo", "a picture", "an image", "a drawing", "a photograph")


def with_borrowed_denials(
    data: NegationData, nouns: Sequence[str] | int | None = None, *, share: float = 0.35, seed: int = 0,
    exclude: Collection[str] = (),
) -> NegationData:  # fmt: skip
    """Repeat some affirmative captions with a noun denied that the data, captions and annotations, never speak of.

    The data's other captions, questions and images stay as they are, and so do their numbers. Where ``data.vocabulary`` is
    ``None``, what is not annotated is absent and the new captions are true or false of every image like any other. Elsewhere a
    noun drawn from thousands may be in the picture, though it seldom is.

    Args:
        data: annotated images.
        nouns: the nouns to deny, or how many of the shipped list to take, or ``None`` for the whole list.
        share: captions added, as a share of the affirmative captions with an image.
        seed: fixes them.
        exclude: words no noun may hold, as for :func:`~clipmend.negation.text_only.text_only_data`.
    """
    spoken = _spoken(data)
    free = [noun for noun in chosen_nouns(nouns, exclude) if noun.singular.rsplit(" ", 1)[-1] not in spoken]
    plain = [row for row, caption in enumerate(data.captions) if caption.image >= 0 and not caption.denies]
    count = round(share * len(plain))
    if not free or not count or len(plain) == sum(caption.image >= 0 for caption in data.captions):
        return data  # data without any negation are refused elsewhere, and not mended here
    rng = np.random.default_rng((seed, 13))
    rows = np.sort(rng.choice(plain, count, replace=count > len(plain)))
    deck = np.concatenate([rng.permutation(len(free)) for _ in range(-(-count // len(free)))])
    added = [_deny(rng, data.captions[row], free[noun]) for row, noun in zip(rows.tolist(), deck.tolist(), strict=False)]
    return replace(data, captions=[*data.captions, *added])


def _spoken(data: NegationData) -> set[str]:
    """The last words of all atoms: of captions, and of annotations that no caption speaks of."""
    said = (atom for caption in data.captions for atom in (*caption.asserts, *caption.denies))
    noted = (atom for atoms in (*data.facts, *(data.unknown or ()), data.vocabulary or ()) for atom in atoms)
    return {atom.rsplit(" ", 1)[-1] for atom in {*said, *noted}}


def _deny(rng: np.random.Generator, caption: Caption, noun: Noun) -> Caption:
    said = caption.text.strip().rstrip(".")
    if not said[1:2].isupper():  # "TV" keeps its capitals
        said = said[:1].lower() + said[1:]
    pictured = said.startswith(_PICTURES)
    single = [wording for wording in WORDINGS.values() if wording.kinds == 1]
    wording = single[rng.integers(len(single))]
    after = [t for t in wording.hybrids if t.startswith("{pos}") and (pictured or " it " not in t)]
    if not after or ". " in said or rng.random() < SENTENCES:
        denial = fill(wording.sentences[rng.integers(len(wording.sentences))], [noun])
        text = as_sentences([denial, said] if rng.random() < 0.5 else [said, denial])
    else:
        text = fill(after[rng.integers(len(after))], [noun], pos=said)
    return Caption(
        text, caption.image, "hybrid", caption.asserts, (noun.singular,), wording.name, complete=caption.complete
    )  # fmt: skip
