"""Does a method know where the answer is, and how much of the image does it show?

Of a density: `hit`, whether its highest leaf has its centre in the place of the answer grown by half a leaf; `mass`,
the share of it in that place grown by one leaf; `r2`, the squared correlation with the true map, None where either is
flat. Of cells: `cell`, whether the one that relevance is densest in has its centre in that place; `covered`, the share
of the image inside some cell; `fine`, inside one of level 1 or finer.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float32, Float64
from torch import Tensor

from homunculus.allocation.coverage import coverage
from homunculus.data import relevance_map
from homunculus.data.record import Box
from homunculus.geometry import Size
from homunculus.structures import Allocation

FINE = 1  # the coarsest level that counts as fine


def grounding(density: Float64[Tensor, "gh gw"], boxes: Sequence[Box], size: Size) -> dict[str, float | None]:
    """How well a density knows where the answer is: hit, mass and r2, as the top of this file says.

    >>> import torch
    >>> density = torch.zeros(4, 4, dtype=torch.float64); density[1, 2] = 1.0
    >>> grounding(density, [(32, 16, 48, 32)], (64, 64))
    {'hit': 1.0, 'mass': 1.0, 'r2': 1.0}
    """
    values = density.numpy()
    gh, gw = values.shape
    across, down = size[0] / gw, size[1] / gh
    y, x = divmod(int(values.argmax()), gw)
    place = (x + 0.5) * across, (y + 0.5) * down
    hit = any(inside(place, grown(box, across / 2, down / 2)) for box in boxes)
    near, true = _regions(tuple(boxes), size, (gw, gh))
    mass = (values * near).sum() / values.sum()
    if values.min() == values.max() or true.min() == true.max():
        return {"hit": float(hit), "mass": float(mass), "r2": None}
    apart, from_true = values - values.mean(), true - true.mean(dtype=np.float64)
    r2 = (apart * from_true).sum() ** 2 / ((apart**2).sum() * (from_true**2).sum())
    return {"hit": float(hit), "mass": float(mass), "r2": min(1.0, float(r2))}


@lru_cache(1 << 14)  # the same questions are asked in many ways, and this is half of what a row costs
def _regions(
    boxes: tuple[Box, ...], size: Size, grid: Size
) -> tuple[Float32[np.ndarray, "gh gw"], Float32[np.ndarray, "gh gw"]]:
    """The place of an answer on a grid, grown by one leaf and as it is."""
    near = [grown(box, size[0] / grid[0], size[1] / grid[1]) for box in boxes]
    first, second = (relevance_map(own, size, grid).float().numpy() for own in (near, boxes))
    return first, second


def grown(box: Box, across: float, down: float) -> Box:
    x0, y0, x1, y1 = box
    return x0 - across, y0 - down, x1 + across, y1 + down


def inside(place: tuple[float, float], box: Box) -> bool:
    return box[0] <= place[0] < box[2] and box[1] <= place[1] < box[3]


def densest(allocation: Allocation) -> Tensor:
    """The centre of the cell of each image that relevance is densest in; of equal ones the first.

    >>> import homunculus, torch
    >>> density = torch.ones(16, 16); density[3, 5] = 100.0
    >>> densest(homunculus.allocate(density, 64)).tolist()
    [[88.0, 56.0]]
    """
    density = (allocation.scores / 4**allocation.levels).masked_fill(allocation.is_context, -1)
    return allocation.centers[range(len(density)), density.argmax(1)]


def found(place: Sequence[float], boxes: Sequence[Box], leaf: float) -> float:
    """Whether a place is that of the answer, or half a leaf from it."""
    x, y = place
    return float(any(inside((x, y), grown(box, leaf / 2, leaf / 2)) for box in boxes))


def shown(allocation: Allocation) -> dict[str, float]:
    """How much of one image its cells show, all and the fine ones."""
    covered, fine = (coverage(allocation, level).union.item() for level in (float("inf"), FINE))
    return {"covered": covered, "fine": fine}
