"""What is left to see, against pixels and by hand, and where it leads the gaze."""

import itertools
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation import make_allocation
from homunculus.density import with_floor
from homunculus.foveate import make_view
from homunculus.relevance.maps import QUIET
from homunculus.structures import Allocation, View
from homunculus.unseen import inhibition, left_to_see, next_fixation, shown_level
from tests.strategies import densities
from tests.test_foveate import picture

# ------------------------------------------------------------------------------------------------ what is left to see


def test_left_is_the_error_of_the_picture_the_model_sees():
    """Against the reconstruction, pixel by pixel: squared error over a leaf, weighed by its relevance."""
    image = picture(256, 192).float() / 255
    view = make_view(image, fixation=(60, 50), budget=100)
    tokens = homunculus.foveate(image, fixation=(60, 50), budget=100)
    error = (homunculus.reconstruct(tokens).images[0] - image).double().square().mean(0)
    by_leaf = error.unflatten(0, (12, 16)).unflatten(2, (16, 16)).sum((1, 3))
    expected = with_floor(view.relevance)[0] * (by_leaf.sqrt() / 16 - QUIET).clamp(min=0)
    found = left_to_see(view, shown_level(tokens.allocation))[0]
    assert torch.allclose(found, expected, atol=1e-7 * expected.max().item(), rtol=1e-3)
    assert (found[shown_level(tokens.allocation)[0] == 0] == 0).all()


def test_where_there_is_no_cell_everything_is_left():
    image = picture(256, 256)
    view = make_view(image, budget=64)
    gaps = shown_level(homunculus.foveate(image, budget=64, allocator="topk").allocation)
    assert gaps.isinf().sum() == 256 - 64 and (gaps[gaps.isfinite()] == 0).all()
    nothing = left_to_see(view, torch.full_like(gaps, torch.inf))
    coarse = left_to_see(view, torch.full_like(gaps, 4.0))
    assert (nothing >= coarse).all() and (left_to_see(view, gaps) == torch.where(gaps.isinf(), nothing, 0)).all()
    levels = [left_to_see(view, torch.full_like(gaps, level)).sum() for level in (0.0, 0.5, 1.0, 1.7, 2.0, 3.0)]
    assert levels[0] == 0 and all(b > a for a, b in itertools.pairwise(levels))


def test_bands_wider_than_a_leaf_are_shared_by_its_leaves():
    """Black and white squares of 8 pixels, 2 x 2 leaves: every pixel is half a step from the mean of a wider block."""
    squares = ((torch.arange(64)[:, None] // 8 + torch.arange(64) // 8) % 2).float().expand(3, -1, -1)
    view = make_view(squares, budget=16, leaf=4, relevance="uniform")
    assert view.grid == (16, 16)
    for level, contrast in ((3.0, 0.0), (4.0, 0.5), (math.inf, 0.5)):  # 3 shows blocks of 8 pixels
        left = left_to_see(view, torch.full((1, 16, 16), level, dtype=torch.float64))
        assert torch.allclose(left, torch.full_like(left, max(0.0, contrast - QUIET) / 256), rtol=1e-6)


def test_what_is_not_relevant_is_not_quite_nothing():
    relevance = torch.zeros(16, 16)
    relevance[3, 4] = 1.0
    view = make_view(picture(256, 256), budget=64, relevance=relevance)
    left = left_to_see(view, torch.full((1, 16, 16), 2.0, dtype=torch.float64))
    assert (left > 0).all() and left[0, 3, 4] == left.max()


@settings(max_examples=40)
@given(st.data())
def test_shown_levels_by_hand(data):
    gw, gh = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    low = torch.rand(2, 6, 2, generator=generator, dtype=torch.float64)
    high = low + (1 - low) * torch.rand(2, 6, 2, generator=generator, dtype=torch.float64)
    boxes = torch.cat((low, high), dim=-1) * torch.tensor([gw, gh, gw, gh])
    turned = data.draw(st.booleans())
    angle = torch.rand(2, 6, generator=generator) * 3 if turned else None
    view = View(torch.ones(2, gh, gw, dtype=torch.float64), (gw * 10, gh * 12))
    allocation = make_allocation(view, boxes, "rotated" if turned else "box", angle=angle)
    found = shown_level(allocation)
    for image in range(2):
        for row in range(gh):
            for column in range(gw):
                x, y = (column + 0.5) * 10, (row + 0.5) * 12
                inside = [
                    allocation.levels[image, cell].item() for cell in range(6) if holds(allocation, image, cell, x, y)
                ]
                assert found[image, row, column] == min(inside, default=math.inf)


def holds(allocation: Allocation, image: int, cell: int, x: float, y: float) -> bool:
    x0, y0, x1, y1 = allocation.boxes[image, cell].tolist()
    turn = complex(x - (x0 + x1) / 2, y - (y0 + y1) / 2) * np.exp(-1j * allocation.angle[image, cell].item())
    return abs(turn.real) <= (x1 - x0) / 2 and abs(turn.imag) <= (y1 - y0) / 2


def test_large_grids_are_walked_in_parts(monkeypatch):
    allocation = homunculus.allocate(torch.rand(3, 40, 30), 100, fixation=(100, 100))
    whole = shown_level(allocation)
    monkeypatch.setattr("homunculus.unseen.CHUNK", 1)
    assert torch.equal(shown_level(allocation), whole)


# ------------------------------------------------------------------------------------------------ where the gaze goes


def test_inhibition_by_hand():
    fixations = torch.tensor([[[30.0, 20.0, 1.0], [90.0, 70.0, 1.0], [50.0, 50.0, 0.0]]]).double()
    found = inhibition(fixations, (10, 8), (100, 80), 0.2)
    for row in range(8):
        for column in range(10):
            expected = 1.0
            for x, y in ((30, 20), (90, 70)):
                reach = math.dist((column * 10 + 5, row * 10 + 5), (x, y)) / 20
                expected *= reach**4 / (1 + reach**4)
            assert math.isclose(found[0, row, column], expected, rel_tol=1e-12)


@settings(max_examples=100)
@given(st.data())
def test_the_gaze_keeps_away_from_where_it_was(data):
    """Any density, on images no thinner than 3:1 (there is no away in a strip as wide as the radius): four fixations,
    all inside, no two nearer than half the radius."""
    size = data.draw(st.tuples(st.integers(300, 900), st.integers(300, 900)))
    grid = data.draw(st.tuples(st.integers(12, 40), st.integers(12, 40)))
    left = 0.2 + data.draw(densities((1, grid[1], grid[0]), "random"))
    fixations = torch.zeros(1, 0, 3, dtype=torch.float64)
    for _ in range(4):
        found = next_fixation(left, fixations, size)
        assert (found >= 0).all() and (found <= torch.tensor(size)).all()
        nearest = min((math.dist(found[0], old) for old in fixations[0, :, :2].tolist()), default=math.inf)
        assert nearest >= 0.5 * 0.15 * max(size)
        fixations = torch.cat((fixations, torch.nn.functional.pad(found, (0, 1), value=1.0)[:, None]), dim=1)


@given(st.data())
def test_awkward_maps_have_a_next_place_too(data):
    left = data.draw(densities((3, 12, 9)))
    fixations = torch.tensor([[[4.0, 5.0, 1.0], [80.0, 110.0, 0.0]]]).double().expand(3, -1, -1)
    found = next_fixation(left, fixations, (90, 120))
    assert found.isfinite().all() and (found >= 0).all() and (found <= torch.tensor([90, 120])).all()
    assert torch.equal(found[1:2], next_fixation(left[1:2], fixations[:1], (90, 120)))
    if not left[0].any():  # nothing left: as far away as can be
        assert math.dist(found[0], (4, 5)) > 100


def test_where_everything_was_looked_at_the_gaze_moves_on():
    """All that is left lies under the last fixation, in the very middle: not there again."""
    left = torch.zeros(1, 9, 9, dtype=torch.float64)
    left[0, 4, 4] = 1.0
    found = next_fixation(left, torch.tensor([[[72.0, 72.0, 1.0]]]).double(), (144, 144))
    assert math.dist(found[0], (72, 72)) > 0.15 * 144
