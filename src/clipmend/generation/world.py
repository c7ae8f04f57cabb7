"""The scenes that the generator draws: one to three objects, none of them small.

The drawn world shows up to six objects, and a small one is 13 of 64 pixels. A decoder that learns in hours on a processor spends
them better on fewer and larger things: prompts ask for three at most.
"""

from __future__ import annotations

import numpy as np

from clipmend.data.scenes.draw import MAX_OBJECTS, Scene, sample_scene
from clipmend.data.scenes.facts import scene_rng

__all__ = ["MOST", "few_objects", "few_objects_scenes"]

MOST = 3
"""Objects a scene, at most."""


def few_objects(rng: np.random.Generator, most: int = MOST, name: str = "") -> Scene:
    """The plan of a scene of 1 to ``most`` objects, each number as often, none of them small.

    Raises:
        ValueError: ``most`` is not from 1 to 6.
    """
    if not 1 <= most <= MAX_OBJECTS:
        raise ValueError(f"a scene shows 1 to {MAX_OBJECTS} objects, not {most}")
    count = 1 + int(rng.integers(most))
    while True:
        scene = sample_scene(rng, count, name)
        if not any(thing.size == "small" for thing in scene.objects):
            return scene


def few_objects_scenes(count: int, seed: int, split: str = "train", most: int = MOST) -> list[Scene]:
    """Scenes of a split; scene i is the same whatever the count. Train and test never share a random stream.

    Args:
        count: how many.
        seed: fixes them all.
        split: ``"train"`` or ``"test"``.
        most: objects a scene, at most.

    Raises:
        ValueError: an unknown split, a negative seed or count, or ``most`` out of 1 to 6.
    """
    if count < 0:
        raise ValueError(f"the number of scenes must not be negative, got {count}")
    return [few_objects(scene_rng(seed, split, index), most, f"images/{index:06d}.png") for index in range(count)]
