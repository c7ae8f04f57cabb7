"""How far multiple-choice questions can be answered without looking at the image: what their making gives away.

A question is sound if a scorer that never sees the image does no better than chance. Four such scorers, each with knowledge that
a trained model may pick up:

- ``form``: prefers a form of statement, the best one for each mix of forms among the options;
- ``usually_true``: knows of how many images of the data each option is true, and takes the one most often true;
- ``only_true``: knows of how many images each option is the only true one of the four, the strongest of them;
- ``shuffled``: knows exactly what another image of the data shows, and answers by that one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from clipmend.data.records import Caption, NegationData

__all__ = ["MOST", "Blind", "Truths", "blind_scores"]

MOST = 4096  # images that shares are told from
_KEPT = 200_000  # statements remembered, a kilobyte each


@dataclass(frozen=True)
class Blind:
    """Share of questions answered right without the image, by scorer (see the module), and what chance is.

    Args:
        questions: how many were asked.
        chance: mean of 1 / options.
        form, usually_true, only_true, shuffled: the scorers; ties among options count as the share of them that is right.
    """

    questions: int
    chance: float
    form: float
    usually_true: float
    only_true: float
    shuffled: float

    def to_dict(self) -> dict[str, float]:
        """By name, rounded to four places."""
        names = ("chance", "form", "usually_true", "only_true", "shuffled")
        return {"questions": self.questions, **{name: round(getattr(self, name), 4) for name in names}}


class Truths:
    """Of which images a statement is true, and of which false, as bits of one integer: fast for many statements.

    Args:
        present, absent: things known to be there, and known not to be there, of each image.
    """

    def __init__(self, present: Sequence[Collection[str]], absent: Sequence[Collection[str]]) -> None:
        rows = range(len(present))
        if len(present) > MOST:  # shares are wanted, and so many images tell them well enough
            rows = sorted(random.Random(len(present)).sample(rows, MOST))  # type: ignore[assignment]
        present, absent = [present[k] for k in rows], [absent[k] for k in rows]
        self.count = len(present)
        self._all = (1 << self.count) - 1
        self._present = self._bits(present)
        self._absent = self._bits(absent)
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[int, int]] = {}

    @staticmethod
    def _bits(sets: Sequence[Collection[str]]) -> dict[str, int]:
        members: dict[str, bytearray] = {}
        size = (len(sets) + 7) // 8
        for row, atoms in enumerate(sets):
            for atom in atoms:
                members.setdefault(atom, bytearray(size))[row // 8] |= 1 << row % 8
        return {atom: int.from_bytes(bits, "little") for atom, bits in members.items()}

    def of(self, caption: Caption) -> tuple[int, int]:
        """Bits of the images that it is true of, and of those that it is false of."""
        key = (caption.asserts, caption.denies)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            true, false = self._all, 0
            for holds, fails, atoms in (
                (self._present, self._absent, caption.asserts),
                (self._absent, self._present, caption.denies),
            ):
                for atom in atoms:
                    true &= holds.get(atom, 0)
                    false |= fails.get(atom, 0)
            self._known[key] = (true, false)
        return self._known[key]

    def usually_true(self, options: Iterable[Caption]) -> list[int]:
        """Number of images that each option is true of."""
        return [self.of(option)[0].bit_count() for option in options]

    def only_true(self, options: Sequence[Caption]) -> list[int]:
        """Number of images of which each option is true and all others are false."""
        bits = [self.of(option) for option in options]
        counts = []
        for k, (true, _) in enumerate(bits):
            for n, (_, false) in enumerate(bits):
                if n != k:
                    true &= false
            counts.append(true.bit_count())
        return counts


def blind_scores(data: NegationData, absent: Sequence[Collection[str]], seed: int = 0) -> Blind | None:
    """Measure the questions of ``data`` (see the module); ``None`` where there are none.

    Args:
        data: its questions, captions and facts.
        absent: things known not to be there, of each image.
        seed: fixes which image stands in for which.
    """
    if not data.questions:
        return None
    truths, rng = Truths(data.facts, absent), random.Random(f"blind {seed}")
    sums = dict.fromkeys(("chance", "usually_true", "only_true", "shuffled"), 0.0)
    by_mix: dict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for question in data.questions:
        options = [data.captions[k] for k in question.options]
        forms = [option.form for option in options]
        sums["chance"] += 1 / len(options)
        sums["usually_true"] += _share(truths.usually_true(options), question.answer)
        sums["only_true"] += _share(truths.only_true(options), question.answer)
        other = rng.randrange(len(data.facts) - 1) if len(data.facts) > 1 else 0
        other += len(data.facts) > 1 and other >= question.image
        sums["shuffled"] += _share([_truth(o, data.facts[other], absent[other]) for o in options], question.answer)
        # A scorer that takes form f picks one of the options of that form at random.
        by_mix[tuple(sorted(forms))][forms[question.answer]] += 1 / forms.count(forms[question.answer])
    total = len(data.questions)
    form = sum(max(gains.values()) for gains in by_mix.values()) / total
    return Blind(total, form=form, **{name: value / total for name, value in sums.items()})


def _truth(caption: Caption, present: Collection[str], absent: Collection[str]) -> int:
    """1, 0 or -1: true, unknown or false of an image."""
    if any(a in absent for a in caption.asserts) or any(a in present for a in caption.denies):
        return -1
    return int(all(a in present for a in caption.asserts) and all(a in absent for a in caption.denies))


def _share(scores: Sequence[int], answer: int) -> float:
    best = max(scores)
    return 1 / scores.count(best) if scores[answer] == best else 0.0
