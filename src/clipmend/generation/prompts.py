"""Held-out prompts for generated scenes: what each asks for and what it rules out is known.

All come from scenes of one or two objects (:mod:`clipmend.generation.world`) of the test split, with seeds of their own, so that
no prompt tells of a scene that anything was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

from clipmend.data.records import Caption
from clipmend.data.scenes.captions import finish, framed, hybrid_caption, phrase, policy, query, things_denied
from clipmend.data.scenes.draw import Scene
from clipmend.data.scenes.facts import scene_facts, scene_rng, text_rng
from clipmend.data.scenes.world import BACKGROUNDS, COLOURS, KINDS
from clipmend.generation.world import few_objects

__all__ = ["FORMS", "THINGS", "excluded", "generation_prompts", "prompts_with_scenes", "required"]

FORMS = ("affirmative", "exclusion", "hybrid")

THINGS: tuple[str, ...] = (
    *KINDS,
    *(background.atom for background in BACKGROUNDS.values()),
    *(f"{colour} {kind}" for kind in KINDS for colour in COLOURS),
)
"""What a judge is asked about: kinds, backgrounds and kinds of a colour."""

_SEED = 7_100  # away from the seeds of the data sets of tests and docs
_MOST = 60  # scenes looked at for one prompt


def generation_prompts(form: str, count: int = 500, seed: int = 0, subset: str = "standard") -> list[Caption]:
    """Different prompts of one form.

    Args:
        form: ``"affirmative"`` ("a red cup and a tree on a beach"), ``"exclusion"`` ("a beach with no cat", "a photo without a
            cat": rules out, and asks for a background at most) or ``"hybrid"`` ("a red cup and a tree, but no cat").
        count: how many.
        seed: fixes them; prompt i is the same whatever the count.
        subset: wordings and things that may be denied: ``"standard"``, ``"reserved_wording"`` or ``"reserved_kind"``.

    Returns:
        Captions without an image. One or two things and a place are asked for, some with their colour; nothing tells of sizes or
        numbers, which no judge is asked about.

    Raises:
        ValueError: an unknown form or subset, a count below 1, or more than there are different prompts.
    """
    return [prompt for prompt, _ in prompts_with_scenes(form, count, seed, subset)]


def prompts_with_scenes(form: str, count: int = 500, seed: int = 0, subset: str = "standard") -> list[tuple[Caption, Scene]]:
    """The same prompts, each with a scene that it is true of: what a generator that makes no mistakes might draw.

    Raises:
        ValueError: as :func:`generation_prompts` does.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}: choose one of {', '.join(FORMS)}")
    if count < 1:
        raise ValueError(f"the number of prompts must be at least 1, got {count}")
    policy(subset)
    made: list[tuple[Caption, Scene]] = []
    seen: set[str] = set()
    for row in range(count):
        for attempt in range(_MOST):
            index = row * _MOST + attempt
            scene = few_objects(scene_rng(_SEED + seed, "test", index))
            prompt = _prompt(form, scene, seed, index, subset)
            if prompt is not None and prompt.text.lower().rstrip(".") not in seen:
                seen.add(prompt.text.lower().rstrip("."))
                made.append((prompt, scene))
                break
        else:
            raise ValueError(f"there are not {count} different {form} prompts of the subset {subset}")
    return made


def required(prompts: Sequence[Caption]) -> list[frozenset[str]]:
    """What each prompt asks for, as far as a judge is asked about it (see :data:`THINGS`)."""
    return [frozenset(prompt.asserts) & _KNOWN for prompt in prompts]


def excluded(prompts: Sequence[Caption]) -> list[frozenset[str]]:
    """What each prompt rules out."""
    return [frozenset(prompt.denies) & _KNOWN for prompt in prompts]


_KNOWN = frozenset(THINGS)


def _prompt(form: str, scene: Scene, seed: int, index: int, subset: str) -> Caption | None:
    rules = policy(subset)
    rng = text_rng(_SEED + seed, f"generation/{form}/{subset}", index)
    facts = scene_facts(scene)
    if any(scene.count(kind) > 1 for kind in scene.kinds):
        return None  # a text would tell of their number
    if form == "affirmative":
        said = phrase(scene, rng, rng.choice((1, 2, 2, 3)), rng.choice((0.0, 0.5)), 0.0, 0.4)
        return Caption(finish(framed(said, rng), rng), -1, "affirmative", said.asserts)
    wording = rng.choice(rules.wordings)
    denied = things_denied(rng, rules, wording, facts, True, 0.0)
    if denied is None:
        return None
    if form == "exclusion":
        return query(rng, wording, denied, -1, scene.background if rng.random() < 0.6 else "")
    said = phrase(scene, rng, rng.choice((1, 1, 2, 2, 3)), rng.choice((0.0, 0.5)), 0.0, 0.4, frozenset(denied))
    return hybrid_caption(rng, said, wording, denied, -1, 0.2)
