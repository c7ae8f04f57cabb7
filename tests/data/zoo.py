"""A zoo of nasty image files, made on the spot: what people's folders really hold.

``make_zoo(folder)`` writes every file and returns ``{name: Animal}``: whether it must open, its size, and the colours that
given pixels must have (within a tolerance, for JPEG).
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
Colour = tuple[int, int, int]


@dataclass
class Animal:
    """One file: its path, the size it must open at (``None``: it must be refused) and the colours of some pixels."""

    path: Path
    size: tuple[int, int] | None = None
    pixels: dict[tuple[int, int], Colour] = field(default_factory=dict)
    tolerance: int = 0
    reason: str = ""


def halves(left: Colour = RED, right: Colour = BLUE, size: tuple[int, int] = (40, 20)) -> Image.Image:
    """An image with a left and a right half of one colour each."""
    picture = Image.new("RGB", size, right)
    picture.paste(left, (0, 0, size[0] // 2, size[1]))
    return picture


def noisy(size: tuple[int, int] = (64, 64), seed: int = 0) -> Image.Image:
    """An image that compresses badly, so that cutting its file cuts its pixels."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8))


def saved(picture: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, file_format, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb_png(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG of 3.6 gigapixels in about a hundred bytes (its header is true, its rows are missing)."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + png_chunk(b"IEND", b"")


def rotated(picture: Image.Image, orientation: int) -> bytes:
    """JPEG with an EXIF orientation tag."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(picture, "JPEG", quality=95, subsampling=0, exif=exif)


def make_zoo(folder: Path) -> dict[str, Animal]:
    """Write the zoo into ``folder`` (created) and describe it."""
    folder.mkdir(parents=True, exist_ok=True)
    zoo: dict[str, Animal] = {}

    def add(name: str, data: bytes, size: tuple[int, int] | None = None, **facts: object) -> None:
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        zoo[name] = Animal(path, size, **facts)  # type: ignore[arg-type]

    for make in (_plain, _colours, _transparent, _deep, _turned, _moving, _refused):
        make(add)
    return zoo


def _plain(add: Callable[..., None]) -> None:
    ends = {(2, 10): RED, (37, 10): BLUE}
    add("plain.jpg", saved(halves(), "JPEG", quality=95, subsampling=0), (40, 20), pixels=ends, tolerance=12)
    add("plain.png", saved(halves(), "PNG"), (40, 20), pixels=ends)
    add("bilevel.png", saved(halves(BLACK, WHITE).convert("1"), "PNG"), (40, 20), pixels={(2, 10): BLACK, (37, 10): WHITE})
    add("one pixel.png", saved(Image.new("RGB", (1, 1), GREEN), "PNG"), (1, 1), pixels={(0, 0): GREEN})
    add("very wide.png", saved(halves(size=(3000, 1)), "PNG"), (3000, 1), pixels={(0, 0): RED, (2999, 0): BLUE})
    add("naïve café/日本 図 🐈.PNG", saved(halves(), "PNG"), (40, 20), pixels=ends)
    add("wrong suffix.png", saved(halves(), "GIF"), (40, 20), pixels=ends)


def _colours(add: Callable[..., None]) -> None:
    cmyk = Image.merge("CMYK", [Image.new("L", (40, 20), v) for v in (0, 255, 255, 0)])  # no cyan, all magenta and yellow: red
    cmyk.paste((255, 255, 0, 0), (20, 0, 40, 20))  # all cyan and magenta: blue
    ends = {(2, 10): RED, (37, 10): BLUE}
    add("cmyk adobe.jpg", saved(cmyk, "JPEG", quality=95, subsampling=0), (40, 20), pixels=ends, tolerance=12)
    add("cmyk.tif", saved(cmyk, "TIFF"), (40, 20), pixels=ends)
    lab = Image.merge("LAB", [Image.new("L", (8, 8), v) for v in (255, 128, 128)])  # L* = 100, a* = b* = 0: white
    add("lab.tif", saved(lab, "TIFF"), (8, 8), pixels={(4, 4): WHITE}, tolerance=3)
    palette = halves().convert("P", palette=Image.Palette.ADAPTIVE)
    add("palette.png", saved(palette, "PNG"), (40, 20), pixels=ends)


def _transparent(add: Callable[..., None]) -> None:
    palette = Image.new("P", (40, 20), 0)
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.paste(1, (20, 0, 40, 20))
    over = {(2, 10): WHITE, (37, 10): BLUE}
    add("palette transparent.png", saved(palette, "PNG", transparency=0), (40, 20), pixels=over)
    half = {(2, 10): (255, 127, 127), (37, 10): BLUE}
    add("palette half transparent.png", saved(palette, "PNG", transparency=bytes([128, 255])), (40, 20), pixels=half, tolerance=1)
    add("palette transparent.gif", saved(palette, "GIF", transparency=0), (40, 20), pixels=over)
    rgba = halves().convert("RGBA")
    rgba.paste((255, 0, 0, 0), (0, 0, 20, 20))
    add("alpha.png", saved(rgba, "PNG"), (40, 20), pixels=over)
    add("alpha.webp", saved(rgba, "WEBP", lossless=True), (40, 20), pixels=over)
    add("colour key.png", saved(halves(), "PNG", transparency=RED), (40, 20), pixels=over)
    grey_alpha = Image.merge("LA", [Image.new("L", (8, 8), 0), Image.new("L", (8, 8), 128)])
    add("grey alpha.png", saved(grey_alpha, "PNG"), (8, 8), pixels={(4, 4): (127, 127, 127)}, tolerance=1)


def _deep(add: Callable[..., None]) -> None:
    ramp = np.array([[0, 256, 32768, 65535]], np.uint16)
    levels = {(0, 0): (0, 0, 0), (1, 0): (1, 1, 1), (2, 0): (128, 128, 128), (3, 0): (255, 255, 255)}
    add("16-bit.png", saved(Image.fromarray(ramp), "PNG"), (4, 1), pixels=levels)
    dark = np.array([[0, 100, 200, 255]], np.uint16)  # all below 256: nearly black, not stretched to white
    add("16-bit dark.png", saved(Image.fromarray(dark), "PNG"), (4, 1), pixels={(x, 0): BLACK for x in range(4)})
    add("16-bit.tif", saved(Image.fromarray(ramp), "TIFF"), (4, 1), pixels=levels)
    add("16-bit.pgm", b"P5 4 1 65535\n" + ramp.astype(">u2").tobytes(), (4, 1), pixels=levels)
    rows = b"\0" + b"".join(struct.pack(">HHH", v, 0, 65535 - v) for v in (0, 65535))
    colour = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)) + png_chunk(b"IDAT", zlib.compress(rows))
    png = b"\x89PNG\r\n\x1a\n" + colour + png_chunk(b"IEND", b"")
    add("16-bit colour.png", png, (2, 1), pixels={(0, 0): BLUE, (1, 0): RED})
    signed = np.array([[-100, 0, 100]], np.int32)
    add(
        "32-bit.tif",
        saved(Image.fromarray(signed), "TIFF"),
        (3, 1),
        pixels={(0, 0): BLACK, (1, 0): (128,) * 3, (2, 0): WHITE},
        tolerance=1,
    )
    unit = np.array([[0.0, 0.5, np.nan]], np.float32)
    add("float unit.tif", saved(Image.fromarray(unit), "TIFF"), (3, 1), pixels={(0, 0): BLACK, (1, 0): (128,) * 3, (2, 0): BLACK})
    wide = np.array([[-1.0, 0.0, 3.0]], np.float32)
    add("float wide.tif", saved(Image.fromarray(wide), "TIFF"), (3, 1), pixels={(0, 0): BLACK, (1, 0): (64,) * 3, (2, 0): WHITE})


def _turned(add: Callable[..., None]) -> None:
    # Stored 40 x 20, red left and blue right. Orientation 6: turn 90 degrees clockwise to view, so red ends on top.
    top_red, top_blue = {(10, 2): RED, (10, 37): BLUE}, {(10, 2): BLUE, (10, 37): RED}
    add("exif 6.jpg", rotated(halves(), 6), (20, 40), pixels=top_red, tolerance=12)
    add("exif 8.jpg", rotated(halves(), 8), (20, 40), pixels=top_blue, tolerance=12)
    add("exif 3.jpg", rotated(halves(), 3), (40, 20), pixels={(2, 10): BLUE, (37, 10): RED}, tolerance=12)
    add("exif 2.jpg", rotated(halves(), 2), (40, 20), pixels={(2, 10): BLUE, (37, 10): RED}, tolerance=12)
    exif = Image.Exif()
    exif[0x0112] = 6
    add("exif 6.tif", saved(halves(), "TIFF", exif=exif), (20, 40), pixels=top_red)
    broken = rotated(halves(), 6).replace(b"Exif\0\0", b"Exif\0\0\xff\xff", 1)  # shifts the block: no longer TIFF inside
    add("exif broken.jpg", broken, (40, 20), pixels={(2, 10): RED, (37, 10): BLUE}, tolerance=12)


def _moving(add: Callable[..., None]) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    for suffix in ("gif", "webp", "png", "tif"):
        file_format = {"tif": "TIFF"}.get(suffix, suffix.upper())
        options = {"lossless": True} if suffix == "webp" else {}
        data = saved(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
        add(f"animated.{suffix}", data, (16, 16), pixels={(8, 8): RED})


def _refused(add: Callable[..., None]) -> None:
    jpeg, png = saved(noisy(), "JPEG", quality=95), saved(noisy(), "PNG")
    add("truncated.jpg", jpeg[: len(jpeg) // 2], reason="truncated")
    add("truncated.png", png[: len(png) // 2], reason="truncated")
    add("header only.jpg", jpeg[:20], reason="starts as a JPEG does")
    add("header damaged.png", png[:12] + b"????" + png[16:], reason="starts as a PNG does")
    deep = saved(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF")
    bits = struct.pack("<HHI", 258, 3, 1)  # BitsPerSample, a short: 64-bit floats, which Pillow does not read
    add(
        "float64.tif",
        deep.replace(bits + struct.pack("<HH", 32, 0), bits + struct.pack("<HH", 64, 0)),
        reason="starts as a TIFF does",
    )
    broken = bytearray(png)
    broken[60:120] = bytes(60)  # inside the first IDAT: checksum and stream are wrong
    add("corrupt.png", bytes(broken), reason="corrupt")
    add("noise.jpg", np.random.default_rng(1).bytes(3000), reason="not an image")
    add("zero bytes.jpg", b"", reason="empty (zero bytes)")
    add("zeros.jpg", bytes(4096), reason="only zero bytes")
    add("text.jpg", b"this is a shopping list: bread, milk\n", reason="not an image")
    add("page.jpg", b"<!DOCTYPE html><html><body>404</body></html>", reason="web page")
    add("pointer.png", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", reason="Git LFS pointer")
    add("script.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n", reason="PostScript")
    add("bomb.png", bomb_png(), reason="3,600,000,000 pixels, over the limit")
