"""How tables name measures, and what they say beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from clipmend.evaluation.intervals import FEW

if TYPE_CHECKING:
    from clipmend.evaluation.results import Measure

__all__ = ["few_items", "folded_name", "label_of", "oracle_note"]

_FAMILIES = (("image_retrieval_", "text to image "), ("text_retrieval_", "image to text "))
_WORDS = (("oracle_recall@", "oracle R@"), ("recall@", "R@"), ("median_rank", "median rank"))


def label_of(name: str) -> str:
    """A measure's name as tables show it: ``"text to image R@5"`` for ``image_retrieval_recall@5``; long names in several lines.

    Files keep the names themselves.
    """
    for family, direction in _FAMILIES:
        part, found, rest = name.partition(family)
        if found:
            for word, short in _WORDS:
                if rest.startswith(word):
                    name = f"{part}{direction}{short}{rest.removeprefix(word)}"
    return folded_name(name, 20)


def folded_name(name: str, width: int) -> str:
    """``name`` in lines of at most ``width`` where it has blanks, slashes or underscores to break after; escaped for Rich."""
    from rich.markup import escape

    lines = [""]
    for part in re.split(r"(?<=[ /_])", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return escape("\n".join(line.rstrip() for line in lines))


def oracle_note(names: Iterable[str]) -> list[str]:
    """What the oracle's rows are, where there are any."""
    if not any("oracle_recall@" in name for name in names):
        return []
    return [
        "oracle: who knows what is true of every image, and guesses among those that a text is true of: no model can be expected "
        "to do better"
    ]


def few_items(measures: Iterable[Measure]) -> list[str]:
    """A line where shares rest on few items: how far chance alone takes them; none where there are many."""
    counts = sorted({m.count for m in measures if m.kind == "share" and not math.isnan(m.low) and 0 < m.count < FEW})
    if not counts:
        return []
    few = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    off = 100 * 1.96 * math.sqrt(0.25 / counts[0])
    return [f"few items (n = {few}): by chance alone a share is off by up to {off:.0f} points; smaller differences are noise"]
