"""How much of the image the cells show, and how often."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from homunculus.geometry import Size
from homunculus.structures import Allocation

POINTS, SECTOR_POINTS = 512, 160


class Coverage(NamedTuple):
    """Per image: `union`, the share of its area inside some cell; `multiplicity`, how many boxes such a place is in."""

    union: Float64[Tensor, "b"]
    multiplicity: Float64[Tensor, "b"]


def coverage(allocation: Allocation, max_level: float = torch.inf) -> Coverage:
    """The union of the cells' areas, context tokens excluded; `max_level` counts only cells that fine.

    Sectors count by their true region in the union and by their sampled squares in the multiplicity. Exact for
    axis-aligned boxes; rotated ones and sectors are counted at a grid of points.

    >>> import homunculus
    >>> coverage(homunculus.allocate(torch.rand(64, 64), budget=273)).union.tolist()
    [1.0]
    """
    counted = ~allocation.is_context & (allocation.levels <= max_level)
    each = []
    for i, size in enumerate(allocation.image_sizes):
        boxes, angle = allocation.boxes[i][counted[i]].double(), allocation.angle[i][counted[i]].double()
        covered, over = _cover_rotated(boxes, angle, size) if allocation.kind == "rotated" else _cover(boxes, size)
        sector = allocation.sector[i][counted[i]].double()
        if bool(sector.isfinite().any()):
            covered = _cover_sectors(sector, allocation.gaze[i].double(), size)
        each.append((covered, over))
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
    x0, y0, x1, y1 = boxes[..., None, None].unbind(1)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    rows = []
    for y in (points * size[1]).split(_rows_at_once(boxes, POINTS)):
        dx, dy = points * size[0] - (x0 + x1) / 2, y[:, None] - (y0 + y1) / 2  # [n 1 points], [n rows 1]
        along, across = dx * cos + dy * sin, dy * cos - dx * sin
        inside = (along.abs() <= (x1 - x0) / 2) & (across.abs() <= (y1 - y0) / 2)
        rows.append(inside.sum(0))
    hits = torch.cat(rows)
    covered = (hits > 0).double().mean()
    return covered.item(), (hits.double().mean() / covered).item() if covered > 0 else 0.0


def _rows_at_once(shapes: Tensor, points: int) -> int:
    """How many rows of points to hold against all shapes: on a CPU they stay in its cache, elsewhere a step costs more
    than what it computes."""
    room = 1 << 18 if shapes.device.type == "cpu" else 1 << 24
    return max(1, room // max(1, len(shapes) * points))


def _cover_sectors(sector: Float64[Tensor, "n 4"], gaze: Float64[Tensor, "2"], size: Size) -> float:
    hits = sector_hits(sector, gaze, size, SECTOR_POINTS)
    return (hits > 0).double().mean().item()


def sector_hits(
    sector: Float64[Tensor, "n 4"], gaze: Float64[Tensor, "2"], size: Size, points: int
) -> Int64[Tensor, "points points"]:
    """How many of the sectors each of points x points places of the image lies in.

    >>> whole = torch.tensor([[0.0, 99.0, 0.0, 6.283185308]]).double()
    >>> sector_hits(whole, torch.tensor([10.0, 20.0]).double(), (64, 48), 4).unique().tolist()
    [1]
    """
    steps = (torch.arange(points, dtype=torch.float64, device=sector.device) + 0.5) / points
    dx = steps * size[0] - gaze[0]
    rho0, rho1, theta0, theta1 = sector[..., None, None].unbind(1)
    rows = []
    for y in (steps * size[1]).split(_rows_at_once(sector, points)):
        dy = (y - gaze[1])[:, None].expand(-1, points)
        rho, theta = torch.hypot(dx, dy), torch.atan2(dy, dx)
        turned = theta - theta0
        turned = torch.where(turned < 0, turned + 2 * math.pi, turned)
        inside = (rho >= rho0) & (rho < rho1) & (turned < theta1 - theta0)
        rows.append(inside.sum(0))
    return torch.cat(rows)
