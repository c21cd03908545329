"""How well a map foretells where people look. Pure functions, float64, for many maps of one image at once.

Fixations are cells (column, row) of the map's grid. Definitions, and what happens at the edges of each:

- information gain (Kuemmerer, Wallis and Bethge 2015): mean of log2 p(fixation) - log2 q(fixation) over a baseline q,
  in bits per fixation. A density that is 0 where somebody looked gains minus infinity: give densities a floor.
- AUC (Judd et al. 2009): the chance that a fixated cell has a higher value than any cell of the image, ties counting
  half. All cells are negatives; leaving the fixated ones out, as the original code does, hardly matters among a million
  pixels but would among a thousand cells. A flat map scores one half.
- shuffled AUC (Zhang et al. 2008): the same against the places that were fixated in other images, all of them.
- NSS (Peters et al. 2005): the mean value at fixations of the map scaled to mean 0 and standard deviation 1. A flat map
  scores 0.
- KL, CC, SIM (Bylinskii et al. 2019): two maps. KL is that of the model from the people, in nats, with the benchmark's
  epsilon; CC is Pearson's, and not a number where either map is flat; SIM is the sum of the smaller of two densities.
"""

import numpy as np
from jaxtyping import Float64, Int64

from homunculus.gaze.maps import density

EPSILON = 2.2204e-16  # of the MIT/Tuebingen benchmark


def values_at(
    maps: Float64[np.ndarray, "*maps h w"], cells: Int64[np.ndarray, "n 2"]
) -> Float64[np.ndarray, "*maps n"]:
    """What maps say at some cells.

    >>> values_at(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1, 0], [0, 1]])).tolist()
    [2.0, 3.0]
    """
    return maps[..., cells[:, 1], cells[:, 0]]


def information_gain(
    densities: Float64[np.ndarray, "*maps h w"], baseline: Float64[np.ndarray, "h w"], cells: Int64[np.ndarray, "n 2"]
) -> Float64[np.ndarray, "*maps"]:
    """Bits per fixation that densities know more than a baseline.

    >>> float(information_gain(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]]), np.array([[0, 0]])))
    1.0
    """
    with np.errstate(divide="ignore"):
        gained = np.log2(values_at(densities, cells)) - np.log2(values_at(baseline, cells))
    return np.asarray(gained.mean(-1))


def nss(maps: Float64[np.ndarray, "*maps h w"], cells: Int64[np.ndarray, "n 2"]) -> Float64[np.ndarray, "*maps"]:
    """The mean height at fixations, in standard deviations of the map.

    >>> round(float(nss(np.array([[0.0, 0.0, 0.0, 1.0]]), np.array([[3, 0]]))), 3)
    1.732
    """
    centred = maps - maps.mean((-2, -1), keepdims=True)
    spread = centred.std((-2, -1))
    flat = _flat(maps)
    return np.where(flat, 0.0, values_at(centred, cells).mean(-1) / np.where(flat, 1.0, spread))


def auc(
    maps: Float64[np.ndarray, "*maps h w"],
    cells: Int64[np.ndarray, "n 2"],
    others: Float64[np.ndarray, "h w"] | None = None,
) -> Float64[np.ndarray, "*maps"]:
    """The chance that a fixated cell outranks a cell of the image: any cell, or one drawn by the counts in `others`.

    With the fixations of other images for `others` this is the shuffled AUC.

    >>> ramp = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> float(auc(ramp, np.array([[3, 0]]))), float(auc(np.ones((1, 4)), np.array([[3, 0]])))
    (0.875, 0.5)
    """
    weights = np.ones(maps.shape[-2:]) if others is None else others
    seen = weights.ravel() > 0
    weights = weights.ravel()[seen]
    ranked = []
    for map in maps.reshape(-1, *maps.shape[-2:]):
        negatives = map.ravel()[seen]
        order = np.argsort(negatives, kind="stable")
        total = np.concatenate(([0.0], np.cumsum(weights[order])))
        positives, negatives = values_at(map, cells), negatives[order]
        below = total[np.searchsorted(negatives, positives, "left")]
        up_to = total[np.searchsorted(negatives, positives, "right")]
        ranked.append(((below + up_to) / (2 * total[-1])).mean())
    return np.array(ranked).reshape(maps.shape[:-2])


def kl(maps: Float64[np.ndarray, "*maps h w"], people: Float64[np.ndarray, "h w"]) -> Float64[np.ndarray, "*maps"]:
    """How far densities are from that of people, in nats; 0 is a perfect match.

    >>> round(float(kl(np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]]))), 6)
    0.693147
    """
    model, human = density(maps), density(people)
    return np.asarray((human * np.log(EPSILON + human / (model + EPSILON))).sum((-2, -1)))


def cc(maps: Float64[np.ndarray, "*maps h w"], people: Float64[np.ndarray, "h w"]) -> Float64[np.ndarray, "*maps"]:
    """Pearson's correlation of maps with that of people; not a number where there is nothing to correlate.

    >>> round(float(cc(np.array([[1.0, 2.0]]), np.array([[2.0, 4.0]]))), 9), float(cc(np.ones((1, 2)), np.eye(2)[:1]))
    (1.0, nan)
    """
    model, human = (map - map.mean((-2, -1), keepdims=True) for map in (maps, people))
    flat = _flat(maps) | _flat(people)
    together = (model * human).sum((-2, -1))
    spread = np.sqrt((model**2).sum((-2, -1)) * (human**2).sum((-2, -1)))
    return np.where(flat, np.nan, together / np.where(flat, 1.0, spread))


def sim(maps: Float64[np.ndarray, "*maps h w"], people: Float64[np.ndarray, "h w"]) -> Float64[np.ndarray, "*maps"]:
    """The mass that densities share with that of people, from 0 to 1.

    >>> float(sim(np.array([[1.0, 1.0]]), np.array([[1.0, 0.0]])))
    0.5
    """
    return np.asarray(np.minimum(density(maps), density(people)).sum((-2, -1)))


def _flat(maps: Float64[np.ndarray, "*maps h w"]) -> np.ndarray:
    """Whether a map is the same everywhere but for rounding."""
    low, high = maps.min((-2, -1)), maps.max((-2, -1))
    return np.asarray(high - low <= 1e-12 * np.maximum(np.abs(high), np.abs(low)))
