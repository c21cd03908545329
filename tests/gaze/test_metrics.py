"""Metrics of maps: published values of another implementation, literal oracles, and answers known beforehand."""

import numpy as np
import pytest

from homunculus.gaze import metrics
from homunculus.gaze.maps import blur, cells_of, density, histogram, widths

# Computed with pysaliency 0.2.22 (numpy 2.3.5) from the maps and cells below.
PYSALIENCY = {
    "NSS": -0.054680047160032406,
    "CC": 0.11903998231557528,
    "SIM": 0.7442966368028774,
    "KL": 0.26612884118530755,
    "AUC": 0.4807692307692307,
    "shuffled AUC": 0.576388888888889,
    "AUC with ties": 0.48985042735042733,
    "shuffled AUC with ties": 0.548611111111111,
}
CELLS = np.array([(1, 0), (4, 2), (4, 2), (7, 5), (12, 8), (9, 6), (0, 3), (3, 3)])
ELSEWHERE = np.array([(5, 5), (2, 8), (0, 0), (11, 1), (4, 2), (6, 3), (6, 3), (8, 7), (1, 0)])


def waves() -> tuple[np.ndarray, np.ndarray]:
    y, x = np.mgrid[:9, :13].astype(np.float64)
    model = 1.5 + np.sin(0.9 * x + 1.1 * y * y * 0.01 + 0.2) + 0.3 * np.cos(0.7 * y + 0.9)
    people = 1.5 + np.sin(0.5 * x + 2.0 * y * y * 0.01 + 1.0) + 0.3 * np.cos(0.7 * y + 0.5)
    return model, people


def test_another_implementation_says_the_same():
    model, people = waves()
    others = histogram(ELSEWHERE, (13, 9))
    ties = np.round(model * 2)
    ours = {
        "NSS": metrics.nss(model, CELLS),
        "CC": metrics.cc(model, people),
        "SIM": metrics.sim(model, people),
        "KL": metrics.kl(model, people),
        "AUC": metrics.auc(model, CELLS),
        "shuffled AUC": metrics.auc(model, CELLS, others),
        "AUC with ties": metrics.auc(ties, CELLS),
        "shuffled AUC with ties": metrics.auc(ties, CELLS, others),
    }
    for name, value in PYSALIENCY.items():
        assert float(ours[name]) == pytest.approx(value, rel=1e-12), name


def test_auc_is_a_count_of_pairs():
    dice = np.random.default_rng(0)
    for _ in range(20):
        map = dice.integers(0, 5, (6, 7)).astype(np.float64)  # many ties
        cells = np.column_stack((dice.integers(0, 7, 9), dice.integers(0, 6, 9)))
        counts = dice.integers(0, 3, (6, 7)).astype(np.float64)
        positives = [map[y, x] for x, y in cells]
        for weights in (np.ones_like(map), counts):
            won = total = 0.0
            for value in positives:
                for other, weight in zip(map.ravel(), weights.ravel(), strict=True):
                    won += weight * ((other < value) + 0.5 * (other == value))
                    total += weight
            assert float(metrics.auc(map, cells, weights)) == pytest.approx(won / total)


def planted(seed: int = 0, shape: tuple[int, int] = (24, 30)) -> tuple[np.ndarray, np.ndarray]:
    """A density with an off-centre hill, and a centre bias."""
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float64)
    hill = np.exp(-((x - 22) ** 2 + (y - 6) ** 2) / 18)
    centre = np.exp(-((x - 14.5) ** 2 + (y - 11.5) ** 2) / 80)
    return density(density(hill) + density(centre) + 0.2 / hill.size), density(density(centre) + 0.2 / hill.size)


def draw(chances: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    flat = np.random.default_rng(seed).choice(chances.size, count, p=chances.ravel())
    return np.column_stack((flat % chances.shape[1], flat // chances.shape[1]))


def test_the_gain_of_the_truth_is_its_divergence_from_the_baseline():
    truth, bias = planted()
    cells = draw(truth, 400_000)
    divergence = float((truth * np.log2(truth / bias)).sum())
    spread = float(np.sqrt((truth * np.log2(truth / bias) ** 2).sum() - divergence**2))
    gained = float(metrics.information_gain(truth, bias, cells))
    assert gained == pytest.approx(divergence, abs=5 * spread / np.sqrt(len(cells)))
    assert divergence > 0.5
    # Nothing gains more than the truth, and the baseline nothing at all.
    for other in (bias, density(truth**2), density(np.sqrt(truth)), density(np.ones_like(truth))):
        assert float(metrics.information_gain(other, bias, cells)) < gained
    assert float(metrics.information_gain(bias, bias, cells)) == 0
    # A shuffled truth knows less than the baseline.
    shuffled = np.roll(truth, 12, axis=1)
    assert float(metrics.information_gain(shuffled, bias, cells)) < 0


def test_the_auc_of_a_density_on_its_own_samples_is_half_of_one_plus_its_gini_index():
    truth, bias = planted()
    cells = draw(truth, 200_000)
    gini = np.abs(truth.ravel()[:, None] - truth.ravel()).sum() / (2 * truth.size * truth.sum())
    assert float(metrics.auc(truth, cells)) == pytest.approx((1 + gini) / 2, abs=0.002)
    # Shuffled: each side of the pair from its own density; and the bias itself is at chance.
    higher = truth.ravel()[:, None] > truth.ravel()
    chance = float(truth.ravel() @ (higher + 0.5 * (truth.ravel()[:, None] == truth.ravel())) @ bias.ravel())
    assert float(metrics.auc(truth, cells, bias)) == pytest.approx(chance, abs=0.003)
    assert float(metrics.auc(bias, draw(bias, 200_000), bias)) == pytest.approx(0.5, abs=0.003)
    # Only ranks count.
    assert float(metrics.auc(np.log(truth), cells)) == float(metrics.auc(truth, cells))


def test_nss_of_the_truth():
    truth, _ = planted()
    expected = float((truth * (truth - truth.mean()) / truth.std()).sum())
    cells = draw(truth, 200_000)
    assert float(metrics.nss(truth, cells)) == pytest.approx(expected, rel=0.01)
    assert float(metrics.nss(7 * truth + 3, cells)) == pytest.approx(float(metrics.nss(truth, cells)), rel=1e-9)


def test_ceilings_of_two_maps():
    truth, bias = planted()
    assert float(metrics.kl(truth, truth)) == pytest.approx(0, abs=1e-9)
    assert float(metrics.sim(truth, truth)) == pytest.approx(1)
    assert float(metrics.cc(truth, truth)) == pytest.approx(1)
    assert float(metrics.kl(bias, truth)) == pytest.approx(float((truth * np.log(truth / bias)).sum()), rel=1e-9)
    assert float(metrics.cc(truth.max() - truth, truth)) == pytest.approx(-1)
    apart = np.zeros_like(truth)
    apart[0, 0] = 1
    elsewhere = np.zeros_like(truth)
    elsewhere[5, 5] = 1
    assert float(metrics.sim(apart, elsewhere)) == 0
    assert 30 < float(metrics.kl(apart, elsewhere)) < 40  # -log of epsilon: large, not infinite


def test_flat_maps_and_zeros():
    flat = np.full((3, 4), 0.1)
    cells = np.array([[0, 0], [3, 2]])
    assert float(metrics.nss(flat, cells)) == 0
    assert float(metrics.auc(flat, cells)) == 0.5
    assert np.isnan(metrics.cc(flat, np.eye(3, 4))) and np.isnan(metrics.cc(np.eye(3, 4), flat))
    zero = density(np.eye(3, 4))
    assert float(metrics.information_gain(zero, density(flat), np.array([[1, 0]]))) == -np.inf
    assert np.isfinite(metrics.kl(np.zeros((3, 4)), zero))  # no mass at all is no opinion
    assert float(metrics.kl(np.zeros((3, 4)), zero)) == pytest.approx(float(metrics.kl(flat, zero)))


def test_many_maps_at_once_are_the_same_as_one_by_one():
    dice = np.random.default_rng(3)
    maps = density(dice.uniform(0.1, 1, (2, 3, 9, 13)))
    people, bias = density(dice.uniform(0.1, 1, (9, 13))), density(dice.uniform(0.1, 1, (9, 13)))
    functions = {
        "gain": lambda map: metrics.information_gain(map, bias, CELLS),
        "nss": lambda map: metrics.nss(map, CELLS),
        "auc": lambda map: metrics.auc(map, CELLS),
        "kl": lambda map: metrics.kl(map, people),
        "cc": lambda map: metrics.cc(map, people),
        "sim": lambda map: metrics.sim(map, people),
    }
    for name, function in functions.items():
        together = function(maps)
        assert together.shape == (2, 3), name
        np.testing.assert_allclose(together[1, 2], function(maps[1, 2]), rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------- maps


def test_blur_is_that_of_scipy():
    filters = pytest.importorskip("scipy.ndimage")
    maps = np.random.default_rng(4).uniform(0, 1, (3, 20, 31))
    for sigma in ((1.5, 0.7), (9.0, 4.0), (0.0, 2.0)):
        expected = np.stack([filters.gaussian_filter(map, sigma[::-1], mode="reflect", truncate=8) for map in maps])
        np.testing.assert_allclose(blur(maps, sigma), expected, rtol=1e-6)
        np.testing.assert_allclose(blur(maps, sigma).sum((1, 2)), maps.sum((1, 2)))
        np.testing.assert_allclose(blur(np.ones((20, 31)), sigma), 1)


def test_cells_and_widths_on_cells_that_are_not_square():
    size, grid = (640, 480), (40, 32)
    places = np.random.default_rng(5).uniform(0, 1, (100, 2)) * size
    for (x, y), (column, row) in zip(places, cells_of(places, size, grid), strict=True):
        assert column * 16 <= x < (column + 1) * 16 and row * 15 <= y < (row + 1) * 15
    assert widths(30.0, size, grid) == (30 / 16, 2.0)
    counted = histogram(cells_of(places, size, grid), grid, np.full(100, 0.5))
    assert counted.shape == (32, 40) and counted.sum() == 50
