"""How sure we are of a mean, and whether one method really beats another.

Questions about one image stand and fall together, so images are what is drawn, not questions: every function takes
`clusters`, one label a value, and without labels takes each value for itself. Families of questions are not of equal
size, and the larger must not speak for the others: with `strata`, one label a value as well, every mean is the mean of
the means of the strata, and clusters are drawn within each. Intervals are bootstrap intervals, bias corrected and
accelerated (BCa, Efron 1987) by default; differences are paired, and tested by flipping their signs (eval/signs.py).
All chance is `Dice`: the same numbers give the same interval everywhere.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, UInt16

from homunculus.data.dice import Dice
from homunculus.errors import DataError
from homunculus.eval.clusters import RESAMPLES, Clusters, group_by_stratum, numbers_of, portions
from homunculus.eval.signs import sign_flip

_TO_KEEP = 1 << 23  # draws of one size that are kept for the next mean

_normal = NormalDist()


class Interval(NamedTuple):
    """A mean and the interval round it."""

    mean: float
    low: float
    high: float


class Comparison(NamedTuple):
    """Mean of a minus mean of b, the interval round it, and how often chance alone would show as much."""

    difference: float
    low: float
    high: float
    p: float


def interval(
    values: Any,
    clusters: Sequence[Any] | None = None,
    *,
    strata: Sequence[Any] | None = None,
    confidence: float = 0.95,
    method: Literal["bca", "percentile"] = "bca",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The bootstrap interval of a mean, drawing whole clusters with replacement; with strata, within each of them.

    >>> interval([1, 0, 1, 1, 0, 1, 1, 1, 0, 1] * 10).mean
    0.7
    >>> alone, together = interval([1, 0] * 50), interval([1, 0] * 50, clusters=[i // 20 for i in range(100)])
    >>> alone.low < 0.45 < together.low  # every cluster is half right, so little is left to chance
    True
    >>> interval([1, 1, 1, 1, 0, 0], strata="aaaabb").mean  # four to two, and yet equals
    0.5
    """
    parts = _at_least_two(values, clusters, strata)
    draws = _drawn_means(parts, resamples, seed)
    return _around(_mean(parts), draws, _left_out(parts), confidence, method)


def proportion(right: Any, clusters: Sequence[Any] | None = None, *, strata: Sequence[Any] | None = None) -> Interval:
    """The 95 % interval of a share of what is right or wrong, drawing as for any mean.

    Where all are wrong, or all right, nothing can be drawn that differs: then it reaches as far as what never came up
    may still be there (`unseen`).

    >>> round(proportion([0] * 72).high, 3)  # 0.95 ** 72 is a fortieth
    0.05
    >>> proportion([0, 1] * 50) == interval([0, 1] * 50)
    True
    """
    found = interval(right, clusters, strata=strata)
    if found.low != found.high:
        return found
    reach = unseen(group_by_stratum(right, clusters, strata))
    return Interval(found.mean, max(0.0, found.mean - reach), min(1.0, found.mean + reach))


def unseen(parts: Sequence[Clusters]) -> float:
    """How large a share may be of what came up in no cluster: 97.5 % of all samples of a larger one would have shown it
    (Clopper and Pearson). Each stratum counts as the smallest, which is never too little.

    >>> round(unseen(group_by_stratum([0] * 72, None, None)), 3)
    0.05
    """
    return 1 - 0.025 ** (1 / (len(parts) * min(len(part.sums) for part in parts)))


def ratio(
    a: Any,
    b: Any,
    clusters: Sequence[Any] | None = None,
    *,
    strata: Sequence[Any] | None = None,
    confidence: float = 0.95,
    method: Literal["bca", "percentile"] = "bca",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean of a over mean of b on the same questions, in the same order: both are of the same drawn clusters.

    >>> ratio([1, 0, 1, 1], [1, 1, 1, 1]).mean
    0.75
    >>> ratio([0.5, 0.25, 0.5, 0.5], [1, 0.5, 1, 1])  # half of it whatever is drawn
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    first, second = _same_questions(a, b)
    tops, bottoms = (_at_least_two(values, clusters, strata) for values in (first, second))
    below = _drawn_means(bottoms, resamples, seed)  # equal seeds draw equal clusters
    without = _left_out(bottoms)
    if below.min() <= 0 or min(part.min() for part in without) <= 0:
        raise DataError("a share of nothing is none: evaluate more images, of which some are right")
    draws = _drawn_means(tops, resamples, seed) / below
    left_out = [top / bottom for top, bottom in zip(_left_out(tops), without, strict=True)]
    return _around(_mean(tops) / _mean(bottoms), draws, left_out, confidence, method)


def compare(
    a: Any,
    b: Any,
    clusters: Sequence[Any] | None = None,
    *,
    strata: Sequence[Any] | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Two methods on the same questions, in the same order: how much better a is, and whether it may be chance.

    >>> better = compare([1, 1, 1, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 1, 0, 0])
    >>> better.difference, better.p  # 5 differences, all one way: 2 / 2^5
    (0.625, 0.0625)
    """
    first, second = _same_questions(a, b)
    how: dict[str, Any] = {"strata": strata, "resamples": resamples, "seed": seed}
    around = interval(first - second, clusters, confidence=confidence, **how)
    return Comparison(*around, sign_flip(first - second, clusters, **how))


def _at_least_two(values: Any, clusters: Sequence[Any] | None, strata: Sequence[Any] | None) -> list[Clusters]:
    parts = group_by_stratum(values, clusters, strata)
    if any(len(part.sums) == 1 for part in parts):
        raise DataError(f"one image gives no interval: evaluate at least two{'' if strata is None else ' of each'}")
    return parts


def _same_questions(a: Any, b: Any) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    first, second = numbers_of(a), numbers_of(b)
    if first.shape != second.shape:
        raise DataError(f"{len(first)} scores against {len(second)}: compare methods on the same questions")
    return first, second


def _mean(parts: Sequence[Clusters]) -> float:
    """The mean of the means of strata."""
    return sum(part.mean for part in parts) / len(parts)


def _drawn_means(parts: Sequence[Clusters], resamples: int, seed: int) -> Float64[np.ndarray, " resamples"]:
    """Means of resampled clusters: every stratum is drawn by itself, as often as it has clusters."""
    means = np.zeros(resamples)
    for place, part in enumerate(parts):
        name: tuple[str | int, ...] = ("bootstrap", seed, place) if place else ("bootstrap", seed)
        means += np.concatenate(list(_bootstrap(part, resamples, name)))
    return means / len(parts)


def _bootstrap(
    grouped: Clusters, resamples: int, name: tuple[str | int, ...]
) -> Iterator[Float64[np.ndarray, " rows"]]:
    """Means of one stratum, a portion at a time."""
    size = len(grouped.sums)
    each = np.stack([grouped.sums, grouped.counts], 1)
    few = resamples * size <= _TO_KEEP
    for times in _kept(size, resamples, name) if few else _times_drawn(size, resamples, name):
        sums, counts = (times.astype(np.float64) @ each).T
        yield sums / counts


def _times_drawn(
    size: int, resamples: int, name: tuple[str | int, ...]
) -> Iterator[UInt16[np.ndarray, "rows clusters"]]:
    """How often each of so many clusters is drawn, in every resample."""
    dice = Dice(*name)
    for rows in portions(resamples, size):
        drawn = (dice.array(rows * size) * size).astype(np.int64) + np.repeat(np.arange(rows) * size, size)
        yield np.bincount(drawn, minlength=rows * size).astype(np.uint16).reshape(rows, size)


@lru_cache(maxsize=16)
def _kept(size: int, resamples: int, name: tuple[str | int, ...]) -> list[UInt16[np.ndarray, "rows clusters"]]:
    """The same, kept: equal seeds draw alike, and a page has a thousand means of as many images."""
    found = list(_times_drawn(size, resamples, name))
    for times in found:
        times.setflags(write=False)
    return found


def _left_out(parts: Sequence[Clusters]) -> list[Float64[np.ndarray, " _"]]:
    """For each stratum, the mean of all strata without each of its clusters in turn."""
    mean = _mean(parts)
    found = []
    for part in parts:
        own = (part.sums.sum() - part.sums) / (part.counts.sum() - part.counts)
        found.append(mean + (own - part.mean) / len(parts))
    return found


def _around(
    value: float,
    draws: Float64[np.ndarray, " resamples"],
    left_out: Sequence[Float64[np.ndarray, " _"]],
    confidence: float,
    method: str,
) -> Interval:
    """The interval between the tails of what was drawn."""
    if not 0 < confidence < 1:
        raise DataError(f"a confidence of {confidence} is none: choose one between 0 and 1, such as 0.95")
    tails = (1 - confidence) / 2, (1 + confidence) / 2
    if method == "bca":
        tails = _corrected(tails, draws, value, left_out)
    low, high = np.quantile(draws, tails)
    return Interval(value, float(low), float(high))


def _corrected(
    tails: tuple[float, float],
    draws: Float64[np.ndarray, " resamples"],
    value: float,
    left_out: Sequence[Float64[np.ndarray, " _"]],
) -> tuple[float, float]:
    """The tails at which to read the draws: moved by their bias, stretched by how the spread grows."""
    below = ((draws < value).sum() + (draws <= value).sum()) / 2  # ties count half
    if not 0 < below < len(draws):  # nothing varies
        return tails
    bias = _normal.inv_cdf(below / len(draws))
    # How far each cluster pulls; n - 1 over n makes strata of unequal size comparable (and cancels where there is one).
    pulls = [(1 - 1 / len(own)) * (own.mean() - own) for own in left_out]
    spread = sum(float((own**2).sum()) for own in pulls) ** 1.5
    acceleration = sum(float((own**3).sum()) for own in pulls) / (6 * spread) if spread > 0 else 0.0

    def moved(tail: float) -> float:
        reach = bias + _normal.inv_cdf(tail)
        return _normal.cdf(bias + reach / (1 - acceleration * reach))

    return moved(tails[0]), moved(tails[1])
