"""Thresholds on a labelled sample, against a slow and obvious search, and honest about what they give."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipmend.search.calibrate import Aim, calibrate, describe

SCORES = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
LABELS = [True, True, False, True, False, False]


def test_precision_keeps_as_many_as_it_can() -> None:
    found = calibrate(SCORES, LABELS, Aim(precision=0.75))
    assert (found.kept, found.precision, found.recall) == (4, 0.75, 1.0)
    assert 0.5 < found.threshold < 0.6
    assert calibrate(SCORES, LABELS, Aim(precision=1.0)).kept == 2


def test_recall_keeps_as_few_as_it_can() -> None:
    found = calibrate(SCORES, LABELS, Aim(recall=0.6))
    assert (found.kept, found.recall) == (2, pytest.approx(2 / 3))
    assert calibrate(SCORES, LABELS, Aim(recall=1.0)).kept == 4


def test_equal_scores_are_never_parted() -> None:
    found = calibrate([0.5, 0.5, 0.5, 0.1], [True, True, False, False], Aim(precision=0.6))
    assert found.kept == 3
    with pytest.raises(ValueError, match=r"the best is 0\.667"):
        calibrate([0.5, 0.5, 0.5, 0.1], [True, True, False, False], Aim(precision=0.9))
    constant = calibrate([0.5] * 4, [True, True, False, False])
    assert (constant.kept, constant.auroc) == (4, 0.5)


def test_sure_asks_more_of_the_sample() -> None:
    scores, labels = np.linspace(1, 0, 100), np.arange(100) < 50
    labels[45] = False
    loose, strict = (calibrate(scores, labels, Aim(precision=0.9, sure=sure)) for sure in (False, True))
    assert strict.kept < loose.kept
    with pytest.raises(ValueError, match="with 95 % confidence"):
        calibrate(SCORES, LABELS, Aim(precision=0.9, sure=True))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, 0.0, 0.25, 0.250001, 3.0]) | st.floats(-1, 1), st.booleans()), min_size=2, max_size=20
    ),
    st.sampled_from(["precision", "recall", "f1"]),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
)
def test_against_a_slow_search(sample: list[tuple[float, bool]], kind: str, target: float) -> None:
    scores, labels = np.array([s for s, _ in sample]), np.array([right for _, right in sample])
    if labels.all() or not labels.any():
        return
    options = []
    for threshold in sorted(set(scores.tolist())):
        kept = scores >= threshold
        hits = (kept & labels).sum()
        options.append((int(kept.sum()), hits / kept.sum(), hits / labels.sum(), 2 * hits / (kept.sum() + labels.sum())))
    try:
        found = calibrate(scores, labels, None if kind == "f1" else Aim(**{kind: target}))
    except ValueError:
        assert kind == "precision"
        assert all(precision < target for _, precision, _, _ in options)
        return
    assert found.kept == (scores >= found.threshold).sum()
    if kind == "precision":
        assert found.kept == max(k for k, precision, _, _ in options if precision >= target)
    elif kind == "recall":
        assert found.kept == min(k for k, _, recall, _ in options if recall >= target)
    else:
        assert 2 * found.precision * found.recall / (found.precision + found.recall) == pytest.approx(max(f for *_, f in options))


def test_a_threshold_on_noise_is_found_out() -> None:
    """Scores that say nothing: on the sample itself the best cut looks good, on parts it was not chosen on it does not."""
    labels = np.arange(60) < 30
    inside, outside = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        try:
            found = calibrate(rng.normal(size=60), labels, Aim(precision=0.65))
        except ValueError:
            continue
        if not math.isnan(found.held_out_precision):
            inside.append(found.precision)
            outside.append(found.held_out_precision)
    assert len(inside) > 10
    assert min(inside) >= 0.65
    assert np.mean(outside) < 0.58  # half of the images fit
    rng = np.random.default_rng(0)
    again = calibrate(np.where(labels, 1.0, 0.0) + rng.normal(size=60) / 10, labels, Aim(precision=0.9))
    assert again.held_out_precision > 0.9
    assert again.held_out_recall > 0.9


def test_what_a_sample_does_not_tell_is_said() -> None:
    small = calibrate([0.9, 0.1], [True, False])
    assert math.isnan(small.held_out_recall)
    assert any("too few labels" in note for note in small.notes)
    assert any("label more" in line for line in describe([small]))
    assert small.to_dict()["held_out_precision"] is None
    with pytest.raises(ValueError, match="every labelled image fits"):
        calibrate([0.9, 0.1], [True, True])
    with pytest.raises(ValueError, match="every labelled image does not fit"):
        calibrate([0.9, 0.1], [False, False])
    with pytest.raises(ValueError, match="item 1 is not finite"):
        calibrate([0.9, math.nan], [True, False])
    with pytest.raises(ValueError, match="one length"):
        calibrate([0.9], [True, False])


@pytest.mark.parametrize("wrong", [{"precision": 0.5, "recall": 0.5}, {"precision": 0}, {"recall": 1.1}, {"sure": True}])
def test_an_aim_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"precision|recall"):
        Aim(**wrong)  # type: ignore[arg-type]
