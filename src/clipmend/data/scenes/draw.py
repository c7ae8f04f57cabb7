"""Scenes: sample one from a random generator, draw it at any resolution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from clipmend.data.scenes.sprites import VARIANTS, backdrop, extent, sprite
from clipmend.data.scenes.world import BACKGROUNDS, COLOURS, KINDS, SIZES, allowed_colours

__all__ = ["MAX_OBJECTS", "Scene", "SceneObject", "box_around", "overlap", "render", "sample_scene", "with_object"]

MAX_OBJECTS = 6
_COUNT_ODDS = np.cumsum([0.08, 0.14, 0.22, 0.24, 0.18, 0.14])  # 1..6 objects
_REPEAT_ODDS = 0.15  # scenes that show one kind two or three times
_MAX_AREA = 0.62  # of the image, summed over the objects' enclosing squares, so that a place is found for each
_MAX_OVERLAP = 0.10  # of the smaller box
_MARGIN = 0.01
_RELATION_GAP = 0.12  # how far apart two centres must be for "left of" or "above" to be said

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One drawn object.

    Args:
        kind, colour, size: as in :mod:`clipmend.data.scenes.world`.
        box: ``(x0, y0, x1, y1)`` as fractions of the image's side, y downwards.
        mirrored: drawn left to right reversed.
    """

    kind: str
    colour: str
    size: str
    box: Box
    mirrored: bool = False

    @property
    def centre(self) -> tuple[float, float]:
        """Middle of the box."""
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


@dataclass(frozen=True, slots=True)
class Scene:
    """A background and one to six objects. Everything is in fractions of the side: nothing depends on the resolution.

    Args:
        background: a key of ``BACKGROUNDS``.
        objects: drawn in this order (a small overlap is possible, up to a tenth of the smaller box).
        variant: which variant of the background.
        mirrored: background reversed left to right.
        name: path of its image in the folder that holds the scene, e.g. ``"images/000000.png"``; ``""`` for none.
    """

    background: str
    objects: tuple[SceneObject, ...]
    variant: int = 0
    mirrored: bool = False
    name: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds it shows, each once, in drawing order."""
        return tuple(dict.fromkeys(thing.kind for thing in self.objects))

    def count(self, kind: str) -> int:
        """How many objects of a kind it shows."""
        return sum(thing.kind == kind for thing in self.objects)

    def relations(self) -> list[tuple[int, str, int]]:
        """``(i, "left of" | "above", j)`` for every pair of objects that stand clearly so."""
        found = []
        for i, first in enumerate(self.objects):
            for j, second in enumerate(self.objects):
                if i == j:
                    continue
                if second.centre[0] - first.centre[0] > _RELATION_GAP:
                    found.append((i, "left of", j))
                if second.centre[1] - first.centre[1] > _RELATION_GAP:
                    found.append((i, "above", j))
        return found

    def to_json(self) -> dict[str, Any]:
        """As a row of ``scenes.jsonl``."""
        return {
            "image": self.name,
            "background": self.background,
            "objects": [
                {"kind": o.kind, "colour": o.colour, "size": o.size, "box": [round(v, 4) for v in o.box], "mirrored": o.mirrored}
                for o in self.objects
            ],
            "relations": [[i, relation, j] for i, relation, j in self.relations()],
            "variant": self.variant,
            "mirrored": self.mirrored,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Scene:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: a field is missing or names something that this world does not have.
        """
        try:
            objects = []
            for thing in row["objects"]:
                x0, y0, x1, y1 = _read_box(thing["box"])
                _check(thing["kind"], KINDS, "kind")
                _check(thing["colour"], COLOURS, "colour")
                _check(thing["size"], SIZES, "size")
                mirrored = bool(thing.get("mirrored", False))
                objects.append(SceneObject(thing["kind"], thing["colour"], thing["size"], (x0, y0, x1, y1), mirrored))
            _check(row["background"], BACKGROUNDS, "background")
            variant = row.get("variant", 0)
            if not isinstance(variant, int):
                raise ValueError(f"variant is {variant!r:.60}, not a whole number")
            variant %= VARIANTS
            return cls(row["background"], tuple(objects), variant, bool(row.get("mirrored", False)), str(row["image"]))
        except KeyError as error:
            raise ValueError(f"the field {error} is missing") from error
        except TypeError as error:
            raise ValueError(f"not a scene: {error}") from error


def _read_box(value: Any) -> Box:
    numbers = [float(v) for v in value]
    if len(numbers) != 4 or not np.isfinite(numbers).all():
        raise ValueError(f"box is {value!r:.60}, not four numbers")
    return numbers[0], numbers[1], numbers[2], numbers[3]


def _check(value: Any, allowed: Any, what: str) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {what} {value!r}; this world has {', '.join(allowed)}")


def overlap(a: Box, b: Box) -> float:
    """Shared area of two boxes as a fraction of the smaller one."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1]))


def box_around(kind: str, longest: float, x: float, y: float) -> Box:
    """Box of a kind whose longest side is ``longest``, centred at ``(x, y)``."""
    x0, y0, x1, y1 = extent(kind)
    scale = longest / max(x1 - x0, y1 - y0) / 2
    half_width, half_height = (x1 - x0) * scale, (y1 - y0) * scale
    return round(x - half_width, 4), round(y - half_height, 4), round(x + half_width, 4), round(y + half_height, 4)


def sample_scene(rng: np.random.Generator, count: int | None = None, name: str = "") -> Scene:
    """Draw the plan of a scene.

    Args:
        rng: source of every choice.
        count: number of objects, 1 to 6; by default 1-6, mostly 3-5.
        name: path its image will have.

    Kinds differ within a scene, but for some 15% of scenes, which show one kind two or three times. Raises ``ValueError`` for a
    count outside 1-6.
    """
    if count is None:
        count = 1 + int(np.searchsorted(_COUNT_ODDS, rng.random()))
        count = min(count, MAX_OBJECTS)
    if not 1 <= count <= MAX_OBJECTS:
        raise ValueError(f"a scene shows 1 to {MAX_OBJECTS} objects, not {count}")
    background = list(BACKGROUNDS)[int(rng.integers(len(BACKGROUNDS)))]
    colours, sizes = allowed_colours(background), list(SIZES)
    kinds = [KINDS[k] for k in rng.permutation(len(KINDS))[:count]]
    if count > 1 and rng.random() < _REPEAT_ODDS:
        for k in range(1, min(count, 2 + int(rng.integers(2)))):
            kinds[k] = kinds[0]
    chosen = [sizes[int(k)] for k in rng.integers(len(sizes), size=count)]
    while sum(SIZES[size] ** 2 for size in chosen) > _MAX_AREA:
        largest = max(range(count), key=lambda k: SIZES[chosen[k]])
        chosen[largest] = sizes[sizes.index(chosen[largest]) - 1]
    boxes = _place(rng, kinds, chosen)
    looks = rng.integers(len(colours), size=count)
    flips = rng.integers(2, size=count)
    objects = tuple(SceneObject(kinds[k], colours[int(looks[k])], chosen[k], boxes[k], bool(flips[k])) for k in range(count))
    return Scene(background, objects, int(rng.integers(VARIANTS)), bool(rng.integers(2)), name)


def _place(rng: np.random.Generator, kinds: list[str], sizes: list[str]) -> list[Box]:
    """A box for every object, the largest placed first; where no place is found the whole layout is drawn anew."""
    order = sorted(range(len(kinds)), key=lambda k: -SIZES[sizes[k]])
    shrink = 1.0
    while True:
        boxes: dict[int, Box] = {}
        for k in order:
            longest = SIZES[sizes[k]] * shrink * (0.95, 1.0, 1.05)[int(rng.integers(3))]
            free = _free_spot(rng, kinds[k], longest, list(boxes.values()))
            if free is None:
                break
            boxes[k] = free
        if len(boxes) == len(kinds):
            return [boxes[k] for k in range(len(kinds))]
        shrink = max(0.92, shrink - 0.01)  # crowded scenes: a little smaller, never as small as the next size


def _free_spot(rng: np.random.Generator, kind: str, longest: float, taken: list[Box]) -> Box | None:
    around = box_around(kind, longest, 0.0, 0.0)
    half_width, half_height = around[2] + _MARGIN, around[3] + _MARGIN
    for u, v in rng.random((48, 2)):
        x, y = half_width + u * (1 - 2 * half_width), half_height + v * (1 - 2 * half_height)
        box = box_around(kind, longest, float(x), float(y))
        if all(overlap(box, other) <= _MAX_OVERLAP for other in taken):
            return box
    return None


def render(scene: Scene, size: int = 64) -> Image.Image:
    """Draw a scene.

    Args:
        scene: what to draw.
        size: side of the image in pixels, at least 16.

    Returns:
        RGB image, ``size`` x ``size``, anti-aliased. The same scene and size give the same pixels.
    """
    if size < 16:
        raise ValueError(f"scenes are drawn at 16 pixels or more, not {size}")
    image = backdrop(scene.background, scene.variant, size)
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if scene.mirrored else image.copy()
    for thing in scene.objects:
        x0, y0, x1, y1 = thing.box
        pixels = max(2, round(max(x1 - x0, y1 - y0) * size))
        picture, mask = sprite(thing.kind, thing.colour, pixels, thing.mirrored)
        left, top = thing.centre[0] * size - picture.width / 2, thing.centre[1] * size - picture.height / 2
        image.paste(picture, (round(left), round(top)), mask)
    return image


def with_object(scene: Scene, index: int, **changes: Any) -> Scene:
    """The scene with one object's fields replaced."""
    objects = list(scene.objects)
    objects[index] = replace(objects[index], **changes)
    return replace(scene, objects=tuple(objects))
