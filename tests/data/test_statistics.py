"""Intervals that hold as often as they say, p-values that are uniform when nothing is there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from homunculus.errors import DataError
from homunculus.eval import compare, holm, interval
from homunculus.eval.statistics import group, sign_flip

scores = st.lists(st.sampled_from([0.0, 0.3, 0.6, 1.0, -0.4]), min_size=2, max_size=10)


def covered(draw, true: float, runs: int, **options) -> float:
    found = [interval(*draw(np.random.default_rng(run)), resamples=1000, **options) for run in range(runs)]
    return float(np.mean([one.low <= true <= one.high for one in found]))


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_intervals_hold_as_often_as_they_say(method):
    def draw(chance):
        return ((chance.random(150) < 0.8).astype(float),)

    assert 0.91 < covered(draw, 0.8, 400, method=method) < 0.985
    assert 0.75 < covered(draw, 0.8, 400, method=method, confidence=0.8) < 0.86


def test_images_are_drawn_whole():
    """Eight questions an image, right or wrong together: drawing questions would claim far too much."""

    def draw(chance, with_clusters=True):
        right = np.repeat(chance.random(60) < 0.5, 8).astype(float)
        return (right, np.repeat(np.arange(60), 8).tolist()) if with_clusters else (right,)

    assert 0.9 < covered(draw, 0.5, 300) < 0.99
    assert covered(lambda chance: draw(chance, with_clusters=False), 0.5, 300) < 0.65


def test_bca_leans_where_the_data_are_skewed():
    def draw(chance):
        return (chance.exponential(size=25),)

    def missed(method):
        found = [interval(*draw(np.random.default_rng(run)), method=method, resamples=1000) for run in range(500)]
        return np.mean([one.high < 1 for one in found])  # too low by more than it admits

    assert missed("bca") < missed("percentile")


def test_bca_is_that_of_scipy():
    values = np.random.default_rng(3).exponential(size=40)
    ours = interval(values, resamples=20_000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(1))
    assert ours.low == pytest.approx(theirs.confidence_interval.low, rel=0.02)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, rel=0.02)


@given(scores)
def test_single_clusters_are_no_clusters(values):
    assert interval(values, resamples=200) == interval(values, list(range(len(values))), resamples=200)


def test_unequal_clusters_weigh_by_their_questions():
    found = interval([1, 1, 1, 0], ["a", "a", "a", "b"], resamples=2000, method="percentile")
    assert found.mean == 0.75 and (found.low, found.high) == (0, 1)
    assert group([1, 2, 3], "aba").counts.tolist() == [2, 1]


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(0).random(50)
    assert interval(values) == interval(values.tolist()) == interval(values)
    assert interval(values, seed=1) != interval(values)
    assert interval([1.0, 1.0, 1.0]) == (1, 1, 1)


# ----------------------------------------------------------------------------------------------------- sign flips


@given(scores)
def test_p_values_count_all_signs(values):
    differences = np.array(values)
    observed = abs(differences.sum())
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(values))).reshape(len(values), -1)
    expected = np.mean(np.abs(differences @ signs) >= observed - 1e-9)
    assert sign_flip(values) == pytest.approx(expected)


def test_drawn_signs_agree_with_all_of_them():
    for run in range(5):
        differences = np.random.default_rng(run).normal(0.4, 1, 12)
        exact = sign_flip(differences, resamples=2**12)
        drawn = sign_flip(differences, resamples=2**12 - 1)
        assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 2**12) + 1e-3)


@pytest.mark.parametrize("clustered", [False, True])
def test_p_values_are_uniform_when_nothing_is_there(clustered):
    found = []
    for run in range(400):
        chance = np.random.default_rng(run)
        differences = chance.normal(size=30)
        if clustered:  # four questions an image that move together
            differences = np.repeat(differences, 4) + 0.1 * chance.normal(size=120)
        labels = np.repeat(np.arange(30), 4).tolist() if clustered else None
        found.append(sign_flip(differences, labels, resamples=500, seed=run))
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert np.mean(np.array(found) <= 0.05) < 0.085


def test_ignoring_clusters_would_raise_false_alarms():
    found = [
        sign_flip(np.repeat(np.random.default_rng(run).normal(size=30), 4), resamples=500, seed=run)
        for run in range(200)
    ]
    assert np.mean(np.array(found) <= 0.05) > 0.2


def test_comparisons():
    chance = np.random.default_rng(0)
    b = (chance.random(300) < 0.6).astype(float)
    a = np.where(chance.random(300) < 0.15, 1.0, b)
    found = compare(a, b)
    assert found.difference == pytest.approx((a - b).mean()) and found.low > 0 and found.p < 0.001
    back = compare(b, a)
    assert back.difference == -found.difference and back.p == found.p and back.high < 0
    same = compare(a, a)
    assert same == (0, 0, 0, 1)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm(values):
    corrected = holm(values)
    order = np.argsort(values, kind="stable")
    for rank, place in enumerate(order):
        expected = max([min(1, values[p] * (len(values) - r)) for r, p in enumerate(order[: rank + 1])])
        assert corrected[place] == expected
    assert all(new >= old for new, old in zip(corrected, values, strict=True))


def test_what_is_no_list_of_scores():
    for values in ([], [float("nan")], [[1.0, 2.0]]):
        with pytest.raises(DataError, match="finite numbers"):
            interval(values)
    with pytest.raises(DataError, match="2 values but 1 cluster labels"):
        interval([1, 2], ["a"])
    with pytest.raises(DataError, match="2 scores against 1"):
        compare([1, 2], [1])
    with pytest.raises(DataError, match="at least two"):
        interval([1, 2], ["a", "a"])
    with pytest.raises(DataError, match="confidence"):
        interval([1, 2], confidence=95)
