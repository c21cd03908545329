"""The only place that converts between pixels, leaves, levels and unit coordinates.

Conventions (pinned by tests/test_geometry.py):
  x right, y down, always in (x, y) order; sizes are (width, height), grids are (gw, gh) leaves.
  Pixel i covers [i, i+1), so its centre is at i + 0.5; boxes are half-open (x0, y0, x1, y1).
  An image of W x H pixels is laid on gw x gh leaves: leaf edge i is at pixel i*W/gw. The edge is computed in float64
  from the integer i alone, so two neighbouring cells share the very same float.
  A level-L cell covers 2^L x 2^L leaves, counted from the top-left; cells that stick out of the grid are clipped.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from homunculus.errors import BudgetError, ImageError

Size = tuple[int, int]

MIN_TREE_BUDGET = 16


class Grid(NamedTuple):
    """The leaf grid chosen for an image: `gw` x `gh` leaves, roots of level `root_level`, scale (sx, sy)."""

    gw: int
    gh: int
    root_level: int
    sx: float
    sy: float


def check_leaf(leaf: Any) -> int:
    """A leaf side in pixels, or an error that says what it must be."""
    if isinstance(leaf, bool) or not isinstance(leaf, int) or leaf < 1:
        raise ImageError(f"leaf must be a positive whole number of pixels, got {leaf!r}: 16 is the default")
    return leaf


def check_leaves(grid: Size, budget: int) -> None:
    """Refuse a budget that a grid has too few leaves for."""
    gw, gh = grid
    if gw * gh < budget:
        raise BudgetError(
            f"a grid of {gw}x{gh} leaves has {gw * gh} of them, fewer than the budget of {budget}: "
            "give a finer density or a smaller budget"
        )


def cells_across(leaves: int, level: int) -> int:
    """How many cells of `level` it takes to cover `leaves` leaves (the last one may be clipped).

    >>> cells_across(64, 4), cells_across(65, 4)
    (4, 5)
    """
    return -(-leaves >> level)


@lru_cache(maxsize=4096)
def fit_grid(width: int, height: int, budget: int = 273, leaf: int = 16, leaves: int | None = None) -> Grid:
    """The leaf grid that changes an image least and still lets a quadtree spend exactly `budget` tokens on it.

    Both sides become a multiple of 2^L leaves, so every root is a full cell and every split costs exactly 3 tokens.
    Nothing is cropped or padded: the image is resampled by `sx`, `sy`, which are reported. Images with fewer leaves
    than the budget are enlarged. `leaves` asks for at least that many leaves (a set of nested budgets needs the
    largest).

    >>> fit_grid(1024, 1024)
    Grid(gw=64, gh=64, root_level=4, sx=1.0, sy=1.0)
    >>> fit_grid(1, 1)[:3]
    (18, 18, 1)
    """
    check_leaf(leaf)
    if width < 1 or height < 1:
        raise ImageError(f"an image of {width}x{height} pixels has no area: both sides must be at least 1")
    if budget < 1:
        raise BudgetError(f"budget must be a positive number of tokens, got {budget}")
    least = max(budget, leaves or 0)
    w, h = width / leaf, height / leaf
    enlarge = max(1.0, math.sqrt(least / (w * h)))
    w, h = w * enlarge, h * enlarge

    best: tuple[tuple[float, float], int, int] | None = None
    for level in range(math.ceil(math.log2(max(w, h))) + 1):
        step = 1 << level
        for a in (math.floor(w / step), math.ceil(w / step)):
            for b in (math.floor(h / step), math.ceil(h / step)):
                roots = a * b
                if roots < 1 or not roots_suit(roots, budget) or roots << (2 * level) < least:
                    continue
                # Changing the aspect costs most; shrinking loses pixels and costs four times what enlarging does.
                sx, sy = math.log(a * step / w), math.log(b * step / h)
                distortion = abs(sx - sy) + (max(-2 * sx, sx / 2) + max(-2 * sy, sy / 2)) / 2
                # Two grids that shrink often cost exactly the same: rounding noise must not decide between them.
                cost = round(distortion, 9), abs(roots - budget / 16)
                if best is None or cost < best[0]:
                    best = cost, a * step, b * step
    if best is None:
        raise BudgetError(f"no quadtree spends exactly {budget} tokens: tree budgets start at {MIN_TREE_BUDGET}")
    _, gw, gh = best
    return Grid(gw, gh, root_level(gw, gh, budget), gw * leaf / width, gh * leaf / height)


def roots_suit(roots: int, budget: int) -> bool:
    """Can a quadtree with so many full roots reach `budget`? A split adds 3; the 0 to 2 left over need split cells."""
    return roots <= max(1, budget // 3) and budget - roots not in (1, 2, 5)


@lru_cache(maxsize=4096)
def root_level(gw: int, gh: int, budget: int) -> int:
    """The level of the roots over a given grid: full cells if any level has them, then as near to budget/16 as can be.

    >>> root_level(64, 64, 273), root_level(17, 17, 273)
    (4, 2)
    """
    check_leaves((gw, gh), budget)
    if budget < MIN_TREE_BUDGET:
        raise BudgetError(f"tree allocators need a budget of at least {MIN_TREE_BUDGET}, got {budget}")
    levels = range(max(gw, gh).bit_length() + 1)
    roots = {level: cells_across(gw, level) * cells_across(gh, level) for level in levels}
    suitable = [level for level in levels if roots_suit(roots[level], budget)]
    full = [level for level in suitable if gw % (1 << level) == 0 and gh % (1 << level) == 0]
    return min(full or suitable, key=lambda level: abs(roots[level] - budget / 16))


def to_pixels(
    cells: Float[Tensor, "*shape xy"], grid: Size, size: Size, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*shape xy"]:
    """Boxes, or any (x, y, x, y, ...), in leaf units (float64) to pixels of the original image.

    >>> to_pixels(torch.tensor([[0., 0., 1., 2.]], dtype=torch.float64), grid=(64, 64), size=(1000, 500))
    tensor([[ 0.0000,  0.0000, 15.6250, 15.6250]])
    """
    x = cells[..., 0::2] * size[0] / grid[0]
    y = cells[..., 1::2] * size[1] / grid[1]
    return torch.stack((x, y), dim=-1).flatten(-2).to(dtype)


def leaf_centers(grid: Size, size: Size, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """Pixel coordinates of the leaf centres along x `[gw]` and along y `[gh]`, float64.

    >>> leaf_centers((2, 1), (64, 10))
    (tensor([16., 48.], dtype=torch.float64), tensor([5.], dtype=torch.float64))
    """
    xs, ys = (
        (torch.arange(count, dtype=torch.float64, device=device) + 0.5) * side / count
        for count, side in zip(grid, size, strict=True)
    )
    return xs, ys


def leaf_side(grid: Size, size: Size) -> float:
    """The side, in original pixels, of a square with the area of one leaf: the unit of eccentricity and of e0.

    >>> leaf_side((64, 64), (1024, 1024))
    16.0
    """
    return math.sqrt(size[0] / grid[0] * size[1] / grid[1])


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def spread_order(w: int, h: int, device: torch.device | str = "cpu") -> Int[Tensor, "cells"]:
    """Row-major indices of a w x h grid in bit-reversed Morton order: any prefix is spread over the whole grid.

    This is the order in which ties are broken everywhere, so that leftovers do not pile up in one corner.

    >>> spread_order(4, 4)[:4]  # one cell in each quadrant
    tensor([ 0,  8,  2, 10])
    """
    bits = max(w - 1, h - 1).bit_length()
    x, y = torch.arange(w), torch.arange(h)[:, None]
    key = torch.zeros(h, w, dtype=torch.int64)
    for bit in range(bits):  # lowest bit of x and y becomes the highest of the key, y below x
        key |= ((x >> bit) & 1) << (2 * (bits - bit) - 1) | ((y >> bit) & 1) << (2 * (bits - bit) - 2)
    return torch.argsort(key.flatten()).to(device)
