"""COCO: ``captions_*.json`` and ``instances_*.json`` joined, one record an image.

An image's ``present`` are the categories with an annotation, a crowd (``iscrowd``) included: a crowd of people is people. Its
``absent`` are the other categories, since COCO annotates all 80 in every image; it does so with misses, small objects above all, so
"absent" is what the annotators say, not what is certain. An image that the instances file does not list has neither.

Both files are streamed (:mod:`clipmend.data.json_stream`); what is kept is an image's file name, category ids and captions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipmend.data.json_stream import stream_arrays
from clipmend.data.readers.base import Log, OnError, Record, Source, register
from clipmend.data.tables import EmptyCaption, is_text

__all__ = ["coco_files", "read_coco"]


@dataclass
class _Image:
    name: str
    captions: list[str] = field(default_factory=list)
    categories: set[int] | None = None


@dataclass
class _Files:
    captions: Path | None
    instances: Path | None
    images: Path | None


def coco_files(path: str | Path, split: str | None = None) -> tuple[Path | None, Path | None, Path | None]:
    """Captions file, instances file and image folder of a COCO folder, as far as they are there.

    Args:
        path: the folder with ``annotations/``, that folder itself, or one of the two files.
        split: ``"val2017"``, ``"train2014"``, ...; may be left out where only one is there.

    Raises:
        FileNotFoundError: neither file is there.
        ValueError: several splits are there and none was chosen.
    """
    path = Path(path)
    if path.is_file():
        kind, _, split = path.stem.partition("_")
        folder, both = path.parent, {kind: path}
        if kind not in ("captions", "instances"):
            kind = _kind_of(path)
            both = {kind: path}
        other = "instances" if kind == "captions" else "captions"
        beside = folder / f"{other}_{split}.json"
        if split and beside.is_file():
            both[other] = beside
    else:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder")
        folder = path / "annotations" if (path / "annotations").is_dir() else path
        found = {p.stem for p in folder.glob("*.json") if p.stem.startswith(("captions_", "instances_"))}
        splits = sorted({stem.partition("_")[2] for stem in found})
        if split is None:
            if len(splits) > 1:
                raise ValueError(f"{folder}: holds the splits {', '.join(splits)}; choose one as split (--split)")
            split = splits[0] if splits else ""
        both = {kind: folder / f"{kind}_{split}.json" for kind in ("captions", "instances") if f"{kind}_{split}" in found}
        if not both:
            there = f"; there are {', '.join(splits)}" if splits else ""
            wanted = split or "SPLIT"
            raise FileNotFoundError(f"{folder}: neither captions_{wanted}.json nor instances_{wanted}.json is there{there}")
    root = folder.parent if folder.name == "annotations" else folder
    images = next((d for d in (root / split, root / "images" / split, root / "images") if split and d.is_dir()), None)
    return both.get("captions"), both.get("instances"), images


def _kind_of(path: Path) -> str:
    """What a file of another name holds, by its first annotation."""
    for key, index, entry in stream_arrays(path):
        if key == "annotations" and index >= 0:
            return "captions" if isinstance(entry, dict) and "caption" in entry else "instances"
    raise ValueError(f"{path}: no annotations in it")


def _looks_like(path: Path) -> bool:
    if path.is_dir():
        folders = (path / "annotations", path)
        return any(True for d in folders for kind in ("captions", "instances") for _ in d.glob(f"{kind}_*.json"))
    return path.is_file() and path.suffix == ".json" and path.stem.startswith(("captions_", "instances_"))


@register("coco", "COCO: a folder with annotations/, or captions_*.json or instances_*.json", _looks_like, order=15)
def read_coco(
    path: str | Path,
    *,
    split: str | None = None,
    captions: str | Path | None = None,
    instances: str | Path | None = None,
    image_root: str | Path | None = None,
    on_error: OnError = "raise",
) -> Source:
    """Stream COCO, or data in its format.

    Args:
        path: folder with ``annotations/``, that folder itself, or one of the two files (the other is looked for beside it).
        split: ``"val2017"``, ...; may be left out where only one is there.
        captions: the captions file, where it has another name.
        instances: the instances file, where it has another name.
        image_root: folder with the images (default: ``SPLIT`` or ``images/SPLIT`` beside ``annotations``, where it is there).
        on_error: ``"raise"`` or ``"skip"`` for annotations that cannot be used.

    Returns:
        One record an image, in the order of the captions file (else the instances file). Its ``vocabulary`` are the categories,
        known once the source has been read through.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: (while reading) naming file and entry: broken JSON, a field missing or of another type, an annotation of an
            image or a category that the file does not list, an image or a category listed twice.
    """
    found = coco_files(path, split)
    files = _Files(
        Path(captions) if captions is not None else found[0],
        Path(instances) if instances is not None else found[1],
        Path(image_root) if image_root is not None else found[2],
    )
    for file in (files.captions, files.instances):
        if file is not None and not file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
    source = Source(_name(files), lambda log: _records(files, log, source), image_root=files.images, on_error=on_error)
    return source


def _name(files: _Files) -> str:
    chosen = files.captions or files.instances
    assert chosen is not None
    return chosen.stem.partition("_")[2] or chosen.stem


def _records(files: _Files, log: Log, source: Source) -> Iterator[Record]:
    images: dict[int, _Image] = {}
    categories: dict[int, str] = {}
    if files.captions is not None:
        _read(files.captions, "captions", images, {}, log)
    if files.instances is not None:
        listed = set(images) if files.captions is not None else None
        _read(files.instances, "instances", images, categories, log)
        source.vocabulary = frozenset(categories.values())
        if listed is not None:
            more = len(set(images) - listed)
            if more and files.captions is not None:
                log.note(f"{files.instances.name}: {more:,} images that {files.captions.name} does not list")
            without = sum(images[i].categories is None for i in listed)
            if without:
                log.note(f"{files.instances.name}: {without:,} images are not listed: what they show is unknown")
    without = sum(not image.captions for image in images.values())
    if files.captions is not None and without:
        log.note(f"{files.captions.name}: {without:,} images have no caption")
    if not images:
        raise ValueError(f"{files.captions or files.instances}: no images in it")
    everything = frozenset(categories.values())
    origin = files.captions or files.instances
    for number, image in images.items():
        present = None if image.categories is None else frozenset(categories[c] for c in image.categories)
        yield Record(
            image.name,
            tuple(image.captions),
            present=present,
            absent=None if present is None else everything - present,
            where=f"{origin}: image {number}",
        )


def _read(path: Path, kind: str, images: dict[int, _Image], categories: dict[int, str], log: Log) -> None:
    """Add a file's images and annotations; annotations may stand before the images they are about."""
    known: set[int] = set()
    named: set[str] = set()
    texts: list[tuple[int, int, str]] = []  # (entry, image, caption)
    pairs: dict[tuple[int, int], int] = {}  # (image, category) -> its first entry
    for key, index, entry in stream_arrays(path):
        if index < 0 or key not in ("images", "annotations", "categories"):
            continue
        where = f"{path}: {key}[{index}]"
        try:
            if not isinstance(entry, dict):
                raise ValueError(f"{where}: {entry!r:.60} where an object belongs")
            if key == "images":
                number, name = _integer(where, entry, "id"), _text(where, entry, "file_name")
                if number in known:
                    raise ValueError(f"{where}: image {number} is listed twice")
                known.add(number)
                image = images.setdefault(number, _Image(name))
                if image.name != name:
                    raise ValueError(f"{where}: image {number} is {name!r} here and {image.name!r} in the captions file")
                if kind == "instances":
                    image.categories = set()
            elif key == "categories":
                number, name = _integer(where, entry, "id"), _text(where, entry, "name")
                if number in categories or name in named:
                    raise ValueError(f"{where}: category {number} ({name}) is listed twice")
                named.add(name)
                categories[number] = name
            elif kind == "captions":
                texts.append((index, _integer(where, entry, "image_id"), _text(where, entry, "caption")))
            else:
                pairs.setdefault((_integer(where, entry, "image_id"), _integer(where, entry, "category_id")), index)
        except ValueError as error:
            log.bad(error)
    for index, number, text in texts:
        if number not in known:
            log.bad(ValueError(f"{path}: annotations[{index}]: image {number} is not listed under images"))
            continue
        images[number].captions.append(text)
    for (number, category), index in pairs.items():
        held = images[number].categories if number in known else None
        if held is None or category not in categories:
            missing = f"image {number}" if held is None else f"category {category}"
            log.bad(ValueError(f"{path}: annotations[{index}]: {missing} is not listed in the file"))
            continue
        held.add(category)


def _integer(where: str, entry: dict[str, Any], key: str) -> int:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{where}: {key} is {value!r}, not an integer" if key in entry else f"{where}: {key} is missing")
    return value


def _text(where: str, entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{where}: {key} is {value!r}, not text" if key in entry else f"{where}: {key} is missing")
    if not value.strip():
        raise (EmptyCaption if key == "caption" else ValueError)(f"{where}: {key} is empty")
    if not is_text(value) or "\0" in value:
        raise ValueError(f"{where}: {key} is no valid text: {value!r:.60}")
    return " ".join(value.split()) if key == "caption" else value
