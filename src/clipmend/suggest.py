"""A word for who mistyped a name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``" (did you mean 'goal'?)"`` where one of ``known`` is close to ``name``, else nothing."""
    spelled = {word.lower().replace("_", "-"): word for word in known}
    close = get_close_matches(name.lower().replace("_", "-"), spelled, n=1, cutoff=0.6)
    return f" (did you mean {spelled[close[0]]!r}?)" if close else ""
