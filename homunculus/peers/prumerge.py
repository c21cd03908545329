"""`prumerge+`: tokens that stand out, a grid, and what is like them (Shang et al., 2024, arXiv 2403.15388).

The published count is whatever stands out, so it differs from image to image. Here it is exactly the budget: those that
stand out first, then a uniform grid (the "+"), then whatever is looked at most. Of a large image more may stand out
than there is room for, which leaves nothing of the grid; with `grid_first` its places are kept for it. The one token
more that sums up all the others is left out: it lies nowhere on the grid.
"""

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.peers.likeness import cosines, marked, top, unit
from homunculus.peers.registry import register
from homunculus.peers.spread import evenly
from homunculus.peers.tokens import Reduced, Seen, kept, picked


@register(
    "prumerge+",
    "tokens that stand out by attention and a grid, with what is like them",
    query=False,
    merges=True,
    attention=("late",),
)
def prumerge(
    seen: Seen, budget: int, *, seed: int = 0, neighbours: int = 32, grid: float = 0.5, grid_first: bool = False
) -> Reduced:
    """To each kept token those given up are added that are most like it, as much of each as it is looked at.

    Attention is taken as shares of the image, so that what is added is little beside the token itself. `neighbours` is
    how many it takes in, by the cosine of keys; several may take in the same, which then counts in parts in their mass.
    `grid` is the share of the budget that the uniform grid has points for; with `grid_first` they are kept whatever
    stands out.
    """
    if neighbours < 0 or not 0 <= grid <= 1:
        raise AllocatorError(f"prumerge+ takes neighbours >= 0 and a grid from 0 to 1, got {neighbours!r} and {grid!r}")
    attention, count = seen.attention.float(), seen.features.shape[1]
    points = evenly(seen.grid, int(budget * grid), seen.features.device)
    index = first_in_line(attention, points, budget, grid_first).sort(1).values
    near = nearest_others(seen.keys, index, min(neighbours, count - budget))
    features = seen.features.to(torch.promote_types(seen.features.dtype, torch.float32))
    share = attention / attention.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    added = (share[:, None] * near).to(features.dtype) @ features
    features = (picked(features, index) + added).to(seen.features.dtype)
    parts = near / near.sum(1, keepdim=True).clamp(min=1)
    return kept(seen, index)._replace(features=features, mass=1.0 + parts.sum(2))


def stands_out(attention: Float32[Tensor, "b n"]) -> Bool[Tensor, "b n"]:
    """Above the third quartile by more than 1.5 times the distance of the quartiles.

    >>> stands_out(torch.tensor([[1.0, 2, 3, 4, 100]])).int().tolist()
    [[0, 0, 0, 0, 1]]
    """
    ordered = attention.sort(1).values
    low, high = (_between(ordered, share) for share in (0.25, 0.75))
    return attention > high + 1.5 * (high - low)


def _between(ordered: Float32[Tensor, "b n"], share: float) -> Float32[Tensor, "b 1"]:
    """A quantile, interpolated linearly."""
    place = share * (ordered.shape[1] - 1)
    below = int(place)
    above = min(below + 1, ordered.shape[1] - 1)
    low, high = ordered[:, below : below + 1], ordered[:, above : above + 1]
    return low + (high - low) * (place - below)


def first_in_line(
    attention: Float32[Tensor, "b n"], points: Int64[Tensor, "g"], budget: int, grid_first: bool = False
) -> Int64[Tensor, "b budget"]:
    """Those that stand out, then the points of the grid, then the others, or the points before those that stand out;
    each kind by attention, equal ones in order. A point that stands out leaves its place to the next in line.

    >>> attention, points = torch.tensor([[9.0, 0, 1, 2, 1, 1, 1, 1]]), torch.tensor([1, 6])
    >>> first_in_line(attention, points, 5)
    tensor([[0, 3, 6, 1, 2]])
    >>> first_in_line(attention, points, 5, grid_first=True)
    tensor([[6, 1, 0, 3, 2]])
    """
    count = attention.shape[1]
    out, on_grid = stands_out(attention), marked(points[None], count)
    first, second = (on_grid, out) if grid_first else (out, on_grid)
    kind = torch.where(first, 0, torch.where(second, 1, 2))
    by_attention = top(attention, count)
    order = kind.gather(1, by_attention).sort(dim=1, stable=True).indices
    return by_attention.gather(1, order)[:, :budget]


@torch.no_grad()
def nearest_others(keys: Float[Tensor, "b n d"], index: Int64[Tensor, "b k"], number: int) -> Bool[Tensor, "b k n"]:
    """For each kept token, which `number` of those not kept are most like it."""
    keys = unit(keys)
    likeness = cosines(picked(keys, index), keys)
    likeness = likeness.masked_fill(marked(index, keys.shape[1])[:, None], -torch.inf)
    return marked(top(likeness.flatten(0, 1), number), keys.shape[1]).unflatten(0, index.shape)
