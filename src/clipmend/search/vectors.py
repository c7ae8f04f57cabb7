"""Texts and image lists in, vectors out: the files of ``clipmend encode``.

Vectors go to ``NAME.npy`` (``[N, D]`` float32) with ``NAME.ids.jsonl`` beside it (one JSON object a row: ``row``, ``id`` and, for
texts, ``text``), or to ``NAME.parquet`` with the columns ``id``, ``text`` (texts only) and ``vector`` (a list of ``D`` float32).
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from clipmend.data.images import display_path, find_images
from clipmend.search.store import write_atomically

__all__ = ["VECTOR_SUFFIXES", "Rows", "check_output", "list_images", "read_rows", "write_vectors"]

VECTOR_SUFFIXES = (".npy", ".parquet")
_TABLE_SUFFIXES = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Rows:
    """Values read from a file, with the id of each."""

    ids: list[str]
    values: list[str]


def read_rows(
    source: str | os.PathLike[str],
    *,
    column: str | None = None,
    id_column: str | None = None,
    skip_empty: bool = False,
    stdin: IO[bytes] | None = None,
) -> Rows:
    """Read one text a line, or one column of a table.

    Args:
        source: a text file (one value a line; the id is the line's number from 0), a ``.csv`` or ``.tsv`` file with a header, or
            ``"-"`` for standard input (a CSV if ``column`` is given). UTF-8, with or without BOM; any line ends.
        column: the table's column with the values; needed where it has several.
        id_column: the table's column with the ids (default: the row's number from 0).
        skip_empty: leave out empty values, which are refused otherwise. Empty lines at the end of a text file never count.
        stdin: where ``"-"`` reads from (default: standard input).

    Raises:
        ValueError: not UTF-8, an empty value, a missing column, a row of another length, a repeated id, or nothing at all; with
            the file and the line.
        OSError: the file is missing or cannot be read.
    """
    name = "standard input" if source == "-" else display_path(source)
    suffix = "" if source == "-" else Path(source).suffix.lower()
    text = _read_text(source, name, stdin)
    if suffix in _TABLE_SUFFIXES or (source == "-" and column is not None):
        ids, values, lines = _read_table(text, name, _TABLE_SUFFIXES.get(suffix, ","), column, id_column)
    else:
        if column is not None or id_column is not None:
            raise ValueError(f"{name}: columns are read from .csv and .tsv files only")
        values = _lines(text)
        while values and not values[-1].strip():
            values.pop()
        ids, lines = [str(i) for i in range(len(values))], list(range(1, len(values) + 1))
    empty = [line for line, value in zip(lines, values, strict=True) if not value.strip()]
    if empty and not skip_empty:
        told = ", ".join(map(str, empty[:5])) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise ValueError(f"{name}: nothing on line {told}; remove what is empty, or leave it out with --skip-empty")
    kept = [i for i, value in enumerate(values) if value.strip()]
    if not kept:
        raise ValueError(f"{name}: holds nothing to encode")
    return Rows([ids[i] for i in kept], [values[i] for i in kept])


def list_images(
    source: str | os.PathLike[str],
    *,
    column: str | None = None,
    id_column: str | None = None,
    skip_empty: bool = False,
    stdin: IO[bytes] | None = None,
) -> Rows:
    """Image files to encode; the id is the path, or what ``id_column`` says.

    Args:
        source: a folder (searched, see :func:`clipmend.data.images.find_images`; ids are relative to it), one image, or a list as
            in :func:`read_rows`. Paths in a list are relative to the list's folder, or else to the current one.
        column, id_column, skip_empty, stdin: see :func:`read_rows`.

    Raises:
        ValueError, OSError: as :func:`read_rows`; no image in the folder.
    """
    path = Path(source)
    no_table = source != "-" and (path.is_dir() or path.suffix.lower() not in (".txt", ".lst", ".list", "", *_TABLE_SUFFIXES))
    if no_table and (column is not None or id_column is not None):
        raise ValueError(f"{display_path(path)}: columns are read from .csv and .tsv files only")
    if source != "-" and path.is_dir():
        files = find_images(path)
        if not files:
            raise ValueError(f"no image under {display_path(path)} (looked for names like .jpg, .png, .webp)")
        return Rows([file.relative_to(path).as_posix() for file in files], [str(file) for file in files])
    if no_table:
        return Rows([str(path)], [str(path)])
    rows = read_rows(source, column=column, id_column=id_column, skip_empty=skip_empty, stdin=stdin)
    base = Path() if source == "-" else path.parent
    # os.path: a name too long for any file is a missing one, where Path's own method raises
    files = [base / value if os.path.exists(base / value) else Path(value) for value in rows.values]
    return Rows(rows.values if id_column is None else rows.ids, [str(file) for file in files])


def check_output(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work, an output that cannot be written.

    Raises:
        ValueError: an ending other than .npy and .parquet.
        ImportError: Parquet without pyarrow.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in VECTOR_SUFFIXES:
        raise ValueError(
            f"{display_path(path)}: vectors are written as {' or '.join(VECTOR_SUFFIXES)}; choose one of these endings"
        )
    if Path(path).is_dir():
        raise IsADirectoryError(f"{display_path(path)} is a folder; name a file")
    if suffix == ".parquet":
        _pyarrow()


def write_vectors(
    path: str | os.PathLike[str], vectors: np.ndarray, ids: Sequence[str], texts: Sequence[str] | None = None, **about: str
) -> list[Path]:
    """Write vectors with their ids (beside, then renamed into place).

    Args:
        path: ``NAME.npy`` or ``NAME.parquet``; its folder is made.
        vectors: float32 ``[N, D]``.
        ids: one a row.
        texts: one a row, for vectors of texts.
        about: kept in the Parquet file's metadata (model, patch).

    Returns:
        The files written.
    """
    path = Path(path)
    check_output(path)
    if not len(vectors) == len(ids) == len(texts if texts is not None else ids):
        raise ValueError(f"{len(vectors)} vectors, {len(ids)} ids and {len(texts or [])} texts do not match")
    path.parent.mkdir(parents=True, exist_ok=True)
    vectors = np.ascontiguousarray(vectors, np.float32)
    if path.suffix.lower() == ".parquet":
        beside = path.with_name(path.name + ".tmp")
        try:
            _write_parquet(beside, vectors, ids, texts, about)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        return [path]
    rows: list[dict[str, Any]] = [{"row": i, "id": name} for i, name in enumerate(ids)]
    for row, text in zip(rows, texts or (), strict=texts is not None):
        row["text"] = text
    sidecar = path.with_name(path.stem + ".ids.jsonl")
    beside = path.with_name(path.name + ".tmp")
    try:
        with open(beside, "wb") as file:
            np.save(file, vectors, allow_pickle=False)
        write_atomically(sidecar, "".join(json.dumps(row) + "\n" for row in rows).encode("ascii"))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return [path, sidecar]


def _write_parquet(path: Path, vectors: np.ndarray, ids: Sequence[str], texts: Sequence[str] | None, about: dict[str, str]) -> None:
    arrow = _pyarrow()
    from pyarrow import parquet

    columns = {"id": arrow.array([_utf8(name) for name in ids], arrow.string())}
    if texts is not None:
        columns["text"] = arrow.array([_utf8(text) for text in texts], arrow.string())
    flat = arrow.array(vectors.reshape(-1), arrow.float32())
    columns["vector"] = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    parquet.write_table(arrow.table(columns, metadata=about), path)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError("Parquet needs pyarrow: pip install 'clipmend[parquet]', or write a .npy file") from None
    return pyarrow


def _utf8(text: str) -> str:
    """Text as Parquet can hold it: the undecodable bytes of a file name become escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _read_text(source: str | os.PathLike[str], name: str, stdin: IO[bytes] | None) -> str:
    try:
        data = (stdin or sys.stdin.buffer).read() if source == "-" else Path(source).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{name} is a folder; give a text file, a .csv or a .tsv") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}: line {line} is not UTF-8 (byte {data[error.start]:#04x}); save the file as UTF-8") from None


def _lines(text: str) -> list[str]:
    """Lines by LF, CRLF or CR alone: not by the other characters that ``str.splitlines`` breaks at, which may stand in a text."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _read_table(
    text: str, name: str, delimiter: str, column: str | None, id_column: str | None
) -> tuple[list[str], list[str], list[int]]:
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)  # an open quote would swallow the rest
    ids: list[str] = []
    values: list[str] = []
    lines: list[int] = []
    try:
        header = next(reader, [])
        at = _column(header, column, name)
        id_at = None if id_column is None else _column(header, id_column, name)
        for row in reader:
            if not row:
                continue  # a blank line is no row of a table
            if len(row) != len(header):
                raise ValueError(f"{name}: line {reader.line_num} has {len(row)} fields, the header {len(header)}")
            values.append(row[at])
            ids.append(str(len(ids)) if id_at is None else row[id_at])
            lines.append(reader.line_num)
    except csv.Error as error:
        raise ValueError(f"{name}: line {reader.line_num} does not parse ({error})") from None
    if id_at is not None and len(set(ids)) != len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise ValueError(f"{name}: the id {twice!r} stands in several rows of column {id_column!r}; ids must be unique")
    return ids, values, lines


def _column(header: list[str], column: str | None, name: str) -> int:
    if not header:
        raise ValueError(f"{name}: is empty; a table needs a header line with column names")
    told = ", ".join(repr(c) for c in header)
    if column is None:
        if len(header) == 1:
            return 0
        raise ValueError(f"{name}: has several columns; choose one with --column ({told})")
    if header.count(column) != 1:
        times = "several columns" if column in header else "no column"
        raise ValueError(f"{name}: has {times} {column!r}; it has {told}")
    return header.index(column)
