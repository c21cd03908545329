"""Where the language model sees each token: text counts on by one, cells lie at their own place among the leaves.

An image takes the positions from t0 to t0 + max(columns, lines) of its leaves, whatever its budget, so the text after
it begins where it would have begun without us and coordinates keep their meaning. A cell of several leaves lies at its
centre, which may be a fraction. Views (an overview and crops) may instead be counted as what they are: ordinary images
one after the other.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from homunculus.allocation.views import ViewGrids
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.layout import token_positions
from homunculus.integrations.qwen_vl.plan import Plan

# true: cells at their centres, fractions included; rounded: the same in whole numbers; stock: views as images in a row
Positions = Literal["true", "rounded", "stock"]


def extent(plan: Plan, image: int, how: Positions) -> int:
    """How far an image counts: where the text after it begins, from where the image begins."""
    views = plan.views_of(image)
    if views is None or how != "stock":
        return max(plan.grids[image])
    return sum(max(grid) for grid in _grids(views))


def places(plan: Plan, how: Positions) -> Float[Tensor, "visual 3"]:
    """(time, line, column) of the visual tokens of all images, each counted from where its image begins."""
    if not any(plan.views):
        boxes = torch.cat([allocation.boxes[0] for allocation in plan.allocations])
        return _placed(token_positions(boxes, plan.allocations[0].leaf), how)
    parts = []
    for image, allocation in enumerate(plan.allocations):
        views = plan.views_of(image)
        if views is None:
            parts.append(_placed(token_positions(allocation.boxes[0], allocation.leaf), how))
        elif how == "stock":
            parts.append(_in_a_row(views).to(allocation.device))
        else:  # in the order of the views, not in that of the allocation
            parts.append(_placed(token_positions(views.cells()[0], 1), how))
    return torch.cat(parts)


def _placed(line_column: Float[Tensor, "n 2"], how: Positions) -> Float[Tensor, "n 3"]:
    return pad(line_column.round() if how == "rounded" else line_column, (1, 0))


def _grids(views: ViewGrids) -> list[Size]:
    return [views.overview, *[views.crop] * (views.boxes.shape[1] - 1)]


def _in_a_row(views: ViewGrids) -> Float[Tensor, "n 3"]:
    """Ordinary images one after the other."""
    parts, start = [], 0
    for columns, lines in _grids(views):
        line = torch.arange(lines, dtype=torch.float32).repeat_interleave(columns)
        column = torch.arange(columns, dtype=torch.float32).repeat(lines)
        parts.append(torch.stack((torch.zeros_like(line), line, column), dim=1) + start)
        start += max(columns, lines)
    return torch.cat(parts)
