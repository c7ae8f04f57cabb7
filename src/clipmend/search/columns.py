"""Further fields of an index's images, from a table: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from clipmend.data.images import display_path
from clipmend.data.tables import json_lines, open_table
from clipmend.search.database import Database
from clipmend.search.editing import declare, set_values
from clipmend.search.gallery import BASE_FIELDS, FieldType

if TYPE_CHECKING:
    from clipmend.search.index import ImageIndex

__all__ = ["ImportReport", "TableColumns", "import_columns", "look_at"]

_BLOCK = 4096
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""How a table writes a number; ``007`` is a code, and would be ``7`` as a number."""
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r" ?([Zz]|([+-])([0-9]{2}):?([0-9]{2})?)?)?"
)
"""A date, or a date and a time of day, of ISO 8601."""
_TRUTHS = ("true", "false")
_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        fields: the fields and their types.
        rows: rows of the table.
        matched: rows that name an image of the index.
        first_unmatched: the key of the first row that names none; empty if all do.
        truths: the fields that hold ``"true"`` and ``"false"`` only.
    """

    fields: dict[str, FieldType]
    rows: int
    matched: int
    first_unmatched: str = ""
    truths: frozenset[str] = frozenset()

    def __str__(self) -> str:
        told = ", ".join(f"{name}: {'true or false' if name in self.truths else type_}" for name, type_ in self.fields.items())
        left = f"; no image is called {self.first_unmatched!r}, for one" if self.first_unmatched else ""
        return f"{self.matched:,} of {self.rows:,} rows name an image; {told}{left}"


@dataclass(frozen=True)
class TableColumns:
    """What the columns of a table are taken for.

    Attributes:
        fields: type by name, the key left out; columns without any value are left out too.
        truths: those of them (``text``) that hold truth values only.
        rows: rows of the table.
    """

    fields: dict[str, FieldType]
    truths: frozenset[str]
    rows: int


def look_at(table: str | os.PathLike[str], key: str = "path", types: Mapping[str, FieldType] | None = None) -> TableColumns:
    """Read a table through, and say what its columns are taken for; needs no index. See :func:`import_columns`.

    Raises:
        ValueError, OSError, ImportError: as there, but for what an index has to do with.
    """
    path, stated = Path(table), dict(types or {})
    for name, type_ in stated.items():
        if type_ not in get_args(FieldType):
            raise ValueError(f"{name}: {type_!r} is no type of a field; the types: {', '.join(get_args(FieldType))}")
        if name == key:
            raise ValueError(f"the column {key!r} names the image and is no field: it has no type")
    kinds: dict[str, str] = {}
    rows = 0
    for row in _rows(path):
        rows += 1
        if key not in row:
            split = " (is the table separated by something else?)" if len(row) == 1 else ""
            raise ValueError(
                f"{display_path(path)}: row {rows} has no column {key!r} to name the image; it has {', '.join(row)}{split}. "
                "Say which column does: --key COLUMN"
            )
        for name, value in row.items():
            if name == key or value is None or kinds.get(name) == "text":
                continue
            if name in stated:
                try:
                    _value(value, stated[name])
                except (TypeError, ValueError, OverflowError):
                    raise ValueError(
                        f"{display_path(path)}: row {rows}: {name} is {str(value)!r:.60}, which is no {stated[name]}"
                    ) from None
                kinds[name] = stated[name]
            elif kinds.setdefault(name, kind := _kind(value)) != kind:
                kinds[name] = "text"
    taken = [name for name in kinds if name in BASE_FIELDS]
    if taken:
        raise ValueError(f"{display_path(path)}: every image has a field {taken[0]!r} already; rename or leave out that column")
    if not kinds:
        raise ValueError(f"{display_path(path)}: has no column with values beside {key!r}")
    lacking = [name for name in stated if name not in kinds]
    if lacking:
        raise ValueError(f"{display_path(path)}: has no column {lacking[0]!r} with values; it has {', '.join(kinds)}")
    fields = {name: cast("FieldType", "text" if kind == "truth" else kind) for name, kind in kinds.items()}
    return TableColumns(fields, frozenset(name for name, kind in kinds.items() if kind == "truth"), rows)


def import_columns(
    database: Database,
    index: ImageIndex,
    table: str | os.PathLike[str],
    key: str = "path",
    types: Mapping[str, FieldType] | None = None,
) -> ImportReport:
    """Set fields of images from a table; values that are there are replaced, those of other images stay.

    A column whose values are all numbers becomes a ``number`` field, one of dates and times (of Parquet, or written as ISO 8601
    does) a ``time`` field, any other a ``text`` field: also one of codes like ``007``, of whole numbers past 2^53, and of truth
    values, which are ``true`` and ``false`` however they are capitalised. One whose field is a ``text`` field already stays that.
    Times without a zone are this machine's local time. Empty cells say nothing.

    Args:
        database: the index's, locked by the caller.
        index: the index.
        table: ``.csv`` or ``.tsv`` with a header, ``.jsonl`` or ``.ndjson``, ``.parquet`` or ``.pq``.
        key: the column that names the image: by its path in the index, or by its file.
        types: what columns are to be taken for, by name; of the others it is told by their values. A ``time`` may be a number, of
            seconds since 1970.

    Raises:
        ValueError: no such column, no other column, a column called like one of the index's own fields, no row that names an
            image, a value that does not fit the type stated.
        ImageIndexError: a field that is there has another type.
        OSError: the table is missing.
        ImportError: Parquet without pyarrow.
    """
    path = Path(table)
    columns = look_at(path, key, types)
    rows, truths = columns.rows, columns.truths
    chosen: dict[str, FieldType] = {  # a text field that is there takes whatever a table holds this time
        name: "text" if name not in (types or {}) and index.fields.get(name) == "text" else type_
        for name, type_ in columns.fields.items()
    }
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
                    waiting[name].append((id_, str(value).lower() if name in truths else _value(value, chosen[name])))
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
    return ImportReport(chosen, rows, matched, unmatched, truths)


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
        if value.lower() in _TRUTHS:
            return "truth"
        return "text" if _seconds(value) is None else "time"
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
    if type_ == "time" and isinstance(value, str) and (seconds := _seconds(value)) is not None:
        return seconds
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no number")
    return number


def _seconds(text: str) -> float | None:
    """Seconds since 1970 of a date, or a date and a time, of ISO 8601; ``None`` where it is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    day, clock, second, fraction, zone, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}:{second or '00'}")
        if zone:
            offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
            moment = moment.replace(tzinfo=timezone(-offset if sign == "-" else offset))
        return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    except (ValueError, OverflowError, OSError):  # no such day, or one that this machine cannot tell
        return None
