"""What is drawn: deterministic, within bounds, the same truth at any resolution, visible in front of its background."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.data.scenes import (
    BACKGROUNDS,
    COLOURS,
    KINDS,
    RESERVED_KINDS,
    SIZES,
    Scene,
    make_scenes,
    render,
    sample_scene,
    scene_facts,
)
from clipmend.data.scenes.draw import overlap
from clipmend.data.scenes.shapes import SHAPES, shapes
from clipmend.data.scenes.sprites import VARIANTS, backdrop, extent, sprite
from clipmend.data.scenes.world import DENIABLE_KINDS, allowed_colours

seeds = st.integers(0, 2**32 - 1)


def test_the_world_is_as_large_as_promised():
    assert len(set(KINDS)) >= 24
    assert len(COLOURS) == 8
    assert len(SIZES) == 3
    assert len(BACKGROUNDS) == 8
    assert len(RESERVED_KINDS) >= 5
    assert set(RESERVED_KINDS) < set(KINDS)
    assert set(DENIABLE_KINDS) == set(KINDS) - set(RESERVED_KINDS)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_objects_lie_inside_and_do_not_hide_each_other(seed):
    scene = sample_scene(np.random.default_rng(seed))
    assert 1 <= len(scene.objects) <= 6
    for k, thing in enumerate(scene.objects):
        x0, y0, x1, y1 = thing.box
        assert 0 <= x0 < x1 <= 1
        assert 0 <= y0 < y1 <= 1
        assert max(x1 - x0, y1 - y0) == pytest.approx(SIZES[thing.size], rel=0.16)
        assert thing.colour in allowed_colours(scene.background)
        assert all(overlap(thing.box, other.box) <= 0.1 for other in scene.objects[:k])


def test_sizes_stay_apart_even_when_a_crowded_scene_shrinks():
    longest = {size: [] for size in SIZES}
    for scene in make_scenes(600, 3):
        for thing in scene.objects:
            longest[thing.size].append(max(thing.box[2] - thing.box[0], thing.box[3] - thing.box[1]))
    assert max(longest["small"]) < min(longest["medium"])
    assert max(longest["medium"]) < min(longest["large"])


def test_every_number_of_objects_and_some_repeated_kinds_occur():
    scenes = make_scenes(400, 5)
    assert {len(scene.objects) for scene in scenes} == {1, 2, 3, 4, 5, 6}
    counts = {scene.count(kind) for scene in scenes for kind in scene.kinds}
    assert counts == {1, 2, 3}
    repeated = sum(len(scene.kinds) < len(scene.objects) for scene in scenes) / len(scenes)
    assert 0.08 < repeated < 0.2


def test_a_seed_fixes_scenes_and_pixels_whatever_the_count():
    few, many = make_scenes(5, 11, "test"), make_scenes(40, 11, "test")
    assert few == many[:5]
    assert [render(s, 48).tobytes() for s in few] == [render(s, 48).tobytes() for s in many[:5]]


def test_the_looks_are_those_that_the_bundled_weights_were_trained_on():
    """Every outline of every kind, to four decimals: another look needs other weights and patches."""
    outlines = [
        [kind, [[s.role, round(s.width, 4), [[round(x, 4), round(y, 4)] for x, y in s.points]] for s in shapes(kind)]]
        for kind in SHAPES
    ]
    digest = hashlib.sha256(json.dumps(outlines).encode()).hexdigest()
    assert digest == "014ef06b5c2131b93e00b31c72d8a89cd3aedde42d7ab1295f4ee7b0e276b00d"


def test_train_and_test_share_no_scene():
    def plan(scene):
        return scene.background, scene.objects, scene.variant

    train = {plan(s) for s in make_scenes(300, 7, "train")}
    test = {plan(s) for s in make_scenes(300, 7, "test")}
    other = {plan(s) for s in make_scenes(300, 8, "train")}
    assert not train & test
    assert not train & other


@pytest.mark.parametrize(
    ("arguments", "what"), [((3, 1, "validation"), "split"), ((3, -1, "train"), "seed"), ((-1, 1, "train"), "number")]
)
def test_bad_arguments_are_refused(arguments, what):
    with pytest.raises(ValueError, match=what):
        make_scenes(*arguments)


def test_facts_are_complete():
    scene = Scene.from_json(
        {
            "image": "a.png",
            "background": "beach",
            "objects": [
                {"kind": "cup", "colour": "red", "size": "small", "box": [0.1, 0.1, 0.3, 0.3]},
                {"kind": "cup", "colour": "blue", "size": "large", "box": [0.5, 0.5, 0.9, 0.9]},
            ],
        }
    )
    assert scene_facts(scene) == {
        "at beach", "cup", "two cups", "red cup", "blue cup", "small cup", "large cup", "small red cup", "large blue cup",
    }  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_json_gives_the_scene_back(seed):
    scene = sample_scene(np.random.default_rng(seed), name="images/x.png")
    again = Scene.from_json(scene.to_json())
    assert again == scene
    assert render(again, 32).tobytes() == render(scene, 32).tobytes()


def test_relations_follow_the_boxes():
    for scene in make_scenes(50, 9):
        for i, relation, j in scene.relations():
            axis = 0 if relation == "left of" else 1
            assert scene.objects[i].centre[axis] < scene.objects[j].centre[axis]


def test_truth_does_not_depend_on_resolution():
    """The drawn pixels differ from the background inside the boxes, and only there, at every size."""
    for scene in make_scenes(12, 21):
        for size in (48, 96, 250):
            drawn = np.asarray(render(scene, size), int)
            empty = np.asarray(render(Scene(scene.background, (), scene.variant, scene.mirrored), size), int)
            changed = np.abs(drawn - empty).sum(-1) > 0
            inside = np.zeros_like(changed)
            for thing in scene.objects:
                x0, y0, x1, y1 = (v * size for v in thing.box)
                inside[max(0, int(y0) - 2) : int(y1) + 3, max(0, int(x0) - 2) : int(x1) + 3] = True
                assert changed[int(y0) : int(y1) + 1, int(x0) : int(x1) + 1].mean() > 0.25
            assert not (changed & ~inside).any()


def test_resolutions_show_the_same_picture():
    for scene in make_scenes(8, 2):
        large = render(scene, 256).resize((64, 64))
        small = render(scene, 64)
        assert np.abs(np.asarray(large, float) - np.asarray(small, float)).mean() < 9


def test_edges_are_anti_aliased():
    _, mask = sprite("cat", "red", 40, False)
    levels = np.unique(np.asarray(mask))
    assert len(levels) > 8


def test_too_small_an_image_is_refused():
    with pytest.raises(ValueError, match="16"):
        render(make_scenes(1, 1)[0], 8)


def test_kinds_differ_in_shape():
    """No two silhouettes coincide: intersection over union below 0.85 at 48 pixels."""
    masks = {}
    for kind in KINDS:
        _, mask = sprite(kind, "red", 48, False)
        canvas = np.zeros((48, 48), bool)
        shape = np.asarray(mask) > 127
        canvas[(48 - shape.shape[0]) // 2 :, (48 - shape.shape[1]) // 2 :][: shape.shape[0], : shape.shape[1]] = shape
        masks[kind] = canvas
    for first in KINDS:
        for second in KINDS:
            if first < second:
                a, b = masks[first], masks[second]
                assert (a & b).sum() / (a | b).sum() < 0.85, (first, second)


def test_sprites_fill_their_extent():
    for kind in KINDS:
        picture, mask = sprite(kind, "blue", 120, False)
        assert max(picture.size) == 120
        covered = mask.getbbox()
        assert covered is not None
        assert covered[0] <= 3
        assert covered[1] <= 3
        assert picture.width - covered[2] <= 3
        assert picture.height - covered[3] <= 3
        x0, y0, x1, y1 = extent(kind)
        assert picture.width / picture.height == pytest.approx((x1 - x0) / (y1 - y0), rel=0.03)


def test_object_colours_stand_out():
    for name in BACKGROUNDS:
        for variant in range(VARIANTS):
            pixels = np.asarray(backdrop(name, variant, 48), float).reshape(-1, 3)
            for colour in allowed_colours(name):
                distance = np.linalg.norm(pixels - np.array(COLOURS[colour], float), axis=1)
                assert np.median(distance) > 60, (name, colour)


def test_backgrounds_differ_from_each_other():
    means = {name: np.mean([np.asarray(backdrop(name, v, 32), float) for v in range(VARIANTS)], 0) for name in BACKGROUNDS}
    names = list(means)
    for k, first in enumerate(names):
        for second in names[k + 1 :]:
            assert np.abs(means[first] - means[second]).mean() > 12, (first, second)


@pytest.mark.parametrize(
    "change",
    [{"background": "moon"}, {"objects": [{"kind": "cat"}]}, {"objects": 3}, {"objects": [{"kind": "yeti", "box": [0] * 4}]}],
)
def test_what_is_no_scene_is_refused(change):
    row = make_scenes(1, 1)[0].to_json() | change
    with pytest.raises(ValueError, match=r"unknown|missing|not a scene"):
        Scene.from_json(row)
