"""How sure we are of a mean, and whether one method really beats another.

Questions about one image stand and fall together, so images are what is drawn, not questions: every function takes
`clusters`, one label a value, and without labels takes each value for itself. Families of questions are not of equal
size, and the larger must not speak for the others: with `strata`, one label a value as well, every mean is the mean of
the means of the strata, and clusters are drawn within each. Intervals are bootstrap intervals, bias corrected and
accelerated (BCa) by default; differences are paired and tested by flipping their signs, exactly where there are few
enough; many comparisons at once are corrected by Holm's rule. All chance is `Dice`: the same numbers give the same
interval everywhere.

References: Efron 1987 (BCa), Holm 1979.
"""

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from homunculus.data.dice import Dice
from homunculus.errors import DataError

RESAMPLES = 10_000
_AT_ONCE = 1 << 21  # draws held in memory

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


class Clusters(NamedTuple):
    """Values added up by cluster: what any resampling of whole clusters needs."""

    sums: Float64[np.ndarray, " clusters"]
    counts: Float64[np.ndarray, " clusters"]

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.counts.sum())


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


def sign_flip(
    differences: Any,
    clusters: Sequence[Any] | None = None,
    *,
    strata: Sequence[Any] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> float:
    """The two-sided p-value of a mean difference: how often random signs of the clusters give one as large.

    All signs are tried where there are no more of them than resamples; otherwise they are drawn, and the p-value counts
    the observed ones among them, so that it is never 0.

    >>> sign_flip([1, 1, 1]), sign_flip([1, -1, 1, -1]), sign_flip([0, 0])
    (0.25, 1.0, 1.0)
    """
    parts = group_by_stratum(differences, clusters, strata)
    every = np.concatenate([part.sums / part.counts.sum() for part in parts])  # what each adds to its stratum's mean
    sums = np.abs(every[every != 0])  # a sign of nothing changes nothing
    observed = abs(every.sum()) * (1 - 1e-9)  # sums in another order differ in last bits
    if 2 ** len(sums) <= resamples:
        return float((np.abs(_all_signs(len(sums)) @ sums) >= observed).mean())
    dice = Dice("sign flip", seed)
    as_large = 0
    for rows in _portions(resamples, len(sums)):
        signs = np.where(dice.array(rows * len(sums)) < 0.5, -1.0, 1.0).reshape(rows, -1)
        as_large += int((np.abs(signs @ sums) >= observed).sum())
    return (1 + as_large) / (1 + resamples)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several comparisons, corrected so that a false alarm among all of them stays as rare.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, worst = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        worst = max(worst, min(1.0, p_values[place] * (len(p_values) - rank)))
        corrected[place] = worst
    return corrected


def group(values: Any, clusters: Sequence[Any] | None) -> Clusters:
    """Sums and counts by cluster, in order of appearance.

    >>> group([1.0, 2.0, 4.0], ["page 1", "page 2", "page 1"]).sums.tolist()
    [5.0, 2.0]
    """
    numbers = _numbers(values)
    if clusters is None:
        return Clusters(numbers, np.ones_like(numbers))
    if len(clusters) != len(numbers):
        raise DataError(f"{len(numbers)} values but {len(clusters)} cluster labels: give one a value")
    places: dict[Any, int] = {}
    which = np.array([places.setdefault(label, len(places)) for label in clusters])
    return Clusters(np.bincount(which, numbers), np.bincount(which).astype(np.float64))


def group_by_stratum(values: Any, clusters: Sequence[Any] | None, strata: Sequence[Any] | None) -> list[Clusters]:
    """Sums and counts by cluster for each stratum, in order of appearance.

    >>> [part.mean for part in group_by_stratum([1.0, 0.0, 1.0, 1.0], None, "aabb")]
    [0.5, 1.0]
    """
    numbers = _numbers(values)
    if strata is None:
        return [group(numbers, clusters)]
    if len(strata) != len(numbers):
        raise DataError(f"{len(numbers)} values but {len(strata)} labels of strata: give one a value")
    if clusters is not None and len(clusters) != len(numbers):
        raise DataError(f"{len(numbers)} values but {len(clusters)} cluster labels: give one a value")
    places: dict[Any, list[int]] = {}
    for place, label in enumerate(strata):
        places.setdefault(label, []).append(place)
    return [group(numbers[own], None if clusters is None else [clusters[i] for i in own]) for own in places.values()]


def _at_least_two(values: Any, clusters: Sequence[Any] | None, strata: Sequence[Any] | None) -> list[Clusters]:
    parts = group_by_stratum(values, clusters, strata)
    if any(len(part.sums) == 1 for part in parts):
        raise DataError(f"one image gives no interval: evaluate at least two{'' if strata is None else ' of each'}")
    return parts


def _same_questions(a: Any, b: Any) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    first, second = _numbers(a), _numbers(b)
    if first.shape != second.shape:
        raise DataError(f"{len(first)} scores against {len(second)}: compare methods on the same questions")
    return first, second


def _numbers(values: Any) -> Float64[np.ndarray, " n"]:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.isfinite(numbers).all():
        raise DataError(f"scores are a list of finite numbers, at least one, not {numbers.shape}: check the metric")
    return numbers


def _mean(parts: Sequence[Clusters]) -> float:
    """The mean of the means of strata."""
    return sum(part.mean for part in parts) / len(parts)


def _drawn_means(parts: Sequence[Clusters], resamples: int, seed: int) -> Float64[np.ndarray, " resamples"]:
    """Means of resampled clusters: every stratum is drawn by itself, as often as it has clusters."""
    means = np.zeros(resamples)
    for place, part in enumerate(parts):
        dice = Dice("bootstrap", seed, *([place] if place else []))
        means += np.concatenate(list(_bootstrap(part, resamples, dice)))
    return means / len(parts)


def _bootstrap(grouped: Clusters, resamples: int, dice: Dice) -> Iterator[Float64[np.ndarray, " rows"]]:
    """Means of one stratum, a portion at a time."""
    size = len(grouped.sums)
    for rows in _portions(resamples, size):
        drawn = (dice.array(rows * size) * size).astype(np.int64).reshape(rows, size)
        yield grouped.sums[drawn].sum(1) / grouped.counts[drawn].sum(1)


def _portions(resamples: int, size: int) -> Iterator[int]:
    step = max(1, _AT_ONCE // size)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)


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


def _all_signs(count: int) -> Float64[np.ndarray, "all count"]:
    return 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
