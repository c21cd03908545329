"""Letters for the sequence score: clusters of where people looked in one image, found by mean shift.

The bandwidth is the mean distance to the 30 % nearest fixations, times the factor for which people change cluster most
often for the number of clusters there are (Yang et al. 2020): too few clusters and nobody ever changes, too many and
every step is its own.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

FACTORS = (0.2, 0.5, 0.8, 1.0, 1.2, 1.5, 1.8)
QUANTILE = 0.3
SEEDS = 150  # points from which hills are climbed
STEPS = 60


def centres_of(paths: Sequence[Float64[np.ndarray, "_n xy"]]) -> Float64[np.ndarray, "k 2"]:
    """The centres of the clusters of all the fixations of some paths.

    >>> paths = [np.array([[0.0, 0.0], [100.0, 0.0]]), np.array([[1.0, 0.0], [101.0, 0.0]])]
    >>> centres_of(paths).round().tolist()
    [[0.0, 0.0], [100.0, 0.0]]
    """
    points = np.concatenate([path[:, :2] for path in paths])
    wide = bandwidth(points)
    if wide <= 0:
        return np.unique(points, axis=0)
    found = [mean_shift(points, wide * factor) for factor in FACTORS]
    return max(found, key=lambda centres: _rate(centres, paths))


def letters(path: Float64[np.ndarray, "n xy"], centres: Float64[np.ndarray, "k 2"]) -> list[int]:
    """The nearest centre of each fixation.

    >>> letters(np.array([[9.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.0], [10.0, 0.0]]))
    [1, 0]
    """
    return _nearest(path[:, :2], centres).tolist()


def bandwidth(points: Float64[np.ndarray, "n 2"]) -> float:
    """The mean distance of a point to the furthest of its nearest 30 %, itself and at least one other among them."""
    some = points[:: max(1, len(points) // 500)]
    near = min(len(points), max(2, int(len(points) * QUANTILE)))
    apart = np.linalg.norm(some[:, None] - points[None], axis=-1)
    return float(np.partition(apart, near - 1, axis=1)[:, near - 1].mean())


def mean_shift(points: Float64[np.ndarray, "n 2"], wide: float) -> Float64[np.ndarray, "k 2"]:
    """Centres that a flat disc of the given radius climbs to, the fullest first, none within a radius of another."""
    hills = points[:: max(1, len(points) // SEEDS)].copy()
    for _ in range(STEPS):
        within = np.linalg.norm(hills[:, None] - points[None], axis=-1) <= wide  # [hills, points]
        moved = within @ points / within.sum(1, keepdims=True)
        settled = np.abs(moved - hills).max() < 1e-3 * wide
        hills = moved
        if settled:
            break
    full = (np.linalg.norm(hills[:, None] - points[None], axis=-1) <= wide).sum(1)
    kept: list[np.ndarray] = []
    for place in np.lexsort((hills[:, 1], hills[:, 0], -full)):
        if all(np.linalg.norm(hills[place] - other) > wide for other in kept):
            kept.append(hills[place])
    return np.array(kept)


def _rate(centres: Float64[np.ndarray, "k 2"], paths: Sequence[Float64[np.ndarray, "_n xy"]]) -> float:
    """Steps from one cluster to another, less steps within one, for each cluster."""
    between = 0
    for path in paths:
        word = _nearest(path[:, :2], centres)
        changed = int((word[1:] != word[:-1]).sum())
        between += 2 * changed - max(0, len(word) - 1)
    return between / len(centres)


def _nearest(points: Float64[np.ndarray, "n 2"], centres: Float64[np.ndarray, "k 2"]) -> Int64[np.ndarray, " n"]:
    return np.linalg.norm(points[:, None] - centres[None], axis=-1).argmin(1)
