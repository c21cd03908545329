"""The tree beyond its count: published histograms, symmetry, nesting, context, depth, relaxation, detail."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.heap import heap_allocation
from homunculus.allocation.hierarchical import HierarchicalAllocator, detail_masses, foveated_density
from homunculus.allocation.tree import cut_tree, longest_prefix, mass_inside, tree_over
from homunculus.density import normalise
from homunculus.errors import AllocatorError, BudgetError, DensityError
from homunculus.geometry import root_level
from homunculus.pyramid import ImagePyramid, gaussian_pyramid, laplacian_pyramid, mass_pyramid
from homunculus.reconstruct import reconstruct
from homunculus.structures import Allocation, View, canonical_order
from tests.strategies import densities


def view_of(density: torch.Tensor, **fields) -> View:
    return View(density, (density.shape[2] * 16, density.shape[1] * 16), **fields)


def plain(budget: int = 273, **options) -> HierarchicalAllocator:
    return HierarchicalAllocator(lambda view: view.density, budget, **options)


def histogram(allocation: Allocation) -> list[int]:
    return torch.bincount(allocation.levels[0][~allocation.is_context[0]].long()).tolist()


# -------------------------------------------------------------------------------------------------------- what it gives


@pytest.mark.parametrize(
    ("fixation", "expected"),
    [((512, 512), [52, 83, 104, 32]), ((40, 40), [96, 64, 70, 41]), ((0, 0), [76, 69, 90, 36])],
)
def test_levels_around_a_bare_fixation(fixation, expected):
    """e0 = 3 leaves on 1024 x 1024: at the centre, 2.5 leaves from a corner, and in the corner."""
    allocation = homunculus.allocate(torch.ones(64, 64), 273, fixation=fixation, fixation_share=1.0)
    assert histogram(allocation) == expected
    assert allocation.is_context.sum() == 2


def test_cell_side_grows_with_eccentricity():
    """log side against log(e + e0) has slope 1 where neither leaf nor root binds."""
    allocation = homunculus.allocate(torch.ones(512, 512), 1024, fixation=(4100, 4090), fixation_share=1.0)
    cells = (allocation.levels[0] > 0) & (allocation.levels[0] < 6) & ~allocation.is_context[0]
    x = (allocation.eccentricity[0][cells] + 3).log().numpy()
    slope = np.polyfit(x, allocation.levels[0][cells].numpy() * np.log(2), 1)[0]
    assert 0.9 < slope < 1.1


@pytest.mark.parametrize(("budget", "level"), [(16, 4), (64, 3), (256, 2), (1024, 1), (4096, 0)])
def test_uniform_density_gives_an_ordinary_grid(budget, level):
    allocation = plain(budget)(view_of(torch.ones(1, 64, 64, dtype=torch.float64)))
    assert (allocation.levels == level).all() and not allocation.is_context.any()


@pytest.mark.parametrize("budget", [17, 100, 150, 273, 500, 1000])
def test_uniform_density_gives_at_most_two_levels(budget):
    levels = plain(budget)(view_of(torch.ones(1, 64, 64, dtype=torch.float64)))
    cells = levels.levels[0][~levels.is_context[0]]
    assert cells.max() - cells.min() <= 1


def test_leftovers_spread():
    """The splits beyond an ordinary grid do not pile up in one corner."""
    allocation = plain(64 + 3 * 16)(view_of(torch.ones(1, 64, 64, dtype=torch.float64)))
    fine = allocation.centers[0][allocation.levels[0] == 2]
    quadrant = (fine[:, 0] > 512).long() * 2 + (fine[:, 1] > 512).long()
    assert torch.bincount(quadrant, minlength=4).tolist() == [16, 16, 16, 16]


@given(st.data())
def test_mirrored_density_gives_the_mirrored_cells(data):
    density = data.draw(densities((1, 32, 64), kind="random"))
    allocation, mirrored = (plain(150)(view_of(d)) for d in (density, density.flip(2)))
    x0, y0, x1, y1 = mirrored.boxes[0].unbind(-1)
    back = torch.stack((1024 - x1, y0, 1024 - x0, y1), dim=-1)
    assert sorted(back.tolist()) == sorted(allocation.boxes[0].tolist())


def test_scores_are_the_relevance_inside():
    density = torch.rand(1, 64, 64, dtype=torch.float64)
    allocation = homunculus.allocate(density, 273, fixation=(10, 10))
    share = normalise(density)[0]
    for box, score in zip((allocation.boxes[0] / 16).int().tolist(), allocation.scores[0].tolist(), strict=True):
        assert np.isclose(score, share[box[1] : box[3], box[0] : box[2]].sum().item(), rtol=1e-6)


def test_a_grid_of_exactly_n_leaves_is_returned_as_it_is():
    for gw, gh in ((21, 13), (17, 16), (273, 1)):
        allocation = homunculus.allocate(torch.rand(gh, gw), gw * gh)
        expected = [[x * 16.0, y * 16.0, x * 16.0 + 16, y * 16.0 + 16] for y in range(gh) for x in range(gw)]
        assert allocation.boxes[0].tolist() == expected


def test_all_mass_in_one_leaf_is_followed_to_the_bottom():
    density = torch.zeros(1, 512, 512, dtype=torch.float64)
    density[0, 300, 77] = 1.0
    allocation = plain()(view_of(density))
    assert [77 * 16, 300 * 16, 78 * 16, 301 * 16] in allocation.boxes[0].tolist()


# --------------------------------------------------------------------------------------------------- nested, depth, max


def test_larger_budgets_refine_smaller_ones():
    view = view_of(torch.rand(2, 64, 64, dtype=torch.float64) ** 4)
    budgets = [100, 150, 273, 512]
    nested = plain().nested(view, budgets)
    assert [a.budget for a in nested] == budgets
    for coarse, fine in itertools.pairwise(nested):
        for image in range(2):
            parents = coarse.boxes[image][~coarse.is_context[image]]
            for box in fine.boxes[image][~fine.is_context[image]]:
                inside = (box[:2] >= parents[:, :2]).all(1) & (box[2:] <= parents[:, 2:]).all(1)
                assert inside.sum() == 1


def test_roots_of_the_smallest_budget_serve_all():
    view = view_of(torch.rand(1, 64, 64, dtype=torch.float64))
    level = root_level(64, 64, 20)
    assert torch.equal(plain().nested(view, [20, 1000])[1].boxes, plain(1000, depth=level)(view).boxes)


def test_depth_sets_the_roots():
    density = torch.zeros(1, 64, 64, dtype=torch.float64)
    density[0, 0, 0] = 1.0
    for depth in (3, 4, 5, 6):
        allocation = plain(200, depth=depth)(view_of(density))
        assert allocation.levels[~allocation.is_context].max() <= depth
        assert len(heap_allocation(density[0].numpy(), 200, depth)) == 200
    assert histogram(plain(20, depth=6)(view_of(density))) == [4, 3, 3, 3, 3, 3]  # one root, followed to the bottom
    for depth in (1, 2, 7, 99):
        with pytest.raises(AllocatorError, match=f"depth={depth} makes .* use a depth from"):
            plain(64, depth=depth)(view_of(density))


@pytest.mark.parametrize("size", [(512, 512), (1000, 250)])
def test_any_depth(size):
    """The leaves of 8192 x 8192 and 16000 x 4000 pixels."""
    density = torch.rand(1, size[1], size[0], dtype=torch.float64) ** 8
    allocation = plain()(view_of(density))
    assert (homunculus.coverage(allocation).union == 1).all()
    assert len(heap_allocation(density[0].numpy(), 273, root_level(*size, 273))) == 273


def test_options_that_make_no_sense():
    view = view_of(torch.rand(1, 16, 16, dtype=torch.float64) + 0.1)
    with pytest.raises(AllocatorError, match="temperature"):
        plain(16).soft(view, temperature=0.0)
    with pytest.raises(BudgetError, match="at least one"):
        plain(16).nested(view, [])
    with pytest.raises(AllocatorError, match="context_level"):
        plain(16, context_level=0)
    with pytest.raises(AllocatorError, match="depth is a level"):
        plain(16, depth=-1)
    for bad in (-1.0, float("nan"), float("inf")):
        density = view.density.clone()
        density[0, 3, 3] = bad
        with pytest.raises(DensityError, match="finite and at least 0"):
            plain(16)(view_of(density))
    with pytest.raises(DensityError, match=r"\[1, 8, 8\], but the view's grid is \[1, 16, 16\]"):
        HierarchicalAllocator(lambda view: torch.ones(1, 8, 8, dtype=torch.float64), 16)(view)


def test_maximum_instead_of_sum_follows_the_peak():
    density = torch.full((1, 64, 64), 0.5, dtype=torch.float64)
    density[0, 10, 10] = 0.6  # too little to matter in a sum
    levels = [plain(100, reduce=reduce)(view_of(density)).levels.min().item() for reduce in ("sum", "max")]
    assert levels == [2, 0]


# -------------------------------------------------------------------------------------------------------------- context


@given(st.data())
def test_context_level_keeps_every_split_cell_of_that_level(data):
    gw, gh = data.draw(st.sampled_from([(64, 64), (32, 32), (61, 45), (19, 40)]))
    budget = data.draw(st.integers(16, 400))
    context_level = data.draw(st.integers(1, 4))
    density = data.draw(densities((1, gh, gw))) ** data.draw(st.sampled_from([1, 6]))
    level = root_level(gw, gh, budget)
    allocation = plain(budget, context_level=context_level)(view_of(density))
    cells = heap_allocation(density[0].numpy(), budget, level, context_level)
    assert len(cells) == budget == allocation.boxes[0].unique(dim=0).shape[0]
    assert (allocation.boxes[0] / 16).tolist() == [list(map(float, cell.box)) for cell in cells]
    assert allocation.is_context[0].tolist() == [cell.is_context for cell in cells]
    assert (homunculus.coverage(allocation).union == 1).all()
    # Every split cell of that level and above is a token too, but for three at most.
    kept = {(cell.level, cell.x, cell.y) for cell in cells if cell.is_context}
    split = set()
    for cell in cells:
        for up in range(1, level - cell.level + 1):
            x, y = cell.x >> up, cell.y >> up
            half = 1 << (cell.level + up - 1)
            only_child = (2 * x + 1) * half >= gw and (2 * y + 1) * half >= gh
            if not cell.is_context and not only_child:
                split.add((cell.level + up, x, y))
    wanted = {node for node in split if node[0] >= context_level}
    assert len(wanted - kept) <= 3
    assert kept <= split


def test_context_comes_out_of_the_budget():
    """With every split cell kept a split costs 4: 272 tokens pay for 64; 273 for 65, of which 62 keep their token."""
    view = view_of(torch.rand(1, 64, 64, dtype=torch.float64))
    assert plain(272, context_level=1)(view).is_context.sum() == 64
    assert plain(273, context_level=1)(view).is_context.sum() == 62


def test_a_clipped_cell_with_one_child_is_not_kept_twice():
    density = torch.zeros(1, 17, 17, dtype=torch.float64)
    density[0, 16, 16] = 1.0  # alone in the corner, under cells of level 1, 2, ... that hold nothing else
    allocation = plain(20)(view_of(density))
    assert allocation.boxes[0].unique(dim=0).shape[0] == 20


# -------------------------------------------------------------------------------------------------------------- details


def test_foveated_density_mixes_as_asked():
    density = torch.rand(2, 16, 16, dtype=torch.float64)
    fixations = torch.tensor([[[40.0, 40.0, 1.0]], [[0.0, 0.0, 0.0]]], dtype=torch.float64)
    view = view_of(density, fixations=fixations)
    gaze = foveated_density(view, fixation_share=1.0, floor=0.0)
    for share in (0.3, 0.5):
        both = foveated_density(view, fixation_share=share, floor=0.0)
        assert torch.allclose(both[0], (1 - share) * normalise(density)[0] + share * gaze[0], rtol=1e-12)
        assert torch.equal(both[1], normalise(density)[1])  # nobody looks: relevance alone


def test_foveated_density_has_a_floor():
    one_hot = torch.zeros(1, 16, 16, dtype=torch.float64)
    one_hot[0, 3, 3] = 1.0
    assert torch.allclose(foveated_density(view_of(one_hot))[0, 10:], torch.tensor(0.02 / 256, dtype=torch.float64))
    assert foveated_density(view_of(one_hot), floor=0.0)[0, 10:].max() == 0
    peaked = torch.rand(32, 32)
    peaked[:8, :8] *= 100
    coarse, none = (homunculus.allocate(peaked, 100, floor=f).boxes for f in (0.9, 0.0))
    assert not torch.equal(coarse, none)


def test_geometry_of_the_cells():
    """Centres are the middles of the boxes; eccentricity is their distance to the nearest fixation, in leaves."""
    allocation = homunculus.allocate(torch.rand(30, 40), 100, image_size=(700, 500), fixation=[(100, 50), (600, 400)])
    boxes = allocation.boxes[0].double()
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    assert torch.allclose(allocation.centers[0].double(), middles, atol=1e-4)
    points = torch.tensor([[100.0, 50.0], [600.0, 400.0]], dtype=torch.float64)
    side = (700 / 40 * 500 / 30) ** 0.5
    assert torch.allclose(allocation.eccentricity[0].double(), torch.cdist(middles, points).amin(1) / side, atol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_canonical_order_survives_rounding(seed):
    """Clipped grids at odd scales: the order of the tree is the order of the float32 centres it reports."""
    generator = torch.Generator().manual_seed(seed)
    gw, gh, width, height = (int(n) for n in torch.randint(5, 90, (4,), generator=generator))
    density = torch.rand(8, gh, gw, generator=generator, dtype=torch.float64) ** 4
    budget = min(60, gw * gh)
    allocation = plain(budget)(View(density, (width, height)))
    order = canonical_order(allocation.centers, allocation.levels, allocation.is_context)
    assert torch.equal(order, torch.arange(budget).expand(8, -1))


def test_detail_tree_masses_are_the_error_of_each_cell():
    """m(cell) is the squared error of showing the cell by its own patch, and it never grows downwards."""
    image = torch.rand(1, 3, 128, 128)
    pyramid = ImagePyramid(image, (8, 8))
    density = torch.ones(1, 8, 8, dtype=torch.float64)
    masses = detail_masses(view_of(density, pyramid=pyramid))
    for level in (1, 2, 3):
        coarse = (
            torch.nn.functional.avg_pool2d(image, 1 << level)
            .repeat_interleave(1 << level, 2)
            .repeat_interleave(1 << level, 3)
        )
        error = (image - coarse).square().mean(1)
        by_cell = torch.nn.functional.avg_pool2d(error[:, None], 16 << level, divisor_override=1)[:, 0].double()
        assert torch.allclose(masses[level], by_cell / 64, rtol=1e-4)


def test_detail_tree_beats_a_uniform_grid_at_reconstruction():
    image = torch.full((1, 3, 256, 256), 0.5)
    image[..., 40:90, 130:220] = torch.rand(1, 3, 50, 90)
    errors = {}
    for name in ("detail-tree", "uniform"):
        tokens = homunculus.foveate(image, budget=64, allocator=name, relevance="uniform")
        errors[name] = (reconstruct(tokens).images - image).square().mean().item()
    assert errors["detail-tree"] < 0.5 * errors["uniform"]


def test_detail_tree_weighs_error_by_relevance():
    """Against the sum written out: every pixel of every band, times the mean relevance under it."""
    image = torch.rand(1, 3, 32, 32)
    density = normalise(torch.rand(1, 16, 16, dtype=torch.float64) ** 3)
    pyramid = ImagePyramid(image, (16, 16), leaf=2)  # a leaf of 2 pixels, so that bands grow beyond leaves
    masses = detail_masses(View(density, (32, 32), leaf=2, pyramid=pyramid), floor=0.0)
    levels = gaussian_pyramid(image, 5)
    bands = laplacian_pyramid(levels)
    expected = torch.zeros(1, 32, 32, dtype=torch.float64)  # by pixel
    for level in range(1, 5):
        band = bands[level - 1].double().square().mean(1)
        step = 1 << (level - 1)
        by_pixel = density.repeat_interleave(2, 1).repeat_interleave(2, 2)
        mean = torch.nn.functional.avg_pool2d(by_pixel, step)  # relevance of a leaf, averaged under a band pixel
        expected += (band * mean).repeat_interleave(step, 1).repeat_interleave(step, 2)
        by_cell = torch.nn.functional.avg_pool2d(expected[:, None], 2 << level, divisor_override=1)[:, 0]
        assert torch.allclose(masses[level], by_cell, rtol=1e-4), level


def test_detail_tree_looks_where_it_is_relevant():
    """Two equal patches of noise: the relevant one gets the finer cells."""
    image = torch.full((1, 3, 256, 256), 0.5)
    image[..., 32:96, 32:96] = image[..., 160:224, 160:224] = torch.rand(1, 3, 64, 64)
    relevance = torch.zeros(16, 16)
    relevance[8:, 8:] = 1.0
    allocation = homunculus.foveate(image, budget=40, allocator="detail-tree", relevance=relevance).allocation
    fine = allocation.centers[0][allocation.levels[0] == allocation.levels.min()]
    assert (fine > 128).all()


def test_the_prefix_bound_is_never_too_short():
    for gw, gh in ((64, 64), (17, 33), (5, 90)):
        for budget in (16, 50, 273):
            if budget > gw * gh:
                continue
            tree = tree_over(gw, gh, root_level(gw, gh, budget))
            cheapest = tree.cost.sort().values.cumsum(0)
            assert longest_prefix(tree, budget) == int((cheapest <= budget - tree.roots).sum())


# ----------------------------------------------------------------------------------------------- tables and short cuts


@pytest.mark.parametrize(("gw", "gh", "level"), [(64, 64, 4), (13, 7, 3), (1, 40, 5), (192, 192, 6)])
def test_the_tables_say_the_same_thing_twice(gw, gh, level):
    tree = tree_over(gw, gh, level)
    for slot in range(4):
        child = tree.children[:, slot]
        exists = child < tree.count
        assert torch.equal(tree.parent[child[exists]], torch.arange(tree.internal)[exists])
        keys = tree.child_keys[:, slot].long()
        assert torch.equal(tree.from_key[keys[exists]], child[exists]) and (keys[~exists] == tree.nowhere).all()
    assert torch.equal(tree.from_key[tree.root_keys.long()], torch.arange(tree.roots))
    assert torch.equal(tree.from_key[tree.context_rank.long()], torch.arange(tree.internal))
    assert torch.equal(tree.from_rank[tree.rank], torch.arange(tree.count))
    starts = [int((tree.level > above).sum()) for above in range(level, -1, -1)]
    assert tree.starts.tolist() == starts
    side = 1 << tree.level
    low = tree.corner * side[:, None]
    high = torch.minimum(low + side[:, None], torch.tensor([gw, gh]))
    nodes = torch.arange(tree.count)
    assert torch.equal(tree.boxes(nodes), torch.cat((low, high), dim=1).double())
    assert torch.allclose(tree.levels(nodes).double(), (high - low).prod(1).double().log2() / 2, atol=1e-6)


@pytest.mark.parametrize("budget", [16, 17, 18, 100, 272, 273, 274, 1000])
@given(st.data())
@settings(max_examples=10)
def test_a_budget_for_all_is_a_budget_for_each(budget, data):
    """Over full cells with one budget less has to be worked out; it must come to the same."""
    density = data.draw(densities((3, 32, 32)))
    tree = tree_over(32, 32, root_level(32, 32, budget))
    masses = tree.in_node_order(mass_pyramid(density, tree.root_level))
    short, long = cut_tree(tree, masses, budget), cut_tree(tree, masses, budget, own=torch.full((3, 1), budget))
    for field in ("nodes", "is_context", "filled"):
        assert torch.equal(getattr(short, field), getattr(long, field)), field


def test_trees_of_many_nodes_have_wider_keys():
    density = torch.rand(2, 192, 160, dtype=torch.float64) ** 6
    assert tree_over(160, 192, root_level(160, 192, 300)).child_keys.dtype == torch.int32
    allocation = plain(300)(view_of(density))
    for image in range(2):
        cells = heap_allocation(density[image].numpy(), 300, root_level(160, 192, 300))
        assert (allocation.boxes[image] / 16).tolist() == [list(map(float, cell.box)) for cell in cells]


def test_mass_inside_is_the_sum_over_the_box():
    density = torch.rand(2, 9, 14, dtype=torch.float64, requires_grad=True)
    tree = tree_over(14, 9, 3)
    nodes = torch.arange(tree.count).expand(2, -1)
    found = mass_inside(tree, density, nodes)
    for node, (x0, y0, x1, y1) in enumerate(tree.boxes(nodes[0]).int().tolist()):
        assert torch.allclose(found[:, node], density[:, y0:y1, x0:x1].sum((1, 2)), rtol=1e-12)
    (gradient,) = torch.autograd.grad(found[0, 0], density)
    x0, y0, x1, y1 = tree.boxes(nodes[0, :1]).int()[0].tolist()
    expected = torch.zeros_like(density)
    expected[0, y0:y1, x0:x1] = 1.0
    assert torch.equal(gradient, expected)
