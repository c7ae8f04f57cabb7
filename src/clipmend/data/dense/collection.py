"""``DenseData``: what every reader of dense captions gives, and what evaluation and training take."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clipmend.data.images import display_path
from clipmend.data.readers.base import Log, Record, Source

__all__ = ["DenseData", "Segment", "file_digests"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an image and the sentence that was matched with it, as GOAL's training files have them.

    Args:
        image: the crop's own file, as the source writes it; ``""`` where there is none.
        caption: the sentence.
        box: left, top, right and bottom in pixels of the whole image; ``None`` where the source has no box.
        score: similarity of crop and sentence that the source gives, on the source's own scale; NaN where it gives none.
    """

    image: str
    caption: str
    box: tuple[int, int, int, int] | None = None
    score: float = float("nan")


@dataclass
class DenseData:
    """Images and their dense captions.

    Args:
        name: the data set.
        split: which part of it (``"test"``, ``"test+qual_test"``, ``"all"``).
        images: ``[N]`` files of the distinct images: the gallery. A file may be missing (see :meth:`missing`).
        captions: ``[M]`` texts.
        image_of: int64 ``[M]`` position of each caption's image.
        image_ids: ``[N]`` one a image, distinct.
        caption_ids: ``[M]`` distinct.
        short: ``[M]`` short captions, ``""`` where an image has none; ``None`` where the set has none at all.
        segments: ``[N]`` parts of each image with their sentences; ``None`` where the set has none.
        twins: groups of positions of images that are near-duplicates of one another.
        where: ``[M]`` file and row of each caption.
        known_as: ``[N]`` the id by which an image is known across data sets (SA-1B's, DOCCI's, COCO's, Visual Genome's), ``""``
            where its name says nothing outside its own folder.
        notes: what was noticed while reading.
        skipped: rows left out (``on_error="skip"``).
    """

    name: str
    split: str
    images: list[Path]
    captions: list[str]
    image_of: NDArray[np.int64]
    image_ids: list[str]
    caption_ids: list[str]
    short: list[str] | None = None
    segments: list[tuple[Segment, ...]] | None = None
    twins: list[tuple[int, ...]] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    known_as: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: int = 0

    def __post_init__(self) -> None:
        self.image_of = np.asarray(self.image_of, np.int64)
        n, m = len(self.images), len(self.captions)
        self.where = self.where or [f"{self.name}: caption {k}" for k in range(m)]
        self.known_as = self.known_as or [""] * n
        wrong = [
            f"{what} {len(values)}"
            for what, values, count in (
                ("image_of", self.image_of, m),
                ("caption_ids", self.caption_ids, m),
                ("where", self.where, m),
                ("short", self.short if self.short is not None else range(m), m),
                ("image_ids", self.image_ids, n),
                ("known_as", self.known_as, n),
                ("segments", self.segments if self.segments is not None else range(n), n),
            )
            if len(values) != count
        ]
        if wrong:
            raise ValueError(f"{self.name}: {n} images and {m} captions, but {', '.join(wrong)}")
        if m and not 0 <= self.image_of.min() <= self.image_of.max() < n:
            raise ValueError(f"{self.name}: an image number lies outside 0..{n - 1}")
        for what, ids in (("image", self.image_ids), ("caption", self.caption_ids)):
            if len(set(ids)) < len(ids):
                raise ValueError(f"{self.name}: two {what}s have one id")
        for group in self.twins:
            if len(set(group)) < 2 or not all(0 <= position < n for position in group):
                raise ValueError(f"{self.name}: a group of twins must name two images or more of 0..{n - 1}, not {group}")

    def __len__(self) -> int:
        return len(self.captions)

    def missing(self) -> list[int]:
        """Positions of the images without a file."""
        return [position for position, path in enumerate(self.images) if not os.path.isfile(path)]

    def without(self, positions: Sequence[int]) -> DenseData:
        """The data without these images and their captions; a group of twins that is left with one image goes too."""
        gone = set(positions)
        keep = [k for k in range(len(self.images)) if k not in gone]
        place = {old: new for new, old in enumerate(keep)}
        rows = [row for row, image in enumerate(self.image_of.tolist()) if image in place]
        groups = [tuple(place[k] for k in group if k in place) for group in self.twins]
        return replace(
            self,
            images=[self.images[k] for k in keep],
            captions=[self.captions[row] for row in rows],
            image_of=np.array([place[int(self.image_of[row])] for row in rows], np.int64),
            image_ids=[self.image_ids[k] for k in keep],
            caption_ids=[self.caption_ids[row] for row in rows],
            short=None if self.short is None else [self.short[row] for row in rows],
            segments=None if self.segments is None else [self.segments[k] for k in keep],
            twins=[group for group in groups if len(group) > 1],
            where=[self.where[row] for row in rows],
            known_as=[self.known_as[k] for k in keep],
            notes=list(self.notes),
        )

    def source(self) -> Source:
        """The same as records, for :func:`clipmend.data.preflight.preflight` and whatever else takes a source."""

        def records(log: Log) -> Iterator[Record]:
            for row, caption in enumerate(self.captions):
                yield Record(str(self.images[self.image_of[row]]), (caption,), where=self.where[row])

        return Source(self.name, records)

    def digests(self, workers: int | None = None, advance: Callable[[], None] | None = None) -> list[str]:
        """``[N]`` SHA-256 of each image's file; ``""`` for one that is missing.

        Args:
            workers: threads that read (default: one a core, at most 8).
            advance: called after each file, for a progress bar.
        """

        return file_digests(self.images, workers, advance)

    def gallery_digest(self, digests: Sequence[str] | None = None) -> str:
        """SHA-256 of what is retrieved from: of each image its content and its captions, in an order of their own.

        Equal digests mean the same images with the same captions, wherever the files lie and whatever they are called.

        Args:
            digests: of the images, as :meth:`digests` gives them; ``None`` (or ``""`` for one) takes ids in place of contents.
        """
        own: list[list[str]] = [[] for _ in self.images]
        for row, image in enumerate(self.image_of.tolist()):
            own[image].append(self.captions[row])
        content = digests if digests is not None else [""] * len(self.images)
        entries = sorted(
            "\0".join([digest or f"id {name}", *sorted(texts)])
            for digest, name, texts in zip(content, self.image_ids, own, strict=True)
        )
        digest = hashlib.sha256()
        for entry in entries:
            digest.update(entry.encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()

    def missing_error(self, missing: Sequence[int]) -> FileNotFoundError:
        """The error for images without a file, with the first of them."""
        shown = ", ".join(display_path(self.images[position]) for position in missing[:3])
        more = ", ..." if len(missing) > 3 else ""
        return FileNotFoundError(
            f"{self.name}: {len(missing):,} of {len(self.images):,} images have no file: {shown}{more}; "
            "try --image-root DIR, or leave them out (--skip-missing)"
        )


def file_digests(paths: Sequence[Path], workers: int | None = None, advance: Callable[[], None] | None = None) -> list[str]:
    """SHA-256 of each file, read in threads; ``""`` for one that cannot be read (see :meth:`DenseData.digests`)."""

    def one(path: Path) -> str:
        digest = _sha256(path)
        if advance is not None:
            advance()
        return digest

    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1), thread_name_prefix="digests") as pool:
        return list(pool.map(one, paths))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError:
        return ""
    return digest.hexdigest()
