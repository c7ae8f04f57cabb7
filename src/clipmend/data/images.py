"""Open any image file a folder may hold, as the 8-bit RGB picture a person would see, or say clearly why not.

One loader for every image encoder, for the index and for contact sheets. What it does with each kind of file:

====================================  ===================================================================================
EXIF orientation                      applied (a broken EXIF block is ignored, the picture kept)
CMYK, YCCK                            converted; CMYK JPEGs are read by Adobe's convention (stored inverted), as Pillow does
palette, LA, RGBA, colour key         transparency composited on white
16-bit grey                           the high byte (``>> 8``), as for 16-bit colour
32-bit integer or float               values in 0..1 (float) times 255; in 0..255 as they are; integers in 0..65535 ``>> 8``;
                                      anything else stretched linearly from its own minimum..maximum; NaN and infinities black
animated, several pages               the first frame
more pixels than ``max_pixels``       refused from the header, before any pixel is decoded
====================================  ===================================================================================

Embedded colour profiles are not applied (except to read L*a*b*), like in the encoders' own preprocessing.
"""

from __future__ import annotations

import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    from clipmend.data.sheets import contact_sheet

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "IMAGE_SUFFIXES",
    "ImageError",
    "ImageSource",
    "check_header",
    "contact_sheet",
    "date_taken",
    "display_path",
    "find_image",
    "find_images",
    "not_found",
    "open_image",
    "walk_images",
]

ImageSource = str | os.PathLike[str] | IO[bytes] | Image.Image

DEFAULT_MAX_PIXELS = 100_000_000
"""Largest image decoded unless told otherwise: 100 megapixels, 300 MB as RGB."""

IMAGE_SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "gif", "webp", "bmp", "dib", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"),
        *("avif", "jp2", "j2k", "tga", "ico", "heic", "heif"),
    )
)
"""File name endings (lower case) that :func:`find_images` takes for images."""

# Only formats whose decoders read pixels. EPS is left out on purpose: Pillow hands such a file to Ghostscript, that is, runs it.
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO", "TGA", "HEIF")
_MAGIC = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"GIF8": "GIF", b"BM": "BMP"}
_PILLOW_LIMIT_LOCK = threading.Lock()


class ImageError(ValueError):
    """An image that cannot be used.

    Attributes:
        source: the file's name, fit for printing.
        reason: what is wrong and what to do, without the name.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.reason)


def display_path(path: str | os.PathLike[str]) -> str:
    """``path`` as printable text; bytes that are not UTF-8 and control characters are shown as escapes."""
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:  # no name that a file can have, but a table can spell it
        name = os.fspath(path).encode("utf-8", "surrogatepass")
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def open_image(
    source: ImageSource, *, max_pixels: int | None = DEFAULT_MAX_PIXELS, draft_size: int | tuple[int, int] | None = None
) -> Image.Image:
    """Open an image as RGB, upright, on white (see the module's table).

    Args:
        source: a path, a binary file object, or a PIL image (which is left as it was, and not capped).
        max_pixels: most pixels (width x height) to decode; ``None`` for no limit.
        draft_size: least width and height wanted. A JPEG may then be decoded at 1/2, 1/4 or 1/8 of its size, never smaller
            than this: several times faster, for thumbnails. ``None`` decodes at full size, exactly.

    Returns:
        A loaded PIL image of mode ``"RGB"``, independent of the file.

    Raises:
        ImageError: missing, a folder, unreadable, empty, not an image, truncated, corrupt, or too large; names the file.
    """
    if isinstance(source, Image.Image):
        name = display_path(getattr(source, "filename", "") or "<image>")
        return _guarded(name, lambda: _to_rgb(_upright(source), source.format))
    if not isinstance(source, (str, os.PathLike)):
        if not hasattr(source, "read"):
            raise TypeError(f"an image must be a path, a binary file or a PIL image, not {type(source).__name__}")
        name = getattr(source, "name", "")
        return _decode(source, display_path(name) if isinstance(name, str) and name else "<image>", max_pixels, draft_size)
    name = display_path(source)
    try:
        status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(name, "is a folder, not an image; give the files inside it")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(name, "is not a regular file (a device or a pipe)")
        file = open(source, "rb")  # noqa: SIM115 (closed below; opened here for its errors)
    except FileNotFoundError:
        broken_link = os.path.islink(source)
        reason = "is a link to a file that does not exist" if broken_link else "no such file; check the path"
        raise ImageError(name, reason) from None
    except PermissionError:
        raise ImageError(name, "may not be read by this user; change its permissions") from None
    except (OSError, ValueError) as error:  # too many levels of links, name too long, NUL in the name, ...
        if isinstance(error, ImageError):
            raise
        raise ImageError(name, f"cannot be opened ({_words(error)})") from error
    with file:
        if status.st_size == 0:
            raise ImageError(name, "is empty (zero bytes); fetch or export it again")
        return _decode(file, name, max_pixels, draft_size)


def check_header(source: ImageSource) -> None:
    """Open an image without decoding its pixels: what is missing, empty or no image is found, what is cut off is not.

    Args:
        source: as :func:`open_image` takes it.

    Raises:
        ImageError: names the file.
    """
    if isinstance(source, Image.Image):
        return
    if not isinstance(source, (str, os.PathLike)):
        _guarded("<image>", lambda: _open_header(source, "<image>"))
        return
    name = display_path(source)
    if not os.path.isfile(source) or not os.path.getsize(source):
        open_image(source)  # which has the words for it
        return
    try:
        with open(source, "rb") as file:
            _guarded(name, lambda: _open_header(file, name))
    except OSError as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(name, f"cannot be opened ({_words(error)})") from error


def _decode(file: IO[bytes], name: str, max_pixels: int | None, draft_size: int | tuple[int, int] | None) -> Image.Image:
    image = _guarded(name, lambda: _open_header(file, name))
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(name, f"has no pixels ({width} x {height})")
    if max_pixels is not None and width * height > max_pixels:
        raise ImageError(
            name,
            f"has {width} x {height} = {width * height:,} pixels, over the limit of {max_pixels:,}; "
            "shrink it, or raise max_pixels (--max-pixels) if you trust it",
        )

    def load() -> Image.Image:
        if draft_size is not None:
            image.draft(None, draft_size if isinstance(draft_size, tuple) else (draft_size, draft_size))
        image.load()
        # A copy of 12 megapixels takes a third of the time that decoding them does. A JPEG is done with its file by now; images of
        # several frames are not, and are copied away from it.
        upright = _upright_itself(image) if image.format == "JPEG" else _upright(image)
        return _to_rgb(upright, image.format)

    return _guarded(name, load)


def _open_header(file: IO[bytes], name: str) -> Image.Image:
    Image.init()
    formats = tuple(f for f in _FORMATS if f in Image.OPEN)
    start = file.tell() if hasattr(file, "tell") else 0
    # Pillow has one limit for the whole process; ours is an argument, checked by the caller on the header that this returns.
    # Only the reading of the header happens without Pillow's: images nested in containers (ICO) still meet it on loading.
    with _PILLOW_LIMIT_LOCK:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=formats)
        except UnidentifiedImageError:
            file.seek(start)
            head = file.read(64)
            if "HEIF" not in formats and _is_heic(head) and _heic_opener():
                file.seek(start)
                with suppress(UnidentifiedImageError):
                    return Image.open(file, formats=("HEIF",))
            raise ImageError(name, _what_it_is(head)) from None
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _is_heic(head: bytes) -> bool:
    return head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1", b"hevc", b"hevx")


def _heic_opener() -> bool:
    """Teach Pillow to read HEIC, where the package for it is installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _what_it_is(head: bytes) -> str:
    """Why a file that no decoder takes is not an image, from its first bytes."""
    if not head:
        return "is empty (zero bytes); fetch or export it again"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the image itself; run 'git lfs pull'"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "is a web page, not an image; the download went wrong"
    if _is_heic(head):
        if _heic_opener():
            return "starts as a HEIC image does, but its header is damaged; export it again"
        return "is a HEIC image, which needs one more package: pip install 'clipmend[heic]', or convert it to JPEG"
    if head.startswith((b"%!PS", b"\xc5\xd0\xd3\xc6")):
        return "is PostScript, which is not opened because that means running it; convert it to PNG"
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return f"starts as a {kind} does, but its header is damaged or of a kind Pillow cannot read; export it again"
    if not head.strip(b"\0"):
        return "holds only zero bytes where an image should start; fetch it again"
    return f"is not an image in a format that can be read (it starts with {head[:8]!r})"


def _guarded(name: str, step: Callable[[], Image.Image]) -> Image.Image:
    """Run ``step``; whatever a decoder raises on a bad file becomes an :class:`ImageError` with the file's name."""
    try:
        return step()
    except ImageError:
        raise
    except MemoryError:
        raise ImageError(name, "does not fit into memory; shrink it, or lower max_pixels to skip such files") from None
    except Image.DecompressionBombError as error:
        raise ImageError(name, f"holds an image too large to decode safely ({_words(error)})") from error
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, EOFError, IndexError...
        words = _words(error)
        truncated = "truncated" in words.lower() or isinstance(error, EOFError)
        reason = "is truncated" if truncated else "is corrupt"
        raise ImageError(name, f"{reason} ({words}); fetch or export it again") from error


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _upright(image: Image.Image) -> Image.Image:
    """A copy, turned as its EXIF orientation says; a broken EXIF block says nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the EXIF parser raises anything on a damaged block, and the pixels are fine without it
        return image.copy()  # ... unless it was the pixels: then this raises in turn, for the caller to report


def _upright_itself(image: Image.Image) -> Image.Image:
    """The same for a loaded image of our own, which is not copied where it stands upright."""
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # a damaged block, as above
        return image
    return _upright(image) if turned else image


def _to_rgb(image: Image.Image, file_format: str | None) -> Image.Image:
    """8-bit RGB of a loaded image of any mode."""
    mode = image.mode
    if mode.startswith("I;16"):
        return _grey(np.asarray(image).astype(np.uint16) >> 8)
    if mode == "I":
        return _grey(_integers_to_8_bit(np.asarray(image), sixteen_bit=file_format in ("PNG", "PPM")))
    if mode == "F":
        return _grey(_floats_to_8_bit(np.asarray(image)))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, picture).convert("RGB")
    if mode == "LAB":
        from PIL import ImageCms

        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        assert converted is not None  # None only with inPlace=True
        return converted
    return image if mode == "RGB" else image.convert("RGB")


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _integers_to_8_bit(values: np.ndarray, sixteen_bit: bool) -> np.ndarray:
    low, high = int(values.min()), int(values.max())
    if sixteen_bit and low >= 0 and high <= 65535:  # a format whose deep grey is 16-bit, however dark this picture
        return values >> 8
    if low >= 0 and high <= 255:
        return values
    if low >= 0 and high <= 65535:
        return values >> 8
    return _stretch(values.astype(np.float64), low, high)


def _floats_to_8_bit(values: np.ndarray) -> np.ndarray:
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = float(values[finite].min()), float(values[finite].max())
    values = np.where(finite, values, low).astype(np.float64)
    if low >= 0 and high <= 1:
        scaled = np.rint(values * 255)
    elif low >= 0 and high <= 255:
        scaled = np.rint(values)
    else:
        scaled = _stretch(values, low, high)
    return np.where(finite, scaled, 0)


def _stretch(values: np.ndarray, low: float, high: float) -> np.ndarray:
    if high == low:  # constant: no range to stretch, so the nearest 8-bit value
        return np.clip(values, 0, 255)
    return np.rint((values - low) * (255.0 / (high - low)))


def find_image(name: str, root: Path) -> Path | None:
    """The file that a table means by ``name``: as written, or under ``root``; else its last part in ``root`` or its ``images``.

    Published tables name the folders of the machine that made them, hence the second try.
    """
    written = Path(name)
    last = PureWindowsPath(name).name if "\\" in name else PurePosixPath(name).name
    for candidate in (written if written.is_absolute() else root / written, root / last, root / "images" / last):
        if os.path.isfile(candidate):  # False too for what no file can be called, where Path's own method raises
            return candidate
    return None


def not_found(root: str | os.PathLike[str] | None) -> str:
    """What to say of an image without a file: where it was looked for, and the way out."""
    where = "the working directory" if root is None else display_path(root)
    return f"not found under {where}; try --image-root DIR (image_root= in Python)"


def find_images(folder: str | os.PathLike[str], *, on_error: Callable[[Path, str], None] | None = None) -> list[Path]:
    """Every image file under ``folder``, by file name ending (:data:`IMAGE_SUFFIXES`, any case), sorted by path.

    Hidden files and folders (a leading dot) are left out. Links are followed, to files and to folders, but no folder is walked
    twice, so loops end; a folder reachable both directly and by a link is listed under its own path.

    Args:
        folder: where to look. File names may hold any bytes.
        on_error: called with a path and a reason for each folder that cannot be listed; by default a warning is issued.

    Raises:
        FileNotFoundError, NotADirectoryError: ``folder`` is not there, or not a folder.
    """
    report = on_error or (lambda path, reason: warnings.warn(f"{display_path(path)}: {reason}", stacklevel=4))
    return sorted((Path(path) for path, _ in walk_images(folder, on_error=report)), key=os.fsencode)


def walk_images(
    folder: str | os.PathLike[str], *, on_error: Callable[[Path, str], None], on_other: Callable[[str], None] | None = None
) -> Iterator[tuple[str, os.stat_result | None]]:
    """The same files as :func:`find_images`, one after the other as they are come upon: folder by folder, in a fixed order.

    Args:
        folder: where to look.
        on_error: called with a path and a reason for each folder that cannot be listed.
        on_other: called with the path of each file that is not hidden and whose name is not that of an image.

    Yields:
        Each file's path, and its status (of what a link leads to), ``None`` where it has none.

    Raises:
        FileNotFoundError, NotADirectoryError: ``folder`` is not there, or not a folder.
    """
    root = Path(folder)
    if not root.exists():
        raise FileNotFoundError(f"no such folder: {display_path(root)}")
    if not root.is_dir():
        raise NotADirectoryError(f"not a folder: {display_path(root)}")
    seen: set[tuple[int, int]] = set()
    real, links = [root], list[Path]()
    while real or links:  # real folders first, so that a link never claims what has a path of its own
        here = real.pop() if real else links.pop()
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(here) as listing:
                entries = sorted(listing, key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            on_error(here, f"cannot be listed ({_words(error)})")
            continue
        files = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            if is_folder:
                (links if entry.is_symlink() else real).append(here / entry.name)
            elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
                files.append(entry)
            elif on_other is not None:
                on_other(entry.path)
        for entry in reversed(files):
            try:
                yield entry.path, entry.stat()
            except OSError:  # a link that leads nowhere, or a file that has just gone
                yield entry.path, None


def date_taken(image: Image.Image) -> float | None:
    """When a picture was taken: EXIF's DateTimeOriginal, read as this machine's local time, in seconds since 1970.

    Args:
        image: as :func:`open_image` gives it.

    Returns:
        ``None`` where the file does not say, or says what is no date.
    """
    try:
        told = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
        return None if told is None else datetime.strptime(str(told).strip("\0 "), "%Y:%m:%d %H:%M:%S").timestamp()
    except Exception:  # the EXIF parser raises anything on a damaged block
        return None


def __getattr__(name: str) -> Any:
    if name == "contact_sheet":  # written in a module of its own, which imports this one
        from clipmend.data.sheets import contact_sheet

        return contact_sheet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
