"""Where a token is, as rotations: (level, x, y) of a cell and the place t of a word, each on frequencies of its own.

A cell's centre is in leaves, so a token means the same place at every budget and for every allocator, and two tokens
attend by how far they are apart, in space and in scale. Text lies at (0, 0, 0, t), cells at t = 0.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Axis(NamedTuple):
    share: float  # of the rotated pairs
    longest: float  # wavelength, in units of the axis


# Images are up to 256 leaves a side and cells up to some seven levels; answers up to 160 letters.
AXES = (Axis(1 / 8, 16.0), Axis(5 / 16, 1024.0), Axis(5 / 16, 1024.0), Axis(1 / 4, 1024.0))
SEQUENCE = (Axis(1.0, 1024.0),)
SHORTEST = 4.0  # a quarter turn from one leaf to the next


class Turns(NamedTuple):
    """Cosines and sines for every token and pair of channels, the same for all heads."""

    cos: Float[Tensor, "b 1 t pairs"]
    sin: Float[Tensor, "b 1 t pairs"]

    def rotate(self, x: Float[Tensor, "b heads t d"]) -> Float[Tensor, "b heads t d"]:
        first, second = x.float().chunk(2, dim=-1)
        turned = (first * self.cos - second * self.sin, first * self.sin + second * self.cos)
        return torch.cat(turned, dim=-1).to(x.dtype)


def turns(places: Float[Tensor, "b t axes"], head: int) -> Turns:
    """How far each token is turned, for heads of `head` channels. `places` has the four axes, or one for sequences.

    >>> turns(torch.zeros(1, 5, 4), 64).cos.shape
    torch.Size([1, 1, 5, 32])
    """
    axes = AXES if places.shape[-1] == len(AXES) else SEQUENCE
    parts = zip(places.float().split(1, dim=-1), axes, _counts(axes, head // 2), strict=True)
    angles = torch.cat([place * _speeds(axis, count, places.device) for place, axis, count in parts], dim=-1)
    return Turns(angles.cos()[:, None], angles.sin()[:, None])


def _counts(axes: tuple[Axis, ...], pairs: int) -> list[int]:
    """How many pairs of channels turn with each axis; x gets what rounding leaves over."""
    counts = [max(1, round(axis.share * pairs)) for axis in axes]
    counts[min(1, len(axes) - 1)] += pairs - sum(counts)
    return counts


def _speeds(axis: Axis, count: int, device: torch.device) -> Float[Tensor, "count"]:
    """Radians for a unit of the axis, fast to slow; made where they are used: a copy would wait for the device."""
    waves = torch.linspace(math.log2(SHORTEST), math.log2(axis.longest), count, dtype=torch.float64, device=device)
    return (2 * torch.pi / waves.exp2()).float()
