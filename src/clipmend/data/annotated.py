"""From any source that says what its images show to captions and questions that say what they do not.

``clipmend.fit(encoder, negation_data(source))`` is all that is needed to train on it.

What is said of an image is what its source says: a caption may assert a thing that is ``present`` and deny one that is ``absent``;
of a thing in neither list nothing is said, and no caption about it counts as true or false (VOC's "difficult" objects, objects
outside a data set's vocabulary). A thing that is annotated absent but that a caption of the same image mentions counts as unknown:
the annotators may have missed it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from clipmend.data.absences import Absences, How
from clipmend.data.choices import Facts, truthful_questions
from clipmend.data.collect import Annotated, OnMissing, collect
from clipmend.data.naming import Mentions
from clipmend.data.nouns import Noun
from clipmend.data.readers.base import Source
from clipmend.data.records import Caption, NegationData
from clipmend.data.released import released_questions
from clipmend.data.scenes.facts import text_rng
from clipmend.data.statements import Speaker, wordings_called

__all__ = ["Annotated", "Denials", "collect", "negation_data", "negation_data_of"]


@dataclass(frozen=True)
class Denials:
    """How captions and questions are made.

    Args:
        reading: ``"truthful"``: the denial of an absent thing is true, and wrong options are false statements. ``"released"``: the
            construction of the published training data: an image's question is an original caption (right), its negated caption,
            and two captions of other images that share a category; for the objective of that name.
        absent: ``"plausible"``: absent things are denied in proportion to how often they stand beside what is shown;
            ``"random"``: all alike.
        wordings: ``"training"``, ``"reserved"`` (for tests: no training text has them), ``"all"`` or ``"published"`` (the three
            templates of the published data); by default ``"training"``, for the released reading ``"published"``.
        per_image: most original captions taken of an image, each also with a denial.
        questions: how many; by default one for each image that allows one. Rounded up to a multiple of three (truthful).
        reserved: things that nothing denies, kept for testing.
        seed: fixes everything.

    Raises:
        ValueError: a value that is none of the above.
    """

    reading: Literal["truthful", "released"] = "truthful"
    absent: How = "plausible"
    wordings: str | None = None
    per_image: int = 3
    questions: int | None = None
    reserved: frozenset[str] = frozenset()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.reading not in ("truthful", "released"):
            raise ValueError(f"reading is {self.reading!r}; it must be 'truthful' or 'released'")
        if self.absent not in ("plausible", "random"):
            raise ValueError(f"absent is {self.absent!r}; it must be 'plausible' or 'random'")
        if self.per_image < 1:
            raise ValueError(f"per_image is {self.per_image}; at least one caption of an image is needed")
        if self.questions is not None and self.questions < 0:
            raise ValueError(f"questions is {self.questions}; it must not be negative")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must not be negative")
        if self.wordings is None:
            object.__setattr__(self, "wordings", "published" if self.reading == "released" else "training")
        wordings_called(self.wordings or "")
        object.__setattr__(self, "reserved", frozenset(self.reserved))


def negation_data(
    source: Source | Annotated,
    denials: Denials | None = None,
    *,
    nouns: Mapping[str, Noun] | None = None,
    on_missing: OnMissing = "error",
    advance: Callable[[int], None] | None = None,
    **options: Any,
) -> NegationData:
    """Captions and questions about annotated images: what :func:`clipmend.fit` takes.

    Args:
        source: from :func:`clipmend.data.readers.read`, or already read through.
        denials: how they are made; or give its fields as ``options`` (``seed=1``, ``wordings="reserved"``).
        nouns, on_missing: as for :func:`collect`.
        advance: called with 1 for every image whose captions are made.

    Returns:
        The data. ``images`` are paths, or pictures where the source holds them. Truth follows from ``facts``, ``vocabulary`` and
        ``unknown``. Truthful: for each image original captions (or "a photo of ..." where there are none), the same with a true
        denial, a caption that only denies, and false statements of every form (``image`` -1). Released: original captions and
        their negated ones.

    Raises:
        ValueError: nothing is annotated, unknown options, a reserved thing that the source does not know.

    Example:
        >>> data = negation_data(read("coco:coco/", split="train2017"), seed=1)
        >>> patch = clipmend.fit(clipmend.load("openai/clip-vit-base-patch32"), data)
    """
    known = {f.name for f in fields(Denials)}
    if set(options) - known:
        raise ValueError(f"there is no option {', '.join(sorted(set(options) - known))}; there are {', '.join(sorted(known))}")
    denials = replace(denials or Denials(), **options) if denials is not None else Denials(**options)
    data = source if isinstance(source, Annotated) else collect(source, nouns=nouns, on_missing=on_missing)
    return negation_data_of(data, denials, advance=advance)


def negation_data_of(
    data: Annotated,
    denials: Denials,
    images: Sequence[Any] | None = None,
    advance: Callable[[int], None] | None = None,
) -> NegationData:
    """:func:`negation_data` of a source that was read through; its notes grow by what the data did not allow.

    ``images`` stand in for the data's own, aligned with them (names to write in tables, say).
    """
    denials = replace(denials, reserved=denials.reserved | data.reserved)
    strange = sorted(denials.reserved - data.vocabulary)
    if strange:
        raise ValueError(f"{data.name}: nothing is called {', '.join(strange)}; reserved things go by {_few(data.vocabulary)}")
    speaker = Speaker(data.nouns, wordings_called(denials.wordings or ""))
    absences = Absences(data.present, denials.absent)
    mentions = Mentions(data.nouns)
    captions: list[Caption] = []
    facts = [Facts(k, tuple(sorted(p)), tuple(sorted(a))) for k, (p, a) in enumerate(zip(data.present, data.absent, strict=True))]
    for known in facts:
        writer = _Writer(known, data.captions[known.image], denials, speaker, absences, mentions)
        captions += writer.released() if denials.reading == "released" else writer.truthful()
        if advance is not None:
            advance(1)
    rng = text_rng(denials.seed, f"negate/questions/{denials.reading}")
    if denials.reading == "released":
        made = released_questions(captions, data.present, rng, denials.questions)
        questions, options = made.questions, []
    else:
        askable = sum(bool(f.present) and bool(f.absent) for f in facts)
        made = truthful_questions(
            facts, speaker, absences, rng, askable if denials.questions is None else denials.questions, denials.reserved
        )
        options = made.captions
        questions = [
            replace(q, options=tuple(len(captions) + k for k in q.options)) for q in made.questions
        ]  # the options stand behind the captions
    data.notes += made.notes
    unknown = [data.unknown(k) for k in range(len(facts))]
    return NegationData(
        [image if isinstance(image, Path) else image.open() for image in data.images] if images is None else images,
        list(data.present),
        captions + options,
        questions,
        vocabulary=data.vocabulary,
        name=data.name,
        reserved=denials.reserved,
        unknown=unknown if any(unknown) else None,
    )


def _few(words: Sequence[str] | frozenset[str]) -> str:
    listed = sorted(words)
    return ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "")


class _Writer:
    """Writes the captions of one image."""

    def __init__(
        self, facts: Facts, captions: tuple[str, ...], denials: Denials, speaker: Speaker, absences: Absences, mentions: Mentions
    ) -> None:
        self.facts, self.speaker, self.absences, self.mentions, self.denials = facts, speaker, absences, mentions, denials
        self.rng: random.Random = text_rng(denials.seed, f"negate/captions/{denials.reading}", facts.image)
        chosen = list(captions)
        if len(chosen) > denials.per_image:
            chosen = [chosen[k] for k in sorted(self.rng.sample(range(len(chosen)), denials.per_image))]
        self.originals = chosen
        self.deniable = [a for a in facts.absent if a not in denials.reserved]
        self.shown = [a for a in facts.present if a not in denials.reserved]

    def plain(self) -> list[Caption]:
        """Original captions, with those things they assert that are annotated; else a statement of what is shown."""
        if self.originals:
            return [Caption(text, self.facts.image, "affirmative", self._asserted(text), complete=False) for text in self.originals]
        if not self.facts.present:
            return []
        made = [self.speaker.affirmative(self._some(), self.rng, self.facts.image) for _ in range(min(2, self.denials.per_image))]
        return list({caption.text: caption for caption in made}.values())

    def truthful(self) -> list[Caption]:
        plain = self.plain()
        made: list[Caption | None] = [*plain, *(self._denied(caption) for caption in plain)]
        made += [self._negative(true=True), self._negative(true=False)]
        if self.facts.present:
            made += [self._hybrid(true=True), self._hybrid(true=False), self._wrong()]
        return list(dict.fromkeys(caption for caption in made if caption is not None))

    def released(self) -> list[Caption]:
        """Pairs: each original caption is followed by its negated one."""
        made: list[Caption] = []
        for caption in self.plain():
            negated = self._denied(caption)
            if negated is not None:
                made += [caption, negated]
        return made

    def _asserted(self, text: str) -> tuple[str, ...]:
        return tuple(sorted(self.mentions([text]) & set(self.facts.present)))

    def _some(self) -> list[str]:
        return self.rng.sample(self.facts.present, self.rng.randint(1, min(3, len(self.facts.present))))

    def _absent(self, number: int) -> list[str]:
        things = self.absences.draw(self.rng, self.facts.present, self.deniable, number)
        return things if len(things) == number else []

    def _shown_and(self, number: int) -> list[str]:
        """Things to deny falsely: one that is shown, others that are not."""
        if not self.shown:
            return []
        rest = self._absent(number - 1) if number > 1 else []
        things = [self.rng.choice(self.shown), *rest]
        self.rng.shuffle(things)
        return things if len(things) == number else []

    def _denied(self, plain: Caption) -> Caption | None:
        """A caption with a denial that is true of the image."""
        for wording in self._wordings():
            denies = self._absent(wording.kinds)
            if not denies:
                continue
            if plain.complete:
                made = self.speaker.hybrid(plain.asserts, denies, wording, self.rng, self.facts.image)
            else:
                made = self.speaker.negated(plain.text, plain.asserts, denies, wording, self.rng, self.facts.image)
            if made is not None:
                return made
        return None

    def _negative(self, true: bool) -> Caption | None:
        for wording in self._wordings():
            denies = self._absent(wording.kinds) if true else self._shown_and(wording.kinds)
            made = self.speaker.negative(denies, wording, self.rng, self.facts.image if true else -1) if denies else None
            if made is not None:
                return made
        return None

    def _hybrid(self, true: bool) -> Caption | None:
        for wording in self._wordings():
            if true:
                asserts, denies, image = self._some(), self._absent(wording.kinds), self.facts.image
            elif len(self.facts.present) > 1 and self.shown and self.rng.random() < 0.5:  # what it denies is there
                denies, image = self._shown_and(wording.kinds), -1
                asserts = [a for a in self._some() if a not in denies]
            else:  # what it asserts is not there
                things = self.absences.draw(self.rng, self.facts.present, self.facts.absent, 1)
                others = [a for a in self.deniable if a not in things]
                denies, image = self.absences.draw(self.rng, self.facts.present, others, wording.kinds), -1
                asserts = things if len(denies) == wording.kinds else []
            made = self.speaker.hybrid(asserts, denies, wording, self.rng, image) if asserts and denies else None
            if made is not None:
                return made
        return None

    def _wrong(self) -> Caption | None:
        """An affirmative caption that is false: a thing that is not there, alone or beside one that is."""
        things = self.absences.draw(self.rng, self.facts.present, self.facts.absent, 1)
        if not things:
            return None
        if self.rng.random() < 0.6:
            things.append(self.rng.choice(self.facts.present))
            self.rng.shuffle(things)
        return self.speaker.affirmative(things, self.rng)

    def _wordings(self) -> list[Any]:
        """A few wordings to try in turn: not every one suits every noun."""
        return [self.rng.choice(self.speaker.wordings) for _ in range(4)]
