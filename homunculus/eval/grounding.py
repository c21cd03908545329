"""Does a method know where the answer is, and how much of the image does it show?

Of a density: `hit`, whether its highest leaf has its centre in the place of the answer grown by half a leaf; `mass`,
the share of it in that place grown by one leaf; `r2`, the squared correlation with the true map, None where either is
flat. Of cells: `cell`, whether the one that relevance is densest in has its centre in that place; `covered`, the share
of the image inside some cell; `fine`, inside one of level 1 or finer; `overlap`, how much of what is shown finely is
the same as for the first question of the image: leaves of both over leaves of either. Of reducers: `stands_for`, the
share of all leaves that what is kept was made of.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from homunculus.allocation.coverage import coverage
from homunculus.data import relevance_map
from homunculus.data.record import Box
from homunculus.geometry import Size
from homunculus.structures import Allocation

FINE = 1  # the coarsest level that counts as fine


def grounding(density: Float64[Tensor, "gh gw"], boxes: Sequence[Box], size: Size) -> dict[str, float | None]:
    """How well a density knows where the answer is: hit, mass and r2, as the top of this file says.

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


def densest(allocations: Sequence[Allocation]) -> list[list[float]]:
    """The centre of the cell that relevance is densest in, for allocations of an image each; of equal ones the first.

    >>> import homunculus
    >>> density = torch.ones(16, 16); density[3, 5] = 100.0
    >>> densest([homunculus.allocate(density, 64), homunculus.allocate(density, 100)])
    [[88.0, 56.0], [88.0, 56.0]]
    """
    by_count: dict[int, list[int]] = {}  # those of as many cells are one batch: the device is asked once for it
    for place, allocation in enumerate(allocations):
        by_count.setdefault(allocation.budget, []).append(place)
    centers: dict[int, list[float]] = {}
    for places in by_count.values():
        scores, levels, is_context, center = (
            torch.cat([getattr(allocations[i], name) for i in places])
            for name in ("scores", "levels", "is_context", "centers")
        )
        best = (scores / 4**levels).masked_fill(is_context, -1).argmax(1)
        chosen = center.gather(1, best[:, None, None].expand(-1, -1, 2))[:, 0]
        centers |= zip(places, chosen.tolist(), strict=True)
    return [centers[i] for i in range(len(allocations))]


def found(place: Sequence[float], boxes: Sequence[Box], leaf: float) -> float:
    """Whether a place is that of the answer, or half a leaf from it."""
    x, y = place
    return float(any(inside((x, y), grown(box, leaf / 2, leaf / 2)) for box in boxes))


def fine_leaves(allocation: Allocation) -> Bool[Tensor, "gh gw"]:
    """Which leaves of one image have their centre in a fine cell.

    >>> import homunculus
    >>> density = torch.zeros(16, 16); density[:2, :2] = 1.0
    >>> fine_leaves(homunculus.allocate(density, 16, "topk")).sum().item()
    16
    """
    (width, height), (gw, gh) = allocation.image_sizes[0], allocation.grids[0]
    boxes = allocation.boxes[0][(allocation.levels[0] <= FINE) & ~allocation.is_context[0]]
    x0, y0, x1, y1 = boxes.T[..., None]
    x = (torch.arange(gw, device=boxes.device) + 0.5) * (width / gw)
    y = (torch.arange(gh, device=boxes.device) + 0.5) * (height / gh)
    across, down = (x0 <= x) & (x < x1), (y0 <= y) & (y < y1)  # [n, gw], [n, gh]
    return (down.float().T @ across.float()) > 0


def overlap(one: Allocation, other: Allocation) -> float | None:
    """Leaves that both show finely over leaves that either does; None where there are none.

    >>> import homunculus
    >>> first = homunculus.allocate(torch.eye(16), 64)
    >>> overlap(first, first), overlap(first, homunculus.allocate(torch.eye(16).flip(0), 64)) < 0.5
    (1.0, True)
    """
    a, b = fine_leaves(one), fine_leaves(other)
    either = (a | b).sum().item()
    return (a & b).sum().item() / either if either else None


def where_quick(allocation: Allocation) -> Allocation:
    """Where its area is found soonest: on the host, unless that is counted at points, of which a GPU takes many."""
    at_points = allocation.kind == "rotated" or bool(allocation.sector.isfinite().any())
    return allocation if at_points else allocation.to("cpu")


def shown(allocation: Allocation) -> dict[str, float]:
    """How much of one image its cells show, all and the fine ones."""
    covered, fine = (coverage(allocation, level).union.item() for level in (float("inf"), FINE))
    return {"covered": covered, "fine": fine}
