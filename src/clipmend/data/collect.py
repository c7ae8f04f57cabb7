"""Read a source through: which images there are, what is said of them, and what they show, as atoms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from clipmend.data.images import ImageError, not_found
from clipmend.data.naming import Mentions, Names
from clipmend.data.nouns import Noun
from clipmend.data.readers.base import Record, Source
from clipmend.data.statements import denies_already

__all__ = ["Annotated", "OnMissing", "collect"]

OnMissing = Literal["error", "skip"]


@dataclass
class Annotated:
    """A source, read through: images with their captions and what they show, as atoms (see :class:`Names`).

    Args:
        name: of the data.
        names: the images' names, as the source writes them.
        images: a path each, or the record where the source holds the image itself.
        captions: of each image; those that deny something already are left out.
        present, absent: atoms of each image. What is in neither is unknown.
        nouns: by atom.
        reserved: atoms that the source keeps for testing.
        notes: what was left out, and why.
    """

    name: str
    names: list[str] = field(default_factory=list)
    images: list[Path | Record] = field(default_factory=list)
    captions: list[tuple[str, ...]] = field(default_factory=list)
    present: list[frozenset[str]] = field(default_factory=list)
    absent: list[frozenset[str]] = field(default_factory=list)
    nouns: dict[str, Noun] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)

    @property
    def vocabulary(self) -> frozenset[str]:
        """Every atom that some image is known to have or not to have."""
        return frozenset(self.nouns)

    def unknown(self, image: int) -> frozenset[str]:
        """Atoms that are unknown of an image."""
        return self.vocabulary - self.present[image] - self.absent[image]


def collect(
    source: Source,
    *,
    nouns: Mapping[str, Noun] | None = None,
    on_missing: OnMissing = "error",
    limit: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Annotated:
    """Read a source through.

    Args:
        source: what a reader gives.
        nouns: nouns of your own, by the source's category.
        on_missing: ``"error"``, or ``"skip"`` to leave out, counted, images whose file is not there.
        limit: take the first so many annotated images.
        advance: called with 1 for every record.

    Raises:
        ValueError: no image is annotated; a video; an image that is annotated in two ways.
        ImageError: a missing file.
    """
    if on_missing not in ("error", "skip"):
        raise ValueError(f"on_missing is {on_missing!r}; it must be 'error' or 'skip'")
    kept: dict[str, Record] = {}
    bare = missing = 0
    for record in source:
        if advance is not None:
            advance(1)
        if record.media == "video":
            raise ValueError(f"{record.where}: {record.image} is a video; captions are made for images alone")
        if record.present is None and record.absent is None:
            bare += 1
            continue
        if record.image in kept:
            kept[record.image] = _joined(kept[record.image], record)
            continue
        if limit is not None and len(kept) >= limit:
            break
        if record.content is None and record.path(source.image_root) is None:
            if on_missing == "error":
                raise ImageError(f"{record.where}: {record.image}", f"{not_found(source.image_root)}, or skip it")
            missing += 1
            continue
        kept[record.image] = record
    if not kept:
        why = f"; {missing:,} images are missing" if missing else ""
        raise ValueError(
            f"{source.name}: says of no image what it shows{why}. Presence comes from COCO's instances, VOC's annotations, "
            "drawn scenes, or records with present and absent"
        )
    data = Annotated(source.name)
    names = Names(nouns)
    for record in kept.values():
        data.names.append(record.image)
        data.images.append(record if record.content is not None else record.path(source.image_root) or Path(record.image))
        data.captions.append(tuple(dict.fromkeys(record.captions)) if record.answer is None else ())
        present = record.present or frozenset()
        absent = record.absent
        if absent is None:  # what the source annotates exhaustively and does not list is not there
            absent = (source.vocabulary or frozenset()) - present
        data.present.append(frozenset(map(names.atom, sorted(present))))
        data.absent.append(frozenset(map(names.atom, sorted(absent))))
    data.reserved = frozenset(map(names.atom, sorted(source.reserved)))
    data.nouns = dict(sorted(names.nouns().items()))
    data.notes += source.log.notes
    if source.log.skipped:
        data.notes.append(f"{source.log.skipped:,} entries that could not be used were left out; the first: " + _first(source))
    if bare:
        data.notes.append(f"{bare:,} images without annotation left out")
    if missing:
        data.notes.append(f"{missing:,} images whose file is missing left out")
    _mind_captions(data)
    return data


def _first(source: Source) -> str:
    return next(iter([*source.log.problems, *source.log.empties]), "")


def _joined(first: Record, second: Record) -> Record:
    """One record of two about the same image."""
    present = (first.present or frozenset()) | (second.present or frozenset())
    absent = (first.absent or frozenset()) | (second.absent or frozenset())
    both = sorted(present & absent)
    if both:
        raise ValueError(f"{second.where}: {second.image} is annotated otherwise at {first.where}: {', '.join(both)}")
    known = None if first.absent is None and second.absent is None else absent
    return replace(first, captions=first.captions + second.captions, present=present, absent=known)


def _mind_captions(data: Annotated) -> None:
    """Leave out captions that deny something; what a caption mentions is not surely absent."""
    mentions = Mentions(data.nouns)
    denying = doubted = 0
    for k, captions in enumerate(data.captions):
        plain = tuple(c for c in captions if not denies_already(c))
        denying += len(captions) - len(plain)
        data.captions[k] = plain
        doubtful = mentions(plain) & data.absent[k]
        doubted += len(doubtful)
        data.absent[k] -= doubtful
    if denying:
        data.notes.append(f"{denying:,} captions that deny something already left out")
    if doubted:
        data.notes.append(f"{doubted:,} times a caption mentions what is annotated absent: taken as unknown")
