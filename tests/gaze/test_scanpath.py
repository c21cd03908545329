"""Scanpaths: values of another implementation, brute force, and answers known beforehand."""

import math

import numpy as np
import pytest

from homunculus.gaze.clusters import centres_of, letters, mean_shift
from homunculus.gaze.scanpath import multimatch, sequence_score

# Computed with multimatch_gaze 0.1.3, no grouping, on 640x480: lengths and parameters of two paths; five similarities,
# the last of durations, which no model here has.
MULTIMATCH = [
    ((5, 7, 1.1, 0.3), (0.93112549477657, 0.78841001044942, 0.91160219907720, 0.83942109402053, 0.51824244165554)),
    ((8, 4, 0.7, 2.0), (0.85633412270389, 0.86917987936195, 0.74541687598952, 0.78552650317963, 0.76388713095787)),
    ((3, 3, 2.3, 1.0), (0.96905964857068, 0.95961983476579, 0.95374178725023, 0.94642807414856, 0.65741879294394)),
    ((10, 9, 0.4, 0.9), (0.89199273478245, 0.81860646777884, 0.84527433104347, 0.85041445002994, 0.31275545700192)),
]


def spiral(count: int, a: float, b: float) -> np.ndarray:
    i = np.arange(count)
    x, y = 300 + 250 * np.sin(a * i + b), 200 + 180 * np.cos(1.7 * a * i + 0.3 * b)
    return np.column_stack((x, y, 150 + 100 * np.sin(2.1 * i + b)))


@pytest.mark.parametrize(("how", "expected"), MULTIMATCH)
def test_another_implementation_says_the_same(how, expected):
    n, m, a, b = how
    assert multimatch(spiral(n, a, b), spiral(m, b, a), (640, 480)) == pytest.approx(expected[:4], rel=1e-9)


def ways(n, m, i=0, j=0):
    """Every way through a matrix by steps right, down or both."""
    if (i, j) == (n - 1, m - 1):
        yield [(i, j)]
    for di, dj in ((1, 0), (0, 1), (1, 1)):
        if i + di < n and j + dj < m:
            for rest in ways(n, m, i + di, j + dj):
                yield [(i, j), *rest]


def test_multimatch_takes_the_cheapest_of_all_ways():
    dice = np.random.default_rng(0)
    for _ in range(10):
        one, other = (
            np.column_stack((dice.uniform(0, 640, n), dice.uniform(0, 480, n), dice.uniform(100, 400, n)))
            for n in dice.integers(3, 6, 2)
        )
        first, second = np.diff(one[:, :2], axis=0), np.diff(other[:, :2], axis=0)
        cost = {(i, j): math.dist(first[i], second[j]) for i in range(len(first)) for j in range(len(second))}
        best = min(ways(len(first), len(second)), key=lambda way: sum(cost[place] for place in way[1:]))
        diagonal = math.hypot(640, 480)
        turns = []
        for i, j in best:
            cosine = first[i] @ second[j] / np.linalg.norm(first[i]) / np.linalg.norm(second[j])
            turns.append(math.acos(np.clip(cosine, -1, 1)))
        found = multimatch(one, other, (640, 480))
        assert found.shape == pytest.approx(1 - np.median([cost[place] for place in best]) / (2 * diagonal))
        assert found.direction == pytest.approx(1 - np.median(turns) / math.pi)
        places = [math.dist(one[i, :2], other[j, :2]) for i, j in best]
        assert found.position == pytest.approx(1 - np.median(places) / diagonal)


def test_multimatch_of_known_pairs():
    path = spiral(6, 1.1, 0.3)
    assert multimatch(path, path, (640, 480)) == pytest.approx((1,) * 4)
    moved = path + np.array([30, 40, 0])  # only the position changes
    found = multimatch(path, moved, (640, 480))
    assert found[:3] == pytest.approx((1, 1, 1)) and found.position == pytest.approx(1 - 50 / 800)
    backwards = np.array([[0, 0, 1.0], [10, 0, 1], [20, 0, 1]])
    assert multimatch(backwards, backwards[::-1].copy(), (640, 480)).direction == pytest.approx(0)
    assert all(math.isnan(value) for value in multimatch(path[:2], path, (640, 480)))  # too short to say
    without = path.copy()
    without[:, 2] = np.nan  # durations do not matter
    assert multimatch(without, path, (640, 480)) == pytest.approx((1,) * 4)


def common(one, other):
    """The longest common subsequence, by trying everything."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + common(one[1:], other[1:])
    return max(common(one[1:], other), common(one, other[1:]))


def test_the_sequence_score_is_the_longest_common_subsequence():
    dice = np.random.default_rng(1)
    for _ in range(50):
        one, other = (dice.integers(0, 4, dice.integers(1, 8)).tolist() for _ in range(2))
        expected = common(one, other) / max(len(one), len(other))
        assert sequence_score(one, other) == pytest.approx(expected) == sequence_score(other, one)
    assert sequence_score([], [1]) == 0


def test_clusters_are_found_where_they_were_put():
    dice = np.random.default_rng(2)
    middles = np.array([[100.0, 100.0], [400.0, 120.0], [250.0, 400.0]])
    paths = [middles[dice.permutation(3)] + dice.normal(0, 8, (3, 2)) for _ in range(12)]
    centres = centres_of(paths)
    assert len(centres) == 3
    for middle in middles:
        assert np.linalg.norm(centres - middle, axis=1).min() < 10
    word = letters(middles[[0, 1, 0, 2]], centres)
    assert word[0] == word[2] and len(set(word)) == 3


def test_clusters_of_little():
    assert centres_of([np.array([[5.0, 6.0, 100.0]])]).tolist() == [[5, 6]]
    assert len(centres_of([np.tile([[5.0, 6.0]], (4, 1))])) == 1
    assert len(mean_shift(np.array([[0.0, 0.0], [100.0, 0.0]]), 10.0)) == 2
