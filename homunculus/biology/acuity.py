"""Acuity: the minimum angle of resolution, MAR(e) = MAR0 (1 + e / E2), grows in a straight line with eccentricity.

MAR0 is one minute of arc for an eye of 20/20, which then tells 30 cycles apart in a degree: one light and one dark bar
of a minute each. (60 cycles/degree is not 20/20: it is about where the cones of the fovea, sampling, must stop.) E2,
where the angle has doubled, is 2 to 2.5 degrees for letters and gratings; the allocator `acuity-bins` takes 2.3.
"""

from jaxtyping import Float64
from torch import Tensor

MAR0 = 1 / 60  # degrees: 20/20
E2 = 2.3  # degrees


def minimum_angle(e: Float64[Tensor, "*n"], e2: float = E2, mar0: float = MAR0) -> Float64[Tensor, "*n"]:
    """The smallest angle told apart at eccentricity e, in degrees.

    >>> import torch
    >>> minimum_angle(torch.tensor([0.0, 2.3, 23.0], dtype=torch.float64)) * 60
    tensor([ 1.,  2., 11.], dtype=torch.float64)
    """
    return mar0 * (1 + e / e2)


def cutoff(e: Float64[Tensor, "*n"], e2: float = E2, mar0: float = MAR0) -> Float64[Tensor, "*n"]:
    """The finest grating told apart at eccentricity e, in cycles per degree: two minimum angles to a cycle.

    >>> import torch
    >>> cutoff(torch.tensor([0.0, 2.3], dtype=torch.float64))
    tensor([30., 15.], dtype=torch.float64)
    """
    return 1 / (2 * minimum_angle(e, e2, mar0))
