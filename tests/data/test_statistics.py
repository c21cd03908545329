"""Intervals that hold as often as they say, p-values that are uniform when nothing is there."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from homunculus.errors import DataError
from homunculus.eval import clusters, compare, holm, interval, signs, statistics
from homunculus.eval.clusters import group
from homunculus.eval.signs import sign_flip
from homunculus.eval.statistics import proportion, ratio

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


# ------------------------------------------------------------------------------------------- strata and ratios


def two_families(chance):
    """Exponential values, five times as many of the first family."""
    values = [chance.exponential(size=count) + more for count, more in ((60, 0.0), (12, 1.0))]
    return values, ["a"] * 60 + ["b"] * 12


def test_strata_weigh_equally_and_are_drawn_apart_as_scipy_does():
    values, strata = two_families(np.random.default_rng(5))
    ours = interval(np.concatenate(values), strata=strata, resamples=20_000)

    def macro(a, b, axis):
        return (a.mean(axis) + b.mean(axis)) / 2

    theirs = stats.bootstrap(values, macro, n_resamples=20_000, method="BCa", rng=np.random.default_rng(1), batch=2000)
    assert ours.mean == pytest.approx((values[0].mean() + values[1].mean()) / 2)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, rel=0.02)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, rel=0.02)
    plain = interval(np.concatenate(values))
    assert abs(ours.mean - plain.mean) > 0.2 and ours.high - ours.low > plain.high - plain.low


def test_every_draw_of_small_strata():
    """All equally likely draws, written down one by one."""
    sums, counts = [[1.0, 3.0], [0.0, 2.0, 7.0]], [[1, 2], [3, 1, 2]]
    everything = []
    for first in product(range(2), repeat=2):
        for second in product(range(3), repeat=3):
            own = [
                sum(sums[s][i] for i in drawn) / sum(counts[s][i] for i in drawn)
                for s, drawn in ((0, first), (1, second))
            ]
            everything.append(sum(own) / 2)
    values, labels, strata = [], [], []
    for s in range(2):
        for i, (total, count) in enumerate(zip(sums[s], counts[s], strict=True)):
            values += [total / count] * count
            labels += [f"{s}-{i}"] * count
            strata += [s] * count
    for confidence in (0.5, 0.8, 0.9):
        found = interval(values, labels, strata=strata, method="percentile", confidence=confidence, resamples=40_000)
        for edge, tail in ((found.low, (1 - confidence) / 2), (found.high, (1 + confidence) / 2)):
            below, upto = np.mean(np.array(everything) < edge - 1e-9), np.mean(np.array(everything) <= edge + 1e-9)
            assert below - 0.02 <= tail <= upto + 0.02


def test_a_ratio_is_paired_as_scipy_does():
    chance = np.random.default_rng(7)
    b = chance.exponential(size=50) + 0.5
    a = 0.8 * b + 0.3 * chance.exponential(size=50)
    ours = ratio(a, b, resamples=20_000)

    def share(x, y, axis):
        return x.mean(axis) / y.mean(axis)

    how = {"n_resamples": 20_000, "method": "BCa", "paired": True, "rng": np.random.default_rng(1), "batch": 2000}
    theirs = stats.bootstrap((a, b), share, **how).confidence_interval
    assert ours.mean == pytest.approx(a.mean() / b.mean())
    assert ours.low == pytest.approx(theirs.low, rel=0.01) and ours.high == pytest.approx(theirs.high, rel=0.01)
    apart = [interval(own, seed=seed) for own, seed in ((a, 1), (b, 2))]
    unpaired = apart[0].high / apart[1].low - apart[0].low / apart[1].high
    assert ours.high - ours.low < unpaired / 3


def test_ratios_hold_as_often_as_they_say():
    """Images of one to six questions in two families of unequal size, half of what is right lost now and then."""
    missed = 0
    for run in range(300):
        chance = np.random.default_rng(run)
        a, b, images, families = [], [], [], []
        for family, count, right in (("a", 50, 0.9), ("b", 20, 0.6)):
            for image in range(count):
                of = int(chance.integers(1, 7))
                top = (chance.random(of) < right).astype(float)
                kept = top * (chance.random() < 0.8)  # an image is kept or lost as a whole
                a, b = [*a, *kept], [*b, *top]
                images += [f"{family}{image}"] * of
                families += [family] * of
        found = ratio(a, b, images, strata=families, resamples=1000)
        missed += not found.low <= 0.8 <= found.high
    assert 0.015 < missed / 300 < 0.1


@given(scores)
def test_one_stratum_is_none(values):
    labels = ["all"] * len(values)
    assert interval(values, strata=labels, resamples=200) == interval(values, resamples=200)
    assert sign_flip(values, strata=labels, resamples=200) == sign_flip(values, resamples=200)


@given(scores)
def test_p_values_of_strata_count_all_signs(values):
    differences = np.array([*values, 0.3, -0.6, 1.0])
    strata = ["a"] * len(values) + ["b"] * 3
    weights = np.array([1 / len(values)] * len(values) + [1 / 3] * 3)
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(differences))).reshape(len(differences), -1)
    observed = abs((differences * weights).sum())
    expected = np.mean(np.abs((differences * weights) @ signs) >= observed - 1e-9)
    assert sign_flip(differences, strata=strata) == pytest.approx(expected)


def test_what_is_no_share():
    with pytest.raises(DataError, match="share of nothing"):
        ratio([0, 0, 0], [0, 0, 0])
    with pytest.raises(DataError, match="share of nothing"):
        ratio([1, 0, 0], [1, 0, 0])  # drawn without the first there is nothing
    with pytest.raises(DataError, match="at least two of each"):
        interval([1, 2, 3], strata="aab")
    with pytest.raises(DataError, match="3 values but 2 labels of strata"):
        interval([1, 2, 3], strata="aa")
    with pytest.raises(DataError, match="3 values but 2 cluster labels"):
        interval([1, 2, 3], "ab", strata="aab")


# ----------------------------------------------------------------------------------------------------- sign flips


@given(scores)
def test_p_values_count_all_signs(values):
    differences = np.array(values)
    observed = abs(differences.sum())
    every = np.array(np.meshgrid(*[[-1, 1]] * len(values))).reshape(len(values), -1)
    expected = np.mean(np.abs(differences @ every) >= observed - 1e-9)
    assert sign_flip(values) == pytest.approx(expected)


def test_drawn_signs_agree_with_all_of_them():
    for run in range(5):
        differences = np.random.default_rng(run).normal(0.4, 1, 12)
        exact = sign_flip(differences, resamples=2**12)
        drawn = sign_flip(differences, resamples=2**12 - 1)
        assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 2**12) + 1e-3)


whole = st.lists(st.integers(-3, 3), min_size=1, max_size=6)


@given(st.lists(whole, min_size=1, max_size=3))
def test_p_values_of_whole_numbers_count_all_signs_of_strata(parts):
    """Strata of equal and of unequal sizes, each sign written down."""
    differences = np.array([value for part in parts for value in part], dtype=float)
    strata = [place for place, part in enumerate(parts) for _ in part]
    shares = np.array([value / len(part) for part in parts for value in part])
    every = np.array(np.meshgrid(*[[-1, 1]] * len(shares))).reshape(len(shares), -1)
    expected = np.mean(np.abs(shares @ every) >= abs(shares.sum()) - 1e-9)
    assert sign_flip(differences, strata=strata, resamples=2) == pytest.approx(expected)


def test_means_of_strata_that_are_alike_are_alike():
    """Whole sums over other counts: a third and two thirds less one is nothing, whatever floats make of it."""
    for values, counts in (((1, 2, -3), (10, 10, 10)), ((1, 2, -6), (3, 6, 9)), ((5, -7, 2, 3), (5, 7, 4, 6))):
        differences = np.concatenate([np.eye(count)[0] * value for value, count in zip(values, counts, strict=True)])
        shares = np.array([value / count for value, count in zip(values, counts, strict=True)])
        every = np.array(np.meshgrid(*[[-1, 1]] * len(shares))).reshape(len(shares), -1)
        expected = np.mean(np.abs(shares @ every) >= abs(shares.sum()) - 1e-9)
        assert sign_flip(differences, strata=np.repeat(range(len(counts)), counts).tolist(), resamples=2) == expected


def test_p_values_far_out_are_exact():
    exact = 2 * sum(comb(100, k) for k in range(3)) / 2**100
    assert sign_flip([1] * 98 + [-1] * 2) == pytest.approx(exact, rel=1e-9)


def test_sums_too_large_to_write_down_are_drawn():
    """Or tried one by one, where there are few."""
    values = [1] * 14 + [-1] * 6
    exact, drawn = sign_flip(values), sign_flip([1e9 * value for value in values])
    assert drawn != exact and drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 10_000))
    assert sign_flip([1e9, -1, 3]) == 0.5 and 0 < sign_flip([1e19] * 20) < 0.001


@given(
    st.lists(
        st.lists(st.lists(st.integers(-1, 1), min_size=1, max_size=3), min_size=1, max_size=4), min_size=1, max_size=3
    )
)
def test_p_values_flip_whole_clusters_of_strata(strata):
    """Questions about one image have one sign, and families count equally."""
    told = [
        (value, (place, number), place)
        for place, images in enumerate(strata)
        for number, image in enumerate(images)
        for value in image
    ]
    values, images, families = zip(*told, strict=True)
    shares = np.array([sum(image) / sum(map(len, own)) for own in strata for image in own])
    every = np.array(np.meshgrid(*[[-1, 1]] * len(shares))).reshape(len(shares), -1)
    expected = np.mean(np.abs(shares @ every) >= abs(shares.sum()) - 1e-9)
    assert sign_flip(values, images, strata=families, resamples=2) == pytest.approx(expected)


def test_where_sums_are_many_only_the_likely_ones_are_written_down(monkeypatch):
    """Which makes nothing less likely than it is."""
    chance = np.random.default_rng(2)
    counts = (200, 150, 90)
    strata = np.repeat(range(3), counts).tolist()
    for lead in (5, 60, 200):
        differences = chance.integers(-1, 2, sum(counts)).astype(float)
        differences[:lead] = 1
        whole = sign_flip(differences, strata=strata)
        with monkeypatch.context() as own:
            own.setattr(signs, "_TOO_MANY", 1 << 14)
            assert sign_flip(differences, strata=strata) == pytest.approx(max(whole, 1e-12), rel=1e-6)


def test_many_whole_numbers_need_no_draws():
    """Hundreds of images in families of unequal size: what draws come near to, without them."""
    chance = np.random.default_rng(4)
    differences = np.concatenate([chance.integers(-1, 2, count) for count in (700, 650, 400)]).astype(float)
    differences[:40] = 1
    strata = ["a"] * 700 + ["b"] * 650 + ["c"] * 400
    exact = sign_flip(differences, strata=strata)
    drawn = sign_flip(
        differences + 1e-7 * chance.normal(size=1750), strata=strata, resamples=20_000
    )  # no whole numbers
    assert 0.001 < exact < 0.9 and drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))
    assert sign_flip(differences, strata=strata, seed=1, resamples=10) == exact
    assert sign_flip([1.0] * 1000) == 2.0**-999 and 0 < sign_flip([1.0] * 3000) <= 2.0**-999


def test_every_stratum_is_drawn_by_itself():
    """Means of opposite strata do not move against each other: they would, were both drawn alike."""
    values = np.random.default_rng(3).random(80)
    strata = ["a"] * 80 + ["b"] * 80
    found = interval([*values, *(1 - values)], strata=strata, method="percentile")
    alone = interval(values, method="percentile")
    assert found.mean == pytest.approx(0.5)
    assert found.high - found.low == pytest.approx((alone.high - alone.low) / np.sqrt(2), rel=0.1)


def test_how_much_is_kept_of_draws_changes_nothing(monkeypatch):
    values, labels = np.random.default_rng(1).random(90), [place // 3 for place in range(90)]
    kept = interval(values, labels)
    monkeypatch.setattr(statistics, "_TO_KEEP", 0)
    monkeypatch.setattr(clusters, "_AT_ONCE", 1000)
    assert interval(values, labels) == pytest.approx(kept, abs=1e-12)


def test_shares_of_all_or_nothing_are_not_certain():
    """As scipy's exact interval for as many images; otherwise as any mean."""
    labels = [place // 4 for place in range(160)]
    for right, count in ((0, 0), (1, 40)):
        exact = stats.binomtest(count, 40).proportion_ci()
        found = proportion([right] * 160, labels)
        assert found == pytest.approx((right, exact.low, exact.high)) and proportion([right] * 160, labels) == found
    assert proportion([0] * 40, strata="a" * 20 + "b" * 20) == proportion([0] * 40)
    reach = proportion([0] * 40).high
    both = proportion([0] * 20 + [1] * 20, strata="a" * 20 + "b" * 20)  # nothing can be drawn that differs here either
    assert both == pytest.approx((0.5, 0.5 - reach, 0.5 + reach))
    assert proportion([0] * 63, strata="a" * 3 + "b" * 60) == proportion([0] * 6)  # which knows little of the first
    some = [0, 1] * 20
    assert proportion(some, strata="a" * 20 + "b" * 20) == interval(some, strata="a" * 20 + "b" * 20)


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
