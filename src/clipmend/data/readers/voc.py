"""Pascal VOC: one XML file an image (``Annotations``), lists of images (``ImageSets/Main``) and ``JPEGImages``.

VOC annotates its 20 classes exhaustively, so a class without an object is absent. Objects marked ``difficult`` (small, cut off,
hard to tell) are left out of VOC's own scores; what becomes of a class all of whose objects are difficult is a choice:

- ``difficult="unknown"`` (default): neither present nor absent, so no caption is written about it;
- ``difficult="present"``: it is there, however hard to see;
- ``difficult="absent"``: as if it were not annotated.

Only the objects themselves count: a person's ``part`` elements (head, hand, foot) are no objects. VOC has no captions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from clipmend.data.readers.base import Log, OnError, Record, Source, register
from clipmend.data.tables import is_text

__all__ = ["VOC_CLASSES", "read_voc"]

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The 20 classes, as the files spell them."""

Difficult = Literal["unknown", "present", "absent"]

_LARGEST = 10_000_000  # bytes of an annotation
_DEEPEST = 100  # elements within one another


def _voc_root(path: Path) -> Path | None:
    """The folder with ``Annotations``: ``path`` itself, or one or two levels below it (``VOCdevkit/VOC2007``)."""
    candidates = [path, *sorted(path.glob("VOC2*")), *sorted(path.glob("VOCdevkit/VOC2*"))]
    return next((c for c in candidates if (c / "Annotations").is_dir()), None)


@register("voc", "Pascal VOC: the folder with Annotations, ImageSets and JPEGImages", lambda p: _voc_root(p) is not None, order=15)
def read_voc(
    path: str | Path,
    *,
    split: str | None = None,
    difficult: Difficult = "unknown",
    classes: Sequence[str] | None = None,
    image_root: str | Path | None = None,
    on_error: OnError = "raise",
) -> Source:
    """Stream Pascal VOC, or data in its format.

    Args:
        path: ``VOC2007``, ``VOCdevkit`` or the folder that holds it.
        split: a list of ``ImageSets/Main`` (``"test"``, ``"trainval"``, ...); ``None`` for every file of ``Annotations``.
        difficult: what a class is that has difficult objects only (see the module).
        classes: the classes annotated exhaustively (default: VOC's 20).
        image_root: folder with the images (default: ``JPEGImages``).
        on_error: ``"raise"`` or ``"skip"`` for images whose annotation cannot be used.

    Returns:
        One record an image with ``present`` and ``absent``, in the order of the list; ``vocabulary`` are the classes.

    Raises:
        FileNotFoundError: no ``Annotations``, no such split.
        ValueError: (while reading) naming the file: broken XML, an object without a name, a class not among ``classes``.
    """
    path = Path(path)
    root = _voc_root(path)
    if root is None:
        reason = "has no folder Annotations, nor has a VOC20.. below it" if path.exists() else "no such folder"
        raise FileNotFoundError(f"{path}: {reason}")
    if difficult not in ("unknown", "present", "absent"):
        raise ValueError(f"difficult is {difficult!r}; it must be 'unknown', 'present' or 'absent'")
    listing = None
    if split is not None:
        listing = root / "ImageSets" / "Main" / f"{split}.txt"
        if not listing.is_file():
            there = sorted(p.stem for p in listing.parent.glob("*.txt") if "_" not in p.stem)
            raise FileNotFoundError(f"{listing}: no such split; there are {', '.join(there) or 'none'}")
    if isinstance(classes, str):
        raise ValueError(f"classes is the text {classes!r}; give a list of names")
    names = tuple(VOC_CLASSES if classes is None else classes)
    folder = root / "Annotations"

    def records(log: Log) -> Iterator[Record]:
        count = hard = 0
        for number, where in _ids(folder, listing, log):
            try:
                record, unknown = _one(folder / f"{number}.xml", where, number, names, difficult)
            except (ValueError, OSError) as error:
                log.bad(error)
                continue
            count, hard = count + 1, hard + bool(unknown)
            yield record
        if hard:
            log.note(f"{root.name}: {hard:,} of {count:,} images have a class with difficult objects only, taken as {difficult}")

    images = image_root if image_root is not None else root / "JPEGImages"
    return Source(f"{root.name}-{split}" if split else root.name, records, image_root=images, vocabulary=names, on_error=on_error)


def _ids(folder: Path, listing: Path | None, log: Log) -> Iterator[tuple[str, str]]:
    """``(id, where)`` of the images of a split; the list of a class (``cat_test``) has a flag after the id."""
    if listing is None:
        found = sorted(p.stem for p in folder.glob("*.xml"))
        if not found:
            raise FileNotFoundError(f"{folder}: holds no XML file")
        for stem in found:
            yield stem, str(folder / f"{stem}.xml")
        return
    seen: set[str] = set()
    with listing.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for line, text in enumerate(file, 1):
            fields = text.split()
            where = f"{listing}: line {line}"
            if not fields:
                continue
            if len(fields) > 2 or "\0" in text or not is_text(text) or "/" in fields[0] or "\\" in fields[0]:
                log.bad(ValueError(f"{where}: {text.strip()[:60]!r} is no image id"))
            elif fields[0] in seen:
                log.bad(ValueError(f"{where}: image {fields[0]} is listed twice"))
            else:
                seen.add(fields[0])
                yield fields[0], where
    if not seen:
        raise ValueError(f"{listing}: lists no image")


def _one(path: Path, where: str, number: str, classes: tuple[str, ...], difficult: Difficult) -> tuple[Record, frozenset[str]]:
    """The record of an annotation, and the classes that have difficult objects only."""
    if not os.path.isfile(path):  # False too for a name that is too long, where Path's own method raises
        raise FileNotFoundError(f"{where}: {path} is not there")
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path}: over {_LARGEST:,} bytes: no annotation of VOC")
    tree = _parsed(path)
    if tree.tag != "annotation":
        raise ValueError(f"{path}: the root element is <{tree.tag}>, not <annotation>")
    clear: set[str] = set()
    hard: set[str] = set()
    for position, found in enumerate(tree.findall("object"), 1):
        name = (found.findtext("name") or "").strip()
        if not name:
            raise ValueError(f"{path}: object {position} has no name")
        if name not in classes:
            raise ValueError(f"{path}: object {position} is a {name!r}, which is not among the classes; name them all as classes")
        flag = (found.findtext("difficult") or "0").strip()
        if flag not in ("0", "1"):
            raise ValueError(f"{path}: object {position} ({name}): difficult is {flag!r}, neither 0 nor 1")
        (hard if flag == "1" else clear).add(name)
    only_hard = frozenset(hard - clear)
    present = frozenset(clear | hard) if difficult == "present" else frozenset(clear)
    absent = frozenset(classes) - present - (only_hard if difficult == "unknown" else frozenset())
    image = (tree.findtext("filename") or "").strip() or f"{number}.jpg"
    return Record(image, present=present, absent=absent, where=str(path)), only_hard


def _parsed(path: Path) -> Element:
    """The root element of an XML file.

    A document type, by which a small file could define entities that expand to gigabytes, is refused where the parser meets it:
    in whatever encoding it is written.

    Raises:
        ValueError: broken, with a document type, or nested too deeply; names the file.
    """
    builder, parser = TreeBuilder(), expat.ParserCreate()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"elements are nested over {_DEEPEST} deep: no annotation of VOC")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def refuse(*_: Any) -> None:
        raise ValueError("it has a document type: no annotation of VOC")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(path.read_bytes(), True)
        return builder.close()
    except (expat.ExpatError, ValueError, LookupError) as error:  # LookupError: an encoding that Python does not know
        raise ValueError(f"{path}: broken XML: {error}") from None
