"""Bins about the gaze: where they lie, that each takes one leaf of its own, and that no leaf is taken twice."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import homunculus
from homunculus.allocation.bins import (
    LearnedBins,
    _bin_grid,
    assign_leaves,
    bin_positions,
    bin_tokens,
    diamond_angle,
    initial_bins,
    polar_bins,
    steady_log,
)
from homunculus.allocation.stratified import Strata
from homunculus.density import with_floor
from homunculus.errors import AllocatorError, BudgetError
from homunculus.structures import View
from tests.strategies import densities
from tests.test_budget import assert_exact


def view_of(
    density: torch.Tensor, gaze: tuple[float, float] | None = None, size: tuple[int, int] | None = None
) -> View:
    size = size or (density.shape[2] * 16, density.shape[1] * 16)
    fixations = None if gaze is None else torch.tensor([[[*gaze, 1.0]]]).double().expand(len(density), -1, -1)
    return View(density, size, fixations=fixations)


def leaves_of(allocation: homunculus.Allocation) -> torch.Tensor:
    (width, height), (gw, gh) = allocation.image_sizes[0], allocation.grids[0]
    x, y = (allocation.centers.double() * torch.tensor([gw / width, gh / height])).long().unbind(-1)
    return y * gw + x


@pytest.mark.parametrize("name", ["pseudo-log-polar", "log-polar-bins"])
@given(data=st.data())
def test_exact_on_any_grid_at_any_gaze(name, data):
    gw, gh = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    budget = data.draw(st.integers(1, gw * gh))
    size = data.draw(st.tuples(st.integers(1, 600), st.integers(1, 600)))
    density = data.draw(densities((2, gh, gw)))
    corner = st.sampled_from([0.0, 0.5, 1.0])
    fixation = data.draw(st.none() | st.tuples(corner, corner))
    if fixation is not None:
        fixation = (fixation[0] * size[0], fixation[1] * size[1])
    allocation = homunculus.allocate(density, budget, name, image_size=size, fixation=fixation)
    assert_exact(allocation, budget)
    alone = homunculus.allocate(density[1], budget, name, image_size=size, fixation=fixation)
    assert torch.equal(allocation.boxes[1:], alone.boxes) and torch.equal(allocation.gaze[1:], alone.gaze)


@pytest.mark.parametrize("name", ["pseudo-log-polar", "log-polar-bins"])
def test_a_transposed_map_is_the_same_map(name):
    """Its memory runs the other way: writing into a copy of it must still be seen."""
    density = torch.rand(2, 20, 30, dtype=torch.float64)
    turned = density.mT.contiguous().mT
    assert torch.equal(homunculus.allocate(turned, 200, name).boxes, homunculus.allocate(density, 200, name).boxes)


@pytest.mark.parametrize("name", ["pseudo-log-polar", "log-polar-bins"])
def test_without_a_fixation_it_looks_at_the_peak(name):
    density = torch.full((40, 60), 1e-3)
    density[9, 50] = 1.0
    allocation = homunculus.allocate(density, 100, name)
    assert allocation.gaze.tolist() == [[50.5 * 16, 9.5 * 16]]
    given = homunculus.allocate(density, 100, name, fixation=(50.5 * 16, 9.5 * 16))
    assert torch.equal(allocation.boxes, given.boxes)


# ----------------------------------------------------------------------------------------------------- pseudo-log-polar


def test_initial_bins_are_a_fovea_and_a_spread():
    centres, _ = initial_bins(1000)
    fovea, spread = centres[:250], centres[250:]
    radius = fovea.norm(dim=1)
    assert fovea.mean(0).abs().max() < 0.005
    for share in (0.25, 0.5, 0.75):  # of a Gaussian of sigma 0.05 in the plane
        assert (radius < 0.05 * math.sqrt(-2 * math.log(1 - share))).float().mean() == pytest.approx(share, abs=0.02)
    cells = torch.bincount(((spread + 1) * 2.5).long() @ torch.tensor([1, 5]), minlength=25)
    assert cells.min() >= 26 and cells.max() <= 34  # 30 each: a random draw would scatter from 18 to 42
    assert not torch.equal(initial_bins(1000, seed=1)[0], centres)
    assert torch.equal(initial_bins(1000, seed=-(2**70))[0], initial_bins(1000, seed=-(2**70))[0])


@given(
    st.tuples(st.integers(1, 900), st.integers(1, 900)),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.integers(0, 2**31),
)
def test_mirrored_bins_are_inside_and_never_farther_from_the_gaze(size, gaze, seed):
    centres = torch.randn(20, 2, generator=torch.Generator().manual_seed(seed)) * 3
    gaze = torch.tensor([gaze]).double() * torch.tensor(size)
    positions = bin_positions(gaze, centres, size)[0]
    assert (positions >= 0).all() and (positions <= torch.tensor(size)).all()
    before = centres.double().abs() * max(size)
    assert ((positions - gaze).abs() <= before + 1e-9).all()


def test_every_part_of_the_image_has_bins_at_every_gaze():
    for size in ((1024, 1024), (2048, 512), (600, 1000)):
        gw, gh = size[0] // 16, size[1] // 16
        region = Strata.even((gw, gh), 8, 8).of_leaves[0]
        for gaze in ((0.5, 0.5), (0, 0), (1, 0.5), (0.3, 0.8)):
            fixation = (gaze[0] * size[0], gaze[1] * size[1])
            allocation = homunculus.allocate(
                torch.ones(gh, gw), 273, "pseudo-log-polar", image_size=size, fixation=fixation
            )
            assert region[leaves_of(allocation)].unique().numel() >= 60
            everywhere = homunculus.allocate(torch.ones(gh, gw), gw * gh, "topk", image_size=size, fixation=fixation)
            limit = 0.1 * max(size) / homunculus.geometry.leaf_side((gw, gh), size)
            near, possible = ((cells.eccentricity[0] < limit).sum() for cells in (allocation, everywhere))
            assert near > min(0.2 * 273, 0.9 * possible)  # the fovea follows, as far as a corner has leaves


def test_greedy_against_a_loop():
    view = view_of(torch.rand(2, 9, 14, dtype=torch.float64) ** 4, gaze=(30.0, 100.0))
    bins = LearnedBins(60, seed=5)
    logits = bins.logits(view)  # by torch.log, and not separated into x and y
    for image in range(2):
        taken: list[int] = []
        for own in logits[image].tolist():
            taken.append(max((i for i in range(126) if i not in taken), key=own.__getitem__))
        allocation = homunculus.allocation.allocate_view(view, 60, "pseudo-log-polar", bins=bins)
        assert set(leaves_of(allocation)[image].tolist()) == set(taken)


def test_bins_choose_in_turn():
    value = torch.tensor([[[0.0, 5.0, 1.0]]]).double()
    nothing = torch.zeros(1, 3, 3).double(), torch.zeros(1, 3, 1).double()
    assert assign_leaves(value, *nothing).tolist() == [[1, 2, 0]]


def test_untrained_bins_are_the_default():
    density = torch.rand(2, 30, 40)
    default = homunculus.allocate(density, 100, "pseudo-log-polar")
    assert torch.equal(
        homunculus.allocate(density, 100, "pseudo-log-polar", bins=LearnedBins(100)).boxes, default.boxes
    )
    with pytest.raises(BudgetError, match="these are 90 bins and the budget is 100"):
        homunculus.allocate(density, 100, "pseudo-log-polar", bins=LearnedBins(90))


def test_steady_log_is_a_logarithm():
    x = torch.rand(20_000, dtype=torch.float64).sort().values * 10.0 ** torch.linspace(-300, 0, 20_000).double()
    x = x.sort().values
    assert torch.allclose(steady_log(x), x.log(), rtol=0, atol=3e-13)
    powers = 2.0 ** -torch.arange(0, 1000).double()
    around = torch.stack((powers * (1 - 2e-12), powers, powers * (1 + 2e-12)), dim=1)
    assert (steady_log(around).diff(dim=1) > 0).all()  # no step back where the exponent changes
    assert torch.equal(steady_log(x)[17:18], steady_log(x[17:18]))


def test_soft_assignment():
    view = view_of(torch.rand(2, 6, 7, dtype=torch.float64), gaze=(40.0, 50.0))
    bins = LearnedBins(12)
    weights = bins.soft(view)
    assert torch.allclose(weights.sum(2), torch.ones(2, 12).double())
    cold = bins.soft(view, temperature=1e-4)
    assert torch.equal(cold.argmax(2), bins.logits(view).argmax(2)) and (cold.amax(2) > 0.9).float().mean() > 0.9
    xs = torch.arange(7).double() * 16 + 8
    ys = torch.arange(6).double() * 16 + 8
    position = bin_positions(torch.tensor([[40.0, 50.0]]).double(), bins.centres, (112, 96))[0]
    distance = ((xs - position[:, :1]) ** 2)[:, None] + ((ys - position[:, 1:]) ** 2)[:, :, None]
    expected = -distance / 112**2 / 2 / bins.log_reach.exp().double()[:, None, None] ** 2
    assert torch.allclose(bins.logits(view)[1], (expected + with_floor(view.relevance)[1].log()).flatten(1), rtol=1e-5)
    features = torch.rand(2, 42, 5)
    assert torch.allclose(bin_tokens(weights, features), torch.einsum("bnl,bld->bnd", weights.float(), features))


def test_soft_assignment_gradient():
    bins = LearnedBins(4)
    centres, reach = bins.centres.detach().double(), bins.log_reach.detach().double() + 1
    del bins.centres, bins.log_reach  # parameters; gradcheck brings its own

    def soft(centres: torch.Tensor, log_reach: torch.Tensor, density: torch.Tensor) -> torch.Tensor:
        bins.centres, bins.log_reach = centres, log_reach
        return bins.soft(view_of(density, gaze=(10.0, 30.0)))

    density = torch.rand(1, 3, 4, dtype=torch.float64) + 0.2
    assert gradcheck(soft, (centres.requires_grad_(), reach.requires_grad_(), density.requires_grad_()))


# ------------------------------------------------------------------------------------------------------- log-polar-bins


@pytest.mark.parametrize(("gaze", "filled"), [((512.0, 512.0), 183), ((0.0, 0.0), 62)])
def test_how_many_bins_hold_a_leaf(gaze, filled):
    view = view_of(torch.ones(1, 64, 64, dtype=torch.float64), gaze)
    assert polar_bins(view, torch.tensor([gaze]).double(), 16, 17).unique().numel() == filled


@given(st.tuples(st.integers(1, 25), st.integers(1, 25)), st.integers(1, 9), st.integers(1, 20), st.integers(0, 2**31))
def test_bins_against_logarithms_and_angles(grid, rings, sectors, seed):
    rng = np.random.default_rng(seed)
    size = tuple(rng.integers(1, 400, 2).tolist())
    gaze = rng.random(2) * size
    view = view_of(torch.ones(1, grid[1], grid[0], dtype=torch.float64), size=size)
    found = polar_bins(view, torch.from_numpy(gaze)[None], rings, sectors, e0=2.0)[0].numpy()
    unit = math.sqrt(size[0] / grid[0] * size[1] / grid[1])
    dx = (np.arange(grid[0]) + 0.5) * size[0] / grid[0] - gaze[0]
    dy = ((np.arange(grid[1]) + 0.5) * size[1] / grid[1] - gaze[1])[:, None]
    ring = np.log1p(np.hypot(dx, dy) / unit / 2) / np.log1p(np.hypot(*size) / unit / 2) * rings
    sector = (np.arctan2(dy, dx) % (2 * np.pi)) / (2 * np.pi) * sectors
    clear = (np.abs(ring - ring.round()) > 1e-9) & (np.abs(sector - sector.round()) > 1e-9)
    expected = np.floor(ring) * sectors + np.floor(sector)
    assert (found.reshape(expected.shape) == expected)[clear].all()


def test_diamond_angle_turns_as_the_angle_does():
    theta = torch.linspace(0, 2 * math.pi, 1001).double()[:-1]
    assert (diamond_angle(theta.cos(), theta.sin()).diff() > 0).all()
    assert diamond_angle(torch.zeros(1).double(), torch.zeros(1).double()).item() == 0


def test_the_best_leaf_of_every_bin_then_the_rest_by_relevance():
    density = torch.rand(1, 40, 50, dtype=torch.float64)
    view = view_of(density, gaze=(300.0, 100.0))
    bins = polar_bins(view, torch.tensor([[300.0, 100.0]]).double(), 6, 7)[0]
    chosen = set(leaves_of(homunculus.allocation.allocate_view(view, 60, "log-polar-bins", bins=(6, 7)))[0].tolist())
    flat = density[0].flatten()
    best = {max((bins == own).nonzero()[:, 0].tolist(), key=lambda i: flat[i]) for own in bins.unique().tolist()}
    rest = [i for i in flat.argsort(descending=True).tolist() if i not in best][: 60 - len(best)]
    assert len(best) <= 42 and chosen == best | set(rest)


def test_bins_scale_with_the_budget():
    assert _bin_grid(273) == _bin_grid(272) == (16, 17)
    for budget in range(1, 2000):
        rings, sectors = _bin_grid(budget)
        assert budget - rings < rings * sectors <= budget
        assert budget < 100 or 1 <= sectors / rings < 1.25


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bins": (10, 11)}, BudgetError, "10x11 bins with a token each and a budget of 100: use at least 110 tokens"),
        ({"bins": (0, 5)}, AllocatorError, "two positive whole numbers"),
        ({"e0": 0.0}, AllocatorError, "e0 is a distance in leaves, above 0"),
    ],
)
def test_refusals_of_log_polar_bins(options, error, message):
    with pytest.raises(error, match=message) as caught:
        homunculus.allocate(torch.ones(32, 32), 100, "log-polar-bins", **options)
    assert "\n" not in str(caught.value)
