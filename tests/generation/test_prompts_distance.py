"""Prompts of generated scenes, and distances between sets of images."""

from __future__ import annotations

import re

import numpy as np
import pytest

from clipmend.data.scenes.wordings import RESERVED_PATTERN
from clipmend.generation.distance import frechet_distance, kernel_distance
from clipmend.generation.prompts import FORMS, THINGS, excluded, generation_prompts, prompts_with_scenes, required


@pytest.mark.parametrize("form", FORMS)
def test_prompts_are_different_fixed_and_ask_for_what_a_judge_knows(form: str) -> None:
    prompts = generation_prompts(form, 500)
    assert len({prompt.text.lower().rstrip(".") for prompt in prompts}) == 500
    assert [prompt.text for prompt in generation_prompts(form, 40)] == [prompt.text for prompt in prompts[:40]]
    assert [p.text for p in generation_prompts(form, 40, 1)] != [p.text for p in prompts[:40]]
    assert all({*prompt.asserts, *prompt.denies} <= set(THINGS) for prompt in prompts)
    assert not any(re.search(RESERVED_PATTERN, prompt.text, re.IGNORECASE) for prompt in prompts)
    wanted, barred = required(prompts), excluded(prompts)
    assert not any(w & b for w, b in zip(wanted, barred, strict=True))
    if form == "affirmative":
        assert all(wanted)
        assert not any(barred)
    else:
        assert all(barred)
        assert form == "exclusion" or all(wanted)


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_is_true_of_its_scene(form: str) -> None:
    from clipmend.data.scenes import scene_facts

    for prompt, scene in prompts_with_scenes(form, 60):
        facts = scene_facts(scene)
        assert facts >= set(prompt.asserts)
        assert not facts & set(prompt.denies)


def test_reserved_subsets() -> None:
    worded = generation_prompts("hybrid", 50, subset="reserved_wording")
    assert all(re.search(RESERVED_PATTERN, prompt.text, re.IGNORECASE) for prompt in worded)
    from clipmend.data.scenes import RESERVED_KINDS

    assert {thing for prompt in generation_prompts("exclusion", 50, subset="reserved_kind") for thing in prompt.denies} <= set(
        RESERVED_KINDS
    )


def test_bad_prompts_are_refused() -> None:
    for arguments in (("negative",), ("hybrid", 0), ("hybrid", 3, 0, "other")):
        with pytest.raises(ValueError, match=r"unknown|at least 1"):
            generation_prompts(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="are not 3000 different"):
        generation_prompts("exclusion", 3000, subset="reserved_kind")


def test_frechet_distance_of_normals() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(40_000, 3))
    b = rng.normal(size=(40_000, 3)) * [1, 2, 3] + [1, 0, 0]
    assert frechet_distance(a, b) == pytest.approx(1 + 0 + 1 + 4, rel=0.05)  # |mean|^2 + sum of (deviations apart)^2
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)


def test_kernel_distance_against_a_slow_reference_and_unbiased() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(300, 8)), rng.normal(size=(300, 8))
    same = kernel_distance(a, b, blocks=50, size=100)
    assert abs(same.value) < 4 * same.error + 1e-3
    apart = kernel_distance(a, b + 1.0, blocks=50, size=100)
    assert apart.value > 10 * apart.error
    x, y = a[:4], b[:4] + 1.0
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))

    def k(u: np.ndarray, v: np.ndarray) -> float:
        return float((u @ v + 1) ** 3)

    slow = sum(k(x[i], x[j]) + k(y[i], y[j]) for i in range(4) for j in range(4) if i != j) / 12
    slow -= 2 * sum(k(x[i], y[j]) for i in range(4) for j in range(4)) / 16
    assert kernel_distance(a[:4], b[:4] + 1.0, blocks=2, size=4).value == pytest.approx(slow)


def test_bad_embeddings_are_refused() -> None:
    for function in (frechet_distance, kernel_distance):
        with pytest.raises(ValueError, match="two sets"):
            function(np.zeros((5, 3)), np.zeros((5, 4)))
        with pytest.raises(ValueError, match="image 2 is not finite"):
            function(np.zeros((5, 3)), np.array([[0.0] * 3, [0] * 3, [np.nan] * 3]))
