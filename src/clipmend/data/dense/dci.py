"""DCI, Densely Captioned Images (Urbanek et al., CVPR 2024): a JSON file a photograph, and ``splits.json``.

The folder holds ``splits.json`` (lists of annotation files, by split), ``photos/`` and ``annotations/``; an annotation has
``image``, ``short_caption`` (a sentence) and ``extra_caption`` (the paragraph; empty for some photographs).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clipmend.data.dense.base import DenseRow, asked, caption_text, dense_set, json_field, locate
from clipmend.data.readers.base import Log
from clipmend.data.tables import EmptyCaption

__all__ = ["dci_rows"]

CAPTIONS = ("extra", "both", "short")


def _folder(path: Path) -> Path:
    inside = path / "densely_captioned_images"
    return inside if inside.is_dir() else path


def _looks_like(path: Path) -> bool:
    folder = _folder(path)
    return (folder / "splits.json").is_file() and (folder / "annotations").is_dir() and (folder / "photos").is_dir()


@dense_set("dci", "DCI: the folder with splits.json, annotations/ and photos/", default="test", detects=_looks_like)
def dci_rows(
    path: Path, splits: tuple[str, ...], root: Path | None, log: Log, *, caption: str = "extra", split_file: str | None = None
) -> Iterator[DenseRow]:
    """Stream DCI.

    Args:
        path: the folder, or the one around ``densely_captioned_images``.
        splits: as ``splits.json`` calls them (``train``, ``valid``, ``test``).
        root: folder of the photographs (default: ``photos/``).
        log: takes what cannot be used.
        caption: ``"extra"``, the paragraph (as GOAL and Long-DCI read it; photographs without one are left out and counted),
            ``"both"``, the sentence and the paragraph, or ``"short"``, the sentence.
        split_file: another file of splits (default: ``splits.json`` of the folder). The published fine-tuning results are on
            5,445 photographs for training and 1,999 for testing; where the folder's split has other counts, it is another one.
    """
    if caption not in CAPTIONS:
        raise ValueError(f"caption is {caption!r}; it must be one of {', '.join(CAPTIONS)}")
    folder = _folder(path)
    annotations = folder / "annotations"
    if not annotations.is_dir():
        raise FileNotFoundError(f"{annotations}: no such folder; give the one with splits.json, annotations/ and photos/")
    photos = root or folder / "photos"
    without = 0
    for split, name, where in _annotations(Path(split_file) if split_file else folder / "splits.json", annotations, splits):
        file = annotations / (name if name.endswith(".json") else f"{name}.json")
        try:
            entry = _read(file, where)
            image = json_field(entry, str(file), "image")
            short = _optional(entry, str(file), "short_caption")
            extra = _optional(entry, str(file), "extra_caption")
            if caption == "extra" and not extra:
                without += 1
                continue
            chosen = {"extra": extra, "short": short, "both": " ".join(filter(None, [short, extra]))}[caption]
            if not chosen:
                raise EmptyCaption(f"{file}: the {'short caption' if caption == 'short' else 'captions'} is empty")
        except (ValueError, OSError) as error:
            log.bad(error)
            continue
        yield DenseRow(image, chosen, str(file), locate(photos, image), short=short, split=split)
    if without:
        log.note(f"{without:,} photographs have no extra_caption: left out (caption=both reads their sentence)")


def _annotations(table: Path, annotations: Path, splits: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """``(split, file, where)`` of each annotation that is wanted."""
    if not table.is_file():
        if splits:
            raise FileNotFoundError(f"{table}: no such file, so the split {'+'.join(splits)} cannot be told; read all instead")
        for file in sorted(annotations.glob("*.json")):
            yield "", file.name, str(file)
        return
    content = _read(table, str(table))
    if not isinstance(content, dict) or not all(isinstance(v, list) for v in content.values()):
        raise ValueError(f"{table}: must hold a list of annotation files for each split")
    wrong = [split for split in splits if split not in content]
    if wrong:
        raise ValueError(f"{table}: has no split {', '.join(wrong)}; it has {', '.join(content)}, all")
    for split, names in content.items():
        if not asked(split, splits):
            continue
        for number, name in enumerate(names):
            where = f"{table}: {split}[{number}]"
            if not isinstance(name, str) or not name.strip() or "/" in name or "\\" in name or "\0" in name:
                raise ValueError(f"{where}: {name!r:.60} is no annotation file's name")
            yield split, name, where


def _read(file: Path, where: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{where}: its annotation {file} is not there") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not JSON: {error}") from None


def _optional(entry: dict[str, Any], where: str, field: str) -> str:
    """A caption that may be empty but must be there."""
    if field not in entry:
        raise ValueError(f"{where}: {field} is missing; there are {', '.join(entry)}")
    try:
        return caption_text(entry[field], where, field)
    except EmptyCaption:
        return ""
