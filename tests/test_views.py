"""An overview and crops: rectangular grids that add up, crops on what matters, nothing twice."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.views import (
    _leaves_room,
    _rectangles,
    choose_grids,
    crop_corners,
    tent_sum,
    view_grids,
    window_sum,
)
from homunculus.errors import AllocatorError, BudgetError
from homunculus.structures import View
from tests.strategies import densities


def view_of(density: torch.Tensor, **fields) -> View:
    return View(density, (density.shape[2] * 16, density.shape[1] * 16), **fields)


def fixed(*points: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor([points], dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------------ the grids


@st.composite
def grids(draw) -> tuple[int, int]:
    """Ordinary, narrow and flat ones."""
    most = draw(st.sampled_from([(70, 70), (5, 300), (300, 5), (1, 400)]))
    gw, gh = draw(st.integers(1, most[0])), draw(st.integers(1, most[1]))
    return (gw, gh) if gw * gh >= 2 else (2, 1)


@settings(max_examples=10 * settings.default.max_examples)
@given(grids(), st.data())
def test_one_crop_always_fits(grid, data):
    """Any grid and any budget from 2 to all of its leaves."""
    budget = data.draw(st.integers(2, grid[0] * grid[1]) | st.just(grid[0] * grid[1]))
    overview, crop = choose_grids(budget, grid, (grid[0] * 16, grid[1] * 16))
    assert math.prod(overview) + math.prod(crop) == budget
    assert 1 <= crop[0] <= grid[0] and 1 <= crop[1] <= grid[1]
    assert 1 <= overview[0] <= grid[0] and 1 <= overview[1] <= grid[1]
    assert 2 * math.prod(overview) <= grid[0] * grid[1]  # coarser than leaves: no cell can come twice


def test_known_grids():
    assert choose_grids(273, (64, 64), (1024, 1024)) == ((9, 9), (16, 12))
    assert choose_grids(273, (64, 64), (1024, 1024), 1, (8, 8)) == ((8, 8), (19, 11))
    assert choose_grids(273, (64, 64), (1024, 1024), 2) == ((9, 9), (12, 8))
    assert choose_grids(273, (10, 64), (160, 1024), 1, (9, 9)) == ((9, 9), (8, 24))  # 16 columns do not fit


@given(st.integers(100, 600), st.floats(0.5, 2.0))
def test_grids_have_sensible_shapes(budget, aspect):
    """Not the best possible proof, but no grid is a ribbon and the image is not squashed by half."""
    gw, gh = round(48 * math.sqrt(aspect)), round(48 / math.sqrt(aspect))
    overview, crop = choose_grids(budget, (gw, gh), (gw * 16, gh * 16))
    assert 2 / 3 < (gw / overview[0]) / (gh / overview[1]) < 3 / 2
    assert 1 / 3 < crop[0] / crop[1] < 3
    assert 0.15 < math.prod(overview) / budget < 0.5


def test_rectangles_are_all_divisors_that_fit():
    for cells, grid in ((12, (5, 9)), (36, (6, 6)), (7, (3, 3)), (30, (40, 2)), (5, (1, 5))):
        expected = {(c, cells // c) for c in range(1, cells + 1) if cells % c == 0}
        expected = {(c, r) for c, r in expected if c <= grid[0] and r <= grid[1]}
        found = list(_rectangles(cells, grid))
        assert set(found) == expected and len(found) == len(expected)


# ------------------------------------------------------------------------------------------------------------ the cells


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_exact_distinct_inside_and_the_same_alone(data):
    gw, gh = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 40))
    crops = data.draw(st.integers(1, 4))
    budget = data.draw(st.integers(2, gw * gh))
    density = data.draw(densities((2, gh, gw)))
    size = data.draw(st.integers(gw, 900)), data.draw(st.integers(gh, 900))
    corner = [(0, 0), (size[0], size[1])]
    options = {"crops": crops, "image_size": size, "fixation": data.draw(st.sampled_from([None, (1, 2), corner]))}
    try:
        overview, crop = choose_grids(budget, (gw, gh), size, crops)
    except BudgetError:
        with pytest.raises(BudgetError, match="do not divide"):
            homunculus.allocate(density, budget, "views", **options)
        assert crops > 1
        return
    allocation = homunculus.allocate(density, budget, "views", **options)
    assert allocation.boxes.shape == (2, budget, 4) and allocation.kind == "box"
    assert (allocation.boxes[..., :2] >= 0).all()
    assert (allocation.boxes[..., 2] <= size[0]).all() and (allocation.boxes[..., 3] <= size[1]).all()
    assert (allocation.boxes[..., 2:] > allocation.boxes[..., :2]).all()
    for image in range(2):
        assert allocation.boxes[image].unique(dim=0).shape[0] == budget
    assert (homunculus.coverage(allocation).union > 1 - 1e-9).all()
    assert ((allocation.levels == 0).sum(1) == crops * math.prod(crop)).all()  # native resolution
    assert ((allocation.levels > 0).sum(1) == math.prod(overview)).all()
    alone = homunculus.allocate(density[1], budget, "views", **options)
    for field in ("boxes", "levels", "scores", "eccentricity", "gaze"):
        assert torch.equal(getattr(alone, field)[0], getattr(allocation, field)[1]), field


def test_the_layout_is_there_to_use():
    """Grid by grid: what an encoder of ordinary images is given."""
    density = torch.zeros(1, 48, 64, dtype=torch.float64)
    density[0, 40, 10] = 1
    view = View(density, (1000, 750))
    layout = view_grids(view, 273, crops=2)
    columns, rows = layout.overview
    assert layout.boxes.shape == (1, 3, 4) and layout.boxes[0, 0].tolist() == [0, 0, 64, 48]
    assert columns * rows + 2 * math.prod(layout.crop) == 273
    cells = layout.cells()[0]
    assert cells[:columns, 0].tolist() == [pytest.approx(64 * i / columns) for i in range(columns)]
    assert (cells[:columns, 1] == 0).all() and cells[columns * rows - 1, 2:].tolist() == [64, 48]
    crop = cells[columns * rows :][: math.prod(layout.crop)]
    assert crop[0, :2].tolist() == layout.boxes[0, 1, :2].tolist()
    assert crop[-1, 2:].tolist() == layout.boxes[0, 1, 2:].tolist()
    assert ((crop[:, 2:] - crop[:, :2]) == 1).all()
    allocation = homunculus.allocation.allocate_view(view, 273, "views", crops=2)
    pixels = cells * torch.tensor([1000 / 64, 750 / 48] * 2, dtype=torch.float64)
    assert sorted(map(tuple, pixels.float().tolist())) == sorted(map(tuple, allocation.boxes[0].tolist()))


# --------------------------------------------------------------------------------------------------- where the crops go


def test_the_crop_is_centred_on_a_peak():
    for x, y in ((30, 20), (0, 0), (63, 47), (3, 40)):
        density = torch.zeros(1, 48, 64, dtype=torch.float64)
        density[0, y, x] = 1
        left, top = crop_corners(view_of(density), (11, 7), 1)[0, 0].tolist()
        assert (left, top) == (min(max(x - 5, 0), 64 - 11), min(max(y - 3, 0), 48 - 7))


def test_a_flat_density_is_cropped_in_the_middle():
    for value in (0.0, 1.0):
        corner = crop_corners(view_of(torch.full((1, 20, 30), value, dtype=torch.float64)), (10, 6), 1)
        assert corner.tolist() == [[[10, 7]]]


def test_the_crop_goes_where_the_gaze_is():
    density = torch.zeros(3, 40, 40, dtype=torch.float64)
    density[:, 30, 30] = 1
    fixations = torch.cat((fixed((104, 88, 1.0)), fixed((640, 0, 1.0)), fixed((104, 88, 0.0))))
    view = view_of(density, fixations=fixations)
    assert crop_corners(view, (5, 5), 1)[:, 0].tolist() == [[4, 3], [35, 0], [28, 28]]  # the last one has no weight
    allocation = homunculus.allocation.allocate_view(view, 60, "views")
    assert allocation.gaze[:2].tolist() == [[104, 88], [640, 0]]
    crop = view_grids(view, 60).boxes[2, 1]
    assert allocation.gaze[2].tolist() == ((crop[:2] + crop[2:]) * 8).tolist()  # where it looked of itself


def test_crops_follow_fixations_then_peaks():
    density = torch.zeros(1, 40, 40, dtype=torch.float64)
    density[0, 30, 30], density[0, 20, 5] = 2, 1
    padded = fixed((0, 0, 0.0), (328, 328, 1.0))  # padding first: it does not count
    corners = crop_corners(view_of(density, fixations=padded), (5, 5), 3)[0].tolist()
    assert corners == [[18, 18], [28, 28], [3, 18]]


@given(st.data())
def test_crops_never_overlap(data):
    gw, gh = data.draw(st.integers(4, 24)), data.draw(st.integers(4, 24))
    crop = data.draw(st.integers(1, gw // 2)), data.draw(st.integers(1, gh // 2))
    crops = data.draw(st.integers(2, 5))
    if not _leaves_room(crop, (gw, gh), crops):
        return
    density = data.draw(densities((1, gh, gw)))
    points = data.draw(st.lists(st.tuples(st.floats(0, gw * 16), st.floats(0, gh * 16)), max_size=crops))
    fixations = fixed(*((x, y, 1.0) for x, y in points)) if points else None
    corners = crop_corners(view_of(density, fixations=fixations), crop, crops)[0].tolist()
    leaves = {(x + i, y + j) for x, y in corners for i in range(crop[0]) for j in range(crop[1])}
    assert len(leaves) == crops * crop[0] * crop[1]
    assert all(0 <= x < gw and 0 <= y < gh for x, y in leaves)


def test_the_second_crop_takes_the_next_peak():
    density = torch.rand(1, 50, 50, dtype=torch.float64) * 0.01
    density[0, 10:14, 10:14], density[0, 35:39, 30:34] = 1.0, 0.9
    first, second = crop_corners(view_of(density), (6, 6), 2)[0].tolist()
    assert first == [9, 9] and second == [29, 34]


@pytest.mark.parametrize("length", range(1, 14))
def test_sums_over_windows(length):
    x = torch.rand(2, 13, 17, dtype=torch.float64)
    plain = torch.stack([x[:, i : i + length].sum(1) for i in range(14 - length)], dim=1)
    assert torch.allclose(window_sum(x, length, 1), plain)
    weights = torch.tensor([min(i + 1, length - i) for i in range(length)], dtype=torch.float64)
    tent = torch.stack([(x[:, :, i : i + length] * weights).sum(2) for i in range(18 - length)], dim=2)
    assert torch.allclose(tent_sum(x, length, 2), tent)


# -------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"crops": 0}, AllocatorError, "crops is how many crops to make, 1 or more, got 0"),
        ({"crops": True}, AllocatorError, "got True"),
        ({"overview": 9}, AllocatorError, r"overview is \(columns, rows\), both whole numbers above 0, got 9"),
        ({"overview": (3, 0)}, AllocatorError, "above 0"),
        (
            {"overview": (10, 10)},
            BudgetError,
            "on 64x64 leaves .* 1 equal crops beside an overview of 10x10",
        ),
        ({"overview": (64, 64)}, BudgetError, "beside an overview of 64x64"),
        ({"budget": 4, "crops": 4}, BudgetError, "an overview and 4 equal crops: change the budget"),
        ({"budget": 1}, BudgetError, "at least 2"),
    ],
)
def test_what_it_refuses(options, error, message):
    with pytest.raises(error, match=message) as caught:
        homunculus.allocate(torch.rand(64, 64), **{"budget": 273, "allocator": "views"} | options)
    assert "\n" not in str(caught.value)


def test_in_the_pipeline():
    image = torch.randint(0, 256, (3, 300, 500), dtype=torch.uint8)
    tokens = homunculus.foveate(image, "top left", allocator="views")
    assert tokens.patches.shape == (1, 273, 3, 16, 16)
    assert homunculus.reconstruct(tokens).mask.all()
