"""Where a token is, as rotations: (level, x, y) of a cell and the place t of a word, each on frequencies of its own.

A cell's centre is in leaves, so a token means the same place at every budget and for every allocator, and two tokens
attend by how far they are apart, in space and in scale. Text lies at (0, 0, 0, t), cells at t = 0.

Two other ways to say where cells are stand beside it, to be compared (bench/ablations.py): (x, y) alone, the level
being an embedding then, and (log rho, theta) about the gaze. They divide the channels of level, x and y anew and leave
those of t alone, so that text is turned alike in all of them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SHORTEST = 4.0  # a quarter turn from one leaf to the next


class Axis(NamedTuple):
    share: float  # of the rotated pairs
    longest: float  # wavelength, in units of the axis
    shortest: float = SHORTEST
    circle: bool = False  # an angle: once, twice, three times ... around, so that a whole turn is none


# Images are up to 256 leaves a side and cells up to some seven levels; answers up to 160 letters.
TEXT = Axis(1 / 4, 1024.0)
AXES = (Axis(1 / 8, 16.0), Axis(5 / 16, 1024.0), Axis(5 / 16, 1024.0), TEXT)
X_Y = (Axis(3 / 8, 1024.0), Axis(3 / 8, 1024.0), TEXT)
# Twelve times around the circle is 0.755 octaves to a wave outwards: the finest pairs see squares, as x and y do.
LOG_POLAR = (Axis(3 / 8, 32.0, shortest=0.75), Axis(3 / 8, math.tau, circle=True), TEXT)
SEQUENCE = (Axis(1.0, 1024.0),)
NEAREST = 0.5  # leaves: whatever is nearer to the gaze is as near


class Turns(NamedTuple):
    """Cosines and sines for every token and pair of channels, the same for all heads."""

    cos: Float[Tensor, "b 1 t pairs"]
    sin: Float[Tensor, "b 1 t pairs"]

    def rotate(self, x: Float[Tensor, "b heads t d"]) -> Float[Tensor, "b heads t d"]:
        first, second = x.float().chunk(2, dim=-1)
        turned = (first * self.cos - second * self.sin, first * self.sin + second * self.cos)
        return torch.cat(turned, dim=-1).to(x.dtype)


def turns(places: Float[Tensor, "b t axes"], head: int, axes: tuple[Axis, ...] | None = None) -> Turns:
    """How far each token is turned, for heads of `head` channels. `places` has the four axes, or one for sequences, or
    those that are given.

    >>> turns(torch.zeros(1, 5, 4), 64).cos.shape
    torch.Size([1, 1, 5, 32])
    """
    if axes is None:
        axes = AXES if places.shape[-1] == len(AXES) else SEQUENCE
    parts = zip(places.float().split(1, dim=-1), axes, _counts(axes, head // 2), strict=True)
    angles = torch.cat([place * _speeds(axis, count, places.device) for place, axis, count in parts], dim=-1)
    return Turns(angles.cos()[:, None], angles.sin()[:, None])


# ----------------------------------------------------------------------------------------------------- where cells are


def by_level_x_y(places: Float[Tensor, "b n 4"], head: int) -> Turns:
    """Turned by level, x and y: the way of the model we ship."""
    return turns(places, head)


def by_x_y(places: Float[Tensor, "b n 4"], head: int) -> Turns:
    """Turned by x and y alone; the encoder learns an embedding of the level."""
    return turns(places[..., 1:], head, X_Y)


def by_log_polar(places: Float[Tensor, "b n 4"], head: int) -> Turns:
    """Turned by the logarithm of the distance from the gaze and the angle about it."""
    return turns(log_polar(places), head, LOG_POLAR)


def log_polar(places: Float[Tensor, "b n 4"]) -> Float[Tensor, "b n 3"]:
    """Cells about the gaze: log2 of rho in leaves, theta in radians (clockwise, as y is down), and t.

    theta jumps by a whole turn at the left of the gaze. What is made of it does not: pairs turn a whole number of times
    around the circle, and cosine and sine of those are the same on both sides. At the gaze itself no angle is defined,
    and rho is taken as half a leaf; a cell there has the angle 0.

    >>> log_polar(torch.tensor([[[0.0, 1, 3, 0], [0, 5, 3, 0], [0, 3, 1, 0], [0, 3, 5, 0]]]))[0, :, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    x, y = (places[..., 1:3].float() - gaze_of(places)).unbind(-1)
    return torch.stack((torch.hypot(x, y).clamp_min(NEAREST).log2(), torch.atan2(y, x), places[..., 3].float()), dim=-1)


def gaze_of(places: Float[Tensor, "b n 4"]) -> Float[Tensor, "b 1 2"]:
    """The gaze, in leaves, as the cells tell of it: their centre, each weighing 16 times as much as one twice as wide.

    Cells are finest where the density is highest, be it by a fixation or by relevance, so nothing else need be known:
    not the density, of which a reader is not always told, nor who chose. On a page a fixation is found to within a leaf
    (tests/model/test_rotary.py). Padding, which lies at 0, 0, does not count.

    >>> gaze_of(torch.tensor([[[1.0, 1, 1, 0], [0, 6.5, 4.5, 0], [0, 7.5, 4.5, 0]]]))
    tensor([[[6.8182, 4.3939]]])
    """
    level, centers = places[..., :1].float(), places[..., 1:3].float()
    dense = torch.exp2(-4 * level) * (centers != 0).any(-1, keepdim=True)
    return (dense * centers).sum(1, keepdim=True) / dense.sum(1, keepdim=True).clamp_min(1e-9)


POSITIONS: dict[str, Callable[[Float[Tensor, "b n 4"], int], Turns]] = {
    "level-x-y": by_level_x_y,
    "placed": by_level_x_y,  # and the encoder is told x and y: turns alone tell it only how cells lie to each other
    "embedded-level": by_x_y,
    "log-polar": by_log_polar,
}


def _counts(axes: tuple[Axis, ...], pairs: int) -> list[int]:
    """How many pairs of channels turn with each axis; the second one gets what rounding leaves over."""
    counts = [max(1, round(axis.share * pairs)) for axis in axes]
    counts[min(1, len(axes) - 1)] += pairs - sum(counts)
    return counts


def _speeds(axis: Axis, count: int, device: torch.device) -> Float[Tensor, "count"]:
    """Radians for a unit of the axis; made where they are used: a copy would wait for the device."""
    if axis.circle:
        return torch.arange(1, count + 1, dtype=torch.float32, device=device)
    waves = torch.linspace(math.log2(axis.shortest), math.log2(axis.longest), count, dtype=torch.float64, device=device)
    return (2 * torch.pi / waves.exp2()).float()
