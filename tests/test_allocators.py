"""The single-level methods, the registry, and the errors every allocator shares."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.cells import box_mass, leaf_cells, make_allocation, retold
from homunculus.allocation.coverage import coverage
from homunculus.allocation.grid import scramble
from homunculus.allocation.registry import _REGISTRY, get_allocator, register
from homunculus.allocation.stratified import largest_remainder, share_tokens
from homunculus.errors import AllocatorError, BudgetError, DensityError, FixationError, ImageError
from homunculus.model.vlm import look
from homunculus.structures import View, rectangular

# ------------------------------------------------------------------------------------------------------------- registry


def test_names_and_descriptions():
    names = homunculus.allocators()
    assert next(iter(names)) == "foveated-pyramid"
    assert {"foveated-pyramid", "detail-tree", "uniform", "random", "topk", "stratified"} <= set(names)
    assert all(len(what) < 80 and "\n" not in what for what in names.values())


@pytest.fixture
def registered():
    """Register for one test only."""
    before = dict(_REGISTRY)
    yield register
    _REGISTRY.clear()
    _REGISTRY.update(before)


def test_anybody_can_add_one(registered):
    @registered("diagonal", "the leaves on the diagonal")
    def diagonal(view, budget, *, offset=0):
        leaves = torch.arange(budget).expand(view.batch, -1) * (view.grid[0] + 1) + offset
        return make_allocation(view, leaf_cells(leaves, view.grid[0]), "dyadic")

    allocation = homunculus.allocate(torch.ones(8, 8), 4, "diagonal", offset=1, seed=3)
    assert (allocation.centers[0, :, 0] - allocation.centers[0, :, 1] == 16).all()
    assert "diagonal" in homunculus.allocators()
    with pytest.raises(AllocatorError, match="exists already"):
        registered("diagonal", "again")(diagonal)
    with pytest.raises(AllocatorError, match="given by name, got function: register it"):
        get_allocator(diagonal)


def test_the_budget_holds_for_everybody(registered):
    registered("lazy", "too few")(lambda view, budget: homunculus.allocate(view.density, 10, "topk"))
    registered("wrong", "not an allocation")(lambda view, budget: view.density)
    with pytest.raises(AllocatorError, match="lazy returned 20 cells for 2 x 12: the budget is a promise"):
        homunculus.allocate(torch.ones(2, 8, 8), 12, "lazy")
    with pytest.raises(AllocatorError, match="wrong returned Tensor"):
        homunculus.allocate(torch.ones(2, 8, 8), 12, "wrong")
    with pytest.raises(AllocatorError, match="lazy has no option 'e0': it takes none"):
        homunculus.allocate(torch.ones(2, 8, 8), 12, "lazy", e0=1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"allocator": "foveated-piramid"}, AllocatorError, "did you mean 'foveated-pyramid'"),
        ({"allocator": "zzz"}, AllocatorError, "choose from foveated-pyramid, "),
        ({"allocator": "topk", "e0": 2.0}, AllocatorError, "topk has no option 'e0': it takes seed"),
        ({"allocator": "detail-tree"}, AllocatorError, "looks at pixels"),
        ({"budget": 0}, BudgetError, "positive whole number"),
        ({"budget": -5}, BudgetError, "positive whole number"),
        ({"budget": True}, BudgetError, "positive whole number"),
        ({"budget": 15}, BudgetError, "at least 16"),
        ({"budget": 257}, BudgetError, "256 of them, fewer than the budget of 257"),
        ({"budget": 15, "allocator": "stratified"}, BudgetError, "4x4 strata"),
        (
            {"budget": 20, "allocator": "stratified", "strata": (0, 3)},
            AllocatorError,
            "strata is a positive whole number",
        ),
        ({"fixation": (300, 10)}, FixationError, "outside"),
        ({"e0": 0.0}, AllocatorError, "e0 above 0"),
        ({"image_size": (100, 0)}, ImageError, "image_size is"),
        ({"leaf": -4}, ImageError, "leaf must be"),
        ({"fixation_share": 1.5}, AllocatorError, "fixation_share=1.5"),
        ({"floor": -0.1}, DensityError, "floor=-0.1"),
    ],
)
def test_one_line_says_what_is_wrong(options, error, message):
    with pytest.raises(error, match=message) as caught:
        homunculus.allocate(torch.ones(16, 16), **{"budget": 100} | options)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, homunculus.HomunculusError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("name", ["foveated-pyramid", "uniform", "topk", "random", "stratified"])
def test_bad_densities_are_refused_by_all(name, value):
    density = torch.ones(16, 16)
    density[3, 3] = value
    with pytest.raises(DensityError, match="finite"):
        homunculus.allocate(density, 32, name)


@pytest.mark.parametrize("name", ["foveated-pyramid", "uniform", "topk", "random", "stratified"])
def test_no_density_is_uniform_density(name):
    zero, one = (homunculus.allocate(torch.full((16, 16), v), 50, name) for v in (0.0, 1.0))
    if name != "random":  # which draws from the density's bits
        assert torch.equal(zero.boxes, one.boxes)
    assert torch.allclose(zero.scores, one.scores) or name == "random"


# -------------------------------------------------------------------------------------------------------------- uniform


@given(st.integers(1, 2000), st.integers(1, 3000), st.integers(1, 3000))
def test_uniform_tiles_with_equal_areas(budget, width, height):
    allocation = homunculus.allocate(torch.ones(1, 50, 50), budget, "uniform", image_size=(width, height))
    boxes = allocation.boxes[0].double()
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert torch.allclose(areas, torch.tensor(width * height / budget, dtype=torch.float64), rtol=2e-3)
    assert boxes[:, :2].amin() == 0 and boxes[:, 2].amax() == width and boxes[:, 3].amax() == height
    union, multiplicity = coverage(allocation)
    assert union.item() == pytest.approx(1, abs=1e-9) and multiplicity.item() == pytest.approx(1, abs=1e-9)


def test_uniform_cells_are_near_square():
    for size in ((1024, 1024), (3000, 2000), (1000, 4000)):
        boxes = homunculus.allocate(torch.ones(64, 64), 273, "uniform", image_size=size).boxes[0]
        aspect = (boxes[:, 2] - boxes[:, 0]) / (boxes[:, 3] - boxes[:, 1])
        assert aspect.log().abs().max() < 0.2, size


def test_uniform_is_the_ordinary_grid_when_there_is_one():
    boxes = homunculus.allocate(torch.ones(64, 64), 256, "uniform").boxes[0]
    assert boxes.tolist() == [[x * 64, y * 64, x * 64 + 64, y * 64 + 64] for y in range(16) for x in range(16)]


# ------------------------------------------------------------------------------------------------------ topk and random


def test_topk_takes_the_heaviest_leaves():
    density = torch.rand(2, 20, 30)
    allocation = homunculus.allocate(density, 37, "topk")
    for image in range(2):
        leaves = {(int(y) // 16) * 30 + int(x) // 16 for x, y in allocation.centers[image].tolist()}
        assert leaves == set(density[image].flatten().topk(37).indices.tolist())
    assert torch.allclose(allocation.scores.sum(1), density.flatten(1).topk(37).values.sum(1) / density.sum((1, 2)))


def test_topk_spreads_ties():
    centers = homunculus.allocate(torch.ones(16, 16), 4, "topk").centers[0]
    assert len({(x > 128, y > 128) for x, y in centers.tolist()}) == 4


def test_random_depends_on_seed_and_image_and_nothing_else():
    density = torch.rand(3, 32, 32)
    first = homunculus.allocate(density, 64, "random", seed=1)
    assert not torch.equal(first.boxes[0], first.boxes[1])
    assert not torch.equal(first.boxes, homunculus.allocate(density, 64, "random", seed=2).boxes)
    for bad in (torch.tensor([1, 2]), torch.tensor([1.0, 2.0, 3.0]), None, 1 << 64):
        with pytest.raises((AllocatorError, TypeError), match="seed"):
            homunculus.allocation.get_allocator("random")(View(density.double(), (512, 512)), 64, seed=bad)
    seeds = homunculus.allocate(density, 64, "random", seed=torch.tensor([1, 2, 1]))
    assert torch.equal(seeds.boxes[0], first.boxes[0]) and torch.equal(seeds.boxes[2], first.boxes[2])
    assert torch.equal(seeds.boxes[1], homunculus.allocate(density, 64, "random", seed=2).boxes[1])


def test_random_is_uniform():
    """Every leaf is drawn about equally often: chi-square over 4000 draws of 16 out of 256."""
    density = torch.ones(1, 16, 16).expand(4000, -1, -1)
    centers = homunculus.allocate(density, 16, "random", seed=torch.arange(4000)).centers
    leaf = (centers[..., 1] // 16 * 16 + centers[..., 0] // 16).long().flatten()
    counts = torch.bincount(leaf, minlength=256).double()
    chi_square = ((counts - 250) ** 2 / 250).sum().item()
    assert 180 < chi_square < 340  # 255 degrees of freedom, less a little for drawing without replacement


def test_scramble_flips_half_the_bits():
    x = torch.randint(-(2**62), 2**62, (500,))
    for bit in (0, 17, 62):
        changed = scramble(x) ^ scramble(x ^ (1 << bit))
        ones = sum(bin(v & (2**64 - 1)).count("1") for v in changed.tolist()) / 500
        assert 30 < ones < 34


# ----------------------------------------------------------------------------------------------------------- stratified


def test_largest_remainder_on_a_known_example():
    relevance = [850, 120, 80, 50, 320, 180, 140, 90, 95, 110, 100, 70, 60, 75, 85, 55]
    expected = [89, 14, 9, 6, 34, 20, 16, 10, 11, 12, 11, 8, 7, 9, 10, 7]
    shares = share_tokens(torch.tensor([relevance], dtype=torch.float64), torch.full((16,), 256), 273)
    assert shares[0].tolist() == expected and sum(expected) == 273


def by_hand(weights: list[float], room: list[int], total: int) -> list[float]:
    """Proportional shares with capacities, by repeated filling."""
    share, open_places, left = (
        [0.0] * len(room),
        {i for i, w in enumerate(weights) if w > 0 and room[i] > 0},
        float(total),
    )
    while open_places and left > 1e-12:
        unit = left / sum(weights[i] for i in open_places)
        full = {i for i in open_places if share[i] + unit * weights[i] >= room[i]}
        for i in full or open_places:
            take = room[i] - share[i] if full else unit * weights[i]
            share[i] += take
            left -= take
        open_places -= full
        if not full:
            break
    return share


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1e-12, 0.5, 1.0, 3.0, 1e6]), st.integers(0, 20)), min_size=1, max_size=12),
    st.integers(0, 100),
)
def test_largest_remainder_properties(places, total):
    weights, room = [w for w, _ in places], [r for _, r in places]
    found = largest_remainder(
        torch.tensor([weights], dtype=torch.float64), torch.tensor([room]), torch.tensor([[total]])
    )[0].tolist()
    possible = sum(r for w, r in places if w > 0)
    assert sum(found) == min(total, possible)
    ideal = by_hand(weights, room, min(total, possible))
    for count, wanted, (weight, space) in zip(found, ideal, places, strict=True):
        assert 0 <= count <= space
        assert abs(count - wanted) < 1 + 1e-6
        assert weight > 0 or count == 0


@given(st.integers(16, 256), st.integers(0, 2**31))
def test_every_stratum_keeps_a_token_and_none_overflows(budget, seed):
    density = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(seed)) ** 20
    centers = homunculus.allocate(density, budget, "stratified").centers[0]
    counts = torch.bincount((centers[:, 1] // 64 * 4 + centers[:, 0] // 64).long(), minlength=16)
    assert counts.min() >= 1 and counts.max() <= 16 and counts.sum() == budget


def test_shares_follow_relevance_and_the_heaviest_leaves_are_taken():
    density = torch.rand(1, 16, 16, dtype=torch.float64) ** 3
    allocation = homunculus.allocate(density, 80, "stratified", strata=2)
    quadrants = density[0].unflatten(0, (2, 8)).unflatten(2, (2, 8)).permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
    expected = share_tokens(quadrants.sum(1)[None], torch.full((4,), 64), 80)[0]
    for i in range(4):
        left, top = (i % 2) * 128, (i // 2) * 128
        centers = allocation.centers[0] - torch.tensor([left, top])
        inside = ((centers >= 0) & (centers < 128)).all(1)
        assert inside.sum() == expected[i]
        leaves = (centers[inside][:, 1] // 16 * 8 + centers[inside][:, 0] // 16).long()
        assert set(leaves.tolist()) == set(quadrants[i].topk(int(expected[i])).indices.tolist())


@pytest.mark.parametrize("faint", [1e-300, 1e-307, 1e-308, 5e-324])
def test_strata_keep_their_token_next_to_a_blinding_one(faint):
    density = torch.full((16, 16), faint, dtype=torch.float64)
    density[:4, :4] = 1
    centers = homunculus.allocate(density, 100, "stratified").centers[0]
    counts = torch.bincount((centers[:, 1] // 64 * 4 + centers[:, 0] // 64).long(), minlength=16)
    assert counts[0] == 16 and counts[1:].min() >= 5 and counts.sum() == 100


def test_strata_of_another_shape():
    centers = homunculus.allocate(torch.rand(10, 30), 60, "stratified", strata=(5, 2)).centers[0]
    counts = torch.bincount((centers[:, 1] // 80 * 5 + centers[:, 0] // 96).long(), minlength=10)
    assert counts.min() >= 1
    narrow = homunculus.allocate(torch.rand(2, 100), 20, "stratified", strata=8)  # two rows of leaves: 8 x 2 strata
    assert narrow.budget == 20


# ------------------------------------------------------------------------------------------------------------- coverage


def test_coverage_counts_overlaps_and_gaps():
    view = View(torch.ones(1, 4, 4, dtype=torch.float64), (64, 64))
    cells = torch.tensor([[[0, 0, 2, 2], [1, 1, 3, 3], [0, 0, 4, 4]]], dtype=torch.float64)
    context = torch.tensor([[False, False, True]])
    union, multiplicity = coverage(make_allocation(view, cells, "box", is_context=context))
    assert union.item() == 7 / 16 and multiplicity.item() == pytest.approx(8 / 7)
    union, _ = coverage(make_allocation(view, cells, "box"), max_level=1.0)
    assert union.item() == 7 / 16
    nothing = coverage(make_allocation(view, cells, "box"), max_level=0.0)
    assert nothing.union.item() == 0


def test_coverage_of_rotated_cells():
    straight = homunculus.allocate(torch.ones(4, 4), 1, "topk")
    boxes = torch.tensor([[[16.0, 16.0, 48.0, 48.0]]])
    turned = replace(straight, boxes=boxes, angle=torch.full((1, 1), 0.6), kind="rotated")
    union, multiplicity = coverage(turned)
    assert union.item() == pytest.approx(0.25, abs=2e-3) and multiplicity.item() == 1


def test_coverage_of_many_cells():
    allocation = homunculus.allocate(torch.rand(400, 400), 100_000)
    assert coverage(allocation).union.item() == 1


@given(st.integers(0, 2**31))
def test_coverage_against_painted_pixels(seed):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.randint(0, 40, (2, 30, 2, 2), generator=generator).sort(2).values
    cells = torch.cat((corners[:, :, 0], corners[:, :, 1] + 1), dim=-1).double()
    view = View(torch.ones(2, 41, 41, dtype=torch.float64), (41, 41), leaf=1)
    union, multiplicity = coverage(make_allocation(view, cells, "box"))
    for image in range(2):
        painted = np.zeros((41, 41), dtype=int)
        for x0, y0, x1, y1 in cells[image].int().tolist():
            painted[y0:y1, x0:x1] += 1
        assert union[image].item() == pytest.approx((painted > 0).mean())
        assert multiplicity[image].item() == pytest.approx(painted.sum() / (painted > 0).sum())


@given(st.integers(0, 2**31))
def test_box_mass_with_fractions(seed):
    generator = torch.Generator().manual_seed(seed)
    density = torch.rand(1, 5, 7, generator=generator, dtype=torch.float64)
    corners = (
        (torch.rand(1, 6, 2, 2, generator=generator, dtype=torch.float64) * torch.tensor([7.0, 5.0])).sort(2).values
    )
    boxes = corners.flatten(2)
    found = box_mass(density, boxes)[0]
    for (x0, y0, x1, y1), mass in zip(boxes[0].tolist(), found.tolist(), strict=True):
        exact = 0.0
        for y in range(5):
            for x in range(7):
                overlap = max(0, min(x + 1, x1) - max(x, x0)) * max(0, min(y + 1, y1) - max(y, y0))
                exact += overlap * density[0, y, x].item()
        assert mass == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in homunculus.allocators() if not get_allocator(name).batchwide])
def test_cells_told_anew_hold_what_they_held(name):
    """Of the density they were made for, and of any other what is inside their boxes; nothing else changes."""
    generator = torch.Generator().manual_seed(4)
    density, other = torch.rand(2, 2, 32, 24, generator=generator, dtype=torch.float64) ** 4
    kept = rectangular(look(torch.rand(2, 3, 512, 384, generator=generator), density, 100, name).allocation)
    assert (kept.kind == "rotated") == get_allocator(name).turned
    if kept.kind == "rotated":
        with pytest.raises(AllocatorError, match="turned"):
            retold(kept, density)
        return
    assert torch.allclose(retold(kept, density).scores, kept.scores, rtol=1e-4, atol=1e-7)
    told = retold(kept, other)
    assert told.boxes is kept.boxes and not torch.allclose(told.scores, kept.scores, rtol=1e-2)
