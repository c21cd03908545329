"""Cortical magnification and area against published values and against sums."""

import inspect
import math

import pytest
import torch

from homunculus.allocation.cortex import v1
from homunculus.allocation.rings import acuity_bins
from homunculus.biology import acuity, field
from homunculus.biology.cortex import E0, FITS, HORTON_HOYT, M_E0, cortical_area, cortical_share, magnification


def at(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("e", "published", "digits"),
    [(0, 23.1, 1), (2, 6.29, 2), (5, 3.01, 2), (10, 1.61, 2), (20, 0.83, 2), (40, 0.42, 2)],
)
def test_magnification_of_horton_and_hoyt(e, published, digits):
    assert round(magnification(at(e)).item(), digits) == published


def test_other_fits_are_near_and_not_the_same():
    """E2 0.83 and 0.785 degrees, M0 18.5 and 22.5 mm/degree: the review of Strasburger and others 2011."""
    assert [(round(fit.e2, 3), round(fit.m0, 1)) for fit in FITS] == [(0.75, 23.1), (0.831, 18.5), (0.785, 22.5)]
    e = torch.logspace(-1, 1.6, 50, dtype=torch.float64)
    curves = torch.stack([magnification(e, fit.e2, fit.scale) for fit in FITS])
    assert (curves.amax(0) / curves.amin(0)).max() < 1.3
    for fit in FITS:
        halved = magnification(at(0, fit.e2), fit.e2, fit.scale)
        assert halved[0].item() == pytest.approx(fit.m0) and (halved[1] / halved[0]).item() == pytest.approx(0.5)
    assert HORTON_HOYT.scale == pytest.approx(M_E0)


@pytest.mark.parametrize(("e", "share"), [(1, 0.0725), (2, 0.150), (2.78, 0.200), (10, 0.455), (15, 0.55)])
def test_shares_of_the_cortex(e, share):
    assert cortical_share(at(e)).item() == pytest.approx(share, abs=0.0005)


def test_area_is_the_integral_with_its_factor_e():
    e = (torch.arange(90_000, dtype=torch.float64) + 0.5) / 1000
    squared = magnification(e) ** 2
    right, wrong = (2 * math.pi * e * squared).cumsum(0) / 1000, squared.cumsum(0)
    for degrees in (1, 10, 90):
        assert cortical_area(at(degrees)).item() == pytest.approx(right[degrees * 1000 - 1].item(), rel=1e-5)
    assert (wrong[999] / wrong[-1]).item() == pytest.approx(0.576, abs=0.001)  # the figure often copied


def test_allocators_take_their_constants_from_here():
    assert inspect.signature(v1).parameters["e0"].default == E0 == 0.75
    assert inspect.signature(v1).parameters["degrees"].default == field.DEGREES
    assert inspect.signature(acuity_bins).parameters["e2"].default == acuity.E2 == 2.3
