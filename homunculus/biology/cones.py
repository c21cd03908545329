"""How densely cones stand in the human retina, by eccentricity: a table, interpolated.

Means over eight retinas (Curcio, Sloan, Kalina and Hendrickson 1990), in thousands per square millimetre, along the
nasal and the temporal half of the horizontal meridian and along the vertical one (the mean of above and below). The
peak differs threefold between people: its mean is 199 thousand, its range 100 to 324 thousand. The table's 197 is the
mean of densities at one place, and so a little lower than the mean of peaks. The gap in the nasal column is the optic
disc. A millimetre is 3.57 degrees near the fovea (their 0.350 mm are 1.25 degrees).
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.errors import HomunculusError

# To 36 degrees. Farther out a degree is shorter: by the table 3 % at 40, 11 % at 55 and 20 % at 63.
MM_PER_DEGREE = 0.28

# mm, degrees, then thousands of cones per mm^2: nasal, temporal, vertical
TABLE = (
    (0.0, 0.0, 196.9, 196.9, 196.9),
    (0.05, 0.179, 154.4, 162.4, 143.2),
    (0.10, 0.357, 115.4, 121.6, 106.2),
    (0.15, 0.536, 93.0, 98.4, 84.4),
    (0.20, 0.714, 74.2, 80.0, 66.9),
    (0.30, 1.07, 53.4, 57.7, 48.9),
    (0.40, 1.43, 43.0, 45.4, 37.6),
    (0.50, 1.79, 36.5, 38.4, 30.2),
    (0.60, 2.14, 31.5, 34.2, 26.3),
    (0.70, 2.50, 26.1, 29.0, 22.9),
    (0.80, 2.86, 23.9, 24.1, 20.6),
    (0.90, 3.21, 22.3, 21.2, 18.3),
    (1.00, 3.57, 21.0, 19.7, 16.4),
    (1.99, 7.14, 12.5, 11.7, 10.3),
    (2.99, 10.7, 8.85, 9.12, 7.62),
    (3.98, 14.3, math.nan, 7.03, 6.07),
    (4.98, 17.9, 7.18, 5.79, 5.42),
    (5.97, 21.4, 6.65, 5.10, 4.93),
    (6.97, 25.0, 6.41, 4.78, 4.64),
    (7.96, 28.6, 6.23, 4.48, 4.40),
    (8.96, 32.1, 5.96, 4.21, 4.21),
    (9.95, 35.7, 5.61, 3.89, 4.13),
    (11.9, 42.9, 5.14, 3.54, 3.82),
    (13.9, 50.8, 4.89, 3.37, 3.78),
    (15.9, 58.8, 4.73, 3.18, 3.70),
    (17.9, 67.7, 4.72, 3.36, 3.73),
)
MERIDIANS = ("mean", "nasal", "temporal", "vertical")


@lru_cache(maxsize=4)
def _columns(meridian: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Degrees and cones per mm^2 of the rows that have a value; the mean gives every quarter turn the same weight."""
    if meridian not in MERIDIANS:
        raise HomunculusError(f"no meridian of the retina is called '{meridian}': choose from {', '.join(MERIDIANS)}")
    nasal = [row[2] for row in TABLE]
    disc = next(i for i, value in enumerate(nasal) if math.isnan(value))
    around = math.sqrt(nasal[disc - 1] * nasal[disc + 1])  # in the mean, the optic disc makes no dent
    known = []
    for _, e, n, t, v in TABLE:
        mean = ((around if math.isnan(n) else n) + t + 2 * v) / 4
        value = dict(zip(MERIDIANS, (mean, n, t, v), strict=True))[meridian]
        if not math.isnan(value):
            known.append((e, 1000 * value))
    return tuple(e for e, _ in known), tuple(value for _, value in known)


def cone_density(e: Float64[Tensor, "*n"], meridian: str = "mean") -> Float64[Tensor, "*n"]:
    """Cones per square millimetre of retina at eccentricity e in degrees; NaN beyond the table, which ends at 67.7.

    Interpolated in straight lines of log density against log(e + c), c the table's first step: the centre has a
    place, and farther out this is log against log.

    >>> cone_density(torch.tensor([0.0, 1.07, 25.0]).double()).round()
    tensor([196900.,  52225.,   5118.], dtype=torch.float64)
    """
    degrees, values = (torch.tensor(column, dtype=e.dtype, device=e.device) for column in _columns(meridian))
    first = degrees[1]
    place, height = (degrees + first).log(), values.log()
    at = (e.clamp(min=0) + first).log()
    right = torch.searchsorted(place, at.contiguous()).clamp(1, len(place) - 1)
    share = (at - place[right - 1]) / (place[right] - place[right - 1])
    found = torch.lerp(height[right - 1], height[right], share).exp()
    return torch.where((e >= 0) & (e <= degrees[-1]), found, torch.nan)


def cone_spacing(e: Float64[Tensor, "*n"], meridian: str = "mean") -> Float64[Tensor, "*n"]:
    """From one cone to the next in degrees, were they packed in hexagons, at 0.28 mm for a degree everywhere.

    Beyond 36 degrees that is too little: 3 % at 40, 20 % where the table ends. `cone_limit` is too high by as much.

    >>> (cone_spacing(torch.tensor([0.0, 10.7]).double()) * 60).round(decimals=2)
    tensor([0.5200, 2.5300], dtype=torch.float64)
    """
    return (2 / (math.sqrt(3) * cone_density(e, meridian))).sqrt() / MM_PER_DEGREE


def cone_limit(e: Float64[Tensor, "*n"], meridian: str = "mean") -> Float64[Tensor, "*n"]:
    """The finest grating that hexagons of cones can carry, in cycles per degree: their Nyquist limit.

    >>> cone_limit(torch.tensor([0.0]).double()).round()
    tensor([67.], dtype=torch.float64)
    """
    return 1 / (math.sqrt(3) * cone_spacing(e, meridian))
