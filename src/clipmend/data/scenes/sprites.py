"""Turn shapes into anti-aliased sprites and backgrounds of any resolution."""

from __future__ import annotations

import math
import random
from functools import cache, lru_cache

from PIL import Image, ImageDraw

from clipmend.data.scenes.outlines import Point, Shape
from clipmend.data.scenes.shapes import shapes
from clipmend.data.scenes.world import COLOURS

__all__ = ["VARIANTS", "backdrop", "extent", "sprite"]

VARIANTS = 8
"""Number of variants of each background."""

_SUPERSAMPLE = 4
_OUTLINE = 2.6  # width of the dark contour, units of the 100 x 100 sheet
_FIXED: dict[str, tuple[int, int, int]] = {
    "line": (28, 26, 32),
    "white": (252, 252, 252),
    "paper": (252, 250, 240),
    "cream": (255, 240, 208),
    "spot": (255, 246, 226),
    "skin": (214, 190, 128),
    "wood": (128, 84, 46),
    "roof": (106, 62, 52),
    "clay": (184, 96, 60),
    "leaf": (58, 142, 58),
    "glass": (190, 228, 246),
    "metal": (168, 172, 182),
    "beak": (240, 168, 44),
    "flame": (255, 172, 40),
}


def _paint(colour: str) -> dict[str, tuple[int, int, int]]:
    """Colour of every role for an object of the given colour."""
    base = red, green, blue = COLOURS[colour]
    if colour == "white":  # white has no lighter tint: use a faint grey, and dark spots where others have pale ones
        return _FIXED | {"body": base, "dark": (200, 202, 208), "light": (222, 224, 228), "spot": (150, 152, 160)}
    dark = round(red * 0.72), round(green * 0.72), round(blue * 0.72)
    light = (red + 255) // 2, (green + 255) // 2, (blue + 255) // 2
    return _FIXED | {"body": base, "dark": dark, "light": light}


@cache
def extent(kind: str) -> tuple[float, float, float, float]:
    """Tight bounds ``(x0, y0, x1, y1)`` of a kind on its 100 x 100 sheet, contour included."""
    left = top = math.inf
    right = bottom = -math.inf
    for shape in shapes(kind):
        reach = shape.width / 2 + _OUTLINE
        for x, y in shape.points:
            left, top = min(left, x - reach), min(top, y - reach)
            right, bottom = max(right, x + reach), max(bottom, y + reach)
    return left, top, right, bottom


@lru_cache(maxsize=20000)
def sprite(kind: str, colour: str, pixels: int, mirrored: bool) -> tuple[Image.Image, Image.Image]:
    """A drawn object whose longest side is ``pixels``: an RGB image and its coverage ``L``, both ``[h, w]``.

    Under the edges lies the contour's colour, so that they blend into any background without a fringe.
    """
    x0, y0, x1, y1 = extent(kind)
    scale = pixels / max(x1 - x0, y1 - y0)
    width, height = max(1, round((x1 - x0) * scale)), max(1, round((y1 - y0) * scale))
    fine = (width * _SUPERSAMPLE, height * _SUPERSAMPLE)
    sx, sy = fine[0] / (x1 - x0), fine[1] / (y1 - y0)

    def place(point: Point) -> Point:
        x, y = (point[0] - x0) * sx, (point[1] - y0) * sy
        return (fine[0] - x if mirrored else x), y

    paint = _paint(colour)
    contour = paint["line"]
    image = Image.new("RGB", fine, contour)  # the contour's colour underneath: partly covered pixels then fade to it
    mask = Image.new("L", fine, 0)
    unit = (sx + sy) / 2
    on_image, on_mask = ImageDraw.Draw(image), ImageDraw.Draw(mask)
    for shape in shapes(kind):
        points = [place(p) for p in shape.points]
        _draw(on_mask, points, shape, unit, 255, _OUTLINE)
    for shape in shapes(kind):
        points = [place(p) for p in shape.points]
        # a shape's own thin contour separates it from the one behind it, e.g. a wing from the body
        if not shape.width and shape.role in ("body", "cream", "skin", "paper"):
            _draw(on_image, points, shape, unit, contour, 1.2)
        _draw(on_image, points, shape, unit, paint[shape.role], 0.0)
    return image.resize((width, height), Image.Resampling.BOX), mask.resize((width, height), Image.Resampling.BOX)


def _draw(
    draw: ImageDraw.ImageDraw, points: list[Point], shape: Shape, unit: float, fill: int | tuple[int, int, int], grow: float
) -> None:
    """Fill a shape, grown on every side by ``grow`` units."""
    if not shape.width:
        draw.polygon(points, fill=fill)
        if not grow:
            return
        points = [*points, points[0]]
    reach = (shape.width / 2 + grow) * unit
    draw.line(points, fill=fill, width=max(1, round(2 * reach)), joint="curve")
    for x, y in (points[0], points[-1]):
        draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill)


@lru_cache(maxsize=64)
def backdrop(name: str, variant: int, pixels: int) -> Image.Image:
    """A background of ``pixels`` x ``pixels``, RGB. Variants differ in horizon, tint and detail; none shows an object's kind."""
    rng = random.Random(f"{name}/{variant}")
    fine = pixels * (3 if pixels <= 512 else 2)
    image = Image.new("RGB", (fine, fine))
    _Backdrop(image, rng).paint(name)
    return image.resize((pixels, pixels), Image.Resampling.BOX)


class _Backdrop:
    """Paints one background in unit coordinates (0..1, y downwards)."""

    def __init__(self, image: Image.Image, rng: random.Random) -> None:
        self.image, self.rng, self.size = image, rng, image.width
        self.draw = ImageDraw.Draw(image)

    def paint(self, name: str) -> None:
        getattr(self, "_" + name.replace(" ", "_"))()

    def _gradient(self, top: tuple[int, int, int], bottom: tuple[int, int, int], y0: float, y1: float) -> None:
        first, last = round(y0 * self.size), round(y1 * self.size)
        strip = Image.new("RGB", (1, 2))
        strip.putpixel((0, 0), top)
        strip.putpixel((0, 1), bottom)
        height = max(1, last - first)
        # the middle half of a stretched two-pixel strip runs from the first colour to the second
        tall = strip.resize((1, height * 2), Image.Resampling.BILINEAR).crop((0, height // 2, 1, height // 2 + height))
        self.image.paste(tall.resize((self.size, height)), (0, first))

    def _poly(self, points: list[Point], fill: tuple[int, int, int]) -> None:
        self.draw.polygon([(x * self.size, y * self.size) for x, y in points], fill=fill)

    def _box(self, x0: float, y0: float, x1: float, y1: float, fill: tuple[int, int, int]) -> None:
        self._poly([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], fill)

    def _wave(self, level: float, swing: float, periods: float, fill: tuple[int, int, int]) -> None:
        """Everything below a sine curve."""
        phase = self.rng.random() * math.tau
        curve = [(k / 60, level + swing * math.sin(phase + k / 60 * periods * math.tau)) for k in range(61)]
        self._poly([*curve, (1, 1), (0, 1)], fill)

    def _tint(self, colour: tuple[int, int, int], amount: int = 6) -> tuple[int, int, int]:
        shift = self.rng.randint(-amount, amount)
        red, green, blue = (max(0, min(255, c + shift)) for c in colour)
        return red, green, blue

    def _beach(self) -> None:
        horizon = 0.26 + 0.1 * self.rng.random()
        shore = horizon + 0.2 + 0.08 * self.rng.random()
        self._gradient(self._tint((196, 228, 244)), (226, 242, 248), 0, horizon)
        self._gradient(self._tint((72, 178, 190)), (142, 216, 214), horizon, 1)
        self._wave(shore, 0.02, 1.5, (240, 248, 246))
        self._wave(shore + 0.03, 0.02, 1.5, self._tint((234, 216, 170)))
        self._wave(shore + 0.26, 0.03, 1.2, self._tint((228, 208, 158), 4))

    def _meadow(self) -> None:
        horizon = 0.3 + 0.1 * self.rng.random()
        self._gradient(self._tint((188, 222, 240)), (228, 240, 244), 0, 0.6)
        self._wave(horizon, 0.05, 1.0, self._tint((158, 206, 116)))
        self._wave(horizon + 0.2, 0.05, 0.8, self._tint((134, 190, 94)))
        self._wave(horizon + 0.42, 0.03, 1.2, self._tint((116, 174, 80)))
        for _ in range(36):
            x, y = self.rng.random(), horizon + 0.15 + (0.82 - horizon) * self.rng.random()
            self._poly([(x, y), (x + 0.012, y - 0.03), (x + 0.018, y)], (98, 156, 68))

    def _desert(self) -> None:
        horizon = 0.36 + 0.1 * self.rng.random()
        self._gradient(self._tint((206, 220, 224)), (246, 232, 206), 0, 0.6)
        self._wave(horizon, 0.05, 0.7, self._tint((226, 188, 130)))
        self._wave(horizon + 0.17, 0.07, 0.9, self._tint((212, 170, 112)))
        self._wave(horizon + 0.38, 0.05, 0.7, self._tint((200, 156, 98)))

    def _snow(self) -> None:
        horizon = 0.34 + 0.12 * self.rng.random()
        self._gradient(self._tint((172, 186, 202)), (206, 216, 226), 0, 0.6)
        self._wave(horizon, 0.03, 0.8, self._tint((226, 233, 241), 4))
        self._wave(horizon + 0.24, 0.04, 1.1, self._tint((236, 241, 247), 3))
        for _ in range(34):
            x, y, r = self.rng.random(), self.rng.random(), 0.005 + 0.005 * self.rng.random()
            self.draw.ellipse([v * self.size for v in (x - r, y - r, x + r, y + r)], fill=(252, 253, 255))

    def _night_sky(self) -> None:
        self._gradient(self._tint((12, 15, 42)), (38, 44, 88), 0, 1)
        for _ in range(46):
            x, y, r = self.rng.random(), self.rng.random(), 0.0035 + 0.004 * self.rng.random()
            self.draw.ellipse([v * self.size for v in (x - r, y - r, x + r, y + r)], fill=(206, 212, 236))

    def _street(self) -> None:
        kerb = 0.5 + 0.08 * self.rng.random()
        self._box(0, 0, 1, kerb, self._tint((150, 108, 96)))
        rows = 9
        for row in range(rows):
            y = row * kerb / rows
            self._box(0, y, 1, y + 0.006, (172, 134, 122))
            for k in range(7):
                x = k / 6 + (row % 2) / 12
                self._box(x, y, x + 0.006, y + kerb / rows, (172, 134, 122))
        self._box(0, kerb, 1, kerb + 0.12, self._tint((182, 180, 176)))
        self._box(0, kerb + 0.12, 1, kerb + 0.135, (140, 138, 136))
        self._box(0, kerb + 0.135, 1, 1, self._tint((98, 100, 106)))
        middle = kerb + 0.135 + (1 - kerb - 0.135) * 0.5
        shift = self.rng.random() * 0.2
        for k in range(-1, 5):
            self._box(shift + k * 0.24, middle, shift + k * 0.24 + 0.13, middle + 0.022, (206, 206, 200))

    def _kitchen(self) -> None:
        counter = 0.7 + 0.08 * self.rng.random()
        tiles = self.rng.choice((6, 7, 8))
        self._box(0, 0, 1, 1, self._tint((206, 222, 222), 8))
        for k in range(tiles + 1):
            self._box(k / tiles - 0.004, 0, k / tiles + 0.004, counter, (178, 198, 200))
            self._box(0, k / tiles - 0.004, 1, k / tiles + 0.004, (178, 198, 200))
        self._box(0, counter, 1, counter + 0.05, self._tint((188, 150, 108)))
        self._box(0, counter + 0.05, 1, 1, self._tint((160, 122, 84)))
        for k in range(1, 4):
            self._box(k / 4 - 0.004, counter + 0.05, k / 4 + 0.004, 1, (130, 98, 66))

    def _mountains(self) -> None:
        self._gradient(self._tint((184, 204, 222)), (222, 230, 236), 0, 0.75)
        for level, tone in ((0.34, (150, 162, 178)), (0.54, (122, 134, 148))):
            x = -0.2 * self.rng.random()
            while x < 1:
                half = 0.18 + 0.12 * self.rng.random()
                top = level - 0.16 - 0.14 * self.rng.random()
                peak = x + half
                self._poly([(x - 0.06, 1), (peak, top), (peak + half + 0.06, 1)], self._tint(tone))
                slope = (half + 0.06) / (1 - top)
                cap = 0.07
                self._poly([(peak, top), (peak + slope * cap, top + cap), (peak, top + cap * 0.7), (peak - slope * cap, top + cap)],
                           (234, 238, 243))  # fmt: skip
                x += half * 1.3
        self._wave(0.74, 0.03, 1.3, self._tint((112, 116, 114)))
