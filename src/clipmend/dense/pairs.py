"""Images and captions to train on, from whatever the readers give."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clipmend.backbones.kinds import kind_of
from clipmend.data.ahead import read_ahead
from clipmend.data.images import ImageError, check_header, display_path, not_found, open_image
from clipmend.data.readers import read
from clipmend.data.readers.base import Log, Record, Source, recognise
from clipmend.data.readers.folder import table_inside

__all__ = ["Pairs", "as_pairs", "open_pairs"]

_WAY = "leave out what cannot be used with --skip-broken (skip_broken=True in Python)"


class _Strict(Log):
    """Raises at the first row that cannot be used, and names the option that leaves such rows out."""

    def __init__(self) -> None:
        super().__init__("skip")  # so that readers bring broken rows here too, rather than raise them themselves

    def bad(self, error: Exception) -> None:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        raise kind(f"{error}; {_WAY}") from error


@dataclass
class Pairs:
    """Images and their captions: a pair for each caption.

    Args:
        name: of the data.
        images: ``[N]`` paths, records that hold their image, or PIL images.
        captions: ``[M]``.
        image_of: int64 ``[M]`` position of each caption's image.
        image_ids: ``[N]`` a name for each image, distinct.
        short: ``[M]`` a short caption for each, ``""`` where there is none; ``None`` where there are none at all.
        segments: ``[N]`` parts of each image with their sentences; ``None`` where there are none.
        notes: what was noticed while reading.
    """

    name: str
    images: list[Any]
    captions: list[str]
    image_of: NDArray[np.int64]
    image_ids: list[str]
    short: list[str] | None = None
    segments: list[tuple[Any, ...]] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image_of = np.asarray(self.image_of, np.int64)
        if not self.captions:
            raise ValueError(f"{self.name}: there is no image with a caption to train on")
        # By a dictionary: an array of texts gives each the room of the longest, tens of gigabytes for a million captions.
        known: dict[str, int] = {}
        self.caption_ids = np.array([known.setdefault(caption, len(known)) for caption in self.captions], np.int64)

    def __len__(self) -> int:
        return len(self.captions)

    def open(self, row: int) -> Image.Image:
        """The image of a pair, RGB.

        Raises:
            ImageError: missing or damaged; names it, and the way out.
        """
        image = self.images[self.image_of[row]]
        try:
            return image.open() if isinstance(image, Record) else open_image(image)
        except ImageError as error:
            seen = _header_error(image) is not None  # what a look at the header does not find, the option would not leave out
            way = _WAY if seen else "take it out of the data; clipmend data check finds all of its kind"
            raise ImageError(error.source, f"{error.reason}; {way}") from error

    def without(self, gone: set[int]) -> Pairs:
        """The pairs without the images at these positions.

        Raises:
            ValueError: none is left.
        """
        kept = [k for k in range(len(self.images)) if k not in gone]
        place = {old: new for new, old in enumerate(kept)}
        rows = [row for row, image in enumerate(self.image_of.tolist()) if image in place]
        return Pairs(
            self.name, [self.images[k] for k in kept], [self.captions[row] for row in rows],
            np.array([place[int(self.image_of[row])] for row in rows], np.int64), [self.image_ids[k] for k in kept],
            short=None if self.short is None else [self.short[row] for row in rows],
            segments=None if self.segments is None else [self.segments[k] for k in kept], notes=list(self.notes),
        )  # fmt: skip

    def digest(self) -> str:
        """SHA-256 of the captions, short ones too, the images' names and the parts of these: the same wherever the files lie."""
        digest = hashlib.sha256()
        for row, caption in enumerate(self.captions):
            digest.update(f"{self.image_ids[self.image_of[row]]}\0{caption}\n".encode("utf-8", "surrogatepass"))
        for row, short in enumerate(self.short or ()):
            digest.update(f"short {row}\0{short}\n".encode("utf-8", "surrogatepass"))
        for place, segments in enumerate(self.segments or ()):
            for part in segments:
                line = f"{self.image_ids[place]}\0{part.box}\0{part.caption}\0{part.score}\n"
                digest.update(line.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def split(self, share: float, most: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """``(training rows, validation rows)``: ``share`` of the images, two at least and ``most`` at most, go to the second.

        A caption of a held-out image that stands under another one too is held out with it, and so no text is in both.

        Raises:
            ValueError: fewer than four images, or none left whose captions are not held out.
        """
        count = len(self.images)
        if count < 4:
            raise ValueError(f"{self.name}: {count} images are too few to train on; a part of them is held out, and that takes 4")
        held = np.zeros(count, bool)
        number = min(most, max(2, round(share * count)))
        held[np.random.default_rng((seed, 0)).permutation(count)[: min(number, count // 2)]] = True
        valid = held[self.image_of]
        shared = np.isin(self.caption_ids, np.unique(self.caption_ids[valid])) & ~valid
        if not (~valid & ~shared).any():
            raise ValueError(
                f"{self.name}: no pair is left to train on: {int(held.sum())} images are held out, and every other caption stands "
                "under one of these too"
            )
        return np.flatnonzero(~valid & ~shared), np.flatnonzero(valid)


def as_pairs(data: Any, **options: Any) -> Pairs:
    """What a caller gave as training data, as :class:`Pairs`.

    Args:
        data: pairs already; a path or ``READER:PATH`` (:func:`open_pairs`); a :class:`~clipmend.data.readers.base.Source`; a set of
            dense captions (:func:`clipmend.data.dense.read_dense`); or a list of ``(image, caption)``, where an image is a path
            or a PIL image.
        options: of the reader, for a path.

    Raises:
        ValueError: nothing to train on, an item that is no pair. TypeError: another kind of object.
    """
    if isinstance(data, Pairs):
        return data
    if isinstance(data, (str, Path)):
        return open_pairs(str(data), **options)
    if options:
        raise ValueError(f"{', '.join(options)}: options of a reader go with a path")
    if isinstance(data, Source):
        return _from_source(data)
    if hasattr(data, "captions") and hasattr(data, "image_of"):
        return _from_dense(data)
    if not isinstance(data, Iterable):
        raise TypeError(f"cannot train on {kind_of(data)}; give a path, a source, or a list of (image, caption)")
    return _from_list(list(data))


def open_pairs(source: str, *, split: str | None = None, skip_broken: bool = False, **options: Any) -> Pairs:
    """Read training pairs from disk.

    Args:
        source: a folder that ``clipmend scenes`` wrote (its paragraphs); a folder with a table of captions (``captions.csv``,
            ``metadata.jsonl``, ``train.parquet``, ...) beside its images; a folder of images with a ``.txt`` each, which is taken
            as *one* caption (``captions="lines"``: one a line); or anything that a reader of :mod:`clipmend.data.readers` or a
            set of dense captions takes, by path or as ``READER:PATH``.
        split: of the sets that have one; default: ``train``.
        skip_broken: leave out rows that cannot be used, and images that are not there or whose header cannot be read (each is
            opened once, not decoded); counted and named in ``notes``. Default: the first is an error.
        options: of the reader.

    Raises:
        ValueError: no captions, a test split, a row that cannot be used. OSError: no such file or folder.
    """
    log = Log("skip") if skip_broken else _Strict()
    pairs = _open(source, split, log, options)
    if skip_broken:
        gone = _broken(pairs, log)
        pairs = pairs.without(gone) if gone else pairs
        pairs.notes += _left_out(log)
    return pairs


def _broken(pairs: Pairs, log: Log) -> set[int]:
    """Positions of the images whose header cannot be read; the log counts them."""

    gone = set()
    for place, error in enumerate(read_ahead(_header_error, pairs.images, None)):
        if error is not None:
            gone.add(place)
            log.bad(error)
    if len(gone) == len(pairs.images):
        raise ValueError(f"{pairs.name}: no image can be opened; the first: {log.problems[0]}")
    return gone


def _header_error(image: Any) -> ImageError | None:
    """What is wrong with an image that cannot even be begun to read."""
    content: Any = image.content if isinstance(image, Record) else image
    try:
        check_header(io.BytesIO(content) if isinstance(content, bytes) else content)
    except ImageError as error:
        return ImageError(f"{image.where}: {image.image}", error.reason) if isinstance(image, Record) else error
    return None


def _left_out(log: Log) -> list[str]:
    if not log.skipped:
        return []
    named = [*log.problems, *log.empties]
    lines = [f"{log.skipped:,} rows or images that cannot be used left out:", *(f"  {display_path(line)}" for line in named)]
    return lines + ([f"  and {log.skipped - len(named):,} more"] if log.skipped > len(named) else [])


def _open(source: str, split: str | None, log: Log, options: dict[str, Any]) -> Pairs:
    from clipmend.data.dense import DENSE_SETS, read_dense

    reader, path = recognise(source) if source.strip() else ("", "")
    if not str(path).strip():
        raise ValueError("the path of the training data is empty")
    folder = Path(path)
    if reader == "scenes":
        return _scenes(folder, split, options, log)
    if reader in DENSE_SETS and reader not in ("table", "folder"):
        chosen = _training_split(reader, DENSE_SETS[reader].splits, split)
        return _from_dense(read_dense(reader, folder, split=chosen, log=log, **options), log)
    if split is not None:
        options["split"] = split
    if reader == "folder":
        table = table_inside(folder)
        if table is not None and ":" not in source:
            return _from_source(read(str(table), "table", **{"image_root": folder, **options}), log)
        options = {"captions": "whole", **options}
    elif reader == "table" and "image_root" not in options:
        options["image_root"] = folder.parent
    return _from_source(read(path, reader, **options), log)


def _training_split(name: str, has: Sequence[str], split: str | None) -> str | None:
    """The split to train on; one that is for testing is refused.

    Raises:
        ValueError: a test split, or a set that has no other.
    """
    if has and "train" not in has and split is None:
        raise ValueError(f"{name} has no split to train on ({', '.join(has)}): it is a test set")
    chosen = split or ("train" if has else None)
    if chosen is not None and any(
        part.strip().startswith(("test", "qual_test", "val")) or part == "all" for part in chosen.split("+")
    ):
        raise ValueError(
            f"{name}: the split {chosen!r} is for testing or validation; train on 'train', a part of which is held out"
        )
    return chosen if has or split else "all"


def _scenes(folder: Path, split: str | None, options: dict[str, Any], log: Log) -> Pairs:
    """The paragraphs of drawn scenes; their near-twins too with ``twins=True``."""
    twins = options.pop("twins", False)
    if options:
        raise ValueError(f"drawn scenes take no {', '.join(options)} here; they take twins")
    about = folder / "world.json"
    drawn = str(json.loads(about.read_text(encoding="utf-8")).get("split", "")) if about.is_file() else ""
    if "test" in (drawn, split):
        raise ValueError(f"{folder} holds scenes of the test split; train on others: clipmend scenes OUT --split train")
    table = folder / "dense.jsonl"
    if not table.is_file():
        raise FileNotFoundError(f"{table}: no such file; write scenes with: clipmend scenes {folder}")
    found = []
    for image, caption in (("image", "caption"), ("twin_image", "twin_caption"))[: 1 + bool(twins)]:
        rows = read(str(table), "table", image_column=image, caption_column=caption, image_root=folder)
        found += list(rows.loop(log))
    return _from_records(folder.name or "scenes", found, folder, [], log)


def _from_source(source: Source, log: Log | None = None) -> Pairs:
    records = list(source if log is None else source.loop(log))
    notes = list(source.log.notes)
    if log is None and source.log.skipped:
        first = next(iter([*source.log.problems, *source.log.empties]), "")
        notes.append(f"{source.log.skipped:,} rows that cannot be used left out; the first: {first}")
    return _from_records(source.name, records, source.image_root, notes, log or Log())


def _from_records(name: str, records: Sequence[Record], root: Path | None, notes: list[str], log: Log) -> Pairs:
    places: dict[str, int] = {}
    images: list[Any] = []
    captions: list[str] = []
    image_of: list[int] = []
    seen: set[tuple[int, str]] = set()
    without = 0
    for record in records:
        if record.media == "video":
            raise ValueError(f"{record.where}: {record.image} is a video; the trainer takes images alone")
        texts = record.captions if record.answer is None else (record.captions[record.answer],)
        if not texts:
            without += 1
            continue
        if record.image not in places:
            path = None if record.content is not None else record.path(root)
            if record.content is None and path is None:
                log.bad(FileNotFoundError(f"{record.where}: {record.image} {not_found(root)}"))
                continue
            places[record.image] = len(images)
            images.append(record if path is None else path)
        for text in texts:
            if (places[record.image], text) not in seen:
                seen.add((places[record.image], text))
                captions.append(text)
                image_of.append(places[record.image])
    if without:
        notes.append(f"{without:,} images without a caption left out")
    if not captions and log.skipped:
        raise ValueError(f"{name}: no row of {log.skipped:,} can be used; the first: {[*log.problems, *log.empties][0]}")
    return Pairs(name, images, captions, np.array(image_of, np.int64), list(places), notes=notes)


def _from_dense(data: Any, log: Log | None = None) -> Pairs:
    missing = data.missing()
    if missing and (log is None or isinstance(log, _Strict)):
        error = str(data.missing_error(missing))
        raise FileNotFoundError(error if log is None else error.replace("(--skip-missing)", "(--skip-broken)"))
    return Pairs(
        data.name, list(data.images), list(data.captions), data.image_of, list(data.image_ids),
        short=data.short, segments=data.segments, notes=list(data.notes),
    )  # fmt: skip


def _from_list(items: list[Any]) -> Pairs:
    places: dict[Any, int] = {}
    images: list[Any] = []
    captions: list[str] = []
    image_of = []
    for k, item in enumerate(items):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise ValueError(f"item {k} is no pair of an image and a caption: {item!r:.60}")
        image, caption = item
        if not isinstance(image, (str, Path, Image.Image)):
            raise ValueError(f"item {k}: the image is {kind_of(image)}, not a path or a PIL image")
        if not isinstance(caption, str) or not caption.strip():
            raise ValueError(f"item {k}: the caption is {caption!r:.60}, not a text with a word in it")
        key = id(image) if isinstance(image, Image.Image) else str(image)
        if key not in places:
            places[key] = len(images)
            images.append(image)
        captions.append(caption)
        image_of.append(places[key])
    names = [key if isinstance(key, str) else f"image {place}" for key, place in places.items()]
    return Pairs("pairs", images, captions, np.array(image_of, np.int64), names)
