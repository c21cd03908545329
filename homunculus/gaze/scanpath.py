"""How alike two scanpaths are: by the regions they visit in order, and by the vectors between their fixations.

- Sequence score (Yang et al. 2020): fixations become letters, one for each cluster of where people looked; two words
  are aligned by Needleman and Wunsch with 1 for a match, 0 for a mismatch or a gap; the sum is divided by the longer
  word. See clusters.py for the letters.
- MultiMatch (Jarodzka et al. 2010, Dewhurst et al. 2012) without simplification: saccades of two paths are aligned
  along the cheapest way through the matrix of their vector differences; each similarity is 1 minus the median
  difference of the pairs on that way, over its largest possible value. Shape is nearly constant; direction
  discriminates. A path of fewer than three fixations has no score. Durations, its fifth measure, are left out: no model
  here has any.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from homunculus.geometry import Size

FEWEST = 3  # fixations that MultiMatch wants


def sequence_score(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The share of the longer word that the two have in common in the same order.

    >>> sequence_score("abcd", "abd"), sequence_score("ab", "cd"), sequence_score("a", "a")
    (0.75, 0.0, 1.0)
    """
    if not one or not other:
        return 0.0
    best = [0] * (len(other) + 1)
    for letter in one:
        before = best
        best = [0]
        for place, same in enumerate(other):
            best.append(max(before[place] + (letter == same), before[place + 1], best[place]))
    return best[-1] / max(len(one), len(other))


class MultiMatch(NamedTuple):
    """Four similarities from 0 to 1; not a number where a path is too short."""

    shape: float
    direction: float
    length: float
    position: float


NOTHING = MultiMatch(*[math.nan] * 4)


def multimatch(one: Float64[np.ndarray, "n 3"], other: Float64[np.ndarray, "m 3"], size: Size) -> MultiMatch:
    """How alike two paths of (x, y, duration) on an image of that size are.

    >>> path = np.array([[0.0, 0.0, 200.0], [30.0, 0.0, 200.0], [30.0, 40.0, 100.0]])
    >>> multimatch(path, path, (100, 100))
    MultiMatch(shape=1.0, direction=1.0, length=1.0, position=1.0)
    >>> multimatch(path, path[:, [1, 0, 2]], (100, 100)).direction  # mirrored in the diagonal: a right angle
    0.5
    """
    if len(one) < FEWEST or len(other) < FEWEST:
        return NOTHING
    first, second = np.diff(one[:, :2], axis=0), np.diff(other[:, :2], axis=0)
    apart = np.linalg.norm(first[:, None] - second[None], axis=-1)  # [saccades of one, of the other]
    i, j = _cheapest_way(apart)
    diagonal = math.hypot(*size)
    turn = np.abs(_angle(first[i]) - _angle(second[j]))
    lengths = np.abs(np.linalg.norm(first[i], axis=1) - np.linalg.norm(second[j], axis=1))
    places = np.linalg.norm(one[i, :2] - other[j, :2], axis=1)
    return MultiMatch(
        1 - float(np.median(apart[i, j])) / (2 * diagonal),
        1 - float(np.median(np.minimum(turn, 2 * math.pi - turn))) / math.pi,
        1 - float(np.median(lengths)) / diagonal,
        1 - float(np.median(places)) / diagonal,
    )


def _angle(vectors: Float64[np.ndarray, "n 2"]) -> Float64[np.ndarray, " n"]:
    return np.arctan2(vectors[:, 1], vectors[:, 0])


def _cheapest_way(cost: Float64[np.ndarray, "n m"]) -> tuple[np.ndarray, np.ndarray]:
    """From the first pair to the last by steps right, down or both, the sum of what is stepped on least."""
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf)
    total[1, 1] = 0.0  # the first pair is on every way
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            if i > 1 or j > 1:
                total[i, j] = cost[i - 1, j - 1] + min(total[i - 1, j - 1], total[i - 1, j], total[i, j - 1])
    i, j = n, m
    way = [(n - 1, m - 1)]
    while i > 1 or j > 1:
        i, j = min(((i - 1, j - 1), (i - 1, j), (i, j - 1)), key=lambda place: total[place])
        way.append((i - 1, j - 1))
    rows, columns = zip(*reversed(way), strict=True)
    return np.array(rows), np.array(columns)
