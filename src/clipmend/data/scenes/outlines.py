"""What pictures are made of: filled polygons and strokes on a 100 x 100 sheet (y downwards).

Every outline names a *role* rather than a colour: ``body``, ``dark`` and ``light`` follow the object's colour, others are fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Point", "Shape", "arc", "blob", "box", "curve", "ellipse", "line", "polygon"]

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Shape:
    """A filled polygon (``width`` 0) or a round-ended stroke of the given width through ``points``."""

    points: tuple[Point, ...]
    role: str = "body"
    width: float = 0.0


def ellipse(cx: float, cy: float, rx: float, ry: float, role: str = "body", turn: float = 0.0) -> Shape:
    """Ellipse, turned clockwise by ``turn`` degrees."""
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    points = []
    for step in range(48):
        u, v = rx * math.cos(step * math.tau / 48), ry * math.sin(step * math.tau / 48)
        points.append((cx + u * cos - v * sin, cy + u * sin + v * cos))
    return Shape(tuple(points), role)


def polygon(*points: Point, role: str = "body") -> Shape:
    """Straight-sided polygon."""
    return Shape(points, role)


def box(x0: float, y0: float, x1: float, y1: float, role: str = "body", radius: float = 0.0) -> Shape:
    """Rectangle with rounded corners."""
    if not radius:
        return polygon((x0, y0), (x1, y0), (x1, y1), (x0, y1), role=role)
    corners = ((x1 - radius, y0 + radius, -90), (x1 - radius, y1 - radius, 0), (x0 + radius, y1 - radius, 90))
    points = [p for cx, cy, a in (*corners, (x0 + radius, y0 + radius, 180)) for p in arc(cx, cy, radius, radius, a, a + 90, 6)]
    return Shape(tuple(points), role)


def arc(cx: float, cy: float, rx: float, ry: float, start: float, end: float, steps: int = 24) -> list[Point]:
    """Points of an elliptic arc, degrees clockwise from the positive x axis."""
    angles = [math.radians(start + (end - start) * k / steps) for k in range(steps + 1)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


def blob(*points: Point, role: str = "body") -> Shape:
    """Smooth closed curve through the points (Catmull-Rom)."""
    smooth, count = [], len(points)
    for k in range(count):
        p0, p1, p2, p3 = (points[(k + offset) % count] for offset in (-1, 0, 1, 2))
        smooth += [_spline(p0, p1, p2, p3, step / 8) for step in range(8)]
    return Shape(tuple(smooth), role)


def curve(*points: Point, width: float, role: str = "body") -> Shape:
    """Smooth open stroke through the points."""
    padded = (points[0], *points, points[-1])
    quads = zip(padded, padded[1:], padded[2:], padded[3:], strict=False)
    smooth = [_spline(*quad, step / 8) for quad in quads for step in range(8)]
    return Shape((*smooth, points[-1]), role, width)


def line(*points: Point, width: float, role: str = "line") -> Shape:
    """Straight stroke through the points."""
    return Shape(points, role, width)


def _spline(p0: Point, p1: Point, p2: Point, p3: Point, t: float) -> Point:
    def axis(a: float, b: float, c: float, d: float) -> float:
        return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t * t + (3 * b - a - 3 * c + d) * t**3)

    return axis(p0[0], p1[0], p2[0], p3[0]), axis(p0[1], p1[1], p2[1], p3[1])
