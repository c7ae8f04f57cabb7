"""What evaluation tables hold beyond plain fields (see :mod:`clipmend.data.tables`): parsed captions, notes, duplicates."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from clipmend.data.readers.tabular import IMAGE_COLUMNS, choose_column
from clipmend.data.records import Caption
from clipmend.data.tables import integer_field, json_lines, problem, read_table, template_field, text_field, texts_field

__all__ = [
    "Rows",
    "TableWarning",
    "duplicates_note",
    "image_column_of",
    "integer_field",
    "json_lines",
    "parse_field",
    "problem",
    "read_table",
    "template_field",
    "text_field",
    "texts_field",
]

T = TypeVar("T")


class TableWarning(UserWarning):
    """Something odd in a table that does not stop the evaluation (a duplicate row, say)."""


class Rows(list[T]):
    """Rows of a table with what was noticed while reading: a list with ``source`` and ``notes``."""

    def __init__(self, rows: Iterable[T] = (), source: str = "", notes: Sequence[str] = ()) -> None:
        super().__init__(rows)
        self.source = source
        self.notes = list(notes)


def parse_field(path: Path, line: int, text: str, captions: Sequence[str]) -> tuple[Caption, ...] | None:
    """The ``parse`` column: JSON, a list of ``{"asserts": [...], "denies": [...], "wording": ""}``, one a caption; or blank."""
    if not text.strip():
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
        raise problem(path, line, f"parse is not JSON: {error}") from None
    if not isinstance(content, list) or len(content) != len(captions):
        raise problem(path, line, f"parse must be a list of {len(captions)} objects, one a caption")
    return tuple(_one_parse(path, line, entry, caption) for entry, caption in zip(content, captions, strict=True))


def _one_parse(path: Path, line: int, entry: Any, text: str) -> Caption:
    if not isinstance(entry, dict):
        raise problem(path, line, f"parse holds {entry!r} where an object with asserts and denies belongs")
    atoms = {}
    for key in ("asserts", "denies"):
        values = entry.get(key, [])
        if not isinstance(values, list) or not all(isinstance(v, str) and v for v in values):
            raise problem(path, line, f"parse: {key} must be a list of words, not {values!r}")
        atoms[key] = tuple(values)
    form = ("hybrid" if atoms["asserts"] else "negative") if atoms["denies"] else "affirmative"
    wording, complete = entry.get("wording", ""), entry.get("complete", True)
    if not isinstance(wording, str) or not isinstance(complete, bool):
        raise problem(path, line, "parse: wording must be text and complete true or false")
    return Caption(text, -1, form, atoms["asserts"], atoms["denies"], wording, complete)


def image_column_of(path: Path, header: Sequence[str], names: Sequence[str], chosen: str | None = None) -> str:
    """The column of the images: the one ``chosen``, else the first of ``names`` or of the usual names of any table.

    Raises:
        ValueError: there is none; what to do is said.
    """
    return choose_column(str(path), header, chosen, (*names, *IMAGE_COLUMNS), "image")


def duplicates_note(path: Path, lines: Sequence[tuple[int, Any]], what: str) -> list[str]:
    """Notes (and a warning) about rows that are there more than once."""
    seen: dict[Any, int] = {}
    repeated = []
    for line, key in lines:
        if key in seen:
            repeated.append(f"{line} (as {seen[key]})")
        else:
            seen[key] = line
    if not repeated:
        return []
    shown = ", ".join(repeated[:5]) + (", ..." if len(repeated) > 5 else "")
    note = f"{path.name}: {len(repeated)} duplicate {what}, counted as they stand: line {shown}"
    warnings.warn(TableWarning(note), stacklevel=3)
    return [note]
