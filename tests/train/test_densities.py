"""Relevance for training: exact where it is true, and wrong as often and as much as it says where it is not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.data.record import relevance_map
from homunculus.errors import DensityError
from homunculus.train import densities
from homunculus.train.densities import BLUR, DISPLACEMENT, DISTRACTED, FALSE, FLOOR, corrupted, true_density

B, GRID = 2000, (24, 16)


@st.composite
def placed(draw):
    """A box inside an image of any size, and a grid over it."""
    size = draw(st.tuples(st.integers(8, 400), st.integers(8, 400)))
    grid = draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    (x0, x1), (y0, y1) = (sorted(draw(st.tuples(*[st.floats(0, side, width=32)] * 2))) for side in size)
    return size, grid, (x0, y0, max(x1, x0 + 0.5), max(y1, y0 + 0.5))


@given(placed())
def test_one_box_covers_what_the_record_says(case):
    size, grid, box = case
    found = true_density(torch.tensor([[box, (0.0, 0, 0, 0)]]), size, grid)
    torch.testing.assert_close(found[0].double(), relevance_map([box], size, grid), atol=2e-5, rtol=0)


def test_boxes_apart_add_up_and_equal_ones_do_not():
    apart = [(3.0, 5.0, 20.0, 30.0), (40.0, 5.0, 61.0, 30.0), (3.0, 33.0, 20.0, 50.0)]
    found = true_density(torch.tensor([apart, [apart[0]] * 3]), (64, 64), (4, 4))
    torch.testing.assert_close(found[0].double(), relevance_map(apart, (64, 64), (4, 4)), atol=1e-6, rtol=0)
    assert found.max() <= 1 and found[1, 0, 0] <= 1
    assert ((found[1] > 0).double() == (relevance_map([apart[0]], (64, 64), (4, 4)) > 0)).all()


def test_no_box_is_no_relevance():
    assert true_density(torch.zeros(2, 3, 4), (64, 64), (4, 4)).sum() == 0


def test_samples_do_not_touch_each_other():
    boxes = torch.rand(5, 3, 4).sort(-1).values * 64
    alone = torch.cat([true_density(one[None], (64, 64), (7, 9)) for one in boxes])
    assert torch.equal(true_density(boxes, (64, 64), (7, 9)), alone)


# ------------------------------------------------------------------------------------------------------ corrupted


def truth(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Two whole leaves and a part, somewhere in the middle."""
    density = torch.zeros(1, GRID[1], GRID[0], dtype=dtype)
    density[0, 8, 10:13] = torch.tensor([1.0, 1.0, 0.25])
    return density.expand(B, -1, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("miss", [0.0, 0.1, 1.0])
def test_nonnegative_with_mass_one(dtype, miss):
    found = corrupted(truth(dtype), seed=1, miss=miss)
    assert found.dtype == dtype and found.min() >= 0
    torch.testing.assert_close(found.sum((1, 2)), torch.ones(B, dtype=dtype), atol=1e-5, rtol=0)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32), st.floats(0, 1e6))
def test_any_map_of_any_mass(b, gh, gw, seed, scale):
    density = torch.rand(b, gh, gw, generator=torch.Generator().manual_seed(seed)) * scale
    found = corrupted(density, seed)
    assert found.shape == density.shape and found.min() >= 0
    torch.testing.assert_close(found.sum((1, 2)), torch.ones(b), atol=1e-4, rtol=0)
    torch.testing.assert_close(corrupted(density * 3, seed), found, atol=1e-5, rtol=0)  # the scale has no meaning


@pytest.mark.parametrize("miss", [0.0, 0.1, 0.5, 1.0])
def test_misses_are_as_frequent_as_asked(miss, monkeypatch):
    monkeypatch.setattr(densities, "DISPLACED", 0.0)  # or the region may be missed by a leaf or two
    found = corrupted(truth(), seed=2, miss=miss)
    missed = found[:, 8, 10:13].amax(1) <= found.amin((1, 2)) * (1 + 1e-9)  # the true leaves have just the floor
    assert abs(missed.double().mean() - miss) <= 4 * (miss * (1 - miss) / B) ** 0.5  # four standard deviations


def test_errors_are_as_large_as_stated():
    density = torch.zeros(600, 64, 64, dtype=torch.float64)
    density[:, 32, 32] = 1
    found = corrupted(density, seed=3, miss=0.0)
    even = found.amin((1, 2)) * 64 * 64
    assert 0 <= even.min() < 0.01 and 0.29 < even.max() <= FLOOR + 1e-9
    reach = int(DISPLACEMENT + 3 * BLUR[1]) + 1
    window = slice(32 - reach, 33 + reach)
    assert found[:, window, window].sum((1, 2)).min() >= (1 - FALSE) * (1 - FLOOR) * 0.98
    above = found - found.amin((1, 2), keepdim=True)
    above[:, window, window] = 0
    distracted = (above.sum((1, 2)) > 0.01).double().mean()
    inside = ((2 * reach + 1) / 64) ** 2  # where a false peak is not told from a true one
    assert DISTRACTED * (1 - inside) - 0.08 < distracted < DISTRACTED + 0.08
    exact = found[:, 32, 32]
    assert exact.min() < 0.01 and exact.max() > 0.9  # some pass it by, some are nearly right


def test_same_seed_same_errors():
    assert torch.equal(corrupted(truth(), seed=5), corrupted(truth(), seed=5))
    assert torch.equal(corrupted(truth(), torch.Generator().manual_seed(5)), corrupted(truth(), seed=5))
    assert not torch.equal(corrupted(truth(), seed=5), corrupted(truth(), seed=6))
    shared = torch.Generator().manual_seed(5)
    assert not torch.equal(corrupted(truth(), shared), corrupted(truth(), shared))  # it goes on


def test_without_mass_nothing_is_known():
    found = corrupted(torch.zeros(4, 5, 6), seed=0, miss=0.0)
    assert found.min() > 0


@pytest.mark.parametrize("miss", [-0.1, 1.1])
def test_a_probability_is_asked_for(miss):
    with pytest.raises(DensityError, match="from 0 to 1"):
        corrupted(truth(), seed=0, miss=miss)


@pytest.mark.gpu
def test_the_device_makes_no_difference():
    here, there = truth(), truth().cuda()
    torch.testing.assert_close(corrupted(there, seed=7).cpu(), corrupted(here, seed=7))
    boxes = torch.tensor([[[3.0, 5, 20, 30]]])
    torch.testing.assert_close(
        true_density(boxes.cuda(), (64, 64), (4, 4)).cpu(), true_density(boxes, (64, 64), (4, 4))
    )
