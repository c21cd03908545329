"""Charts on segments: every count exact, no cell twice however charts nest, boxes and shares against plain loops."""

import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.atlas import (
    Regions,
    box_area,
    choose_charts,
    distinct_scale,
    find_regions,
    lay_charts,
    share_cells,
)
from homunculus.errors import AllocatorError, BudgetError
from homunculus.foveate import make_view
from homunculus.pyramid import ImagePyramid
from homunculus.segments import MAX_PIXELS, classical_labels, read_labels
from homunculus.structures import View
from tests.strategies import densities
from tests.test_budget import assert_exact

KINDS = ("noise", "nested", "stripes", "rectangles", "background")


def label_map(kind: str, batch: int, h: int, w: int, generator: torch.Generator) -> torch.Tensor:
    """Labels as awkward as they come: any numbers, any gaps between them, boxes inside boxes."""
    names = torch.randint(-(2**62), 2**62, (8,), generator=generator).abs() | 1
    ys, xs = torch.arange(h)[:, None], torch.arange(w)
    match kind:
        case "noise":
            return names[torch.randint(8, (batch, h, w), generator=generator)]
        case "nested":
            ring = torch.minimum(torch.minimum(xs, w - 1 - xs), torch.minimum(ys, h - 1 - ys))
            return names[ring.clamp(max=7)].expand(batch, -1, -1)
        case "stripes":
            return names[((xs + 0 * ys) * 8 // w)].expand(batch, -1, -1)
        case "rectangles":
            labels = torch.zeros(batch, h, w, dtype=torch.int64)
            for image in range(batch):
                for name in names.tolist():
                    x0, y0 = (int(torch.randint(side, (), generator=generator)) for side in (w, h))
                    x1, y1 = (int(torch.randint(1, side + 1, (), generator=generator)) for side in (w, h))
                    labels[image, y0 : y0 + y1, x0 : x0 + x1] = name
            return labels
    return torch.randint(-3, 1, (batch, h, w), generator=generator)


# --------------------------------------------------------------------------------------------------------- the promise


@settings(max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_exact_distinct_covering_and_the_same_alone(data):
    gw, gh = data.draw(st.integers(1, 14)), data.draw(st.integers(1, 14))
    budget = data.draw(st.integers(1, gw * gh))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    h, w = data.draw(st.sampled_from([(gh, gw), (1, 1), (3 * gh, 3 * gw), (7, 11), (40, 23)]))
    labels = label_map(data.draw(st.sampled_from(KINDS)), 2, h, w, generator)
    options = {
        "charts": data.draw(st.sampled_from([1, 3, 16, 64])),
        "background_share": data.draw(st.sampled_from([0.0, 0.2, 0.7, 1.0])),
        "area_share": data.draw(st.sampled_from([0.0, 0.25, 1.0])),
        "image_size": data.draw(st.sampled_from([(16 * gw, 16 * gh), (17 * gw, 13 * gh), (1, 1), (5, 3000)])),
    }
    density = data.draw(densities((2, gh, gw)))
    allocation = homunculus.allocate(density, budget, "atlas", segments=labels, **options)
    assert_exact(allocation, budget)
    assert (homunculus.coverage(allocation).union > 1 - 1e-6).all()
    assert (allocation.levels > -0.02).all()  # no cell is finer than a leaf, but for what keeps cells apart
    alone = homunculus.allocate(density[1], budget, "atlas", segments=labels[1], **options)
    assert torch.equal(alone.boxes, allocation.boxes[1:]) and torch.equal(alone.scores, allocation.scores[1:])


@pytest.mark.parametrize("grid", [(64, 64), (17, 23), (60, 5), (1500, 3), (4096, 1)])
@pytest.mark.parametrize("kind", ["nested", "rectangles", "noise"])
def test_no_cell_twice_where_charts_are_full(grid, kind):
    """Budgets that fill every chart with leaves: nested ones would repeat each other cell for cell."""
    gw, gh = grid
    labels = label_map(kind, 1, gh, gw, torch.Generator().manual_seed(1))
    for budget in (gw * gh, gw * gh - 1, gw * gh * 3 // 4, gw * gh // 2):
        for size in ((gw * 16, gh * 16), (99_991, 64)):
            call = {"segments": labels, "background_share": 0.0, "image_size": size}
            boxes = homunculus.allocate(torch.rand(gh, gw), budget, "atlas", **call).boxes[0]
            assert boxes.unique(dim=0).shape[0] == budget


@given(st.data())
def test_charts_with_cells_of_one_size_are_told_apart(data):
    """Any boxes, and counts chosen so that cells would coincide: the same area a cell in all of them."""
    gw, gh = data.draw(st.integers(8, 64)), data.draw(st.integers(8, 64))
    cell = data.draw(st.sampled_from([1, 2, 4]))
    corners = data.draw(
        st.lists(st.tuples(st.integers(0, gw // 4 - 1), st.integers(0, gh // 4 - 1)), min_size=2, max_size=8)
    )
    sides = data.draw(
        st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=len(corners), max_size=len(corners))
    )
    boxes = {
        (4 * x, 4 * y, min(4 * (x + w), gw), min(4 * (y + h), gh))
        for (x, y), (w, h) in zip(corners, sides, strict=True)
    }
    boxes = torch.tensor([sorted(boxes)])
    counts = torch.cat((torch.ones(1, 1, dtype=torch.int64), box_area(boxes) // cell), dim=1)
    cells = lay_charts(boxes, counts, (gw, gh), (16 * gw, 16 * gh), int(counts.sum()))
    pixels = (cells * 16).float()[0]
    assert pixels.unique(dim=0).shape[0] == len(pixels)
    scale = distinct_scale(torch.cat((torch.tensor([[[0, 0, gw, gh]]]), boxes), dim=1), counts, (gw, gh))
    assert scale[0, 0] == 1 and (scale <= 1).all() and (scale > 1 - 8 * 64 * 2.0**-19).all()


# ----------------------------------------------------------------------------------------------------------- its parts


@given(st.data())
def test_regions_against_a_loop(data):
    gw, gh = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    h, w = data.draw(st.sampled_from([(gh, gw), (2 * gh, 3 * gw), (5, 4), (13, 17)]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    labels = torch.randint(-2, 6, (2, h, w), generator=generator)
    relevance = torch.rand(2, gh, gw, generator=generator, dtype=torch.float64)
    relevance = relevance / relevance.sum((1, 2), keepdim=True)
    found = find_regions(labels, relevance, 8)
    for image in range(2):
        # Each leaf's relevance spread over its area, by exact overlap of label pixels and leaves.
        rows = overlap(h, gh) @ relevance[image].numpy() @ overlap(w, gw).T
        expected = {}
        for name in set(labels[image].flatten().tolist()) - {-2, -1, 0}:
            ys, xs = np.nonzero(labels[image].numpy() == name)
            box = min(xs) * gw // w, min(ys) * gh // h, -(-(max(xs) + 1) * gw // w), -(-(max(ys) + 1) * gh // h)
            expected[box, round(len(ys) / (h * w), 9), round(rows[ys, xs].sum(), 9)] = None
        got = [
            (tuple(box), round(size, 9), round(mass, 9))
            for box, mass, size in zip(*(part[image].tolist() for part in found), strict=True)
            if size
        ]
        assert set(got) == set(expected) or len(got) == 8
        masses = found.mass[image][found.size[image] > 0]
        assert (masses.diff() <= 0).all()


def overlap(n: int, cells: int) -> np.ndarray:
    """[n, cells]: the share of each cell that lies in each of n equal parts of the same line."""
    share = np.zeros((n, cells))
    for i in range(n):
        for j in range(cells):
            low, high = max(Fraction(i, n), Fraction(j, cells)), min(Fraction(i + 1, n), Fraction(j + 1, cells))
            share[i, j] = max(Fraction(0), high - low) * cells
    return share


def test_what_becomes_a_chart():
    """The heaviest first; not what spans more than half of the image, not what nearly repeats a heavier one."""
    boxes = [[0, 0, 16, 9], [2, 2, 8, 8], [2, 2, 8, 7], [9, 9, 12, 12], [0, 0, 16, 8], [9, 9, 10, 10], [0, 0, 0, 0]]
    shares = torch.tensor([[0.3, 0.2, 0.15, 0.15, 0.1, 0.1, 0.0]], dtype=torch.float64)
    areas = shares.flip(1)
    found = Regions(torch.tensor([boxes]), shares, areas)
    kept, weights = choose_charts(found, (16, 16), 7, 0.25)
    assert kept[0].tolist() == [boxes[1], boxes[3], boxes[4], boxes[5], *[[0] * 4] * 3]
    assert weights[0, :5].tolist() == pytest.approx([0.175, 0.15, 0.1125, 0.125, 0.0])
    assert choose_charts(found, (16, 16), 2, 0.25)[0].tolist() == [[boxes[1], boxes[3]]]


@given(st.data())
def test_shares_add_up_and_charts_are_finer_than_the_background(data):
    gw, gh = data.draw(st.integers(2, 20)), data.draw(st.integers(2, 20))
    budget = data.draw(st.integers(1, gw * gh))
    background = data.draw(st.integers(1, budget))
    sides = data.draw(st.lists(st.tuples(st.integers(0, gw), st.integers(0, gh)), min_size=1, max_size=6))
    boxes = torch.tensor([[(0, 0, w, h) if 2 * w * h <= gw * gh else (0, 0, 0, 0) for w, h in sides]])
    weights = torch.tensor([data.draw(st.lists(st.sampled_from([0, 1e-9, 0.2, 1]), min_size=6, max_size=6))])
    counts = share_cells(boxes, weights[:, : len(sides)].double(), (gw, gh), budget, background)[0].tolist()
    areas = box_area(boxes)[0].tolist()
    assert sum(counts) == budget and counts[0] >= background
    for count, area in zip(counts[1:], areas, strict=True):
        assert 0 <= count <= area
        assert count == 0 or Fraction(area, count) < Fraction(gw * gh, counts[0])
    if counts[0] > background:  # only what no chart has room for
        first = next((i for i, count in enumerate(counts[1:]) if count == 0 and areas[i]), len(areas))
        assert all(count == area for count, area in zip(counts[1 : 1 + first], areas, strict=False))


def grid_by_hand(n: int, box: tuple[int, ...], pixel_aspect: Fraction) -> list[tuple[Fraction, ...]]:
    """n cells in rows over a box, in exact fractions: longer rows spread evenly, all areas equal."""
    x0, y0, x1, y1 = box
    w, h = x1 - x0, y1 - y0
    square = round(float(n * h * pixel_aspect / w) ** 0.5)
    rows = max(1, min(max(square, -(-n // w)), h, n))
    cells = []
    for row in range(rows):
        first, after = row * n // rows, (row + 1) * n // rows
        for i in range(after - first):
            left, right = (x0 + Fraction(j * w, after - first) for j in (i, i + 1))
            cells.append((left, y0 + Fraction(first * h, n), right, y0 + Fraction(after * h, n)))
    return cells


@given(st.data())
def test_a_chart_is_a_grid(data):
    gw, gh = data.draw(st.integers(2, 30)), data.draw(st.integers(2, 30))
    x0, y0 = data.draw(st.integers(0, gw - 1)), data.draw(st.integers(0, gh - 1))
    box = (x0, y0, data.draw(st.integers(x0 + 1, gw)), data.draw(st.integers(y0 + 1, gh)))
    size = (data.draw(st.sampled_from([16 * gw, 100, 3000])), data.draw(st.sampled_from([16 * gh, 100, 3000])))
    area = (box[2] - x0) * (box[3] - y0)
    n = data.draw(st.integers(1, area))
    if Fraction(area, n) >= gw * gh:
        return
    counts = torch.tensor([[1, n]])
    cells = lay_charts(torch.tensor([[box]]), counts, (gw, gh), size, n + 1)[0]
    assert cells[0].tolist() == [0, 0, gw, gh]
    expected = grid_by_hand(n, box, Fraction(size[1] * gw, size[0] * gh))
    assert torch.allclose(cells[1:], torch.tensor(expected, dtype=torch.float64), atol=1e-9)
    assert ((cells[1:, 2:] - cells[1:, :2]) > 0.5 - 1e-9).all()


# ----------------------------------------------------------------------------------------------------------- behaviour


def test_without_segments_it_is_the_uniform_grid():
    density = torch.rand(3, 48, 64)
    for budget in (1, 17, 273, 3072):
        plain = homunculus.allocate(density, budget, "uniform")
        assert torch.equal(
            homunculus.allocate(density, budget, "atlas", segments=-torch.ones(5, 5).long()).boxes, plain.boxes
        )
    leaves = homunculus.allocate(density, 3072, "atlas", segments=torch.zeros(48, 64).long(), image_size=(1100, 750))
    assert (leaves.levels.abs() < 1e-4).all()


def test_tokens_follow_relevance():
    labels = torch.zeros(64, 64, dtype=torch.int64)
    labels[4:24, 4:24], labels[36:56, 36:56] = 1, 2
    density = torch.ones(2, 64, 64, dtype=torch.float64)
    density[1, 40:50, 40:50] = 30
    counts = []
    allocation = homunculus.allocate(density, 273, "atlas", segments=labels)
    for boxes, levels in zip(allocation.boxes, allocation.levels, strict=True):
        inside = (boxes[:, :2] >= 36 * 16) & (boxes[:, 2:] <= 56 * 16)
        counts.append(int((inside.all(1) & (levels < 2)).sum()))
    equal, relevant = counts
    assert abs(equal - (273 - 55) / 2) <= 1 and relevant > 1.5 * equal


def test_a_segment_smaller_than_a_leaf_still_gets_its_leaf():
    labels = torch.zeros(512, 512, dtype=torch.int64)
    labels[130, 207] = 9
    boxes = homunculus.allocate(torch.ones(64, 64), 100, "atlas", segments=labels, image_size=(512, 512)).boxes[0]
    assert (boxes == torch.tensor([200.0, 128.0, 208.0, 136.0])).all(1).sum() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "atlas without segments= looks at pixels"),
        ({"segments": lambda images: images}, "looks at pixels"),
        ({"segments": torch.ones(8, 8)}, r"torch.float32: give whole numbers \[B, h, w\]"),
        ({"segments": np.ones((8, 8))}, "segments came as float64"),
        ({"segments": torch.zeros(3, 8, 8).long()}, r"shape \[3, 8, 8\] for 1 images"),
        ({"segments": torch.zeros(0, 8).long()}, "a label map of shape"),
        ({"segments": torch.zeros(8, 8).long(), "charts": 0}, "charts is a whole number from 1 to 64, got 0"),
        ({"segments": torch.zeros(8, 8).long(), "charts": 65}, "charts is"),
        ({"segments": torch.zeros(8, 8).long(), "area_share": 1.1}, "area_share=1.1"),
        ({"segments": torch.zeros(8, 8).long(), "background_share": -0.1}, "background_share=-0.1"),
    ],
)
def test_one_line_says_what_is_wrong(options, message):
    with pytest.raises(AllocatorError, match=message) as caught:
        homunculus.allocate(torch.ones(16, 16), 50, "atlas", **options)
    assert "\n" not in str(caught.value)


def test_more_cells_than_leaves():
    view = View(torch.ones(1, 4, 4, dtype=torch.float64), (64, 64))
    with pytest.raises(BudgetError, match="fewer than the budget of 17"):
        homunculus.allocation.get_allocator("atlas")(view, 17, segments=torch.ones(4, 4).long())


def test_label_maps_come_in_many_forms():
    view = View(torch.ones(2, 8, 8, dtype=torch.float64), (128, 128))
    labels = np.arange(64).reshape(8, 8)
    for form in (labels, labels.astype(np.uint8), np.stack([labels] * 2), torch.from_numpy(labels).int()):
        assert read_labels(form, view).tolist() == [labels.tolist()] * 2
    assert read_labels(labels > 3, view).sum() == 2 * 60
    seen = []
    images = torch.rand(2, 3, 200, 150)
    homunculus.foveate(images, budget=64, allocator="atlas", segments=lambda given: seen.append(given) or labels)
    assert torch.equal(seen[0], images)


# -------------------------------------------------------------------------------------- segments found in the pixels


def scene(noise: int = 4, width: int = 512, height: int = 384) -> torch.Tensor:
    """Three plain objects on a gradient, and a block of 4 x 3 words."""
    image = torch.stack([torch.linspace(110, 150, width).expand(height, -1)] * 3)
    for (x0, y0, x1, y1), colour in OBJECTS.items():
        image[:, y0:y1, x0:x1] = torch.tensor(colour, dtype=torch.float32)[:, None, None]
    for row in range(3):
        for word in range(4):
            image[:, 240 + 32 * row : 260 + 32 * row, 260 + 44 * word : 292 + 44 * word] = 20.0
    image += torch.randn(image.shape, generator=torch.Generator().manual_seed(0)) * noise
    return image.clamp(0, 255).byte()


OBJECTS = {(40, 40, 140, 130): (200, 30, 30), (300, 60, 420, 150): (30, 160, 60), (60, 240, 160, 340): (240, 230, 60)}
WORDS = (260, 240, 424, 324)


def test_charts_sit_on_objects():
    pytest.importorskip("skimage")
    view = make_view(scene())
    found = find_regions(classical_labels(view.pyramid), view.relevance, 64)
    boxes = choose_charts(found, view.grid, 16, 0.25)[0][0].double() * 16
    for target in (*OBJECTS, WORDS):
        target = torch.tensor(target, dtype=torch.float64)
        low, high = torch.maximum(boxes[:, :2], target[:2]), torch.minimum(boxes[:, 2:], target[2:])
        shared = (high - low).clamp(min=0).prod(1)
        union = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (target[2:] - target[:2]).prod() - shared
        best = (shared / union).argmax()
        assert shared[best] / union[best] > 0.55, target
        assert shared[best] > 0.9 * (target[2:] - target[:2]).prod()  # around the object, not through it


def test_words_make_a_paragraph():
    pytest.importorskip("skimage")
    labels = classical_labels(make_view(scene()).pyramid)[0]
    words = {int(labels[(250 + 32 * row) // 4, (276 + 44 * word) // 4]) for row in range(3) for word in range(4)}
    objects = {int(labels[(y0 + y1) // 8, (x0 + x1) // 8]) for x0, y0, x1, y1 in OBJECTS}
    assert len(words) == 1 and len(objects) == 3 and len(words | objects | {int(labels[2, 2])}) == 5


def test_pixels_are_cut_the_same_alone_and_in_a_batch():
    pytest.importorskip("skimage")
    images = torch.stack([scene(noise=4), scene(noise=20), scene(noise=0).flip(2)])
    together = homunculus.foveate(images, allocator="atlas")
    assert_exact(together.allocation, 273)
    again = homunculus.foveate(images, allocator="atlas")
    assert torch.equal(together.allocation.boxes, again.allocation.boxes)
    for i, image in enumerate(images):
        alone = homunculus.foveate(image, allocator="atlas")
        assert torch.equal(alone.allocation.boxes[0], together.allocation.boxes[i])
        assert torch.equal(alone.patches[0], together.patches[i])


@pytest.mark.parametrize("size", [(1, 1), (16, 700), (700, 16), (333, 257), (8, 64)])
def test_pictures_of_any_shape(size):
    pytest.importorskip("skimage")
    image = torch.randint(0, 256, (3, size[1], size[0]), dtype=torch.uint8)
    for budget in (1, 16, 100):
        assert_exact(homunculus.foveate(image, budget=budget, allocator="atlas").allocation, budget)
    flat = torch.full((3, size[1], size[0]), 0.5)
    assert_exact(homunculus.foveate(flat, budget=100, allocator="atlas").allocation, 100)


def test_large_pictures_are_cut_in_a_smaller_copy():
    pytest.importorskip("skimage")
    image = torch.zeros(1, 3, 2048, 3072, dtype=torch.uint8)
    image[..., 512:1024, 1024:2048] = 200
    labels = classical_labels(ImagePyramid(image, (192, 128)))
    assert labels[0].numel() <= MAX_PIXELS
    found = find_regions(labels, torch.ones(1, 128, 192, dtype=torch.float64) / (128 * 192), 16)
    boxes = choose_charts(found, (192, 128), 16, 0.25)[0][0]
    assert ((boxes - torch.tensor([64, 32, 128, 64])).abs().amax(1) <= 1).any()


def test_without_scikit_image(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with pytest.raises(AllocatorError, match="pip install scikit-image, or give segments="):
        homunculus.foveate(torch.rand(3, 100, 100), allocator="atlas")
    labels = torch.ones(10, 10).long()
    assert homunculus.foveate(torch.rand(3, 100, 100), allocator="atlas", segments=labels).patches.shape[1] == 273


# ------------------------------------------------------------------------------------------------------------- the GPU


@pytest.mark.gpu
def test_with_labels_nothing_waits_for_the_device():
    from tests.test_gpu import no_sync

    labels = label_map("rectangles", 4, 100, 80, torch.Generator().manual_seed(0))
    density = torch.rand(4, 61, 45, dtype=torch.float64)
    on_cpu = homunculus.allocate(density, 273, "atlas", segments=labels)
    labels, density = labels.cuda(), density.cuda()
    homunculus.allocate(density, 273, "atlas", segments=labels)  # builds the resampling tables
    with no_sync():
        on_gpu = homunculus.allocate(density, 273, "atlas", segments=labels, validate=False)
    for field in ("boxes", "centers", "levels"):
        assert torch.equal(getattr(on_gpu, field).cpu(), getattr(on_cpu, field)), field
