"""Any table of images and captions: CSV, TSV, JSON lines, Parquet, with columns that may be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clipmend.data.dense.base import DenseRow, caption_text, dense_set, locate
from clipmend.data.readers.base import Log
from clipmend.data.readers.folder import table_inside
from clipmend.data.readers.tabular import read_table_of_captions

__all__ = ["table_rows"]


@dense_set("table", "any CSV, TSV, JSON-lines or Parquet file with an image and a caption column")
def table_rows(
    path: Path,
    splits: tuple[str, ...],
    root: Path | None,
    log: Log,
    *,
    image_column: str | None = None,
    caption_column: str | None = None,
    delimiter: str | None = None,
) -> Iterator[DenseRow]:
    """Stream a table (see :func:`clipmend.data.readers.tabular.read_table_of_captions`).

    Args:
        path: the file, or a folder that holds one called ``captions``, ``metadata`` or ``train`` (``captions.csv``, ...).
        splits: a table is one split; only ``"all"`` can be read.
        root: folder that image names start from (default: the table's own).
        log: takes what cannot be used.
        image_column, caption_column: their names (default: the usual ones).
        delimiter: between the fields of a CSV or TSV (default: a comma, a tab).
    """
    if splits:
        raise ValueError(f"a table is one split, so there is no {'+'.join(splits)} in it; read all")
    if path.is_dir():
        inside = table_inside(path)
        if inside is None:
            raise FileNotFoundError(
                f"{path}: a folder without captions.csv (or .tsv, .jsonl, .parquet; or metadata, train); give the table itself, "
                "or --set folder where each image has a .txt beside it"
            )
        path = inside
    source = read_table_of_captions(
        path, image_column=image_column, caption_column=caption_column, delimiter=delimiter, on_error=log.on_error
    )
    base = root or path.parent
    for record in source.loop(log):
        if record.content is not None:
            log.bad(ValueError(f"{record.where}: holds the image itself; a gallery is of files: write the images to a folder"))
            continue
        file = locate(base, record.image)
        for caption in record.captions:
            yield DenseRow(record.image, caption_text(caption, record.where, "caption"), record.where, file)
