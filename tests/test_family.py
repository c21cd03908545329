"""One suite for every allocator there is: exactly N, distinct, in bounds, deterministic, alone as in a batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation import allocate_view, get_allocator
from homunculus.errors import BudgetError
from homunculus.pyramid import ImagePyramid
from homunculus.structures import CELL_FIELDS, Allocation, PackedAllocation, View

from .devices import no_sync
from .strategies import densities

LEAF = 4  # small patches: the geometry is the same and the pixels are few
NAMES = list(homunculus.allocators())
ALONE = [name for name in NAMES if not get_allocator(name).batchwide]
EXAMPLES = 200
PROMISED = {"stratified": 16}  # a token to each of 4x4 strata: a minimum that an option lowers


@st.composite
def views(draw, least: int, batch: int = 3):
    """A batch on any grid up to 8:1, of any density, looking anywhere (corners as often as not) or nowhere."""
    gw = draw(st.integers(4, 40))
    gh = draw(st.integers(max(1, -(-gw // 8), -(-least // gw)), max(gw * 2, -(-least // gw))))
    if draw(st.booleans()):
        gw, gh = gh, gw
    # Leaves of the original image need not be square, nor of a whole number of pixels.
    size = (
        max(1, round(gw * LEAF * draw(st.sampled_from([0.6, 1.0, 1.3])))),
        max(1, round(gh * LEAF * draw(st.sampled_from([0.7, 1.0, 1.2])))),
    )
    density = draw(densities((batch, gh, gw)))
    looks = draw(st.integers(0, 2))
    fixations = None
    if looks:
        place = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
        points = [[(draw(place) * size[0], draw(place) * size[1], 1.0) for _ in range(looks)] for _ in range(batch)]
        fixations = torch.tensor(points, dtype=torch.float64)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    images = torch.randint(0, 256, (batch, 3, size[1], size[0]), dtype=torch.uint8, generator=generator)
    if draw(st.booleans()):  # shapes on a flat ground
        images = images[..., :1, :1].expand_as(images).clone()
        images[..., size[1] // 3 : size[1] // 2 + 1, size[0] // 4 :] = 255
    budget = draw(st.integers(least, gw * gh) | st.sampled_from([least, gw * gh]))
    return View(density, size, LEAF, ImagePyramid(images, (gw, gh), LEAF), fixations), min(budget, 400)


def only(view: View, image: int) -> View:
    """The view of one image of a batch."""
    part = slice(image, image + 1)
    pyramid = ImagePyramid(view.pyramid.images[part], view.grid, view.leaf)
    return View(
        view.density[part],
        view.image_size,
        view.leaf,
        pyramid,
        None if view.fixations is None else view.fixations[part],
    )


def least(name: str) -> int:
    return PROMISED.get(name, get_allocator(name).minimum)


def each(allocation: Allocation | PackedAllocation) -> list[Allocation]:
    if isinstance(allocation, PackedAllocation):
        return allocation.unpack()
    return [allocation.select([i]) for i in range(len(allocation))]


def check_cells(allocation: Allocation, view: View) -> None:
    """Distinct, in bounds, of positive size, in canonical order, with finite figures."""
    width, height = view.image_size
    boxes, angle = allocation.boxes[0], allocation.angle[0]
    x0, y0, x1, y1 = boxes.unbind(-1)
    assert torch.cat((boxes, angle[:, None]), dim=1).unique(dim=0).shape[0] == len(boxes), "a cell twice"
    assert (x1 > x0).all() and (y1 > y0).all()
    half = torch.stack(((x1 - x0) / 2, (y1 - y0) / 2), dim=-1)
    cos, sin = angle.cos().abs(), angle.sin().abs()
    reach = torch.stack((half[:, 0] * cos + half[:, 1] * sin, half[:, 0] * sin + half[:, 1] * cos), dim=-1)
    middle = torch.stack(((x0 + x1) / 2, (y0 + y1) / 2), dim=-1)
    slack = 1e-5 * max(width, height) * (angle != 0)[:, None]
    assert (middle - reach >= -slack - 1e-6 * max(width, height)).all()
    assert (middle + reach <= torch.tensor([width, height]) + slack + 1e-6 * max(width, height)).all()
    straight = angle == 0
    assert (boxes[straight] >= 0).all() and (x1[straight] <= width).all() and (y1[straight] <= height).all()
    for field in ("centers", "levels", "eccentricity", "scores"):
        assert getattr(allocation, field).isfinite().all(), field
    assert (allocation.scores >= 0).all() and (allocation.scores <= 1 + 1e-6).all()
    ordinary = allocation.centers[0][~allocation.is_context[0]]
    right, down = ordinary.diff(dim=0).unbind(-1)
    assert ((down > 0) | ((down == 0) & (right >= 0))).all(), "not in reading order"
    assert not allocation.is_context[0, int(allocation.is_context[0].sum()) :].any()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_promises_of_every_allocator(name, data):
    method = get_allocator(name)
    view, budget = data.draw(views(least(name)))
    seed = data.draw(st.integers(-(2**40), 2**40))
    allocation = allocate_view(view, budget, name, seed=seed)
    parts = each(allocation)
    assert sum(part.budget for part in parts) == budget * view.batch
    assert method.batchwide or all(part.budget == budget for part in parts)
    for part in parts:
        check_cells(part, view)
    again = allocate_view(view, budget, name, seed=seed)
    assert all(torch.equal(getattr(again, f), getattr(allocation, f)) for f in ("boxes", "angle", "is_context"))
    if method.tiles and allocation.sector.isnan().all():  # sectors: test_polar.py
        assert all(homunculus.coverage(part).union.item() > 1 - 1e-9 for part in parts)
    if not method.batchwide:
        image = data.draw(st.integers(0, view.batch - 1))
        alone = allocate_view(only(view, image), budget, name, seed=seed)
        for field in (*CELL_FIELDS, "gaze"):
            mine, its = getattr(alone, field)[0], getattr(allocation, field)[image]
            assert torch.equal(mine.nan_to_num(-1), its.nan_to_num(-1)), field


@pytest.mark.parametrize("name", NAMES)
def test_stated_minimum(name):
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    view = View(torch.ones(1, 16, 16, dtype=torch.float64), (64, 64), LEAF, ImagePyramid(images, (16, 16), LEAF))
    allocation = allocate_view(view, least(name), name)
    assert allocation.boxes.numel() == 4 * least(name)
    if least(name) > 1:
        with pytest.raises(BudgetError, match=str(least(name))):
            allocate_view(view, least(name) - 1, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_there(name):
    images = torch.randint(0, 256, (2, 3, 120, 200), dtype=torch.uint8)
    tokens = homunculus.foveate(images, "top left", 128, name, leaf=8)
    cells = tokens.patches.shape[:-3]
    assert cells in ((2, 128), (256,))
    assert tokens.patches.shape[-3:] == (3, 8, 8) and tokens.patches.isfinite().all()
    assert all(getattr(tokens.allocation, field).shape[: len(cells)] == cells for field in CELL_FIELDS)


@pytest.mark.parametrize("name", [name for name in NAMES if get_allocator(name).tiles])
def test_what_says_it_tiles_does(name):
    view = homunculus.make_view(torch.randint(0, 256, (3, 130, 200), dtype=torch.uint8), fixation=(13, 110), leaf=8)
    allocation = allocate_view(view, 100, name)
    assert homunculus.coverage(each(allocation)[0]).union.item() == pytest.approx(1, abs=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_promises_on_a_gpu_without_waiting_for_it(name, data):
    view, budget = data.draw(views(least(name)))
    # Segmentation of pixels is the one thing done on the CPU: here its labels are given.
    labels = torch.arange(view.leaves, device="cuda").reshape(1, *view.density.shape[1:]) // 7
    options = {"segments": labels.expand(view.batch, -1, -1)} if name == "atlas" else {}
    on_gpu = on_device(view, "cuda")
    expected = allocate_view(on_gpu, budget, name, **options)  # builds and caches the tables of this grid
    on_gpu = on_device(view, "cuda")
    with no_sync():
        found = allocate_view(on_gpu, budget, name, **options)
    assert torch.equal(found.boxes, expected.boxes)
    parts = [part.to("cpu") for part in each(found)]
    assert sum(part.budget for part in parts) == budget * view.batch
    for part in parts:
        check_cells(part, view)


def on_device(view: View, device: str) -> View:
    pyramid = ImagePyramid(view.pyramid.images.to(device), view.grid, view.leaf)
    fixations = None if view.fixations is None else view.fixations.to(device)
    return View(view.density.to(device), view.image_size, view.leaf, pyramid, fixations)
