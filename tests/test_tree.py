"""The tree beyond its count: published histograms, symmetry, nesting, context, depth, relaxation, detail."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.heap import heap_allocation
from homunculus.allocation.hierarchical import HierarchicalAllocator, detail_masses, foveated_density
from homunculus.allocation.soft import gumbel, soft_cut
from homunculus.allocation.tree import longest_prefix, tree_over
from homunculus.density import normalise, with_floor
from homunculus.errors import AllocatorError, BudgetError, DensityError
from homunculus.geometry import root_level
from homunculus.pyramid import ImagePyramid, mass_pyramid
from homunculus.reconstruct import reconstruct
from homunculus.sampling import sample
from homunculus.structures import Allocation, View, VisualTokens
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
    for depth in (-1, 0, 1, 2, 7, 99):
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


# ----------------------------------------------------------------------------------------------------------- relaxation


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
    density = gumbel(
        torch.rand(4, 64, 64, dtype=torch.float64) + 0.1, scale=1.0, generator=torch.Generator().manual_seed(1)
    )
    assert (density > 0).all()
    assert (homunculus.coverage(plain(273)(view_of(density))).union == 1).all()
    again = gumbel(torch.ones(1, 4, 4, dtype=torch.float64), 1.0, torch.Generator().manual_seed(1))
    assert not torch.equal(
        again, gumbel(torch.ones(1, 4, 4, dtype=torch.float64), 1.0, torch.Generator().manual_seed(2))
    )


def test_soft_cut_wants_a_positive_density():
    with pytest.raises(DensityError, match="above 0 everywhere"):
        plain(16).soft(view_of(torch.zeros(1, 16, 16, dtype=torch.float64)))


# -------------------------------------------------------------------------------------------------------------- details


def test_foveated_density_is_half_and_half():
    density = torch.rand(2, 16, 16, dtype=torch.float64)
    fixations = torch.tensor([[[40.0, 40.0, 1.0]], [[0.0, 0.0, 0.0]]], dtype=torch.float64)
    view = view_of(density, fixations=fixations)
    both = foveated_density(view, floor=0.0)
    gaze = foveated_density(view, fixation_share=1.0, floor=0.0)
    assert torch.allclose(both[0], 0.5 * normalise(density)[0] + 0.5 * gaze[0])
    assert torch.equal(both[1], normalise(density)[1])  # nobody looks: relevance alone


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


def test_detail_tree_first_split_removes_the_most_error():
    """The first split of a best-first list is the best single split, measured on reconstructions."""
    image = torch.rand(1, 3, 128, 128)
    image[..., 64:, :64] = 0.5
    pyramid = ImagePyramid(image, (8, 8))
    view = view_of(torch.ones(1, 8, 8, dtype=torch.float64), pyramid=pyramid)
    allocation = HierarchicalAllocator(detail_masses, 16, depth=3)(view)
    tokens = VisualTokens(sample(image, allocation), allocation)
    assert (reconstruct(tokens).images - image).square().mean() < 0.09
    assert allocation.levels[0][(allocation.centers[0][:, 0] < 64) & (allocation.centers[0][:, 1] > 64)].min() == 2


def test_the_prefix_bound_is_never_too_short():
    for gw, gh in ((64, 64), (17, 33), (5, 90)):
        for budget in (16, 50, 273):
            if budget > gw * gh:
                continue
            tree = tree_over(gw, gh, root_level(gw, gh, budget))
            cheapest = tree.cost.sort().values.cumsum(0)
            assert longest_prefix(tree, budget) == int((cheapest <= budget - tree.roots).sum())
