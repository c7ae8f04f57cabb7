"""What is known of many images, a column at a time, without an object for each: texts in one buffer, numbers in one array."""

from __future__ import annotations

import itertools
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clipmend.search.conditions import fulfils
from clipmend.search.gallery import BASE_FIELDS, Condition, FieldType, GalleryError, Item

__all__ = ["ArrowTexts", "Column", "Derived", "Numbers", "Rows", "Texts", "with_names"]

BLOCK = 65_536
"""Rows that are looked at together."""

Value = str | float | None


class Column(ABC):
    """The values of one field, by row.

    Attributes:
        type: of the field.
    """

    type: FieldType

    @abstractmethod
    def __len__(self) -> int:
        """How many rows."""

    @abstractmethod
    def block(self, first: int, last: int) -> np.ndarray:
        """Rows ``first..last - 1``: objects (``str`` or ``None``) or float64 (NaN where missing)."""

    @abstractmethod
    def take(self, rows: Sequence[int] | np.ndarray) -> list[Value]:
        """The values of some rows, ``None`` where missing."""

    def holding(self, condition: Condition) -> np.ndarray:
        """bool ``[N]``: the rows that fulfil a condition on this field, which fits its type."""
        found = np.zeros(len(self), bool)
        for first in range(0, len(self), BLOCK):
            last = min(first + BLOCK, len(self))
            values = self.block(first, last)
            # each distinct value once: folders and labels repeat
            known = {
                value: value == value and value is not None and fulfils({condition.field: value}, [condition])
                for value in set(values.tolist())
            }
            found[first:last] = [known[value] if value == value else False for value in values.tolist()]
        return found


class Numbers(Column):
    """Numbers, sizes or times.

    Args:
        values: float64 ``[N]``; NaN (or infinity) where missing.
        type_: ``number``, ``size`` or ``time``.
    """

    def __init__(self, values: np.ndarray, type_: FieldType = "number") -> None:
        values = np.asarray(values, np.float64)
        # Infinity is no value of a field either: no index keeps it, and JSON cannot say it.
        self.values, self.type = np.where(np.isinf(values), np.nan, values), type_

    def __len__(self) -> int:
        return len(self.values)

    def block(self, first: int, last: int) -> np.ndarray:
        return self.values[first:last]

    def take(self, rows: Sequence[int] | np.ndarray) -> list[Value]:
        return [None if value != value else value for value in self.values[np.asarray(rows, np.int64)].tolist()]

    def holding(self, condition: Condition) -> np.ndarray:
        compare = {
            "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
        }[condition.op]  # fmt: skip
        return compare(self.values, float(condition.value)) & ~np.isnan(self.values)


class Texts(Column):
    """Texts in one buffer: about as many bytes as the texts have, where a million ``str`` take hundreds of megabytes.

    Args:
        values: texts, ``None`` where missing; read once.
        type_: ``text`` or ``folder``.
    """

    def __init__(self, values: Iterable[str | None], type_: FieldType = "text") -> None:
        self.type = type_
        buffer = bytearray()
        ends, missing = [0], []
        for row, value in enumerate(values):
            if value is None:
                missing.append(row)
            else:
                buffer += value.encode("utf-8", "surrogatepass")  # file names may hold bytes that are no UTF-8
            ends.append(len(buffer))
        self._buffer, self._ends = bytes(buffer), np.asarray(ends, np.int64)
        self._missing = np.asarray(missing, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def _text(self, row: int) -> str:
        return self._buffer[self._ends[row] : self._ends[row + 1]].decode("utf-8", "surrogatepass")

    def block(self, first: int, last: int) -> np.ndarray:
        ends = self._ends[first : last + 1].tolist()
        texts = [self._buffer[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(ends)]
        values = np.empty(last - first, object)
        values[:] = texts
        low, high = np.searchsorted(self._missing, [first, last])
        values[self._missing[low:high] - first] = None
        return values

    def take(self, rows: Sequence[int] | np.ndarray) -> list[Value]:
        rows = np.asarray(rows, np.int64)
        missing = np.isin(rows, self._missing)
        return [None if gone else self._text(row) for row, gone in zip(rows.tolist(), missing.tolist(), strict=True)]


class ArrowTexts(Column):
    """Texts as Arrow holds them.

    Args:
        values: a ``pyarrow.ChunkedArray`` of strings.
    """

    type: FieldType = "text"

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def block(self, first: int, last: int) -> np.ndarray:
        values = np.empty(last - first, object)
        values[:] = self._values.slice(first, last - first).to_pylist()
        return values

    def take(self, rows: Sequence[int] | np.ndarray) -> list[Value]:
        return [self._values[int(row)].as_py() for row in rows]


class Derived(Column):
    """Texts made of another column's.

    Args:
        source: the column.
        function: makes one value of one value, or ``None`` where there is none.
        type_: of what it makes.
    """

    def __init__(self, source: Column, function: Callable[[str], str | None], type_: FieldType = "text") -> None:
        self._source, self._function, self.type = source, function, type_

    def __len__(self) -> int:
        return len(self._source)

    def _derive(self, values: Iterable[Any]) -> list[Value]:
        return [None if value is None else self._function(value) for value in values]

    def block(self, first: int, last: int) -> np.ndarray:
        values = np.empty(last - first, object)
        values[:] = self._derive(self._source.block(first, last).tolist())
        return values

    def take(self, rows: Sequence[int] | np.ndarray) -> list[Value]:
        return self._derive(self._source.take(rows))


@dataclass
class Rows:
    """What is known of ``N`` images.

    Args:
        count: ``N``.
        ids: int64 ``[N]``, distinct; default: the number of the row.
        paths: default: the number of the row.
        sha256: of the files' contents, where known.
        columns: by field name.
    """

    count: int
    ids: np.ndarray | None = None
    paths: Column | None = None
    sha256: Column | None = None
    columns: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held = {"paths": self.paths, "sha256": self.sha256, **self.columns}
        for name, column in held.items():
            if column is not None and len(column) != self.count:
                raise GalleryError(f"{name} has {len(column):,} rows, the vectors {self.count:,}")

    @classmethod
    def of_items(cls, items: Sequence[Item], fields: Mapping[str, FieldType] | None = None) -> Rows:
        """The rows of items.

        Args:
            items: one a row.
            fields: the fields with their types; default: those of the items (``BASE_FIELDS`` by name, others by their values).

        Raises:
            GalleryError: an id twice or out of range, a field with texts and numbers.
        """
        ids = np.asarray([item.id for item in items], np.int64)
        if len(ids) and ids.min() < 0:
            raise GalleryError(f"ids are 0 or more, and one is {ids.min()}")
        if len(np.unique(ids)) != len(ids):
            distinct, counts = np.unique(ids, return_counts=True)
            raise GalleryError(f"the id {distinct[counts > 1][0]} stands in several items; ids must be unique")
        types = dict(fields) if fields is not None else _types(items)
        columns: dict[str, Column] = {}
        for name, type_ in types.items():
            values = [item.fields.get(name) for item in items]
            text = type_ in ("text", "folder")
            for item, value in zip(items, values, strict=True):
                if value is not None and isinstance(value, str) != text:
                    raise GalleryError(f"{item.path}: {name} is {value!r}, which is no value of a {type_} field")
            if text:
                columns[name] = Texts(values, type_)  # type: ignore[arg-type]
            else:
                columns[name] = Numbers(np.asarray([np.nan if v is None else v for v in values], np.float64), type_)
        sha256 = Texts([item.sha256 or None for item in items]) if any(item.sha256 for item in items) else None
        return cls(len(items), ids, Texts([item.path for item in items]), sha256, columns)

    def items(self, rows: np.ndarray, ids: Sequence[int]) -> list[Item]:
        """The items of some rows, which have these ids."""
        paths: list[Value] = [str(row) for row in rows.tolist()] if self.paths is None else self.paths.take(rows)
        digests: list[Value] = [None] * len(rows) if self.sha256 is None else self.sha256.take(rows)
        values = {name: column.take(rows) for name, column in self.columns.items()}
        items = []
        for i, row in enumerate(rows.tolist()):
            known = {name: value for name, column in values.items() if (value := column[i]) is not None}
            path = paths[i]
            items.append(Item(int(ids[i]), str(row) if path is None else str(path), known, str(digests[i] or "")))
        return items

    def path_block(self, first: int, last: int) -> list[str]:
        """The paths of rows ``first..last - 1``."""
        if self.paths is None:
            return [str(row) for row in range(first, last)]
        values = self.paths.block(first, last).tolist()
        return [str(first + i) if value is None else value for i, value in enumerate(values)]


def with_names(rows: Rows) -> Rows:
    """The same with ``name`` and ``folder`` out of the paths, where the rows have no such fields."""
    if rows.paths is not None:
        rows.columns.setdefault("folder", Derived(rows.paths, _folder, "folder"))
        rows.columns.setdefault("name", Derived(rows.paths, _name))
    return rows


def _folder(path: str) -> str | None:
    return None if "://" in path else posixpath.dirname(path).strip("/")


def _name(path: str) -> str:
    if "://" in path:
        path = path.partition("?")[0].partition("#")[0]
    return posixpath.basename(path)


def _types(items: Sequence[Item]) -> dict[str, FieldType]:
    types: dict[str, FieldType] = {}
    for item in items:
        for name, value in item.fields.items():
            if name not in types:
                base = BASE_FIELDS.get(name)
                text = isinstance(value, str)
                types[name] = base if base and (base in ("text", "folder")) == text else "text" if text else "number"
    return types
