"""DOCCI (Onoe et al., ECCV 2024): JSON lines ``split, image_file, description``, one photograph a line.

The folder holds ``docci_descriptions.jsonlines`` and the photographs in ``images/``. Of the splits, ``test`` has 5,000 and
``test+qual_test`` the 5,100 that some papers report; ``train`` has 9,450.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from clipmend.data.dense.base import DenseRow, asked, caption_text, dense_set, json_field, locate
from clipmend.data.readers.base import Log
from clipmend.data.tables import json_lines

__all__ = ["SPLITS", "docci_rows"]

DESCRIPTIONS = "docci_descriptions.jsonlines"
SPLITS = ("train", "test", "qual_dev", "qual_test")


@dense_set(
    "docci",
    f"DOCCI: a folder with {DESCRIPTIONS} and images/",
    default="test",
    splits=SPLITS,
    detects=lambda path: (path / DESCRIPTIONS).is_file() or path.name == DESCRIPTIONS,
)
def docci_rows(path: Path, splits: tuple[str, ...], root: Path | None, log: Log) -> Iterator[DenseRow]:
    """Stream DOCCI.

    Args:
        path: the folder, or the file of descriptions.
        splits: of ``train``, ``test``, ``qual_dev`` and ``qual_test``.
        root: folder of the photographs (default: ``images/`` beside the descriptions).
        log: takes what cannot be used.
    """
    table = path / DESCRIPTIONS if path.is_dir() else path
    if not table.is_file():
        raise FileNotFoundError(f"{table}: no such file; give the folder that holds {DESCRIPTIONS}")
    photographs = root or table.parent / "images"
    for line, entry in json_lines(table, on_bad=log.bad if log.on_error == "skip" else None):
        where = f"{table}: line {line}"
        try:
            split = json_field(entry, where, "split")
            if split not in SPLITS:
                raise ValueError(f"{where}: split is {split!r}, none of {', '.join(SPLITS)}")
            if not asked(split, splits):
                continue
            name = json_field(entry, where, "image_file")
            text = caption_text(entry.get("description"), where, "description")
        except ValueError as error:
            log.bad(error)
            continue
        stem = PurePosixPath(name).stem
        yield DenseRow(name, text, where, locate(photographs, name, table.parent), stem, split=split, known_as=f"docci {stem}")
