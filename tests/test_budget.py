"""The tree's promise: exactly N distinct cells inside the image, for any image, budget, gaze and density, every leaf
covered exactly once, cell for cell what the heap returns. All other allocators: test_family.py."""

import math
import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.heap import heap_allocation
from homunculus.allocation.hierarchical import HierarchicalAllocator, foveated_density
from homunculus.geometry import fit_grid, root_level
from homunculus.structures import Allocation, View
from tests.strategies import densities, image_sizes

TREE_EXAMPLES = 20 * settings.default.max_examples  # 2 000 in CI, 50 000 in the deep run


def assert_exact(allocation: Allocation, budget: int) -> None:
    """Exactly N distinct cells inside the image, in canonical order, every field filled."""
    width, height = allocation.image_sizes[0]
    assert allocation.boxes.shape == (len(allocation), budget, 4)
    x0, y0, x1, y1 = allocation.boxes.unbind(-1)
    assert (x0 >= 0).all() and (y0 >= 0).all() and (x1 <= width).all() and (y1 <= height).all()
    assert (x0 < x1).all() and (y0 < y1).all()
    for image in range(len(allocation)):
        assert allocation.boxes[image].unique(dim=0).shape[0] == budget
        context = allocation.is_context[image]
        assert (context.long().diff() <= 0).all()  # context first
        assert (allocation.levels[image][context].diff() <= 0).all()  # coarse to fine
        centers = allocation.centers[image][~context]
        later = torch.tensor(
            [
                tuple(a) <= tuple(b)
                for a, b in zip(centers.flip(1)[:-1].tolist(), centers.flip(1)[1:].tolist(), strict=True)
            ]
        )
        assert later.all()  # y before x
    for field in ("centers", "levels", "eccentricity", "scores"):
        assert getattr(allocation, field).isfinite().all(), field
    assert (allocation.angle == 0).all() and allocation.sector.isnan().all()


@settings(max_examples=TREE_EXAMPLES)
@given(st.data())
def test_tree_equals_heap_and_covers_once(data):
    width, height = data.draw(image_sizes())
    budget = data.draw(st.integers(16, 1024))
    grid = fit_grid(width, height, budget)
    density = data.draw(densities((1, grid.gh, grid.gw)))
    points = data.draw(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=4))
    fixations = torch.tensor([[(x * width, y * height, 1.0) for x, y in points]], dtype=torch.float64)
    view = View(density, (width, height), fixations=fixations if points else None)

    density_used = foveated_density(view) if data.draw(st.booleans()) else density
    allocation = HierarchicalAllocator(lambda view: density_used, budget)(view)
    assert_exact(allocation, budget)
    cells = heap_allocation(density_used[0].numpy(), budget, root_level(grid.gw, grid.gh, budget))
    assert len(cells) == budget
    boxes = np.array([cell.box for cell in cells], dtype=np.float64)
    pixels = (boxes * np.array([width, height] * 2) / np.array([grid.gw, grid.gh] * 2)).astype(np.float32)
    assert (allocation.boxes[0].numpy() == pixels).all()
    assert allocation.is_context[0].tolist() == [cell.is_context for cell in cells]

    covered = np.zeros((grid.gh, grid.gw), dtype=int)
    for x0, y0, x1, y1 in boxes[~allocation.is_context[0].numpy()].astype(int):
        covered[y0:y1, x0:x1] += 1
    assert (covered == 1).all()
    assert allocation.is_context.sum() <= 2
    assert math.isclose(allocation.scores[0][~allocation.is_context[0]].sum(), 1, rel_tol=1e-4)


@settings(max_examples=4 * settings.default.max_examples)
@given(st.data())
def test_tree_over_any_grid(data):
    """Grids no root divides: the border cells are clipped and the count is exact all the same."""
    gw, gh = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    leaves = gw * gh
    if leaves < 16:
        return
    budget = data.draw(st.integers(16, min(leaves, 600)))
    density = data.draw(densities((2, gh, gw)))
    reduce = data.draw(st.sampled_from(["sum", "max"]))
    allocation = HierarchicalAllocator(lambda view: view.density, budget, reduce=reduce)(
        View(density, (gw * 16, gh * 16))
    )
    assert_exact(allocation, budget)
    assert (homunculus.coverage(allocation).union == 1).all()
    assert (homunculus.coverage(allocation).multiplicity == 1).all()
    for image in range(2):
        cells = heap_allocation(density[image].numpy(), budget, root_level(gw, gh, budget), reduce=reduce)
        assert (allocation.boxes[image] / 16).tolist() == [list(map(float, cell.box)) for cell in cells]
        assert allocation.is_context[image].tolist() == [cell.is_context for cell in cells]


def test_fit_grid_never_fails():
    """30 000 random sizes and budgets, 1 x 5000 included, and what the grid promises holds for each."""
    rng = random.Random(0)
    sizes = [(1, 5000), (5000, 1), (1, 1), (2, 3)]
    sizes += [tuple(round(math.exp(rng.uniform(0, math.log(20_000)))) for _ in range(2)) for _ in range(29_996)]
    for width, height in sizes:
        budget = rng.choice([16, 64, 273, 1024, rng.randint(16, 1024)])
        grid = fit_grid(width, height, budget, leaf=rng.choice([16, 28, 32]))
        side = 1 << grid.root_level
        roots = (grid.gw // side) * (grid.gh // side)
        assert grid.gw % side == 0 and grid.gh % side == 0
        assert 1 <= roots <= budget // 3
        assert grid.gw * grid.gh >= budget
        assert budget - roots not in (1, 2, 5)
