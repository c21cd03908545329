"""A number of tokens spread evenly over a grid, whatever the number."""

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from homunculus.geometry import Size


def evenly(grid: Size, count: int, device: torch.device | str = "cpu") -> Int64[Tensor, "count"]:
    """The middles of `count` near-square cells that tile the grid: rows of nearly equal length, in reading order.

    No row holds more than the grid has columns, and there are no more rows than the grid has.

    >>> evenly((4, 4), 4).tolist(), evenly((5, 3), 3).tolist(), evenly((2, 2), 4).tolist()
    ([5, 7, 13, 15], [5, 7, 9], [0, 1, 2, 3])
    """
    columns, rows = grid
    down = min(max(round(math.sqrt(count * rows / columns)), -(-count // columns)), rows, count)
    cell = torch.arange(count, device=device)
    # Row r starts at cell floor(r * count / down): the longer rows are spread evenly as well.
    row = ((cell + 1) * down - 1) // count
    first, after = row * count // down, (row + 1) * count // down
    across = ((cell - first) * 2 + 1) * columns // ((after - first) * 2)
    return (row * 2 + 1) * rows // (down * 2) * columns + across
