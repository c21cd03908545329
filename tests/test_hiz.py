"""The tree expanded level by level: the very cells of the plain tree, and few of its nodes looked at."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.hierarchical import HierarchicalAllocator
from homunculus.allocation.hiz import (
    LEVEL,
    NO_NODE,
    ROW,
    Nodes,
    best_nodes,
    children_of,
    cost_counts,
    expand,
    hi_z_cut,
    is_among,
    level_nodes,
)
from homunculus.allocation.tree import best_first_order, longest_prefix, most_splits, tree_level, tree_over
from homunculus.errors import AllocatorError, BudgetError
from homunculus.geometry import root_level, spread_order
from homunculus.pyramid import mass_pyramid
from homunculus.structures import CELL_FIELDS, Allocation, View
from tests.devices import no_sync
from tests.strategies import densities

DEFAULT = homunculus.allocation.DEFAULT


def assert_same(a: Allocation, b: Allocation) -> None:
    for field in (*CELL_FIELDS, "gaze"):
        assert torch.equal(getattr(a, field).nan_to_num(), getattr(b, field).nan_to_num()), field
    assert (a.image_sizes, a.grids, a.leaf, a.kind) == (b.image_sizes, b.grids, b.leaf, b.kind)


@st.composite
def cases(draw) -> tuple[torch.Tensor, int]:
    """Densities [2, gh, gw] on any grid, and a budget it can hold."""
    gw, gh = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    gh = max(gh, -(-16 // gw))
    return draw(densities((2, gh, gw))), draw(st.integers(16, min(gw * gh, 600)))


@settings(max_examples=6 * settings.default.max_examples)
@given(cases(), st.sampled_from(["sum", "max"]), st.sampled_from([None, None, 1, 2, 3]))
def test_expansion_equals_the_whole_tree(case, reduce, context_level):
    """Raw densities, full of ties: every cell and every field to the bit."""
    density, budget = case
    view = View(density, (density.shape[2] * 16, density.shape[1] * 11))
    plain = HierarchicalAllocator(lambda view: view.density, budget, None, context_level, reduce)(view)
    masses = mass_pyramid(density, root_level(*view.grid, budget), reduce)
    assert_same(expand(view, masses, budget, context_level), plain)


@settings(max_examples=2 * settings.default.max_examples)
@given(cases(), st.floats(0.1, 20), st.floats(0, 1), st.floats(0, 1))
def test_hi_z_is_the_default_by_another_way(case, e0, fixation_share, floor):
    density, budget = case
    size = density.shape[2] * 10, density.shape[1] * 12
    options = {"image_size": size, "e0": e0, "fixation_share": fixation_share, "floor": floor, "fixation": (9, 10)}
    assert_same(
        homunculus.allocate(density, budget, "hi-z", **options), homunculus.allocate(density, budget, **options)
    )


@pytest.mark.parametrize(
    "options", [{"depth": 5}, {"depth": 6}, {"context_level": 3}, {"reduce": "max"}, {"foveal_share": 0.4}]
)
def test_options_mean_the_same(options):
    density = torch.rand(3, 64, 64, dtype=torch.float64) ** 5
    hi_z, plain = (
        homunculus.allocate(density, 273, name, fixation=(300, 500), **options) for name in ("hi-z", DEFAULT)
    )
    assert_same(hi_z, plain)


def test_a_view_of_a_large_image():
    density = torch.zeros(2, 512, 512, dtype=torch.float64)
    density[:, 200:251, 30:81] = torch.rand(2, 51, 51, dtype=torch.float64)
    assert_same(homunculus.allocate(density, 273, "hi-z"), homunculus.allocate(density, 273))
    cut = hi_z_cut(mass_pyramid(density, 7), 273)
    assert (cut.visited < 0.01 * tree_over(512, 512, 7).internal).all()


@given(cases())
def test_only_what_can_be_chosen_is_visited(case):
    """A node is looked at if its parent is among the k heaviest of its own level and above."""
    density, budget = case
    (gh, gw), level = density.shape[1:], root_level(density.shape[2], density.shape[1], budget)
    masses, tree = mass_pyramid(density, level), tree_over(gw, gh, level)
    splits = longest_prefix(tree, budget)
    nodes = tree.concatenate(masses, lowest=1)[:, tree.flat[: tree.internal]]
    mass, best, visited = best_nodes(masses, splits)
    order = best_first_order(nodes, splits)
    assert torch.equal(mass, nodes.gather(1, order))
    parts = Nodes.of(best)
    assert torch.equal(parts.level, tree.level[order])
    assert torch.equal(torch.stack((parts.x, parts.y), dim=2), tree.corner[order])
    for image in range(2):
        seen = tree.roots
        for above in range(level, 1, -1):
            coarse = nodes[image, tree.level[: tree.internal] >= above]  # the first ones: coarse levels come first
            kept = torch.sort(coarse, descending=True, stable=True).indices[:splits]
            kept = kept[tree.level[kept] == above]
            seen += int((tree.children[kept] < tree.count).sum())
        assert visited[image] == seen


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 7))
def test_nodes_by_arithmetic_are_those_of_the_tables(gw, gh, level):
    level = min(level, max(1, (max(gw, gh) - 1).bit_length()))
    tree = tree_over(gw, gh, level)
    assert cost_counts((gw, gh), level) == tree.cost_counts
    code = (tree.level << LEVEL) + (tree.corner[:, 1] << ROW) + tree.corner[:, 0]
    nodes = Nodes.of(code)
    assert torch.equal(torch.stack(nodes.edges(gw, gh), dim=1).double(), tree.boxes(torch.arange(tree.count)))
    inner = Nodes(*(part[: tree.internal] for part in nodes))
    assert torch.equal(inner.cost(gw, gh), tree.cost)
    children = children_of(code[: tree.internal], *inner.below(gw, gh)).view(4, -1).T
    expected = torch.cat((code, torch.tensor([NO_NODE])))[tree.children]
    assert torch.equal(children[:, [0, 2, 1, 3]], expected)  # the tables list them row by row
    is_context = torch.arange(tree.count) < tree.internal
    key = nodes.reading_key(gw, gh, is_context)
    several = (tree.cost > 0).nonzero()[:, 0]  # the only ones that become context
    assert torch.equal(key[several].argsort(), tree.context_rank[several].argsort())
    assert key[: tree.internal].amax() < 0 <= key[tree.internal :].amin()
    leaves = torch.arange(tree.internal, tree.count)
    assert torch.equal(key[leaves].argsort(), tree.rank[leaves].argsort())


@pytest.mark.parametrize(("w", "h"), [(1, 1), (1, 9), (5, 3), (8, 8), (13, 6)])
def test_children_of_a_level_in_spreading_order_are_in_spreading_order(w, h):
    parents = level_nodes(-(-w // 2), -(-h // 2), 1)[1]
    children = children_of(parents, 0, w, h)
    x, y = (part[children >= 0] for part in Nodes.of(children)[1:])
    assert torch.equal(y * w + x, spread_order(w, h))


def test_bounds_on_splits():
    for counts, tokens in (((2, 5, 0, 40), 30), ((0, 0, 0, 10), 100), ((3, 0, 0, 0), 0)):
        cheapest = np.cumsum(np.repeat(np.arange(4), counts))
        assert most_splits(counts, tokens) == (cheapest <= tokens).sum()


def test_is_among():
    values, others = torch.randint(0, 50, (3, 40)), torch.randint(0, 50, (3, 20))
    expected = torch.tensor(
        [[v in row for v in own] for own, row in zip(values.tolist(), others.tolist(), strict=True)]
    )
    assert torch.equal(is_among(values, others), expected)


def test_what_it_refuses():
    density = torch.rand(32, 32)
    for options, message in (
        ({"depth": 1}, "depth=1 makes 256 roots of 32x32 leaves for 100 tokens: use a depth from 4 to 5"),
        ({"depth": 9}, "use a depth from 4 to 5"),
        ({"depth": 0}, "depth is a level of cells that can be split"),
        ({"context_level": 0}, "context_level is a level"),
        ({"foveal_share": 0.3}, "there is none: give fixation="),
    ):
        errors = [_message(density, name, options) for name in ("hi-z", DEFAULT)]
        assert errors[0] == errors[1] and message in errors[0]
    with pytest.raises(BudgetError, match="at least 16"):
        homunculus.allocate(density, 15, "hi-z")


def _message(density: torch.Tensor, name: str, options: dict) -> str:
    with pytest.raises(AllocatorError) as caught:
        homunculus.allocate(density, 100, name, **options)
    return str(caught.value)


def test_tree_level():
    assert tree_level((64, 64), 273) == root_level(64, 64, 273) == 4
    assert tree_level((64, 64), 273, 6) == 6


@pytest.mark.gpu
@pytest.mark.parametrize("grid", [(64, 64), (61, 45), (5, 300), (512, 512)])
def test_a_gpu_keeps_empty_places_and_finds_the_same(grid):
    """No early out there, and no waiting."""
    density = torch.rand(4, grid[1], grid[0], dtype=torch.float64) ** 6
    density[1], density[2] = 0, (density[2] * 4).floor()
    masses = mass_pyramid(density, tree_level(grid, 273))
    on_gpu = [mass.cuda() for mass in masses]
    hi_z_cut(on_gpu, 273)
    with no_sync():
        found = hi_z_cut(on_gpu, 273)
    expected = hi_z_cut(masses, 273)
    for part, own in zip((*found.nodes, found.is_context), (*expected.nodes, expected.is_context), strict=True):
        assert torch.equal(part.cpu(), own)
    assert torch.equal(found.visited.cpu(), expected.visited)
