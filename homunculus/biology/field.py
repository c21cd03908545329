"""Degrees of visual angle and pixels, given how wide a field of view the image spans.

An image does not say how large it is seen: the same page spans 40 degrees in the hand and 10 across the room. So the
field of view is always stated, as the angle that the longer side spans, and the other side follows from the pixels.

Convention (pinned by tests/biology/test_field.py): every pixel spans the same angle, in both directions and everywhere.
That is exact for an image bent around the eye. On a flat screen angles are arctangents and a pixel at the border spans
less than one at the centre; over 40 degrees, seen from in front of the middle, the two rules place nothing farther
apart than 0.8 % of the side. The laws of eccentricity differ by more between two people.
"""

import math
from numbers import Real
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from homunculus.errors import FixationError, ImageError

Angle = TypeVar("Angle", float, Tensor)

DEGREES = 40.0  # of the longer side, where nobody says: that of a sheet of A4 held at 41 cm


def check_field(degrees: Any) -> Any:
    """The field of view as it was given, or an error that says what it must be. A tensor is not looked into: that would
    wait for its device.

    >>> check_field(40.0)
    40.0
    """
    number = isinstance(degrees, Real) and not isinstance(degrees, bool)
    if not isinstance(degrees, Tensor) and not (number and 0 < degrees < 360):
        raise ImageError(
            "the field of view is the angle that the longer side spans, above 0 and below 360 degrees, "
            f"got {degrees!r}: {DEGREES:g} is the default"
        )
    return degrees


def pixels_per_degree(size: tuple[int, int], degrees: float = DEGREES) -> float:
    """How many pixels one degree spans, everywhere.

    >>> pixels_per_degree((1024, 768), 40.0)
    25.6
    """
    return max(size) / check_field(degrees)


def to_pixels(angle: Angle, size: tuple[int, int], degrees: float = DEGREES) -> Angle:
    """An angle as a length in pixels.

    >>> round(to_pixels(0.75, (1024, 1024), 40.0), 6)
    19.2
    """
    return angle / check_field(degrees) * max(size)


def to_degrees(length: Angle, size: tuple[int, int], degrees: float = DEGREES) -> Angle:
    """A length in pixels as an angle.

    >>> to_degrees(16.0, (1024, 1024), 40.0)
    0.625
    """
    return length / max(size) * check_field(degrees)


def eccentricity_map(
    gaze: Float[Tensor, "2"], size: tuple[int, int], degrees: float = DEGREES
) -> tuple[Float64[Tensor, "h w"], Float64[Tensor, "h w"]]:
    """Where every pixel's centre lies in the visual field: degrees to the right of the gaze, and degrees above it.

    >>> x, y = eccentricity_map(torch.tensor([2.0, 1.0]), (4, 2), 40.0)
    >>> x[0].tolist(), y[:, 0].tolist()
    ([-15.0, -5.0, 5.0, 15.0], [5.0, -5.0])
    """
    width, height = size
    gaze = check_gaze(gaze, size)
    across = torch.arange(width, dtype=torch.float64, device=gaze.device) + 0.5 - gaze[0]
    down = torch.arange(height, dtype=torch.float64, device=gaze.device) + 0.5 - gaze[1]
    x, y = to_degrees(across, size, degrees), to_degrees(-down, size, degrees)
    return x.expand(height, width), y[:, None].expand(height, width)


def check_gaze(gaze: Float[Tensor, "2"], size: tuple[int, int]) -> Float64[Tensor, "2"]:
    """A place inside the image, in pixels, or an error that says where it must be.

    >>> check_gaze(torch.tensor([2.0, 1.0]), (4, 2)).tolist()
    [2.0, 1.0]
    """
    x, y = gaze.tolist()
    width, height = size
    if not (math.isfinite(x) and math.isfinite(y) and 0 <= x <= width and 0 <= y <= height):
        raise FixationError(
            f"the gaze ({x:g}, {y:g}) is outside the image, which is {width}x{height} pixels: "
            f"need 0 <= x <= {width} and 0 <= y <= {height}"
        )
    return gaze.double()
