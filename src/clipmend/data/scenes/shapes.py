"""The look of each kind, put together from outlines (see :mod:`clipmend.data.scenes.outlines`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from clipmend.data.scenes.outlines import Shape, arc, blob, box, curve, ellipse, line, polygon

__all__ = ["SHAPES", "shapes"]


def _cat() -> list[Shape]:
    whiskers = [line((50 + s * 10, 42), (50 + s * 27, y), width=1.6) for s in (-1, 1) for y in (38, 46)]
    return [
        curve((66, 88), (86, 84), (90, 66), (84, 54), width=9),
        ellipse(50, 74, 23, 24),
        polygon((26, 36), (22, 4), (46, 18)),
        polygon((74, 36), (78, 4), (54, 18)),
        ellipse(50, 36, 28, 22),
        polygon((28, 26), (26.5, 11), (37, 19), role="light"),
        polygon((72, 26), (73.5, 11), (63, 19), role="light"),
        ellipse(39, 33, 4.5, 6, "line"),
        ellipse(61, 33, 4.5, 6, "line"),
        polygon((45.5, 42), (54.5, 42), (50, 47), role="line"),
        *whiskers,
        line((42, 95), (42, 76), width=2.2),
        line((58, 95), (58, 76), width=2.2),
    ]


def _dog() -> list[Shape]:
    return [
        curve((18, 50), (8, 40), (6, 24), width=8),
        box(17, 60, 28, 94, radius=4),
        box(32, 60, 42, 94, "dark", radius=4),
        box(56, 60, 66, 94, "dark", radius=4),
        box(64, 60, 75, 94, radius=4),
        box(14, 42, 76, 72, radius=14),
        polygon((58, 60), (76, 62), (84, 30), (64, 26)),
        ellipse(73, 25, 16, 14),
        box(74, 23, 98, 38, radius=6),
        blob((62, 12), (70, 14), (69, 34), (62, 44), (55, 34), role="dark"),
        ellipse(79, 20, 3, 3.4, "line"),
        ellipse(95, 25, 4.4, 3.8, "line"),
        line((62, 47), (78, 49), width=5, role="metal"),
    ]


def _fish() -> list[Shape]:
    return [
        polygon((70, 50), (98, 24), (92, 50), (98, 76), role="dark"),
        polygon((34, 34), (50, 12), (66, 32), role="dark"),
        polygon((40, 66), (52, 86), (62, 66), role="dark"),
        ellipse(42, 50, 38, 25),
        Shape((*arc(60, 50, 22, 22, 130, 230),), "light", 4),
        Shape((*arc(74, 50, 22, 20, 135, 225),), "light", 4),
        ellipse(20, 44, 6, 6, "white"),
        ellipse(19, 44, 3, 3, "line"),
        line((6, 56), (16, 58), width=2.5),
    ]


def _bird() -> list[Shape]:
    return [
        line((46, 76), (44, 95), (36, 96), width=3.2, role="beak"),
        line((58, 76), (58, 95), (50, 96), width=3.2, role="beak"),
        polygon((2, 38), (4, 54), (40, 62), (36, 46), role="dark"),
        polygon((82, 26), (99, 34), (82, 40), role="beak"),
        blob((30, 50), (54, 34), (62, 16), (78, 14), (88, 28), (84, 46), (78, 66), (58, 80), (38, 72)),
        blob((26, 50), (46, 44), (64, 50), (56, 66), (42, 66), role="dark"),
        ellipse(76, 26, 4, 4, "line"),
    ]


def _butterfly() -> list[Shape]:
    wings = []
    for s in (-1, 1):
        wings += [
            blob(
                (50, 50), (50 + s * 16, 60), (50 + s * 36, 64), (50 + s * 36, 84), (50 + s * 20, 92), (50 + s * 8, 74), role="dark"
            ),
            blob((50, 52), (50 + s * 10, 30), (50 + s * 32, 8), (50 + s * 47, 14), (50 + s * 46, 40), (50 + s * 30, 56)),
            ellipse(50 + s * 33, 30, 7, 9, "light"),
            ellipse(50 + s * 25, 76, 5, 5, "light"),
            curve((50, 24), (50 + s * 4, 12), (50 + s * 12, 4), width=2.4, role="line"),
        ]
    return [*wings, ellipse(50, 54, 5, 32, "line")]


def _snail() -> list[Shape]:
    spiral = [
        (58 + (5 + 20 * k / 60) * math.cos(k * math.tau / 26), 46 + (5 + 20 * k / 60) * math.sin(k * math.tau / 26))
        for k in range(61)
    ]
    return [
        line((16, 54), (10, 32), width=3.4, role="skin"),
        line((22, 54), (26, 34), width=3.4, role="skin"),
        ellipse(10, 31, 3.6, 3.6, "skin"),
        ellipse(26, 33, 3.6, 3.6, "skin"),
        blob((8, 58), (18, 50), (28, 60), (34, 74), (78, 76), (98, 86), (60, 90), (24, 90), (12, 76), role="skin"),
        ellipse(58, 46, 32, 32),
        Shape(tuple(spiral), "dark", 4.5),
    ]


def _turtle() -> list[Shape]:
    return [
        polygon((12, 66), (2, 76), (16, 76), role="skin"),
        box(22, 66, 36, 86, "skin", radius=6),
        box(58, 66, 72, 86, "skin", radius=6),
        curve((74, 68), (84, 62), (88, 54), width=12, role="skin"),
        ellipse(89, 50, 11, 9, "skin"),
        ellipse(92, 47, 2.4, 2.4, "line"),
        Shape((*arc(46, 68, 38, 44, 180, 360),)),
        box(6, 65, 86, 73, "dark", radius=4),
        polygon((38, 34), (54, 34), (60, 48), (46, 58), (32, 48), role="dark"),
        line((32, 48), (18, 46), width=3.4, role="dark"),
        line((60, 48), (76, 46), width=3.4, role="dark"),
        line((46, 58), (46, 66), width=3.4, role="dark"),
    ]


def _tree() -> list[Shape]:
    return [
        polygon((43, 58), (57, 58), (61, 98), (39, 98), role="wood"),
        ellipse(30, 48, 24, 20),
        ellipse(70, 48, 24, 20),
        ellipse(50, 28, 28, 26),
        ellipse(50, 50, 26, 18),
        Shape((*arc(40, 26, 14, 12, 180, 270),), "light", 3.6),
        Shape((*arc(66, 48, 14, 11, 20, 100),), "dark", 3.6),
        Shape((*arc(34, 50, 14, 11, 60, 150),), "dark", 3.6),
    ]


def _flower() -> list[Shape]:
    petals = [
        ellipse(50 + 19 * math.sin(k * math.tau / 6), 32 - 19 * math.cos(k * math.tau / 6), 10.5, 13.5, turn=60 * k)
        for k in range(6)
    ]
    return [
        curve((50, 40), (52, 70), (50, 98), width=5, role="leaf"),
        blob((51, 84), (64, 66), (84, 62), (74, 80), role="leaf"),
        blob((50, 92), (36, 74), (18, 72), (28, 88), role="leaf"),
        *petals,
        ellipse(50, 32, 11, 11, "wood"),
    ]


def _mushroom() -> list[Shape]:
    return [
        blob((38, 52), (62, 52), (64, 80), (70, 95), (50, 98), (30, 95), (36, 80), role="cream"),
        Shape((*arc(50, 54, 46, 46, 180, 360), *arc(50, 54, 46, 8, 0, 180))),
        ellipse(50, 24, 9, 7, "spot"),
        ellipse(24, 40, 7, 7, "spot"),
        ellipse(76, 40, 7, 7, "spot"),
        ellipse(50, 46, 6, 4.5, "spot"),
    ]


def _cactus() -> list[Shape]:
    spines = [line((x - 3, y), (x + 3, y), width=1.8, role="line") for x in (43, 57) for y in (22, 38, 54, 70)]
    return [
        line((50, 62), (20, 62), (20, 36), width=15, role="body"),
        line((50, 52), (80, 52), (80, 24), width=15, role="body"),
        box(35, 4, 65, 82, radius=15),
        line((50, 12), (50, 76), width=2.4, role="dark"),
        *spines,
        polygon((26, 78), (74, 78), (67, 98), (33, 98), role="clay"),
    ]


def _apple() -> list[Shape]:
    return [
        blob(
            (50, 28), (64, 21), (82, 25), (92, 46), (86, 72), (70, 94), (58, 95), (50, 91), (42, 95), (30, 94), (14, 72), (8, 46),
            (18, 25), (36, 21),
        ),
        curve((50, 32), (50, 18), (55, 6), width=5, role="wood"),
        blob((54, 17), (66, 4), (88, 4), (76, 18), role="leaf"),
        blob((22, 44), (28, 34), (34, 34), (28, 48), (26, 60), role="light"),
    ]  # fmt: skip


def _house() -> list[Shape]:
    return [
        box(68, 10, 79, 34, "wood"),
        box(14, 46, 86, 97),
        polygon((2, 50), (50, 6), (98, 50), role="roof"),
        box(42, 66, 60, 97, "wood"),
        box(21, 60, 37, 76, "glass"),
        box(66, 60, 81, 76, "glass"),
        ellipse(56, 82, 1.8, 1.8, "cream"),
    ]


def _car() -> list[Shape]:
    return [
        blob((18, 46), (30, 26), (44, 22), (62, 23), (76, 44), (70, 52), (30, 52)),
        box(2, 44, 98, 72, radius=10),
        polygon((27, 45), (35, 30), (47, 29), (47, 45), role="glass"),
        polygon((52, 45), (52, 29), (62, 30), (69, 45), role="glass"),
        ellipse(24, 72, 13, 13, "line"),
        ellipse(24, 72, 6, 6, "metal"),
        ellipse(76, 72, 13, 13, "line"),
        ellipse(76, 72, 6, 6, "metal"),
        box(90, 50, 98, 57, "cream", radius=2),
    ]


def _boat() -> list[Shape]:
    return [
        line((48, 4), (48, 72), width=4, role="wood"),
        polygon((52, 8), (52, 62), (92, 62), role="cream"),
        polygon((44, 18), (44, 62), (12, 62), role="cream"),
        polygon((2, 69), (98, 69), (82, 95), (20, 95)),
        polygon((2, 69), (98, 69), (94, 76), (6, 76), role="dark"),
    ]


def _bicycle() -> list[Shape]:
    wheels = [Shape((*arc(x, 66, 22, 22, 0, 360),), "body", 5) for x in (23, 77)]
    frame = [
        line((23, 66), (37, 36), (67, 36), (49, 66), (23, 66), width=4.5, role="dark"),
        line((37, 36), (49, 66), width=4.5, role="dark"),
        line((77, 66), (64, 22), width=4.5, role="dark"),
    ]
    return [
        *wheels,
        *frame,
        line((37, 36), (34, 26), width=4, role="line"),
        line((25, 25), (43, 25), width=5, role="line"),
        line((64, 22), (77, 18), (80, 26), width=4, role="line"),
        ellipse(49, 66, 5, 5, "metal"),
    ]


def _airplane() -> list[Shape]:
    return [
        polygon((44, 40), (56, 40), (98, 66), (98, 76), (50, 62), (2, 76), (2, 66), role="dark"),
        polygon((44, 82), (56, 82), (72, 94), (72, 99), (50, 94), (28, 99), (28, 94), role="dark"),
        blob((50, 2), (58, 14), (59, 50), (54, 92), (50, 97), (46, 92), (41, 50), (42, 14)),
        polygon((44, 16), (56, 16), (54, 9), (46, 9), role="glass"),
        box(22, 54, 28, 66, "metal", radius=2),
        box(72, 54, 78, 66, "metal", radius=2),
    ]


def _rocket() -> list[Shape]:
    return [
        polygon((40, 78), (60, 78), (56, 92), (50, 99), (44, 92), role="flame"),
        polygon((34, 50), (16, 72), (16, 86), (36, 74), role="dark"),
        polygon((66, 50), (84, 72), (84, 86), (64, 74), role="dark"),
        blob((50, 2), (62, 18), (68, 40), (67, 62), (60, 79), (40, 79), (33, 62), (32, 40), (38, 18)),
        ellipse(50, 38, 10, 10, "metal"),
        ellipse(50, 38, 6.5, 6.5, "glass"),
        box(37, 64, 63, 70, "dark"),
    ]


def _cup() -> list[Shape]:
    return [
        Shape((*arc(72, 52, 21, 18, -85, 85),), "body", 8.5),
        polygon((8, 24), (76, 24), (72, 80), (62, 92), (22, 92), (12, 80)),
        ellipse(42, 25, 34, 9, "light"),
        ellipse(42, 26, 27, 5.6, "wood"),
        line((19, 44), (21, 74), width=5, role="light"),
    ]


def _umbrella() -> list[Shape]:
    canopy = [*arc(50, 54, 47, 44, 180, 360)]
    for k in range(4):
        canopy += arc(97 - 23.5 * k - 11.75, 54, 11.75, 9, 0, -180, 10)
    return [
        Shape((*[(50.0, 6.0), (50.0, 86.0)], *arc(60, 86, 10, 10, 180, 0, 12)), "wood", 5.5),
        Shape(tuple(canopy)),
        polygon((50, 10), (26.5, 54), (30, 48), (38, 45), (46, 48), (50, 54), role="dark"),
        polygon((50, 10), (73.5, 54), (77, 48), (84, 45), (92, 48), (97, 54), (93, 36), (78, 20), role="dark"),
        line((50, 4), (50, 12), width=4, role="wood"),
    ]


def _chair() -> list[Shape]:
    return [
        box(22, 4, 31, 98, radius=2),
        box(44, 60, 51, 86, "dark", radius=2),
        box(71, 56, 80, 98, radius=2),
        box(58, 60, 65, 86, "dark", radius=2),
        polygon((22, 6), (46, 12), (46, 56), (22, 58), role="dark"),
        polygon((27, 12), (42, 16), (42, 26), (27, 24), role="light"),
        polygon((27, 30), (42, 31), (42, 42), (27, 44), role="light"),
        polygon((20, 56), (44, 46), (82, 50), (80, 62), (24, 66)),
    ]


def _clock() -> list[Shape]:
    ticks = [ellipse(50 + 25 * math.sin(k * math.tau / 12), 54 - 25 * math.cos(k * math.tau / 12), 2, 2, "line") for k in range(12)]
    return [
        line((24, 84), (16, 96), width=7, role="dark"),
        line((76, 84), (84, 96), width=7, role="dark"),
        ellipse(22, 18, 15, 11, "body", -38),
        ellipse(78, 18, 15, 11, "body", 38),
        ellipse(50, 54, 42, 42),
        ellipse(50, 54, 31, 31, "cream"),
        *ticks,
        line((50, 54), (50, 33), width=4),
        line((50, 54), (64, 62), width=4),
        ellipse(50, 54, 4, 4, "line"),
    ]


def _balloon() -> list[Shape]:
    return [
        curve((50, 72), (56, 80), (46, 88), (51, 99), width=2.4, role="line"),
        polygon((50, 66), (43, 76), (57, 76), role="dark"),
        blob((50, 2), (68, 7), (79, 28), (72, 52), (50, 70), (28, 52), (21, 28), (32, 7)),
        ellipse(38, 24, 6, 11, "light", 24),
    ]


def _book() -> list[Shape]:
    return [
        polygon((0, 20), (50, 28), (100, 20), (100, 86), (50, 98), (0, 86), role="body"),
        blob((50, 24), (38, 15), (22, 12), (10, 15), (10, 46), (10, 74), (24, 72), (40, 76), (50, 84), (50, 54), role="paper"),
        blob((50, 24), (62, 15), (78, 12), (90, 15), (90, 46), (90, 74), (76, 72), (60, 76), (50, 84), (50, 54), role="paper"),
        line((50, 26), (50, 90), width=3, role="dark"),
        *[line((18, y), (41, y + 5), width=3.4, role="body") for y in (28, 41, 54)],
        *[line((82, y), (59, y + 5), width=3.4, role="body") for y in (28, 41, 54)],
    ]


def _hat() -> list[Shape]:
    return [
        ellipse(50, 78, 48, 13),
        polygon((24, 76), (20, 14), (80, 14), (76, 76)),
        ellipse(50, 76, 26, 7),
        ellipse(50, 14, 30, 8, "light"),
        polygon((23.2, 58), (76.8, 58), (76, 74), (50, 80), (24, 74), role="line"),
        ellipse(50, 81, 47, 9),
        polygon((23.2, 56), (76.8, 56), (76, 71), (50, 76), (24, 71), role="line"),
    ]


def _lamp() -> list[Shape]:
    return [
        line((50, 44), (50, 88), width=7, role="metal"),
        ellipse(50, 66, 9, 10, "metal"),
        ellipse(50, 92, 25, 6.5, "metal"),
        polygon((32, 4), (68, 4), (88, 50), (12, 50)),
        polygon((12, 50), (88, 50), (85.4, 44), (14.6, 44), role="dark"),
        polygon((38, 10), (44, 10), (36, 38), (26, 38), role="light"),
        line((72, 50), (72, 64), width=2, role="line"),
    ]


def _key() -> list[Shape]:
    return [
        line((40, 50), (94, 50), width=9, role="body"),
        line((90, 50), (90, 68), width=9, role="body"),
        line((74, 50), (74, 64), width=9, role="body"),
        Shape((*arc(24, 50, 17, 17, 0, 360),), "body", 12),
        Shape((*arc(24, 50, 17, 17, 190, 260),), "light", 4),
    ]


def _guitar() -> list[Shape]:
    return [
        line((58, 46), (88, 13), width=7.5, role="wood"),
        polygon((80, 14), (90, 3), (99, 11), (89, 22), role="line"),
        blob((26, 96), (6, 88), (4, 66), (20, 55), (28, 44), (38, 31), (56, 33), (67, 44), (68, 60), (57, 70), (46, 78), (42, 92)),
        ellipse(42, 57, 10, 10, "line"),
        line((18, 74), (30, 86), width=5, role="wood"),
        *[line((20 + d, 80 + d), (84 + d, 12 + d), width=1.1, role="cream") for d in (0, 3.4)],
    ]


def _crown() -> list[Shape]:
    return [
        polygon((10, 88), (4, 30), (28, 56), (50, 12), (72, 56), (96, 30), (90, 88)),
        box(9, 74, 91, 92, "dark", radius=3),
        ellipse(4.5, 27, 5, 5, "cream"),
        ellipse(50, 11, 5.5, 5.5, "cream"),
        ellipse(95.5, 27, 5, 5, "cream"),
        ellipse(50, 83, 6, 6, "cream"),
        ellipse(27, 83, 4.6, 4.6, "cream"),
        ellipse(73, 83, 4.6, 4.6, "cream"),
    ]


def _bell() -> list[Shape]:
    return [
        ellipse(50, 89, 10, 9, "metal"),
        Shape((*arc(50, 11, 8, 8, 0, 360),), "metal", 4.5),
        blob((50, 14), (66, 20), (74, 40), (77, 62), (92, 80), (70, 83), (50, 84), (30, 83), (8, 80), (23, 62), (26, 40), (34, 20)),
        Shape((*arc(50, 66, 28, 6, 10, 170),), "dark", 4),
        curve((37, 30), (34, 44), (33, 58), width=5.5, role="light"),
    ]


SHAPES: dict[str, Callable[[], list[Shape]]] = {
    "cat": _cat, "dog": _dog, "fish": _fish, "bird": _bird, "butterfly": _butterfly, "snail": _snail, "turtle": _turtle,
    "tree": _tree, "flower": _flower, "mushroom": _mushroom, "cactus": _cactus, "apple": _apple, "house": _house, "car": _car,
    "boat": _boat, "bicycle": _bicycle, "airplane": _airplane, "rocket": _rocket, "cup": _cup, "umbrella": _umbrella,
    "chair": _chair, "clock": _clock, "balloon": _balloon, "book": _book, "hat": _hat, "lamp": _lamp, "key": _key,
    "guitar": _guitar, "crown": _crown, "bell": _bell,
}  # fmt: skip


@cache
def shapes(kind: str) -> Sequence[Shape]:
    """Shapes of a kind, back to front."""
    return tuple(SHAPES[kind]())
