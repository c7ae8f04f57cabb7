"""The scenes that the generator draws."""

from __future__ import annotations

import pytest

from clipmend.generation.world import few_objects_scenes


@pytest.mark.parametrize("most", [1, 2, 3, 6])
def test_no_more_objects_than_asked_for_and_none_small(most: int) -> None:
    scenes = few_objects_scenes(60, 3, most=most)
    assert {len(scene.objects) for scene in scenes} == set(range(1, most + 1))
    assert {thing.size for scene in scenes for thing in scene.objects} == {"medium", "large"}


def test_scenes_are_fixed_by_seed_split_and_place() -> None:
    first = few_objects_scenes(5, 1)
    assert few_objects_scenes(9, 1)[:5] == first
    assert few_objects_scenes(5, 2) != first
    assert few_objects_scenes(5, 1, "test") != first


@pytest.mark.parametrize(
    ("count", "most", "split", "why"),
    [(-1, 3, "train", "number of scenes"), (1, 0, "train", "1 to 6"), (1, 7, "train", "1 to 6"), (1, 3, "both", "split")],
)
def test_what_cannot_be_drawn_is_refused(count: int, most: int, split: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        few_objects_scenes(count, 0, split, most)
