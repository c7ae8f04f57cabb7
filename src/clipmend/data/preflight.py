"""Look data through before any work: what is missing, unreadable, doubled, empty or too long, counted, with the first examples."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, display_path, not_found, open_image
from clipmend.data.preflight_report import CHECKS, Finding, PreflightReport
from clipmend.data.readers.base import Record, Source
from clipmend.data.records import NegationData

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["CHECKS", "Finding", "PreflightReport", "preflight", "records_of"]

_TEXTS_AT_ONCE = 256


def records_of(data: NegationData) -> Iterator[Record]:
    """The images and captions of :class:`~clipmend.data.NegationData` as records, an image with its captions each."""
    captions: dict[int, list[str]] = {}
    for caption in data.captions:
        captions.setdefault(caption.image, []).append(caption.text)
    for number, image in enumerate(data.images):
        content = image if isinstance(image, Image.Image) else None
        name = f"image {number}" if content is not None else os.fspath(image)
        texts = tuple(captions.get(number, ()))
        yield Record(name, texts, present=data.facts[number], where=f"{data.name}: image {number}", content=content)


def preflight(
    records: Iterable[Record] | NegationData,
    encoder: DualEncoder | None = None,
    image_root: str | Path | None = None,
    *,
    decode: bool = True,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    limit: int | None = None,
    examples: int = 5,
    workers: int | None = None,
    progress: bool = False,
) -> PreflightReport:
    """Look through images and captions.

    A digest of each distinct image and caption is kept (some 100 bytes), nothing else. Images are read ahead in threads.

    Args:
        records: a :class:`~clipmend.data.readers.Source` or any records; or data for a fit.
        encoder: where given, captions over its context length are counted, for which its tokenizer runs.
        image_root: folder that image names start from (default: the source's own, else the working directory).
        decode: decode every image and compare the bytes of all; otherwise only look whether the file is there.
        max_pixels: images of more are unreadable (see :func:`clipmend.data.images.open_image`).
        limit: look at the first rows only.
        examples: most examples kept of each finding.
        workers: threads (default: one a core, at most 8).
        progress: show a counter on a terminal.

    Raises:
        ValueError: what the source raises; with ``on_error="skip"`` it counts bad rows instead, and so does the report.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 (got {limit})")
    source = records if isinstance(records, Source) else None
    if isinstance(records, NegationData):
        name: str = records.name
        rows: Iterable[Record] = records_of(records)
    else:
        name, rows = (source.name if source is not None else "records"), records
    if image_root is None and source is not None:
        image_root = source.image_root
    report = PreflightReport(name, findings={check: Finding() for check in CHECKS})
    for check, made in (("rows_unusable", source is not None), ("captions_truncated", encoder is not None)):
        if not made:
            del report.findings[check]
    if not decode:
        del report.findings["images_unreadable"], report.findings["images_duplicated"]
    look = _Look(report, examples, encoder)
    with _counter("Looking at images and captions", progress) as advance:
        for record, image in _checked(_first(rows, limit, report), look, image_root, decode, max_pixels, workers):
            look.add(record, image)
            advance()
    look.finish()
    missing = report.findings["images_missing"].count
    if missing:
        report.notes.append(f"{missing:,} images {not_found(image_root)}")
    if source is not None:
        log = source.log
        report.findings["rows_unusable"] = Finding(log.skipped - log.empty, log.problems[:examples])
        empty = report.findings["captions_empty"]  # a reader leaves such rows out, so they have not been met above
        empty.count, empty.examples = empty.count + log.empty, (empty.examples + log.empties)[:examples]
        report.notes += source.log.notes
    return report


def _first(rows: Iterable[Record], limit: int | None, report: PreflightReport) -> Iterator[Record]:
    for number, row in enumerate(rows):
        if limit is not None and number >= limit:
            report.complete = False
            return
        yield row


@dataclass(frozen=True)
class _Seen:
    """What a look at an image gave: its digest, or what is wrong with it."""

    digest: int = 0
    missing: str = ""
    unreadable: str = ""


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _digest_of_file(path: Path) -> int:
    """As :func:`_digest` of its bytes, in pieces."""
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return int.from_bytes(digest.digest(), "little")


def _look_at(record: Record, root: str | Path | None, decode: bool, max_pixels: int | None) -> _Seen:
    if record.content is None:
        path = record.path(root)
        if path is None:
            return _Seen(missing=f"{display_path(record.image)} ({record.where})")
        if not decode or record.media == "video":
            return _Seen()
        try:
            digest = _digest_of_file(path)
            open_image(path, max_pixels=max_pixels, draft_size=64)  # a JPEG is read to its end, at an eighth of the size
        except ImageError as error:
            return _Seen(unreadable=str(error))
        except OSError as error:
            return _Seen(unreadable=f"{display_path(path)}: {error.strerror or error}")
        return _Seen(digest)
    if not decode:
        return _Seen()
    try:
        picture = record.open(max_pixels=max_pixels)
    except ImageError as error:
        return _Seen(unreadable=str(error))
    held = record.content if isinstance(record.content, bytes) else repr(picture.size).encode() + picture.tobytes()
    return _Seen(_digest(held))


def _checked(
    rows: Iterator[Record],
    look: _Look,
    root: str | Path | None,
    decode: bool,
    max_pixels: int | None,
    workers: int | None,
) -> Iterator[tuple[Record, _Seen | None]]:
    """Records in order, each new image looked at; ``None`` for one that was looked at before."""
    count = workers or min(8, os.cpu_count() or 1)
    waiting: deque[tuple[Record, Future[_Seen] | None]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="preflight") as pool:
        for record in rows:
            new = look.is_new(record)
            waiting.append((record, pool.submit(_look_at, record, root, decode, max_pixels) if new else None))
            if len(waiting) > 4 * count:  # so many records, with the images they may hold, are in memory
                first, future = waiting.popleft()
                yield first, future.result() if future is not None else None
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result() if future is not None else None


class _Look:
    """What has been seen so far, as digests."""

    def __init__(self, report: PreflightReport, keep: int, encoder: DualEncoder | None) -> None:
        self.report, self.keep, self.encoder = report, keep, encoder
        self.names: set[int] = set()
        self.contents: dict[int, str] = {}
        self.rows: set[int] = set()
        self.pairs: set[int] = set()
        self.captions: dict[int, int] = {}  # caption -> image
        self.shared: set[int] = set()
        self.texts: list[tuple[str, str]] = []

    def found(self, check: str, example: str) -> None:
        if check in self.report.findings:
            self.report.findings[check].add(example, self.keep)

    def is_new(self, record: Record) -> bool:
        """Whether this image is named for the first time; what a source holds itself is always new."""
        if record.content is not None:
            self.report.images += 1
            return True
        if not record.image:  # captions about no image
            return False
        key = _digest(_bytes(record.image))
        if key in self.names:
            return False
        self.names.add(key)
        self.report.images += 1
        return True

    def add(self, record: Record, image: _Seen | None) -> None:
        self.report.records += 1
        self.report.questions += record.answer is not None
        if image is not None:
            self._image(record, image)
        texts = (*record.captions, *record.negated)
        self.report.captions += len(texts)
        held = record.where if record.content is not None else record.image  # an image that a row holds is that row's own
        about = _bytes(held)
        row = _digest(b"\0".join([about, repr(record.answer).encode(), *(_bytes(text) for text in texts)]))
        if row in self.rows:
            if about:
                self.found("rows_duplicated", f"{record.where}: {display_path(record.image)}")
            return  # its captions are those of the row it repeats; about no image, the same may be said of any
        self.rows.add(row)
        self._captions(record, texts, about)

    def _image(self, record: Record, image: _Seen) -> None:
        if image.missing:
            self.found("images_missing", image.missing)
        elif image.unreadable:
            self.found("images_unreadable", image.unreadable)
        elif image.digest:
            name = display_path(record.image)
            if image.digest in self.contents:
                self.found("images_duplicated", f"{name} is {self.contents[image.digest]}")
            else:
                self.contents[image.digest] = name

    def _captions(self, record: Record, texts: Sequence[str], about: bytes) -> None:
        image = _digest(about)
        here: set[str] = set()
        for text in texts:
            if not text.strip():
                self.found("captions_empty", f"{record.where}: {display_path(record.image)}")
                continue
            caption = _digest(_bytes(text))
            known = self.captions.get(caption)
            if record.answer is not None:  # the questions about one image share options; in one question none may stand twice
                again = text in here
            else:
                pair = _digest(about + b"\0" + _bytes(text))
                again = pair in self.pairs
                self.pairs.add(pair)
                if about and known not in (None, image) and caption not in self.shared:
                    self.shared.add(caption)
                    self.found("captions_shared", f"{record.where}: {text!r:.80}")
            if again:
                self.found("captions_duplicated", f"{record.where}: {text!r:.80}")
            here.add(text)
            if known is None and about:
                self.captions[caption] = image
            if self.encoder is not None and (known is None if about else not again):
                self.texts.append((text, record.where))
        if len(self.texts) >= _TEXTS_AT_ONCE:
            self._measure()

    def _measure(self) -> None:
        if self.encoder is not None and self.texts:
            for row in long_texts(self.encoder, [text for text, _ in self.texts]):
                text, where = self.texts[row]
                self.found("captions_truncated", f"{where}: {text!r:.80}")
        self.texts = []

    def finish(self) -> None:
        self._measure()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def long_texts(encoder: DualEncoder, texts: Sequence[str]) -> list[int]:
    """Positions of the texts that are over the encoder's context length.

    By its tokenizer alone where that can be had, else by what the encoder reports of passes over ever smaller parts.
    """
    tokenise = getattr(getattr(encoder, "tower", None), "tokenise", None)
    if tokenise is not None:
        return sorted(tokenise(list(texts)).long)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        encoder.encode_texts(list(texts), on_long="warn")
    count = sum(getattr(entry.message, "count", 0) for entry in caught)
    if not count or len(texts) == 1:
        return [0] if count else []
    if count == len(texts):
        return list(range(count))
    half = len(texts) // 2
    return long_texts(encoder, texts[:half]) + [half + row for row in long_texts(encoder, texts[half:])]


@contextmanager
def _counter(what: str, show: bool) -> Iterator[Any]:
    if not show or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(what), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda: bar.advance(task)
