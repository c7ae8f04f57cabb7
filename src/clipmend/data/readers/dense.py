"""Sets of dense captions as sources: ``docci:DIR``, ``dci:DIR``, ``long-dci:FILE`` and so on (``_SETS``).

What reads them is :mod:`clipmend.data.dense`; here they are records like any other, so that ``clipmend data check`` counts their
missing images, empty captions and captions too long for a model. Drawn scenes and plain tables have readers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clipmend.data.readers.base import Log, OnError, Record, Source, register

__all__: list[str] = []

_SETS = {
    "docci": "DOCCI: a folder with docci_descriptions.jsonlines and images/",
    "dci": "DCI: the folder with splits.json, annotations/ and photos/",
    "long-dci": "Long-DCI: a table filepath, title (dci_long.csv), with DCI's photos",
    "urban1k": "Urban-1K: a folder with image/ and caption/",
    "sharegpt4v": "ShareGPT4V: a JSON list of image and conversations",
    "vg-paragraphs": "Visual Genome paragraphs: a folder with paragraphs_v1.json and the files of the splits",
    "goal": "GOAL's JSON lists: filename, caption; or original_filename, original_caption, segment",
}


def _reader(name: str) -> Callable[..., Source]:
    def read_set(
        path: str | Path, *, split: str | None = None, image_root: str | Path | None = None, on_error: OnError = "raise"
    ) -> Source:
        from clipmend.data.dense import dense_rows

        options: dict[str, Any] = {"split": split, "image_root": image_root}
        dense_rows(name, path, **options)  # a wrong split is known at once

        def records(log: Log) -> Iterator[Record]:
            for row in dense_rows(name, path, log=log, **options):
                yield Record(str(row.path), (row.caption,), where=row.where)

        return Source(name, records, on_error=on_error)

    return read_set


def _detects(name: str) -> Callable[[Path], bool]:
    def detects(path: Path) -> bool:
        from clipmend.data.dense import DENSE_SETS  # imports the readers, so not at the top

        return DENSE_SETS[name].detects(path)

    return detects


for _name, _about in _SETS.items():
    register(_name, _about, _detects(_name), order=8)(_reader(_name))
