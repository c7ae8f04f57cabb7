"""Contact sheets: many images with captions in one picture."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, ImageSource, open_image

__all__ = ["contact_sheet"]

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
_GAP, _INK, _PAPER, _FRAME = 8, (32, 32, 32), (255, 255, 255), (225, 225, 225)


def contact_sheet(
    images: Sequence[ImageSource],
    captions: Sequence[str] | None = None,
    columns: int = 4,
    title: str | None = None,
    *,
    tile: int = 192,
    caption_lines: int = 2,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
) -> Image.Image:
    """Draw images in a grid, each whole and centred in its tile, with captions below and a title above.

    Args:
        images: paths, binary files or PIL images; one that cannot be read is drawn as a grey tile that says so.
        captions: one caption an image (any characters; too long ones are wrapped, then cut with an ellipsis).
        columns: tiles a row.
        title: a heading over the sheet.
        tile: side of a tile in pixels.
        caption_lines: most lines of a caption.
        max_pixels: see :func:`clipmend.data.images.open_image`.

    Returns:
        An RGB image ``min(columns, len(images))`` tiles wide.

    Raises:
        ValueError: no images, another number of captions than of images, or ``columns`` or ``tile`` below 1.
    """
    if not images:
        raise ValueError("a contact sheet needs at least one image")
    if captions is not None and len(captions) != len(images):
        raise ValueError(f"{len(images)} images but {len(captions)} captions")
    if columns < 1 or tile < 1:
        raise ValueError(f"columns and tile must be at least 1 (got {columns} and {tile})")
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    font, heading = _font(max(10, tile // 14)), _font(max(12, tile // 11))
    line = _line_height(font)
    width = columns * (tile + _GAP) + _GAP
    texts = [_wrap(_drawable(c, font), font, tile, caption_lines) for c in captions] if captions is not None else []
    below = max((len(t) for t in texts), default=0) * line
    head = _wrap(_drawable(title, heading), heading, width - 2 * _GAP, 3) if title else []
    top = _GAP + (len(head) * _line_height(heading) + _GAP if head else 0)
    sheet = Image.new("RGB", (width, top + rows * (tile + below + _GAP)), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for i, text in enumerate(head):
        pen.text((_GAP, _GAP + i * _line_height(heading)), text, fill=_INK, font=heading)
    for i, source in enumerate(images):
        x, y = _GAP + (i % columns) * (tile + _GAP), top + (i // columns) * (tile + below + _GAP)
        pen.rectangle((x, y, x + tile - 1, y + tile - 1), fill=(247, 247, 247), outline=_FRAME)
        try:
            picture = open_image(source, max_pixels=max_pixels, draft_size=tile)
        except ImageError as error:
            for j, text in enumerate(_wrap("cannot be read: " + _drawable(error.reason, font), font, tile - 8, 5)):
                pen.text((x + 4, y + 4 + j * line), text, fill=(150, 60, 60), font=font)
        else:
            picture = ImageOps.contain(picture, (tile, tile), Image.Resampling.LANCZOS)
            sheet.paste(picture, (x + (tile - picture.width) // 2, y + (tile - picture.height) // 2))
        for j, text in enumerate(texts[i] if texts else ()):
            pen.text((x, y + tile + j * line), text, fill=_INK, font=font)
    return sheet


def _font(size: int) -> _Font:
    """DejaVu Sans, which comes with matplotlib and knows most alphabets, or the font that comes with Pillow."""
    from importlib.util import find_spec

    spec = find_spec("matplotlib")
    if spec is not None and spec.origin:
        path = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        try:
            return ImageFont.truetype(path, size)
        except (OSError, ImportError):  # not shipped, or Pillow built without FreeType
            pass
    return ImageFont.load_default(size)


def _line_height(font: _Font) -> int:
    if isinstance(font, ImageFont.FreeTypeFont):
        return sum(font.getmetrics()) + 1
    return int(font.getbbox("Ag")[3]) + 2


def _drawable(text: str, font: _Font) -> str:
    """One line of text the font can draw: no control characters, no lone surrogates (undecodable bytes of a file name)."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow's old bitmap font knows Latin-1 only
        text = text.encode("latin-1", "replace").decode("latin-1")
    return " ".join(text.split())


def _wrap(text: str, font: _Font, width: int, lines: int) -> list[str]:
    """Break ``text`` into at most ``lines`` lines no wider than ``width`` pixels; what does not fit ends in an ellipsis."""
    done: list[str] = []
    rest = text
    while rest and len(done) < lines:
        count = _fitting(rest, font, width)
        if count < len(rest):
            if len(done) == lines - 1:
                dots = "…" if isinstance(font, ImageFont.FreeTypeFont) else "..."
                while count > 1 and font.getlength(rest[:count] + dots) > width:
                    count -= 1
                done.append(rest[:count].rstrip() + dots)
                break
            space = rest.rfind(" ", 0, count + 1)
            count = space if space > 0 else count
        done.append(rest[:count].rstrip())
        rest = rest[count:].lstrip()
    return done


def _fitting(text: str, font: _Font, width: int) -> int:
    """How many leading characters of ``text`` fit into ``width`` pixels, at least one."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if font.getlength(text[:middle]) <= width:
            low = middle
        else:
            high = middle - 1
    return low
