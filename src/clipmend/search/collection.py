"""Images to filter: a folder, a list, a table, an index, or data that a reader knows; streamed, what cannot be read is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from clipmend.data.ahead import read_ahead
from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, display_path, find_image, open_image
from clipmend.data.readers.base import READERS, Record, read
from clipmend.data.readers.tabular import IMAGE_COLUMNS, choose_column
from clipmend.data.tables import json_lines, open_table
from clipmend.search import store
from clipmend.search.embed import embed_stream, progress_bar
from clipmend.search.index import ImageIndex
from clipmend.search.vectors import list_images

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["Collection", "open_collection"]

_ROWS = 8192


@dataclass
class Collection:
    """A set of images, ready to be embedded.

    Args:
        name: of the data, for messages.
        files: name and file of each image, where they are files that are known beforehand.
        index: the index they lie in, instead.
        records: or what gives records, with the folder they start from.
        root: that folder.
        skipped: name and reason of each image that is left out; grows while :meth:`vectors` runs.
        repeated: rows that name an earlier image, which is taken once.
    """

    name: str
    files: list[tuple[str, Path]] = field(default_factory=list)
    index: ImageIndex | None = None
    records: Callable[[], Iterator[Record]] | None = None
    root: Path | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    repeated: int = 0

    def vectors(
        self,
        encoder: DualEncoder,
        *,
        batch_size: int = 32,
        max_pixels: int | None = DEFAULT_MAX_PIXELS,
        workers: int | None = None,
        progress: bool = False,
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Names and unit vectors ``[n, D]`` (float32) of the images that can be read, a batch at a time.

        Args:
            encoder: any encoder with an image side; for an index, one over the same.
            batch_size: images a forward pass.
            max_pixels: see :func:`clipmend.data.images.open_image`.
            workers: threads that read and decode (default: one a core, at most 8).
            progress: show a bar on a terminal.

        Raises:
            ImageIndexError: the index was made by another image side.
        """
        self.skipped, self.repeated = [], 0
        if self.index is not None:
            self.index.check(encoder)
            self.skipped = sorted(self.index.skipped.items())
            for first in range(0, len(self.index), _ROWS):
                positions = np.arange(first, min(first + _ROWS, len(self.index)))
                names = [entry.path for entry in self.index.entries[first : first + len(positions)]]
                yield names, self.index.embeddings(positions)
            return
        yield from self._embedded(encoder, batch_size, max_pixels, workers, progress)

    def _embedded(
        self, encoder: DualEncoder, batch_size: int, max_pixels: int | None, workers: int | None, progress: bool
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        def opened(item: tuple[str, Path | Record]) -> tuple[str, Image.Image | ImageError]:
            name, source = item
            try:
                if isinstance(source, Record):
                    return name, source.open(self.root, max_pixels=max_pixels)
                return name, open_image(source, max_pixels=max_pixels)
            except ImageError as error:
                return name, error

        total = len(self.files) if self.records is None else 0
        with progress_bar("Scoring", total, progress) as advance:

            def readable() -> Iterator[tuple[str, Image.Image]]:
                for name, image in read_ahead(opened, self._items(), workers):
                    advance()
                    if isinstance(image, ImageError):
                        self.skipped.append((name, image.reason))
                    else:
                        yield name, image

            names: list[str] = []
            rows: list[np.ndarray] = []
            for name, _, vector in embed_stream(encoder, readable(), batch_size):
                if isinstance(vector, str):
                    self.skipped.append((name, vector))
                    continue
                names.append(name)
                rows.append(vector)
                if len(names) >= max(batch_size, 256):
                    yield names, np.stack(rows)
                    names, rows = [], []
            if names:
                yield names, np.stack(rows)

    def _items(self) -> Iterator[tuple[str, Path | Record]]:
        seen: set[str] = set()
        pairs: Iterator[tuple[str, Path | Record]] = iter(self.files) if self.records is None else self._of_records()
        for name, source in pairs:
            if name in seen:
                self.repeated += 1
                continue
            seen.add(name)
            yield name, source

    def _of_records(self) -> Iterator[tuple[str, Record]]:
        assert self.records is not None
        for record in self.records():
            if record.media == "video":
                raise ValueError(f"{record.where}: {record.image} is a video; only images are filtered")
            yield record.image, record

    def find(self, name: str) -> Path | None:
        """The file that a name of this collection means, where there is one."""
        if self.index is not None:
            return find_image(name, self.index.root)
        known = dict(self.files).get(name) if self.files else None
        return known if known is not None else find_image(name, self.root or Path())


def open_collection(
    source: str | os.PathLike[str], *, column: str | None = None, image_root: str | Path | None = None
) -> Collection:
    """What ``source`` is, looked at and not yet read.

    Args:
        source: a folder of images; an index; a list (``.txt``, one path a line) or table (``.csv``, ``.tsv``, ``.jsonl``,
            ``.parquet``) that names images; or ``READER:PATH`` for any data a reader knows (``webdataset:shards/``).
        column: of a table, the one with the images (default: the usual names, ``image``, ``filepath``, ...).
        image_root: folder that names start from (default: the list's own).

    Raises:
        ValueError, OSError: nothing there, no images, no such column; with file and line.
        ImportError: Parquet without pyarrow.
    """
    text = os.fspath(source)
    reader = text.partition(":")[0]
    if isinstance(text, str) and ":" in text and reader in READERS:
        options: dict[str, Any] = {} if image_root is None else {"image_root": image_root}
        if column is not None:
            options["image_column"] = column
        opened = read(text, **options)
        return Collection(opened.name, records=lambda: iter(opened), root=opened.image_root)
    path = Path(text)
    root = None if image_root is None else Path(image_root)
    if path.is_dir() and (path / store.MANIFEST).is_file():
        if column is not None:
            raise ValueError(f"{display_path(path)} is an index; columns are of tables")
        index = ImageIndex.open(path)
        return Collection(str(path), index=index, root=index.root)
    suffix = path.suffix.lower()
    if path.is_dir() or suffix not in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq"):
        rows = list_images(path, column=column)
        files = [(name, root / name if root is not None else Path(file)) for name, file in zip(rows.ids, rows.values, strict=True)]
        return Collection(str(path), files, root=path if path.is_dir() else root or path.parent)
    if not path.is_file():
        raise FileNotFoundError(f"{display_path(path)}: no such file or folder")
    base = root if root is not None else path.parent
    files = [(name, find_image(name, base) or base / name) for name in _names(path, suffix, column)]
    if not files:
        raise ValueError(f"{display_path(path)}: names no image")
    return Collection(str(path), files, root=base)


def _names(path: Path, suffix: str, column: str | None) -> list[str]:
    """The image names in a table."""
    if suffix in (".csv", ".tsv"):
        header, rows = open_table(path, delimiter="\t" if suffix == ".tsv" else ",")
        chosen = (
            header[0] if column is None and len(header) == 1 else choose_column(str(path), header, column, IMAGE_COLUMNS, "image")
        )
        return [_text(row[chosen], f"{path}: line {line}", chosen) for line, row in rows]
    if suffix in (".jsonl", ".ndjson"):
        names, chosen = [], ""
        for line, entry in json_lines(path):
            chosen = chosen or choose_column(str(path), list(entry), column, IMAGE_COLUMNS, "image")
            names.append(_text(entry.get(chosen), f"{path}: line {line}", chosen))
        return names
    from clipmend.search.vectors import _pyarrow

    _pyarrow()
    from pyarrow import parquet
    from pyarrow.lib import ArrowException

    try:
        with parquet.ParquetFile(path) as file:
            chosen = choose_column(str(path), file.schema_arrow.names, column, IMAGE_COLUMNS, "image")
            cells = parquet.read_table(path, columns=[chosen])[chosen].to_pylist()
    except ArrowException as error:
        raise ValueError(f"{path}: broken Parquet: {error}; fetch or export it again") from error
    if any(isinstance(cell, (bytes, dict)) for cell in cells):
        raise ValueError(f"{path}: column {chosen} holds the images themselves; give it as table:{path}")
    return [_text(cell, f"{path}: row {row}", chosen) for row, cell in enumerate(cells, 1)]


def _text(value: Any, where: str, column: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {column} is {value!r:.60}, not the name of an image")
    return value.strip()
