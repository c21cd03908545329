"""Conventions of coordinates, the fitted grid against its definition, and the order that breaks ties."""

import math
import random

import pytest
import torch

from homunculus.errors import BudgetError, ImageError
from homunculus.geometry import cells_across, fit_grid, leaf_centers, leaf_side, root_level, spread_order, to_pixels


def defined_grid(width: int, height: int, budget: int, leaf: int) -> tuple[int, int]:
    """The grid straight from its definition: every candidate listed, the cheapest taken."""
    w, h = width / leaf, height / leaf
    if w * h < budget:
        grow = math.sqrt(budget / (w * h))
        w, h = w * grow, h * grow
    candidates = []
    for level in range(40):
        side = 2**level
        for a in {math.floor(w / side), math.ceil(w / side)}:
            for b in {math.floor(h / side), math.ceil(h / side)}:
                if (
                    a < 1
                    or b < 1
                    or a * b > max(1, budget // 3)
                    or a * b * 4**level < budget
                    or budget - a * b in (1, 2, 5)
                ):
                    continue
                sx, sy = a * side / w, b * side / h
                scale = sum(2 * max(0, -math.log(s)) + 0.5 * max(0, math.log(s)) for s in (sx, sy))
                candidates.append(
                    (round(abs(math.log(sx / sy)) + scale / 2, 9), abs(a * b - budget / 16), a * side, b * side)
                )
    return min(candidates)[2:]


def test_fit_grid_is_its_definition():
    rng = random.Random(1)
    for _ in range(500):
        width, height = (round(math.exp(rng.uniform(0, math.log(9000)))) for _ in range(2))
        budget, leaf = rng.randint(16, 1024), rng.choice([16, 28, 32])
        grid = fit_grid(width, height, budget, leaf)
        assert (grid.gw, grid.gh) == defined_grid(width, height, budget, leaf), (width, height, budget, leaf)
        assert grid.sx == grid.gw * leaf / width and grid.sy == grid.gh * leaf / height


def test_fit_grid_distorts_little():
    """At N = 273 and aspects up to 4:1: aspect by 3 % in the median and under 10 % in 95 %, scale near 1."""
    rng = random.Random(2)
    aspects, scales = [], []
    for _ in range(3000):
        side, aspect = (
            math.exp(rng.uniform(math.log(400), math.log(4096))),
            math.exp(rng.uniform(-math.log(4), math.log(4))),
        )
        grid = fit_grid(round(side * math.sqrt(aspect)), round(side / math.sqrt(aspect)), 273)
        aspects.append(abs(math.log(grid.sx / grid.sy)))
        scales += [grid.sx, grid.sy]
    aspects.sort()
    assert aspects[1500] < 0.035
    assert aspects[2850] < 0.1
    assert min(scales) > 0.89 and max(scales) < 1.3


@pytest.mark.parametrize(
    ("size", "grid", "level"),
    [((1024, 1024), (64, 64), 4), ((8192, 8192), (512, 512), 7), ((16000, 4000), (1024, 256), 7)],
)
def test_large_images_keep_few_roots(size, grid, level):
    found = fit_grid(*size, 273)
    assert (found.gw, found.gh, found.root_level) == (*grid, level)
    assert cells_across(found.gw, level) * cells_across(found.gh, level) == 16


def test_nested_budgets_may_ask_for_more_leaves():
    assert math.prod(fit_grid(64, 64, 100)[:2]) < 512
    assert math.prod(fit_grid(64, 64, 100, leaves=512)[:2]) >= 512


def test_what_cannot_be_fitted():
    with pytest.raises(ImageError, match="no area"):
        fit_grid(0, 10)
    with pytest.raises(BudgetError, match="positive"):
        fit_grid(10, 10, 0)
    with pytest.raises(BudgetError, match="at least 16"):
        root_level(8, 8, 15)
    with pytest.raises(BudgetError, match="fewer than the budget"):
        root_level(4, 4, 17)


def test_neighbours_share_the_same_float():
    edges = torch.arange(0, 89, dtype=torch.float64)
    cells = torch.stack((edges[:-1], edges[:-1], edges[1:], edges[1:]), dim=1)
    boxes = to_pixels(cells, grid=(88, 88), size=(1447, 1001))
    assert torch.equal(boxes[:-1, 2:], boxes[1:, :2])
    assert boxes[0, 0] == 0 and boxes[-1].tolist()[2:] == [1447, 1001]
    assert boxes.dtype == torch.float32


def test_pixel_centres_are_half_way():
    xs, ys = leaf_centers((4, 2), (64, 64))
    assert xs.tolist() == [8, 24, 40, 56]
    assert ys.tolist() == [16, 48]
    assert leaf_side((4, 2), (64, 64)) == math.sqrt(16 * 32)


@pytest.mark.parametrize(("w", "h"), [(1, 1), (4, 4), (5, 3), (1, 9), (16, 16)])
def test_spread_order_is_a_permutation(w, h):
    assert spread_order(w, h).sort().values.tolist() == list(range(w * h))


def test_spread_order_visits_every_quadrant_first():
    first = spread_order(16, 16)[:16]
    blocks = {(int(i) % 16 // 4, int(i) // 16 // 4) for i in first}
    assert len(blocks) == 16
