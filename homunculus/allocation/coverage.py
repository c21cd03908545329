"""How much of the image the cells show, and how often."""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.geometry import Size
from homunculus.structures import Allocation

POINTS = 512


class Coverage(NamedTuple):
    """Per image: `union`, the share of its area inside some cell; `multiplicity`, how many cells hold such a place."""

    union: Float64[Tensor, "b"]
    multiplicity: Float64[Tensor, "b"]


def coverage(allocation: Allocation, max_level: float = torch.inf) -> Coverage:
    """The union of the cells' areas, context tokens excluded; `max_level` counts only cells that fine.

    Exact for axis-aligned boxes; rotated ones are counted at 512 x 512 points.

    >>> import homunculus
    >>> coverage(homunculus.allocate(torch.rand(64, 64), budget=273)).union.tolist()
    [1.0]
    """
    counted = ~allocation.is_context & (allocation.levels <= max_level)
    each = []
    for i, size in enumerate(allocation.image_sizes):
        boxes, angle = allocation.boxes[i][counted[i]].double(), allocation.angle[i][counted[i]].double()
        each.append(_cover_rotated(boxes, angle, size) if allocation.kind == "rotated" else _cover(boxes, size))
    union, multiplicity = torch.tensor(each, dtype=torch.float64, device=allocation.device).unbind(1)
    return Coverage(union, multiplicity)


def _cover(boxes: Float64[Tensor, "n 4"], size: Size) -> tuple[float, float]:
    """Share of the image covered, and how often on average.

    The edges of all boxes cut the image into rectangles; each box adds 1 to the ones it covers, written as a
    two-dimensional difference and summed up, so overlaps of any kind are counted right.
    """
    x0, y0, x1, y1 = boxes.unbind(-1)
    xs, x_place = torch.cat((x0, x1, boxes.new_tensor([0, size[0]]))).unique(return_inverse=True)
    ys, y_place = torch.cat((y0, y1, boxes.new_tensor([0, size[1]]))).unique(return_inverse=True)
    n = len(boxes)
    steps = torch.zeros(len(ys) * len(xs), dtype=torch.int32, device=boxes.device)
    for top, down in ((0, 1), (n, -1)):
        for left, right in ((0, 1), (n, -1)):
            place = y_place[top : top + n] * len(xs) + x_place[left : left + n]
            steps.scatter_add_(0, place, torch.full_like(place, down * right, dtype=torch.int32))
    boxes_over = steps.unflatten(0, (len(ys), len(xs))).cumsum(0).cumsum(1)[:-1, :-1]
    area = ys.diff()[:, None] * xs.diff()
    covered = torch.where(boxes_over > 0, area, 0).sum()
    multiplicity = (boxes_over * area).sum() / covered if covered > 0 else covered
    return (covered / area.sum()).item(), multiplicity.item()


def _cover_rotated(boxes: Float64[Tensor, "n 4"], angle: Float64[Tensor, "n"], size: Size) -> tuple[float, float]:
    points = (torch.arange(POINTS, dtype=torch.float64, device=boxes.device) + 0.5) / POINTS
    x0, y0, x1, y1 = boxes[..., None].unbind(1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    hits = torch.zeros(POINTS, POINTS, dtype=torch.int64, device=boxes.device)
    for row, y in enumerate((points * size[1]).tolist()):
        dx, dy = points * size[0] - (x0 + x1) / 2, y - (y0 + y1) / 2
        along, across = dx * cos + dy * sin, dy * cos - dx * sin
        inside = (along.abs() <= (x1 - x0) / 2) & (across.abs() <= (y1 - y0) / 2)
        hits[row] = inside.sum(0)
    covered = (hits > 0).double().mean()
    return covered.item(), (hits.double().mean() / covered).item() if covered > 0 else 0.0
