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


def test_unknown_things_count_neither_way_unless_the_image_has_failed_already() -> None:
    nan = math.nan
    score = negation_score([{"cup"}, {"cup"}, {"cup"}], [{"cat"}] * 3, [[nan, 0.9], [nan, 0.2], [0.1, nan]], things=["cat", "cup"])
    assert math.isnan(score.hits[0])
    assert score.hits[1] == 0
    assert math.isnan(score.hits[2])
    assert (score.n, score.unjudged) == (1, 2)
    assert score.presence_recall == 0.5
    assert score.exclusion_success == 1


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
