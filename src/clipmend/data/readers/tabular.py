"""Any table with a column of images and a column of captions: CSV, TSV, JSON lines, Parquet.

Where the columns are not chosen, the usual names are tried. A cell holds one caption; a cell of JSON lines or Parquet may hold a
list of them, and so may one of a CSV column that is called ``captions`` (or with ``caption_lists=True``), as a Python or JSON list.
A Parquet cell may hold the image itself: bytes, or a ``{"bytes": ..., "path": ...}`` as Hugging Face writes it. Parquet needs the
extra ``parquet``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clipmend.data.readers.base import Log, OnError, Record, Source, beside, missing_extra, register
from clipmend.data.tables import EmptyCaption, is_text, json_lines, open_table, problem, texts_field

__all__ = ["CAPTION_COLUMNS", "IMAGE_COLUMNS", "captions_of", "choose_column", "image_of", "read_table_of_captions"]

IMAGE_COLUMNS = ("image", "image_path", "filepath", "file_path", "file_name", "filename", "image_file", "img", "path", "jpg", "png")
CAPTION_COLUMNS = ("caption", "captions", "text", "txt", "title", "description", "sentence", "sentences", "raw")

_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")


def choose_column(where: str, names: Sequence[str], chosen: str | None, usual: Sequence[str], what: str) -> str:
    """The column to read: the one chosen, or the first of the usual names (in any case) that is there.

    Raises:
        ValueError: it is not there, or none of the usual ones; the columns are listed.
    """
    if chosen is not None:
        if chosen in names:
            return chosen
        raise ValueError(f"{where}: column {chosen} is missing; there are {', '.join(names)}")
    lower = {name.lower(): name for name in reversed(names)}
    for name in usual:
        if name in lower:
            return lower[name]
    alone = what == "image" and not set(lower) - set(CAPTION_COLUMNS)
    raise ValueError(
        f"{where}: there are captions and no images; captions alone are for `clipmend encode MODEL texts`, and a fit without "
        "images is `clipmend fit MODEL --text-only`"
        if alone
        else f"{where}: no column is called as {what}s usually are; choose one of {', '.join(names)} as {what}_column "
        f"(--{what}-column)"
    )


def captions_of(value: Any, where: str, column: str) -> tuple[str, ...]:
    """The captions in a cell: a text or a list of texts.

    Raises:
        ValueError: missing (``None``, NaN), of another type, or blank.
    """
    items = value if isinstance(value, (list, tuple)) else [value]
    if not items:
        raise EmptyCaption(f"{where}: {column} is an empty list")
    for item in items:
        if item is None or item != item:  # NaN is the one value that differs from itself
            raise EmptyCaption(f"{where}: {column} is missing ({item})")
        if not isinstance(item, str):
            raise ValueError(f"{where}: {column} is {item!r:.60}, not text")
        if not item.strip():
            raise EmptyCaption(f"{where}: {column} is empty, or one of its texts is")
        if not is_text(item):
            raise ValueError(f"{where}: {column} is no valid Unicode: {item!r:.60}")
    return tuple(item.strip() for item in items)


def image_of(value: Any, where: str, column: str) -> tuple[str, bytes | None]:
    """The image in a cell: its name and, where the cell holds them, its bytes.

    Raises:
        ValueError: missing, blank, of another type, or no name that a file can have.
    """
    if isinstance(value, dict) and ("bytes" in value or "path" in value):
        name, content = value.get("path") or "", value.get("bytes")
        if isinstance(content, (bytes, bytearray, memoryview)):
            return (name if isinstance(name, str) and name else where), bytes(content)
        if content is not None:
            raise ValueError(f"{where}: {column} has bytes that are {content!r:.60}")
        value = name or None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return where, bytes(value)
    if value is None or value != value:
        raise ValueError(f"{where}: {column} is missing ({value})")
    if not isinstance(value, str):
        raise ValueError(f"{where}: {column} is {value!r:.60}, neither a path nor an image's bytes")
    if not value.strip():
        raise ValueError(f"{where}: {column} is empty")
    if "\0" in value or not is_text(value):
        raise ValueError(f"{where}: {column} is {value!r:.60}, which no file can be called")
    return value.strip(), None


@register(
    "table",
    "a CSV, TSV, JSON-lines or Parquet file with an image and a caption column",
    lambda path: path.is_file() and path.suffix.lower() in _SUFFIXES,
    order=40,
)
def read_table_of_captions(
    path: str | Path,
    *,
    image_column: str | None = None,
    caption_column: str | None = None,
    caption_lists: bool = False,
    delimiter: str | None = None,
    image_root: str | Path | None = None,
    on_error: OnError = "raise",
) -> Source:
    """Stream a table of images and captions.

    Args:
        path: ``.csv``, ``.tsv``, ``.jsonl`` (``.ndjson``) or ``.parquet`` (``.pq``).
        image_column: column with the image's path (default: the usual names, ``image``, ``filepath``, ``file_name``, ...).
        caption_column: column with the captions (default: ``caption``, ``text``, ``title``, ...).
        caption_lists: cells of a CSV or TSV are lists of captions (always so for a column called ``captions``).
        delimiter: what separates the fields of a CSV or TSV (default: a comma, a tab).
        image_root: folder that image names start from (default: the table's own).
        on_error: ``"raise"`` or ``"skip"`` for rows that cannot be used.

    Raises:
        FileNotFoundError: no such file.
        ImportError: Parquet without pyarrow (the extra is named).
        ValueError: another kind of file; (while reading) naming file and row: a column missing, a cell missing, blank or of another
            type, a broken row.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ValueError(f"{path}: not a table that can be read ({', '.join(_SUFFIXES)}); rename it to what it is")
    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"delimiter is {delimiter!r}; it must be one character")
    if suffix in (".parquet", ".pq"):
        _parquet()  # so that its absence is known at once

    def records(log: Log) -> Iterator[Record]:
        unit = "row" if suffix in (".parquet", ".pq") else "line"
        for line, image, captions in _cells(path, suffix, image_column, caption_column, caption_lists, delimiter, log):
            where = f"{path}: {unit} {line}"
            try:
                name, content = image_of(image[1], where, image[0])
                texts = captions_of(captions[1], where, captions[0])
            except ValueError as error:
                log.bad(error)
                continue
            yield Record(name, texts, where=where, content=content)

    return Source(path.stem, records, image_root=beside(path) if image_root is None else image_root, on_error=on_error)


Cell = tuple[str, Any]


def _cells(
    path: Path,
    suffix: str,
    image_column: str | None,
    caption_column: str | None,
    caption_lists: bool,
    delimiter: str | None,
    log: Log,
) -> Iterator[tuple[int, Cell, Cell]]:
    """``(line, (column, image), (column, captions))`` of each row."""

    def chosen(names: Sequence[str]) -> tuple[str, str]:
        image = choose_column(str(path), names, image_column, IMAGE_COLUMNS, "image")
        return image, choose_column(str(path), names, caption_column, CAPTION_COLUMNS, "caption")

    on_bad = log.bad if log.on_error == "skip" else None
    if suffix in (".csv", ".tsv"):
        header, rows = open_table(path, delimiter=delimiter or ("\t" if suffix == ".tsv" else ","), on_bad=on_bad)
        image, caption = chosen(header)
        lists = caption_lists or caption == "captions"
        for line, row in rows:
            cell: Any = row[caption]
            if lists:
                try:
                    cell = texts_field(path, line, cell, caption)
                except ValueError as error:
                    log.bad(error)
                    continue
            yield line, (image, row[image]), (caption, cell)
    elif suffix in (".jsonl", ".ndjson"):
        columns = None
        for line, entry in json_lines(path, on_bad=on_bad):
            columns = columns or chosen(list(entry))
            missing = [name for name in columns if name not in entry]
            if missing:
                log.bad(problem(path, line, f"{', '.join(missing)} is missing; the line has {', '.join(entry)}"))
                continue
            yield line, (columns[0], entry[columns[0]]), (columns[1], entry[columns[1]])
        if columns is None:
            raise ValueError(f"{path}: holds no JSON object")
    else:
        yield from _parquet_cells(path, chosen, log)


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet", "reading Parquet") from error
    return pyarrow.parquet


def _parquet_cells(path: Path, chosen: Any, log: Log) -> Iterable[tuple[int, Cell, Cell]]:
    parquet = _parquet()
    from pyarrow.lib import ArrowException

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            image, caption = chosen(file.schema_arrow.names)
            # Small batches: a row may hold an image of several megabytes.
            for batch in file.iter_batches(batch_size=64, columns=[image, caption]):
                for row in _rows_of(batch):
                    number += 1
                    if isinstance(row, Exception):
                        log.bad(ValueError(f"{path}: row {number}: cannot be read: {row}"))
                    else:
                        yield number, (image, row[image]), (caption, row[caption])
    except (ArrowException, OSError, UnicodeDecodeError) as error:  # the latter of a column's name
        log.bad(ValueError(f"{path}: broken Parquet after row {number}: {error}; fetch or export it again"))
        return
    if not number:
        raise ValueError(f"{path}: holds no rows")


def _rows_of(batch: Any) -> Iterator[Any]:
    """The rows of a batch, each as a mapping, or as the error that it gives (a text that is not UTF-8, say)."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):
        rows = [_row_of(batch, k) for k in range(batch.num_rows)]
    yield from rows


def _row_of(batch: Any, k: int) -> Any:
    try:
        return batch.slice(k, 1).to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return error
