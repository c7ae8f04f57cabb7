"""ShareGPT4V (Chen et al., ECCV 2024): one JSON list of ``image`` and ``conversations``; the caption is ``conversations[1].value``.

``share-captioner_coco_lcs_sam_1246k_1107.json`` is 1.5 GB of it: it is streamed, entry by entry. The test part is the first 1,000
entries, the training part the rest, as Long-CLIP's published code has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clipmend.data.dense.base import DenseRow, asked, caption_text, dense_set, json_field, locate
from clipmend.data.json_stream import stream_list
from clipmend.data.readers.base import Log

__all__ = ["sharegpt4v_rows"]

NAMES = ("share-captioner_coco_lcs_sam_1246k_1107.json", "sharegpt4v_instruct_gpt4-vision_cap100k.json")


@dense_set(
    "sharegpt4v",
    "ShareGPT4V: a JSON list of image and conversations",
    default="test",
    splits=("train", "test"),
    detects=lambda path: path.name in NAMES or any((path / name).is_file() for name in NAMES),
)
def sharegpt4v_rows(
    path: Path, splits: tuple[str, ...], root: Path | None, log: Log, *, test_entries: int = 1000
) -> Iterator[DenseRow]:
    """Stream ShareGPT4V.

    Args:
        path: the JSON file, or the folder that holds one under its published name.
        splits: ``test`` (the first ``test_entries``), ``train`` (the others).
        root: folder that image names start from (default: the file's own).
        log: takes what cannot be used.
        test_entries: how many entries at the beginning are for testing.
    """
    if isinstance(test_entries, bool) or not isinstance(test_entries, int) or test_entries < 0:
        raise ValueError(f"test_entries is {test_entries!r}; it must be a whole number of 0 or more")
    file = next((path / name for name in NAMES if (path / name).is_file()), path / NAMES[0]) if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give the JSON file itself")
    base = root or file.parent
    for index, entry in stream_list(file):
        split = "test" if index < test_entries else "train"
        if not asked(split, splits):
            if "train" not in splits:
                return  # the rest, a gigabyte, is for training
            continue
        where = f"{file}: [{index}]"
        try:
            name = json_field(entry, where, "image")
            turns = json_field(entry, where, "conversations", list)
            if len(turns) < 2 or not isinstance(turns[1], dict):
                raise ValueError(f"{where}: conversations has {len(turns)} turns; the caption is the value of the second")
            text = caption_text(turns[1].get("value"), where, "conversations[1].value")
        except ValueError as error:
            log.bad(error)
            continue
        yield DenseRow(name, text, where, locate(base, name), split=split)
