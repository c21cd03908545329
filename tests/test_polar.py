"""Rings, hypercolumns and the spiral: the law of acuity, exact tilings, calibrated figures."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation import allocate_view, coverage
from homunculus.allocation.coverage import sector_hits
from homunculus.allocation.foveal import foveal_share
from homunculus.allocation.polar import Acuity, border, directions, gaze_of, solve_acuity
from homunculus.allocation.rings import ring_allocation, ring_count
from homunculus.allocation.vortex import candidates, inverse_tokens
from homunculus.biology import cortical_area, magnification
from homunculus.errors import AllocatorError, BudgetError
from homunculus.structures import View
from homunculus.viz import overlay

from .strategies import image_sizes

RINGS = ["log-polar-rings", "v1", "acuity-bins", "scene-aware"]
CENTRE, EDGE, CORNER = (512.0, 512.0), (1000.0, 500.0), (0.0, 0.0)


def looking(grid, size, *points, batch=1):
    fixations = torch.tensor([[(*point, 1.0) for point in points]], dtype=torch.float64).expand(batch, -1, -1)
    return View(torch.ones(batch, grid[1], grid[0], dtype=torch.float64), size, fixations=fixations)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


# ------------------------------------------------------------------------------------------------------------ the law


@pytest.mark.parametrize(("k", "e0"), [(0.14, 102.0), (0.3, 19.0), (0.02, 300.0), (2.0, 1.0)])
def test_integrals_of_the_law_by_summing_it_up(k, e0):
    law = Acuity(column(k), column(e0), 16.0)
    e = (torch.arange(200_000, dtype=torch.float64)[None] + 0.5) / 200
    side = law.side(e)
    assert torch.equal(side, (k * (e + e0)).clamp(min=16.0))
    for reach in (10.0, 150.0, 900.0):
        inside = e[0] < reach
        steps, tokens = (1 / side[0, inside]).sum() / 200, (e[0, inside] / side[0, inside] ** 2).sum() / 200
        assert law.steps(column(reach)).item() == pytest.approx(steps.item(), rel=1e-4)
        assert law.tokens(column(reach)).item() == pytest.approx(tokens.item(), rel=1e-4)
        assert law.radius(law.steps(column(reach))).item() == pytest.approx(reach, rel=1e-9)
        assert inverse_tokens(law, law.tokens(column(reach)), 2000.0).item() == pytest.approx(reach, rel=1e-6)


@given(image_sizes(), st.floats(0, 1), st.floats(0, 1), st.floats(0, 2 * math.pi))
def test_the_border_is_on_the_border(size, u, v, theta):
    gaze = torch.tensor([[u * size[0], v * size[1]]], dtype=torch.float64)
    cos, sin = column(math.cos(theta)).T, column(math.sin(theta)).T
    reach = border(gaze, size, cos, sin).item()
    x, y = gaze[0, 0].item() + reach * cos.item(), gaze[0, 1].item() + reach * sin.item()
    tolerance = 1e-9 * max(size)
    assert -tolerance <= x <= size[0] + tolerance and -tolerance <= y <= size[1] + tolerance
    assert min(abs(x), abs(x - size[0]), abs(y), abs(y - size[1])) <= tolerance


@given(image_sizes(low=64), st.integers(16, 1024), st.floats(-2, 5), st.floats(0, 1), st.floats(0, 1))
def test_the_law_wants_the_budget(size, budget, log_e0, u, v):
    grid = homunculus.fit_grid(*size, budget)
    view = View(torch.ones(1, grid.gh, grid.gw, dtype=torch.float64), size)
    gaze = torch.tensor([[u * size[0], v * size[1]]], dtype=torch.float64)
    law = solve_acuity(gaze, column(math.exp(log_e0) * 16), budget, view)
    cells = law.tokens(border(gaze, size, *directions(4096))).mean().item() * 2 * math.pi
    assert cells == pytest.approx(budget, rel=0.03)  # 256 directions against 4096
    far = max(math.hypot(x, y) for x in (gaze[0, 0], size[0] - gaze[0, 0]) for y in (gaze[0, 1], size[1] - gaze[0, 1]))
    assert law.steps(column(far)).item() < ring_count(budget, size)


# --------------------------------------------------------------------------------------------------------------- rings


@pytest.mark.parametrize("name", RINGS)
@settings(max_examples=60)
@given(
    size=image_sizes(low=48, high=2048),
    budget=st.integers(16, 400),
    u=st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1),
    v=st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1),
)
def test_every_place_belongs_to_exactly_one_sector(name, size, budget, u, v):
    grid = homunculus.fit_grid(*size, budget)
    view = looking((grid.gw, grid.gh), size, (u * size[0], v * size[1]))
    allocation = allocate_view(view, budget, name)
    # Angles are float32: a place may lie in the 1e-7 between two sectors, or in both. None does of two sets of places.
    found = [sector_hits(allocation.sector[0].double(), allocation.gaze[0].double(), size, n) for n in (61, 57)]
    found = [hits[1::2] if v == 0.5 else hits for hits in found]  # the middle ones are on an axis through the gaze
    found = [hits[:, 1::2] if u == 0.5 else hits for hits in found]
    assert all((hits != 1).sum() <= 1 for hits in found) and any((hits == 1).all() for hits in found)


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize(
    ("size", "budget"),
    [((1, 1), 16), ((2, 3), 64), ((1, 5000), 16), ((1, 5000), 150), ((3000, 7), 273), ((40, 900), 31)],
)
def test_threads_are_cut_across(name, size, budget):
    grid = homunculus.fit_grid(*size, budget)
    for v in (0.0, 0.37, 1.0):
        allocation = allocate_view(looking((grid.gw, grid.gh), size, (0.5 * size[0], v * size[1])), budget, name)
        assert len(allocation.boxes[0].unique(dim=0)) == budget
        hits = sector_hits(allocation.sector[0].double(), allocation.gaze[0].double(), size, 300)
        hits = hits if size[0] < size[1] else hits.T
        assert hits[:, ::2].min() == 1 and hits[:, ::2].max() == 1


@pytest.mark.parametrize("name", RINGS)
def test_coverage_counts_sectors(name):
    allocation = allocate_view(looking((64, 64), (1024, 1024), EDGE), 273, name)
    union, multiplicity = coverage(allocation)
    assert union.item() == 1.0
    assert 1.0 < multiplicity.item() < 1.3  # the squares that are sampled overlap a little and leave a little out


@pytest.mark.parametrize(
    ("gaze", "levels"), [(CENTRE, [18, 81, 151, 23]), ((40.0, 40.0), [65, 72, 94, 42])], ids=["centre", "corner"]
)
def test_level_histogram_of_the_calibrated_layout(gaze, levels):
    """e0 = 102 px: figures of an independent computation, to within a few cells of its rounding."""
    view = looking((64, 64), (1024, 1024), gaze)
    allocation = ring_allocation(view, 273, torch.tensor([gaze]).double(), column(102.0))
    found = torch.bincount(allocation.levels[0].round().clamp(min=0).long(), minlength=4)
    assert (found - torch.tensor(levels)).abs().max() <= 8 and found.sum() == 273


@pytest.mark.parametrize("name", ["log-polar-rings", "v1", "foveated-pyramid"])
@pytest.mark.parametrize("gaze", [CENTRE, EDGE, CORNER], ids=["centre", "edge", "corner"])
def test_side_grows_with_eccentricity(name, gaze):
    """log side against log(e + e0) has slope 1 where the finest cell does not bind."""
    e0 = 0.75 / 40 * 64 if name == "v1" else 3.0
    options = {"fixation_share": 1.0} if name == "foveated-pyramid" else {}
    allocation = allocate_view(looking((64, 64), (1024, 1024), gaze), 273, name, **options)
    coarse = (allocation.levels[0] > 0.2) & ~allocation.is_context[0]
    x = (allocation.eccentricity[0][coarse].double() + e0).log2()
    y = allocation.levels[0][coarse].double()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    assert slope.item() == pytest.approx(1, abs=0.1)


def test_sectors_about_the_gaze():
    allocation = allocate_view(looking((64, 64), (1024, 1024), EDGE), 273, "log-polar-rings")
    assert allocation.gaze.tolist() == [list(EDGE)]
    rho0, rho1, theta0, theta1 = allocation.sector[0].double().unbind(-1)
    assert (rho0 < rho1).all() and (theta0 < theta1).all() and (theta1 - theta0 <= 2 * math.pi + 1e-6).all()
    assert (theta0 > -math.pi - 1e-6).all() and (theta0 <= math.pi + 1e-6).all()
    # The centre of the square lies in its own sector, or in the notch of a wide one.
    offset = allocation.centers[0].double() - allocation.gaze[0].double()
    angle = torch.atan2(offset[:, 1], offset[:, 0])
    inside = ((angle - theta0) % (2 * math.pi)) <= theta1 - theta0 + 1e-6
    inside &= (offset.norm(dim=1) >= rho0 - 1e-3) & (offset.norm(dim=1) <= rho1 + 1e-3)
    assert inside.double().mean() > 0.95


def test_squares_have_the_area_of_their_sector():
    allocation = allocate_view(looking((64, 64), (1024, 1024), CENTRE), 273, "log-polar-rings")
    rho0, rho1, theta0, theta1 = allocation.sector[0].double().unbind(-1)
    inner = rho1 < 512  # rings that lie inside the image whole
    area = (rho1**2 - rho0**2) / 2 * (theta1 - theta0)
    boxes = allocation.boxes[0].double()
    squares = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert inner.sum() > 150 and torch.allclose(squares[inner], area[inner], rtol=1e-3)
    # Squares at the border are clipped, and lose a little by it.
    assert 0.94 < squares.sum().item() / 1024**2 < 1.0


@pytest.mark.parametrize("name", RINGS)  # a spiral turns one way
def test_mirrored_gaze_mirrored_cells(name):
    view = looking((64, 48), (1024, 768), (301.0, 422.0))
    mirrored = looking((64, 48), (1024, 768), (1024 - 301.0, 422.0))
    boxes, other = (allocate_view(v, 150, name).boxes[0].double() for v in (view, mirrored))
    flipped = torch.stack((1024 - other[:, 2], other[:, 1], 1024 - other[:, 0], other[:, 3]), dim=1)
    distance = torch.cdist(boxes, flipped).amin(1)
    assert distance.max() < 1.0


def test_no_cell_of_v1_crosses_the_vertical():
    allocation = allocate_view(looking((64, 64), (1024, 1024), (400.0, 600.0)), 273, "v1")
    theta0, theta1 = allocation.sector[0, :, 2].double(), allocation.sector[0, :, 3].double()
    for meridian in (-math.pi / 2, math.pi / 2, 3 * math.pi / 2):
        crossing = (theta0 < meridian - 1e-5) & (theta1 > meridian + 1e-5)
        assert not crossing.any()


def test_magnification_of_the_cortex():
    """Horton and Hoyt 1991, as computed for this project."""
    table = {0.0: 23.1, 2.0: 6.29, 5.0: 3.01, 10.0: 1.61, 20.0: 0.83, 40.0: 0.42}
    found = magnification(torch.tensor(list(table), dtype=torch.float64))
    assert torch.allclose(found, torch.tensor(list(table.values()), dtype=torch.float64), atol=0.04)
    e = (torch.arange(90_000, dtype=torch.float64) + 0.5) / 1000
    summed = (2 * math.pi * e * magnification(e) ** 2).cumsum(0) / 1000
    for degrees in (1, 10, 90):
        exact = cortical_area(torch.tensor(float(degrees), dtype=torch.float64)).item()
        assert summed[degrees * 1000 - 1].item() == pytest.approx(exact, rel=1e-4)
    shares = {1.0: 0.0725, 2.0: 0.150, 2.78: 0.20, 10.0: 0.455, 15.0: 0.55}
    whole = cortical_area(torch.tensor(90.0, dtype=torch.float64))
    for degrees, share in shares.items():
        found = cortical_area(torch.tensor(degrees, dtype=torch.float64)) / whole
        assert found.item() == pytest.approx(share, abs=0.005)


def test_v1_has_as_many_cells_as_there_is_cortex():
    """Where no pixel binds, the share of cells within an eccentricity is the share of cortex that sees it."""
    view = looking((512, 512), (8192, 8192), (4096.0, 4096.0))
    allocation = allocate_view(view, 400, "v1", degrees=40.0)
    radius = allocation.eccentricity[0].double() * 16 / 8192 * 40
    inscribed = (radius <= 20).sum()
    for degrees in (4.0, 8.0, 14.0):
        cells = (radius <= degrees).sum() / inscribed
        both = cortical_area(torch.tensor([degrees, 20.0], dtype=torch.float64))
        assert cells.item() == pytest.approx((both[0] / both[1]).item(), abs=0.06)


def test_receptive_fields_overlap():
    narrow, wide = (
        allocate_view(looking((64, 64), (1024, 1024), CENTRE), 100, "v1", receptive_field=f) for f in (1.0, 1.5)
    )
    assert torch.equal(narrow.sector, wide.sector)
    assert (wide.levels - narrow.levels).median().item() == pytest.approx(math.log2(1.5), abs=1e-4)


@pytest.mark.parametrize("receptive_field", [1e-6, 1.0, 2.0, 8.0])
def test_wide_fields_stay_distinct(receptive_field):
    view = looking((80, 400), (418, 2089), (209.0, 20.89))
    allocation = allocate_view(view, 150, "v1", degrees=120.0, receptive_field=receptive_field)
    assert len(allocation.boxes[0].unique(dim=0)) == 150
    assert (allocation.boxes[0, :, 2:] > allocation.boxes[0, :, :2]).all()


@pytest.mark.parametrize("name", [*RINGS, "vortex"])
def test_a_gaze_all_but_on_the_border(name):
    for size, grid in (((20000, 1000), (200, 10)), ((1442, 1442), (90, 90))):
        allocation = allocate_view(looking(grid, size, (size[0] - 1e-4, size[1] / 2)), 64, name)
        boxes = allocation.boxes[0]
        assert len(boxes.unique(dim=0)) == 64 and (boxes[:, 2:] > boxes[:, :2]).all()


def test_scenes_draw_cells():
    density = torch.ones(1, 64, 64, dtype=torch.float64)
    density[:, 8:16, 40:56] = 30.0
    fixations = torch.tensor([[[512.0, 512.0, 1.0]]], dtype=torch.float64)
    view = View(density, (1024, 1024), fixations=fixations)

    def near(beta):
        centers = allocate_view(view, 273, "scene-aware", beta=beta).centers[0] / 16
        x, y = centers.unbind(-1)
        return int(((x > 38) & (x < 58) & (y > 6) & (y < 18)).sum())

    assert near(0.5) > near(0.0)


# -------------------------------------------------------------------------------------------------------------- vortex


@given(image_sizes(low=48), st.integers(1, 600), st.floats(0, 1), st.floats(0, 1), st.floats(-1, 4))
def test_spirals_keep_the_budget_and_the_image(size, budget, u, v, log_e0):
    grid = homunculus.fit_grid(*size, max(16, budget))
    view = looking((grid.gw, grid.gh), size, (u * size[0], v * size[1]))
    allocation = allocate_view(view, budget, "vortex", e0=math.exp(log_e0))
    assert len(allocation.boxes[0].unique(dim=0)) == budget
    # Every point of the spiral that lies in the image was looked at: none beyond the candidates could have been nearer.
    law = solve_acuity(gaze_of(view), column(math.exp(log_e0)) * 16 * size[0] / 16 / grid.gw, budget, view)
    assert law.tokens(column(math.hypot(*size))).item() * 2 * math.pi < 1.3 * candidates(budget, size)


def test_spiral_directions_are_golden():
    allocation = allocate_view(looking((64, 64), (1024, 1024), CENTRE), 273, "vortex")
    union, _ = coverage(allocation)
    assert 0.8 < union.item() < 0.95
    offset = (allocation.centers[0] - 512.0).double()
    near = offset.norm(dim=1).argsort()[:9]
    inner = offset[near]
    turn = torch.atan2(inner[1:, 1], inner[1:, 0]) / (2 * math.pi)
    golden = (torch.arange(1, 9) * (math.sqrt(5) - 1) / 2) % 1.0
    assert torch.allclose((turn - golden + 0.5) % 1.0, torch.full((8,), 0.5, dtype=torch.float64), atol=1e-3)


# ---------------------------------------------------------------------------------------------------- gaze and the dial


def test_without_a_fixation_the_peak_of_relevance_draws_the_gaze():
    density = torch.ones(2, 40, 40, dtype=torch.float64)
    density[0, 30, 7] = 50.0
    allocation = homunculus.allocate(density, 64, "log-polar-rings")
    assert allocation.gaze.tolist() == [[7.5 * 16, 30.5 * 16], [320.0, 320.0]]
    assert allocation.eccentricity[0].argmin() == (allocation.centers[0] - allocation.gaze[0]).norm(dim=1).argmin()


def test_padding_is_not_looked_at():
    fixations = torch.tensor([[[5.0, 5.0, 0.0], [300.0, 200.0, 1.0]]], dtype=torch.float64)
    view = View(torch.ones(1, 40, 40, dtype=torch.float64), (640, 640), fixations=fixations)
    assert allocate_view(view, 64, "v1").gaze.tolist() == [[300.0, 200.0]]


@pytest.mark.parametrize("name", ["log-polar-rings", "v1", "foveated-pyramid"])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.4])
def test_the_foveal_share_is_a_dial(name, share):
    options = {"fixation_share": 1.0} if name == "foveated-pyramid" else {}
    view = looking((64, 64), (1024, 1024), CENTRE)
    reached = foveal_share(allocate_view(view, 273, name, foveal_share=share, **options)).item()
    assert reached == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("name", ["log-polar-rings", "v1", "foveated-pyramid"])
def test_a_share_beyond_what_is_possible_gives_the_nearest(name):
    view = looking((64, 64), (1024, 1024), CORNER)
    shares = [foveal_share(allocate_view(view, 273, name, foveal_share=s)).item() for s in (0.0, 0.9, 1.0)]
    assert shares[0] < 0.15 and shares[1] == shares[2] > shares[0] and shares[1] < 0.6


def test_shares_of_images_of_different_sizes():
    images = [torch.rand(3, 200, 300), torch.rand(3, 400, 100), torch.rand(3, 200, 300)]
    together = homunculus.foveate(images, budget=64, fixation=[[(30, 40)], [(50, 380)], [(150, 100)]]).allocation
    alone = [foveal_share(together.select([i])) for i in range(3)]
    assert torch.equal(foveal_share(together), torch.cat(alone))


def test_each_image_gets_its_own_dial():
    fixations = torch.tensor([[[*CENTRE, 1.0]], [[*CORNER, 1.0]]], dtype=torch.float64)
    density = torch.ones(2, 64, 64, dtype=torch.float64)
    both = allocate_view(View(density, (1024, 1024), fixations=fixations), 273, "log-polar-rings", foveal_share=0.25)
    for i in range(2):
        alone = View(density[:1], (1024, 1024), fixations=fixations[i : i + 1])
        assert torch.equal(allocate_view(alone, 273, "log-polar-rings", foveal_share=0.25).boxes[0], both.boxes[i])


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("log-polar-rings", {"e0": 0.0}, AllocatorError, "e0 is a length in leaves above 0"),
        ("vortex", {"e0": 1e12}, AllocatorError, "e0 is a length in leaves above 0 and up to"),
        ("log-polar-rings", {"e0": None}, AllocatorError, "e0 of log-polar-rings is a finite number, 3.0 by default"),
        ("scene-aware", {"beta": "x"}, AllocatorError, "beta of scene-aware is a finite number"),
        ("foveated-pyramid", {"floor": True}, AllocatorError, "floor of foveated-pyramid is a finite number"),
        ("v1", {"foveal_share": True}, AllocatorError, "of v1 is a finite number, None by default, got True"),
        ("acuity-bins", {"degrees": 1e-9}, AllocatorError, "e0 is a length in leaves"),
        ("token-bank", {"depth": -1}, AllocatorError, "depth is a level of cells"),
        ("log-polar-rings", {"foveal_share": 1.5}, AllocatorError, "from 0 to 1, got 1.5"),
        ("foveated-pyramid", {"foveal_share": 0.3}, AllocatorError, "give fixation="),
        ("v1", {"degrees": 0}, AllocatorError, "degrees=0"),
        ("v1", {"receptive_field": -1.0}, AllocatorError, "receptive_field=-1.0"),
        ("acuity-bins", {"e2": 0.0}, AllocatorError, "e2=0.0"),
        ("scene-aware", {"beta": 2.0}, AllocatorError, "beta is how much"),
        ("v1", {"budget": 15}, BudgetError, "at least 16"),
    ],
)
def test_one_line_says_what_is_wrong(name, options, error, message):
    with pytest.raises(error, match=message):
        homunculus.allocate(torch.ones(32, 32), **{"budget": 64, "allocator": name} | options)


def test_none_stands_for_no_share():
    sectors = homunculus.allocate(torch.ones(32, 32), 64, "v1", foveal_share=None)
    assert torch.equal(sectors.centers, homunculus.allocate(torch.ones(32, 32), 64, "v1").centers)


def test_sectors_are_drawn_inside_the_image():
    page = torch.zeros(3, 300, 400, dtype=torch.uint8)
    allocation = homunculus.foveate(page, allocator="log-polar-rings", budget=64, fixation=(390, 10)).allocation
    picture = overlay(page, allocation)
    assert picture.size == (400, 300)
    colours = {picture.getpixel(point) for point in ((395, 5), (10, 290), (200, 150))}
    assert len(colours) == 3  # near, far and between are coloured by level


@pytest.mark.parametrize("name", ["log-polar-rings", "vortex", "frequency"])
def test_what_is_covered_does_not_depend_on_how_many_rows_are_counted_at_once(name, monkeypatch):
    density = torch.rand(1, 12, 16, generator=torch.Generator().manual_seed(0)) ** 6
    image = torch.rand(1, 3, 192, 256, generator=torch.Generator().manual_seed(1))
    allocation = homunculus.foveate(image, budget=96, allocator=name, relevance=density).allocation
    found = []
    for rows in (1, 7, 10_000):
        module = sys.modules[coverage.__module__]  # whose name the function has
        monkeypatch.setattr(module, "_rows_at_once", lambda shapes, points, rows=rows: rows)
        found.append(torch.stack(coverage(allocation)))
    assert found[0].equal(found[1]) and found[0].equal(found[2]) and 0 < found[0][0, 0] <= 1
