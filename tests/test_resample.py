"""Exact area resampling against a pixel-by-pixel definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.kernels import resample
from homunculus.kernels.resample import area_resample, area_taps, strip_rows


def naive(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Each output pixel is the mean of the input over its footprint, by looping over every overlap."""
    h, w = image.shape
    out = np.zeros((height, width))
    for j in range(height):
        for i in range(width):
            x0, x1, y0, y1 = i * w / width, (i + 1) * w / width, j * h / height, (j + 1) * h / height
            for y in range(math.floor(y0), math.ceil(y1)):
                for x in range(math.floor(x0), math.ceil(x1)):
                    overlap = (min(x + 1, x1) - max(x, x0)) * (min(y + 1, y1) - max(y, y0))
                    if overlap > 0 and x < w and y < h:
                        out[j, i] += overlap * image[y, x]
            out[j, i] /= (x1 - x0) * (y1 - y0)
    return out


@pytest.mark.parametrize(
    ("size", "target"), [((7, 5), (3, 4)), ((4, 4), (9, 2)), ((13, 1), (4, 3)), ((6, 8), (3, 4)), ((1, 1), (5, 5))]
)
def test_against_the_definition(size, target):
    image = torch.rand(size[1], size[0], dtype=torch.float64)
    assert np.allclose(area_resample(image, target).numpy(), naive(image.numpy(), *target))


@given(st.integers(1, 50), st.integers(1, 50))
def test_weights_sum_to_one_and_use_every_pixel_equally(n_in, n_out):
    index, weight = area_taps(n_in, n_out)
    assert torch.allclose(weight.sum(1), torch.ones(n_out, dtype=torch.float64))
    use = torch.zeros(n_in, dtype=torch.float64).scatter_add_(0, index.flatten(), weight.flatten())
    assert torch.allclose(use, torch.full((n_in,), n_out / n_in, dtype=torch.float64))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(1, 23), st.integers(1, 23))
def test_nested_averages_compose(gw, gh, factor, w, h):
    image = torch.rand(h, w, dtype=torch.float64)
    fine = area_resample(image, (gw * factor, gh * factor))
    assert torch.allclose(area_resample(fine, (gw, gh)), area_resample(image, (gw, gh)))


def test_constants_and_means_are_kept():
    image = torch.rand(2, 3, 37, 53)
    assert torch.allclose(area_resample(image, (20, 31)).mean((2, 3)), image.mean((2, 3)), atol=1e-6)
    assert torch.allclose(area_resample(torch.full((1, 19, 7), 0.3), (11, 5)), torch.tensor(0.3))


def test_strips_are_parts_of_the_whole(monkeypatch):
    image = torch.randint(0, 256, (1, 3, 100, 70), dtype=torch.uint8)
    whole = area_resample(image, (64, 96))
    monkeypatch.setitem(resample.STRIP_BYTES, "cpu", 20_000)
    strips = strip_rows(image.shape, (64, 96), unit=16)
    assert len(strips) > 2 and strips[0][0] == 0 and strips[-1][1] == 96
    assert torch.equal(torch.cat([area_resample(image, (64, 96), rows) for rows in strips], dim=-2), whole)


def test_same_bits_alone_and_in_a_batch():
    images = torch.rand(5, 3, 33, 47)
    together = area_resample(images, (16, 40))
    assert all(torch.equal(area_resample(images[i : i + 1], (16, 40))[0], together[i]) for i in range(5))


def test_gradient():
    image = torch.rand(1, 5, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: area_resample(x, (4, 9)), image)
