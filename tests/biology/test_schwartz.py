"""The logarithmic map: exactly there and back, conformal, and what zoom does to it."""

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.biology.cortex import E0, M_E0, cortical_area, magnification
from homunculus.biology.schwartz import from_cortex, on_cortex, to_cortex

degrees = st.floats(-90, 90) | st.sampled_from([0.0, -0.0, 1e-9, -1e-9, 1e-300])


def at(*values):
    return torch.tensor(values, dtype=torch.float64)


@given(degrees, degrees)
def test_there_and_back(x, y):
    found = from_cortex(*to_cortex(at(x), at(y)))
    size = 1 + math.hypot(x, y)
    assert abs(found[0].item() - x) <= 1e-14 * size and abs(found[1].item() - y) <= 1e-14 * size


@given(st.floats(0, 80), st.floats(-27, 27), st.booleans())
def test_back_and_there(u, v, right):
    u, v, side = at(u), at(v), torch.tensor([right])
    if not bool(on_cortex(u, v)):
        return
    place = from_cortex(u, v, side)
    if place[0].abs().item() < 1e-9:  # on the vertical meridian both halves are right
        return
    found = to_cortex(*place)
    assert found[2].item() == right
    assert found[0].item() == pytest.approx(u.item(), abs=1e-11) and found[1].item() == pytest.approx(
        v.item(), abs=1e-11
    )


@given(st.floats(0, 90), st.floats(-90, 90))
def test_it_is_the_complex_logarithm(x, y):
    w = M_E0 * (cmath.log(complex(x + E0, y)) - math.log(E0))
    for sign in (1, -1):
        u, v, right = to_cortex(at(sign * x), at(y))
        assert u.item() == pytest.approx(w.real, abs=1e-11) and v.item() == pytest.approx(w.imag, abs=1e-11)
        assert right.item() == (sign * x >= 0)


def test_the_vertical_meridian_has_one_place_whichever_half_it_counts_to():
    y = at(-20.0, -1.0, 0.0, 3.0)
    here = to_cortex(torch.zeros(4).double(), y)
    for x in (-1e-12, 1e-12, -0.0):
        beside = to_cortex(torch.full((4,), x).double(), y)
        assert torch.allclose(here[0], beside[0], atol=1e-9) and torch.allclose(here[1], beside[1], atol=1e-9)
    assert here[2].all()
    assert (
        on_cortex(here[0] + 1e-9, here[1]).all() and not on_cortex(here[0][[0, 1, 3]] - 1e-6, here[1][[0, 1, 3]]).any()
    )


@given(st.floats(0.001, 60), st.floats(-60, 60))
def test_one_magnification_in_all_directions(x, y):
    jacobian = torch.autograd.functional.jacobian(lambda p: torch.stack(to_cortex(p[0], p[1])[:2]), at(x, y))
    # Cauchy and Riemann: ux = vy, uy = -vx
    local = M_E0 / math.hypot(x + E0, y)
    assert jacobian[0, 0].item() == pytest.approx(jacobian[1, 1].item(), abs=1e-10)
    assert jacobian[0, 1].item() == pytest.approx(-jacobian[1, 0].item(), abs=1e-10)
    assert jacobian[:, 0].norm().item() == pytest.approx(local, rel=1e-9)


def test_along_the_horizontal_meridian_it_is_horton_and_hoyt():
    x = at(0.0, 0.5, 2.0, 10.0, 40.0).requires_grad_()
    u, _, _ = to_cortex(x, torch.zeros(5).double())
    assert torch.allclose(torch.autograd.grad(u.sum(), x)[0][1:], magnification(x[1:]).detach())
    assert u[-1].item() == pytest.approx(M_E0 * math.log1p(40.0 / E0))


def test_not_the_naive_map():
    """u = log(r + a), v = theta stretches three times more around the gaze than away from it at r = a/2."""
    r = E0 / 2
    around, away = 1 / r, 1 / (r + E0)
    assert around / away == pytest.approx(3)
    # And their sheets differ: the sheet of the conformal map is larger than the law of eccentricity alone gives.
    n = 2000
    x = (torch.arange(n, dtype=torch.float64) + 0.5) / n * 20
    y = x[:, None] - 10
    inside = (x * x + y * y) <= 100
    area = 2 * ((M_E0 / torch.hypot(x + E0, y)) ** 2 * inside).sum() * (20 / n) ** 2
    assert 1.1 < (area / cortical_area(at(10.0))).item() < 1.6


def test_zoom_is_a_shift_only_without_a_fovea():
    x, y = at(1.0, 5.0, 3.0), at(0.0, 2.0, -8.0)

    def shifts(a):
        once, twice = (to_cortex(zoom * x, zoom * y, a, 1.0)[0] for zoom in (1.0, 2.0))
        return twice - once

    assert torch.allclose(shifts(1e-9), torch.full((3,), math.log(2)).double(), atol=1e-8)
    assert shifts(E0).max() - shifts(E0).min() > 0.05
