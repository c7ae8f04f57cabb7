"""Long-DCI (Najdenkoska et al., TULIP, ICLR 2025): DCI's photographs with their paragraphs, as one table ``filepath, title``.

The table is tab-separated, whatever its name ends in: the script that makes it writes ``dci_long.csv``. It holds DCI's training
part as well as its test part, so that whoever trained on DCI has seen most of it; evaluation reports the unseen part apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clipmend.data.dense.base import DenseRow, caption_text, dense_set, locate
from clipmend.data.readers.base import Log
from clipmend.data.tables import open_table, text_field

__all__ = ["long_dci_rows"]

NAMES = ("dci_long.csv", "dci_long.tsv", "long_dci.tsv", "long_dci.csv", "Long-DCI.tsv")


@dense_set(
    "long-dci",
    "Long-DCI: a table filepath, title (dci_long.csv), with DCI's photos",
    detects=lambda path: any((path / name).is_file() for name in NAMES) or path.name in NAMES,
)
def long_dci_rows(path: Path, splits: tuple[str, ...], root: Path | None, log: Log) -> Iterator[DenseRow]:
    """Stream Long-DCI.

    Args:
        path: the table, or the folder that holds it under its usual name.
        splits: there are none; only ``"all"`` can be read.
        root: folder of the photographs (default: DCI's ``photos/`` beside the table, or the table's own folder).
        log: takes what cannot be used.
    """
    if splits:
        raise ValueError(f"Long-DCI has no splits, so there is no {'+'.join(splits)}; read all")
    table = path
    if path.is_dir():
        table = next((path / name for name in NAMES if (path / name).is_file()), path / NAMES[0])
    if not table.is_file():
        raise FileNotFoundError(f"{table}: no such file; give the table itself")
    with table.open("rb") as file:
        head = file.readline(1 << 16)
    delimiter = "\t" if b"\t" in head else ","
    on_bad = log.bad if log.on_error == "skip" else None
    _, rows = open_table(table, ("filepath", "title"), delimiter=delimiter, on_bad=on_bad)
    photos = root or table.parent / "photos"
    more = (table.parent / "densely_captioned_images" / "photos", table.parent)
    for line, row in rows:
        where = f"{table}: line {line}"
        try:
            name = text_field(table, line, row, "filepath")
            if "\0" in name:
                raise ValueError(f"{where}: filepath is {name!r:.60}, which no file can be called")
            text = caption_text(row["title"], where, "title")
        except ValueError as error:
            log.bad(error)
            continue
        yield DenseRow(name, text, where, locate(photos, name, *more))
