"""What is true of a scene, as atoms, and the random generators that everything is drawn from."""

from __future__ import annotations

import random
import zlib

import numpy as np

from clipmend.data.scenes.draw import Scene
from clipmend.data.scenes.world import BACKGROUNDS, NUMBERS, plural

__all__ = ["count_atom", "scene_facts", "scene_rng", "text_rng"]

_SPLITS = {"train": 1, "test": 2}


def count_atom(kind: str, count: int) -> str:
    """The fact that exactly ``count`` objects of a kind are shown: ``"two cats"``, ``"one cat"``."""
    return f"{NUMBERS[count]} {kind if count == 1 else plural(kind)}"


def scene_facts(scene: Scene) -> frozenset[str]:
    """Every atom that is true of a scene.

    For each object ``"cup"``, ``"red cup"``, ``"small cup"``, ``"small red cup"``; for each kind its exact count, ``"two cups"``;
    and the background, ``"at beach"``. Any other atom of these shapes is false of it.
    """
    facts = {BACKGROUNDS[scene.background].atom}
    for thing in scene.objects:
        facts.add(thing.kind)
        facts.add(f"{thing.colour} {thing.kind}")
        facts.add(f"{thing.size} {thing.kind}")
        facts.add(f"{thing.size} {thing.colour} {thing.kind}")
    for kind in scene.kinds:
        facts.add(count_atom(kind, scene.count(kind)))
    return frozenset(facts)


def scene_rng(seed: int, split: str, index: int) -> np.random.Generator:
    """Generator of scene ``index`` of a split: no two (seed, split, index) share a stream.

    Raises:
        ValueError: ``split`` is neither ``"train"`` nor ``"test"``, or ``seed`` is negative.
    """
    if split not in _SPLITS:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(_SPLITS)}")
    if seed < 0:
        raise ValueError(f"the seed must not be negative, got {seed}")
    return np.random.default_rng(np.random.SeedSequence([seed, _SPLITS[split], index]))


def text_rng(seed: int, purpose: str, index: int = 0) -> random.Random:
    """Generator of the texts of one purpose about one scene."""
    if seed < 0:
        raise ValueError(f"the seed must not be negative, got {seed}")
    state = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), index]).generate_state(4, np.uint32)
    return random.Random(int.from_bytes(state.tobytes(), "little"))
