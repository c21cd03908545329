"""How often chance alone would show as much of a difference: signs of whole clusters flipped, and Holm's rule (1979).

If two methods were alike, each cluster's difference might as well have the other sign. Answers are right or wrong, so
clusters add up to whole numbers, and how likely each of their sums is follows without drawing any signs.
"""

from collections.abc import Sequence
from math import lcm, prod
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from homunculus.data.dice import Dice
from homunculus.eval.clusters import RESAMPLES, Clusters, group_by_stratum, portions

_TOO_MANY = 1 << 21  # sums of strata that are held in memory
_TOO_LONG = 1 << 27  # additions that take longer than draws
_LARGEST = 1 << 62  # whole number
_NEVER = 1e-20  # sums that are less likely are left out where there are too many of them
_LEAST = 1e-12  # all that are left out are less likely together, and p is never below it then


def sign_flip(
    differences: Any,
    clusters: Sequence[Any] | None = None,
    *,
    strata: Sequence[Any] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> float:
    """The two-sided p-value of a mean difference: how often random signs of the clusters give one as large.

    Where clusters add up to whole numbers, as questions that are right or wrong do, all signs are tried, by adding up
    how likely each sum is, unless strata of many different sizes make too many sums. Otherwise they are where there are
    no more of them than resamples; else they are drawn, and the p-value counts the observed ones among them. It is
    never 0.

    >>> sign_flip([1, 1, 1]), sign_flip([1, -1, 1, -1]), sign_flip([0, 0])
    (0.25, 1.0, 1.0)
    >>> sign_flip([1] * 60) == 2.0**-59  # however many there are
    True
    """
    parts = group_by_stratum(differences, clusters, strata)
    exact = _all_signs_of_whole(parts)
    if exact is not None:
        return exact
    every = np.concatenate([part.sums / part.counts.sum() for part in parts])  # what each adds to its stratum's mean
    sums = np.abs(every[every != 0])  # a sign of nothing changes nothing
    observed = abs(every.sum()) - 1e-12 * sums.sum()  # sums in another order differ in last bits
    if 2 ** len(sums) <= resamples:
        return float((np.abs(_all_signs(len(sums)) @ sums) >= observed).mean())
    dice = Dice("sign flip", seed)
    as_large = 0
    for rows in portions(resamples, len(sums)):
        signs = np.where(dice.array(rows * len(sums)) < 0.5, -1.0, 1.0).reshape(rows, -1)
        as_large += int((np.abs(signs @ sums) >= observed).sum())
    return (1 + as_large) / (1 + resamples)


def _all_signs_of_whole(parts: Sequence[Clusters]) -> float | None:
    """The share of all signs that give as large a mean of strata; None where sums are not whole or too many differ."""
    steps = [np.abs(part.sums[part.sums != 0]) for part in parts]
    work = sum(len(own) * own.sum() for own in steps)
    if work > _TOO_LONG or any((part.sums != np.rint(part.sums)).any() for part in parts):
        return None
    by_count: dict[int, list[int]] = {}  # strata of as many questions add up as one
    for part, own in zip(parts, steps, strict=True):
        by_count.setdefault(int(part.counts.sum()), []).extend(own.astype(int).tolist())
    common = lcm(*by_count)  # means over it are whole again, so that equal ones are equal
    observed = abs(sum(int(part.sums.sum()) * (common // int(part.counts.sum())) for part in parts))
    if common * sum(map(sum, by_count.values())) > _LARGEST:
        return None
    if observed == 0:
        return 1.0
    each = [(*_signed_sums(own), common // count) for count, own in by_count.items()]
    surely = 2.0 ** max(1 - sum(map(len, by_count.values())), -1022)  # the signs as they are, and all turned
    if prod(len(sums) for sums, *_ in each) > _TOO_MANY * max(len(sums) for sums, *_ in each):
        each = [(sums[likely > _NEVER], likely[likely > _NEVER], weight) for sums, likely, weight in each]
        surely = max(surely, _LEAST)
    each.sort(key=lambda own: len(own[0]))
    if prod(len(sums) for sums, *_ in each[:-1]) > _TOO_MANY:
        return None
    means, likely = np.zeros(1, dtype=np.int64), np.ones(1)
    for sums, chances, weight in each[:-1]:
        means, likely = np.add.outer(means, weight * sums).ravel(), np.multiply.outer(likely, chances).ravel()
    sums, chances, weight = each[-1]
    or_more = np.append(np.cumsum(chances[::-1])[::-1], 0.0)
    beyond = 2 * float(likely @ or_more[np.searchsorted(weight * sums, observed - means)])  # as far below as above
    return min(1.0, max(beyond, surely))


def _signed_sums(steps: Sequence[int]) -> tuple[Int64[np.ndarray, " sums"], Float64[np.ndarray, " sums"]]:
    """Every sum of these whole numbers with random signs, and how likely it is.

    >>> sums, chances = _signed_sums([1, 2])
    >>> sums.tolist(), chances.tolist()
    ([-3, -1, 1, 3], [0.25, 0.25, 0.25, 0.25])
    """
    total = sum(steps)
    likely = np.ones(1)
    for step in steps:
        wider = np.zeros(len(likely) + 2 * step)
        wider[: len(likely)] += likely / 2
        wider[2 * step :] += likely / 2
        likely = wider
    there = likely > 0
    return np.arange(-total, total + 1)[there], likely[there]


def _all_signs(count: int) -> Float64[np.ndarray, "all count"]:
    return 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)


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
