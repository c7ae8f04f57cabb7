"""A list of common English nouns for things that can be seen in a picture: what text-only training is made of.

The list (``nouns.tsv`` beside this file: ``noun``, ``plural``, ``category``) is the project's own compilation. It leaves out
abstract words, and names nothing that a picture cannot show.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

__all__ = ["Noun", "indefinite_article", "load_nouns", "regular_plural"]

MASS = "-"  # what the plural column holds for a noun that is not counted

# Spelt with a vowel and spoken with a consonant ("a unicycle"), and the reverse ("an hourglass", "an X-ray").
_SPOKEN_CONSONANT = ("uni", "use", "usb", "ute", "uti", "uku", "eu", "ewe", "one", "once", "u-")
_SPOKEN_VOWEL = ("hour", "heir", "honest", "x-", "mp", "hd", "lp", "led ", "lcd", "mri", "nba", "sos")
_UN_PREFIX = ("unin", "unim", "unid")  # "uninhabited", "unimportant", "unidentified": "un-", spoken with a vowel


@dataclass(frozen=True, slots=True)
class Noun:
    """One noun.

    Args:
        singular: the noun as it stands in ``"no X"``: ``"cat"``, ``"cup of tea"``, ``"bread"``.
        plural: its plural, or ``None`` for a mass noun.
        mass: True where the noun is not counted (``"bread"``).
        category: the heading it was compiled under: ``"mammals"``, ``"furniture"``, ...
    """

    singular: str
    plural: str | None
    mass: bool
    category: str

    @property
    def indefinite(self) -> str:
        """The noun as it follows "a photo of": ``"a cat"``, ``"an apple"``; a mass noun stands bare: ``"bread"``."""
        return self.singular if self.mass else f"{indefinite_article(self.singular)} {self.singular}"

    @property
    def some(self) -> str:
        """The noun as it follows "without any": the plural, or the mass noun itself."""
        return self.plural or self.singular


def indefinite_article(phrase: str) -> str:
    """``"a"`` or ``"an"``, by the sound the phrase begins with as far as its spelling tells.

    Args:
        phrase: a noun or a noun phrase.

    Raises:
        ValueError: the phrase is empty.
    """
    word = phrase.strip().lower()
    if not word:
        raise ValueError("an article needs a word to stand before, and the phrase is empty")
    if word.startswith(_SPOKEN_VOWEL):
        return "an"
    if word.startswith(_SPOKEN_CONSONANT) and not word.startswith(_UN_PREFIX):
        return "a"
    return "an" if word[0] in "aeiou" else "a"


def regular_plural(noun: str) -> str:
    """The plural by rule: ``"lens"`` -> ``"lenses"``, ``"berry"`` -> ``"berries"``, else with an s. For nouns outside the list."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in ("a", "e", "i", "o", "u", ""):
        return f"{noun[:-1]}ies"
    return f"{noun}s"


@lru_cache(maxsize=1)
def _read() -> tuple[Noun, ...]:
    text = (files("clipmend.data") / "nouns.tsv").read_text(encoding="utf-8")
    nouns = []
    for line, row in enumerate(csv.DictReader(text.splitlines(), delimiter="\t"), start=2):
        if not row["noun"] or not row["plural"] or not row["category"]:
            raise ValueError(f"nouns.tsv line {line} wants three columns: noun, plural (or {MASS!r}), category")
        mass = row["plural"] == MASS
        nouns.append(Noun(row["noun"], None if mass else row["plural"], mass, row["category"]))
    return tuple(nouns)


def load_nouns(exclude: Iterable[str] = (), categories: Iterable[str] | None = None) -> list[Noun]:
    """The shipped nouns, in the order of the file.

    Args:
        exclude: words that no returned noun may contain, as a whole word in either number, case-insensitive: ``exclude=["cat"]``
            also leaves out ``"Persian cat"``. Hold out of training what a test asks about.
        categories: keep only these categories; ``None`` for all.

    Returns:
        A new list of :class:`Noun`.

    Raises:
        ValueError: a category that the list does not have.
    """
    nouns = list(_read())
    if categories is not None:
        wanted = set(categories)
        unknown = wanted - {noun.category for noun in nouns}
        if unknown:
            have = ", ".join(sorted({noun.category for noun in nouns}))
            raise ValueError(f"no nouns are filed under {', '.join(sorted(unknown))}; the categories are {have}")
        nouns = [noun for noun in nouns if noun.category in wanted]
    banned = [f" {word.strip().lower()} " for word in exclude]

    def allowed(noun: Noun) -> bool:
        forms = [f" {form.lower().replace('-', ' ')} " for form in (noun.singular, noun.plural) if form]
        return not any(word in form for word in banned for form in forms)

    return [noun for noun in nouns if allowed(noun)]
