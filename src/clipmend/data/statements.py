"""Statements about what an image shows and does not show, in English: every form, every wording, right in grammar.

A template of a :class:`~clipmend.data.scenes.wordings.Wording` was written for nouns that are counted. A mass noun stands bare
("without bread") and is left out of templates that count ("there are no ...", "not a single ...", "zero ...").
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from clipmend.data.nouns import Noun
from clipmend.data.records import Caption
from clipmend.data.scenes.wordings import RESERVED_WORDINGS, WORDINGS, Wording

__all__ = ["PUBLISHED", "WORDING_SETS", "Speaker", "denies_already", "fill", "fitting", "listed", "wordings_called"]

PUBLISHED: tuple[Wording, ...] = (
    Wording("but there is no", ("There is no {x} here. {pos}",), ("{pos}, but there is no {x}",), ("{place} with no {x}",)),
    Wording("without any", ("There is no {x} here. {pos}",), ("{pos}, without any {xs}",), ("{place} without any {xs}",)),
    Wording("here", ("There is no {x} here. {pos}",), ("There is no {x} here. {pos}",), ("{place} with no {x}",)),
)
"""The three templates of the published training data (each turns an original caption into a negated one)."""

WORDING_SETS: dict[str, tuple[Wording, ...]] = {
    "training": tuple(WORDINGS.values()),
    "reserved": tuple(RESERVED_WORDINGS.values()),
    "all": (*WORDINGS.values(), *RESERVED_WORDINGS.values()),
    "published": PUBLISHED,
}
"""Wordings by the name of their set. ``reserved`` ones are for tests: a model that was trained on them cannot be tested on them."""

_COUNTS = re.compile(r"\b(are|aren't|single|zero)\b")
_PICTURE = re.compile(r"^(a|an|the|this) (photo|picture|image|drawing|photograph)\b", re.IGNORECASE)
_ALREADY = re.compile(r"\b(no|not|without|never|none|nothing|nobody|nowhere|neither|nor|lacking|cannot)\b|n't\b", re.IGNORECASE)
_CLAUSE = re.compile(r"\b(is|are|isn't|aren't|does not|doesn't|cannot|will not|won't|has no|excludes|omits|leaves out|shows)\b")
# "a man riding a bike, not a dog" would deny that he rides the dog; and "everything except" turns what is shown around.
_NOT_AFTER_A_CAPTION = frozenset({"not a", "never", "everything except"})
# Training texts have "an image with not any cats", which nobody writes. The wordings themselves stay as they are, since the
# bundled patches were trained on them.
_REPHRASED = {"{place} with not any {xs}": "{place} where there are not any {xs}"}
_FRAMES = ("{p}", "a photo of {p}", "a picture of {p}", "an image of {p}", "this image features {p}", "the picture shows {p}")
_PICTURES = ("a photo of {p}", "a picture of {p}", "an image of {p}")
_PLACES = ("a photo", "a picture", "an image", "a scene")


def wordings_called(name: str) -> tuple[Wording, ...]:
    """The wordings of a set.

    Raises:
        ValueError: no set has that name.
    """
    if name not in WORDING_SETS:
        raise ValueError(f"there are no wordings called {name!r}; choose one of {', '.join(WORDING_SETS)}")
    return WORDING_SETS[name]


def denies_already(caption: str) -> bool:
    """Whether a caption has a word of negation in it, as far as a list of such words tells."""
    return _ALREADY.search(caption) is not None


def listed(nouns: Sequence[Noun]) -> str:
    """``"a cat, an apple and bread"``."""
    names = [noun.indefinite for noun in nouns]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def fitting(templates: Sequence[str], denied: Sequence[Noun]) -> list[str]:
    """The templates that are grammatical for these nouns, as a person would write them."""
    written = [_REPHRASED.get(t, t) for t in templates]
    return [t for t in written if not any(noun.mass for noun in denied) or not _COUNTS.search(t)]


def fill(template: str, denied: Sequence[Noun], *, pos: str = "", place: str = "") -> str:
    """Fill a template; ``denied`` are its ``{x}`` and, where it has one, its ``{y}``."""
    first, second = denied[0], denied[-1]
    one = {"x": first.singular, "xs": first.some, "a": first.indefinite}
    two = {"y": second.singular, "ys": second.some, "b": second.indefinite}
    return template.format(**one, **two, pos=pos, place=place)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


class Speaker:
    """Writes statements about atoms.

    Args:
        nouns: noun of each atom.
        wordings: phrases of negation to choose from.
    """

    def __init__(self, nouns: Mapping[str, Noun], wordings: Sequence[Wording]) -> None:
        self.nouns = nouns
        self.wordings = tuple(wordings)
        self.single = tuple(w for w in wordings if w.kinds == 1)

    def finish(self, text: str, rng: random.Random) -> str:
        """Half of the texts as a sentence (capital, full stop), half as typed; two sentences always so."""
        if ". " in text or rng.random() < 0.5:
            return ". ".join(_capital(part) for part in text.split(". ")) + "."
        return text

    def affirmative(self, asserts: Sequence[str], rng: random.Random, image: int = -1, complete: bool = True) -> Caption:
        """``A photo of a cat and bread.``"""
        text = rng.choice(_FRAMES).format(p=listed([self.nouns[a] for a in asserts]))
        return Caption(self.finish(text, rng), image, "affirmative", tuple(asserts), complete=complete)

    def negative(self, denies: Sequence[str], wording: Wording, rng: random.Random, image: int = -1) -> Caption | None:
        """A caption or query that only denies; ``None`` where the wording has no template for such nouns."""
        denied = [self.nouns[a] for a in denies]
        templates = fitting([t for t in (*wording.sentences, *wording.queries) if "{pos}" not in t], denied)
        if not templates:
            return None
        text = fill(rng.choice(templates), denied, place=rng.choice(_PLACES))
        return Caption(self.finish(text, rng), image, "negative", (), tuple(denies), wording.name)

    def hybrid(
        self, asserts: Sequence[str], denies: Sequence[str], wording: Wording, rng: random.Random, image: int = -1
    ) -> Caption | None:
        """A caption that asserts some things and denies others; ``None`` as for :meth:`negative`."""
        denied = [self.nouns[a] for a in denies]
        templates = fitting(wording.hybrids, denied)
        if not templates:
            return None
        template, said = rng.choice(templates), listed([self.nouns[a] for a in asserts])
        if template.startswith("{pos}") or template.endswith("{pos}"):
            # "..., but it does not show a cat": "it" needs a picture to refer to.
            said = rng.choice(_PICTURES if " it " in template else _FRAMES).format(p=said)
        text = fill(template, denied, pos=_capital(said) if template.endswith(". {pos}") else said)
        return Caption(self.finish(text, rng), image, "hybrid", tuple(asserts), tuple(denies), wording.name)

    def negated(
        self, caption: str, asserts: Sequence[str], denies: Sequence[str], wording: Wording, rng: random.Random, image: int
    ) -> Caption | None:
        """A caption that a person wrote, with a denial after it, or in a sentence before or after it.

        Returns:
            A hybrid that is not ``complete``, since the caption says more than its atoms; ``None`` as for :meth:`negative`.
        """
        denied = [self.nouns[a] for a in denies]
        said = caption.strip().rstrip(".!").rstrip()
        if not said:
            return None
        after = [t for t in wording.hybrids if t.startswith("{pos}") and ". " not in t]
        if wording.name in _NOT_AFTER_A_CAPTION or ". " in said:
            after = []
        if not _PICTURE.match(said):
            after = [t for t in after if " it " not in t]
        own = [t for t in wording.hybrids if t.endswith("{pos}")]  # the published "There is no X here. ..."
        clauses = [] if own else [t for t in wording.sentences if _CLAUSE.search(t) and "{pos}" not in t]
        after, clauses, own = (fitting(templates, denied) for templates in (after, clauses, own))
        if own and not after:
            text = fill(rng.choice(own), denied, pos=_capital(said)) + "."
        elif after and (not clauses or rng.random() < 0.7):
            text = fill(rng.choice(after), denied, pos=said)
            text += "." if caption.rstrip().endswith(".") else ""
        elif clauses:
            sentence = _capital(fill(rng.choice(clauses), denied))
            text = f"{sentence}. {_capital(said)}." if rng.random() < 0.5 else f"{_capital(said)}. {sentence}."
        else:
            return None
        return Caption(text, image, "hybrid", tuple(asserts), tuple(denies), wording.name, complete=False)

    def query(self, denies: Sequence[str], wording: Wording, rng: random.Random) -> Caption | None:
        """An exclusion query as typed into a search: "a photo without a cat"; ``None`` as for :meth:`negative`."""
        denied = [self.nouns[a] for a in denies]
        templates = fitting(wording.queries, denied)
        if not templates:
            return None
        text = fill(rng.choice(templates), denied, place=rng.choice(_PLACES))
        return Caption(text, -1, "negative", (), tuple(denies), wording.name)
