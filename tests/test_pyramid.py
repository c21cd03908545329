"""Pyramids: exact sums, exact reconstruction, energies that add up, and agreement with independent libraries."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from homunculus.kernels import resample
from homunculus.kernels.resample import area_resample, halve
from homunculus.pyramid import (
    ImagePyramid,
    collapse,
    double,
    gaussian_pyramid,
    laplacian_pyramid,
    mass_pyramid,
    pool_blocks,
    region_max,
)
from tests.strategies import densities


@given(st.data())
def test_a_block_never_falls_below_its_parts(data):
    density = data.draw(densities((2, data.draw(st.integers(1, 33)), data.draw(st.integers(1, 33)))))
    for reduce in ("sum", "max"):
        levels = mass_pyramid(density, 5, reduce)
        for fine, coarse in itertools.pairwise(levels):
            parents = double(coarse[:, None], (fine.shape[2], fine.shape[1]))[:, 0]
            assert (parents >= fine).all()


def test_masses_flip_with_the_image():
    density = torch.rand(1, 32, 64, dtype=torch.float64) * 1e-7
    for level, flipped in zip(mass_pyramid(density, 4), mass_pyramid(density.flip(2), 4), strict=True):
        assert torch.equal(level.flip(2), flipped)


def test_odd_sides_are_filled_with_nothing():
    assert pool_blocks(torch.ones(1, 3, 5)).tolist() == [[[4, 4, 2], [2, 2, 1]]]
    assert halve(torch.ones(1, 1, 3, 5)).tolist() == [[[[1, 1, 1], [1, 1, 1]]]]  # averages stay averages


@pytest.mark.parametrize("shape", [(32, 32), (12, 20), (17, 5), (1, 9)])
def test_laplacian_round_trip(shape):
    image = torch.rand(2, 3, *shape, dtype=torch.float64)
    bands = laplacian_pyramid(gaussian_pyramid(image, 4))
    assert torch.allclose(collapse(bands), image, rtol=0, atol=1e-15)


def test_bands_are_orthogonal_and_their_energy_is_the_variance():
    image = torch.rand(1, 1, 64, 64, dtype=torch.float64)
    bands = laplacian_pyramid(gaussian_pyramid(image, 6))
    energy = sum(band.square().sum() * 4**level for level, band in enumerate(bands[:-1]))
    assert torch.isclose(energy, (image - image.mean()).square().sum())
    for band in bands[:-1]:
        assert F.avg_pool2d(band, 2).abs().max() < 1e-15


def test_gradient_flows_through_the_pyramid():
    image = torch.rand(1, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tuple(laplacian_pyramid(gaussian_pyramid(x, 2))), image)


def test_agrees_with_pyrtools():
    """pyrtools' two-tap pyramid averages the same blocks, begun one pixel earlier: it starts at an odd pixel."""
    pyrtools = pytest.importorskip("pyrtools")
    image = np.random.default_rng(0).random((33, 33))
    theirs = pyrtools.pyramids.GaussianPyramid(image, height=2, filter_name=np.array([[0.5], [0.5]])).pyr_coeffs[1, 0]
    ours = halve(torch.from_numpy(image[None, None, 1:, 1:]))[0, 0].numpy()
    assert np.allclose(theirs[1:, 1:], ours)


def test_agrees_with_kornia_where_the_filter_does_not_matter():
    """Any centred smoothing keeps a plane: kornia's Gaussian pyramid and ours agree on it away from the border."""
    transform = pytest.importorskip("kornia.geometry.transform")
    ramp = (torch.arange(64.0)[:, None] * 2 + torch.arange(64.0) * 0.5)[None, None]
    theirs = transform.build_pyramid(ramp, 3)
    for level, (a, b) in enumerate(zip(theirs, gaussian_pyramid(ramp, 2), strict=True)):
        inside = slice(4, -4)
        assert torch.allclose(a[..., inside, inside], b[..., inside, inside], atol=1e-3), level


@given(st.data())
def test_region_max_bounds_the_region(data):
    h, w = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    density = data.draw(densities((1, h, w)))
    levels = mass_pyramid(density, (max(h, w) - 1).bit_length(), reduce="max")
    x0, y0 = data.draw(st.integers(0, w - 1)), data.draw(st.integers(0, h - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, w)), data.draw(st.integers(y0 + 1, h))
    bound = region_max(levels, torch.tensor([[[x0, y0, x1, y1]]], dtype=torch.float64)).item()
    assert bound >= density[0, y0:y1, x0:x1].max()
    reach = 2 * max(x1 - x0, y1 - y0)  # one level finer the box touched three cells: a cell is at most twice its side
    grown = density[0, max(0, y0 - reach) : y1 + reach, max(0, x0 - reach) : x1 + reach]
    assert bound <= grown.max()


def test_region_max_is_exact_on_whole_cells():
    density = torch.rand(2, 16, 16, dtype=torch.float64)
    levels = mass_pyramid(density, 4, reduce="max")
    boxes = torch.tensor([[[4, 8, 8, 12], [0, 0, 16, 16], [3, 5, 4, 6], [8, 0, 16, 8]]]).expand(2, -1, -1).double()
    expected = [[density[b, y0:y1, x0:x1].max() for x0, y0, x1, y1 in boxes[b].int().tolist()] for b in range(2)]
    assert torch.equal(region_max(levels, boxes), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("size", "grid", "leaf"),
    [((160, 128), (10, 8), 16), ((150, 141), (10, 8), 16), ((200, 100), (7, 5), 28), ((64, 64), (3, 2), 32)],
)
def test_image_pyramid_is_the_pyramid_of_the_fitted_image(size, grid, leaf, monkeypatch):
    image = torch.randint(0, 256, (2, 3, size[1], size[0]), dtype=torch.uint8)
    pyramid = ImagePyramid(image, grid, leaf)
    fitted = area_resample(image.float() / 255, pyramid.fitted_size)
    expected = gaussian_pyramid(fitted, max(pyramid.gaussian))
    assert pyramid.gaussian[max(pyramid.gaussian)].shape[2:] == (1, 1)
    for level, found in pyramid.gaussian.items():
        assert torch.allclose(found, expected[level], atol=1e-6), level
    for level, band in enumerate(laplacian_pyramid(expected)[:-1]):
        energy = band.square().mean(1) * 4**level
        cell = pyramid.energy_level(level)
        side = (leaf << cell) >> level
        h, w = (-(-g >> cell) for g in (grid[1], grid[0]))
        padded = F.pad(energy, (0, w * side - energy.shape[2], 0, h * side - energy.shape[1]))
        by_cell = padded.unflatten(1, (h, side)).unflatten(3, (w, side)).sum((2, 4))
        assert torch.allclose(pyramid.energy[level], by_cell, rtol=1e-3, atol=1e-4), level
    monkeypatch.setitem(resample.STRIP_BYTES, "cpu", 40_000)  # the same in strips of a leaf or two
    stripped = ImagePyramid(image, grid, leaf)
    assert all(torch.equal(stripped.gaussian[k], v) for k, v in pyramid.gaussian.items())
    assert all(torch.equal(stripped.energy[k], v) for k, v in pyramid.energy.items())


def test_leaf_energy_is_the_variance_inside_the_leaf():
    image = torch.rand(1, 3, 32, 48)
    pyramid = ImagePyramid(image, (3, 2))
    inside = sum(pyramid.energy[band] for band in range(pyramid.inner_bands))
    leaves = image.unflatten(2, (2, 16)).unflatten(4, (3, 16)).permute(0, 1, 2, 4, 3, 5).flatten(4)
    variance = (leaves - leaves.mean(-1, keepdim=True)).square().sum(-1).mean(1)
    assert torch.allclose(inside, variance, rtol=1e-4)
