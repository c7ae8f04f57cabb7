"""The files of a filtered data set: scores as CSV or Parquet, and what made them."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clipmend.data.images import display_path
from clipmend.search.store import write_atomically

__all__ = ["check_filter_output", "write_filter"]

SUFFIXES = (".csv", ".parquet")


def check_filter_output(
    path: str | os.PathLike[str],
    listing: str | os.PathLike[str] | None = None,
    inputs: Sequence[str | os.PathLike[str]] = (),
    *,
    overwrite: bool = False,
) -> None:
    """Refuse, before any work, an output that cannot be written, or that would take the place of an input.

    Args:
        path: the table.
        listing: the list of what is kept, where one is written.
        inputs: what is read.
        overwrite: whether files that are there may be replaced.

    Raises:
        FileExistsError: one is there.
        ValueError: an ending other than .csv and .parquet, a file of ``inputs``, or one file for two outputs.
        IsADirectoryError, NotADirectoryError: a folder, or one to be made where a file is.
        ImportError: Parquet without pyarrow.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{display_path(path)}: scores are written as {' or '.join(SUFFIXES)}; choose one of these endings")
    outputs = [path, *(path.with_name(f"{path.stem}.{kind}.json") for kind in ("filter", "skipped"))]
    outputs += [] if listing is None else [Path(listing)]
    read = {os.path.realpath(file) for file in inputs}
    for number, file in enumerate(outputs):
        if file.is_dir():
            raise IsADirectoryError(f"{display_path(file)} is a folder; name a file")
        above = next((folder for folder in file.parents if folder.exists()), None)
        if above is not None and not above.is_dir():
            raise NotADirectoryError(f"{display_path(above)} is a file; {display_path(file)} cannot be written below it")
        if os.path.realpath(file) in read:
            raise ValueError(f"{display_path(file)} is read from, and would be overwritten; name another file")
        if os.path.realpath(file) in {os.path.realpath(other) for other in outputs[:number]}:
            raise ValueError(f"{display_path(file)} is written twice; name another file")
        if file.exists() and not overwrite:
            raise FileExistsError(f"{display_path(file)} exists already; name another file, or replace it with --overwrite")
    if path.suffix.lower() == ".parquet":
        from clipmend.search.vectors import _pyarrow

        _pyarrow()


def write_filter(
    path: Path,
    columns: Mapping[str, Sequence[Any]],
    about: Mapping[str, Any],
    skipped: Sequence[tuple[str, str]],
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Write a table, ``NAME.filter.json`` with all else and, where images were skipped, ``NAME.skipped.json``.

    Each is written beside its place and renamed into it, the table last.

    Returns:
        The files written, the table first.
    """
    check_filter_output(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside, listing = path.with_name(f"{path.stem}.filter.json"), path.with_name(f"{path.stem}.skipped.json")
    files = [path, beside]
    if skipped:
        told = [{"image": name, "reason": reason} for name, reason in skipped]
        write_atomically(listing, (json.dumps(told, indent=2) + "\n").encode("ascii"))
        files.append(listing)
    else:
        listing.unlink(missing_ok=True)  # of an earlier run, no longer true
    write_atomically(beside, (json.dumps(about, indent=2, allow_nan=False) + "\n").encode("ascii"))
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, columns)
    else:
        write_atomically(path, _csv(columns))
    return files


def _csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_cell(value) for value in row])
    return buffer.getvalue().encode("utf-8", "surrogateescape")


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value  # a number in full: written shorter, a score that is the threshold itself might fall below it


def _write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    import pyarrow
    from pyarrow import parquet

    from clipmend.search.vectors import _utf8

    arrays = {}
    for name, values in columns.items():
        if name == "image":
            arrays[name] = pyarrow.array([_utf8(value) for value in values], pyarrow.string())
        elif name.startswith("score"):
            arrays[name] = pyarrow.array(values, pyarrow.float32())
        else:
            arrays[name] = pyarrow.array(values)
    beside = path.with_name(path.name + ".tmp")
    try:
        parquet.write_table(pyarrow.table(arrays), beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
