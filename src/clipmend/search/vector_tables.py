"""Vectors in files: ``.npy`` with a table beside, Parquet with a vector column, and the folders of ``clipmend features``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from clipmend.data.images import display_path
from clipmend.search.arrays import ArrayGallery
from clipmend.search.gallery import BASE_FIELDS, FieldType, GalleryError
from clipmend.search.tables import ArrowTexts, Column, Numbers, Rows, Texts, with_names

__all__ = ["columns_of_table", "open_features", "open_npy", "open_parquet"]

PATH_COLUMNS = ("path", "image_path", "filepath", "file_path", "filename", "file_name", "file", "image", "url", "key", "id")
"""Columns that say where an image lies, the most telling first."""
VECTOR_COLUMNS = ("vector", "embedding", "image_embedding", "img_emb", "embeddings", "emb")
IN_MEMORY = 1 << 30
"""Bytes of vectors of a Parquet file that are held in memory; more go to a temporary file, which is memory-mapped."""
_DIGEST = frozenset("0123456789abcdef")


def open_npy(path: str | os.PathLike[str], **options: Any) -> ArrayGallery:
    """Vectors of a ``.npy`` file, memory-mapped.

    What is known of the images is read from ``NAME.ids.jsonl`` beside it (as ``clipmend encode`` writes it: ``row``, ``id`` and
    more), else from ``NAME.parquet`` without vectors, one row a vector; else an image's id and path are its row's number.

    Args:
        path: the file.
        options: of :class:`ArrayGallery`.

    Raises:
        GalleryError: no such array, a table of another length.
        OSError: it cannot be read.
    """
    path = Path(path)
    vectors = load_array(path)
    listing, table = path.with_name(f"{path.stem}.ids.jsonl"), path.with_name(f"{path.stem}.parquet")
    rows: Rows | None = None
    if listing.is_file():
        rows = _rows_of_listing(listing, len(vectors), path)
    elif table.is_file():
        rows = rows_of_tables([read_table(table)], display_path(table), known=len(vectors))
    return ArrayGallery(vectors, rows, name=display_path(path), **options)


def load_array(path: Path) -> np.ndarray:
    """A ``.npy`` file, memory-mapped.

    Raises:
        GalleryError: it holds no array.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"{display_path(path)}: no such file") from None
    except (ValueError, EOFError) as error:
        raise GalleryError(f"{display_path(path)} is damaged, or no array of NumPy's: {error}") from error
    if not isinstance(array, np.ndarray):
        raise GalleryError(f"{display_path(path)} is an archive of arrays; give one .npy file")
    return array


def open_parquet(path: str | os.PathLike[str], *, vector_column: str | None = None, **options: Any) -> ArrayGallery:
    """A table with a column of vectors (lists of one length).

    An integer column ``id`` of distinct values gives the ids, else they are the rows' numbers; ``path``, ``image_path``, ``url``
    and the like give the paths, ``sha256`` the digests. All else that is text, number, time or truth value can be searched by.
    Vectors of more than 1 GB lie in a temporary file while the gallery is open.

    Args:
        path: the file.
        vector_column: which column has the vectors, where there are several.
        options: of :class:`ArrayGallery`.

    Raises:
        GalleryError: no such column, vectors that are missing or of several lengths, a damaged file.
        ImportError: Parquet without pyarrow.
    """
    path = Path(path)
    name = display_path(path)
    parquet = arrow_parquet()
    with _damage_named(path):
        file = parquet.ParquetFile(path, memory_map=True)
    with file:
        column = _vector_column(name, file.schema_arrow, vector_column)
        with _damage_named(path):
            vectors = _read_vectors(name, file, column)
            others = [field for field in file.schema_arrow.names if field != column]
            table = file.read(columns=others) if others else None
        metadata = {key.decode("utf-8", "replace"): value for key, value in (file.schema_arrow.metadata or {}).items()}
    rows = Rows(len(vectors)) if table is None else rows_of_tables([table], name)
    if not options.get("backbone") and not metadata.get("patch"):
        options["backbone"] = metadata.get("model", b"").decode("utf-8", "replace")  # as 'clipmend encode' writes it
    return ArrayGallery(vectors, rows, name=name, **options)


def open_features(path: str | os.PathLike[str], **options: Any) -> ArrayGallery:
    """The images of a folder that ``clipmend features`` made; what it skipped is left out.

    Ids are the rows of the features, as in ``images.jsonl``.

    Args:
        path: the folder, or its sub-folder ``features``.
        options: of :class:`ArrayGallery`.

    Raises:
        GalleryError: no finished image features.
    """
    from clipmend.features.survey import read_places
    from clipmend.negation.units import read_manifest, read_units

    folder = Path(path)
    folder = folder if (folder / "images").is_dir() and not (folder / "features").is_dir() else folder / "features"
    try:
        manifest = read_manifest(folder / "images", "image features")
        if manifest is None:
            raise GalleryError(
                f"{display_path(path)} holds no image features; make them: clipmend features MODEL --data DATA -o DIR"
            )
        units = read_units(folder / "images", manifest, "image features")
        places = read_places(folder / "images.jsonl")
    except GalleryError:
        raise
    except (ValueError, FileNotFoundError) as error:
        raise GalleryError(str(error)) from error
    rows = Rows(len(places), paths=Texts(place.image for place in places), sha256=Texts(place.sha256 or None for place in places))
    known = {"backbone": manifest.get("backbone", ""), "image_digest": manifest["identity"].get("backbone", {}).get("image", "")}
    return ArrayGallery(
        [unit["embedding"] for unit in units] or np.zeros((0, manifest["identity"]["embed_dim"]), np.float32),
        with_names(rows), name=display_path(path), **{**options, **known, "skip_bad": True},
    )  # fmt: skip


def arrow_parquet() -> Any:
    """``pyarrow.parquet``.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("reading Parquet needs pyarrow: pip install 'clipmend[parquet]'") from None
    return pyarrow.parquet


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """A Parquet file as ``pyarrow.Table``.

    Raises:
        GalleryError: it is damaged.
    """
    parquet = arrow_parquet()
    with _damage_named(path):
        return parquet.read_table(path, columns=columns, memory_map=True)


class _damage_named:
    """What Arrow says of a broken file, with its name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        from pyarrow.lib import ArrowException

        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{display_path(self.path)}: no such file") from None
        if isinstance(error, ArrowException) or (isinstance(error, OSError) and error.errno is None):
            raise GalleryError(f"{display_path(self.path)} cannot be read as Parquet: {error}") from error


def rows_of_tables(tables: Sequence[Any], name: str, known: int | None = None) -> Rows:
    """What tables of the same images, one after another, say of them.

    Args:
        tables: ``pyarrow.Table`` each; a column that some lack is missing in their rows.
        name: for messages.
        known: how many vectors there are.

    Raises:
        GalleryError: another number of rows; a column that is of one type here, of another there.
    """
    import pyarrow

    try:
        table = pyarrow.concat_tables(tables, promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise GalleryError(f"{name}: its tables do not fit together: {error}") from error
    if known is not None and table.num_rows != known:
        raise GalleryError(f"{name} has {table.num_rows:,} rows, and there are {known:,} vectors: they do not belong together")
    columns = columns_of_table(table)
    spelt = next((column for column in PATH_COLUMNS if column in columns and columns[column].type == "text"), None)
    paths = None if spelt is None else columns.pop(spelt)
    if paths is None and "key" in table.column_names:
        paths = ArrowTexts(table["key"].cast(pyarrow.string()))
    rows = Rows(table.num_rows, paths=paths)
    digests = columns.get("sha256")
    if digests is not None and _are_digests(digests):
        rows.sha256 = columns.pop("sha256")
    if "id" in columns and pyarrow.types.is_integer(table.schema.field("id").type):
        ids = table["id"]
        if not ids.null_count:
            values = ids.to_numpy().astype(np.int64)
            if (not len(values) or values.min() >= 0) and len(np.unique(values)) == len(values):
                rows.ids = values
                columns.pop("id")
    for taken in ("path", "sha256"):  # what an Item has already
        columns.pop(taken, None)
    rows.columns = columns
    return with_names(rows)


def columns_of_table(table: Any) -> dict[str, Column]:
    """The columns of a ``pyarrow.Table`` that can be searched by: texts, numbers, times and truth values; lists are left out."""
    import pyarrow
    from pyarrow import compute, types

    columns: dict[str, Column] = {}
    for number, field in enumerate(table.schema):
        kind, values = field.type, table.column(number)
        if table.schema.names.count(field.name) > 1 or field.name.startswith("__index_level_"):
            continue
        if types.is_dictionary(kind):
            kind, values = kind.value_type, values.cast(kind.value_type)
        if types.is_boolean(kind):
            kind, values = pyarrow.string(), compute.if_else(values, "true", "false")
        if types.is_string(kind) or types.is_large_string(kind):
            columns[field.name] = ArrowTexts(values)
        elif types.is_timestamp(kind) or types.is_date(kind):
            moments = values.cast(pyarrow.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pyarrow.int64())
            seconds = _floats(moments) / 1e6
            columns[field.name] = Numbers(seconds if getattr(kind, "tz", None) else _of_local(seconds), "time")
        elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            base: FieldType = BASE_FIELDS.get(field.name, "number")
            columns[field.name] = Numbers(_floats(values), "number" if base in ("text", "folder") else base)
    return columns


def _of_local(seconds: np.ndarray) -> np.ndarray:
    """Seconds since 1970 of times without a zone: this machine's local time, as everywhere else."""
    distinct, which = np.unique(seconds, return_inverse=True)
    moments = np.array([_local(value) for value in distinct.tolist()], np.float64)
    return moments[which].reshape(seconds.shape)


def _local(seconds: float) -> float:
    try:
        return (datetime(1970, 1, 1) + timedelta(seconds=seconds)).timestamp()
    except (ValueError, OverflowError, OSError):  # NaN, or outside the calendar
        return seconds


def _floats(values: Any) -> np.ndarray:
    import pyarrow

    return np.asarray(values.cast(pyarrow.float64(), safe=False).to_numpy(), np.float64)  # null becomes NaN


def _are_digests(column: Column) -> bool:
    values = column.block(0, min(len(column), 1000)).tolist()
    return all(value is None or (isinstance(value, str) and len(value) == 64 and set(value) <= _DIGEST) for value in values)


def _vector_column(name: str, schema: Any, wanted: str | None) -> str:
    from pyarrow import types

    def holds_vectors(kind: Any) -> bool:
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return lists and types.is_floating(kind.value_type)

    found = [field.name for field in schema if holds_vectors(field.type)]
    told = ", ".join(repr(column) for column in schema.names)
    if wanted is not None:
        if wanted not in found:
            raise GalleryError(f"{name} has no column {wanted!r} of vectors (lists of floating-point numbers); its columns: {told}")
        return wanted
    if not found:
        raise GalleryError(f"{name} has no column of vectors (lists of floating-point numbers); its columns: {told}")
    usual = [column for column in VECTOR_COLUMNS if column in found]
    if len(found) > 1 and not usual:
        raise GalleryError(f"{name} has several columns of vectors ({', '.join(found)}): choose one with vector_column=")
    return usual[0] if usual else found[0]


def _read_vectors(name: str, file: Any, column: str) -> np.ndarray:
    """All vectors; those of half precision stay so."""
    vectors: np.ndarray | None = None
    row = 0
    for batch in file.iter_batches(batch_size=16_384, columns=[column]):
        values = batch.column(0)
        if values.null_count:
            raise GalleryError(f"{name}: row {row + values.is_null().to_pylist().index(True)} has no vector in {column!r}")
        flat = values.flatten().to_numpy(zero_copy_only=False)
        width = len(flat) // max(len(values), 1)
        if vectors is None:
            dtype = np.float16 if flat.dtype == np.float16 else np.float32
            shape = (file.metadata.num_rows, width)
            vectors = np.empty(shape, dtype) if np.prod(shape) * np.dtype(dtype).itemsize <= IN_MEMORY else _spooled(shape, dtype)
        if len(flat) != len(values) * vectors.shape[1] or not _equally_long(values, vectors.shape[1]):
            raise GalleryError(f"{name}: the vectors of {column!r} are not all of one length (near row {row})")
        vectors[row : row + len(values)] = flat.reshape(len(values), -1)
        row += len(values)
    if vectors is None:
        raise GalleryError(f"{name} holds no rows")
    return vectors


def _equally_long(values: Any, width: int) -> bool:
    from pyarrow import compute, types

    if types.is_fixed_size_list(values.type):
        return bool(values.type.list_size == width)
    return bool(compute.all(compute.equal(compute.list_value_length(values), width)).as_py())


def _spooled(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the map holds it; the system removes it with the last reference)
    return np.memmap(file, dtype, "w+", shape=shape)


def _rows_of_listing(listing: Path, count: int, vectors: Path) -> Rows:
    name = display_path(listing)
    others: dict[str, list[Any]] = {}

    def read() -> Iterator[str]:
        with open(listing, encoding="utf-8") as file:
            for number, line in enumerate(file):
                row = _listed(line, name, number)
                for key in row.keys() | others.keys():
                    if key not in ("row", "id"):
                        others.setdefault(key, [None] * number).append(row.get(key))
                yield str(row["id"])

    try:
        paths = Texts(read())
    except UnicodeDecodeError as error:
        raise GalleryError(f"{name} is not UTF-8 ({error.reason})") from error
    if len(paths) != count:
        raise GalleryError(
            f"{name} has {len(paths):,} lines, and {display_path(vectors)} {count:,} vectors: they do not belong together"
        )
    rows = Rows(count, paths=paths)
    for key, values in others.items():
        if key not in ("path", "sha256"):
            column = _column_of(values)
            if column is not None:
                rows.columns[key] = column
    return with_names(rows)


def _listed(line: str, name: str, number: int) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise GalleryError(f"{name}: line {number + 1} is no JSON ({error})") from error
    if not isinstance(row, dict) or "id" not in row:
        raise GalleryError(f"{name}: line {number + 1} has no 'id'")
    if row.get("row", number) != number:
        raise GalleryError(f"{name}: line {number + 1} is of row {row['row']}, and should be of row {number}")
    return row


def _column_of(values: list[Any]) -> Column | None:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str}:
        return Texts(values)
    if kinds <= {int, float}:
        try:
            return Numbers(np.asarray([np.nan if value is None else float(value) for value in values], np.float64))
        except OverflowError:  # JSON's whole numbers have no end
            return Texts(None if value is None else str(value) for value in values)
    return None
