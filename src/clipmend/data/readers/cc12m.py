"""CC12M-NegCap and CC12M-NegMCQ, NegBench's training tables, and tables made like them.

The authors publish the scripts that make these tables, not the tables (some 30 and 40 million captions); so the columns here are
those that the scripts write and their training code reads, and each can be chosen:

- NegCap: ``filepath, caption, positive_objects, negative_objects, negative_captions``, the last three as Python list literals (read
  as data, never run); one row an image, sharded as ``..._neg_captions_START_END.csv``. Rows whose model output was lost have
  an empty ``negative_captions``. A flat table (``filepath, caption``; one caption a row, as the training code reads) is read too.
- NegMCQ: the columns of NegBench's multiple choice, with the right option at 0.

A folder is read shard by shard, in order of name, one row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clipmend.data.readers.base import Log, OnError, Record, Source, beside, files_of, register
from clipmend.data.readers.negbench import NegBenchTable, choice_rows, class_lists
from clipmend.data.tables import caption_field, open_table, text_field, texts_field

__all__ = ["read_negcap", "read_negmcq"]

_SUFFIXES = (".csv", ".tsv")


def _has_negative_captions(path: Path) -> bool:
    if path.is_dir():
        return any("_neg_captions" in p.name for p in path.glob("*.csv"))
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        return False
    with path.open("rb") as file:
        return b"negative_captions" in file.readline(100_000)


@register("cc12m-negcap", "CC12M-NegCap: CSV shards of captions with negated captions", _has_negative_captions, order=20)
def read_negcap(
    path: str | Path,
    *,
    image_column: str = "filepath",
    caption_column: str = "caption",
    negated_column: str | None = "negative_captions",
    image_root: str | Path | None = None,
    on_error: OnError = "raise",
) -> Source:
    """Stream CC12M-NegCap.

    Args:
        path: a CSV (or TSV), or a folder of them.
        image_column: column with the image's path.
        caption_column: column with the original caption.
        negated_column: column with the list of negated captions; ``None`` for a flat table without one.
        image_root: folder that image names start from (default: the table's own).
        on_error: ``"raise"`` or ``"skip"`` for rows that cannot be used.

    Returns:
        Records with ``captions`` (the original), ``negated``, and ``present`` and ``absent`` where the table has the class lists.

    Raises:
        FileNotFoundError: no such file, or no table in the folder.
        ValueError: (while reading) naming file and line: a column missing, a blank caption, a list that is none.
    """
    shards = files_of(Path(path), _SUFFIXES, "table")
    required = [image_column, caption_column, *([negated_column] if negated_column else [])]

    def records(log: Log) -> Iterator[Record]:
        for shard in shards:
            _, rows = open_table(
                shard,
                required,
                delimiter="\t" if shard.suffix.lower() == ".tsv" else ",",
                on_bad=log.bad if log.on_error == "skip" else None,
            )
            without = 0
            for line, row in rows:
                try:
                    present, absent = class_lists(shard, line, row)
                    negated = texts_field(shard, line, row[negated_column], negated_column, empty=True) if negated_column else []
                    record = Record(
                        text_field(shard, line, row, image_column),
                        (caption_field(shard, line, row, caption_column),),
                        tuple(negated),
                        present,
                        absent,
                        where=f"{shard}: line {line}",
                    )
                except ValueError as error:
                    log.bad(error)
                    continue
                without += not negated
                yield record
            if without and negated_column:
                log.note(f"{shard.name}: {without:,} rows have no negated caption")

    return Source(Path(path).stem, records, image_root=beside(path) if image_root is None else image_root, on_error=on_error)


@register("cc12m-negmcq", "CC12M-NegMCQ: CSV shards of four-way questions")
def read_negmcq(path: str | Path, *, image_root: str | Path | None = None, on_error: OnError = "raise") -> Source:
    """Stream CC12M-NegMCQ: the columns of NegBench's multiple choice, in one file or in shards.

    Args:
        path: a CSV, or a folder of them.
        image_root: folder that image names start from (default: the table's own).
        on_error: ``"raise"`` or ``"skip"`` for rows that cannot be used.

    Raises:
        FileNotFoundError: no such file, or no table in the folder.
        ValueError: (while reading) as :func:`~clipmend.data.readers.negbench.read_negbench`.
    """
    shards = files_of(Path(path), _SUFFIXES, "table")
    kind = NegBenchTable("choice", "image", "CC12M-NegMCQ", ("", "hybrid", "affirmative", "negative"))

    def records(log: Log) -> Iterator[Record]:
        for shard in shards:
            header, rows = open_table(
                shard,
                delimiter="\t" if shard.suffix.lower() == ".tsv" else ",",
                on_bad=log.bad if log.on_error == "skip" else None,
            )
            yield from choice_rows(shard, header, rows, kind, log)

    return Source(Path(path).stem, records, image_root=beside(path) if image_root is None else image_root, on_error=on_error)
