"""How much visual cortex looks at one degree of the visual field, and how much at a disc around the gaze.

Linear magnification falls as M(e) = M0 E2 / (e + E2) with eccentricity e: at E2 it is half of what it is at the centre
of the gaze. The constants are fits to lesions (Horton and Hoyt 1991) or to functional imaging, and they differ; there
is no one true pair. Area goes with the square: the cortex that sees the disc of radius E is the integral of 2 pi e M^2.
To leave out the factor e, the circumference that grows with e, is a mistake often copied: it gives the central degree
58 % of the cortex instead of 7 %.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

WHOLE_FIELD = 90.0  # degrees: how far out cortical shares are counted


@dataclass(frozen=True)
class Fit:
    """A published pair: magnification at the centre of the gaze in mm/degree, and where it has fallen to half."""

    source: str
    m0: float
    e2: float

    @property
    def scale(self) -> float:
        """M0 times E2, in mm: M(e) far from the centre is scale / e."""
        return self.m0 * self.e2


# M0 and E2 as collected in the review of Strasburger, Rentschler and Juettner 2011. Horton and Hoyt give M0 E2 itself.
M_E0 = 17.3  # mm
E0 = 0.75  # degrees
HORTON_HOYT = Fit("Horton and Hoyt 1991", M_E0 / E0, E0)
FITS = (HORTON_HOYT, Fit("Duncan and Boynton 2003", 18.5, 0.831), Fit("Larsson and Heeger 2006", 22.5, 0.785))


def magnification(e: Float64[Tensor, "*n"], e0: float = E0, scale: float = M_E0) -> Float64[Tensor, "*n"]:
    """Millimetres of cortex for one degree of the visual field, at eccentricity e in degrees.

    >>> magnification(torch.tensor([0.0, 2.0, 10.0]).double())
    tensor([23.0667,  6.2909,  1.6093], dtype=torch.float64)
    """
    return scale / (e + e0)


def cortical_area(e: Float64[Tensor, "*n"], e0: float = E0, scale: float = M_E0) -> Float64[Tensor, "*n"]:
    """Square millimetres of cortex (both halves) that see the disc of radius e degrees: the integral of 2 pi e M^2.

    >>> area = cortical_area(torch.tensor([1.0, 40.0]).double())
    >>> round((area[0] / area[1]).item(), 3)
    0.092
    """
    return 2 * math.pi * scale**2 * (torch.log1p(e / e0) - e / (e + e0))


def cortical_share(e: Float64[Tensor, "*n"], e0: float = E0, whole: float = WHOLE_FIELD) -> Float64[Tensor, "*n"]:
    """The share of the cortex that sees the disc of radius e degrees, of that which sees the `whole` field.

    >>> cortical_share(torch.tensor([1.0, 10.0]).double())
    tensor([0.0725, 0.4554], dtype=torch.float64)
    """
    return cortical_area(e, e0) / cortical_area(e.new_tensor(whole), e0)
