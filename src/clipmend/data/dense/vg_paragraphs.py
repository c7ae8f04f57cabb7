"""Visual Genome paragraphs (Krause et al., CVPR 2017): ``paragraphs_v1.json``, a list of ``url, image_id, paragraph``.

Beside it lie ``train_split.json``, ``val_split.json`` and ``test_split.json``, lists of image ids (14,575, 2,487 and 2,489 images).
The images are Visual Genome's, in ``VG_100K`` and ``VG_100K_2`` as the end of ``url`` says, or in one folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from clipmend.data.dense.base import DenseRow, caption_text, dense_set, json_field, locate
from clipmend.data.json_stream import stream_list
from clipmend.data.readers.base import Log

__all__ = ["vg_rows"]

PARAGRAPHS = "paragraphs_v1.json"
SPLITS = ("train", "val", "test")


@dense_set(
    "vg-paragraphs",
    f"Visual Genome paragraphs: a folder with {PARAGRAPHS} and the files of the splits",
    default="test",
    splits=SPLITS,
    detects=lambda path: path.name == PARAGRAPHS or (path / PARAGRAPHS).is_file(),
)
def vg_rows(path: Path, splits: tuple[str, ...], root: Path | None, log: Log) -> Iterator[DenseRow]:
    """Stream Visual Genome's paragraphs.

    Args:
        path: the folder, or the file of paragraphs.
        splits: of ``train``, ``val`` and ``test``.
        root: folder with ``VG_100K`` and ``VG_100K_2``, or with the images (default: beside the paragraphs, or ``images/`` there).
        log: takes what cannot be used.
    """
    file = path / PARAGRAPHS if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give the folder that holds {PARAGRAPHS}")
    of = {image: split for split in splits for image in _ids(file.parent / f"{split}_split.json")}
    base = root or file.parent
    for index, entry in stream_list(file):
        where = f"{file}: [{index}]"
        try:
            number = json_field(entry, where, "image_id", int)
            if splits and number not in of:
                continue
            text = caption_text(entry.get("paragraph"), where, "paragraph")
            url = json_field(entry, where, "url") if entry.get("url") is not None else f"{number}.jpg"
        except ValueError as error:
            log.bad(error)
            continue
        name = "/".join(PurePosixPath(url).parts[-2:]) if url.count("/") > 1 else url
        yield DenseRow(
            str(number),
            text,
            where,
            locate(base, name, base / "images"),
            split=of.get(number, ""),
            known_as=f"visual genome {number}",
        )


def _ids(file: Path) -> list[int]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file, so the split cannot be told; read all instead")
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not JSON: {error}") from None
    if not isinstance(content, list):
        raise ValueError(f"{file}: must be a list of image ids")
    for index, image in enumerate(content):
        if isinstance(image, bool) or not isinstance(image, int):
            raise ValueError(f"{file}: [{index}]: {image!r:.60} is no image id")
    return content
