import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmend.evaluation.intervals import (
    bootstrap_mean,
    median_interval,
    paired_difference,
    percentile,
    resample_weights,
    wilson,
)


def test_wilson_against_published_values() -> None:
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3.
    for (successes, total), (low, high) in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(successes, total) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilson_holds_the_share_and_mirrors(successes: int, total: int) -> None:
    successes = min(successes, total)
    low, high = wilson(successes, total)
    assert 0 <= low <= successes / total <= high <= 1
    assert wilson(total - successes, total) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    assert wilson(successes, total, 0.99)[0] <= low


def test_wilson_edges() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson(1, 2, level=95)


def test_resampling_draws_whole_samples_whatever_the_block() -> None:
    whole = np.concatenate(list(resample_weights(7, 50, seed=3)), 1)
    parts = np.concatenate(list(resample_weights(7, 50, seed=3, block_values=21)), 1)
    assert whole.shape == (7, 50)
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_array_equal(whole.sum(0), np.full(50, 7))
    assert not np.array_equal(whole, np.concatenate(list(resample_weights(7, 50, seed=4)), 1))


def test_bootstrap_mean_agrees_with_the_plain_way() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=200)
    low, high = bootstrap_mean(values, samples=4000)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1)


def test_clusters_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    of_image = rng.integers(0, 2, 40)
    values, clusters = np.repeat(of_image, 10), np.repeat(np.arange(40), 10)
    alone, together = bootstrap_mean(values), bootstrap_mean(values, clusters)
    assert together[1] - together[0] > 2.5 * (alone[1] - alone[0])


def test_paired_difference_is_paired() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(0, 10, 300)
    result = paired_difference(a, a + 0.5)
    assert (result.difference, result.low, result.high) == pytest.approx((0.5, 0.5, 0.5))
    assert result.count == 300
    swapped = paired_difference(a + 0.5, a)
    assert swapped.difference == pytest.approx(-0.5)


def test_paired_difference_against_the_plain_loop() -> None:
    rng = np.random.default_rng(5)
    a, b, clusters = rng.normal(size=30), rng.normal(size=30), rng.integers(0, 6, 30)
    found = paired_difference(a, b, clusters, samples=200, seed=9)
    names = np.unique(clusters)
    draw_rng = np.random.default_rng(9)
    slow = []
    for _ in range(200):
        picked = names[draw_rng.integers(0, len(names), len(names))]
        rows = np.concatenate([np.flatnonzero(clusters == c) for c in picked])
        slow.append((b[rows] - a[rows]).mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=1e-9)


def test_paired_difference_refuses() -> None:
    with pytest.raises(ValueError, match="one length"):
        paired_difference([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="no items"):
        paired_difference([], [])
    with pytest.raises(ValueError, match="item 1 is NaN"):
        paired_difference([1, np.nan], [1, 2])
    with pytest.raises(ValueError, match="cluster labels"):
        paired_difference([1, 2], [1, 2], [0])


def test_percentile_leaves_out_nan() -> None:
    assert percentile([1.0, np.nan, 1.0]) == (1.0, 1.0)
    assert all(np.isnan(percentile([np.nan, np.nan])))


def test_median_interval_covers() -> None:
    rng = np.random.default_rng(0)
    covered = [low <= 0 <= high for low, high in (median_interval(rng.normal(size=101)) for _ in range(300))]
    assert 0.92 <= np.mean(covered) <= 0.99
    assert median_interval([4.0]) == (4.0, 4.0)
    assert all(np.isnan(median_interval([])))
