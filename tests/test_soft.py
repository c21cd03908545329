"""The tree relaxed: weights that sum to one, tokens that sum to the budget, gradients that point the right way."""

import pytest
import torch

import homunculus
from homunculus.allocation.soft import gumbel, soft_cut
from homunculus.allocation.tree import tree_over
from homunculus.density import normalise, with_floor
from homunculus.errors import DensityError
from homunculus.geometry import root_level
from homunculus.pyramid import mass_pyramid
from tests.test_tree import plain, view_of


def soft_masses(density: torch.Tensor, level: int) -> torch.Tensor:
    tree = tree_over(density.shape[2], density.shape[1], level)
    return tree.concatenate(mass_pyramid(density, level), lowest=1)[:, tree.flat[: tree.internal]]


@pytest.mark.parametrize("grid", [(32, 32), (29, 21)])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_soft_weights_sum_to_one_over_every_pixel(grid, temperature):
    density = with_floor(normalise(torch.rand(2, grid[1], grid[0], dtype=torch.float64) ** 4))
    soft = plain(64).soft(view_of(density), temperature)
    total = torch.zeros_like(density)
    for level, weight in enumerate(soft.weights):
        assert (weight >= 0).all()
        total += weight.repeat_interleave(1 << level, 1).repeat_interleave(1 << level, 2)[:, : grid[1], : grid[0]]
    assert torch.allclose(total, torch.ones_like(total), atol=1e-12)
    hard = plain(64)(view_of(density))
    assert torch.allclose(soft.tokens(), (64 - hard.is_context.sum(1)).double(), atol=1e-6)


def test_cold_soft_cut_is_the_hard_cut():
    density = with_floor(normalise(torch.rand(1, 32, 32, dtype=torch.float64) ** 4))
    soft = plain(100).soft(view_of(density), temperature=1e-4)
    hard = plain(100)(view_of(density))
    for level, x, y in zip(hard.levels[0].long(), hard.boxes[0, :, 0].long(), hard.boxes[0, :, 1].long(), strict=True):
        weight = soft.weights[level][0, y // (16 << level), x // (16 << level)]
        split = soft.split[level][0, y // (16 << level), x // (16 << level)] if level else 0.0
        assert weight > 0.4 or split > 0.4  # a token, or a split cell kept as context


@pytest.mark.parametrize("grid", [(8, 8), (7, 6)])
def test_soft_cut_gradient(grid):
    level = root_level(*grid, 16)
    tree = tree_over(*grid, level)

    def weights(log_density):
        soft = soft_cut(tree, soft_masses(log_density.exp(), level), 16, temperature=0.5, validate=False)
        return tuple(w for w in soft.weights)

    log_density = torch.randn(1, grid[1], grid[0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(weights, log_density)


def test_a_density_learns_to_look_where_detail_pays():
    """Only trains if the gradient points the right way: reward fine cells in one corner."""
    log_density = torch.zeros(1, 16, 16, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([log_density], lr=0.3)
    for _ in range(60):
        view = view_of(with_floor(normalise(log_density.exp())))
        fine = plain(40).soft(view, temperature=0.3).weights[0]
        optimiser.zero_grad()
        (-fine[0, :4, :4].sum()).backward()
        optimiser.step()
    allocation = plain(40)(view_of(normalise(log_density.detach().exp())))
    finest = allocation.boxes[0][allocation.levels[0] == 0]
    assert len(finest) == 16 and (finest[:, 2:] <= 64).all()


def test_noise_goes_on_leaves_and_keeps_the_tree_whole():
    density = gumbel(torch.rand(4, 64, 64, dtype=torch.float64) + 0.1, 1.0, torch.Generator().manual_seed(1))
    assert (density > 0).all()
    assert (homunculus.coverage(plain(273)(view_of(density))).union == 1).all()


def test_gumbel_noise_samples_in_proportion():
    """The largest of noisy densities falls on each leaf as often as its share of the mass."""
    density = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).expand(20_000, 1, 3)
    winner = gumbel(density, 1.0, torch.Generator().manual_seed(0)).argmax(2).flatten()
    shares = torch.bincount(winner, minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.125, 0.25, 0.625]), atol=0.012)


def test_soft_cut_wants_a_positive_density():
    with pytest.raises(DensityError, match="above 0 everywhere"):
        plain(16).soft(view_of(torch.zeros(1, 16, 16, dtype=torch.float64)))
