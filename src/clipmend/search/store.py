"""The files of an image index, and how they are written so that a kill at any moment leaves a valid index.

::

    manifest.json          what the index is: format, backbone, sizes, shards, table; renamed into place last
    images-G.jsonl         one JSON object an image, sorted by path: path (relative to the root), size (bytes), mtime_ns, sha256 of
                           the content, width, height (pixels, upright), row (of its vector; equal contents share one)
    vectors-N.npy          [rows, embed_dim] float32 or float16, L2-normalised, written once and never changed
    vectors-N.jsonl        a header line and, for each row, the sha256, width and height of the image it embeds
    skipped.json           the files that could not be read, with the reason

Only the manifest says what counts. A shard that is newer than the manifest was finished by a run that did not live to commit it:
the next run adopts its rows by content hash. Anything else that the manifest does not name is a leftover, removed by the next run.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clipmend.data.images import display_path

__all__ = ["Entry", "ImageIndexError", "Manifest", "Record", "Shard", "write_atomically"]

FORMAT, VERSION = "clipmend-image-index", 1
MANIFEST, SKIPPED, LOCK = "manifest.json", "skipped.json", ".lock"
_SHARD_NAME = re.compile(r"vectors-(\d{6,})\.(npy|jsonl)")
_TABLE_NAME = re.compile(r"images-(\d+)\.jsonl")


class ImageIndexError(ValueError):
    """An index that cannot be used: missing, unfinished, damaged, busy, or made by another encoder."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one stored vector embeds: an image content (hexadecimal SHA-256) of ``width`` x ``height`` pixels."""

    sha256: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of the index; ``path`` is relative to the root with forward slashes, ``row`` counts through all shards."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    width: int
    height: int
    row: int


@dataclass(frozen=True)
class Shard:
    """One file of vectors and its digest."""

    file: str
    rows: int
    sha256: str

    @property
    def number(self) -> int:
        return int(self.file.split("-")[1].split(".")[0])


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``."""

    backbone: dict[str, str]  # name, image (digest)
    embed_dim: int
    dtype: str
    root: str
    relative_root: str
    count: int = 0
    skipped: int = 0
    complete: bool = False
    generation: int = 0
    next_shard: int = 0
    table: dict[str, str] = field(default_factory=dict)  # file, sha256; empty before the first commit
    shards: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


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
    if hasattr(os, "O_DIRECTORY"):  # the rename itself reaches the disk with the folder (not on Windows)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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


def read_manifest(directory: Path) -> Manifest:
    """Read and check the manifest.

    Raises:
        ImageIndexError: no index there, not JSON, another format, a version this release does not know, or fields amiss.
    """
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ImageIndexError(
            f"no image index at {display_path(directory)} (it has no {MANIFEST}); make one: clipmend index MODEL DIR -o INDEX"
        ) from None
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise damaged(directory, f"{MANIFEST} is not JSON ({error})") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ImageIndexError(f"{display_path(path)} is not the manifest of an image index (its format is not {FORMAT!r})")
    if fields.get("version") != VERSION:
        raise ImageIndexError(
            f"the index {display_path(directory)} has format version {fields.get('version')!r}, this release reads {VERSION}; "
            "update clipmend, or build the index again"
        )
    try:
        shards = tuple(Shard(str(s["file"]), int(s["rows"]), str(s["sha256"])) for s in fields["shards"])
        known = {name: fields[name] for name in Manifest.__dataclass_fields__ if name != "shards"}
        manifest = Manifest(shards=shards, **known)
        kinds = {"embed_dim": int, "count": int, "generation": int, "next_shard": int, "root": str, "backbone": dict, "table": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(getattr(manifest, name), kind)]
        if wrong or manifest.dtype not in ("float32", "float16") or not all(_SHARD_NAME.fullmatch(s.file) for s in shards):
            raise ValueError(f"bad values ({', '.join(wrong) or 'dtype or shards'})")
        if not {"name", "image"} <= manifest.backbone.keys() or (
            manifest.table and not _TABLE_NAME.fullmatch(manifest.table["file"])
        ):
            raise ValueError("bad values (backbone or table)")
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(directory, f"{MANIFEST} lacks what it must say ({error})") from None
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> None:
    from clipmend import __version__

    fields = {"format": FORMAT, "version": VERSION, "clipmend": __version__, **asdict(manifest)}
    write_atomically(directory / MANIFEST, (json.dumps(fields, indent=2) + "\n").encode())


def read_table(directory: Path, manifest: Manifest) -> tuple[Entry, ...]:
    """The images of the index, sorted by path; checked against the manifest's digest and count."""
    if not manifest.table:
        return ()
    file = manifest.table["file"]
    try:
        data = (directory / file).read_bytes()
    except OSError as error:
        raise damaged(directory, f"{file} cannot be read ({error.strerror})") from None
    if digest(data) != manifest.table.get("sha256"):
        raise damaged(directory, f"{file} is not what the manifest says (its digest differs)")
    try:
        entries = tuple(Entry(**json.loads(line)) for line in data.splitlines())
    except (ValueError, TypeError) as error:
        raise damaged(directory, f"{file} does not parse ({error})") from None
    if len(entries) != manifest.count or any(not 0 <= entry.row < manifest.rows for entry in entries):
        raise damaged(directory, f"{file} does not fit the manifest ({len(entries)} images of {manifest.count})")
    return entries


def write_table(directory: Path, generation: int, entries: Sequence[Entry]) -> dict[str, str]:
    file = f"images-{generation}.jsonl"
    data = _lines(asdict(entry) for entry in entries)
    write_atomically(directory / file, data)
    return {"file": file, "sha256": digest(data)}


def write_skipped(directory: Path, skipped: dict[str, str]) -> None:
    """``skipped.json``: ``[{path, reason}]``, sorted by path; untouched if it says so already."""
    rows = [{"path": path, "reason": skipped[path]} for path in sorted(skipped)]
    data = (json.dumps(rows, indent=2) + "\n").encode()
    path = directory / SKIPPED
    if not path.is_file() or path.read_bytes() != data:
        write_atomically(path, data)


def write_shard(directory: Path, number: int, vectors: np.ndarray, records: Sequence[Record], image_digest: str) -> Shard:
    """Write one shard: the vectors first, then what they embed, which makes the shard count."""
    buffer = io.BytesIO()
    np.save(buffer, vectors, allow_pickle=False)
    data = buffer.getvalue()
    shard = Shard(f"vectors-{number:06d}.npy", len(records), digest(data))
    write_atomically(directory / shard.file, data)
    header = {"file": shard.file, "rows": shard.rows, "sha256": shard.sha256, "image": image_digest}
    write_atomically(_records_path(directory, shard), _lines([header, *(asdict(record) for record in records)]))
    return shard


def open_vectors(directory: Path, shard: Shard, embed_dim: int, dtype: str) -> np.ndarray:
    """Memory-map a shard, read-only: ``[rows, embed_dim]``."""
    try:
        vectors = np.load(directory / shard.file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(directory, f"{shard.file} cannot be read ({error})") from None
    if vectors.shape != (shard.rows, embed_dim) or vectors.dtype != np.dtype(dtype):
        raise damaged(
            directory, f"{shard.file} holds {vectors.dtype} {vectors.shape}, the manifest says {dtype} {(shard.rows, embed_dim)}"
        )
    return vectors


def read_records(directory: Path, shard: Shard) -> list[Record]:
    """What the rows of a shard embed."""
    path = _records_path(directory, shard)
    try:
        header, *rows = (json.loads(line) for line in path.read_bytes().splitlines())
        records = [Record(**row) for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise damaged(directory, f"{path.name} cannot be read ({error})") from None
    if len(records) != shard.rows or header.get("sha256") != shard.sha256:
        raise damaged(directory, f"{path.name} does not fit {shard.file}")
    return records


def uncommitted(directory: Path, manifest: Manifest, image_digest: str) -> list[Shard]:
    """Whole shards, newer than the manifest, of a run by the same encoder that did not live to commit them."""
    found = []
    for path in sorted(directory.glob("vectors-*.jsonl")):
        match = _SHARD_NAME.fullmatch(path.name)
        if match is None or int(match[1]) < manifest.next_shard:
            continue
        try:
            header = json.loads(path.read_bytes().splitlines()[0])
            shard = Shard(str(header["file"]), int(header["rows"]), str(header["sha256"]))
            whole = header["image"] == image_digest and file_digest(directory / shard.file) == shard.sha256
            if whole and len(read_records(directory, shard)) == shard.rows:
                open_vectors(directory, shard, manifest.embed_dim, manifest.dtype)
                found.append(shard)
        except (OSError, ValueError, KeyError, IndexError, TypeError):  # damaged: worth nothing, its images are embedded again
            continue
    return found


def highest_shard(directory: Path) -> int:
    """The highest shard number in the folder, whole or not; -1 if there is none."""
    numbers = [int(m[1]) for path in directory.iterdir() if (m := _SHARD_NAME.fullmatch(path.name))]
    return max(numbers, default=-1)


def remove_empty(directory: Path, manifest: Manifest) -> None:
    """Undo a first manifest to which nothing was added; the folder goes too, unless it holds anything else."""
    if manifest.generation or manifest.shards or highest_shard(directory) >= 0:
        return
    for name in (MANIFEST, LOCK):
        (directory / name).unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


def remove_leftovers(directory: Path, manifest: Manifest) -> None:
    """Delete the index's own files that the manifest does not name."""
    keep = {shard.file for shard in manifest.shards} | {_records_path(directory, shard).name for shard in manifest.shards}
    keep.add(manifest.table.get("file", ""))
    for path in directory.iterdir():
        base = path.name.removesuffix(".tmp")
        ours = _SHARD_NAME.fullmatch(base) or _TABLE_NAME.fullmatch(base) or base in (MANIFEST, SKIPPED)
        if ours and path.name not in keep and path.name not in (MANIFEST, SKIPPED):
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
        yield


def _records_path(directory: Path, shard: Shard) -> Path:
    return (directory / shard.file).with_suffix(".jsonl")


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    # ASCII-only JSON: a file name that is not UTF-8 survives as the escape of a lone surrogate.
    return "".join(json.dumps(row) + "\n" for row in rows).encode("ascii")
