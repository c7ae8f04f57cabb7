"""Scenes, captions, queries and questions for a split, ready to fit on or to be judged by."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from clipmend.data.records import Caption, NegationData
from clipmend.data.scenes.captions import (
    Phrase,
    Policy,
    affirmative,
    deny,
    false_caption,
    finish,
    framed,
    hybrid,
    negative,
    phrase,
    policy,
    query,
    things_denied,
)
from clipmend.data.scenes.draw import Scene, sample_scene
from clipmend.data.scenes.facts import scene_facts, scene_rng, text_rng
from clipmend.data.scenes.questions import choice_questions
from clipmend.data.scenes.world import RESERVED_KINDS

__all__ = ["exclusion_queries", "make_scenes", "negation_data", "retrieval_captions", "scene_captions", "scene_facts"]

_DETAIL = ((0.0, 0.0, 0.0), (0.9, 0.0, 0.0), (0.5, 0.0, 1.0), (0.9, 0.4, 0.7))  # odds of colours, sizes, the background
_DESCRIBED = (2, 3, 3, 4)  # kinds that a fuller description names
_SENTENCES = 0.4  # share of captions that assert and deny in two sentences, where both ways are open


def make_scenes(count: int, seed: int, split: str = "train") -> list[Scene]:
    """Scenes of a split.

    Args:
        count: how many; scene i is the same whatever the count.
        seed: fixes them all. Train and test never share a random stream.
        split: ``"train"`` or ``"test"``.

    Raises:
        ValueError: an unknown split, a negative seed or count.
    """
    if count < 0:
        raise ValueError(f"the number of scenes must not be negative, got {count}")
    return [sample_scene(scene_rng(seed, split, index), name=f"images/{index:06d}.png") for index in range(count)]


def scene_captions(scene: Scene, seed: int, image: int, split: str = "train", subset: str = "standard") -> list[Caption]:
    """Captions of one scene: three affirmative, two negative, three hybrid and two queries that are true of it, and one negative,
    two hybrid and one affirmative that are false of it (``image`` -1). Fewer where the scene cannot supply a false denial.

    Of the hybrids some deny in a sentence of its own, and one of the true ones is a fuller description.
    """
    rules = policy(subset)
    rng = text_rng(seed, f"captions/{split}/{subset}", image)
    made: list[Caption | None] = [
        affirmative(scene, rng, image),
        affirmative(scene, rng, image, colours=0.8, sizes=0.15),
        affirmative(scene, rng, image, colours=0.4, sizes=0.3, place=0.8),
        *(negative(scene, rng, image, rules) for _ in range(2)),
        hybrid(scene, rng, image, rules),
        hybrid(scene, rng, image, rules, sentences=_SENTENCES),
        hybrid(scene, rng, image, rules, True, *rng.choice(_DETAIL), things=_DESCRIBED, sentences=_SENTENCES),
    ]
    facts = scene_facts(scene)
    for background in ("", scene.background):
        wording = rng.choice(rules.wordings)
        denied = things_denied(rng, rules, wording, facts, True, 0.0)
        made.append(query(rng, wording, denied, image, background) if denied else None)
    made += [negative(scene, rng, -1, rules, false) for false in (False,)]
    made += [hybrid(scene, rng, -1, rules, False, sentences=odds) for odds in (0.0, 2 * _SENTENCES)]
    made.append(false_caption(scene, rng))
    return [caption for caption in made if caption is not None]


def negation_data(
    scenes: Sequence[Scene],
    images: Sequence[Any],
    seed: int,
    split: str = "train",
    subset: str = "standard",
    questions: int | None = None,
    name: str | None = None,
) -> NegationData:
    """Captions and questions about scenes, with what is true of each image.

    Args:
        scenes: what each image shows.
        images: paths or PIL images, aligned with ``scenes``; may be empty only if ``scenes`` is.
        seed: fixes every text.
        split: ``"train"`` or ``"test"``; training takes the standard subset alone.
        subset: which wordings and denied kinds (see :func:`choice_questions`); anything but ``"standard"`` is for tests alone.
        questions: how many questions, rounded up to a multiple of three; by default one a scene.
        name: what to call the data in tables.

    Returns:
        True and false captions of every form. False ones carry ``image`` -1, so that truth of every caption for every image
        comes from the atoms alone.

    Raises:
        ValueError: training data are asked for with a reserved subset, or lengths differ.
    """
    if split == "train" and subset != "standard":
        raise ValueError(f"the subset {subset!r} holds what training must not see: ask for it with split='test'")
    captions: list[Caption] = []
    for image, scene in enumerate(scenes):
        captions += scene_captions(scene, seed, image, split, subset)
    options, asked = choice_questions(scenes, seed, subset, questions) if scenes else ([], [])
    shifted = [type(q)(q.image, tuple(len(captions) + k for k in q.options), q.answer, q.template) for q in asked]
    return NegationData(
        images,
        [scene_facts(scene) for scene in scenes],
        captions + options,
        shifted,
        name=name or f"scenes, {split}, {subset}",
        reserved=frozenset(RESERVED_KINDS),
    )


def exclusion_queries(seed: int, subset: str = "standard", per_wording: int | None = None) -> list[Caption]:
    """Queries that exclude a kind and ask for nothing else ("a photo without a cat").

    Args:
        seed: fixes them.
        subset: ``"standard"``, ``"reserved_wording"`` or ``"reserved_kind"``.
        per_wording: different kinds (or pairs) a wording is tried with; by default 8 for training wordings, 12 for reserved ones.
            Each kind meets about equally many wordings.

    Returns:
        Captions without an image; ``denies`` holds the kind, or both kinds of a wording that denies two.
    """
    rules = policy(subset)
    rng = text_rng(seed, f"exclusion/{subset}")
    number = per_wording or (12 if subset == "reserved_wording" else 8)
    queries: list[Caption] = []
    pool: list[str] = []
    for wording in rules.wordings:
        for _ in range(min(number, len(rules.deniable))):
            denied: list[str] = []
            while len(denied) < wording.kinds:
                if not pool:
                    pool = rng.sample(rules.deniable, len(rules.deniable))
                kind = pool.pop()
                if kind not in denied:
                    denied.append(kind)
            made = query(rng, wording, denied)
            if made.text not in {q.text for q in queries}:
                queries.append(made)
    return queries


def retrieval_captions(
    scenes: Sequence[Scene], seed: int, negated: bool = False, per_image: int = 4, subset: str = "standard"
) -> list[Caption]:
    """Captions to find an image by.

    Args:
        scenes: the images.
        seed: fixes them.
        negated: the same captions, each with one absent thing denied before or after it, as in NegBench's negated retrieval.
        per_image: captions a scene; their detail takes turns: kinds only, with colours, with the background, with both and sizes.
        subset: wordings and kinds of the denials.

    Returns:
        ``len(scenes) * per_image`` captions, those of one scene together and, plain and negated, in the same order.
    """
    rules = policy(subset)
    captions = []
    for image, scene in enumerate(scenes):
        rng, denial_rng = text_rng(seed, "retrieval", image), text_rng(seed, f"retrieval/{subset}", image)
        for turn in range(per_image):
            said = phrase(scene, rng, rng.choice(_DESCRIBED), *_DETAIL[turn % len(_DETAIL)])
            framed_text = framed(said, rng)
            plain = Caption(finish(framed_text, rng), image, "affirmative", said.asserts)
            captions.append(_with_denial(scene, denial_rng, rules, said, framed_text, plain) if negated else plain)
    return captions


def _with_denial(scene: Scene, rng: random.Random, rules: Policy, said: Phrase, framed_text: str, plain: Caption) -> Caption:
    """The plain caption with an absent thing denied: in a sentence before or after it, or within it."""
    wording = rng.choice(rules.wordings)
    denied = things_denied(rng, rules, wording, scene_facts(scene), True, 0.0)
    assert denied is not None  # at most six of the kinds are shown
    if rng.random() < _SENTENCES:
        parts = [deny(rng.choice(wording.sentences), denied), framed_text]
        text = ". ".join(parts if rng.random() < 0.6 else parts[::-1])
    else:
        template = rng.choice(wording.hybrids)
        inside = not template.startswith("{pos}")
        pictured = framed_text.startswith(("a photo", "a picture", "an image", "a drawing"))
        if " it " in template and not pictured:
            framed_text = f"a picture of {said.text}"
        text = deny(template, denied, pos=said.text if inside else framed_text)
    return Caption(finish(text, rng), plain.image, "hybrid", plain.asserts, denied, wording.name)
