"""Images of a gallery for a browser: thumbnails, and the files themselves; by id alone, and never from outside the gallery."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from PIL import Image

from clipmend.data.images import ImageError, open_image
from clipmend.search.gallery import Gallery, GalleryError, Item
from clipmend.service.errors import ServiceError

__all__ = ["Shown", "Thumbnails", "media_type", "roots_of", "without_bytes"]

_QUALITY = 82
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Shown:
    """An image for a browser; ``body`` is ``None`` where the browser has it already."""

    etag: str
    media_type: str
    body: bytes | None


class _Cache:
    """The thumbnails used last, up to so many bytes; for many threads."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: str, body: bytes) -> None:
        with self._lock:
            if key in self._kept or len(body) > self._limit:
                return
            self._kept[key] = body
            self._held += len(body)
            while self._held > self._limit:
                self._held -= len(self._kept.popitem(last=False)[1])


class Thumbnails:
    """Opens the files of galleries.

    A file must be a regular one and lie, links followed, inside the folder that was indexed; ``follow_links`` waives the latter,
    for who has links to elsewhere among the images.

    Args:
        max_pixels: larger images are not decoded.
        cache: bytes of thumbnails kept in memory.
        follow_links: see above.
    """

    def __init__(self, *, max_pixels: int, cache: int, follow_links: bool = False) -> None:
        self._max_pixels, self._follow_links = max_pixels, follow_links
        self._cache = _Cache(cache)

    def thumbnail(self, gallery: Gallery, id: int, size: int, known: str | None = None) -> tuple[Shown, bool]:
        """The image within ``size`` x ``size`` pixels as WebP, upright and on white, and whether it was at hand.

        Args:
            gallery: whose image.
            id: of the image.
            size: longest side; smaller images keep theirs.
            known: the browser's ``If-None-Match``.

        Raises:
            ServiceError: 404, no such image or no file of it; 422, a file that cannot be shown.
        """
        with self._open(gallery, id) as file:
            etag = _etag(file, f"thumbnail {size}")
            if _matches(known, etag):
                return Shown(etag, "image/webp", None), True
            body = self._cache.get(etag)
            if body is not None:
                return Shown(etag, "image/webp", body), True
            try:
                image = open_image(file, max_pixels=self._max_pixels, draft_size=size)
            except ImageError as error:
                raise ServiceError(422, "invalid_image", f"image {id} {without_bytes(error.reason)}") from None
        image.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=2.0)
        packed = io.BytesIO()
        image.save(packed, "WEBP", quality=_QUALITY, method=2)
        self._cache.put(etag, packed.getvalue())
        return Shown(etag, "image/webp", packed.getvalue()), False

    def image(self, gallery: Gallery, id: int, known: str | None = None) -> tuple[Shown, IO[bytes] | None]:
        """The file itself, opened (``None`` where the browser has it), if it is of a kind that browsers show and run nothing of.

        Raises:
            ServiceError: 404, as :meth:`thumbnail`; 422, another kind of file (SVG, TIFF, HEIC, ...), of which there is the
                thumbnail.
        """
        file = self._open(gallery, id)
        try:
            kind = media_type(file.read(16))
            if kind is None:
                raise ServiceError(
                    422, "invalid_image", f"image {id} is of a kind that browsers do not show; its thumbnail is there"
                )
            file.seek(0)
            etag = _etag(file, "file")
            if _matches(known, etag):
                file.close()
                return Shown(etag, kind, None), None
            return Shown(etag, kind, None), file
        except BaseException:
            file.close()
            raise

    def _open(self, gallery: Gallery, id: int) -> IO[bytes]:
        try:
            item = gallery.items([id])[0]
        except GalleryError:
            raise ServiceError(404, "not_found", f"there is no image {id}") from None
        path = gallery.file(item)
        if path is None:
            raise ServiceError(404, "not_found", f"there is no file of image {id} on this machine")
        gone = ServiceError(404, "not_found", f"the file of image {id} is not there any more, or cannot be read")
        try:
            real = path.resolve(strict=True)
            if not self._follow_links and not self._inside(gallery, real, path, item):
                raise ServiceError(
                    404, "outside", f"the file of image {id} is a link to outside the indexed folder; it is not shown"
                )
            # By its resolved name, and not through a link that took its place meanwhile; a pipe would block without NONBLOCK.
            handle = os.open(real, _FLAGS)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
            raise gone from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise gone
        return os.fdopen(handle, "rb")

    def _inside(self, gallery: Gallery, real: Path, path: Path, item: Item) -> bool:
        return any(real.is_relative_to(root) for root in roots_of(gallery, path, item))


def roots_of(gallery: Gallery, path: Path, item: Item) -> list[Path]:
    """The folders an image may lie in, resolved: the gallery's ``roots``, or else what is left of the file without its path."""
    roots: Any = getattr(gallery, "roots", None)
    if roots is None:
        depth = len(PurePosixPath(item.path).parts)
        roots = [path.parents[depth - 1]] if 0 < depth <= len(path.parents) else []
    elif isinstance(roots, Mapping):  # an index has them by name
        roots = roots.values()
    return [Path(root).resolve() for root in roots]


def without_bytes(reason: str) -> str:
    """An :class:`ImageError`'s reason without the first bytes of the file, which say nothing to who is at a browser."""
    told = reason.partition(" (it starts with")[0]
    return told.replace("an image in a format that can be read", "an image that can be read")


def media_type(head: bytes) -> str | None:
    """What a file is by its first 16 bytes, not by its name; ``None`` for anything but plain pictures."""
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    if head.startswith(b"BM"):
        return "image/bmp"
    return None


def _etag(file: IO[bytes], what: str) -> str:
    """Of a file as it is: another content has another time or size."""
    status = os.fstat(file.fileno())
    told = f"{what} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    return '"' + hashlib.sha256(told.encode()).hexdigest()[:32] + '"'


def _matches(known: str | None, etag: str) -> bool:
    return known is not None and (known.strip() == "*" or etag in (part.strip().removeprefix("W/") for part in known.split(",")))
