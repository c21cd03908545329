"""The logarithmic map of Schwartz 1977: each half of the visual field onto the sheet of cortex that sees it, and back.

With z = x + i y in degrees, x counted away from the vertical meridian, the half field is laid out as w = log(z + a):
u = 1/2 ln((x + a)^2 + y^2) and v = atan2(y, x + a). Taken times 17.3 mm and counted from the fovea, with a = 0.75
degrees, distances along the horizontal meridian are those of Horton and Hoyt's magnification. The left half is the
mirror image of the right, and each is seen by the cortex of the other side.

The map is conformal: one magnification in all directions, 17.3 / |z + a| mm/degree, so small shapes keep their shape.
Two things it is often taken for it is not. u = log(r + a), v = theta is not conformal: at r = a/2 it stretches three
times more around the gaze than away from it. And zooming or turning the image about the gaze shifts the sheet exactly
only for a = 0, where the fovea is infinitely large; with a > 0 that holds far from the gaze alone.

Off the horizontal meridian |z + a| is less than e + a, so that the sheet is somewhat larger here than by a
magnification that depends on eccentricity alone. Both are models.
"""

import math

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from homunculus.biology.cortex import E0, M_E0


def to_cortex(
    x: Float64[Tensor, "*n"], y: Float64[Tensor, "*n"], a: float = E0, scale: float = M_E0
) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"], Bool[Tensor, "*n"]]:
    """Millimetres away from the fovea, millimetres above the horizontal meridian, and whether it is the right field.

    `x` is in degrees to the right of the gaze, `y` above it. The vertical meridian, x = 0, counts to the right field;
    both halves give it the same place.

    >>> u, v, right = to_cortex(*torch.tensor([[0.0, 2.0, -2.0], [0.0, 0.0, 0.0]]).double())
    >>> u, right.tolist()
    (tensor([ 0.0000, 22.4776, 22.4776], dtype=torch.float64), [True, True, False])
    """
    # ln|z + a| - ln a by log1p: without it, places near the fovea lose half of their digits.
    away = x.abs()
    u = 0.5 * torch.log1p((away * (away + 2 * a) + y * y) / (a * a))
    return scale * u, scale * torch.atan2(y, away + a), x >= 0


def from_cortex(
    u: Float64[Tensor, "*n"],
    v: Float64[Tensor, "*n"],
    right: Bool[Tensor, "*n"],
    a: float = E0,
    scale: float = M_E0,
) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
    """Degrees to the right of the gaze and above it: the inverse of `to_cortex`.

    A place on the sheet beyond the vertical meridian would look across it: see `on_cortex`.

    >>> u, v, right = torch.tensor([22.4776]).double(), torch.zeros(1).double(), torch.tensor([False])
    >>> from_cortex(u, v, right)[0]
    tensor([-2.0000], dtype=torch.float64)
    """
    grown = a * torch.expm1(u / scale)  # |z + a| - a
    angle = v / scale
    # (|z + a|) cos - a, in a form that keeps its digits where both are small
    away = grown * angle.cos() - 2 * a * (angle / 2).sin() ** 2
    return torch.where(right, away, -away), (grown + a) * angle.sin()


def on_cortex(
    u: Float64[Tensor, "*n"], v: Float64[Tensor, "*n"], a: float = E0, scale: float = M_E0
) -> Bool[Tensor, "*n"]:
    """Whether a place of the plane (in mm) lies on the sheet: within the image of one half of the field.

    >>> on_cortex(*torch.tensor([[10.0, 10.0], [0.0, 20.0]]).double()).tolist()
    [True, False]
    """
    angle = v / scale
    return (angle.abs() < math.pi / 2) & ((u / scale).exp() * angle.cos() >= 1)
