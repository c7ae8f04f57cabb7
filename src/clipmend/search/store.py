"""The files of an image index, and how they are written so that a kill at any moment leaves a valid index.

::

    manifest.json          what the index is: format, backbone, width and type of the vectors; the digest of the database
    index.sqlite           what is known of the images, which row each one's vector is, and which files of vectors count
    vectors-N.npy          [rows, embed_dim] float32 or float16, L2-normalised, written once and never changed
    nearest-N.usearch      a graph for approximate search with nearest.json about it: a cache, made again whenever it does not fit
    skipped.json           the files that could not be read, with the reason

Vectors and database are the truth, and the database says what counts: a file of vectors is written, flushed and renamed into place
before the transaction that names it; one that no transaction names is a leftover, removed by the next run. Embeddings are named as
soon as they are on the disk, so that a run that was killed is resumed from there; what images there are changes in one transaction
at the end. See :mod:`clipmend.search.database` for the tables.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from clipmend.data.images import display_path
from clipmend.search.gallery import GalleryError

__all__ = ["Entry", "ImageIndexError", "Manifest", "Shard", "write_atomically"]

FORMAT, VERSION = "clipmend-image-index", 2
MANIFEST, DATABASE, SKIPPED, LOCK = "manifest.json", "index.sqlite", "skipped.json", ".lock"
NEAREST = "nearest.json"
_OURS = re.compile(r"vectors-\d{6,}\.(npy|jsonl)|images-\d+\.jsonl|nearest-\d+\.usearch|nearest\.json|manifest\.json|skipped\.json")
_SHARD_NAME = re.compile(r"vectors-(\d{6,})\.npy")


class ImageIndexError(GalleryError):
    """An index that cannot be used: missing, unfinished, damaged, busy, or made by another encoder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of the index.

    Attributes:
        path: as the index says it: relative to the root with forward slashes, after the root's name where there are several.
        size: bytes of the file.
        mtime_ns: when it was last changed, nanoseconds since 1970.
        sha256: of its content, hexadecimal; empty where unknown.
        width: pixels, upright.
        height: pixels, upright.
        row: of its vector, through all shards; copies share one.
        id: stable; see :class:`clipmend.search.gallery.Item`.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str
    width: int
    height: int
    row: int
    id: int = -1


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of vectors: rows ``first`` to ``first + rows``, and the digest of the file."""

    number: int
    first: int
    rows: int
    sha256: str

    @property
    def file(self) -> str:
        return f"vectors-{self.number:06d}.npy"


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``.

    Attributes:
        id: of this index, random; the database bears it too.
        backbone: ``name`` and ``image`` (digest of the image side) of the encoder.
        embed_dim: width of the vectors.
        dtype: of the vectors as stored.
        count: images, when the manifest was written.
        generation: the database's, when the manifest was written. A database of a later one was changed since by a run that did
            not live to say so, which is fine: then the digest says nothing.
        database: SHA-256 of the database of that generation; empty if not taken.
    """

    id: str
    backbone: Mapping[str, str]
    embed_dim: int
    dtype: str
    count: int = 0
    generation: int = 0
    database: str = ""


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, flush it to the disk and rename it into place."""
    beside = path.with_name(path.name + ".tmp")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except (Exception, KeyboardInterrupt):  # a full disk, say
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename reaches the disk with its folder (not on Windows)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces of 1 MiB."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def damaged(directory: Path, what: str) -> ImageIndexError:
    return ImageIndexError(
        f"the index {display_path(directory)} is damaged: {what}. "
        "Delete the folder and build it again (clipmend index MODEL DIR -o INDEX)"
    )


def relative_root(root: Path, directory: Path) -> str:
    """The image folder as seen from the index; empty where no relative path leads there (another drive)."""
    try:
        return os.path.relpath(root.resolve(), directory.resolve())
    except ValueError:
        return ""


def exists(directory: Path) -> bool:
    return (directory / MANIFEST).is_file()


def read_fields(directory: Path) -> dict[str, object]:
    """The manifest as it stands there, of whatever version.

    Raises:
        ImageIndexError: no index there, not JSON, or another format.
    """
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ImageIndexError(
            f"no image index at {display_path(directory)} (it has no {MANIFEST}); make one: clipmend index MODEL DIR -o INDEX"
        ) from None
    except OSError as error:
        raise ImageIndexError(f"{display_path(path)} cannot be read ({error.strerror or error})") from None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(directory, f"{MANIFEST} is not JSON ({error})") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ImageIndexError(f"{display_path(path)} is not the manifest of an image index (its format is not {FORMAT!r})")
    return fields


def read_manifest(directory: Path) -> Manifest:
    """Read and check the manifest.

    Raises:
        ImageIndexError: as :func:`read_fields`; a version this release does not know, or fields amiss.
    """
    fields = read_fields(directory)
    if fields.get("version") != VERSION:
        raise ImageIndexError(
            f"the index {display_path(directory)} has format version {fields.get('version')!r}, this release reads {VERSION}; "
            "update clipmend, or build the index again"
        )
    kinds = {"id": str, "backbone": dict, "embed_dim": int, "dtype": str, "count": int, "generation": int, "database": str}
    wrong = [name for name, kind in kinds.items() if type(fields.get(name)) is not kind]  # a truth value is no number
    backbone = fields.get("backbone")
    if not wrong and not (isinstance(backbone, dict) and all(isinstance(backbone.get(name), str) for name in ("name", "image"))):
        wrong = ["backbone"]
    if not wrong and fields["dtype"] not in ("float32", "float16"):
        wrong = ["dtype"]
    if not wrong and int(str(fields["embed_dim"])) < 1:
        wrong = ["embed_dim"]
    if wrong:
        raise damaged(directory, f"{MANIFEST} lacks what it must say (bad or missing: {', '.join(wrong)})")
    return Manifest(**{name: fields[name] for name in kinds})  # type: ignore[arg-type]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    from clipmend import __version__

    fields = {"format": FORMAT, "version": VERSION, "clipmend": __version__, **asdict(manifest)}
    write_atomically(directory / MANIFEST, (json.dumps(fields, indent=2) + "\n").encode())


def write_skipped(directory: Path, skipped: Mapping[str, str]) -> None:
    """``skipped.json``: ``[{path, reason}]``, sorted by path; untouched if it says so already."""
    rows = [{"path": path, "reason": skipped[path]} for path in sorted(skipped)]
    data = (json.dumps(rows, indent=2) + "\n").encode()
    path = directory / SKIPPED
    if not path.is_file() or path.read_bytes() != data:
        write_atomically(path, data)


def read_skipped(directory: Path) -> dict[str, str]:
    try:
        skipped = {row["path"]: row["reason"] for row in json.loads((directory / SKIPPED).read_bytes())}
        if not all(isinstance(told, str) for told in (*skipped, *skipped.values())):
            raise TypeError("no texts")
        return skipped
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ImageIndexError(
            f"{display_path(directory / SKIPPED)} is damaged; the next 'clipmend index' writes it again"
        ) from None


def write_shard(directory: Path, number: int, first: int, vectors: np.ndarray) -> Shard:
    """Write one shard; a transaction must name it before it counts."""
    buffer = io.BytesIO()
    np.save(buffer, vectors, allow_pickle=False)
    data = buffer.getvalue()
    shard = Shard(number, first, len(vectors), digest(data))
    write_atomically(directory / shard.file, data)
    return shard


def open_vectors(directory: Path, shard: Shard, embed_dim: int, dtype: str) -> np.ndarray:
    """Memory-map a shard, read-only: ``[rows, embed_dim]``."""
    try:
        vectors = np.load(directory / shard.file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # this process's limits, no damage
            what = f"{shard.file} cannot be opened ({error.strerror}): raise the limit (ulimit -n), or close what is open"
            raise OSError(error.errno, what, str(directory / shard.file)) from None
        raise damaged(directory, f"{shard.file} cannot be read ({error})") from None
    except Exception as error:  # NumPy evaluates the header, and raises whatever nonsense in it leads to
        raise damaged(directory, f"{shard.file} cannot be read ({error})") from None
    if vectors.shape != (shard.rows, embed_dim) or vectors.dtype != np.dtype(dtype):
        raise damaged(
            directory, f"{shard.file} holds {vectors.dtype} {vectors.shape}, the index says {dtype} {(shard.rows, embed_dim)}"
        )
    return vectors


def highest_shard(directory: Path) -> int:
    """The highest shard number in the folder, whether it counts or not; -1 if there is none."""
    numbers = [int(m[1]) for path in directory.iterdir() if (m := _SHARD_NAME.fullmatch(path.name))]
    return max(numbers, default=-1)


def remove_empty(directory: Path) -> None:
    """Undo a first manifest to which nothing was added; the folder goes too, unless it holds anything else."""
    for name in (MANIFEST, DATABASE, SKIPPED, LOCK):
        (directory / name).unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


def remove_leftovers(directory: Path, keep: set[str]) -> None:
    """Delete the index's own files that are not among those to ``keep`` (names; manifest and the list of skipped files are)."""
    for path in directory.iterdir():
        base = path.name.removesuffix(".tmp")
        whole = path.name == base
        if _OURS.fullmatch(base) and not (whole and (base in keep or base in (MANIFEST, SKIPPED))):
            path.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the index for writing; the system lets go of it when the process ends, however it ends."""
    with open(directory / LOCK, "a") as file:
        try:
            import fcntl
        except ImportError:  # Windows: no advisory lock in the standard library that dies with the process; go without
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ImageIndexError(f"the index {display_path(directory)} is being written by another process; wait for it") from None
        try:
            there = os.path.samestat(os.fstat(file.fileno()), os.stat(directory / LOCK))
        except FileNotFoundError:
            there = False
        if not there:  # whoever held it took a first, empty index away, and a third process may hold the new file of that name
            raise ImageIndexError(f"the index {display_path(directory)} was just removed by another process; run this again")
        yield
