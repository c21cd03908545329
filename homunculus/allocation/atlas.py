"""Segments as the charts of an atlas: each gets a grid of its own, as fine as it matters, over a coarse grid of all.

A chart is the bounding box of a segment, in whole leaves, cut into near-square cells. Charts may overlap, and they all
lie on the background, a grid over the whole image: nothing is left out. Two cells are never the same one:

  Cells of one chart have equal areas, and different charts get different areas. Every chart is finer than the
  background; from the coarsest chart to the finest, one that does not come out finer than the last by itself is shrunk
  about its centre by what float32 boxes can tell apart (one part in 16384 on a grid of 64 leaves).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.registry import register
from homunculus.allocation.stratified import largest_remainder
from homunculus.density import resample_mass
from homunculus.errors import AllocatorError
from homunculus.geometry import Size, check_leaves
from homunculus.segments import Segments, read_labels
from homunculus.structures import Allocation, View

ONE = 1 << 52  # mass 1 in fixed point: sums of integers have no order, so they are the same alone and in a batch
CANDIDATES = 4  # segments looked at for each chart there may be
MAX_CHARTS = 64


@register(
    "atlas",
    "segments with grids of their own, as fine as they matter, over a coarse grid",
    needs_pixels=True,
    trains="nothing: segments come from outside, shares from relevance",
)
def atlas(
    view: View,
    budget: int,
    *,
    seed: int = 0,
    segments: Segments = None,
    charts: int = 16,
    background_share: float = 0.2,
    area_share: float = 0.25,
) -> Allocation:
    """The most relevant segments, at most `charts` of them, share what the background leaves: by relevance, and by area
    for `area_share` of it. What the charts cannot hold (one cell a leaf is all) goes to the background.

    `segments` is a label map `[B, h, w]` of any resolution (0 and below: background), or a callable that makes one from
    the images `[B, 3, H, W]`; without it the pixels are cut by colour (`segments.classical_labels`, which needs
    scikit-image and waits for the device; nothing else here does).
    """
    _check(charts, background_share, area_share)
    check_leaves(view.grid, budget)
    found = find_regions(read_labels(segments, view), view.relevance, CANDIDATES * charts)
    boxes, weights = choose_charts(found, view.grid, charts, area_share)
    least_background = max(1, round(background_share * budget))
    counts = share_cells(boxes, weights, view.grid, budget, least_background)
    return make_allocation(view, lay_charts(boxes, counts, view.grid, view.image_size, budget), "box")


def _check(charts: int, background_share: float, area_share: float) -> None:
    if isinstance(charts, bool) or not isinstance(charts, int) or not 1 <= charts <= MAX_CHARTS:
        raise AllocatorError(f"charts is a whole number from 1 to {MAX_CHARTS}, got {charts!r}")
    if not (0 <= background_share <= 1 and 0 <= area_share <= 1):
        raise AllocatorError(f"shares go from 0 to 1, got {background_share=}, {area_share=}")


class Regions(NamedTuple):
    """The segments of each image, the most relevant first; those that are not there have size 0."""

    boxes: Int64[Tensor, "b s 4"]  # in whole leaves, around every pixel of the segment
    mass: Float64[Tensor, "b s"]  # share of the image's relevance
    size: Float64[Tensor, "b s"]  # share of its area


def find_regions(labels: Int64[Tensor, "b h w"], relevance: Float64[Tensor, "b gh gw"], most: int) -> Regions:
    """Bounding boxes and shares of the `most` most relevant segments of a label map.

    >>> labels = torch.tensor([[[0, 7, 7, 7], [0, 7, 3, 0]]])
    >>> found = find_regions(labels, torch.ones(1, 2, 4, dtype=torch.float64) / 8, 3)
    >>> found.boxes[0].tolist(), found.size[0].tolist()
    ([[1, 0, 4, 2], [2, 1, 3, 2], [0, 0, 0, 0]], [0.5, 0.125, 0.0])
    """
    h, w = labels.shape[1:]
    gh, gw = relevance.shape[1:]
    mass = (resample_mass(relevance, (w, h)).flatten(1) * ONE).round().long()
    # Any numbers will do for labels: sorted, equal ones lie together, and counting the changes renumbers them from 0.
    label, place = labels.flatten(1).sort(dim=1)
    number = torch.nn.functional.pad(label.diff(dim=1) != 0, (1, 0)).cumsum(1)
    x, y, empty = place % w, place // w, torch.zeros_like(place)

    def of_each(values: Tensor, reduce: str) -> Tensor:  # integers all: no order of adding shows
        return empty.scatter_reduce(1, number, values, reduce, include_self=reduce == "sum")

    is_segment = of_each(label, "amax") > 0
    size = torch.where(is_segment, of_each(torch.ones_like(place), "sum"), 0)
    weight = torch.where(is_segment, of_each(mass.gather(1, place), "sum"), -1)
    # From pixels of the map to whole leaves, outwards.
    x0, y0 = of_each(x, "amin") * gw // w, of_each(y, "amin") * gh // h
    x1, y1 = -(-(of_each(x, "amax") + 1) * gw // w), -(-(of_each(y, "amax") + 1) * gh // h)
    boxes = torch.stack((x0, y0, x1, y1), dim=-1) * is_segment[..., None]
    first = torch.sort(weight, dim=1, descending=True, stable=True).indices[:, :most]
    return Regions(
        boxes.gather(1, first[..., None].expand(-1, -1, 4)),
        weight.gather(1, first).clamp(min=0).double() / ONE,
        size.gather(1, first).double() / (h * w),
    )


def choose_charts(
    found: Regions, grid: Size, most: int, area_share: float
) -> tuple[Int64[Tensor, "b s 4"], Float64[Tensor, "b s"]]:
    """Boxes and weights of the first `most` segments that deserve a chart; empty boxes where there are fewer.

    One that spans more than half of the image is background, one whose box nearly repeats that of a heavier segment
    (their overlap is half of their union) is taken as part of it.

    >>> boxes = torch.tensor([[[0, 0, 8, 8], [1, 1, 4, 4], [1, 1, 4, 4], [0, 0, 2, 2]]])
    >>> shares = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64)
    >>> choose_charts(Regions(boxes, shares, shares), (8, 8), 3, 0.25)[0].tolist()
    [[[1, 1, 4, 4], [0, 0, 2, 2], [0, 0, 0, 0]]]
    """
    area = box_area(found.boxes)
    suits = (area > 0) & (2 * area <= grid[0] * grid[1])
    one, other = found.boxes[:, :, None], found.boxes[:, None]  # [B, S, S, 4]
    shared = box_area(torch.cat((torch.maximum(one, other)[..., :2], torch.minimum(one, other)[..., 2:]), dim=-1))
    union = area[:, :, None] + area[:, None] - shared
    repeats = (2 * shared >= union) & suits[:, None]
    suits = suits & ~repeats.tril(-1).any(2)  # of the heavier ones before it
    first = torch.sort(~suits, dim=1, stable=True).indices[:, :most]
    chosen = suits.gather(1, first)
    boxes = found.boxes.gather(1, first[..., None].expand(-1, -1, 4)) * chosen[..., None]
    weights = (1 - area_share) * found.mass + area_share * found.size
    return boxes, weights.gather(1, first) * chosen


def box_area(boxes: Int64[Tensor, "*shape 4"]) -> Int64[Tensor, "*shape"]:
    """Leaves inside boxes of whole leaves; 0 for an empty one."""
    x0, y0, x1, y1 = boxes.unbind(-1)
    return (x1 - x0).clamp(min=0) * (y1 - y0).clamp(min=0)


def share_cells(
    boxes: Int64[Tensor, "b s 4"], weights: Float64[Tensor, "b s"], grid: Size, budget: int, background: int
) -> Int64[Tensor, "b s_plus_1"]:
    """How many cells the background (first, at least `background`) and each chart get: `budget` in all.

    A chart gets as many as make it finer than the background, then its share of the rest by largest remainder, never
    more than its leaves. Charts that the budget cannot make finer get none; what the others are too small for returns
    to the background.

    >>> boxes = torch.tensor([[[0, 0, 4, 4], [4, 4, 6, 6]]])
    >>> share_cells(boxes, torch.tensor([[3.0, 1.0]], dtype=torch.float64), (8, 8), 20, 5)
    tensor([[ 5, 11,  4]])
    """
    leaves, area = grid[0] * grid[1], box_area(boxes)
    least = torch.where(area > 0, area * background // leaves + 1, 0)  # area / least < leaves / background
    counts = torch.where(least.cumsum(1) <= budget - background, least, 0)
    room = torch.where(counts > 0, area, 0)
    for share in (weights, None):  # by weight, then, where that leaves some over, by free room
        left = budget - background - counts.sum(1, keepdim=True)
        free = room - counts
        counts = counts + largest_remainder(free.double() if share is None else share, free, left)
    return torch.cat((budget - counts.sum(1, keepdim=True), counts), dim=1)


def lay_charts(
    boxes: Int64[Tensor, "b s 4"], counts: Int64[Tensor, "b s_plus_1"], grid: Size, size: Size, budget: int
) -> Float64[Tensor, "b n 4"]:
    """The cells of the background and of every chart, in leaf units: `counts` of each, background first, all distinct.

    >>> lay_charts(torch.tensor([[[0, 0, 4, 2]]]), torch.tensor([[1, 2]]), (8, 8), (128, 128), 3)[0].tolist()
    [[0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 2.0, 2.0], [2.0, 0.0, 4.0, 2.0]]
    """
    whole = torch.zeros_like(boxes[:, :1])
    whole[..., 2], whole[..., 3] = grid
    boxes = torch.cat((whole, boxes), dim=1)
    x0, y0, x1, y1 = boxes.unbind(-1)
    w, h = x1 - x0, y1 - y0
    # R rows of floor(n/R) or ceil(n/R) cells, near-square in pixels; no cell narrower than a leaf or lower than half.
    height, width = h.double() * (size[1] * grid[0]), w.double() * (size[0] * grid[1])  # in pixels, up to a factor
    square = (counts * height / width.clamp(min=1)).sqrt().round().long()
    rows = torch.minimum(torch.maximum(square, -(-counts // w.clamp(min=1))), torch.minimum(h, counts)).clamp(min=1)
    shrink = distinct_scale(boxes, counts, grid)
    inset_w, inset_h = w * shrink, h * shrink
    left, top = x0 + (w - inset_w) / 2, y0 + (h - inset_h) / 2

    ends = counts.cumsum(1)
    slot = torch.arange(budget, device=boxes.device).expand(len(boxes), -1).contiguous()
    chart = torch.searchsorted(ends, slot, right=True)  # the chart of each of the N cells
    start, n, r = (values.gather(1, chart) for values in (ends - counts, counts, rows))
    left, top, inset_w, inset_h = (values.gather(1, chart) for values in (left, top, inset_w, inset_h))
    cell = slot - start
    row = ((cell + 1) * r - 1) // n  # row i starts at cell floor(i*n/r): the longer rows are spread evenly
    first, after = row * n // r, (row + 1) * n // r
    columns = (after - first).double()
    x = [left + step * inset_w / columns for step in (cell - first, cell - first + 1)]
    y = [top + step * inset_h / n for step in (first, after)]
    return torch.stack((x[0], y[0], x[1], y[1]), dim=-1)


def distinct_scale(boxes: Int64[Tensor, "b s 4"], counts: Int64[Tensor, "b s"], grid: Size) -> Float64[Tensor, "b s"]:
    """By how much to scale each chart so that no two have cells of one size; 1 for the background, which comes first.

    Cells of w x h leaves that are equal as float32 boxes differ by 2^-22 of the grid's side in w and h at most, hence
    by 2^-23 * side * (1/w + 1/h) in the root of their area, relatively, where w >= 1 and h >= 1/2: less than a step.

    >>> boxes = torch.tensor([[[0, 0, 64, 64], [0, 0, 8, 8], [4, 4, 8, 8]]])
    >>> distinct_scale(boxes, torch.tensor([[16, 64, 16]]), (64, 64))  # both charts would have cells of one leaf
    tensor([[1.0000, 1.0000, 0.9999]], dtype=torch.float64)
    """
    side = torch.where(counts > 0, box_area(boxes).double() / counts.clamp(min=1), 0.0).sqrt()
    step = min(max(grid) * 2.0**-20, 1 / (2 * MAX_CHARTS))
    coarse_first = torch.sort(side, dim=1, descending=True, stable=True).indices
    allowed = 1 - step * torch.arange(boxes.shape[1], dtype=torch.float64, device=boxes.device)
    # side'_i / allowed_i never grows down the list, so side'_i <= (1 - step) * side'_(i-1): each finer than the last.
    relative = side.gather(1, coarse_first) / allowed
    lowest = relative.cummin(1).values
    scale = torch.where(relative > 0, lowest / relative.clamp(min=1e-12), 1.0)
    return torch.empty_like(scale).scatter_(1, coarse_first, scale)
