"""`pyramid`: cells of four levels, none twice, by one ranking, a fixed split or a learned one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import homunculus
from homunculus.allocation.levels import SPLIT, LevelSplit, level_capacity, soft_counts
from homunculus.errors import AllocatorError, BudgetError
from homunculus.structures import View
from tests.strategies import densities
from tests.test_allocators import by_hand
from tests.test_budget import assert_exact

Box = tuple[int, int, int, int]


def distinct_cells(gw: int, gh: int) -> list[dict[Box, None]]:
    """The boxes of levels 0 to 3, each counted at the finest level that has it."""
    seen: set[Box] = set()
    levels = []
    for level in range(4):
        side = 1 << level
        boxes = {
            (x, y, min(x + side, gw), min(y + side, gh)): None for y in range(0, gh, side) for x in range(0, gw, side)
        }
        levels.append({box: None for box in boxes if box not in seen})
        seen |= set(boxes)
    return levels


@given(st.integers(1, 40), st.integers(1, 40))
def test_capacity_counts_distinct_cells(gw, gh):
    assert level_capacity((gw, gh)) == tuple(len(boxes) for boxes in distinct_cells(gw, gh))


def cells_of(allocation: homunculus.Allocation, image: int = 0) -> list[Box]:
    return [tuple(int(v) // 16 for v in box) for box in allocation.boxes[image].tolist()]


@given(st.data())
def test_every_mode_is_exact_on_any_grid(data):
    gw, gh = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    budget = data.draw(st.integers(1, gw * gh))
    density = data.draw(densities((2, gh, gw)))
    options = data.draw(
        st.sampled_from([{}, {"mode": "split"}, {"mode": "learned", "split": LevelSplit((1, 9, 1, 5))}])
    )
    allocation = homunculus.allocate(density, budget, "pyramid", **options)
    assert_exact(allocation, budget)
    alone = homunculus.allocate(density[1], budget, "pyramid", **options)
    assert torch.equal(allocation.boxes[1:], alone.boxes) and torch.equal(allocation.scores[1:], alone.scores)


@pytest.mark.parametrize("grid", [(16, 16), (17, 23), (5, 30), (9, 1)])
@pytest.mark.parametrize("weights", [None, (1.0, 0.1, 0.3, 0.0)])
def test_global_takes_the_highest_weighted_masses(grid, weights):
    gw, gh = grid
    density = torch.rand(gh, gw, dtype=torch.float64)
    factor = weights or (1, 1 / 2, 1 / 4, 1 / 8)
    scores = {
        box: factor[level] * density[box[1] : box[3], box[0] : box[2]].sum().item()
        for level, boxes in enumerate(distinct_cells(gw, gh))
        for box in boxes
    }
    budget = gw * gh // 2
    expected = sorted(scores, key=scores.__getitem__, reverse=True)[:budget]
    allocation = homunculus.allocate(density, budget, "pyramid", weights=weights)
    assert set(cells_of(allocation)) == set(expected)
    masses = [density[y0:y1, x0:x1].sum().item() / density.sum().item() for x0, y0, x1, y1 in cells_of(allocation)]
    assert allocation.scores[0].tolist() == pytest.approx(masses, rel=1e-5)


def test_kinds():
    assert homunculus.allocate(torch.rand(16, 24), 30, "pyramid").kind == "dyadic"
    assert homunculus.allocate(torch.rand(16, 23), 30, "pyramid").kind == "box"


def counts_of(allocation: homunculus.Allocation) -> list[int]:
    return torch.bincount(allocation.levels[0].long(), minlength=4).tolist()


def test_the_published_split():
    density = torch.rand(1, 64, 64, dtype=torch.float64)
    allocation = homunculus.allocate(density, 273, "pyramid", mode="split")
    assert counts_of(allocation) == [64, 128, 64, 17]
    masses = density
    for level in range(4):
        chosen = {box for box in cells_of(allocation) if box[2] - box[0] == 1 << level}
        w = masses.shape[2]
        heaviest = masses.flatten().topk(SPLIT[level]).indices.tolist()
        assert chosen == {(i % w << level, i // w << level, i % w + 1 << level, i // w + 1 << level) for i in heaviest}
        masses = homunculus.pyramid.pool_blocks(masses)


@pytest.mark.parametrize("grid", [(64, 64), (16, 16), (17, 23), (3, 50)])
@pytest.mark.parametrize("budget", [1, 100, 149])
def test_split_scales_by_largest_remainder(grid, budget):
    allocation = homunculus.allocate(torch.rand(grid[1], grid[0]), budget, "pyramid", mode="split")
    areas = allocation.boxes[0][:, 2:] - allocation.boxes[0][:, :2]
    found = torch.bincount((areas.amax(1) / 16).log2().ceil().long(), minlength=4).tolist()
    capacity = level_capacity(grid)
    ideal = by_hand(SPLIT, capacity, budget)
    assert all(abs(count - wanted) < 1 for count, wanted in zip(found, ideal, strict=True))
    counts = soft_counts(torch.tensor(SPLIT).double() / 273, capacity, budget)
    assert counts.tolist() == pytest.approx(ideal)


def test_a_split_of_ones_own():
    allocation = homunculus.allocate(torch.rand(32, 32), 50, "pyramid", mode="split", split=(0, 30, 18, 2))
    assert counts_of(allocation) == [0, 30, 18, 2]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"mode": "split", "split": (64, 128, 64, 17)},
            BudgetError,
            "273 cells and the budget is 100: make them equal",
        ),
        ({"mode": "split", "split": (50, 0, 0, 50)}, BudgetError, "50 cells of level 3 and the grid has 16"),
        ({"mode": "split", "split": (50.5, 49.5, 0, 0)}, BudgetError, "make them equal"),
        ({"mode": "split", "split": (50, 50)}, AllocatorError, "split is four numbers"),
        ({"mode": "split", "split": (120, -20, 0, 0)}, AllocatorError, "split is four numbers"),
        ({"weights": (1, 1, math.inf, 1)}, AllocatorError, "weights is four numbers"),
        ({"mode": "learned"}, AllocatorError, "needs split=LevelSplit"),
        ({"mode": "both"}, AllocatorError, "pyramid has mode='global'"),
        ({"split": (100, 0, 0, 0)}, AllocatorError, "pyramid has mode='global'"),
        ({"mode": "split", "weights": (1, 1, 1, 1)}, AllocatorError, "pyramid has mode='global'"),
    ],
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message) as caught:
        homunculus.allocate(torch.ones(32, 32), 100, "pyramid", **options)
    assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------------------------------- learned split


def view_of(density: torch.Tensor) -> View:
    return View(density, (density.shape[2] * 16, density.shape[1] * 16))


def test_untrained_is_the_fixed_split():
    density = torch.rand(2, 30, 44, dtype=torch.float64)
    fixed = homunculus.allocate(density, 273, "pyramid", mode="split")
    learned = homunculus.allocate(density, 273, "pyramid", mode="learned", split=LevelSplit())
    assert torch.equal(fixed.boxes, learned.boxes)


@pytest.mark.parametrize("grid", [(16, 16), (17, 23), (6, 5), (1, 9)])
@pytest.mark.parametrize("split", [SPLIT, (1, 1, 1, 30)])
def test_soft_levels_sum_to_the_budget(grid, split):
    gw, gh = grid
    view, model = view_of(torch.rand(2, gh, gw, dtype=torch.float64)), LevelSplit(split)
    for budget in (1, gw * gh // 2, gw * gh):
        levels = model.soft(view, budget)
        wanted = soft_counts(model().double(), level_capacity(grid), budget)
        for level, p in enumerate(levels):
            assert (p >= 0).all() and (p <= 1).all()
            assert torch.allclose(p.sum((1, 2)), wanted[level].expand(2))
        assert torch.allclose(sum(p.sum((1, 2)) for p in levels), torch.full((2,), float(budget)).double())


@given(st.lists(st.sampled_from([1e-9, 0.1, 1.0, 50.0]), min_size=4, max_size=4), st.data())
def test_soft_counts_fill_levels_and_no_more(weights, data):
    capacity = [data.draw(st.integers(0, 30)) for _ in range(4)]
    budget = data.draw(st.integers(0, sum(capacity)))
    counts = soft_counts(torch.tensor(weights).double() / sum(weights), capacity, budget)
    assert counts.sum().item() == pytest.approx(budget, abs=1e-6)
    pressure = {
        round(c / w, 6) for c, w, most in zip(counts.tolist(), weights, capacity, strict=True) if c < most - 1e-6
    }
    assert all(-1e-9 <= c <= most + 1e-6 for c, most in zip(counts.tolist(), capacity, strict=True))
    assert max(pressure, default=0) - min(pressure, default=0) <= 1e-4 * max(pressure, default=0) + 1e-5


def test_gradients_reach_the_split_and_the_density():
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda s: soft_counts(s, (99, 99, 99, 3), 20), shares)
    model = LevelSplit()
    del model.logits  # a parameter; gradcheck brings its own

    def soft(logits: torch.Tensor, density: torch.Tensor) -> tuple[torch.Tensor, ...]:
        model.logits = logits
        return tuple(model.soft(view_of(density), 12, temperature=0.5))

    logits = torch.randn(4, dtype=torch.float64, requires_grad=True)
    density = (torch.rand(1, 6, 5, dtype=torch.float64) + 0.5).requires_grad_()
    assert gradcheck(soft, (logits, density))


def test_the_split_learns_where_cells_pay():
    """Cells of a level pay less and less, each level in its own way: at the best split the last ones pay alike."""
    density = torch.rand(1, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    view, budget, model = view_of(density), 120, LevelSplit()
    masses = homunculus.pyramid.mass_pyramid(view.relevance, 3)
    gains = [(6.0, 30.0), (3.0, 12.0), (1.0, 40.0), (2.0, 4.0)]  # what the best cell pays, how fast that falls
    pays = []
    for mass, (first, fall) in zip(masses, gains, strict=True):
        rank = mass.flatten().argsort(descending=True).argsort()
        pays.append((first * torch.exp(-rank / fall)).reshape(mass.shape))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(150):
        income = sum((p * pay).sum() for p, pay in zip(model.soft(view, budget, 0.02), pays, strict=True))
        optimiser.zero_grad()
        (-income).backward()
        optimiser.step()

    everything = torch.cat([pay.flatten() for pay in pays])
    best = everything.topk(budget).values.sum().item()  # the heaviest cells of a level pay most: any split is reachable

    def earned(counts: list[int]) -> float:
        return sum(pay.flatten().topk(count).values.sum().item() for pay, count in zip(pays, counts, strict=True))

    learned = counts_of(homunculus.allocate(density, budget, "pyramid", mode="learned", split=model))
    fixed = counts_of(homunculus.allocate(density, budget, "pyramid", mode="split"))
    assert earned(fixed) < 0.9 * best and earned(learned) > 0.985 * best
