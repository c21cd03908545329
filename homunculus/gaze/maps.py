"""Fixations to maps: which cell of a grid, how many in each, blurred.

A map is float64 [rows, columns] over the whole image; a density is a map of mass 1. The grid is whatever the model has,
here the leaves of the library: cells need not be square, so widths are told in pixels and turned into cells per axis.
"""

import math

import numpy as np
from jaxtyping import Float64, Int64

from homunculus.geometry import Size


def cells_of(places: Float64[np.ndarray, "n xy"], size: Size, grid: Size) -> Int64[np.ndarray, "n 2"]:
    """(column, row) of the cell that each place (x, y, ...) of an image lies in.

    >>> cells_of(np.array([[0.0, 0.0], [63.9, 15.0], [64.0, 16.0]]), (64, 16), (4, 2)).tolist()
    [[0, 0], [3, 1], [3, 1]]
    """
    scale = np.array(grid) / np.array(size)
    return np.clip(np.floor(places[:, :2] * scale).astype(np.int64), 0, np.array(grid) - 1)


def histogram(
    cells: Int64[np.ndarray, "n 2"], grid: Size, weights: Float64[np.ndarray, " n"] | None = None
) -> Float64[np.ndarray, "h w"]:
    """How many of the cells are each cell of the grid, or how much they weigh together.

    >>> histogram(np.array([[0, 0], [0, 0], [1, 0]]), (2, 1)).tolist()
    [[2.0, 1.0]]
    """
    flat = np.bincount(cells[:, 1] * grid[0] + cells[:, 0], weights, minlength=grid[0] * grid[1])
    return flat.astype(np.float64).reshape(grid[1], grid[0])


def density(map: Float64[np.ndarray, "*maps h w"]) -> Float64[np.ndarray, "*maps h w"]:
    """Maps scaled to mass 1; one without any mass says nothing and becomes uniform.

    >>> density(np.array([[[1.0, 3.0]], [[0.0, 0.0]]])).tolist()
    [[[0.25, 0.75]], [[0.5, 0.5]]]
    """
    total = map.sum((-2, -1), keepdims=True)
    even = 1 / (map.shape[-1] * map.shape[-2])
    return np.where(total > 0, map / np.where(total > 0, total, 1.0), even)


def with_even(map: Float64[np.ndarray, "*maps h w"], share: float) -> Float64[np.ndarray, "*maps h w"]:
    """A density of which the given share is spread evenly: nothing is impossible.

    >>> with_even(np.array([[1.0, 0.0]]), 0.5).tolist()
    [[0.75, 0.25]]
    """
    return density(map) * (1 - share) + share / (map.shape[-1] * map.shape[-2])


def blur(maps: Float64[np.ndarray, "*maps h w"], sigma: tuple[float, float]) -> Float64[np.ndarray, "*maps h w"]:
    """A Gaussian of the given widths along x and y, in cells, reflected at the borders: mass is kept, flat stays flat.

    >>> spot = np.zeros((5, 5)); spot[2, 0] = 1.0
    >>> round(float(blur(spot, (1.0, 1.0)).sum()), 12)
    1.0
    """
    across, down = _spread(maps.shape[-1], sigma[0]), _spread(maps.shape[-2], sigma[1])
    return np.einsum("ij,...jk,lk->...il", down, maps, across, optimize=True)


def widths(pixels: float, size: Size, grid: Size) -> tuple[float, float]:
    """A length in pixels of the image as cells along x and along y.

    >>> widths(32.0, (640, 480), (40, 60))
    (2.0, 4.0)
    """
    return pixels * grid[0] / size[0], pixels * grid[1] / size[1]


def _spread(cells: int, sigma: float) -> Float64[np.ndarray, "to from"]:
    """Where the mass of each cell goes: rows and columns sum to 1."""
    if sigma <= 0:
        return np.eye(cells)
    reach = np.arange(-math.ceil(8 * sigma), math.ceil(8 * sigma) + 1)
    weights = np.exp(-0.5 * (reach / sigma) ** 2)
    ends = (np.arange(cells)[:, None] + reach) % (2 * cells)  # [from, reach], folded back at the borders
    ends = np.where(ends < cells, ends, 2 * cells - 1 - ends)
    spread = np.zeros((cells, cells))
    np.add.at(spread, (ends, np.arange(cells)[:, None]), weights / weights.sum())
    return spread
