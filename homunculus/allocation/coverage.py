"""How much of the image the cells show, and how often."""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.structures import Allocation


class Coverage(NamedTuple):
    """Per image: `union`, the share of its area inside some cell; `multiplicity`, how many cells hold such a place."""

    union: Float64[Tensor, "b"]
    multiplicity: Float64[Tensor, "b"]


def coverage(allocation: Allocation, max_level: float = torch.inf) -> Coverage:
    """The exact union of the boxes' areas, context tokens excluded; `max_level` counts only cells that fine.

    The edges of all boxes cut the image into at most 2N x 2N rectangles; each box adds 1 to the ones it covers, written
    as a two-dimensional difference and summed up, so overlaps of any kind are counted right.

    >>> import homunculus
    >>> coverage(homunculus.allocate(torch.rand(64, 64), budget=273)).union.tolist()
    [1.0]
    """
    counted = ~allocation.is_context & (allocation.levels <= max_level)
    x0, y0, x1, y1 = torch.where(counted[..., None], allocation.boxes, 0).double().unbind(-1)  # [B, N]
    size = torch.tensor(allocation.image_sizes, dtype=torch.float64, device=allocation.device)
    xs = torch.cat((x0, x1, torch.zeros_like(size[:, :1]), size[:, :1]), dim=1).sort(1).values
    ys = torch.cat((y0, y1, torch.zeros_like(size[:, 1:]), size[:, 1:]), dim=1).sort(1).values
    edges = xs.shape[1]
    steps = torch.zeros(len(allocation), edges * edges, dtype=torch.int32, device=allocation.device)
    for y, down in ((y0, 1), (y1, -1)):
        for x, right in ((x0, 1), (x1, -1)):
            place = torch.searchsorted(ys, y.contiguous()) * edges + torch.searchsorted(xs, x.contiguous())
            steps.scatter_add_(1, place, torch.full_like(place, down * right, dtype=torch.int32))
    boxes_over = steps.unflatten(1, (edges, edges)).cumsum(1).cumsum(2)[:, :-1, :-1]
    area = ys.diff(dim=1)[:, :, None] * xs.diff(dim=1)[:, None, :]
    covered = torch.where(boxes_over > 0, area, 0).sum((1, 2))
    return Coverage(covered / area.sum((1, 2)), (boxes_over * area).sum((1, 2)) / covered.clamp(min=1e-300))
