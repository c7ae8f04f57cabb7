"""Captions, questions and what is true of which image: the records every part of the project exchanges.

A fact about an image is an *atom*, a plain string: ``"cat"``, ``"red cup"``, ``"at beach"``. An image carries the set of its
true atoms; a caption carries the atoms it asserts and the atoms it denies. Truth of any caption for any image follows from
the two, so that "no X" is never a labelling error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["FALSE", "FORMS", "TRUE", "UNKNOWN", "Caption", "NegationData", "Question", "truth_matrix"]

TRUE = 1
"""A caption is true of an image."""
UNKNOWN = 0
"""The annotation does not tell."""
FALSE = -1
"""A caption is false of an image."""
FORMS = ("affirmative", "negative", "hybrid")


@dataclass(frozen=True, slots=True)
class Caption:
    """One caption with its logical form.

    Args:
        text: the caption as a person would write it.
        image: index of the image it was written for, or -1 where there is none (text-only captions).
        form: ``"affirmative"``, ``"negative"`` (denies only) or ``"hybrid"`` (asserts and denies).
        asserts: atoms that must be true of an image for the caption to be true.
        denies: atoms that must be false of it.
        wording: identifier of the negated wording (``""`` for an affirmative caption).
        complete: False where the text says more than ``asserts`` and ``denies`` hold (a relation, an order): its truth for any
            image other than its own is then at best unknown.
    """

    text: str
    image: int = -1
    form: str = "affirmative"
    asserts: tuple[str, ...] = ()
    denies: tuple[str, ...] = ()
    wording: str = ""
    complete: bool = True

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"caption form {self.form!r} is none of {', '.join(FORMS)} (caption: {self.text!r})")


@dataclass(frozen=True, slots=True)
class Question:
    """A multiple-choice question: one image, several captions, one of them right.

    Args:
        image: index of the image.
        options: indices into the captions of the same :class:`NegationData`.
        answer: position of the right option within ``options``.
        template: form of the right option, one of :data:`FORMS`.
    """

    image: int
    options: tuple[int, ...]
    answer: int
    template: str


@dataclass
class NegationData:
    """Images, what is true of each, and captions and questions about them: what a patch is fitted on and judged by.

    Args:
        images: paths or PIL images; may be empty for text-only data.
        facts: the atoms true of each image, aligned with ``images``.
        captions: every caption; those used by questions included.
        questions: questions over ``images`` and ``captions``.
        vocabulary: the atoms that were annotated exhaustively: an atom of the vocabulary that is not among an image's facts is
            false of it; an atom outside the vocabulary is unknown. ``None`` means that every atom was.
        name: what to call the data in tables.
        reserved: atoms kept for testing: no caption of a training set denies one, and text-only training beside it leaves out
            nouns that name one.
        groups: a number for each image; where given, a training batch draws its images from one group (images of a group share
            what they may show, so that a batch has images with and without each thing).
        unknown: atoms of the vocabulary that are unknown of an image all the same (VOC's "difficult" objects), aligned with
            ``images``; ``None`` for none.
    """

    images: Sequence[Any]
    facts: list[frozenset[str]]
    captions: list[Caption]
    questions: list[Question] = field(default_factory=list)
    vocabulary: frozenset[str] | None = None
    name: str = "data"
    reserved: frozenset[str] = frozenset()
    groups: Sequence[int] | None = None
    unknown: Sequence[frozenset[str]] | None = None

    def __post_init__(self) -> None:
        if len(self.images) != len(self.facts):
            raise ValueError(f"{self.name}: {len(self.images)} images but {len(self.facts)} sets of facts")
        if self.groups is not None and len(self.groups) != len(self.images):
            raise ValueError(f"{self.name}: {len(self.images)} images but {len(self.groups)} groups")
        if self.unknown is not None and len(self.unknown) != len(self.images):
            raise ValueError(f"{self.name}: {len(self.images)} images but {len(self.unknown)} sets of unknown atoms")
        for row, caption in enumerate(self.captions):
            if not -1 <= caption.image < len(self.images):
                raise ValueError(f"{self.name}: caption {row} ({caption.text!r}) names image {caption.image} of {len(self.images)}")
        for row, question in enumerate(self.questions):
            if not 0 <= question.image < len(self.images):
                raise ValueError(f"{self.name}: question {row} names image {question.image} of {len(self.images)}")
            if not all(0 <= option < len(self.captions) for option in question.options):
                raise ValueError(f"{self.name}: question {row} names a caption outside 0..{len(self.captions) - 1}")
            if not 0 <= question.answer < len(question.options):
                raise ValueError(f"{self.name}: question {row} has answer {question.answer} of {len(question.options)} options")

    def truth(self, images: Sequence[int], captions: Sequence[int]) -> np.ndarray:
        """Truth of captions for images, ``[len(images), len(captions)]`` int8 of TRUE, UNKNOWN, FALSE.

        A caption is TRUE of the image it was written for, whatever the annotation says.
        """
        chosen = [self.captions[j] for j in captions]
        unknown = None if self.unknown is None else [self.unknown[i] for i in images]
        matrix = truth_matrix([self.facts[i] for i in images], chosen, self.vocabulary, unknown)
        own = np.asarray(images)[:, None] == np.asarray([c.image for c in chosen])[None, :]
        matrix[own & (matrix == UNKNOWN)] = TRUE
        return matrix


def truth_matrix(
    facts: Sequence[Iterable[str]],
    captions: Sequence[Caption],
    vocabulary: Iterable[str] | None = None,
    unknown: Sequence[Iterable[str]] | None = None,
) -> np.ndarray:
    """Truth of every caption for every image.

    Args:
        facts: true atoms of each image.
        captions: captions with ``asserts`` and ``denies``.
        vocabulary: atoms annotated exhaustively (see :class:`NegationData`); ``None`` for all.
        unknown: for each image, atoms that are unknown of it whatever the vocabulary; ``None`` for none.

    Returns:
        int8 ``[N, M]``: FALSE where an asserted atom is known to be absent or a denied one present, TRUE where every asserted
        atom is present and every denied one known to be absent (and the caption is ``complete``), else UNKNOWN.
    """
    atoms = sorted({a for c in captions for a in (*c.asserts, *c.denies)})
    column = {a: k for k, a in enumerate(atoms)}
    present = np.zeros((len(facts), len(atoms)), np.float32)
    for i, image_facts in enumerate(facts):
        for atom in image_facts:
            if atom in column:
                present[i, column[atom]] = 1
    known = np.ones(len(atoms), np.float32)
    if vocabulary is not None:
        vocabulary = frozenset(vocabulary)
        known = np.array([a in vocabulary for a in atoms], np.float32)
    absent = (1 - present) * known  # [N, K] known to be absent; an atom that is listed is present even outside the vocabulary
    for i, image_unknown in enumerate(unknown or ()):
        for atom in image_unknown:
            if atom in column:
                absent[i, column[atom]] = 0
    asserts = np.zeros((len(atoms), len(captions)), np.float32)
    denies = np.zeros_like(asserts)
    for j, caption in enumerate(captions):
        for atom in caption.asserts:
            asserts[column[atom], j] = 1
        for atom in caption.denies:
            denies[column[atom], j] = 1
    false = absent @ asserts + present @ denies > 0  # [N, M]
    satisfied = present @ asserts + absent @ denies  # [N, M] atoms known to hold
    complete = np.array([c.complete for c in captions], bool)
    true = (satisfied == asserts.sum(0) + denies.sum(0)) & complete
    return np.where(false, FALSE, np.where(true, TRUE, UNKNOWN)).astype(np.int8)
