"""Plain English for atoms."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["NUMBER_WORDS", "photo_of", "with_article", "without_implied"]


NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "no", "several", "many")


def with_article(noun: str) -> str:
    """``a cat``, ``an apple``, ``two cups``; told by the spelling, a silent h and the "u" of "unicorn" included."""
    word = noun.strip().lower()
    if word.split(" ")[0] in NUMBER_WORDS:
        return noun.strip()
    sounds_vowel = word[:1] in tuple("aeio") or word.startswith(("hour", "honest", "heir", "honour", "honor"))
    if word.startswith("u"):
        sounds_vowel = not word.startswith(("uni", "use", "usu", "uten", "ukulele"))
    if word.startswith(("eu", "ewe", "one-")):
        sounds_vowel = False
    return f"{'an' if sounds_vowel else 'a'} {noun.strip()}"


def without_implied(atoms: Sequence[str]) -> list[str]:
    """Atoms without those that a longer one of the same noun already says: ``"cat"`` beside ``"large cat"``; no repeats."""
    words = {a: a.split() for a in atoms}
    return [a for a in words if not any(words[a][-1:] == words[b][-1:] and set(words[a]) < set(words[b]) for b in words)]


def photo_of(atoms: Sequence[str]) -> str:
    """``a photo of a cat and a red cup at the beach``; ``a photo`` for no atoms.

    A background atom (``"at beach"``) goes to the end. An atom that a longer one of the same noun already says (``"cat"`` or
    ``"large cat"`` beside ``"large red cat"``) is left out.
    """
    things = [a for a in without_implied(atoms) if not a.startswith("at ")]
    places = [f"at the {a.removeprefix('at ')}" for a in dict.fromkeys(atoms) if a.startswith("at ")]
    named = [with_article(a) for a in things]
    text = "a photo"
    if named:
        text += " of " + (" and ".join(named) if len(named) < 3 else f"{', '.join(named[:-1])} and {named[-1]}")
    return " ".join([text, *places])
