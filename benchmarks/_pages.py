"""What the pages that scripts fill have in common: tables, intervals over seeds, and marks between which they write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# Two-sided 95 % quantiles of Student's t with 1, 2, .. degrees of freedom; beyond the last it is used as it is: a little wide.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % t interval of the mean of a few fits; NaN for a single one."""
    if len(values) < 2:
        return float("nan")
    return T95[min(len(values) - 1, len(T95)) - 1] * float(np.std(values, ddof=1)) / len(values) ** 0.5


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put_between(page: Path, marks: tuple[str, str], text: str) -> None:
    """Put Markdown between the two marks of a page, whatever stood there.

    Raises:
        ValueError: the page lacks the marks.
    """
    before, mark, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, closing, after = rest.partition(marks[1])
    if not mark or not closing:
        raise ValueError(f"{page}: the marks {marks[0]} and {marks[1]} are not there")
    write(page, f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{after}".encode())


def write(path: Path, content: bytes) -> None:
    """Write beside and rename."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)
