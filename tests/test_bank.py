"""One budget for a batch: exact in total, a floor for all, the highest bid served first; and packed results."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation import get_allocator
from homunculus.allocation.bank import LEAST_SPLIT, auction, image_weights, token_bank
from homunculus.allocation.heap import heap_allocation
from homunculus.allocation.hierarchical import foveated_density
from homunculus.allocation.tree import tree_level
from homunculus.errors import AllocatorError, BudgetError, ImageError
from homunculus.foveate import make_view
from homunculus.geometry import cells_across
from homunculus.kernels.plain import _sample_side_by_side
from homunculus.sampling import sample
from homunculus.structures import CELL_FIELDS, Allocation, PackedAllocation, View, rectangular
from tests.devices import no_sync
from tests.strategies import densities


def view_of(density: torch.Tensor, **fields) -> View:
    return View(density, (density.shape[2] * 16, density.shape[1] * 16), **fields)


def picture(width: int, height: int, seed: int = 0) -> torch.Tensor:
    noise = torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))
    return (255 * noise * torch.linspace(0, 1, width)).to(torch.uint8)


# --------------------------------------------------------------------------------------------------------- by hand


def own_order(density: np.ndarray, level: int) -> list[tuple[float, int]]:
    """(mass, cost) of all splits of one image, in best-first order, from a heap."""
    levels = [density]
    for _ in range(level):
        fine = np.pad(levels[-1], [(0, side % 2) for side in levels[-1].shape])
        levels.append((fine[::2, ::2] + fine[::2, 1::2]) + (fine[1::2, ::2] + fine[1::2, 1::2]))

    def entry(at: int, x: int, y: int) -> tuple:
        bits = max(side - 1 for side in levels[at].shape).bit_length()
        return -levels[at][y, x], -at, "".join(f"{x >> i & 1}{y >> i & 1}" for i in range(bits)), x, y

    rows, columns = levels[level].shape
    heap = [entry(level, x, y) for y in range(rows) for x in range(columns)]
    heapq.heapify(heap)
    order = []
    while heap:
        negative, at, _, x, y = heapq.heappop(heap)
        h, w = levels[-at - 1].shape
        children = [(i, j) for j in (2 * y, 2 * y + 1) for i in (2 * x, 2 * x + 1) if i < w and j < h]
        order.append((-negative, len(children) - 1))
        for child in children if at < -1 else ():
            heapq.heappush(heap, entry(-at - 1, *child))
    return order


def counts_by_hand(lists: list[list[tuple[float, int]]], weights: list[float], floors: list[int], spare: int) -> list:
    """Tokens beyond the roots of each image: splits inside the floor, then one sale after the other."""
    spent, done = [0] * len(lists), [0] * len(lists)
    for i, own in enumerate(lists):
        while done[i] < len(own) and spent[i] + own[done[i]][1] <= floors[i]:
            spent[i] += own[done[i]][1]
            done[i] += 1
    while True:
        bidders = [i for i, own in enumerate(lists) if done[i] < len(own)]
        if not bidders:
            assert spare == 0
            break
        best = min(bidders, key=lambda i: (-lists[i][done[i]][0] * weights[i], done[i], i))
        after = spent[best] + lists[best][done[best]][1]
        price = max(after, floors[best]) - max(spent[best], floors[best])
        if price > spare:
            spent[best] = max(spent[best], floors[best]) + spare
            break
        spare, spent[best], done[best] = spare - price, after, done[best] + 1
    return [max(n, floor) for n, floor in zip(spent, floors, strict=True)]


@st.composite
def batches(draw, most_views: int = 3) -> tuple[list[View], int, int]:
    """Views of different sizes, a budget that all of them can hold, and a floor."""
    grids = [(draw(st.integers(4, 30)), draw(st.integers(4, 30))) for _ in range(draw(st.integers(1, most_views)))]
    budget = draw(st.integers(16, min(300, *(gw * gh for gw, gh in grids))))
    views = []
    for gw, gh in grids:
        density = draw(densities((draw(st.integers(1, 3)), gh, gw))) * draw(st.sampled_from([0.0, 1.0, 1.0, 7.0, 1e-9]))
        fixations = torch.tensor([[[gw * 4.0, gh * 9.0, 1.0]]], dtype=torch.float64).expand(len(density), -1, -1)
        views.append(view_of(density, fixations=fixations if draw(st.booleans()) else None))
    return views, budget, draw(st.integers(0, budget))


@settings(max_examples=2 * settings.default.max_examples)
@given(batches(), st.sampled_from(["mass", "equal"]))
def test_the_bank_against_a_clerk(batch, share):
    """Splits sold one by one from heaps, then every image's cells from a heap with its own count."""
    views, budget, floor = batch
    packed = token_bank(views, budget, share=share, floor_tokens=floor)
    images = [(view, i) for view in views for i in range(view.batch)]
    weights = image_weights(views, share).flatten().tolist()
    levels = [tree_level(view.grid, budget) for view, _ in images]
    arrays = [foveated_density(view)[i].numpy() for view, i in images]
    roots = [
        cells_across(view.grid[0], at) * cells_across(view.grid[1], at)
        for (view, _), at in zip(images, levels, strict=True)
    ]
    floors = [max(floor, n + LEAST_SPLIT) for n in roots]
    lists = [own_order(array, level) for array, level in zip(arrays, levels, strict=True)]
    beyond = [own_floor - n for own_floor, n in zip(floors, roots, strict=True)]
    expected = counts_by_hand(lists, weights, beyond, budget * len(images) - sum(floors))
    assert packed.counts.tolist() == [n + tokens for n, tokens in zip(roots, expected, strict=True)]

    assert packed.boxes.shape == (budget * len(images), 4) and packed.offsets[-1] == budget * len(images)
    assert min(packed.counts) >= floor
    for own, (view, _), array, level in zip(packed.unpack(), images, arrays, levels, strict=True):
        assert own.budget <= view.leaves
        cells = heap_allocation(array, own.budget, level)
        assert (own.boxes[0] / 16).tolist() == [list(map(float, cell.box)) for cell in cells]
        assert own.is_context[0].tolist() == [cell.is_context for cell in cells]
        covered = homunculus.coverage(own)
        assert covered.union == 1 and covered.multiplicity == 1
    again = token_bank(views, budget, share=share, floor_tokens=floor)
    assert torch.equal(packed.boxes, again.boxes) and torch.equal(packed.offsets, again.offsets)


@given(st.data())
def test_a_single_image_gets_the_default(data):
    gw, gh = data.draw(st.integers(4, 50)), data.draw(st.integers(4, 50))
    budget = data.draw(st.integers(16, gw * gh))
    density = data.draw(densities((1, gh, gw)))
    options = {"fixation": (gw * 3, gh * 16), "e0": 2.0, "image_size": (gw * 13, gh * 16)}
    packed = homunculus.allocate(density, budget, "token-bank", **options)
    plain = homunculus.allocate(density, budget, **options)
    assert isinstance(packed, PackedAllocation)
    assert_same(rectangular(packed), plain)


def assert_same(a: Allocation, b: Allocation) -> None:
    for field in (*CELL_FIELDS, "gaze"):
        assert torch.equal(getattr(a, field).nan_to_num(), getattr(b, field).nan_to_num()), field
    assert (a.image_sizes, a.grids, a.leaf, a.kind) == (b.image_sizes, b.grids, b.leaf, b.kind)


def test_every_field_is_that_of_the_image_alone():
    """Whatever its count, an image is described as the default describes it with that budget and the same roots."""
    density = torch.rand(3, 32, 48, dtype=torch.float64) ** 6 * torch.tensor([1.0, 9.0, 2.0])[:, None, None]
    fixations = torch.rand(3, 2, 3, dtype=torch.float64) * 500
    fixations[1, :, 2] = 0
    view = View(density, (700, 500), fixations=fixations)
    for i, own in enumerate(token_bank(view, 100).unpack()):
        alone = View(density[i : i + 1], (700, 500), fixations=fixations[i : i + 1])
        depth = tree_level(view.grid, 100)
        plain = get_allocator("foveated-pyramid")(alone, own.budget, depth=depth)
        assert_same(own, plain)


# -------------------------------------------------------------------------------------------------------- who gets what


def test_heavier_images_get_more_and_equal_ones_share():
    one = torch.rand(1, 32, 32, dtype=torch.float64)
    counts = token_bank(view_of(torch.cat((one, one, 4 * one, one))), 100).counts
    assert counts[2] > 2 * counts[0] and counts.sum() == 400
    assert max(counts[[0, 1, 3]]) - min(counts[[0, 1, 3]]) <= 3
    counts = token_bank(view_of(torch.cat((one, one, 4 * one, one))), 100, share="equal").counts
    assert max(counts) - min(counts) <= 3
    counts = token_bank(view_of(torch.zeros(5, 32, 32, dtype=torch.float64)), 100).counts
    assert max(counts) - min(counts) <= 3  # ties are shared out, not given to the first


def test_an_image_without_relevance_keeps_its_floor():
    density = torch.rand(2, 32, 32, dtype=torch.float64)
    density[1] = 0
    assert token_bank(view_of(density), 100, floor_tokens=40).counts.tolist() == [160, 40]
    assert token_bank(view_of(density), 100, floor_tokens=100).counts.tolist() == [100, 100]
    assert token_bank(view_of(density), 100, floor_tokens=0).counts[1] == 4 + LEAST_SPLIT  # 2 x 2 roots


def test_no_image_gets_more_than_its_leaves():
    small, large = torch.full((1, 8, 8), 1e6).double(), torch.ones(2, 40, 40).double()
    counts = token_bank([view_of(small), view_of(large)], 64, floor_tokens=16).counts
    assert counts[0] == 64 and counts.sum() == 3 * 64
    everything = token_bank(view_of(torch.rand(3, 9, 7, dtype=torch.float64)), 63)
    assert everything.counts.tolist() == [63, 63, 63] and (everything.levels == 0).all()


@given(st.data())
def test_the_auction_never_overspends(data):
    b, k = data.draw(st.integers(1, 5)), data.draw(st.integers(3, 12))
    cost = torch.tensor(data.draw(st.lists(st.sampled_from([0, 1, 3, 3]), min_size=b * k, max_size=b * k))).view(b, k)
    bids = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=b * k, max_size=b * k))).double().view(b, k)
    bids = bids.sort(1, descending=True).values
    floors = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=b, max_size=b)))[:, None]
    room = int((cost.sum(1, keepdim=True) - floors).clamp(min=0).sum())
    spare = data.draw(st.integers(0, room))
    tokens, queue = auction(bids, cost, floors, spare)
    assert tokens.sum() == floors.sum() + spare and (tokens >= floors).all()
    assert sorted(queue.tolist()) == list(range(b * k))
    rows = [list(zip(bids[i].tolist(), cost[i].tolist(), strict=True)) for i in range(b)]
    assert tokens.flatten().tolist() == counts_by_hand(rows, [1.0] * b, floors.flatten().tolist(), spare)


def test_what_the_bank_refuses():
    view = view_of(torch.rand(2, 16, 16, dtype=torch.float64))
    with pytest.raises(AllocatorError, match="token-bank floor above budget/B: floor_tokens=101 for every image"):
        token_bank(view, 100, floor_tokens=101)
    for floor in (-1, True):
        with pytest.raises(AllocatorError, match="floor_tokens is a whole number"):
            token_bank(view, 100, floor_tokens=floor)
    with pytest.raises(AllocatorError, match="share must be 'mass' or 'equal'"):
        token_bank(view, 100, share="size")
    with pytest.raises(AllocatorError, match="depth=1 makes 64 roots"):
        token_bank(view, 100, depth=1)
    with pytest.raises(BudgetError, match="at least 16"):
        homunculus.allocate(view.density, 15, "token-bank")
    with pytest.raises(AllocatorError, match="topk takes images of one size"):
        get_allocator("topk")([view, view], 16)


def test_batchwide_allocators_return_packed_cells():
    lazy = replace(get_allocator("topk"), name="lazy", batchwide=True)
    with pytest.raises(AllocatorError, match="lazy is batchwide and returned an Allocation"):
        lazy(view_of(torch.rand(2, 8, 8, dtype=torch.float64)), 10)


# -------------------------------------------------------------------------------------------------- packed, end to end


@pytest.mark.parametrize("size", [(320, 256), (300, 211)])
def test_foveate_returns_packed_tokens(size):
    images = torch.stack([picture(*size, seed) for seed in range(3)])
    relevance = torch.rand(3, 8, 8) ** torch.tensor([1.0, 8.0, 30.0])[:, None, None]
    tokens = homunculus.foveate(images, "top left", 100, "token-bank", relevance=relevance)
    assert isinstance(tokens.allocation, PackedAllocation) and len(tokens) == 3
    assert tokens.patches.shape == (300, 3, 16, 16) and len(set(tokens.allocation.counts.tolist())) > 1
    for i, own in enumerate(tokens.unpack()):
        assert torch.equal(own.patches, sample(images[i : i + 1], own.allocation))


def test_images_of_different_sizes_share_one_bank():
    sizes = [(320, 256), (200, 333), (320, 256), (64, 64)]
    images = [picture(*size, seed) for seed, size in enumerate(sizes)]
    queries = ["top left", None, "footer", "what?"]
    tokens = homunculus.foveate(images, queries, 100, "token-bank")
    packed = tokens.allocation
    assert tokens.patches.shape == (400, 3, 16, 16) and packed.image_sizes == tuple(sizes)
    assert packed.counts.sum() == 400 and len(set(packed.counts.tolist())) > 1 and packed.counts.min() >= 25
    for image, own in zip(images, tokens.unpack(), strict=True):
        assert torch.equal(own.patches, sample(image[None], own.allocation))
        assert homunculus.coverage(own.allocation).union.item() == pytest.approx(1, abs=1e-9)
    turned = homunculus.foveate(images[::-1], queries[::-1], 100, "token-bank").unpack()
    assert [own.allocation.budget for own in turned[::-1]] == packed.counts.tolist()  # but for ties


def test_reconstruction_of_packed_tokens():
    images = torch.full((3, 3, 96, 128), 0.25)
    tokens = homunculus.foveate(images, budget=40, allocator="token-bank")
    picture_, mask = homunculus.reconstruct(tokens)
    assert picture_.shape == images.shape and mask.all() and torch.allclose(picture_, images)
    sizes = homunculus.reconstruct(
        homunculus.foveate([images[0], images[0, :, :60]], budget=40, allocator="token-bank")
    ).images
    assert [tuple(own.shape) for own in sizes] == [(3, 96, 128), (3, 60, 128)]


@pytest.mark.parametrize(("width", "height", "grid"), [(128, 96, (8, 6)), (80, 48, (5, 3)), (100, 90, (8, 6))])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_side_by_side_is_one_by_one(width, height, grid, dtype):
    """What a GPU does so as not to ask for the counts, against every image alone."""
    images = torch.stack([picture(width, height, seed) for seed in range(3)])
    images = images if dtype == torch.uint8 else images / 255
    levels = [level for level in range(3) if min(grid) >> level]
    boxes, level_of = [], []
    for level in levels:  # all whole blocks: dyadic wherever the image is pixel-exact
        for y in range(grid[1] >> level):
            for x in range(grid[0] >> level):
                boxes.append([x << level, y << level, x + 1 << level, y + 1 << level])
                level_of.append(level)
    cells = torch.tensor(boxes, dtype=torch.float64)[None]
    parts = []
    for n in (len(boxes), 4, len(boxes) - 3):
        view = View(torch.ones(1, grid[1], grid[0], dtype=torch.float64), (width, height))
        parts.append(homunculus.allocation.make_allocation(view, cells[:, :n], "dyadic"))
    packed = PackedAllocation.pack(parts)
    expected = torch.cat([sample(images[i : i + 1], part)[0] for i, part in enumerate(parts)])
    assert torch.equal(sample(images, packed), expected)
    kind = "dyadic" if (width, height) == (grid[0] * 16, grid[1] * 16) else "box"
    side_by_side = _sample_side_by_side(images, packed.boxes, packed.offsets, 16, kind)
    assert torch.allclose(side_by_side, expected, atol=1e-6)
    with pytest.raises(ImageError, match="do not match an allocation"):
        sample(images[:2], packed)


def test_rotated_cells_can_be_packed_too():
    images = torch.rand(2, 3, 64, 64)
    plain = homunculus.allocate(torch.rand(2, 4, 4), 4, "topk")
    turned = [replace(plain.select([i]), kind="rotated", angle=torch.full((1, 4), 0.3)) for i in range(2)]
    found = sample(images, PackedAllocation.pack(turned))
    assert torch.equal(found[4:], sample(images[1:], turned[1])[0])


def test_one_packed_image_is_rectangular():
    tokens = homunculus.foveate(picture(64, 64), budget=20, allocator="token-bank")
    alone = rectangular(tokens.allocation)
    assert alone.boxes.shape == (1, 20, 4) and tokens.patches.shape == (20, 3, 16, 16)
    assert torch.equal(sample(picture(64, 64)[None], alone)[0], tokens.patches)
    moved = tokens.to("cpu", torch.float16)
    assert moved.patches.dtype == torch.float16 and isinstance(moved.allocation, PackedAllocation)


def test_rectangular_tokens_unpack_too():
    tokens = homunculus.foveate(torch.rand(2, 3, 64, 64), budget=20)
    parts = tokens.unpack()
    assert torch.equal(parts[1].patches[0], tokens.patches[1])
    assert torch.equal(parts[0].allocation.boxes[0], tokens.allocation.boxes[0])


# ------------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(320, 256), (300, 211)])  # sampled from mips, and as boxes
def test_packed_tokens_never_wait_for_the_device(size):
    images = torch.stack([picture(*size, seed) for seed in range(4)])
    fixation = torch.tensor([100.0, 50.0], device="cuda")
    on_gpu = images.cuda()

    def run() -> tuple[PackedAllocation, torch.Tensor]:
        view = make_view(on_gpu, fixation=fixation, validate=False)
        packed = token_bank(view, 273)
        return packed, sample(on_gpu, packed)

    run()  # builds and caches the tables of this grid
    with no_sync():
        packed, patches = run()
    expected = sample(images, packed.to("cpu"))
    assert torch.allclose(patches.cpu(), expected, atol=1e-6)
    assert len(set(packed.counts.tolist())) > 1


@pytest.mark.gpu
def test_the_bank_is_bit_equal_to_the_cpu():
    for grids in (((64, 64),), ((61, 45), (16, 16)), ((48, 32), (33, 40), (64, 64))):
        densities_ = [torch.rand(3, gh, gw, dtype=torch.float64) ** 4 for gw, gh in grids]
        on_cpu = token_bank([view_of(density) for density in densities_], 200)
        on_gpu = token_bank([view_of(density.cuda()) for density in densities_], 200)
        assert torch.equal(on_gpu.offsets.cpu(), on_cpu.offsets)
        for field in ("boxes", "centers", "levels", "is_context"):
            assert torch.equal(getattr(on_gpu, field).cpu(), getattr(on_cpu, field)), field


@pytest.mark.gpu
def test_images_of_different_sizes_on_a_gpu():
    images = [picture(320, 256).cuda(), picture(200, 333).cuda(), picture(320, 256, 1).cuda()]
    tokens = homunculus.foveate(images, budget=100, allocator="token-bank")
    assert tokens.patches.is_cuda and tokens.patches.shape == (300, 3, 16, 16)
    for image, own in zip(images, tokens.unpack(), strict=True):
        assert torch.equal(own.patches, sample(image[None], own.allocation))
