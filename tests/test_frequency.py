"""`frequency`: exactly N different rectangles inside the image, shared out over the orientations of its strokes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import homunculus
from homunculus.allocation import allocate_view
from homunculus.allocation.frequency import band_budgets, favoured_band, mixed_density, stretch_cells
from homunculus.allocation.hierarchical import HierarchicalAllocator
from homunculus.allocation.tree import cut_tree, tree_over
from homunculus.density import normalise
from homunculus.errors import AllocatorError, BudgetError
from homunculus.foveate import make_view
from homunculus.geometry import root_level
from homunculus.pyramid import ImagePyramid
from homunculus.structures import Allocation, View
from tests.strategies import densities

STRETCHES = ("along", "across", "none")
KINDS = ("noise", "flat", "lines", "slashes")


def pixels(kind: str, batch: int, width: int, height: int, seed: int = 0) -> torch.Tensor:
    """uint8 images `[B, 3, H, W]`; the lines of image i are i + 2 pixels thick."""
    x, y = torch.arange(width), torch.arange(height)[:, None]
    thick = torch.arange(2, batch + 2)[:, None, None]
    match kind:
        case "flat":
            grey = torch.full((batch, height, width), 77)
        case "lines":
            grey = (y // thick % 2 * 200).expand(-1, -1, width)
        case "slashes":
            grey = (x + y) // thick % 2 * 200
        case _:
            generator = torch.Generator().manual_seed(seed)
            return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=generator)
    return grey[:, None].expand(-1, 3, -1, -1).to(torch.uint8)


def view_of(images: torch.Tensor, grid: tuple[int, int], leaf: int = 16, density=None, query=None) -> View:
    size = images.shape[3], images.shape[2]
    if density is None:
        density = torch.ones(len(images), grid[1], grid[0], dtype=torch.float64)
    return View(density, size, leaf, ImagePyramid(images, grid, leaf), query=query)


def corners(allocation: Allocation) -> torch.Tensor:
    """Of the turned rectangles, `[B, N, 4, 2]`, in pixels."""
    x0, y0, x1, y1 = allocation.boxes.double().unbind(-1)
    cos, sin = allocation.angle.double().cos(), allocation.angle.double().sin()
    found = []
    for u, v in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)):
        dx, dy = u * (x1 - x0), v * (y1 - y0)
        found.append(torch.stack(((x0 + x1) / 2 + dx * cos - dy * sin, (y0 + y1) / 2 + dx * sin + dy * cos), -1))
    return torch.stack(found, 2)


def directions(allocation: Allocation) -> torch.Tensor:
    """The direction of each cell's long side, in steps of 45 degrees from x towards y, `[B, N]`."""
    turned = corners(allocation)
    sides = torch.stack((turned[:, :, 1] - turned[:, :, 0], turned[:, :, 2] - turned[:, :, 1]), 2)
    longer = sides.square().sum(-1).argmax(2)[..., None, None].expand(-1, -1, 1, 2)
    dx, dy = sides.gather(2, longer)[:, :, 0].unbind(-1)
    return (torch.atan2(dy, dx) / (math.pi / 4)).round().long() % 4


def counts(allocation: Allocation) -> list[list[int]]:
    """How many cells of each image point in each direction."""
    return [torch.bincount(own, minlength=4).tolist() for own in directions(allocation)]


# -------------------------------------------------------------------------------------------------------- the promise


def assert_promise(allocation: Allocation, budget: int, size: tuple[int, int]) -> None:
    assert allocation.boxes.shape[1] == budget
    x0, y0, x1, y1 = allocation.boxes.unbind(-1)
    assert (x0 >= 0).all() and (y0 >= 0).all() and (x1 <= size[0]).all() and (y1 <= size[1]).all()
    assert (x0 < x1).all() and (y0 < y1).all()
    turned, slack = corners(allocation), 1e-6 * max(size)  # of float32 boxes
    assert (turned >= -slack).all() and (turned <= torch.tensor(size) + slack).all()
    cells = torch.cat((allocation.boxes, allocation.angle[..., None]), dim=-1)
    for own in cells:
        assert own.unique(dim=0).shape[0] == budget
    for i in range(len(allocation)):
        centres = allocation.centers[i][~allocation.is_context[i]].flip(1).tolist()
        assert centres == sorted(centres)
    assert (allocation.is_context.long().diff() <= 0).all()
    assert allocation.scores.isfinite().all() and allocation.levels.isfinite().all()


@given(st.data())
def test_exactly_n_different_cells_inside_any_image(data):
    gw = data.draw(st.integers(1, 40), "gw")
    gh = data.draw(st.integers(-(-64 // gw), max(-(-64 // gw), min(320 // gw + 1, 8 * gw + 8))), "gh")
    grid = (gw, gh) if data.draw(st.booleans()) else (gh, gw)
    leaf = data.draw(st.sampled_from([1, 2, 4, 7]))
    size = tuple(max(1, round(n * leaf * data.draw(st.floats(0.3, 3)))) for n in grid)
    budget = data.draw(st.one_of(st.integers(64, gw * gh), st.just(gw * gh)), "budget")
    images = pixels(data.draw(st.sampled_from(KINDS)), 2, *size, seed=budget)
    view = view_of(images, grid, leaf, data.draw(densities((2, grid[1], grid[0]))), ["What is written?", None])
    options = {
        "split": data.draw(st.sampled_from(["energy", "query", "equal"])),
        "stretch": data.draw(st.sampled_from(STRETCHES)),
        "floor": data.draw(st.sampled_from([0.0, 0.02, 1.0])),
    }
    allocation = allocate_view(view, budget, "frequency", **options)
    assert_promise(allocation, budget, size)

    alone = view_of(images[1:], grid, leaf, view.density[1:], [None])
    other = allocate_view(alone, budget, "frequency", **options)
    for field in ("boxes", "angle", "scores", "is_context"):
        assert torch.equal(getattr(allocation, field)[1:], getattr(other, field)), field


@pytest.mark.parametrize("grid", [(9, 8), (8, 9), (9, 17), (5, 13), (2, 33), (33, 2), (3, 22), (5, 60), (17, 23)])
@pytest.mark.parametrize("stretch", ["along", "across"])
def test_context_is_like_nothing_else(grid, stretch):
    """Grids whose border cells are clipped to next to nothing, where parent and child are almost the same cell."""
    view = view_of(pixels("noise", 1, grid[0] * 4, grid[1] * 4), grid, 4)
    seen = 0
    for budget in range(64, min(grid[0] * grid[1], 90) + 1):
        allocation = allocate_view(view, budget, "frequency", stretch=stretch)
        assert_promise(allocation, budget, view.image_size)
        seen += int(allocation.is_context.sum())
    assert seen > 0


@pytest.mark.parametrize("stretch", STRETCHES)
@pytest.mark.parametrize("size", [(1024, 128), (96, 768), (500, 390), (1, 1), (1, 300)])
def test_through_the_front_door(size, stretch):
    tokens = homunculus.foveate(pixels("noise", 2, *size), allocator="frequency", stretch=stretch, budget=100)
    assert_promise(tokens.allocation, 100, size)
    assert tokens.patches.shape == (2, 100, 3, 16, 16)
    assert homunculus.reconstruct(tokens).mask.double().mean() > (0.9 if min(size) > 1 else 0)  # gaps by design


# ----------------------------------------------------------------------------------------------------- shares of bands


@pytest.mark.parametrize(
    ("weights", "budget", "expected"),
    [
        ((128, 32, 32, 32), 224, [128, 32, 32, 32]),
        ((128, 32, 32, 32), 273, [156, 39, 39, 39]),
        ((32, 32, 128, 32), 273, [39, 39, 156, 39]),
        ((128, 32, 32, 32), 100, [52, 16, 16, 16]),
        ((128, 32, 32, 32), 113, [65, 16, 16, 16]),  # 64.6 + 16.1 + 16.1 + 16.1
        ((1, 1, 1, 1), 273, [69, 68, 68, 68]),
        ((1, 1, 1, 1), 64, [16, 16, 16, 16]),
        ((1, 0, 0, 0), 64, [16, 16, 16, 16]),
        ((1, 0, 0, 0), 1024, [976, 16, 16, 16]),
        ((5, 3, 0, 0), 96, [16 + 22, 16 + 10, 16, 16]),  # 60 - 16 and 36 - 16 above the least: 44:20 of 32
    ],
)
def test_known_shares(weights, budget, expected):
    shares = normalise(torch.tensor([[weights]], dtype=torch.float64))[:, 0]
    assert band_budgets(shares, budget, 4096)[0].tolist() == expected


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.integers(64, 4096))
def test_shares_are_rounded_by_less_than_a_token(weights, budget):
    shares = normalise(torch.tensor([[weights]], dtype=torch.float64))[:, 0]
    found = band_budgets(shares, budget, 4096)[0]
    assert found.sum() == budget and found.min() >= 16
    ideal = shares[0] * budget
    if ideal.min() >= 16:
        assert (found - ideal).abs().max() < 1
    order = shares[0].argsort(stable=True)
    assert (found[order].diff() >= -1).all()  # more energy, no fewer tokens; ties may be rounded apart


@pytest.mark.parametrize("stretch", ["along", "across"])
def test_strokes_draw_the_tokens_to_their_own_band(stretch):
    x, y = torch.arange(256), torch.arange(256)[:, None]
    drawn = [y + 0 * x, y - x, x + 0 * y, x + y]  # strokes at 0, 45, 90 and 135 degrees
    images = torch.stack([((place % 32 < 8) * 255).to(torch.uint8).expand(3, -1, -1) for place in drawn])
    found = counts(allocate_view(view_of(images, (16, 16)), 200, "frequency", stretch=stretch))
    for stroke, own in enumerate(found):
        direction = stroke if stretch == "along" else (stroke + 2) % 4
        assert own[direction] > 120 and max(own[:direction] + own[direction + 1 :]) < 40, (stroke, own)


def test_lines_of_type_are_horizontal_strokes():
    """Rows of little upright marks, as text is: the line counts, not the letters it is made of."""
    page = torch.full((3, 512, 512), 255, dtype=torch.uint8)
    for top in range(40, 470, 36):
        for left in range(32, 470, 6):
            page[:, top : top + 10, left : left + 2] = 0
    found = counts(allocate_view(make_view(page, relevance="uniform"), 273, "frequency"))[0]
    assert found[0] > 150 and found[0] > 3 * found[2]


def test_without_energy_the_bands_share_equally():
    allocation = allocate_view(view_of(pixels("flat", 1, 256, 256), (16, 16)), 200, "frequency")
    assert counts(allocation) == [[50, 50, 50, 50]]


def test_the_question_decides():
    queries = ["What does the headline say?", "How many windows has the tower?", "Is the dog asleep?", None]
    view = view_of(pixels("lines", 4, 272, 272), (17, 17), query=queries)
    found = counts(allocate_view(view, 273, "frequency", split="query"))
    assert found[:2] == [[156, 39, 39, 39], [39, 39, 156, 39]]
    assert found[2:] == [[69, 68, 68, 68]] * 2
    assert counts(allocate_view(view, 273, "frequency", split="equal")) == [[69, 68, 68, 68]] * 4
    for query, expected in (("Read this", [156, 39, 39, 39]), (torch.rand(8), [69, 68, 68, 68])):
        one = view_of(pixels("lines", 2, 272, 272), (17, 17), query=query)
        assert counts(allocate_view(one, 273, "frequency", split="query")) == [expected] * 2


@pytest.mark.parametrize(
    ("query", "band"),
    [
        ("Which initials are on the stamp?", 0),
        ("WHAT IS WRITTEN ON THE BUILDING?", 0),  # to read it is what is asked
        ("What colour is the façade?", 2),
        ("Is the thread red?", None),  # not "read"
        ("Where is the lighthouse keeper's dog?", None),  # not "house"
        ("", None),
    ],
)
def test_kinds_of_question(query, band):
    assert favoured_band(query) == band


# ---------------------------------------------------------------------------------------------------------- rectangles


def test_rectangles_keep_area_place_and_shape():
    """Well inside the image: same centre, same area, 2:1 in pixels, although a leaf is 20 x 10 pixels there."""
    cells = torch.tensor([[[8.0, 8, 12, 12]] * 4]).double()
    band, context = torch.arange(4)[None], torch.zeros(1, 4, dtype=torch.bool)
    for stretch in ("along", "across"):
        boxes, angle = stretch_cells(cells, band, context, stretch, (20, 20), (400, 200))
        width, height = (boxes[..., 2] - boxes[..., 0]) * 20, (boxes[..., 3] - boxes[..., 1]) * 10
        assert torch.allclose(width * height, torch.tensor(80.0 * 40).double())
        assert torch.allclose(boxes[..., :2] + boxes[..., 2:], torch.tensor(20.0).double())
        upright = 2 if stretch == "along" else 0
        expected = torch.full((4,), 2.0).double()
        expected[upright] = 0.5
        assert torch.allclose(width / height, expected)
        turn = math.pi / 4 if stretch == "along" else -math.pi / 4
        assert torch.allclose(angle, torch.tensor([[0.0, turn, 0.0, -turn]]))


def test_at_the_border_a_rectangle_moves_and_keeps_its_area():
    """With square leaves and room enough, a quarter of the cell is all it needs."""
    cells = torch.tensor([[[0.0, 0, 4, 4], [12, 12, 16, 16], [0, 12, 4, 16], [12, 0, 16, 4]]]).double()
    none = torch.zeros(1, 4, dtype=torch.bool)
    for band in range(4):
        boxes, _ = stretch_cells(cells, torch.full((1, 4), band), none, "along", (16, 16), (160, 160))
        area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
        assert torch.allclose(area, torch.tensor(16.0).double())
        moved = (boxes[..., :2] + boxes[..., 2:] - cells[..., :2] - cells[..., 2:]).abs() / 2
        assert (moved <= 1 + 1e-12).all()


def test_context_stays_in_place():
    cells, band = torch.tensor([[[0.0, 0, 16, 16]]]).double(), torch.tensor([[1]])
    boxes, angle = stretch_cells(cells, band, torch.tensor([[True]]), "along", (16, 16), (256, 256))
    (x0, y0, x1, y1) = boxes[0, 0].tolist()
    assert (x0 + x1, y0 + y1) == pytest.approx((16, 16))
    assert (x1 - x0) / (y1 - y0) == pytest.approx(math.sqrt(2))
    assert (x1 - x0 + y1 - y0) / math.sqrt(2) == pytest.approx(16)  # its corners touch the border
    assert angle.item() == pytest.approx(math.pi / 4)


def test_cells_are_those_of_the_bands_own_tree():
    """On a flat image all bands are alike: each holds the cells of one tree over relevance."""
    density = torch.rand(1, 16, 16, dtype=torch.float64) + 0.1
    view = view_of(pixels("flat", 1, 256, 256), (16, 16), density=density)
    allocation = allocate_view(view, 160, "frequency")
    tree = tree_over(16, 16, root_level(16, 16, 16))
    masses = HierarchicalAllocator(lambda view: view.relevance, 40)._masses(view, tree)
    nodes = cut_tree(tree, masses, 40).nodes[0]
    expected = ((tree.boxes(nodes)[:, 2:] - tree.boxes(nodes)[:, :2]).prod(1).log2() / 2).float()
    by_band = directions(allocation)[0]
    for band in range(4):
        own = by_band == band
        levels = allocation.levels[0][own]
        assert len(levels) == 40
        full = ~allocation.is_context[0][own]  # none of these had to shrink
        fine = torch.sort(levels[full & (levels < 3)]).values
        assert torch.allclose(fine, torch.sort(expected[expected < 3]).values, atol=1e-5)


def test_relevance_counts_even_where_there_is_nothing_to_see():
    density = torch.zeros(1, 32, 32, dtype=torch.float64)
    density[0, 20, 9] = 1.0
    images = pixels("lines", 1, 512, 512)
    images = images.clone()
    images[..., 256:, :] = 128  # blank around the spot
    allocation = allocate_view(view_of(images, (32, 32), density=density), 128, "frequency")
    spot = torch.tensor([9.5 * 16, 20.5 * 16])
    fine = allocation.levels[0] < 0.1
    near = (allocation.centers[0] - spot).abs().amax(1) < 32
    assert all((directions(allocation)[0][fine & near] == band).any() for band in range(4))


def test_squares_are_one_tree_and_tile():
    view = view_of(pixels("noise", 2, 320, 256), (20, 16))
    allocation = allocate_view(view, 100, "frequency", stretch="none")
    expected = HierarchicalAllocator(mixed_density, 100)(view)
    assert torch.equal(allocation.boxes, expected.boxes)
    assert (homunculus.coverage(allocation).union == 1).all()
    density = mixed_density(view)
    assert torch.allclose(density.sum((1, 2)), torch.ones(2).double())


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("budget", "options", "error", "message"),
    [
        (63, {}, BudgetError, "frequency needs a budget of at least 64, got 63"),
        (257, {}, BudgetError, "256 of them, fewer than the budget of 257"),
        (100, {"split": "colour"}, AllocatorError, "no split='colour': choose from energy, query, equal"),
        (100, {"stretch": "up"}, AllocatorError, "no stretch='up': choose from along, across, none"),
        (100, {"floor": 2.0}, homunculus.HomunculusError, "floor=2.0"),
    ],
)
def test_one_line_says_what_is_wrong(budget, options, error, message):
    with pytest.raises(error, match=message) as caught:
        allocate_view(view_of(pixels("noise", 1, 64, 64), (16, 16), 4), budget, "frequency", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stretch", STRETCHES)
def test_it_needs_pixels(stretch):
    with pytest.raises(AllocatorError, match="frequency looks at pixels and this view has none"):
        homunculus.allocate(torch.ones(16, 16), 100, "frequency", stretch=stretch)
