"""The negation score against counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clipmend.generation import negation_score, score_difference

REQUIRED = [{"cup"}, {"cup", "hat"}, set(), {"cup"}]
EXCLUDED = [{"cat"}, set(), {"cat"}, {"cat", "dog"}]
PRESENT = [{"cup", "tree"}, {"cup"}, {"tree"}, {"cup", "dog"}]


def test_counts_by_hand() -> None:
    score = negation_score(REQUIRED, EXCLUDED, PRESENT)
    assert score.hits.tolist() == [1, 0, 1, 0]
    assert score.score == 0.5
    assert score.presence_recall == 3 / 4  # cup, cup but no hat, cup
    assert score.exclusion_success == 2 / 3
    assert score.n == 4
    assert score.interval[0] <= 0.5 <= score.interval[1]
    assert score.to_dict()["score"] == 0.5


def test_arrays_say_the_same_as_sets() -> None:
    things = ["cat", "cup", "dog", "hat"]
    table = np.array([[thing in row for thing in things] for row in PRESENT])
    found, expected = negation_score(REQUIRED, EXCLUDED, table, things=things), negation_score(REQUIRED, EXCLUDED, PRESENT)
    assert found.to_dict() == expected.to_dict()
    assert np.array_equal(found.hits, expected.hits)


def test_images_with_an_unknown_thing_are_left_out_whether_they_have_failed_or_not() -> None:
    nan = math.nan
    score = negation_score([{"cup"}, {"cup"}, {"cup"}], [{"cat"}] * 3, [[nan, 0.9], [nan, 0.2], [0.1, nan]], things=["cat", "cup"])
    assert np.isnan(score.hits).all()
    assert (score.n, score.unjudged) == (0, 3)
    assert math.isnan(score.score)
    assert score.presence_recall == 0.5
    assert score.exclusion_success == 1


def test_what_a_judge_cannot_tell_of_does_not_lower_the_score() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random((2000, 3)) < 0.5  # cup, hat, cat
    told = truth.astype(float)
    told[rng.random(told.shape) < 0.3] = math.nan
    wanted, barred = [{"cup", "hat"}] * 2000, [{"cat"}] * 2000
    whole = negation_score(wanted, barred, truth, things=["cup", "hat", "cat"])
    some = negation_score(wanted, barred, told, things=["cup", "hat", "cat"])
    assert some.interval[0] < whole.score < some.interval[1]
    assert some.n + some.unjudged == 2000


def test_intervals_against_a_slow_bootstrap_of_prompts() -> None:
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(60), 3)
    ease = np.repeat(rng.random(60), 3)  # the seeds of one prompt are alike
    before, after = (rng.random(180) < ease * share for share in (0.7, 0.9))
    wanted, barred = [{"cup"}] * 180, [{"cat"}] * 180

    def shown(hit: bool) -> set[str]:
        return {"cup"} if hit else {"cup", "cat"}

    one, two = (negation_score(wanted, barred, [shown(hit) for hit in row], clusters=clusters) for row in (before, after))
    found = score_difference(one, two).score
    assert found is not None
    draws, apart = [], []
    for _ in range(3000):
        rows = np.concatenate([np.flatnonzero(clusters == prompt) for prompt in rng.integers(60, size=60)])
        draws.append(before[rows].mean())
        apart.append(after[rows].mean() - before[rows].mean())
    for told, slow in ((one.interval, draws), ((found.low, found.high), apart)):
        low, high = np.percentile(slow, [2.5, 97.5])
        assert told[0] == pytest.approx(low, abs=0.015)
        assert told[1] == pytest.approx(high, abs=0.015)


def test_what_nothing_asks_for_is_nan() -> None:
    score = negation_score([set()], [{"cat"}], [{"dog"}])
    assert math.isnan(score.presence_recall)
    assert score.to_dict()["presence_recall"] is None


def test_paired_difference_draws_prompts_not_images() -> None:
    required, excluded = [{"cup"}] * 30, [{"cat"}] * 30
    clusters = np.repeat(np.arange(10), 3)
    before = negation_score(required, excluded, [{"cup", "cat"}] * 30, clusters=clusters)
    after = negation_score(required, excluded, [{"cup"}] * 15 + [{"cup", "cat"}] * 15, clusters=clusters)
    found = score_difference(before, after)
    assert found.score is not None
    assert found.score.difference == 0.5
    assert found.presence_recall is not None
    assert found.presence_recall.difference == 0
    alone = score_difference(
        negation_score(required, excluded, [{"cup", "cat"}] * 30),
        negation_score(required, excluded, [{"cup"}] * 15 + [{"cup", "cat"}] * 15),
    )
    assert alone.score is not None
    assert found.score.high - found.score.low > alone.score.high - alone.score.low


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "no images"),
        (([{"a"}], [], [{"a"}]), "1 images"),
        (([{"a"}], [{"a"}], [{"a"}]), "both required and excluded"),
        (([{"a"}], [set()], []), "0 images"),
        ((["a cat"], [set()], [set()]), "not a text"),
        (([{"a"}, set()], [set(), set()], [{"a"}, {"a"}]), "image 1: nothing is required and nothing excluded"),
    ],
)
def test_what_cannot_be_scored(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        negation_score(*arguments)


def test_tables_must_tell_of_all_that_is_asked() -> None:
    with pytest.raises(ValueError, match="no column tells of cup"):
        negation_score([{"cup"}], [set()], [[1.0]], things=["cat"])
    with pytest.raises(ValueError, match="must be"):
        negation_score([{"cup"}], [set()], [[1.0, 1.0]], things=["cup"])
    with pytest.raises(ValueError, match="different sets"):
        score_difference(negation_score([{"a"}], [set()], [set()]), negation_score([{"a"}] * 2, [set()] * 2, [set()] * 2))


@pytest.mark.parametrize("threshold", [math.nan, 0.0, -1.0, 50.0, math.inf])
def test_a_threshold_that_would_see_everything_or_nothing_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold is a probability"):
        negation_score([{"cup"}], [{"cat"}], [[1.0, 1.0]], things=["cup", "cat"], threshold=threshold)
