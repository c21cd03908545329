"""A token for every stratum, the rest by relevance: `topk` that cannot abandon a region."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import leaf_cells, make_allocation
from homunculus.allocation.registry import register
from homunculus.density import fold_sum
from homunculus.errors import AllocatorError, BudgetError
from homunculus.geometry import Size, check_leaves, spread_order
from homunculus.structures import Allocation, View


@register("stratified", "each stratum of a coarse grid keeps a token, the rest go by relevance")
def stratified(view: View, budget: int, *, seed: int = 0, strata: Any = 4) -> Allocation:
    """`strata` x `strata` regions (or (columns, rows)), each with at least one leaf, shares by largest remainder."""
    gw, gh = view.grid
    columns, rows = _strata(strata)
    columns, rows = min(columns, gw), min(rows, gh)  # a stratum is never narrower than a leaf
    if budget < columns * rows:
        raise BudgetError(
            f"stratified promises a token to each of {columns}x{rows} strata and the budget is {budget}: "
            f"use at least {columns * rows} tokens or fewer strata"
        )
    check_leaves(view.grid, budget)
    column = torch.arange(gw, device=view.device) * columns // gw
    row = torch.arange(gh, device=view.device) * rows // gh
    stratum = (row[:, None] * columns + column).flatten()  # [leaves]
    capacity = _group_sum(_group_sum(torch.ones_like(view.density[:1]), columns, 2), rows, 1).flatten().long()
    relevance = _group_sum(_group_sum(view.relevance, columns, 2), rows, 1).flatten(1)

    # Leaves by stratum, heaviest first inside each, ties spread: two stable sorts.
    density = view.relevance.flatten(1)
    spread = spread_order(gw, gh, view.device)
    by_mass = spread[torch.sort(density[:, spread], dim=1, descending=True, stable=True).indices]
    by_stratum = by_mass.gather(1, torch.sort(stratum[by_mass], dim=1, stable=True).indices)
    start = capacity.cumsum(0) - capacity
    place = torch.arange(view.leaves, device=view.device) - start[stratum[by_stratum]]  # rank inside the stratum
    chosen = place < share_tokens(relevance, capacity, budget).gather(1, stratum[by_stratum])
    # The chosen ones moved to the front, in order: exactly `budget` of them in every image.
    leaves = by_stratum.gather(1, torch.sort(~chosen, dim=1, stable=True).indices[:, :budget])
    return make_allocation(view, leaf_cells(leaves, gw), "dyadic", scores=density.gather(1, leaves))


def _strata(strata: Any) -> Size:
    pair = strata if isinstance(strata, (tuple, list)) else (strata, strata)
    if len(pair) != 2 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in pair):
        raise AllocatorError(f"strata is a positive whole number or a pair (columns, rows) of them, got {strata!r}")
    return int(pair[0]), int(pair[1])


def _group_sum(x: Float64[Tensor, "b h w"], groups: int, dim: int) -> Float64[Tensor, "b h2 w2"]:
    """Sums over `groups` nearly equal runs of rows (dim 1) or columns (dim 2), each in a fixed order."""
    n = x.shape[dim]
    edges = [-(-i * n // groups) for i in range(groups + 1)]  # element k belongs to group k * groups // n
    return torch.cat([fold_sum(x.narrow(dim, a, b - a), dim) for a, b in pairwise(edges)], dim=dim)


def share_tokens(
    weights: Float64[Tensor, "b s"], capacity: Int64[Tensor, "s"], total: int, each: int = 1
) -> Int64[Tensor, "b s"]:
    """`total` tokens over s places: `each` to everyone, the rest by largest remainder of `weights`, none overfull.

    What a full place cannot take goes to the others in proportion; once every weighted place is full, by free room.

    >>> share_tokens(torch.tensor([[8.0, 1.0, 1.0]], dtype=torch.float64), torch.tensor([4, 9, 9]), 12)
    tensor([[4, 4, 4]])
    """
    granted = torch.full_like(weights, each, dtype=torch.int64)
    for share in (weights, None):
        room = capacity - granted
        free = total - granted.sum(1, keepdim=True)
        granted = granted + largest_remainder(room.double() if share is None else share, room, free)
    return granted


def largest_remainder(
    weights: Float64[Tensor, "b s"], room: Int64[Tensor, "b s"], total: Int64[Tensor, "b 1"]
) -> Int64[Tensor, "b s"]:
    """`total` items in proportion to `weights`, rounded so that they add up, no place above its room.

    If the rooms with a positive weight cannot hold the total, they are filled and the rest is left over.

    >>> weights = torch.tensor([[5.0, 3.0, 2.0]], dtype=torch.float64)
    >>> largest_remainder(weights, torch.tensor([[9, 9, 9]]), torch.tensor([[7]]))
    tensor([[4, 2, 1]])
    """
    room = torch.where(weights > 0, room, 0)
    # Beyond 250 orders of magnitude a weight is as good as the next one, and room/weight would overflow.
    weights = torch.where(weights > 0, torch.maximum(weights, weights.amax(1, keepdim=True) * 1e-250), 0.0)
    # Raise a water level: place i holds min(room, level * weight). Places fill up in order of room/weight, so the level
    # is found between two of them.
    full_at = torch.where(room > 0, room / weights, torch.where(weights > 0, 0.0, torch.inf))
    full_at, order = full_at.sort(dim=1, stable=True)
    sorted_weights, sorted_room = weights.gather(1, order), room.gather(1, order)
    room_before = sorted_room.cumsum(1) - sorted_room
    weight_after = sorted_weights.flip(1).cumsum(1).flip(1)  # of the places still open, this one included
    level = (total - room_before) / weight_after  # if exactly the places before this one are full
    fits = (level <= full_at) & (weight_after > 0)
    first = fits.long().argmax(1, keepdim=True)
    level = torch.where(fits.any(1, keepdim=True), level.gather(1, first), torch.inf)
    ideal = torch.where(weights > 0, weights * level, 0.0).clamp(min=0).minimum(room.double())
    whole = ideal.floor()
    missing = (total - whole.long().sum(1, keepdim=True)).clamp(min=0)
    remainder = torch.where(whole < room, ideal - whole, -1.0)
    by_remainder = torch.sort(remainder, dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(by_remainder).scatter_(
        1, by_remainder, torch.arange(room.shape[1], device=room.device).expand_as(room)
    )
    return whole.long() + ((rank < missing) & (whole < room)).long()
