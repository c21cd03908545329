"""Reading, checking and scaling densities."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.density import as_density, normalise, resample_mass, total_mass, with_floor
from homunculus.errors import DensityError
from tests.strategies import densities


@given(st.data())
def test_mass_is_the_same_alone_in_a_batch_and_mirrored(data):
    h, w = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    density = data.draw(densities((3, h, w)))
    total = total_mass(density)
    assert torch.allclose(total.flatten(), density.sum((1, 2)))
    for image in range(3):
        assert torch.equal(total_mass(density[image : image + 1]), total[image : image + 1])
    for flip in ((1,), (2,), (1, 2)):
        assert torch.equal(total_mass(density.flip(flip)), total)
        assert torch.equal(normalise(density.flip(flip)), normalise(density).flip(flip))


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e-30, 1.0, 1e30, 1e308])
def test_normalise_at_any_scale(scale):
    density = torch.full((1, 8, 8), scale, dtype=torch.float64)
    assert torch.allclose(normalise(density), torch.full_like(density, 1 / 64))


def test_no_mass_means_uniform():
    assert torch.equal(
        normalise(torch.zeros(1, 2, 4, dtype=torch.float64)), torch.full((1, 2, 4), 0.125, dtype=torch.float64)
    )


@given(st.data())
def test_floor_is_reached_and_idempotent(data):
    density = normalise(data.draw(densities((2, 9, 7))))
    floor = data.draw(st.floats(0, 1))
    topped = with_floor(density, floor)
    assert torch.allclose(total_mass(topped), torch.ones(1, dtype=torch.float64))
    assert (topped >= floor / 63 * (1 - 1e-9)).all()
    assert torch.allclose(with_floor(topped, floor), topped, rtol=1e-12, atol=1e-18)


def test_floor_leaves_a_density_that_has_it_alone():
    density = normalise(torch.rand(1, 8, 8, dtype=torch.float64) + 1)
    assert torch.equal(with_floor(density, 0.02), density)


@given(st.data())
def test_resampling_keeps_mass(data):
    side = st.integers(1, 30)
    density = data.draw(densities((2, data.draw(side), data.draw(side)), kind="random"))
    grid = data.draw(side), data.draw(side)
    moved = resample_mass(density, grid)
    assert moved.shape == (2, grid[1], grid[0])
    assert torch.allclose(total_mass(moved), total_mass(density))
    same = resample_mass(density, (density.shape[2], density.shape[1]))
    assert same is density


def test_gradients_of_scaling_and_floor():
    density = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(normalise, density)
    assert torch.autograd.gradcheck(lambda d: with_floor(normalise(d), 0.7), density)
    for flat in (torch.zeros(1, 4, 4), torch.ones(1, 4, 4)):  # where a careless branch would divide by zero
        flat = flat.double().requires_grad_()
        with_floor(normalise(flat), 0.02).square().sum().backward()
        assert flat.grad.isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, -1e-30])
def test_bad_values_are_named_with_their_place(value):
    density = torch.ones(2, 4, 5)
    density[1, 2, 3] = value
    with pytest.raises(DensityError, match="image 1, row 2, column 3: every value must be finite and at least 0"):
        as_density(density)


def test_bad_shapes():
    with pytest.raises(DensityError, match=r"\[h, w\] or \[B, h, w\]"):
        as_density(torch.ones(4))
    with pytest.raises(DensityError, match="not empty"):
        as_density(np.zeros((0, 4)))
    with pytest.raises(DensityError, match="cannot read a density from str"):
        as_density("everything")
    for odd in (torch.eye(4).to_sparse(), torch.ones(4, 4, dtype=torch.complex64), torch.ones(4, 4, device="meta")):
        with pytest.raises(DensityError, match="give a dense real map"):
            as_density(odd)
    with pytest.raises(DensityError, match="2 density maps for 3 images"):
        as_density(torch.ones(2, 4, 4), batch=3)
    assert as_density([[0, 1]], batch=3).shape == (3, 1, 2)
