"""Make an index of folders, or bring it up to date: embed what is new, keep what is known, resume what was killed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

import numpy as np
from PIL import Image

from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, date_taken, display_path, open_image, walk_images
from clipmend.search import changes, migrate, store
from clipmend.search.connections import Connections
from clipmend.search.creating import check_same_encoder, start
from clipmend.search.database import Database, raw
from clipmend.search.embed import embed_stream, progress_bar, read_ahead
from clipmend.search.maintain import maintain
from clipmend.search.report import UpdateReport, told_others
from clipmend.search.roots import Root, match_roots, read_roots
from clipmend.search.store import ImageIndexError, Manifest
from clipmend.search.writer import Content, Writer

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["UpdateReport", "build_index"]

Folders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_BATCH = 1024
_MOST_ENDINGS = 1000
_Key = tuple[bytes, "float | None"]
_Keyed = tuple[_Key, Image.Image]


@dataclass(frozen=True)
class _Found:
    """What reading one file gave: the content's digest, and the picture if its vector is not known yet."""

    number: int
    size: int = 0
    mtime_ns: int = 0
    sha256: bytes = b""
    image: Image.Image | None = None
    error: str = ""


def build_index(
    encoder: DualEncoder | Callable[[], DualEncoder],
    folder: Folders,
    directory: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    dtype: str | None = None,
    workers: int | None = None,
    approximate: bool | None = None,
    progress: bool = False,
) -> UpdateReport:
    """Index every image under some folders into ``directory``, or update the index that is there.

    A file whose size and modification time are as before is not read again. One that is new or touched is hashed (SHA-256), and
    embedded only if no image of that content ever was: moved files and copies cost nothing. Vectors go to disk as they are made,
    so that a run that is killed loses at most some seconds of work; what images there are changes in one step, at the end. Memory
    does not grow with the number of files.

    Args:
        encoder: any encoder with an image side (a mended one indexes exactly like its backbone); or a function that gives one. It
            is called once, when an index is made or the first image is to be embedded: a run that embeds nothing needs no model.
        folder: the images, recursively (see :func:`clipmend.data.images.find_images`); one folder or several. The index is of these
            and no others: images of a folder that is no longer named leave it.
        directory: the index; created, or updated if it is one.
        batch_size: most images a forward pass.
        max_pixels: larger images are skipped (see :func:`clipmend.data.images.open_image`); ``None`` for no limit.
        dtype: how vectors are stored: ``"float32"`` (default) or ``"float16"`` (half the size; cosines to about 1e-3). Of an
            existing index: as it is.
        workers: threads that read and decode (default: one a core, at most 8).
        approximate: whether to keep a graph for approximate search; ``None``: from 50,000 images on
            (see :class:`clipmend.search.nearest.Graph`).
        progress: show a bar with rate and time left on a terminal.

    Raises:
        ImageIndexError: ``directory`` holds something else, an index by another encoder, or one being written right now.
        ValueError: no image under ``folder``, or none that can be used (an index stays as it is); a text-only encoder; a folder
            inside another.
        OSError: ``folder`` is missing, or ``directory`` cannot be written.
    """
    started = time.perf_counter()
    directory = Path(directory)
    folders = [folder] if isinstance(folder, (str, os.PathLike)) else list(folder)
    ready = _ready(encoder)
    if not _is_loader(encoder):  # there it is: no need to wait for the first image
        made_by = ready()
        if store.exists(directory):
            check_same_encoder(directory, migrate.current(directory), made_by)
    match_roots([], folders, directory)  # whether they can be indexed at all, before anything is made
    _refuse_no_image(folders)
    made = [place for place in (directory, *directory.parents) if not place.exists()]  # the innermost first
    start(directory, ready, dtype)
    with store.locked(directory):
        manifest = store.read_manifest(directory)
        database = Database(directory, manifest)
        try:
            run = _Run(database, manifest, folders, max_pixels)
            try:
                run.look(progress)
                run.read_and_embed(ready, batch_size, workers, progress)
                run.refuse_nothing(run.seen())
            except BaseException:
                _save_what_is_done(run.writer)
                if not database.meta("complete") and not database.shards():
                    database.close()
                    store.remove_empty(directory)
                    for place in made:
                        with suppress(OSError):  # one that holds anything stays
                            place.rmdir()
                raise
            run.writer.flush()
            report = run.commit(directory, started)
            maintain(directory, manifest, database, approximate=approximate, progress=progress, workers=workers)
        finally:
            database.close()
    return replace(report, seconds=time.perf_counter() - started)


def _is_loader(encoder: DualEncoder | Callable[[], DualEncoder]) -> TypeGuard[Callable[[], DualEncoder]]:
    return callable(encoder) and not hasattr(encoder, "encode_images")


def _ready(encoder: DualEncoder | Callable[[], DualEncoder]) -> Callable[[], DualEncoder]:
    """Gives the encoder, loaded when it is first asked for."""

    @cache
    def ready() -> DualEncoder:
        made = encoder() if _is_loader(encoder) else cast("DualEncoder", encoder)
        if not made.fingerprint.image:
            raise ValueError(f"{made.name} has no image side: it cannot index images")
        return made

    return ready


class _Run:
    """One pass over the folders."""

    def __init__(
        self, database: Database, manifest: Manifest, folders: Sequence[str | os.PathLike[str]], max_pixels: int | None
    ) -> None:
        self.database, self.max_pixels, self.folders = database, max_pixels, folders
        known = read_roots(database.connection, database.directory)
        self.roots = match_roots(known, folders, database.directory)
        self.writer = Writer(database, manifest)
        self.committed = database.meta("committed")
        self.embedded = 0
        self.others: Counter[str] = Counter()
        self.contents = Connections(database.directory)
        self.given = dict(zip([root.id for root in self.roots], [root.path for root in self.roots], strict=True))
        for folder in folders:  # as they were given, for messages and for the paths that are opened
            for root in self.roots:
                if Path(folder).resolve() == root.path:
                    self.given[root.id] = Path(folder)

    def look(self, progress: bool) -> None:
        """List the files, and tell apart those that are as they were."""
        changes.begin(self.database)
        for root in self.roots:
            with self.database.scratch(), progress_bar(f"Looking at {root.name}", None, progress) as advance:
                self.database.many(changes.ADD, self._listed(root, advance))
        self.writer.respell(self.roots)
        changes.compare(self.database, [root.id for root in self.roots if root.trusted])

    def _listed(self, root: Root, advance: Callable[[], None]) -> Iterator[tuple[object, ...]]:
        base = self.given[root.id]
        failed: list[tuple[Path, str]] = []

        def row(path: Path, status: os.stat_result | None, error: str | None = None) -> tuple[object, ...]:
            relative = path.relative_to(base).as_posix()
            path_bytes = raw(root.prefix + ("" if relative == "." else relative))
            folder, _, name = path_bytes.rpartition(b"/")
            if error is not None:  # a folder
                return path_bytes, root.id, None, None, None, None, changes.BAD, error
            size, mtime_ns = (None, None) if status is None else (status.st_size, status.st_mtime_ns)
            return path_bytes, root.id, folder, name, size, mtime_ns, changes.TODO, None

        own = os.path.realpath(self.database.directory)

        @lru_cache(maxsize=1)  # the files of a folder come one after the other
        def is_own(folder: str) -> bool:
            return os.path.realpath(folder) == own

        def other(path: str) -> None:
            folder, name = os.path.split(path)
            if not is_own(folder):
                ending = os.path.splitext(name)[1].lower()
                self.others[ending if ending in self.others or len(self.others) < _MOST_ENDINGS else ".*"] += 1

        for text, status in walk_images(base, on_error=lambda path, reason: failed.append((path, reason)), on_other=other):
            advance()
            yield row(Path(text), status)
            while failed:
                path, reason = failed.pop()
                yield row(path, None, reason)
        while failed:
            path, reason = failed.pop()
            yield row(path, None, reason)

    def read(self, item: tuple[int, Path]) -> _Found:
        """Look at one file; runs in a thread."""
        number, path = item
        try:
            before = path.stat()
            if not path.is_file():
                open_image(path)  # raises, with the reason
            sha256 = bytes.fromhex(store.file_digest(path))
            known = self.contents.rows("SELECT 1 FROM contents WHERE sha256 = ? LIMIT 1", (sha256,))
            image = None if known else open_image(path, max_pixels=self.max_pixels)
            after = path.stat()
        except ImageError as error:
            return _Found(number, error=error.reason)
        except OSError as error:
            return _Found(number, error=self._why(path, error))
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            return _Found(number, error="changed while it was read; run the same command again")
        return _Found(number, before.st_size, before.st_mtime_ns, sha256, image)

    def _why(self, path: Path, error: OSError) -> str:
        try:
            open_image(path, max_pixels=self.max_pixels)  # has better words for a missing or forbidden file
        except ImageError as better:
            return better.reason
        return f"cannot be read ({error.strerror or error})"

    def read_and_embed(self, ready: Callable[[], DualEncoder], batch_size: int, workers: int | None, progress: bool) -> None:
        """Read what is new or touched, and embed the contents that are not known; only then the encoder is needed."""
        database = self.database
        prefixes = {root.id: len(raw(root.prefix)) for root in self.roots}
        waiting: list[tuple[object, ...]] = []

        def save() -> None:
            if waiting:
                with database.scratch():
                    database.many(changes.FOUND, waiting)
                waiting.clear()

        def files() -> Iterator[tuple[int, Path]]:
            for number, root, path in changes.todo(database):
                yield number, self.given[root] / os.fsdecode(raw(path)[prefixes[root] :])

        def to_embed(advance: Callable[[], None]) -> Generator[_Keyed, None, None]:
            for found in read_ahead(self.read, files(), workers):
                advance()
                state = changes.BAD if found.error else changes.READ
                waiting.append((found.size, found.mtime_ns, found.sha256, state, found.error or None, found.number))
                if len(waiting) >= _BATCH:
                    save()
                if found.image is not None and self.writer.ask(found.sha256):
                    yield (found.sha256, date_taken(found.image)), found.image

        def embed(first: _Keyed, others: Iterator[_Keyed]) -> Iterator[tuple[_Key, tuple[int, int], np.ndarray | str]]:
            encoder = ready()
            check_same_encoder(database.directory, self.writer.manifest, encoder)
            return embed_stream(encoder, chain([first], others), batch_size)

        try:
            with (
                progress_bar("Indexing", changes.count(database, changes.TODO), progress) as advance,
                closing(to_embed(advance)) as images,  # its threads end before their connections do
            ):
                first = next(images, None)
                for (sha256, taken), (width, height), vector in () if first is None else embed(first, images):
                    if isinstance(vector, str):
                        with database.scratch():
                            database.execute("INSERT OR IGNORE INTO temp.refused VALUES(?, ?)", (sha256, raw(vector)))
                    else:
                        self.embedded += 1
                        self.writer.add(Content(sha256, width, height, taken), vector)
        finally:
            self.contents.close()
        save()
        changes.refuse(database)

    def seen(self) -> int:
        """How many files there were."""
        return int(self.database.one("SELECT count(*) FROM temp.seen WHERE name IS NOT NULL"))

    def refuse_nothing(self, count: int) -> None:
        """Refuse folders of which no file can be used: that is a mistake (a wrong limit, a lost disk), not an index of nothing.

        Raises:
            ValueError: with the first file and its reason.
        """
        if changes.count(self.database, changes.SAME) + changes.count(self.database, changes.READ):
            return
        first = self.database.execute(
            "SELECT path, error FROM temp.seen WHERE state = ? ORDER BY path LIMIT 1", (changes.BAD,)
        ).fetchone()
        if not count:  # they were there a moment ago
            raise ValueError(f"no image is left under {_told(self.folders)}; an index is left as it is")
        if first is not None:
            raise ValueError(
                f"none of the {count:,} images under {_told(self.folders)} can be used, so no index was written; the first: "
                f"{display_path(first[0])} {first[1]}"
            )

    def commit(self, directory: Path, started: float) -> UpdateReport:
        """Write what changed, in one transaction."""
        database = self.database
        skipped = changes.skipped(database)
        try:
            before = store.read_skipped(directory)
        except ImageIndexError:  # damaged: written again here
            before = {}
        store.write_skipped(directory, skipped)
        resumed = database.one(
            "SELECT count(DISTINCT seen.sha256) FROM temp.seen JOIN contents ON contents.sha256 = seen.sha256"
            " WHERE contents.row >= ? AND contents.row < ?",
            (self.committed, self.writer.first),
        )
        counts = changes.commit(database, self.roots, len(skipped), self.writer.rows)
        return UpdateReport(
            count=counts.count,
            embedded=self.embedded,
            resumed=resumed,
            added=counts.added,
            changed=counts.changed,
            moved=counts.moved,
            removed=counts.removed,
            unchanged=counts.unchanged,
            skipped=skipped,
            seconds=time.perf_counter() - started,
            newly_skipped={path: reason for path, reason in skipped.items() if before.get(path) != reason},
            others=dict(self.others),
        )


def _told(folders: Sequence[str | os.PathLike[str]]) -> str:
    return ", ".join(display_path(folder) for folder in folders)


def _refuse_no_image(folders: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse folders without any file that could be an image, before anything is made; the walk ends at the first one."""
    others: Counter[str] = Counter()
    for folder in folders:

        def other(path: str) -> None:
            others[os.path.splitext(path)[1].lower()] += 1

        if next(walk_images(folder, on_error=lambda path, reason: None, on_other=other), None) is not None:
            return
    looked = "looked for names like .jpg, .png, .webp" + (f"; {told_others(others)}" if others else "")
    raise ValueError(f"no image under {_told(folders)} ({looked}); an index is left as it is")


def _save_what_is_done(writer: Writer) -> None:
    """Keep the embeddings made before an error or an interruption; the next run finds them."""
    try:
        writer.flush()
    except (OSError, ImageIndexError):  # a full disk, say: the error that brought us here is the one to show
        return
