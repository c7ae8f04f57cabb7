"""Four-way questions from presence lists, made so that neither the form of an option nor how often it is true betrays the answer.

Right answers are affirmative, negative and hybrid in equal parts, and every wrong option is known to be false of the image. Two
rules keep the answer hidden from a reader who does not see the image:

- **Form.** In a fifth of the questions all options have one form. In the others one form stands twice and each of the other two
  once, and it is the right option's form that is doubled in half of them: whatever the mix, each option is as likely as any other.
- **Frequency.** Of several sets of options that an image allows, the one is taken whose right answer has had, by how often each
  option is (the only) true one among the images of the data, the least used rank. Images decide how far that is possible.

No option is the plain opposite of another ("a cat", "no cat"): the answer would be one of the two.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from clipmend.data.absences import Absences
from clipmend.data.blind import Truths
from clipmend.data.records import FORMS, Caption, Question
from clipmend.data.scenes.wordings import Wording
from clipmend.data.statements import Speaker

__all__ = ["Facts", "Questions", "truthful_questions"]

_OPTIONS = 4
_CANDIDATES = 6  # sets of options that an image is tried with
_ATTEMPTS = 60  # statements tried for one set


@dataclass(frozen=True)
class Facts:
    """What is known of one image.

    Args:
        image: its position in the data.
        present: what it shows.
        absent: what it is known not to show.
    """

    image: int
    present: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass
class Questions:
    """Options (each caption once), questions over them, and notes on what the data did not allow."""

    captions: list[Caption] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def truthful_questions(
    facts: Sequence[Facts],
    speaker: Speaker,
    absences: Absences,
    rng: random.Random,
    count: int,
    reserved: Collection[str] = (),
) -> Questions:
    """Ask ``count`` questions (rounded up to a multiple of three) about images.

    Args:
        facts: the images to ask about.
        speaker: writes the options.
        absences: draws what is not there.
        rng: where chance comes from.
        count: number of questions.
        reserved: things that no option denies.

    Returns:
        The questions in random order, the right option at a random place. A form of answer that no image allows is left out, with
        a note.
    """
    made = Questions()
    truths = Truths([f.present for f in facts], [f.absent for f in facts])
    asked: list[tuple[int, list[Caption], int, str]] = []
    each = -(-count // len(FORMS))
    for template in FORMS:
        maker = _Maker(speaker, absences, rng, frozenset(reserved), truths)
        asked += _ask(facts, template, each, maker, made.notes)
    rng.shuffle(asked)
    position: dict[Caption, int] = {}
    for image, options, answer, template in asked:
        rows = tuple(position.setdefault(option, len(position)) for option in options)
        made.questions.append(Question(image, rows, answer, template))
    made.captions = list(position)
    return made


def _patterns(template: str) -> tuple[tuple[str, ...], ...]:
    """Forms of the wrong options, a cycle: see the module."""
    other, another = [form for form in FORMS if form != template]
    mixed = (template, other, another)
    return ((template,) * 3, mixed, mixed, (other, other, another), (another, another, other))


def _ask(
    facts: Sequence[Facts], template: str, each: int, maker: _Maker, notes: list[str]
) -> list[tuple[int, list[Caption], int, str]]:
    asked: list[tuple[int, list[Caption], int, str]] = []
    failed: Counter[tuple[str, ...]] = Counter()
    patterns = _patterns(template)
    orders = {pattern: _Deck(facts, template, pattern, maker) for pattern in dict.fromkeys(patterns)}
    while len(asked) < each:
        pattern = patterns[len(asked) % len(patterns)]
        found = orders[pattern].next()
        if found is None:
            failed[pattern] += 1
            for other in orders:
                found = found or orders[other].next()
        if found is None:
            notes.append(f"no image allows a question whose answer is {template}" + (f"; {len(asked)} were made" if asked else ""))
            break
        image, options = found
        answer = options[0]
        maker.rng.shuffle(options)
        asked.append((image, options, options.index(answer), template))
    for pattern, times in failed.items():
        forms = ", ".join(pattern)
        notes.append(
            f"{times} of {each} {template} questions have another mix of forms than planned: "
            f"no image allows the wrong options {forms} beside a {template} answer"
        )
    return asked


class _Deck:
    """The images that allow a question of one make, dealt in random order, again and again."""

    def __init__(self, facts: Sequence[Facts], template: str, pattern: tuple[str, ...], maker: _Maker) -> None:
        self.template, self.pattern, self.maker = template, pattern, maker
        self.images = [f for f in facts if maker.allows(f, template, pattern)]
        maker.rng.shuffle(self.images)
        self.place = 0

    def next(self) -> tuple[int, list[Caption]] | None:
        while self.images:
            if self.place >= len(self.images):
                self.place = 0
            found = self.images[self.place]
            options = self.maker.best(found, self.template, self.pattern)
            if options is not None:
                self.place += 1
                return found.image, options
            self.images.pop(self.place)
        return None


class _Maker:
    """Makes sets of options, and counts the ranks of the right ones."""

    def __init__(self, speaker: Speaker, absences: Absences, rng: random.Random, reserved: frozenset[str], truths: Truths) -> None:
        self.speaker, self.absences, self.rng, self.reserved, self.truths = speaker, absences, rng, reserved, truths
        self.double = tuple(w for w in speaker.wordings if w.kinds > 1)
        self.ranks: Counter[tuple[str, int]] = Counter()

    def allows(self, facts: Facts, template: str, pattern: tuple[str, ...]) -> bool:
        """Whether an image has what the options need: a wrong negative option denies a thing shown, each another one."""
        deniable = sum(atom not in self.reserved for atom in facts.present)
        absent = [atom for atom in facts.absent if atom not in self.reserved]
        shown = bool(facts.present) or template == "negative"
        return shown and len(facts.absent) > 1 and bool(absent) and deniable >= pattern.count("negative")

    def best(self, facts: Facts, template: str, pattern: tuple[str, ...]) -> list[Caption] | None:
        """The right option first, then the wrong ones; of several sets the one whose ranks were used least."""
        chosen: tuple[int, list[Caption], list[tuple[str, int]]] | None = None
        for _ in range(_CANDIDATES):
            options = self._options(facts, template, pattern)
            if options is None:
                continue
            only, usual = self.truths.only_true(options), self.truths.usually_true(options)
            ranks = [("only", self._rank(only)), ("usual", self._rank(usual))]
            used = sum(self.ranks[r] for r in ranks)
            if chosen is None or used < chosen[0]:
                chosen = (used, options, ranks)
        if chosen is None:
            return None
        self.ranks.update(chosen[2])
        return chosen[1]

    def _rank(self, scores: list[int]) -> int:
        """Place of the first among all, ties broken at random."""
        above = sum(s > scores[0] for s in scores[1:])
        return above + self.rng.randint(0, sum(s == scores[0] for s in scores[1:]))

    def _options(self, facts: Facts, template: str, pattern: tuple[str, ...]) -> list[Caption] | None:
        rng = self.rng
        asserted = min(max(1, len(facts.present)), rng.choice((1, 2)))
        shared = rng.choice(self.speaker.wordings) if rng.random() < 0.5 else None
        turn = list(facts.present)
        rng.shuffle(turn)
        forms = [template, *pattern]
        options: list[Caption] = []
        for attempt in range(_ATTEMPTS):
            form, true = forms[len(options)], not options
            wording = shared if shared is not None and attempt < _ATTEMPTS // 2 else rng.choice(self.speaker.single)
            if attempt >= _ATTEMPTS // 2 and self.double:  # "no dog or cat" is not the plain opposite of "a dog"
                wording = rng.choice(self.double)
            made = self._statement(facts, form, true, asserted, wording, turn)
            if made is None or any(_alike(made, option) for option in options):
                continue
            options.append(made)
            if len(options) == _OPTIONS:
                return options
        return None

    def _statement(self, facts: Facts, form: str, true: bool, asserted: int, wording: Wording, turn: list[str]) -> Caption | None:
        if form == "affirmative":
            asserts = self._asserts(facts, true, asserted)
            return self.speaker.affirmative(asserts, self.rng) if asserts else None
        if form == "negative":
            denies = self._denies(facts, true, wording.kinds, turn)
            return self.speaker.negative(denies, wording, self.rng) if denies else None
        if true:
            denies, asserts = self._denies(facts, True, wording.kinds, turn), self._asserts(facts, True, asserted)
        else:  # "B but no A", "N but no B", "N but no M"
            flaw = self.rng.randrange(3)
            denies = self._denies(facts, flaw == 2, wording.kinds, turn)
            asserts = self._asserts(facts, flaw == 0, asserted, denies or ())
        if not denies or not asserts or len(asserts) < asserted:  # a shorter option would stand out
            return None
        return self.speaker.hybrid(asserts, denies, wording, self.rng)

    def _asserts(self, facts: Facts, true: bool, number: int, avoid: Collection[str] = ()) -> list[str]:
        """Things to assert: all shown, or at least one of them absent."""
        present = [a for a in facts.present if a not in avoid]
        if true:
            return self.rng.sample(present, min(number, len(present)))
        absent = [a for a in facts.absent if a not in avoid]
        mixed = number > 1 and bool(present) and self.rng.random() < 0.6
        things = self.absences.draw(self.rng, facts.present, absent, number - mixed)
        if mixed:
            things.append(self.rng.choice(present))
        self.rng.shuffle(things)
        return things

    def _denies(self, facts: Facts, true: bool, number: int, turn: list[str]) -> list[str]:
        """Things to deny: all absent, or one of them shown (each shown one in turn); empty where there are too few."""
        absent = [a for a in facts.absent if a not in self.reserved]
        if true:
            things = self.absences.draw(self.rng, facts.present, absent, number)
            return things if len(things) == number else []
        present = [a for a in turn if a not in self.reserved]
        if not present:
            return []
        first = present[0]
        turn.remove(first)
        turn.append(first)
        things = [first, *self.absences.draw(self.rng, facts.present, absent, number - 1)]
        self.rng.shuffle(things)
        return things if len(things) == number else []


def _alike(made: Caption, other: Caption) -> bool:
    """Whether two options say the same, read the same, or are each other's plain opposite."""
    asserts, denies = set(made.asserts), set(made.denies)
    same = asserts == set(other.asserts) and denies == set(other.denies)
    opposite = len(asserts) + len(denies) == 1 and asserts == set(other.denies) and denies == set(other.asserts)
    return same or opposite or made.text.lower().rstrip(".") == other.text.lower().rstrip(".")
