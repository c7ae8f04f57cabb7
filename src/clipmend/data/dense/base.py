"""Sets of dense captions by name: each is a function that streams rows; reading them into one place is the same for all."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from clipmend.data.dense.collection import DenseData, Segment
from clipmend.data.images import find_image
from clipmend.data.readers.base import Log, OnError
from clipmend.data.tables import EmptyCaption, is_text

__all__ = [
    "DENSE_SETS",
    "DenseRow",
    "DenseSet",
    "asked",
    "caption_text",
    "dense_rows",
    "dense_set",
    "json_field",
    "locate",
    "read_dense",
]

ALL = "all"

# Names that mean the same image wherever they stand: SA-1B's (DCI, Long-DCI, part of ShareGPT4V) and COCO's.
_KNOWN = re.compile(r"sa_\d+|0{6}\d{6}")


@dataclass(frozen=True, slots=True)
class DenseRow:
    """One caption with its image.

    Args:
        image: the image as the source writes it; rows of one name are about one image.
        caption: the text, spaces and line breaks made single spaces.
        where: file and row.
        path: its file; it need not be there.
        id: the image's id within the set (default: its name without folders and ending, where that is distinct).
        short: a short caption, where the set has one.
        split: the split it stands in, ``""`` where the set has none.
        segments: parts of the image with their sentences.
        group: images with one group are near-duplicates of each other; ``""`` for none.
        known_as: the id by which the image is known in other data sets; ``""`` where there is none.
    """

    image: str
    caption: str
    where: str
    path: Path
    id: str = ""
    short: str = ""
    split: str = ""
    segments: tuple[Segment, ...] = ()
    group: str = ""
    known_as: str = ""


Rows = Callable[..., Iterator[DenseRow]]


@dataclass(frozen=True)
class DenseSet:
    """A data set of dense captions.

    Args:
        name: what ``read_dense`` and ``--set`` call it.
        rows: ``rows(path, splits, root, log, **options)``: streams the rows of the splits asked for (``()``: all).
        default: the split that is read where none is named.
        splits: the splits that it has; ``()`` where the files say which, or where there are none.
        about: one line for help.
        detects: whether a path looks like this set.
    """

    name: str
    rows: Rows
    default: str
    splits: tuple[str, ...]
    about: str
    detects: Callable[[Path], bool]

    def options(self) -> list[str]:
        """Names of its own options."""
        return [p.name for p in inspect.signature(self.rows).parameters.values() if p.kind is p.KEYWORD_ONLY]


DENSE_SETS: dict[str, DenseSet] = {}
"""The sets, by name."""


def dense_set(
    name: str,
    about: str,
    *,
    default: str = ALL,
    splits: Sequence[str] = (),
    detects: Callable[[Path], bool] = lambda path: False,
) -> Callable[[Rows], Rows]:
    """Make a function the set called ``name``; a new set is a new file in this package that does so."""

    def add(function: Rows) -> Rows:
        if name in DENSE_SETS and DENSE_SETS[name].rows.__module__ != function.__module__:
            raise ValueError(f"two sets of dense captions are called {name!r}")
        DENSE_SETS[name] = DenseSet(name, function, default, tuple(splits), about, detects)
        return function

    return add


def dense_rows(
    name: str,
    path: str | Path,
    *,
    split: str | None = None,
    image_root: str | Path | None = None,
    log: Log | None = None,
    **options: Any,
) -> Iterator[DenseRow]:
    """Stream a set of dense captions, a row at a time.

    Args:
        name: the set (:data:`DENSE_SETS`).
        path: its folder or file.
        split: one or several, joined by ``+`` (``"test+qual_test"``); ``"all"``; default: the set's own.
        image_root: folder that image names start from (default: the set's own layout).
        log: counts the rows that cannot be used (default: the first is an error).
        options: the set's own.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: no such set, split or option; (while reading) naming file and row: a row that cannot be used, or no rows at all.
    """
    if name not in DENSE_SETS:
        raise ValueError(f"there is no set {name!r}; choose one of {', '.join(sorted(DENSE_SETS))}")
    chosen = DENSE_SETS[name]
    unknown = sorted(set(options) - set(chosen.options()))
    if unknown:
        takes = ", ".join(chosen.options()) or "no options"
        raise ValueError(f"the set {name} takes no {', '.join(unknown)}; it takes {takes}")
    if not str(path).strip():
        raise ValueError(f"the set {name} needs a path, and it is empty")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    splits = _splits(chosen, split)
    root = Path(image_root) if image_root is not None else None
    return _counted(chosen, path, splits, root, log if log is not None else Log(), options)


def _counted(
    chosen: DenseSet, path: Path, splits: tuple[str, ...], root: Path | None, log: Log, options: dict[str, Any]
) -> Iterator[DenseRow]:
    count = 0
    for row in chosen.rows(path, splits, root, log, **options):
        count += 1
        yield row
    if not count:
        of = f" of the split {'+'.join(splits)}" if splits else ""
        left = f"; {log.skipped:,} rows cannot be used: {(log.problems + log.empties)[0]}" if log.skipped else ""
        raise ValueError(f"{path}: no captions{of}{left}")


def _splits(chosen: DenseSet, split: str | None) -> tuple[str, ...]:
    text = chosen.default if split is None else split
    if text == ALL:
        return ()
    names = tuple(dict.fromkeys(part.strip() for part in text.split("+")))
    if not all(names):
        raise ValueError(f"split is {split!r}; write one name, several joined by +, or all")
    wrong = [name for name in names if chosen.splits and name not in chosen.splits]
    if wrong:
        raise ValueError(f"{chosen.name} has no split {', '.join(wrong)}; it has {', '.join(chosen.splits)}, all")
    return names


def read_dense(
    name: str,
    path: str | Path,
    *,
    split: str | None = None,
    image_root: str | Path | None = None,
    on_error: OnError = "raise",
    log: Log | None = None,
    **options: Any,
) -> DenseData:
    """Read a set of dense captions.

    Args:
        name: the set (:data:`DENSE_SETS`).
        path: its folder or file.
        split: one or several, joined by ``+`` (``"test+qual_test"``); ``"all"``; default: the set's own.
        image_root: folder that image names start from (default: the set's own layout).
        on_error: ``"raise"`` at the first row that cannot be used, or ``"skip"`` it, counted in ``skipped`` and ``notes``.
        log: takes what cannot be used, in place of ``on_error``.
        options: the set's own, e.g. ``caption="both"`` for DCI.

    Returns:
        The data. Rows of one image are joined; a caption repeated for one image is kept once and noted (it would compete with
        itself); a caption of several images is kept for each and noted: they tie.

    Raises:
        FileNotFoundError, ValueError: as :func:`dense_rows`.
    """
    log = Log(on_error) if log is None else log
    gathered = _Gathered()
    for row in dense_rows(name, path, split=split, image_root=image_root, log=log, **options):
        gathered.add(row)
    chosen = DENSE_SETS[name]
    return gathered.data(name, split or chosen.default, log)


class _Gathered:
    """Rows, joined by image."""

    def __init__(self) -> None:
        self.images: dict[str, int] = {}
        self.first: list[DenseRow] = []  # one an image
        self.rows: list[tuple[int, DenseRow]] = []
        self.seen: set[tuple[int, str]] = set()
        self.repeated = 0

    def add(self, row: DenseRow) -> None:
        image = self.images.setdefault(row.image, len(self.images))
        if image == len(self.first):
            self.first.append(row)
        if (image, row.caption) in self.seen:
            self.repeated += 1
            return
        self.seen.add((image, row.caption))
        self.rows.append((image, row))

    def data(self, name: str, split: str, log: Log) -> DenseData:
        captions = [row.caption for _, row in self.rows]
        ids = self._ids()
        number: dict[int, int] = {}
        caption_ids = []
        for image, _ in self.rows:
            number[image] = number.get(image, -1) + 1
            caption_ids.append(f"{ids[image]}#{number[image]}")
        groups: dict[str, list[int]] = {}
        for image, row in enumerate(self.first):
            if row.group:
                groups.setdefault(row.group, []).append(image)
        any_short = any(row.short for _, row in self.rows)
        any_segments = any(row.segments for row in self.first)
        stems = [_stem(row.image) for row in self.first]
        told = {row.split for _, row in self.rows}
        if split == ALL and len(told) == 1:  # drawn scenes: the folder says which split it is
            split = told.pop() or ALL
        return DenseData(
            name,
            split,
            [row.path for row in self.first],
            captions,
            np.array([image for image, _ in self.rows], np.int64),
            ids,
            caption_ids,
            short=[row.short for _, row in self.rows] if any_short else None,
            segments=[row.segments for row in self.first] if any_segments else None,
            twins=[tuple(group) for group in groups.values() if len(group) > 1],
            where=[row.where for _, row in self.rows],
            known_as=[
                row.known_as or (stem if _KNOWN.fullmatch(stem) else "") for row, stem in zip(self.first, stems, strict=True)
            ],
            notes=self._notes(captions, log),
            skipped=log.skipped,
        )

    def _ids(self) -> list[str]:
        """The rows' own ids, else names without folder and ending, else names: whatever first tells all images apart."""
        candidates = (
            [row.id for row in self.first],
            [row.id or _stem(row.image) for row in self.first],
            [row.image for row in self.first],
        )
        return next(ids for ids in candidates if all(ids) and len(set(ids)) == len(ids))

    def _notes(self, captions: Sequence[str], log: Log) -> list[str]:
        notes = list(log.notes)
        if log.skipped:
            notes.append(f"{log.skipped:,} row{'s' * (log.skipped != 1)} left out: {'; '.join((log.problems + log.empties)[:3])}")
        if self.repeated:
            notes.append(f"{self.repeated:,} captions repeated for one image, kept once")
        shared = len(captions) - len(set(captions))
        if shared:
            notes.append(f"{shared:,} captions stand under more than one image: each is a query and ties with the others")
        files = len({str(row.path) for row in self.first})
        if files < len(self.first):
            notes.append(f"{len(self.first) - files:,} images are the file of another one, under a name of their own")
        return notes


def _stem(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).stem


# What the readers share


def asked(split: str, splits: Sequence[str]) -> bool:
    """Whether rows of this split are wanted."""
    return not splits or split in splits


def locate(root: Path, name: str, *more: Path) -> Path:
    """The file that ``name`` means under ``root`` or another of the folders; where there is none, where it should be.

    Published files name the folders of the machine that made them: see :func:`clipmend.data.images.find_image`.
    """
    for folder in (root, *more):
        found = find_image(name, folder)
        if found is not None:
            return found
    return root / name


def caption_text(value: Any, where: str, field: str) -> str:
    """A caption in one line.

    Raises:
        EmptyCaption: missing or blank.
        ValueError: no text.
    """
    if value is None:
        raise EmptyCaption(f"{where}: {field} is missing")
    if not isinstance(value, str):
        raise ValueError(f"{where}: {field} is {value!r:.60}, not text")
    if not is_text(value):
        raise ValueError(f"{where}: {field} is no valid Unicode: {value!r:.60}")
    text = " ".join(value.split())
    if not text:
        raise EmptyCaption(f"{where}: {field} is empty")
    return text


def json_field(entry: Any, where: str, field: str, kind: type | tuple[type, ...] = str) -> Any:
    """A field of a JSON object that must be there and of this kind; a text must not be blank and must be a possible file name.

    Raises:
        ValueError: no object, no such field, or of another kind.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: {entry!r:.60} stands where an object belongs")
    if field not in entry:
        raise ValueError(f"{where}: {field} is missing; there are {', '.join(map(str, entry)) or 'no fields'}")
    value = entry[field]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"{where}: {field} is {value!r:.60}, not {names}")
    if isinstance(value, str):
        if not value.strip():
            raise ValueError(f"{where}: {field} is empty")
        if "\0" in value or not is_text(value):
            raise ValueError(f"{where}: {field} is {value!r:.60}, which no file can be called")
        return value.strip()
    return value
