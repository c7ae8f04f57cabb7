"""The scenes that the generator draws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from clipmend.data.scenes import BACKGROUNDS, Scene, render
from clipmend.data.scenes.draw import overlap
from clipmend.generation.world import few_objects_scenes


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_no_more_objects_than_asked_for_all_large_and_where_patches_meet(most: int) -> None:
    scenes = few_objects_scenes(60, 3, most=most)
    assert {len(scene.objects) for scene in scenes} == set(range(1, most + 1))
    for scene in scenes:
        for thing in scene.objects:
            assert thing.size == "large"
            assert all(abs(8 * place - round(8 * place)) < 0.01 for place in thing.centre)
            assert min(thing.box) >= 0
            assert max(thing.box) <= 1
        pairs = itertools.combinations([thing.box for thing in scene.objects], 2)
        assert all(overlap(*pair) <= 0.1 for pair in pairs)


def test_a_thing_looks_alike_in_every_place() -> None:
    """Its outline is the same patch by patch, wherever it is: that is what the grid is for."""
    plain = Scene(next(iter(BACKGROUNDS)), ())
    backdrop = np.asarray(render(plain, 64)).astype(int)
    outlines: dict[str, list[NDArray[np.bool_]]] = {}
    for scene in few_objects_scenes(300, 5, most=1):
        thing = replace(scene.objects[0], colour="purple", mirrored=False)
        drawn = np.asarray(render(replace(plain, objects=(thing,)), 64)).astype(int)
        x, y = (round(8 * place) for place in thing.centre)
        there = np.abs(drawn - backdrop).sum(2) > 0
        outlines.setdefault(thing.kind, []).append(there[8 * y - 16 : 8 * y + 16, 8 * x - 16 : 8 * x + 16])
    assert sum(len(shapes) > 3 for shapes in outlines.values()) > 20
    for kind, shapes in outlines.items():
        apart = [(shapes[0] != shape).mean() for shape in shapes]
        assert max(apart) < 0.02, kind  # a pixel may have the colour of what it covers


def test_scenes_are_fixed_by_seed_split_and_place() -> None:
    first = few_objects_scenes(5, 1)
    assert few_objects_scenes(9, 1)[:5] == first
    assert few_objects_scenes(5, 2) != first
    assert few_objects_scenes(5, 1, "test") != first


@pytest.mark.parametrize(
    ("count", "most", "split", "why"),
    [(-1, 3, "train", "number of scenes"), (1, 0, "train", "1 to 4"), (1, 5, "train", "1 to 4"), (1, 3, "both", "split")],
)
def test_what_cannot_be_drawn_is_refused(count: int, most: int, split: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        few_objects_scenes(count, 0, split, most)
