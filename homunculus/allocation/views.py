"""Thumbnail and crop, as people do it by hand: a grid over the whole image, and leaves around the places that matter.

All grids are rectangular and their sizes add up to the budget: 273 = 9x9 + 16x12. Cells of the crops are leaves, at
native resolution; the overview covers the image, so the two overlap. An encoder that wants ordinary images takes them
grid by grid: `view_grids` says what they are.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import box_mass, make_allocation
from homunculus.allocation.registry import register
from homunculus.allocation.tree import NOWHERE
from homunculus.errors import AllocatorError, BudgetError
from homunculus.geometry import Size, check_leaves
from homunculus.structures import Allocation, View

OVERVIEW_SHARE = 0.3  # of the tokens, or about as many


@dataclass(frozen=True, eq=False)
class ViewGrids:
    """An overview of `overview` = (columns, rows) cells, and crops of `crop` = (columns, rows) leaves.

    `boxes` are what they show, in leaf units: the whole image first, then each crop.
    """

    overview: Size
    crop: Size
    boxes: Float64[Tensor, "b views 4"]

    def cells(self) -> Float64[Tensor, "b n 4"]:
        """The cells of all grids, grid by grid, each in reading order."""
        grids = (self.overview, *[self.crop] * (self.boxes.shape[1] - 1))
        return torch.cat([_grid_cells(self.boxes[:, i], grid) for i, grid in enumerate(grids)], dim=1)


def _grid_cells(box: Float64[Tensor, "b 4"], grid: Size) -> Float64[Tensor, "b n 4"]:
    columns, rows = grid
    cell = torch.arange(columns * rows, device=box.device)
    x0, y0, x1, y1 = box[..., None].unbind(1)
    x, y = cell % columns, cell // columns
    edges = [
        low + (high - low) * place / count
        for step in (0, 1)
        for low, high, place, count in ((x0, x1, x + step, columns), (y0, y1, y + step, rows))
    ]
    return torch.stack(edges, dim=-1)


@register(
    "views",
    "an overview of the image and native-resolution crops of its peaks",
    minimum=2,
    uses_gaze=True,
    single_gaze=True,  # with one crop, which is the default
)
def views(view: View, budget: int, *, seed: int = 0, crops: int = 1, overview: Any = None) -> Allocation:
    """`crops` crops, on the fixations first and then on the density's peaks; `overview` = (columns, rows) is ours to
    choose if not given."""
    grids = view_grids(view, budget, crops, overview)
    cells = grids.cells()
    looking = replace(view, fixations=_fixations(view, grids.boxes[:, 1]))
    return make_allocation(looking, cells, "box", scores=box_mass(view.relevance, cells))


def _fixations(view: View, crop: Float64[Tensor, "b 4"]) -> Float64[Tensor, "b f 3"]:
    """The view's, or the middle of the first crop where an image has none: that is where it looked of itself."""
    (width, height), (gw, gh) = view.image_size, view.grid
    x, y = (crop[:, 0] + crop[:, 2]) / 2 * width / gw, (crop[:, 1] + crop[:, 3]) / 2 * height / gh
    looked = torch.stack((x, y, torch.ones_like(x)), dim=1)[:, None]
    if view.fixations is None:
        return looked
    return torch.where((view.fixations[..., 2:] > 0).any(1, keepdim=True), view.fixations, looked)


def view_grids(view: View, budget: int, crops: int = 1, overview: Any = None) -> ViewGrids:
    """What `views` shows of each image: the grids are chosen by shape and budget, the crops' places by the density.

    >>> grids = view_grids(View(torch.ones(1, 64, 64, dtype=torch.float64), (1024, 1024)), 273)
    >>> grids.overview, grids.crop, grids.boxes.tolist()
    ((9, 9), (16, 12), [[[0.0, 0.0, 64.0, 64.0], [24.0, 26.0, 40.0, 38.0]]])
    """
    overview, crop = choose_grids(budget, view.grid, view.image_size, _whole(crops), _pair(overview))
    corner = crop_corners(view, crop, crops).double()
    gw, gh = view.grid
    whole, side = (_constants(corner, numbers) for numbers in ((0, 0, gw, gh), crop))
    return ViewGrids(overview, crop, torch.cat((whole[:, :1], torch.cat((corner, corner + side), dim=-1)), dim=1))


def _constants(like: Float64[Tensor, "b crops 2"], numbers: Iterable[int]) -> Float64[Tensor, "b crops n"]:
    """Made on the device, so that nothing has to travel there."""
    return torch.stack([torch.full_like(like[..., 0], number) for number in numbers], dim=-1)


def _whole(crops: Any) -> int:
    if isinstance(crops, bool) or not isinstance(crops, int) or crops < 1:
        raise AllocatorError(f"crops is how many crops to make, 1 or more, got {crops!r}")
    return crops


def _pair(overview: Any) -> Size | None:
    if overview is None:
        return None
    pair = tuple(overview) if isinstance(overview, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise AllocatorError(f"overview is (columns, rows), both whole numbers above 0, got {overview!r}")
    return pair[0], pair[1]


# ---------------------------------------------------------------------------------------- which grids: the host knows


@lru_cache(maxsize=4096)
def choose_grids(
    budget: int, grid: Size, image_size: Size, crops: int = 1, overview: Size | None = None
) -> tuple[Size, Size]:
    """Columns and rows of the overview and of a crop, with overview + crops * crop == budget to the cell.

    Best are overview cells that do not squash the image, crops that are nearly square, and some 30 % of the tokens in
    the overview, in this order of importance. Overview cells are never as small as leaves, so no cell comes twice, and
    crops leave each other room wherever they are put.

    >>> choose_grids(273, (64, 64), (1024, 1024)), choose_grids(273, (96, 48), (1536, 768), crops=2)
    (((9, 9), (16, 12)), ((13, 7), (13, 7)))
    """
    check_leaves(grid, budget)
    (gw, gh), (width, height) = grid, image_size

    def badness(columns: int, rows: int, crop: Size) -> tuple[float, int]:
        squashed = abs(math.log(width * rows / (height * columns)))
        oblong = abs(math.log(crop[0] * width * gh / (crop[1] * height * gw)))
        share = columns * rows / (budget - columns * rows) * (1 - OVERVIEW_SHARE) / OVERVIEW_SHARE
        # Rounding noise must not decide; of equally good crops the wide one does: lines of text are wide.
        return round(2 * squashed + oblong + abs(math.log(share)), 9), -crop[0]

    def solutions(overviews: Iterable[Size]) -> Iterator[tuple[tuple[float, int], Size, Size]]:
        for columns, rows in overviews:
            cells, over = divmod(budget - columns * rows, crops)
            if over or cells < 1 or 2 * columns * rows > gw * gh:
                continue
            for crop in _rectangles(cells, grid):
                if _leaves_room(crop, grid, crops):
                    yield badness(columns, rows, crop), (columns, rows), crop

    if overview is not None:
        found = min(solutions([overview]), default=None)
    else:
        # Near the image's own aspect first; on narrow grids there may be nothing there.
        rows_near = ((c, round(c * height / width)) for c in range(1, gw + 1))
        near = ((c, r + i) for c, r in rows_near for i in range(-2, 3) if 0 < r + i <= gh)
        anywhere = ((c, r) for c in range(1, gw + 1) for r in range(1, min(gh, budget // c) + 1))
        found = min(solutions(near), default=None) or min(solutions(anywhere), default=None)
    if found is None:
        beside = "" if overview is None else f" beside an overview of {overview[0]}x{overview[1]}"
        raise BudgetError(
            f"{budget} tokens on {gw}x{gh} leaves do not divide into an overview and {crops} equal crops{beside}: "
            "change the budget, the overview or the number of crops"
        )
    return found[1], found[2]


def _rectangles(cells: int, grid: Size) -> Iterator[Size]:
    """All (columns, rows) of so many cells that fit into the grid."""
    for side in range(1, min(*grid, cells) + 1):
        if cells % side == 0:
            shape = (side, cells // side) if grid[0] <= grid[1] else (cells // side, side)
            if shape[0] <= grid[0] and shape[1] <= grid[1]:
                yield shape


def _leaves_room(crop: Size, grid: Size, crops: int) -> bool:
    """Whether there is a free place for the last crop, wherever the others are."""
    places = [side - own + 1 for side, own in zip(grid, crop, strict=True)]
    blocked = [min(2 * own - 1, free) for own, free in zip(crop, places, strict=True)]  # by each crop before it
    return (crops - 1) * blocked[0] * blocked[1] < places[0] * places[1]


# --------------------------------------------------------------------------------- where the crops go: the device knows


def crop_corners(view: View, crop: Size, crops: int) -> Int64[Tensor, "b crops 2"]:
    """The top-left leaf of every crop: on the fixations in their order, then on what is heaviest; they never overlap.

    A place is as good as the density inside the crop, weighted towards its middle, so that a peak is not cut off. Of
    equally good places the one nearest the image's middle is taken.
    """
    (gw, gh), (width, height) = view.grid, view.image_size
    x = torch.arange(gw - crop[0] + 1, device=view.device)
    y = torch.arange(gh - crop[1] + 1, device=view.device)[:, None]
    off_centre = (2 * x + crop[0] - gw) ** 2 + (2 * y + crop[1] - gh) ** 2  # in half leaves
    heaviest = tent_sum(tent_sum(view.relevance, crop[0], 2), crop[1], 1)
    free = torch.ones_like(heaviest, dtype=torch.bool)
    fixations = None
    if view.fixations is not None:  # those that count first
        first = torch.argsort((view.fixations[..., 2] <= 0).long(), dim=1, stable=True)
        fixations = view.fixations.gather(1, first[..., None].expand_as(view.fixations))
    corners = []
    for i in range(crops):
        merit = heaviest
        if fixations is not None and i < fixations.shape[1]:
            fx, fy, weight = fixations[:, i, :, None, None].unbind(1)
            dx, dy = (x + crop[0] / 2) * (width / gw) - fx, (y + crop[1] / 2) * (height / gh) - fy
            merit = torch.where(weight > 0, -(dx * dx + dy * dy), merit)
        merit = torch.where(free, merit, -torch.inf)
        best = merit == merit.amax((1, 2), keepdim=True)
        place = torch.where(best, off_centre, NOWHERE).flatten(1).argmin(1)
        left, top = (place % len(x))[:, None, None], (place // len(x))[:, None, None]
        corners.append(torch.cat((left, top), dim=1)[..., 0])
        free = free & (((x - left).abs() >= crop[0]) | ((y - top).abs() >= crop[1]))
    return torch.stack(corners, dim=1)


def tent_sum(x: Float64[Tensor, "b h w"], length: int, dim: int) -> Float64[Tensor, "b h2 w2"]:
    """Sums over windows of that length, weighted 1, 2, ... up to the middle and down again.

    >>> tent_sum(torch.tensor([[[1.0, 0.0, 0.0, 1.0, 0.0]]], dtype=torch.float64), 3, 2)
    tensor([[[1., 1., 2.]]], dtype=torch.float64)
    """
    half = (length + 1) // 2
    return window_sum(window_sum(x, half, dim), length + 1 - half, dim)


def window_sum(x: Float64[Tensor, "b h w"], length: int, dim: int) -> Float64[Tensor, "b h2 w2"]:
    """Sums over all windows of that length, from sums of 1, 2, 4, ... elements: few additions, in a fixed order.

    >>> window_sum(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.float64), 3, 2)
    tensor([[[6., 9.]]], dtype=torch.float64)
    """
    places = x.shape[dim] - length + 1
    total, start, size = torch.zeros_like(x.narrow(dim, 0, places)), 0, 1
    while size <= length:
        if length & size:
            total = total + x.narrow(dim, start, places)
            start += size
        if 2 * size <= length:
            rest = x.shape[dim] - size
            x = x.narrow(dim, 0, rest) + x.narrow(dim, size, rest)
        size *= 2
    return total
