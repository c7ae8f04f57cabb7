"""Make an index of a folder, or bring it up to date: embed what is new, keep what is known, resume what was killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, display_path, find_images, open_image
from clipmend.search import store
from clipmend.search.embed import embed_stream, progress_bar, read_ahead
from clipmend.search.report import UpdateReport
from clipmend.search.store import Entry, ImageIndexError, Manifest, Record, Shard

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["UpdateReport", "build_index"]

SHARD_ROWS = 4096
SHARD_SECONDS = 30.0
"""A shard is written after this many rows or seconds, whichever comes first: what a kill can cost."""
MOST_SHARDS = 64
LEAST_DEAD = 256


@dataclass(frozen=True)
class _Found:
    """What reading one file gave: the content's digest, and the picture if its vector is not known yet."""

    path: str
    size: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    image: Image.Image | None = None
    error: str = ""


def build_index(
    encoder: DualEncoder,
    folder: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    dtype: str | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> UpdateReport:
    """Index every image under ``folder`` into ``directory``, or update the index that is there.

    A file whose size and modification time are as before is not read again. One that is new or touched is hashed (SHA-256), and
    embedded only if no image of that content ever was: moved files and copies cost nothing. Vectors go to disk as they are made,
    so that a run that is killed loses at most some seconds of work; the index itself changes in one step, at the end.

    Args:
        encoder: any encoder with an image side (a mended one indexes exactly like its backbone).
        folder: the images, recursively (see :func:`clipmend.data.images.find_images`).
        directory: the index; created, or updated if it is one.
        batch_size: most images a forward pass.
        max_pixels: larger images are skipped (see :func:`clipmend.data.images.open_image`); ``None`` for no limit.
        dtype: how vectors are stored: ``"float32"`` (default) or ``"float16"`` (half the size; cosines to about 1e-3). Of an
            existing index: as it is.
        workers: threads that read and decode (default: one a core, at most 8).
        progress: show a bar with the rate on a terminal.

    Raises:
        ImageIndexError: ``directory`` holds something else, an index by another encoder, or one being written right now.
        ValueError: no image under ``folder``, or none that can be used (an index stays as it is); a text-only encoder.
        OSError: ``folder`` is missing, or ``directory`` cannot be written.
    """
    started = time.perf_counter()
    directory, root = Path(directory), Path(folder)
    image_digest = encoder.fingerprint.image
    if not image_digest:
        raise ValueError(f"{encoder.name} has no image side: it cannot index images")
    skipped: dict[str, str] = {}
    files = find_images(root, on_error=lambda path, reason: skipped.update({_relative(path, root): reason}))
    if not files:
        raise ValueError(
            f"no image under {display_path(root)} (looked for names like .jpg, .png, .webp); an index is left as it is"
        )
    made = [place for place in (directory, *directory.parents) if not place.exists()]  # the innermost first
    manifest = _start(directory, encoder, root, dtype)
    with store.locked(directory):
        manifest = store.read_manifest(directory)  # again, now that nobody else writes
        entries = store.read_table(directory, manifest)
        writer = _Writer(directory, manifest, image_digest)
        run = _Run(root, _same_root(manifest, root), {entry.path: entry for entry in entries}, writer, skipped, max_pixels)
        try:
            run.read_and_embed(encoder, files, batch_size, workers, progress)
            run.refuse_nothing(len(files))
        except BaseException:
            _save_what_is_done(writer)
            store.remove_empty(directory, manifest)
            for place in made:
                with suppress(OSError):  # one that holds anything stays
                    place.rmdir()
            raise
        writer.flush()
        report = run.commit(directory, manifest, entries, started)
        store.remove_leftovers(directory, store.read_manifest(directory))
    return report


class _Run:
    """One pass over the folder."""

    def __init__(
        self, root: Path, trust: bool, old: dict[str, Entry], writer: _Writer, skipped: dict[str, str], max_pixels: int | None
    ) -> None:
        self.root, self.old, self.writer, self.skipped, self.max_pixels = root, old, writer, skipped, max_pixels
        self.trust = trust  # size and time mean something only under the root they were read from
        self.found: dict[str, _Found] = {}
        self.embedded = 0
        self.resumed: set[str] = set()

    def read(self, path: Path) -> _Found:
        """Look at one file; runs in a thread."""
        name = _relative(path, self.root)
        try:
            before = path.stat()
            old = self.old.get(name)
            if self.trust and old is not None and (old.size, old.mtime_ns) == (before.st_size, before.st_mtime_ns):
                return _Found(name, old.size, old.mtime_ns, old.sha256)
            if not path.is_file():
                open_image(path)  # raises, with the reason
            sha256 = store.file_digest(path)
            known = sha256 in self.writer.rows
            image = None if known else open_image(path, max_pixels=self.max_pixels)
            after = path.stat()
        except ImageError as error:
            return _Found(name, error=error.reason)
        except OSError as error:
            return _Found(name, error=self._why(path, error))
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            return _Found(name, error="changed while it was read; run the same command again")
        return _Found(name, before.st_size, before.st_mtime_ns, sha256, image)

    def _why(self, path: Path, error: OSError) -> str:
        try:
            open_image(path, max_pixels=self.max_pixels)  # has better words for a missing or forbidden file
        except ImageError as better:
            return better.reason
        return f"cannot be read ({error.strerror or error})"

    def read_and_embed(self, encoder: DualEncoder, files: list[Path], batch_size: int, workers: int | None, progress: bool) -> None:
        asked: set[str] = set()
        with progress_bar("Indexing", len(files), progress) as advance:

            def to_embed() -> Iterator[tuple[str, Image.Image]]:
                for found in read_ahead(self.read, files, workers):
                    advance()
                    if found.error:
                        self.skipped[found.path] = found.error
                        continue
                    self.found[found.path] = replace(found, image=None)
                    if found.sha256 in self.writer.adopted:
                        self.resumed.add(found.sha256)
                    if found.image is not None and found.sha256 not in asked:
                        asked.add(found.sha256)
                        yield found.sha256, found.image

            bad: dict[str, str] = {}
            for sha256, (width, height), vector in embed_stream(encoder, to_embed(), batch_size):
                if isinstance(vector, str):
                    bad[sha256] = vector
                else:
                    self.embedded += 1
                    self.writer.add(Record(sha256, width, height), vector)
        for name, found in list(self.found.items()):
            if found.sha256 in bad:
                self.skipped[name] = bad[found.sha256]
                del self.found[name]

    def refuse_nothing(self, count: int) -> None:
        """Refuse a folder of which no file can be used: that is a mistake (a wrong limit, a lost disk), not an index of nothing.

        Raises:
            ValueError: with the first file and its reason.
        """
        if not self.found:
            name, reason = next(iter(sorted(self.skipped.items())))
            raise ValueError(
                f"none of the {count:,} images under {display_path(self.root)} can be used, so no index was written; the first: "
                f"{display_path(name)} {reason}"
            )

    def commit(self, directory: Path, manifest: Manifest, entries: tuple[Entry, ...], started: float) -> UpdateReport:
        """Write what changed, the manifest last."""
        new = []
        for name in sorted(self.found, key=os.fsencode):
            found = self.found[name]
            row, record = self.writer.rows[found.sha256]
            new.append(Entry(name, found.size, found.mtime_ns, found.sha256, record.width, record.height, row))
        shards, next_shard = self.writer.shards, self.writer.next_number
        store.write_skipped(directory, self.skipped)
        before = (entries, manifest.shards, manifest.root, manifest.skipped, manifest.complete)
        if before != (tuple(new), shards, str(self.root.resolve()), len(self.skipped), True):
            live = len({entry.row for entry in new})
            rows = sum(shard.rows for shard in shards)
            if rows - live > max(live, LEAST_DEAD) or len(shards) > MOST_SHARDS + rows // SHARD_ROWS:
                shards, new, next_shard = _compacted(directory, self.writer, new)
            generation = manifest.generation + 1
            table = store.write_table(directory, generation, new)
            manifest = replace(
                manifest,
                root=str(self.root.resolve()),
                relative_root=store.relative_root(self.root, directory),
                count=len(new),
                skipped=len(self.skipped),
                complete=True,
                generation=generation,
                next_shard=next_shard,
                table=table,
                shards=shards,
            )
            store.write_manifest(directory, manifest)
        return self._report(new, time.perf_counter() - started)

    def _report(self, new: list[Entry], seconds: float) -> UpdateReport:
        gone = {name: entry.sha256 for name, entry in self.old.items() if name not in self.found}
        fresh = [entry for entry in new if entry.path not in self.old]
        moved_from = set(gone.values())
        moved = [entry for entry in fresh if entry.sha256 in moved_from]
        kept = [entry for entry in new if entry.path in self.old]
        unchanged = sum(entry.sha256 == self.old[entry.path].sha256 for entry in kept)
        landed = {entry.sha256 for entry in moved}
        removed = sum(sha256 not in landed for name, sha256 in gone.items() if name not in self.skipped)
        return UpdateReport(
            count=len(new),
            embedded=self.embedded,
            resumed=len(self.resumed),
            added=len(fresh) - len(moved),
            changed=len(kept) - unchanged,
            moved=len(moved),
            removed=removed,
            unchanged=unchanged,
            skipped=dict(sorted(self.skipped.items())),
            seconds=seconds,
        )


class _Writer:
    """Knows the row of every content embedded so far, and appends new ones shard by shard."""

    def __init__(self, directory: Path, manifest: Manifest, image_digest: str) -> None:
        self.directory, self.manifest, self.image_digest = directory, manifest, image_digest
        self.shards: tuple[Shard, ...] = ()
        self.rows: dict[str, tuple[int, Record]] = {}
        self.adopted: set[str] = set()
        self.count = 0
        for shard in manifest.shards:
            store.open_vectors(directory, shard, manifest.embed_dim, manifest.dtype)
            self._append(shard, store.read_records(directory, shard))
        committed = set(self.rows)
        for shard in store.uncommitted(directory, manifest, image_digest):
            self._append(shard, store.read_records(directory, shard))
        self.adopted = set(self.rows) - committed
        self.next_number = max(manifest.next_shard, store.highest_shard(directory) + 1)
        self.records: list[Record] = []
        self.vectors: list[np.ndarray] = []
        self.last_flush = time.monotonic()

    def _append(self, shard: Shard, records: list[Record]) -> None:
        for row, record in enumerate(records, self.count):
            self.rows.setdefault(record.sha256, (row, record))
        self.count += len(records)
        self.shards = (*self.shards, shard)

    def add(self, record: Record, vector: np.ndarray) -> None:
        self.records.append(record)
        self.vectors.append(vector)
        if len(self.records) >= SHARD_ROWS or time.monotonic() - self.last_flush > SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one shard."""
        if self.records:
            vectors = np.stack(self.vectors).astype(self.manifest.dtype)
            shard = store.write_shard(self.directory, self.next_number, vectors, self.records, self.image_digest)
            self.next_number += 1
            self._append(shard, self.records)
            self.records, self.vectors = [], []
        self.last_flush = time.monotonic()


def _save_what_is_done(writer: _Writer) -> None:
    """Keep the embeddings made before an error or an interruption; they are adopted by the next run."""
    try:
        writer.flush()
    except OSError:  # a full disk, say: the error that brought us here is the one to show
        return


def _compacted(directory: Path, writer: _Writer, entries: list[Entry]) -> tuple[tuple[Shard, ...], list[Entry], int]:
    """Copy the rows in use into few new shards; the old ones are removed once the manifest no longer names them."""
    manifest = writer.manifest
    maps = [store.open_vectors(directory, shard, manifest.embed_dim, manifest.dtype) for shard in writer.shards]
    starts = np.cumsum([0, *(shard.rows for shard in writer.shards)])
    records = dict(writer.rows.values())
    used = sorted({entry.row for entry in entries})
    number, shards = writer.next_number, []
    for first in range(0, len(used), SHARD_ROWS):
        rows = used[first : first + SHARD_ROWS]
        where = np.searchsorted(starts, rows, side="right") - 1
        vectors = np.stack([maps[w][row - starts[w]] for w, row in zip(where, rows, strict=True)])
        shards.append(store.write_shard(directory, number, vectors, [records[row] for row in rows], writer.image_digest))
        number += 1
    position = {row: new for new, row in enumerate(used)}
    return tuple(shards), [replace(entry, row=position[entry.row]) for entry in entries], number


def _start(directory: Path, encoder: DualEncoder, root: Path, dtype: str | None) -> Manifest:
    """The manifest of the index in ``directory``; a first, empty one is written where there is none."""
    if dtype not in (None, "float32", "float16"):
        raise ValueError(f"dtype must be 'float32' or 'float16' (got {dtype!r})")
    if store.exists(directory):
        manifest = store.read_manifest(directory)
        check_same_encoder(directory, manifest, encoder)
        if dtype not in (None, manifest.dtype):
            raise ImageIndexError(
                f"the index {display_path(directory)} stores {manifest.dtype}, not {dtype}; make a new one for that"
            )
        return manifest
    directory.mkdir(parents=True, exist_ok=True)
    strangers = [path.name for path in directory.iterdir() if path.name not in (store.LOCK, f"{store.MANIFEST}.tmp")]
    if strangers:
        raise ImageIndexError(
            f"{display_path(directory)} is not an image index and not empty (it holds {display_path(strangers[0])}); "
            "give a new folder for the index"
        )
    from clipmend.negation.mended import Mended

    backbone = encoder.encoder if isinstance(encoder, Mended) else encoder  # the index is the backbone's: its name is what to load
    manifest = Manifest(
        backbone={"name": str(backbone.name), "image": encoder.fingerprint.image},
        embed_dim=encoder.embed_dim,
        dtype=dtype or "float32",
        root=str(root.resolve()),
        relative_root=store.relative_root(root, directory),
    )
    with store.locked(directory):
        if not store.exists(directory):
            store.write_manifest(directory, manifest)
    return manifest


def check_same_encoder(directory: Path, manifest: Manifest, encoder: DualEncoder) -> None:
    """Refuse an encoder whose image side is not the one that made the index.

    Raises:
        ImageIndexError: the digests of the image sides differ.
    """
    if encoder.fingerprint.image != manifest.backbone["image"]:
        raise ImageIndexError(
            f"the index {display_path(directory)} was made by {manifest.backbone['name']!r} (image side "
            f"{manifest.backbone['image'][:12]}), not by {encoder.name!r} ({encoder.fingerprint.image[:12] or 'no image side'}): "
            "their vectors cannot be compared. Use the encoder that made it, or make another index"
        )


def _same_root(manifest: Manifest, root: Path) -> bool:
    return manifest.root == str(root.resolve())


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
