"""Where the language model sees each token: text counts on by one, cells lie at their own place among the leaves.

An image takes the positions from t0 to t0 + max(columns, lines) of its leaves, whatever its budget, so the text after
it begins where it would have begun without us and coordinates keep their meaning. A cell of several leaves lies at its
centre, which may be a fraction.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.integrations.qwen_vl.layout import token_positions
from homunculus.integrations.qwen_vl.plan import Plan


def rope_positions(
    is_image: Sequence[Sequence[bool]], plan: Plan, rounded: bool, device: torch.device
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
                chosen = next(images)
                parts.append(image_positions(plan, chosen, now, rounded, device))
                now += max(plan.grids[chosen])
            else:
                parts.append((now + torch.arange(length, device=device, dtype=torch.float32)).expand(3, -1))
                now += length
        positions.append(torch.cat(parts, dim=1))
        deltas.append(now - len(row))
    return positions, deltas


def image_positions(plan: Plan, image: int, start: int, rounded: bool, device: torch.device) -> Float[Tensor, "3 n"]:
    """(time, line, column) of the cells of one image that begins at `start`."""
    places = token_positions(plan.allocations[image]).to(device)
    places = places.round() if rounded else places
    return torch.cat((torch.zeros_like(places[:, :1]), places), dim=1).T + start


def padded_positions(
    positions: Sequence[Float[Tensor, "3 _t"]], attention_mask: Int64[Tensor, "b t"] | None, length: int
) -> Float[Tensor, "3 b t"]:
    """Rows laid where their tokens are, 0 under padding; integers where no position is a fraction."""
    device = positions[0].device
    out = torch.zeros(3, len(positions), length, device=device)
    for row, own in enumerate(positions):
        here = slice(None) if attention_mask is None else attention_mask[row].bool()
        out[:, row, here] = own
    return out
