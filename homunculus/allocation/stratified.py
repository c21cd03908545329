"""A token for every stratum, the rest by relevance: `topk` that cannot abandon a region."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import leaf_cells, make_allocation
from homunculus.allocation.registry import register
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
    return spend_by_strata(view, budget, Strata.even(view.grid, columns, rows, view.device))


def spend_by_strata(view: View, budget: int, strata: "Strata") -> Allocation:
    """At least one leaf of every stratum, shares by relevance, the heaviest leaves inside each.

    Every image may have strata of its own, no more of them than the budget.
    """
    check_leaves(view.grid, budget)
    relevance = view.relevance
    counts = share_tokens(strata.sums(relevance), strata.capacity, budget)
    density = relevance.flatten(1)
    leaves = heaviest_of_groups(
        density, strata.of_leaves, strata.capacity, counts, budget, spread_order(*view.grid, view.device)
    )
    return make_allocation(view, leaf_cells(leaves, view.grid[0]), "dyadic", scores=density.gather(1, leaves))


def _strata(strata: Any) -> Size:
    pair = strata if isinstance(strata, (tuple, list)) else (strata, strata)
    if len(pair) != 2 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in pair):
        raise AllocatorError(f"strata is a positive whole number or a pair (columns, rows) of them, got {strata!r}")
    return int(pair[0]), int(pair[1])


@dataclass(frozen=True)
class Strata:
    """A grid cut into columns x rows of nearly equal regions, the same for all images (b = 1) or for each its own.

    Regions are numbered row by row. Images with fewer of them than the most have empty ones: their edges coincide.

    >>> Strata.even((5, 4), 2, 1).of_leaves.reshape(4, 5)[0], Strata.even((5, 4), 2, 1).capacity
    (tensor([0, 0, 0, 1, 1]), tensor([[12,  8]]))
    """

    grid: Size
    columns: Int64[Tensor, "b c"]  # edges, one more than columns
    rows: Int64[Tensor, "b r"]

    @staticmethod
    def even(grid: Size, columns: int, rows: int, device: torch.device | str = "cpu") -> "Strata":
        """The same columns x rows for every image."""
        across, down = (torch.full((1,), count, dtype=torch.int64, device=device) for count in (columns, rows))
        return Strata.each(grid, across, down, most=(columns, rows))

    @staticmethod
    def each(grid: Size, columns: Int64[Tensor, "b"], rows: Int64[Tensor, "b"], most: Size) -> "Strata":
        """`columns` x `rows` regions for each image, at most `most`, never more than there are leaves across."""
        return Strata(grid, _edges(grid[0], columns, most[0]), _edges(grid[1], rows, most[1]))

    @property
    def of_leaves(self) -> Int64[Tensor, "b leaves"]:
        """The region of every leaf."""
        column, row = _run_of(self.columns, self.grid[0]), _run_of(self.rows, self.grid[1])
        return (row[:, :, None] * (self.columns.shape[1] - 1) + column[:, None]).flatten(1)

    @property
    def capacity(self) -> Int64[Tensor, "b regions"]:
        """How many leaves every region has."""
        return (self.rows.diff(dim=1)[:, :, None] * self.columns.diff(dim=1)[:, None]).flatten(1)

    def sums(self, x: Float[Tensor, "b gh gw"]) -> Float[Tensor, "b regions"]:
        """The sum over every region, in a fixed order."""
        across = _run_sums(x, self.columns)
        return _run_sums(across.mT, self.rows).mT.flatten(1)


def _edges(n: int, groups: Int64[Tensor, "b"], most: int) -> Int64[Tensor, "b edges"]:
    """Where `groups` nearly equal runs of n elements begin: element k belongs to run k * groups // n."""
    run = torch.arange(most + 1, device=groups.device).minimum(groups[:, None])
    return -(-run * n // groups[:, None])


def _run_of(edges: Int64[Tensor, "b edges"], n: int) -> Int64[Tensor, "b n"]:
    place = torch.arange(n, device=edges.device).expand(len(edges), -1).contiguous()
    return torch.searchsorted(edges[:, 1:].contiguous(), place, right=True)


def _run_sums(x: Float[Tensor, "b m n"], edges: Int64[Tensor, "_b edges"]) -> Float[Tensor, "b m runs"]:
    """Sums over runs of the last axis. All runs are folded at once, each as `fold_sum` folds it, to the same bits."""
    n = x.shape[2]
    run = _run_of(edges, n)
    start = edges.gather(1, run)
    length = edges.gather(1, run + 1) - start
    place = torch.arange(n, device=x.device) - start
    longest = n
    while longest > 1:  # the far half onto the near one, mirrored; what is left behind is never read again
        mirrored = (start + length - 1 - place).clamp(min=0)
        folded = x + x.gather(2, mirrored[:, None].expand_as(x))
        x = torch.where((place < length // 2)[:, None], folded, x)
        length, longest = (length + 1) // 2, (longest + 1) // 2
    first = edges[:, None, :-1].expand(*x.shape[:2], -1)
    return torch.where(first < edges[:, None, 1:], x.gather(2, first.clamp(max=n - 1)), 0.0)


def heaviest_of_groups(
    values: Float64[Tensor, "b n"],
    group: Int64[Tensor, "_b n"],
    capacity: Int64[Tensor, "_b groups"],
    counts: Int64[Tensor, "_c groups"],
    total: int,
    ties: Int64[Tensor, "n"],
) -> Int64[Tensor, "b total"]:
    """Indices of the `counts` highest values of every group, `total` of them in all; ties are taken in the order given.

    >>> values, group = torch.tensor([[1.0, 4.0, 2.0, 3.0]]).double(), torch.tensor([[0, 0, 1, 1]])
    >>> heaviest_of_groups(values, group, torch.tensor([[2, 2]]), torch.tensor([[1, 2]]), 3, torch.arange(4))
    tensor([[1, 3, 2]])
    """
    # By group, heaviest first inside each: two stable sorts.
    by_value = ties[torch.sort(values[:, ties], dim=1, descending=True, stable=True).indices]
    in_group = group.expand_as(values).gather(1, by_value)
    in_group, order = torch.sort(in_group, dim=1, stable=True)
    by_group = by_value.gather(1, order)
    start = (capacity.cumsum(1) - capacity).expand(len(values), -1)
    rank = torch.arange(values.shape[1], device=values.device) - start.gather(1, in_group)
    chosen = rank < counts.expand(len(values), -1).gather(1, in_group)
    # The chosen ones moved to the front, in order: exactly `total` of them in every image.
    return by_group.gather(1, torch.sort(~chosen, dim=1, stable=True).indices[:, :total])


def share_tokens(
    weights: Float64[Tensor, "b s"], capacity: Int64[Tensor, "*own s"], total: int, each: int = 1
) -> Int64[Tensor, "b s"]:
    """`total` tokens over s places: `each` to everyone, the rest by largest remainder of `weights`, none overfull.

    What a full place cannot take goes to the others in proportion; once every weighted place is full, by free room.

    >>> share_tokens(torch.tensor([[8.0, 1.0, 1.0]], dtype=torch.float64), torch.tensor([4, 9, 9]), 12)
    tensor([[4, 4, 4]])
    """
    granted = capacity.clamp(max=each).expand(weights.shape)
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
