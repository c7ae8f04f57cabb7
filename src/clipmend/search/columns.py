"""Further fields of an index's images, from a table: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.data.images import display_path
from clipmend.data.tables import json_lines, open_table
from clipmend.search.database import Database
from clipmend.search.editing import declare, set_values
from clipmend.search.gallery import BASE_FIELDS, FieldType

if TYPE_CHECKING:
    from clipmend.search.index import ImageIndex

__all__ = ["ImportReport", "import_columns"]

_BLOCK = 4096
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""How a table writes a number; ``007`` is a code, and would be ``7`` as a number."""
_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        fields: the fields and their types.
        rows: rows of the table.
        matched: rows that name an image of the index.
        first_unmatched: the key of the first row that names none; empty if all do.
    """

    fields: dict[str, FieldType]
    rows: int
    matched: int
    first_unmatched: str = ""

    def __str__(self) -> str:
        told = ", ".join(f"{name} ({type_})" for name, type_ in self.fields.items())
        left = f"; no image is called {self.first_unmatched!r}, for one" if self.first_unmatched else ""
        return f"{self.matched:,} of {self.rows:,} rows name an image; fields: {told}{left}"


def import_columns(database: Database, index: ImageIndex, table: str | os.PathLike[str], key: str = "path") -> ImportReport:
    """Set fields of images from a table; values that are there are replaced, those of other images stay.

    A column whose values are all numbers becomes a ``number`` field, one of dates and times (of Parquet) a ``time`` field, any
    other a ``text`` field: also one of codes like ``007``, of whole numbers past 2^53, and of truth values (``true``, ``false``).
    Times without a zone are this machine's local time. Empty cells say nothing.

    Args:
        database: the index's, locked by the caller.
        index: the index.
        table: ``.csv`` or ``.tsv`` with a header, ``.jsonl`` or ``.ndjson``, ``.parquet`` or ``.pq``.
        key: the column that names the image: by its path in the index, or by its file.

    Raises:
        ValueError: no such column, no other column, a column called like one of the index's own fields, no row that names an image.
        ImageIndexError: a field that is there has another type.
        OSError: the table is missing.
        ImportError: Parquet without pyarrow.
    """
    path = Path(table)
    types: dict[str, str] = {}
    rows = 0
    for row in _rows(path):  # first pass: names and types
        rows += 1
        if key not in row:
            raise ValueError(f"{display_path(path)}: row {rows} has no column {key!r} to name the image; it has {', '.join(row)}")
        for name, value in row.items():
            if name != key and value is not None:
                kind = _kind(value)
                if types.setdefault(name, kind) != kind:
                    types[name] = "text"
    taken = [name for name in types if name in BASE_FIELDS]
    if taken:
        raise ValueError(f"{display_path(path)}: every image has a field {taken[0]!r} already; rename or leave out that column")
    if not types:
        raise ValueError(f"{display_path(path)}: has no column with values beside {key!r}")
    chosen: dict[str, FieldType] = dict(types.items())  # type: ignore[arg-type]
    matched, unmatched = 0, ""

    def look_up(sql: str, values: tuple[bytes]) -> list[tuple[Any, ...]]:
        # Over the connection that writes: once its changes outgrow its cache, no other may read.
        return database.execute(sql, values).fetchall()

    with database.transaction():
        places = {name: declare(database, name, type_) for name, type_ in chosen.items()}
        waiting: dict[str, list[tuple[int, str | float]]] = {name: [] for name in chosen}
        for row in _rows(path):
            named = row[key]
            id_ = None if named is None else index.find_by(str(named), look_up)
            if id_ is None:
                unmatched = unmatched or str(named)
                continue
            matched += 1
            for name, value in row.items():
                if name != key and value is not None:
                    waiting[name].append((id_, _value(value, chosen[name])))
            if matched % _BLOCK == 0:
                _save(database, places, chosen, waiting)
        _save(database, places, chosen, waiting)
        if not matched:
            raise ValueError(
                f"{display_path(path)}: no row names an image of {index.name}; {unmatched!r}, for one, is none "
                f"(its first image is {index.entries[0].path!r})"
                if len(index)
                else f"{index.name} is empty"
            )
    return ImportReport(chosen, rows, matched, unmatched)


def _save(
    database: Database, places: dict[str, str], types: dict[str, FieldType], waiting: dict[str, list[tuple[int, str | float]]]
) -> None:
    for name, values in waiting.items():
        set_values(database, places[name], types[name], values)
        values.clear()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows by column, one after the other; empty cells and what is no number (NaN) are ``None``."""
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        for _, row in open_table(path, delimiter="\t" if suffix == ".tsv" else ",")[1]:
            yield {name: _cell(value) for name, value in row.items()}
    elif suffix in (".jsonl", ".ndjson"):
        for line, entry in json_lines(path):
            for name, value in entry.items():
                if isinstance(value, (list, dict)):
                    raise ValueError(f"{display_path(path)}: line {line}: {name} holds {value!r:.60}, not a text or a number")
            yield {name: _cell(value) for name, value in entry.items()}
    elif suffix in (".parquet", ".pq"):
        yield from _parquet(path)
    else:
        raise ValueError(f"{display_path(path)}: columns are read from .csv, .tsv, .jsonl and .parquet files")


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    from clipmend.search.vectors import _pyarrow

    _pyarrow()
    from pyarrow import parquet
    from pyarrow.lib import ArrowException

    if not path.is_file():
        raise FileNotFoundError(f"{display_path(path)}: no such file")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BLOCK):
                for row in batch.to_pylist():
                    for name, value in row.items():
                        if isinstance(value, (list, dict, bytes)):
                            raise ValueError(
                                f"{display_path(path)}: {name} holds {type(value).__name__}s, not texts or numbers; leave it out"
                            )
                    yield {name: _cell(value) for name, value in row.items()}
    except ArrowException as error:
        raise ValueError(f"{display_path(path)}: broken Parquet: {error}; fetch or export it again") from error


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        # Half of a surrogate pair, which JSON can say, is no character and cannot be stored.
        return (
            value.strip()
            .encode("utf-8", "replace" if _HALF.search(value) else "surrogateescape")
            .decode("utf-8", "surrogateescape")
            or None
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _kind(value: Any) -> str:
    if isinstance(value, (datetime, date)):
        return "time"
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return "text"
    try:
        number = float(value)
        # A number of too many digits would be taken for its neighbours; float and Decimal are what they are.
        whole = isinstance(value, int) or (isinstance(value, str) and value.lstrip("+-").isdigit())
        return "number" if math.isfinite(number) and not (whole and int(number) != int(value)) else "text"
    except (TypeError, ValueError, OverflowError):
        return "text"


def _value(value: Any, type_: FieldType) -> str | float:
    if type_ == "text":
        return str(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:  # local; pandas' own timestamps, which nanoseconds come as, would take it for UTC
            value = datetime(*value.timetuple()[:6], value.microsecond)
        return value.timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day).timestamp()
    return float(value)
