"""WebDataset: tar files (shards) in which the members of a sample stand together and share a name up to its first dot.

``00001.jpg``, ``00001.txt``, ``00001.json`` are one sample. Shards are streamed with the standard library, one sample in memory,
plain or compressed. A member that cannot be used is named and, with ``on_error="skip"``, its sample is left out; a shard whose
archive is broken is named with the last good member, and its rest is lost. Python's tarfile ends silently at a damaged header, so
what stands at the end is checked.
"""

from __future__ import annotations

import glob
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from itertools import product
from lzma import LZMAError
from math import prod
from pathlib import Path
from typing import Any

from clipmend.data.readers.base import Log, OnError, Record, Source, register
from clipmend.data.readers.tabular import CAPTION_COLUMNS, captions_of

__all__ = ["expand_shards", "read_webdataset"]

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif")
_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST_SHARDS = 1_000_000
_LARGEST_HEADER = 1 << 20  # bytes of a header's own data (long names, pax records), which tarfile reads whole
_BROKEN = (tarfile.TarError, OSError, EOFError, zlib.error, LZMAError)


def expand_shards(pattern: str | Path) -> list[Path]:
    """The shards that a pattern means.

    Args:
        pattern: a file, a folder (all its tar files), ``{000..010}`` (a range, padded as its ends are), ``{a,b}``, ``*``, ``?``.

    Raises:
        FileNotFoundError: a shard, or every match of a wildcard, is missing.
        ValueError: a range that is none, or of more than a million shards.
    """
    text = str(pattern)
    if Path(text).is_file():
        return [Path(text)]
    if Path(text).is_dir():
        found = sorted(p for p in Path(text).iterdir() if p.name.lower().endswith(_SUFFIXES))
        if not found:
            raise FileNotFoundError(f"{text}: holds no tar files")
        return found
    parts = _BRACES.split(text)  # fixed, inner, fixed, inner, ..., fixed
    choices = [_alternatives(part, text) if k % 2 else [part] for k, part in enumerate(parts)]
    if prod(map(len, choices)) > _MOST_SHARDS:
        raise ValueError(f"{text}: means over {_MOST_SHARDS:,} shards")
    shards: list[Path] = []
    for combination in product(*choices):
        name = "".join(combination)
        if any(mark in name for mark in "*?"):
            matches = sorted(glob.glob(name))
            if not matches:
                raise FileNotFoundError(f"{name}: matches no file")
            shards += [Path(match) for match in matches]
        else:
            shards.append(Path(name))
    missing = [str(shard) for shard in shards if not shard.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise FileNotFoundError(f"{text}: {len(missing)} of {len(shards)} shards are missing: {', '.join(missing[:3])}{more}")
    return shards


def _alternatives(inner: str, pattern: str) -> list[str]:
    pieces = inner.split(",")
    names: list[str] = []
    for piece in pieces:
        match = re.fullmatch(r"(\d+)\.\.(\d+)", piece)
        if match is None:
            if len(pieces) == 1:
                raise ValueError(f"{pattern}: {{{inner}}} is neither a range {{000..010}} nor a list {{a,b}}")
            names.append(piece)
            continue
        first, last = match.groups()
        if int(last) < int(first):
            raise ValueError(f"{pattern}: the range {{{piece}}} runs backwards")
        if int(last) - int(first) >= _MOST_SHARDS:
            raise ValueError(f"{pattern}: the range {{{piece}}} means over {_MOST_SHARDS:,} shards")
        padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        names += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return names


def _looks_like(path: Path) -> bool:
    name = path.name.lower()
    if path.is_dir():
        return any(p.name.lower().endswith(_SUFFIXES) for p in path.iterdir())
    return name.endswith(_SUFFIXES)


@register("webdataset", "WebDataset: a tar file, a folder of them, or a pattern such as data/{000..010}.tar", _looks_like, order=30)
def read_webdataset(
    path: str | Path,
    *,
    caption_column: str | None = None,
    max_member: int = 256_000_000,
    on_error: OnError = "raise",
) -> Source:
    """Stream WebDataset shards.

    Args:
        path: what :func:`expand_shards` takes.
        caption_column: extension of the caption's member (``"txt"``), or a key of the sample's ``.json``; by default the ``.txt``,
            else the usual keys of the ``.json`` (``caption``, ``text``, ...).
        max_member: bytes of the largest member read.
        on_error: ``"raise"`` or ``"skip"`` for samples and shards that cannot be used.

    Returns:
        Records with the encoded image as ``content``; the image's name is ``SHARD/MEMBER``.

    Raises:
        FileNotFoundError: a shard is missing.
        ValueError: (while reading) naming shard and member: a broken archive, a sample without an image or a caption, or with
            two of one kind, a member over ``max_member``, a caption that is not UTF-8 or blank.
    """
    shards = expand_shards(path)

    def records(log: Log) -> Iterator[Record]:
        found = 0
        for shard in shards:
            for record in _shard(shard, caption_column, max_member, log):
                found += 1
                yield record
        if not found and not log.skipped:
            raise ValueError(f"{path}: holds no samples")

    name = shards[0].name.split(".")[0] if len(shards) == 1 else Path(str(path)).name
    return Source(name, records, on_error=on_error)


def _shard(path: Path, caption: str | None, max_member: int, log: Log) -> Iterator[Record]:
    members: dict[str, bytes] = {}
    names: dict[str, str] = {}
    key: str | None = None
    wrong: Exception | None = None

    def finished() -> Iterator[Record]:
        """The sample gathered so far."""
        if key is None:
            return
        try:
            if wrong is not None:
                raise wrong
            yield _sample(path, key, members, names, caption)
        except ValueError as error:
            log.bad(error)

    for name, content, reason in _members(path, max_member, log):
        folder, _, base = name.rpartition("/")
        stem, dot, extension = base.partition(".")
        if not dot or base.startswith("."):
            continue  # directories' own files, ".DS_Store" and the like belong to no sample
        if f"{folder}/{stem}" != key:
            yield from finished()
            key, members, names, wrong = f"{folder}/{stem}", {}, {}, None
        extension = extension.lower()
        if reason:
            wrong = wrong or ValueError(f"{path}: {name}: {reason}")
        elif extension in members:
            wrong = wrong or ValueError(f"{path}: {name}: the sample has two members .{extension}")
        members[extension], names[extension] = content, name
    yield from finished()


class _Header(tarfile.TarInfo):
    """A header, refused where it would have more data of its own than a header needs: compressed, a few bytes can be gigabytes."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Any:
        header = super().frombuf(buf, encoding, errors)
        own = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if header.type in own and header.size > _LARGEST_HEADER:
            raise tarfile.InvalidHeaderError(f"a header states {header.size:,} bytes of its own")  # type: ignore[attr-defined]
        return header


def _members(path: Path, max_member: int, log: Log) -> Iterator[tuple[str, bytes, str]]:
    """``(name, content, reason it cannot be used)`` of a shard's files; a broken archive is told to the log."""
    last = "its start"
    try:
        if not path.stat().st_size:
            raise tarfile.ReadError("the file is empty (zero bytes)")
        with tarfile.open(path, "r:*", tarinfo=_Header) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # or every header of the shard stays in memory
                if not member.isreg():
                    continue
                if member.size > max_member:
                    yield member.name, b"", f"is {member.size:,} bytes, over the limit of {max_member:,} (max_member)"
                    continue
                file = archive.extractfile(member)
                assert file is not None  # it is a regular file
                content = file.read()
                if len(content) < member.size:
                    raise tarfile.ReadError(f"{member.name} is cut short")
                yield member.name, content, ""
                last = member.name
            _check_end(archive.fileobj, archive.offset)
    except _BROKEN as error:
        reason = str(error).partition(":\n")[0]  # tarfile lists below what each kind of compression said
        log.bad(ValueError(f"{path}: broken after {last}: {reason}; the rest of the shard is lost; fetch it again"))


def _check_end(file: Any, offset: int) -> None:
    """An archive ends with blocks of zeros; anything else is a damaged header, or a file cut between two members."""
    file.seek(offset)
    block = file.read(512)
    if block.strip(b"\0"):
        raise tarfile.ReadError("the next header is damaged")
    if len(block) < 512:
        raise tarfile.ReadError("its end-of-archive mark is missing, so it may be cut short")


def _sample(path: Path, key: str, members: dict[str, bytes], names: dict[str, str], caption: str | None) -> Record:
    where = f"{path}: {key.lstrip('/')}"
    images = [extension for extension in members if extension.rpartition(".")[2] in IMAGE_EXTENSIONS]
    if len(images) != 1:
        reason = f"has {len(images)} images ({', '.join(images)})" if images else "has no image"
        raise ValueError(f"{where}: the sample {reason}; it has {', '.join(f'.{e}' for e in members)}")
    if not members[images[0]]:
        raise ValueError(f"{path}: {names[images[0]]}: is empty (zero bytes)")
    texts = _captions(where, members, caption)
    return Record(f"{path.name}/{names[images[0]]}", texts, where=where, content=members[images[0]])


def _captions(where: str, members: dict[str, bytes], caption: str | None) -> tuple[str, ...]:
    extension = caption if caption is not None and caption.lower() in members else "txt"
    if (caption is None or caption.lower() == extension.lower()) and extension.lower() in members:
        return captions_of(_decoded(where, members[extension.lower()], extension), where, f".{extension}")
    if "json" not in members:
        raise ValueError(f"{where}: no caption: the sample has {', '.join(f'.{e}' for e in members)}")
    text = _decoded(where, members["json"], "json")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
        raise ValueError(f"{where}: .json is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: .json holds no object")
    keys = (caption,) if caption is not None else CAPTION_COLUMNS
    for key in keys:
        if key in content:
            return captions_of(content[key], where, f".json {key}")
    raise ValueError(f"{where}: .json has no {' or '.join(keys[:3])}; it has {', '.join(content)}; choose one as caption_column")


def _decoded(where: str, content: bytes, extension: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: .{extension} is not UTF-8 text (byte {error.start})") from None
