"""Reading evaluation tables: strict about what would change a number, and every complaint names the file and the line."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from clipmend.data.records import FORMS, Caption

__all__ = ["Rows", "TableWarning", "read_table"]

T = TypeVar("T")
Row = tuple[int, dict[str, str]]

# NegBench writes "positive" for what is called an affirmative caption here.
_TEMPLATES = {"positive": "affirmative", **{form: form for form in FORMS}}


class TableWarning(UserWarning):
    """Something odd in a table that does not stop the evaluation (a duplicate row, say)."""


class Rows(list[T]):
    """Rows of a table with what was noticed while reading: a list with ``source`` and ``notes``."""

    def __init__(self, rows: Iterable[T] = (), source: str = "", notes: Sequence[str] = ()) -> None:
        super().__init__(rows)
        self.source = source
        self.notes = list(notes)


def problem(path: Path | str, line: int, message: str) -> ValueError:
    """An error that says where."""
    return ValueError(f"{path}: line {line}: {message}")


def read_table(path: str | Path, required: Sequence[str]) -> tuple[list[str], list[Row]]:
    """Read a comma-separated table with a header: UTF-8 with or without a byte-order mark, any line ending, quoted fields.

    Args:
        path: the file.
        required: columns that must be there; others are kept too.

    Returns:
        The header, and ``(line, {column: text})`` of each row, blank lines left out; ``line`` is the row's first line, from 1.

    Raises:
        ValueError: not UTF-8, no header, a column missing or named twice, a row with more or fewer fields, no rows.
        OSError: the file cannot be read.
    """
    path = Path(path)
    rows: list[Row] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if not any(header):
                raise ValueError(f"{path}: the file is empty; its first line must name the columns {', '.join(required)}")
            missing = [name for name in required if name not in header]
            if missing:
                raise ValueError(f"{path}: column {', '.join(missing)} is missing; the file has {', '.join(header)}")
            twice = sorted({name for name in header if name and header.count(name) > 1})
            if twice:
                raise ValueError(f"{path}: column {', '.join(twice)} appears twice")
            line = reader.line_num + 1
            for fields in reader:
                if any(field.strip() for field in fields):
                    if len(fields) != len(header):
                        raise problem(
                            path,
                            line,
                            f"{len(fields)} fields where the header names {len(header)}; is a comma unquoted or a field lost?",
                        )
                    rows.append((line, dict(zip(header, fields, strict=True))))
                line = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start}); save the table as UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num}: broken table: {error}") from error
    if not rows:
        raise ValueError(f"{path}: no rows below the header")
    return header, rows


def text_field(path: Path, line: int, row: dict[str, str], column: str) -> str:
    """A field that must not be blank."""
    text = row[column].strip()
    if not text:
        raise problem(path, line, f"{column} is empty")
    return text


def integer_field(path: Path, line: int, row: dict[str, str], column: str) -> int:
    """An integer; ``2.0`` is one, as a spreadsheet or pandas may have written it."""
    text = row[column].strip()
    try:
        value = float(text)
        if value != int(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise problem(path, line, f"{column} is {text!r}, not an integer") from None
    return int(value)


def template_field(path: Path, line: int, text: str) -> str:
    """``positive | affirmative | negative | hybrid`` in our terms."""
    name = text.strip().lower()
    if name not in _TEMPLATES:
        raise problem(path, line, f"correct_answer_template is {text!r}, none of {', '.join(_TEMPLATES)}")
    return _TEMPLATES[name]


def parse_field(path: Path, line: int, text: str, captions: Sequence[str]) -> tuple[Caption, ...] | None:
    """The ``parse`` column: JSON, a list of ``{"asserts": [...], "denies": [...], "wording": ""}``, one a caption; or blank."""
    if not text.strip():
        return None
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
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


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(line, object)`` of a JSON-lines file, blank lines left out.

    Raises:
        ValueError: a line that is no JSON object, or not UTF-8.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    content = json.loads(text)
                except (json.JSONDecodeError, RecursionError) as error:
                    raise problem(path, line, f"not JSON: {error}") from None
                if not isinstance(content, dict):
                    raise problem(path, line, "each line must be a JSON object")
                yield line, content
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from error


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
