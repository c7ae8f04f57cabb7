"""``captions.csv`` of ``clipmend scenes`` and ``clipmend data negate``: captions with what each asserts and denies.

Some are about no image: whether such a caption is true of one follows from what the image shows. Their records name no image.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clipmend.data.folder import CAPTION_COLUMNS
from clipmend.data.readers.base import Log, OnError, Record, Source, register
from clipmend.data.tables import caption_field, open_table

__all__ = ["read_statements"]


def _looks_like(path: Path) -> bool:
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    with path.open("rb") as file:
        header = file.readline(100_000).decode("utf-8-sig", "replace")
    return {name.strip().strip('"') for name in header.split(",")} >= set(CAPTION_COLUMNS)


@register("statements", "captions.csv of clipmend scenes and clipmend data negate", _looks_like, order=11)
def read_statements(path: str | Path, *, image_root: str | Path | None = None, on_error: OnError = "raise") -> Source:
    """Stream captions, a record each.

    Args:
        path: the table.
        image_root: folder that image names start from (default: the table's own).
        on_error: ``"raise"`` or ``"skip"`` for rows that cannot be used.

    Raises:
        FileNotFoundError: no such file.
        ValueError: (while reading) naming file and line: a column missing, a blank caption.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")

    def records(log: Log) -> Iterator[Record]:
        without = 0
        _, rows = open_table(path, CAPTION_COLUMNS, on_bad=log.bad if log.on_error == "skip" else None)
        for line, row in rows:
            try:
                caption = caption_field(path, line, row, "caption")
            except ValueError as error:
                log.bad(error)
                continue
            without += not row["image"].strip()
            yield Record(row["image"].strip(), (caption,), where=f"{path}: line {line}")
        if without:
            log.note(f"{path.name}: {without:,} captions are about no image: their truth follows from what an image shows")

    return Source(path.stem, records, image_root=image_root if image_root is not None else path.parent, on_error=on_error)
