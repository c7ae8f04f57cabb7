"""A folder of one's own images: with a table of captions beside them, or a ``.txt`` for each; what ``clipmend finetune`` takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from clipmend.data.dense.base import DenseRow, caption_text, dense_set, locate
from clipmend.data.dense.table import table_rows
from clipmend.data.readers.base import Log
from clipmend.data.readers.folder import read_folder, table_inside

__all__ = ["folder_rows"]


@dense_set("folder", "a folder of images with captions.csv, or with a .txt beside each")
def folder_rows(
    path: Path,
    splits: tuple[str, ...],
    root: Path | None,
    log: Log,
    *,
    captions: Literal["whole", "lines"] = "whole",
    caption_suffix: str = ".txt",
    image_column: str | None = None,
    caption_column: str | None = None,
    delimiter: str | None = None,
) -> Iterator[DenseRow]:
    """Stream a folder, as :func:`clipmend.dense.finetune` reads it: its table if it holds one, else the text files.

    Args:
        path: the folder; or one that holds ``image`` and ``caption``.
        splits: a folder is one split; only ``"all"`` can be read.
        root: folder that image names start from; the text files stay where they are (default: the folder's own).
        log: takes what cannot be used: an image without its text file, an empty one, a bad row of the table.
        captions: ``"whole"``: a text file is one caption; ``"lines"``: one a line.
        caption_suffix: of the text files.
        image_column, caption_column, delimiter: of the table, as for the set ``table``.
    """
    if splits:
        raise ValueError(f"a folder is one split, so there is no {'+'.join(splits)} in it; read all")
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; give the folder of the images, or read a table with --set table")
    table = table_inside(path)
    if table is not None:
        columns = {"image_column": image_column, "caption_column": caption_column, "delimiter": delimiter}
        yield from table_rows(table, splits, root or path, log, **columns)
        return
    source = read_folder(path, captions=captions, caption_suffix=caption_suffix, on_error=log.on_error)
    base = source.image_root or path
    captioned = False
    for record in source.loop(log):
        captioned = captioned or bool(record.captions)
        for caption in record.captions:
            file = locate(base if root is None else root, record.image)
            yield DenseRow(record.image, caption_text(caption, record.where, "the caption"), record.where, file)
    if not captioned and not log.skipped:
        raise ValueError(f"{path}: no image has a {caption_suffix} beside it, and there is no captions.csv")
