"""`hired`: a budget for each tile, then the tokens most looked at inside it (Arif et al., 2024, arXiv 2408.10945).

The paper cuts a large image into tiles beside a small view of the whole, and shares the budget by how much an early
layer looks at each part of the small view. Here one encoder sees the whole image, so its early layer shares directly
and no part of the budget goes to a second view. Tiles are quadrants of the grid, and their counts add up exactly.
"""

import torch
from jaxtyping import Int64
from torch import Tensor

from homunculus.allocation.stratified import Strata, heaviest_of_groups, share_tokens
from homunculus.errors import AllocatorError
from homunculus.peers.registry import register
from homunculus.peers.tokens import Reduced, Seen, kept


@register("hired", "a share for each tile by early attention, the most looked at in each", query=False)
def hired(seen: Seen, budget: int, *, seed: int = 0, tiles: int = 2) -> Reduced:
    """`tiles` x `tiles` of them: shares by largest remainder of early attention, inside each by late attention."""
    places = cut(seen, tiles, "tiles of hired")
    counts = tile_counts(seen, places, budget)
    order = torch.arange(seen.features.shape[1], device=counts.device)
    index = heaviest_of_groups(seen.attention.double(), places.of_leaves, places.capacity, counts, budget, order)
    return kept(seen, index)


def cut(seen: Seen, side: int, what: str) -> Strata:
    """`side` x `side` nearly equal parts of the grid, fewer where it has fewer columns or rows."""
    if side < 1:
        raise AllocatorError(f"{what} are 1 or more a side, got {side}")
    columns, rows = seen.grid
    return Strata.even(seen.grid, min(side, columns), min(side, rows), seen.features.device)


def tile_counts(seen: Seen, places: Strata, budget: int) -> Int64[Tensor, "b tiles"]:
    """How many tokens each tile keeps: in proportion to early attention, none more than it has, `budget` in all."""
    columns, rows = seen.grid
    shares = places.sums(seen.early.double().clamp(min=0).unflatten(1, (rows, columns)))
    return share_tokens(shares, places.capacity, budget, each=0)
