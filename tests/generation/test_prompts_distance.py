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


def test_kernel_distance_against_a_slow_reference() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(8, 5)), rng.normal(size=(8, 5)) + 1.0

    def k(u: np.ndarray, v: np.ndarray) -> float:
        return float((u @ v / np.linalg.norm(u) / np.linalg.norm(v) + 1) ** 3)

    order = np.random.default_rng(3)
    x, y = a[order.permutation(8)], b[order.permutation(8)]
    blocks = []
    for rows in (range(4), range(4, 8)):
        slow = sum(k(z[i], z[j]) for z in (x, y) for i in rows for j in rows if i != j) / 12
        blocks.append(slow - 2 * sum(k(x[i], y[j]) for i in rows for j in rows) / 16)
    found = kernel_distance(a, b, size=4, seed=3)
    assert found.value == pytest.approx(np.mean(blocks))
    assert found.error == pytest.approx(np.std(blocks, ddof=1) / 2**0.5)
    assert kernel_distance(a, b, size=100, seed=3) == found  # two blocks are the fewest


def test_the_kernel_distances_error_is_that_of_new_sets() -> None:
    """Of sets drawn anew, as often within two errors as it should be; far apart, many errors from 0."""
    rng = np.random.default_rng(1)
    near = [kernel_distance(rng.normal(size=(1200, 8)), rng.normal(size=(1200, 8)), size=100, seed=n) for n in range(40)]
    assert np.mean([abs(found.value) < 2.2 * found.error for found in near]) >= 0.85  # 95 % of a t with 11 degrees of freedom
    spread, told = np.std([found.value for found in near], ddof=1), np.mean([found.error for found in near])
    assert told == pytest.approx(spread, rel=0.4)
    apart = kernel_distance(rng.normal(size=(400, 8)), rng.normal(size=(400, 8)) + 1.0, size=100)
    assert apart.value > 10 * apart.error


def test_too_few_embeddings() -> None:
    assert kernel_distance(np.eye(3), np.eye(3)).error is None  # of a single block nothing can be said
    with pytest.raises(ValueError, match="at least two"):
        kernel_distance(np.eye(1), np.eye(1))
    with pytest.raises(ValueError, match="at least 2"):
        kernel_distance(np.eye(8), np.eye(8), size=1)


def test_bad_embeddings_are_refused() -> None:
    for function in (frechet_distance, kernel_distance):
        with pytest.raises(ValueError, match="two sets"):
            function(np.zeros((5, 3)), np.zeros((5, 4)))
        with pytest.raises(ValueError, match="image 2 is not finite"):
            function(np.zeros((5, 3)), np.array([[0.0] * 3, [0] * 3, [np.nan] * 3]))
