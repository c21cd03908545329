"""How often chance alone would show as much of a difference: signs of whole clusters flipped, and Holm's rule (1979).

If two methods were alike, each cluster's difference might as well have the other sign. Answers are right or wrong, so
clusters add up to whole numbers, and how likely each of their sums is follows without drawing any signs.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from jaxtyping import Float64

from homunculus.data.dice import Dice
from homunculus.eval.clusters import RESAMPLES, Clusters, group_by_stratum, portions

_NEVER = 1e-20  # a probability that adds nothing to a p-value that is printed
_TOO_MANY = 1 << 21  # sums of strata that are held in memory


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
    how likely each sum is. Otherwise they are where there are no more of them than resamples; else they are drawn, and
    the p-value counts the observed ones among them, so that it is never 0.

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
    observed = _about(abs(every.sum()))
    if 2 ** len(sums) <= resamples:
        return float((np.abs(_all_signs(len(sums)) @ sums) >= observed).mean())
    dice = Dice("sign flip", seed)
    as_large = 0
    for rows in portions(resamples, len(sums)):
        signs = np.where(dice.array(rows * len(sums)) < 0.5, -1.0, 1.0).reshape(rows, -1)
        as_large += int((np.abs(signs @ sums) >= observed).sum())
    return (1 + as_large) / (1 + resamples)


def _about(value: float) -> float:
    """Sums in another order differ in last bits."""
    return value * (1 - 1e-9)


def _all_signs_of_whole(parts: Sequence[Clusters]) -> float | None:
    """The share of all signs that give as large a mean of strata; None where sums are not whole or too many differ."""
    by_count: dict[float, list[int]] = {}  # strata of as many questions add up as one
    observed = 0.0
    for part in parts:
        if (part.sums != np.rint(part.sums)).any():
            return None
        own = by_count.setdefault(part.counts.sum(), [])
        own += np.abs(part.sums[part.sums != 0]).astype(int).tolist()
        observed += part.sums.sum() / part.counts.sum()
    each = [_signed_sums(steps, count) for count, steps in by_count.items()]
    each.sort(key=lambda own: len(own[0]))
    if prod(len(values) for values, _ in each[:-1]) > _TOO_MANY:
        return None
    means, likely = np.zeros(1), np.ones(1)
    for values, chances in each[:-1]:
        means, likely = np.add.outer(means, values).ravel(), np.multiply.outer(likely, chances).ravel()
    values, chances = each[-1]
    or_more = np.append(np.cumsum(chances[::-1])[::-1], 0.0)
    beyond = sum(  # signs of the others as they are, and of these such that together they are as large or as small
        float(likely @ or_more[np.searchsorted(values, _about(abs(observed)) - way * means)]) for way in (1, -1)
    )
    flips = sum(len(steps) for steps in by_count.values())
    return min(1.0, max(beyond, 2.0 ** (1 - flips))) if observed else 1.0  # the signs as they are, and all turned


def _signed_sums(
    steps: Sequence[int], count: float
) -> tuple[Float64[np.ndarray, " sums"], Float64[np.ndarray, " sums"]]:
    """Every sum of these whole numbers with random signs, over a count, and how likely it is.

    >>> values, chances = _signed_sums([1, 2], 1.0)
    >>> values.tolist(), chances.tolist()
    ([-3.0, -1.0, 1.0, 3.0], [0.25, 0.25, 0.25, 0.25])
    """
    total = sum(steps)
    likely = np.ones(1)
    for step in steps:
        wider = np.zeros(len(likely) + 2 * step)
        wider[: len(likely)] += likely / 2
        wider[2 * step :] += likely / 2
        likely = wider
    kept = likely > _NEVER
    return (np.arange(-total, total + 1)[kept]) / count, likely[kept]


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
