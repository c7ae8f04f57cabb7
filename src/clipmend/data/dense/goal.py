"""GOAL's JSON (Choi et al., CVPR 2025): a list of pairs for testing, or of images with matched parts for training.

For testing an entry is ``filename, caption``. For training it is ``original_filename, original_caption`` and ``segment``, a list
of ``filename, caption, similarity_score`` and ``bbox_coordinates`` (``x1, y1, x2, y2, width, height`` in pixels). File names are
those of the machine that made the file; with ``image_root`` an image is also found by the last part of its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from clipmend.data.dense.base import DenseRow, caption_text, dense_set, json_field, locate
from clipmend.data.dense.collection import Segment
from clipmend.data.json_stream import stream_list
from clipmend.data.readers.base import Log

__all__ = ["goal_rows"]

_DOCCI = ("train_", "test_", "qual_dev_", "qual_test_")


@dense_set("goal", "GOAL's JSON lists: filename, caption; or original_filename, original_caption, segment")
def goal_rows(path: Path, splits: tuple[str, ...], root: Path | None, log: Log) -> Iterator[DenseRow]:
    """Stream a JSON list of GOAL's.

    Args:
        path: the file.
        splits: a file is one split; only ``"all"`` can be read.
        root: folder that image names start from (default: the file's own).
        log: takes what cannot be used.
    """
    if splits:
        raise ValueError(f"a file of GOAL's is one split, so there is no {'+'.join(splits)} in it; read all")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not a file; give the JSON file itself")
    base = root or path.parent
    for index, entry in stream_list(path):
        where = f"{path}: [{index}]"
        try:
            training = isinstance(entry, dict) and "original_filename" in entry
            prefix = "original_" if training else ""
            name = json_field(entry, where, f"{prefix}filename")
            text = caption_text(entry.get(f"{prefix}caption"), where, f"{prefix}caption")
            segments = _segments(entry, where) if training else ()
        except ValueError as error:
            log.bad(error)
            continue
        stem = PurePosixPath(name.replace("\\", "/")).stem
        known = f"docci {stem}" if stem.startswith(_DOCCI) else ""
        yield DenseRow(name, text, where, locate(base, name), segments=segments, known_as=known)


def _pixel(corners: Any, place: str, key: str) -> int:
    """A whole number of pixels, which JSON may also write as ``12.0``."""
    value = json_field(corners, place, key, (int, float))
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"{place}: {key} is {value!r}, not a whole number of pixels")
    return int(value)


def _segments(entry: dict[str, Any], where: str) -> tuple[Segment, ...]:
    found = []
    for number, part in enumerate(json_field(entry, where, "segment", list)):
        place = f"{where}: segment[{number}]"
        name = json_field(part, place, "filename")
        text = caption_text(part.get("caption"), place, "caption")
        score = part.get("similarity_score", math.nan)
        if isinstance(score, bool) or not isinstance(score, (int, float)):
            raise ValueError(f"{place}: similarity_score is {score!r:.60}, not a number")
        box = None
        if part.get("bbox_coordinates") is not None:
            corners = part["bbox_coordinates"]
            x1, y1, x2, y2 = (_pixel(corners, f"{place}: bbox_coordinates", key) for key in ("x1", "y1", "x2", "y2"))
            if not (0 <= x1 < x2 and 0 <= y1 < y2):
                raise ValueError(f"{place}: bbox_coordinates {x1, y1, x2, y2} are no box")
            box = (x1, y1, x2, y2)
        found.append(Segment(name, text, box, float(score)))
    return tuple(found)
