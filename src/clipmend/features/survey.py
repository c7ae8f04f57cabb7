"""What a data source holds, once and in a fixed order: its images, known by content, and its captions.

The survey is taken before any work: every image is read and hashed, none is decoded. It fixes which image has which number, so that
any process can make the features of any of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipmend.data.ahead import read_ahead
from clipmend.data.images import find_image, find_images, not_found
from clipmend.data.readers import Log, Record, Source, read, recognise
from clipmend.negation.image_features import content_digest

__all__ = ["DataSource", "Place", "Skip", "StoredImages", "Survey", "read_captions", "read_places", "survey", "write_lines"]

_FIT_TABLES = ("scenes.jsonl", "presence.csv")


@dataclass(frozen=True)
class DataSource:
    """Where data come from, in words that another process can read.

    Args:
        data: what :func:`clipmend.data.readers.read` takes as a string, or a folder made for ``clipmend fit``.
        options: the reader's options.
    """

    data: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def for_fit(self) -> bool:
        """Whether it is a folder as ``clipmend fit`` reads it, whose images and captions are taken just as a fit takes them."""
        folder = Path(self.data)
        return not self.options and (folder / "captions.csv").is_file() and any((folder / table).is_file() for table in _FIT_TABLES)

    def parts(self) -> list[Source]:
        """The sources to read one after another: the shards of a WebDataset each by itself, since no sample spans two."""
        name, rest = recognise(self.data)
        if name == "webdataset":
            from clipmend.data.readers.webdataset import expand_shards

            return [read(str(shard), reader=name, on_error="skip", **self.options) for shard in expand_shards(rest)]
        return [read(rest, reader=name, on_error="skip", **self.options)]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an image is.

    Args:
        image: its name, as the source writes it.
        sha256: of its content.
        part: for an image that the source holds itself, the number of the part; -1 for a file.
        record: likewise, the number of the record within the part.
    """

    image: str
    sha256: str = ""
    part: int = -1
    record: int = -1

    def to_json(self) -> dict[str, Any]:
        held = {"part": self.part, "record": self.record} if self.part >= 0 else {}
        return {"image": self.image, "sha256": self.sha256, **held}


@dataclass(frozen=True, slots=True)
class Skip:
    """What was left out, and why.

    Args:
        image: the image's name; ``""`` for a row that says none.
        reason: what is wrong, with file and row where it is not the image's own fault.
    """

    image: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"image": self.image, "reason": self.reason}


@dataclass(frozen=True)
class Survey:
    """What a source holds.

    Args:
        source: the source.
        root: folder that names of files start from.
        places: the distinct images, in the order they were met; each is there as bytes, though perhaps as no image.
        captions: every caption, repeats included.
        owners: for each caption, the number of its image, -1 for none.
        negated: for each caption, whether the source keeps it apart as one that says what is absent.
        skipped: rows that cannot be used, and images that are not there.
    """

    source: DataSource
    root: Path | None
    places: list[Place]
    captions: list[str]
    owners: list[int]
    negated: list[bool]
    skipped: list[Skip]

    def images(self) -> StoredImages:
        """The images, by number."""
        return StoredImages(self.source, self.places, self.root)


class StoredImages(Sequence[Any]):
    """The images of a survey by number: a path, or for images that the source holds itself their encoded bytes.

    The latter are read in order: going on is cheap, going back reads the part (a shard of a WebDataset) again. Not for threads.

    Args:
        source: the source.
        places: where each image is.
        root: folder that names of files start from.
    """

    def __init__(self, source: DataSource, places: Sequence[Place], root: Path | None = None) -> None:
        self.source, self.places, self.root = source, places, root
        self._parts: list[Source] | None = None
        self._open: tuple[int, Iterator[tuple[int, Record]]] | None = None
        self._next = 0

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: Any) -> Any:
        place = self.places[row]
        if place.part >= 0:
            return self._held(place)
        path = find_image(place.image, self.root or Path())
        return Path(place.image) if path is None else path

    def _held(self, place: Place) -> Any:
        if self._parts is None:
            self._parts = self.source.parts()
        if self._open is None or self._open[0] != place.part or self._next > place.record:
            self._open = (place.part, enumerate(self._parts[place.part].loop(Log("skip"))))
        for number, record in self._open[1]:
            self._next = number + 1
            if number == place.record:
                return record.content
        raise ValueError(f"{self.source.data}: {place.image} is no longer there; the data changed, so run the same command again")


class _EveryWord(Log):
    """A log that keeps every complaint in words."""

    def __init__(self) -> None:
        super().__init__("skip")
        self.all: list[str] = []

    def bad(self, error: Exception) -> None:
        super().bad(error)
        self.all.append(str(error))


def survey(source: DataSource, *, workers: int | None = None) -> Survey:
    """Look through a source.

    Args:
        source: the source.
        workers: threads that read files (default: one a core, at most 8).

    Raises:
        ValueError, OSError: what the reader raises, or a source without anything usable, with the first complaint.
    """
    found = _of_fit_folder(source) if source.for_fit else _of_records(source)

    def digest(item: tuple[int, Place]) -> Place | Skip:
        row, place = item
        if place.sha256:
            return place
        path = find_image(place.image, found.root or Path())
        if path is None:
            return Skip(place.image, not_found(found.root))
        try:
            return Place(place.image, content_digest(path, row))
        except ValueError as error:
            return Skip(place.image, str(error))

    places: list[Place] = []
    skipped = list(found.skipped)
    new = []  # for each image its number among those that are there
    for result in read_ahead(digest, enumerate(found.places), workers):
        if isinstance(result, Skip):
            skipped.append(result)
            new.append(-1)
        else:
            new.append(len(places))
            places.append(result)
    if not places and not found.captions:
        first = f"; the first of {len(skipped):,} complaints: {skipped[0].reason}" if skipped else ""
        raise ValueError(f"{source.data}: holds neither an image nor a caption that can be used{first}")
    owners = [new[row] if row >= 0 else -1 for row in found.owners]
    return Survey(source, found.root, places, found.captions, owners, found.negated, skipped)


def _of_fit_folder(source: DataSource) -> Survey:
    from clipmend.data.folder import negation_data_from_folder

    root = Path(source.data)
    data = negation_data_from_folder(root)
    places = [Place(os.path.relpath(path, root)) for path in data.images]
    captions = [caption.text for caption in data.captions]
    owners = [caption.image for caption in data.captions]
    return Survey(source, root, places, captions, owners, [bool(caption.denies) for caption in data.captions], [])


def _of_records(source: DataSource) -> Survey:
    places: list[Place] = []
    known: dict[tuple[str, str], int] = {}
    captions: list[str] = []
    owners: list[int] = []
    negated: list[bool] = []
    log = _EveryWord()
    parts = _pictures_of(source) or source.parts()
    for number, part in enumerate(parts):
        for place, record in enumerate(part.loop(log)):
            if record.media != "image":
                log.bad(ValueError(f"{record.where}: {record.image} is a video, and features are made of images"))
                continue
            held = record.content is not None
            sha256 = content_digest(record.content) if held else ""
            row = -1
            if record.image:
                row = known.setdefault((record.image, sha256), len(places))
                if row == len(places):
                    places.append(Place(record.image, sha256, number, place) if held else Place(record.image))
            for text, denies in [(t, False) for t in record.captions] + [(t, True) for t in record.negated]:
                captions.append(text)
                owners.append(row)
                negated.append(denies)
    return Survey(source, parts[0].image_root if parts else None, places, captions, owners, negated, [Skip("", t) for t in log.all])


def _pictures_of(source: DataSource) -> list[Source] | None:
    """A folder of pictures without any caption file is every picture of it, without captions; ``None`` for anything else."""
    name, rest = recognise(source.data)
    folder = Path(rest)
    if name != "folder" or source.options or next(folder.rglob("*.txt"), None) is not None:
        return None

    def records(log: Log) -> Iterator[Record]:
        for path in find_images(folder, on_error=lambda at, reason: log.bad(OSError(f"{at}: {reason}"))):
            yield Record(os.path.relpath(path, folder), where=str(path))

    return [Source(folder.name, records, image_root=folder, on_error="skip")]


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """JSON lines, written beside their place and renamed into it."""
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")  # ASCII: file names may hold bytes that are no UTF-8
    beside.replace(path)


def read_places(path: Path) -> list[Place]:
    """Images of a table written by :func:`write_lines`."""
    with path.open(encoding="utf-8") as file:
        return [Place(**json.loads(line)) for line in file]


def read_captions(path: Path) -> tuple[list[str], list[int], list[bool]]:
    """Captions, their images' numbers (-1 for none), and whether they deny, of such a table."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [r["caption"] for r in rows], [-1 if r["image"] is None else r["image"] for r in rows], [r["negated"] for r in rows]
