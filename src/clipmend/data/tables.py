"""Reading tables: strict about what would change a number, and every complaint names the file and the line."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clipmend.data.records import FORMS

__all__ = [
    "EmptyCaption",
    "Row",
    "caption_field",
    "integer_field",
    "is_text",
    "json_lines",
    "open_table",
    "problem",
    "read_table",
    "template_field",
    "text_field",
    "texts_field",
]

Row = tuple[int, dict[str, str]]
OnBad = Callable[[ValueError], None]

# NegBench writes "positive" for what is called an affirmative caption here.
TEMPLATES = {"positive": "affirmative", **{form: form for form in FORMS}}

FIELD_LIMIT = 64_000_000
"""Most characters of a field: the csv module's own limit, 131,072, is less than an image in base64 has."""

# Two string literals with nothing but space between them: Python would join them, which a list of captions never means.
_ADJACENT = re.compile(r"""['"]\s*['"]""")


class EmptyCaption(ValueError):
    """A caption without text: an error like others, which reports count apart."""


def problem(path: Path | str, line: int, message: str) -> ValueError:
    """An error that says where."""
    return ValueError(f"{path}: line {line}: {message}")


def open_table(
    path: str | Path, required: Sequence[str] = (), *, delimiter: str = ",", on_bad: OnBad | None = None
) -> tuple[list[str], Iterator[Row]]:
    """Open a table with a header and stream its rows: UTF-8 with or without a byte-order mark, any line ending, quoted fields.

    Args:
        path: the file.
        required: columns that must be there; others are kept too.
        delimiter: what stands between fields.
        on_bad: called with the error of a row that has more or fewer fields than the header or is not UTF-8, which is then
            left out, and of a broken quote, which ends the table; by default they are raised.

    Returns:
        The header, and an iterator of ``(line, {column: text})``, blank lines left out; ``line`` is the row's first line, from 1.
        One row at a time is in memory.

    Raises:
        ValueError: no header, a column missing or named twice; while reading: not UTF-8, a row with more or fewer fields, no rows.
        OSError: the file cannot be read.
    """
    rows = _rows(Path(path), required, delimiter, on_bad)
    header = next(rows)
    assert isinstance(header, list)  # the first item is the header, the others are rows
    return header, rows  # type: ignore[return-value]


def _rows(path: Path, required: Sequence[str], delimiter: str, on_bad: OnBad | None) -> Iterator[list[str] | Row]:
    if path.is_dir():
        there = sorted(p.name for p in path.iterdir() if p.suffix.lower() in (".csv", ".tsv"))
        which = f"one of its tables ({', '.join(there[:8])}{', ...' if len(there) > 8 else ''})" if there else "a table (CSV)"
        raise IsADirectoryError(f"{path} is a folder; give {which}")
    count = 0
    line = 0
    csv.field_size_limit(max(csv.field_size_limit(), FIELD_LIMIT))  # one limit for the process, only ever raised
    # Bytes that are not UTF-8 pass as lone surrogates, so that a row that holds some can be named, and skipped, like any other.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if not all(map(is_text, header)):
                raise ValueError(f"{path}: not UTF-8 text; save the table as UTF-8")
            _check_header(path, header, required, delimiter)
            yield header
            line = reader.line_num + 1
            for fields in reader:
                if any(field.strip() for field in fields):
                    count += 1
                    if len(fields) != len(header):
                        seen = f"{len(fields)} fields where the header names {len(header)}"
                        _raise_or_tell(problem(path, line, f"{seen}; is a comma unquoted or a field lost?"), on_bad)
                    elif not all(map(is_text, fields)):
                        _raise_or_tell(problem(path, line, "not UTF-8 text; save the table as UTF-8"), on_bad)
                    else:
                        yield line, dict(zip(header, fields, strict=True))
                line = reader.line_num + 1
        except csv.Error as error:
            _raise_or_tell(ValueError(f"{path}: line {reader.line_num}: broken table: {error}"), on_bad if line else None)
            return  # the error says why there may be no rows
    if not count:
        raise ValueError(f"{path}: no rows below the header")


def is_text(value: str) -> bool:
    """Whether a text is valid Unicode: neither bytes that were not UTF-8 nor half a pair of surrogates, which JSON can spell."""
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_header(path: Path, header: list[str], required: Sequence[str], delimiter: str) -> None:
    if not any(header):
        wanted = f" {', '.join(required)}" if required else ""
        raise ValueError(f"{path}: the file is empty; its first line must name the columns{wanted}")
    missing = [name for name in required if name not in header]
    if missing:
        hint = ""
        if len(header) == 1 and (other := next((d for d in ",\t;" if d != delimiter and d in header[0]), None)):
            hint = f" (fields seem to be separated by {other!r}, not by {delimiter!r})"
        raise ValueError(f"{path}: column {', '.join(missing)} is missing; the file has {', '.join(header)}{hint}")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: column {', '.join(twice)} appears twice")


def _raise_or_tell(error: ValueError, on_bad: OnBad | None) -> None:
    if on_bad is None:
        raise error from None
    on_bad(error)


def read_table(path: str | Path, required: Sequence[str]) -> tuple[list[str], list[Row]]:
    """All of a comma-separated table at once: the header and the rows, as :func:`open_table` gives them.

    Raises:
        ValueError, OSError: as :func:`open_table`.
    """
    header, rows = open_table(path, required)
    return header, list(rows)


def text_field(path: Path, line: int, row: dict[str, str], column: str) -> str:
    """A field that must not be blank."""
    text = row[column].strip()
    if not text:
        raise problem(path, line, f"{column} is empty")
    return text


def caption_field(path: Path, line: int, row: dict[str, str], column: str) -> str:
    """A caption, which must not be blank (:class:`EmptyCaption`)."""
    if not row[column].strip():
        raise EmptyCaption(problem(path, line, f"{column} is empty"))
    return text_field(path, line, row, column)


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
    if name not in TEMPLATES:
        raise problem(path, line, f"correct_answer_template is {text!r}, none of {', '.join(TEMPLATES)}")
    return TEMPLATES[name]


def texts_field(path: Path, line: int, text: str, column: str = "captions", *, empty: bool = False) -> list[str]:
    """A Python or JSON list of texts, read as data and never run.

    Args:
        path: the file, for errors.
        line: the line, for errors.
        text: what the field holds.
        column: its name, for errors.
        empty: whether a blank field or an empty list is allowed.

    Raises:
        ValueError: no list of texts, two texts without a comma between them, an empty list, or an empty text in it.
    """
    if empty and not text.strip():
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash that starts no escape is no matter for Python's compiler here
            content = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        raise problem(path, line, f"{column} is no list of texts: {text[:60]!r}") from None
    if not isinstance(content, (list, tuple)) or not all(isinstance(item, str) for item in content):
        raise problem(path, line, f"{column} is no list of texts: {text[:60]!r}")
    if not all(map(is_text, content)):
        raise problem(path, line, f"{column} is no valid Unicode: {text[:60]!r}")
    if _ADJACENT.search(text) and _literals(text) not in (None, len(content)):
        raise problem(path, line, f"{column}: a comma is missing between two texts: {text[:60]!r}")
    if (not content and not empty) or not all(item.strip() for item in content):
        raise EmptyCaption(problem(path, line, f"{column} is empty, or one of them is"))
    return [item.strip() for item in content]


def _literals(text: str) -> int | None:
    """How many string literals ``text`` holds; ``None`` where that cannot be told."""
    try:
        return sum(token.type == tokenize.STRING for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline))
    except (tokenize.TokenError, SyntaxError):
        return None


def json_lines(path: str | Path, *, on_bad: OnBad | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(line, object)`` of a JSON-lines file, blank lines left out.

    Args:
        path: the file.
        on_bad: called with the error of a line that is no JSON object, which is then left out; by default it is raised.

    Raises:
        ValueError: a line that is no JSON object, or not UTF-8.
    """
    path = Path(path)
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            if not is_text(text):
                _raise_or_tell(problem(path, line, "not UTF-8 text; save the file as UTF-8"), on_bad)
                continue
            try:
                content = json.loads(text)
            except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
                _raise_or_tell(problem(path, line, f"not JSON: {error}"), on_bad)
                continue
            if isinstance(content, dict):
                yield line, content
            else:
                _raise_or_tell(problem(path, line, "each line must be a JSON object"), on_bad)
