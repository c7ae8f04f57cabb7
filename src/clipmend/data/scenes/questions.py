"""Multiple-choice questions in which neither the form of an option nor how often it is true betrays the answer.

Four options, exactly one true of the image. Right answers are affirmative, negative and hybrid in equal thirds. In two thirds of
the questions all options have the right one's form; in the others one false statement of another form, the two taking turns, takes
the place of one of them. (More such strangers would let a scorer that merely prefers a form, or for which one form is usually
true, gain too much: with a share s of these questions it reaches 25 + 8.3 s %.)
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from clipmend.data.records import FORMS, Caption, Question
from clipmend.data.scenes.captions import Policy, kinds_caption, policy
from clipmend.data.scenes.draw import Scene
from clipmend.data.scenes.facts import text_rng
from clipmend.data.scenes.world import KINDS, Wording

__all__ = ["choice_questions"]

_STRANGER_EVERY = 3
_OPTIONS = 4
_ATTEMPTS = 200
_MANY = 10  # with fewer kinds to deny, scenes that show three of them are too rare


def choice_questions(
    scenes: Sequence[Scene], seed: int, subset: str = "standard", count: int | None = None
) -> tuple[list[Caption], list[Question]]:
    """Questions about scenes.

    Args:
        scenes: the images; ``Question.image`` is the position in this sequence.
        seed: fixes every question.
        subset: ``"standard"`` (training wordings, kinds that training denies), ``"reserved_wording"`` or ``"reserved_kind"``
            (every denied kind, in right and wrong options, is reserved).
        count: number of questions, rounded up to a multiple of three; by default one a scene.

    Returns:
        The captions (each text of the options once, ``image`` -1: their truth follows from their atoms) and the questions over
        them; the right option's position is random.

    Raises:
        ValueError: the scenes are too few to supply a question of some template.
    """
    rules = policy(subset)
    rng = text_rng(seed, f"choice/{subset}")
    each = -(-(len(scenes) if count is None else count) // len(FORMS))
    made: list[tuple[int, list[Caption], int, str]] = []
    for template in FORMS:
        order = _eligible(scenes, template, rules)
        if not order and each:
            raise ValueError(
                f"none of the {len(scenes)} scenes allows a {template} question of the subset {subset!r}: draw more scenes"
            )
        rng.shuffle(order)
        every = _STRANGER_EVERY * (2 if template == "negative" and len(rules.deniable) < _MANY else 1)
        for turn in range(each):
            image = order[turn % len(order)]
            stranger = ""
            if turn % every == 0:
                stranger = [form for form in FORMS if form != template][(turn // every) % 2]
            options = _options(scenes[image], rng, template, stranger, rules)
            answer = options[0]
            rng.shuffle(options)
            made.append((image, options, options.index(answer), template))
    rng.shuffle(made)
    rows = dict.fromkeys(option for _, options, _, _ in made for option in options)  # each caption once, in order
    position = {caption: k for k, caption in enumerate(rows)}
    questions = [Question(image, tuple(position[o] for o in options), answer, form) for image, options, answer, form in made]
    return list(rows), questions


def _eligible(scenes: Sequence[Scene], template: str, rules: Policy) -> list[int]:
    """Images that supply the wrong options of a template.

    A wrong negative option denies something shown. Three that deny different kinds are, shown another image, as likely true as
    the right one; three that deny the same kind are not, so images with enough kinds are taken where there are any.
    """
    shown = [sum(kind in rules.deniable for kind in scene.kinds) for scene in scenes]
    least = {"affirmative": (1,), "negative": (3, 2, 1), "hybrid": (2, 1)}[template]
    if template == "negative" and len(rules.deniable) < _MANY:
        least = (2, 1)
    for need in least:
        found = [i for i, n in enumerate(shown) if n >= need]
        if len(found) >= min(8, len(scenes)):
            return found
    return [i for i, n in enumerate(shown) if n]


class _Maker:
    """Options about one image that share a number of asserted things and, mostly, a wording."""

    def __init__(self, scene: Scene, rng: random.Random, rules: Policy) -> None:
        self.rng = rng
        self.present = list(scene.kinds)
        self.absent = [kind for kind in KINDS if kind not in self.present]
        self.denied_present = [kind for kind in self.present if kind in rules.deniable]
        self.denied_absent = [kind for kind in self.absent if kind in rules.deniable]
        self.asserted = min(len(self.present), rng.choice((1, 2, 2)))
        single = [w for w in rules.wordings if w.kinds == 1]
        shared = rng.choice(rules.wordings)
        self.wordings = [shared] if rng.random() < 0.5 else single
        self.singles = single
        self.turn = rng.randrange(len(self.denied_present)) if self.denied_present else 0

    def wording(self) -> Wording:
        return self.rng.choice(self.wordings)

    def make(self, form: str, true: bool) -> Caption | None:
        if form == "affirmative":
            return kinds_caption(self.rng, form, self._asserts(true))
        wording = self.wording()
        if form == "negative":
            denied = self._denies(wording, true)
            return denied and kinds_caption(self.rng, form, (), denied, wording)  # type: ignore[return-value]
        return self._hybrid(wording, true)

    def _asserts(self, true: bool, avoid: Sequence[str] = ()) -> list[str]:
        """Things to assert: all shown, or at least one not shown."""
        present = [kind for kind in self.present if kind not in avoid]
        absent = [kind for kind in self.absent if kind not in avoid]
        if true:
            return self.rng.sample(present, min(self.asserted, len(present)))
        things = [self.rng.choice(absent)]
        while len(things) < self.asserted:
            pool = present if present and self.rng.random() < 0.6 else absent
            things = list(dict.fromkeys([*things, self.rng.choice(pool)]))
        self.rng.shuffle(things)
        return things

    def _denies(self, wording: Wording, true: bool, avoid: Sequence[str] = ()) -> list[str] | None:
        """Things to deny: none of them shown, or at least one shown (each shown kind in turn)."""
        absent = [kind for kind in self.denied_absent if kind not in avoid]
        present = [kind for kind in self.denied_present if kind not in avoid]
        if true:
            return self.rng.sample(absent, wording.kinds) if len(absent) >= wording.kinds else None
        if not present:
            return None
        self.turn += 1
        things = [present[self.turn % len(present)]]
        if wording.kinds > 1:
            if len(absent) < wording.kinds - 1:
                return None
            things += self.rng.sample(absent, wording.kinds - 1)
            self.rng.shuffle(things)
        return things

    def _hybrid(self, wording: Wording, true: bool) -> Caption | None:
        if true:
            denied, asserts = self._denies(wording, True), self._asserts(True)
        else:
            flaw = self.rng.randrange(3)  # "B but no A", "N but no B", "N but no M"
            denied = self._denies(wording, flaw == 2)
            asserts = self._asserts(flaw == 0, denied or ())
        if not denied or not asserts:
            return None
        if len(asserts) < self.asserted:  # a shorter option would stand out
            return None
        return kinds_caption(self.rng, "hybrid", asserts, denied, wording)


def _options(scene: Scene, rng: random.Random, template: str, stranger: str, rules: Policy) -> list[Caption]:
    """The right option first, then three wrong ones, all with different texts."""
    maker = _Maker(scene, rng, rules)
    forms = [template] * _OPTIONS
    if stranger:
        forms[-1] = stranger
    options: list[Caption] = []
    meanings: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for attempt in range(_ATTEMPTS):
        made = maker.make(forms[len(options)], true=not options)
        if attempt == _ATTEMPTS // 4:
            maker.wordings = maker.singles  # few kinds to go round: other wordings of the same denial
        if attempt == _ATTEMPTS // 2:
            maker.asserted = 1
            options.clear()
            meanings.clear()
            continue
        if made is None or made.text.lower().rstrip(".") in {option.text.lower().rstrip(".") for option in options}:
            continue
        meaning = (tuple(sorted(made.asserts)), tuple(sorted(made.denies)))
        if meaning in meanings and attempt < _ATTEMPTS // 4:
            continue  # prefer options that say different things
        options.append(made)
        meanings.add(meaning)
        if len(options) == _OPTIONS:
            return options
    raise ValueError(f"no {template} question can be made about a scene that shows {', '.join(scene.kinds)}")
