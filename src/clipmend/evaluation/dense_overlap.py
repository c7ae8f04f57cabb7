"""What of a test set training has seen: the same file, the same known image, or the same caption."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clipmend.data.dense.collection import DenseData, file_digests

__all__ = ["Overlap", "find_overlap", "read_ids", "read_twins"]


@dataclass(frozen=True)
class Overlap:
    """Which images of a test set training has seen, and how that was found out.

    Args:
        training: name of the training data.
        seen: bool ``[N]`` of the test set's images.
        by_id: images whose id is among the training ids.
        by_content: images whose file has the bytes of a training image.
        by_caption: images with a caption that a training image has, word for word.
        compared: how many training images, or ids, were compared with.
    """

    training: str
    seen: NDArray[np.bool_]
    by_id: int
    by_content: int
    by_caption: int
    compared: int

    def to_dict(self) -> dict[str, Any]:
        """Counts, ready for JSON."""
        return {
            "training": self.training,
            "images": len(self.seen),
            "seen": int(self.seen.sum()),
            "unseen": int((~self.seen).sum()),
            "by_id": self.by_id,
            "by_content": self.by_content,
            "by_caption": self.by_caption,
            "compared_with": self.compared,
        }

    def __str__(self) -> str:
        seen = int(self.seen.sum())
        how = f"by id {self.by_id:,}, by content {self.by_content:,}, by caption {self.by_caption:,}"
        return f"{seen:,} of {len(self.seen):,} images seen in training on {self.training} ({how})"


def find_overlap(
    data: DenseData,
    training: DenseData | None = None,
    *,
    ids: Iterable[str] | None = None,
    digests: Sequence[str] | None = None,
    name: str = "",
) -> Overlap:
    """What of ``data`` has been trained on.

    An image counts as seen where training had a file of the same bytes, an image known by the same name everywhere (SA-1B's,
    DOCCI's, COCO's or Visual Genome's id), a caption of the same words, or where its id is listed.
    File names alone (``1.jpg``) say nothing.

    Args:
        data: the test set.
        training: the training set. Of its files only those are read whose size is that of a test image.
        ids: ids trained on; each may be an id of ``data``, a file's name with or without ending, or a path.
        digests: SHA-256 of the test images, as :meth:`DenseData.digests` gives them.
        name: of the training data, in reports.

    Raises:
        ValueError: neither a training set nor ids.
    """
    if training is None and ids is None:
        raise ValueError("give a training set, or the ids trained on")
    count = len(data.images)
    by_id, by_content, by_caption = (np.zeros(count, bool) for _ in range(3))
    compared = 0
    if ids is not None:
        listed = set(ids)
        compared += len(listed)
        listed |= {_last(text) for text in listed} | {_stem(text) for text in listed}
        for k, (own, path) in enumerate(zip(data.image_ids, data.images, strict=True)):
            by_id[k] = bool({own, path.name, path.stem, str(path)} & listed)
    if training is not None:
        compared += len(training.images)
        known = {k for k in training.known_as if k}
        by_id |= np.array([bool(k) and k in known for k in data.known_as])
        by_content = _same_files(data, training, digests)
        captions = set(training.captions)
        rows = [row for row, caption in enumerate(data.captions) if caption in captions]
        by_caption[data.image_of[rows]] = True
    seen = by_id | by_content | by_caption
    label = name or (f"{training.name} ({training.split})" if training is not None else f"{compared:,} listed ids")
    return Overlap(label, seen, int(by_id.sum()), int(by_content.sum()), int(by_caption.sum()), compared)


def _same_files(data: DenseData, training: DenseData, digests: Sequence[str] | None) -> NDArray[np.bool_]:
    own = digests if digests is not None else data.digests()
    sizes = {size for path in data.images if (size := _size(path)) is not None}
    trained = set(file_digests([path for path in training.images if _size(path) in sizes]))
    return np.array([bool(digest) and digest in trained for digest in own])


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _last(text: str) -> str:
    return PurePosixPath(text.replace("\\", "/")).name


def _stem(text: str) -> str:
    return PurePosixPath(text.replace("\\", "/")).stem


def read_ids(path: str | Path) -> list[str]:
    """Ids, one a line; blank lines are left out.

    Raises:
        ValueError: not UTF-8, or no ids.
    """
    path = Path(path)
    found = [line.strip() for line in _lines(path) if line.strip()]
    if not found:
        raise ValueError(f"{path}: holds no ids")
    return found


def read_twins(path: str | Path, data: DenseData) -> list[tuple[int, ...]]:
    """Groups of near-twins: a line each, ids of ``data`` (or its images' file names) with tabs between them, or commas.

    Returns:
        Positions of the images. Groups that share an image are joined.

    Raises:
        ValueError: naming file and line: fewer than two ids, an id that the data do not have, one that stands twice.
    """
    path = Path(path)
    place: dict[str, int] = {}
    names: dict[str, list[int]] = {}
    for k, (own, file) in enumerate(zip(data.image_ids, data.images, strict=True)):
        place[own] = k
        for text in {file.name, file.stem}:
            names.setdefault(text, []).append(k)
    place = {text: ks[0] for text, ks in names.items() if len(ks) == 1} | place
    leader = list(range(len(data.images)))

    def root(k: int) -> int:
        while leader[k] != k:
            leader[k] = leader[leader[k]]
            k = leader[k]
        return k

    for line, text in enumerate(_lines(path), 1):
        if not text.strip():
            continue
        parts = [part.strip() for part in text.split("\t" if "\t" in text else ",") if part.strip()]
        unknown = [part for part in parts if part not in place]
        if unknown:
            raise ValueError(f"{path}: line {line}: {unknown[0]!r} is no image of {data.name} ({data.split})")
        positions = [place[part] for part in parts]
        if len(set(positions)) < 2 or len(set(positions)) < len(positions):
            raise ValueError(f"{path}: line {line}: a group of twins needs two different images or more")
        for position in positions[1:]:
            leader[root(position)] = root(positions[0])
    groups: dict[int, list[int]] = {}
    for k in range(len(leader)):
        groups.setdefault(root(k), []).append(k)
    found = [tuple(group) for group in groups.values() if len(group) > 1]
    if not found:
        raise ValueError(f"{path}: holds no groups of twins")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
