"""Paragraphs, twins and minimal pairs."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.data.scenes import BACKGROUNDS, RESERVED_KINDS, dense_captions, make_scenes, minimal_pairs, scene_facts
from clipmend.data.scenes.draw import overlap
from clipmend.data.scenes.world import SIZE_WORDS

seeds = st.integers(0, 10**6)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_paragraphs_have_60_to_150_words_and_name_everything(seed):
    for dense in dense_captions(make_scenes(8, seed), seed):
        for scene, text in ((dense.scene, dense.caption), (dense.twin, dense.twin_caption)):
            assert 60 <= len(text.split()) <= 150
            assert BACKGROUNDS[scene.background].noun in text
            for thing in scene.objects:
                assert f"{SIZE_WORDS[thing.size][0]} {thing.colour} {thing.kind}" in text


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_a_twin_differs_in_exactly_one_attribute(seed):
    for dense in dense_captions(make_scenes(8, seed), seed):
        scene, twin, change = dense.scene, dense.twin, dense.change
        assert change.before != change.after
        changed = []
        if scene.background != twin.background:
            changed.append(("background", scene.background, twin.background, -1))
        for index, (old, new) in enumerate(zip(scene.objects, twin.objects, strict=True)):
            for attribute in ("kind", "colour", "size", "mirrored"):
                before, after = getattr(old, attribute), getattr(new, attribute)
                if before != after:
                    changed.append((attribute, before, after, index))
            if change.index != index or change.attribute == "colour":
                assert new.box == old.box
            assert abs(new.centre[0] - old.centre[0]) < 1e-3  # it stays where it was
            assert 0 <= min(new.box) < max(new.box) <= 1
        assert changed == [(change.attribute, change.before, change.after, change.index)]
        assert replace(twin, name="").objects == twin.objects
        for k, thing in enumerate(twin.objects):
            assert all(overlap(thing.box, other.box) <= 0.12 for other in twin.objects[:k])
        assert dense.caption != dense.twin_caption


def test_every_attribute_is_changed_somewhere():
    found = {dense.change.attribute for dense in dense_captions(make_scenes(120, 2), 2)}
    assert found == {"background", "kind", "colour", "size"}


def test_paragraphs_of_twins_differ_in_few_words_unless_the_background_changed():
    for dense in dense_captions(make_scenes(60, 8), 8):
        if dense.change.attribute == "colour":
            old, new = dense.caption.split(), dense.twin_caption.split()
            assert len(old) == len(new)
            different = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
            assert all(
                {a.lower().strip(".,"), b.lower().strip(".,")} <= {dense.change.before, dense.change.after, "a", "an"}
                for a, b in different
            )


def _atom_holds(text, facts):
    words = text.removeprefix("a photo of ").split()
    if words[0] in ("a", "an"):
        words = words[1:]
    words[0] = {word: size for size, names in SIZE_WORDS.items() for word in names}.get(words[0], words[0])
    return " ".join(words) in facts


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_pairs_are_true_and_false(seed):
    scenes = make_scenes(10, seed, "test")
    for pair in minimal_pairs(scenes, seed):
        scene = scenes[pair.image]
        facts = scene_facts(scene)
        assert pair.positive != pair.contrast
        assert pair.object in scene.kinds
        if pair.kind == "negation":
            assert pair.object not in RESERVED_KINDS
            assert pair.object in pair.contrast
        if pair.kind in ("attribute", "count"):
            assert _atom_holds(pair.positive, facts)
            assert not _atom_holds(pair.contrast, facts)
        if pair.kind == "order":
            assert sorted(w for w in pair.positive.split() if w not in ("a", "an")) == sorted(
                w for w in pair.contrast.split() if w not in ("a", "an")
            )
        if pair.kind == "relation" or (pair.kind == "order" and "exchanged" in pair.group and "colours" not in pair.group):
            assert _relation_holds(pair.positive, scene)
            assert not _relation_holds(pair.contrast, scene)


def _relation_holds(text, scene):
    for words, axis, sign in ((" to the left of ", 0, -1), (" to the right of ", 0, 1), (" above ", 1, -1), (" below ", 1, 1)):
        if words in text:
            first, second = (part.split()[-1] for part in text.split(words))
            centres = {thing.kind: thing.centre for thing in scene.objects}
            return (centres[first][axis] - centres[second][axis]) * sign > 0
    raise AssertionError(text)


def test_all_five_kinds_occur_and_no_scene_has_two_of_one():
    pairs = minimal_pairs(make_scenes(60, 3), 3)
    assert {pair.kind for pair in pairs} == {"negation", "attribute", "relation", "order", "count"}
    assert len({(pair.kind, pair.image) for pair in pairs}) == len(pairs)
