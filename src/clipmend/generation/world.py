"""The scenes that the generator draws: one or two large objects, whose places are on the generator's grid of patches.

The drawn world shows up to six objects, some of them 13 of 64 pixels small, anywhere. A decoder that learns in an hour on a
processor spends it better on few and large things. And it sees patches of 8 pixels: an object a pixel further to the left looks
different in all of them, and has to be learnt again. So objects are centred where patches meet.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clipmend.data.scenes.draw import Box, Scene, box_around, overlap, sample_scene
from clipmend.data.scenes.facts import scene_rng
from clipmend.data.scenes.world import SIZES

__all__ = ["LIMIT", "MOST", "few_objects", "few_objects_scenes"]

MOST = 2
"""Objects a scene, at most."""

LIMIT = 4
"""More large objects than these find no place in a scene."""

_SIDE = 8  # places a side
# A large object, 28 of 64 pixels, fits in around each of these.
_PLACES = tuple((x / _SIDE, y / _SIDE) for x in range(2, _SIDE - 1) for y in range(2, _SIDE - 1))
_MAX_OVERLAP = 0.10  # of the smaller box, as in the drawn world


def few_objects(rng: np.random.Generator, most: int = MOST, name: str = "") -> Scene:
    """The plan of a scene of 1 to ``most`` objects, each number as often, all of them large and on the grid.

    Raises:
        ValueError: ``most`` is not from 1 to 4.
    """
    if not 1 <= most <= LIMIT:
        raise ValueError(f"a scene of large objects shows 1 to {LIMIT} of them, not {most}")
    count = 1 + int(rng.integers(most))
    while True:
        scene = sample_scene(rng, count, name)
        boxes = _place(rng, [thing.kind for thing in scene.objects])
        if boxes is not None:
            objects = zip(scene.objects, boxes, strict=True)
            return replace(scene, objects=tuple(replace(thing, size="large", box=box) for thing, box in objects))


def _place(rng: np.random.Generator, kinds: list[str]) -> list[Box] | None:
    """A box for each object, none over another by more than a tenth; ``None`` where the first ones leave no place for the rest."""
    boxes: list[Box] = []
    for kind in kinds:
        around = [box_around(kind, SIZES["large"], x, y) for x, y in _PLACES]
        free = [box for box in around if all(overlap(box, other) <= _MAX_OVERLAP for other in boxes)]
        if not free:
            return None
        boxes.append(free[int(rng.integers(len(free)))])
    return boxes


def few_objects_scenes(count: int, seed: int, split: str = "train", most: int = MOST) -> list[Scene]:
    """Scenes of a split; scene i is the same whatever the count. Train and test never share a random stream.

    Args:
        count: how many.
        seed: fixes them all.
        split: ``"train"`` or ``"test"``.
        most: objects a scene, at most.

    Raises:
        ValueError: an unknown split, a negative seed or count, or ``most`` out of 1 to 4.
    """
    if count < 0:
        raise ValueError(f"the number of scenes must not be negative, got {count}")
    return [few_objects(scene_rng(seed, split, index), most, f"images/{index:06d}.png") for index in range(count)]
