"""Where the language model sees each token: text counts on by one, cells lie at their own place among the leaves.

An image takes the positions from t0 to t0 + max(columns, lines) of its leaves, whatever its budget, so the text after
it begins where it would have begun without us and coordinates keep their meaning. A cell of several leaves lies at its
centre, which may be a fraction. Views (an overview and crops) may instead be counted as what they are: ordinary images
one after the other.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.integrations.qwen_vl.layout import token_positions
from homunculus.integrations.qwen_vl.plan import Plan

# true: cells at their centres, fractions included; rounded: the same in whole numbers; stock: views as images in a row
Positions = Literal["true", "rounded", "stock"]


def rope_positions(
    is_image: Sequence[Sequence[bool]], plan: Plan, how: Positions, device: torch.device
) -> tuple[list[Float[Tensor, "3 _t"]], list[int]]:
    """(time, line, column) of every token of every row, and how much further than its length each row has counted.

    `is_image` leaves out padding. Rows may be those of the plan repeated, as beam search does.
    """
    repeats = len(is_image) // max(1, len(plan.rows))
    positions, deltas = [], []
    for number, row in enumerate(is_image):
        images = iter(plan.rows[number // max(1, repeats)])
        parts, now = [], 0
        for image, run in groupby(row):
            length = len(list(run))
            if image:
                own, now = image_positions(plan, next(images), now, how, device)
                parts.append(own)
            else:
                parts.append((now + torch.arange(length, device=device, dtype=torch.float32)).expand(3, -1))
                now += length
        positions.append(torch.cat(parts, dim=1))
        deltas.append(now - len(row))
    return positions, deltas


def image_positions(
    plan: Plan, image: int, start: int, how: Positions, device: torch.device
) -> tuple[Float[Tensor, "3 n"], int]:
    """(time, line, column) of the tokens of one image that begins at `start`, and where what follows begins."""
    views = plan.views_of(image)
    if views is not None and how == "stock":
        parts = []
        for columns, lines in (views.overview, *[views.crop] * (views.boxes.shape[1] - 1)):
            line = torch.arange(lines, device=device, dtype=torch.float32).repeat_interleave(columns)
            column = torch.arange(columns, device=device, dtype=torch.float32).repeat(lines)
            parts.append(torch.stack((torch.zeros_like(line), line, column)) + start)
            start += max(columns, lines)
        return torch.cat(parts, dim=1), start
    if views is not None:  # in the order of the views, not in that of the allocation
        boxes = views.cells()[0].to(device)
        places = torch.stack((boxes[:, 1] + boxes[:, 3], boxes[:, 0] + boxes[:, 2]), dim=1).float() / 2 - 0.5
    else:
        places = token_positions(plan.allocations[image]).to(device)
    places = places.round() if how == "rounded" else places
    own = torch.cat((torch.zeros_like(places[:, :1]), places), dim=1).T + start
    return own, start + max(plan.grids[image])


def padded_positions(
    positions: Sequence[Float[Tensor, "3 _t"]], attention_mask: Int64[Tensor, "b t"] | None, length: int
) -> Float[Tensor, "3 b t"]:
    """Rows laid where their tokens are, 0 under padding."""
    device = positions[0].device
    out = torch.zeros(3, len(positions), length, device=device)
    for row, own in enumerate(positions):
        here = slice(None) if attention_mask is None else attention_mask[row].bool()
        out[:, row, here] = own
    return out
