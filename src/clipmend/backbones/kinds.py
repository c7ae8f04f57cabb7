"""What kind of thing a value is, in words."""

from __future__ import annotations

from typing import Any

__all__ = ["kind_of"]


def kind_of(value: Any) -> str:
    """The name of a value's type with its article, for messages: ``"an int"``, ``"a list"``, ``"an ndarray"``."""
    name = type(value).__name__
    spoken_with_a_vowel = name[0].lower() in "aeiou" or name == "ndarray"
    return f"{'an' if spoken_with_a_vowel else 'a'} {name}"
