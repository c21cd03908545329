"""`pyramid`: cells of four levels compete for the budget, overlapping freely.

A cell of level L covers 2^L x 2^L leaves: a coarse one sees more and shows less. Three ways to weigh that: one ranking
of all cells by mass times a weight for their level (`global`), a fixed number of cells from every level (`split`), or a
learned one (`learned`). On a grid that coarse cells do not divide, border cells are clipped; one that is the same box
as its only child is left out, so that all cells differ.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.registry import register
from homunculus.allocation.relaxed import relaxed_topk
from homunculus.allocation.stratified import heaviest_of_groups, share_tokens
from homunculus.allocation.tree import Tree, tree_over
from homunculus.density import with_floor
from homunculus.errors import AllocatorError, BudgetError
from homunculus.geometry import Size, cells_across, check_leaves
from homunculus.pyramid import mass_pyramid
from homunculus.structures import Allocation, View

LEVELS = 4
SPLIT = (64, 128, 64, 17)  # cells of levels 0, 1, 2, 3 out of 273
WEIGHTS = (1.0, 0.5, 0.25, 0.125)


class LevelSplit(nn.Module):
    """How the budget is shared between the levels, learned: shares [4] that sum to 1; untrained, the fixed split.

    >>> [round(273 * share) for share in LevelSplit()().tolist()]
    [64, 128, 64, 17]
    """

    def __init__(self, split: Sequence[float] = SPLIT) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([math.log(share / sum(split)) for share in split]))

    def forward(self) -> Float[Tensor, "4"]:
        return self.logits.softmax(0)

    def soft(self, view: View, budget: int, temperature: float = 0.1) -> list[Float64[Tensor, "b _h _w"]]:
        """The training form: the probability of every cell of level 0, 1, ... to be a token. They sum to the budget.

        A relaxed top-k by log mass inside each level. Its k is the level's share of the budget, so that gradients reach
        the split.
        """
        check_leaves(view.grid, budget)
        capacity = level_capacity(view.grid)
        wanted = soft_counts(self().double(), capacity, budget)
        chances = []
        for level, mass in enumerate(mass_pyramid(with_floor(view.relevance), _root_level(view.grid))):
            cells = mass.flatten(1).log()[:, : capacity[level]]  # the one that may repeat its child is the last
            p = relaxed_topk(cells, wanted[level].expand(view.batch, 1), temperature)
            chances.append(nn.functional.pad(p, (0, mass[0].numel() - capacity[level])).unflatten(1, mass.shape[1:]))
        return chances


@register(
    "pyramid",
    "cells of four levels, ranked together or so many from each; they overlap",
    trains="LevelSplit, through relaxed top-k with a real-valued k (LevelSplit.soft)",
)
def pyramid(
    view: View, budget: int, *, seed: int = 0, mode: str = "global", weights: Any = None, split: Any = None
) -> Allocation:
    """`global`: the N cells of highest mass times `weights[L]`, 2^-L by default. `split`: so many cells of every level,
    64:128:64:17 scaled to the budget and to the cells there are, or exactly `split`. `learned`: by a `LevelSplit`."""
    check_leaves(view.grid, budget)
    tree = tree_over(*view.grid, _root_level(view.grid), view.device)
    masses = mass_pyramid(view.relevance, tree.root_level)
    shares = tree.concatenate(masses)[:, tree.flat]
    if mode == "global" and split is None:
        factors = _four_numbers("weights", WEIGHTS if weights is None else weights)
        weighted = [mass * factor for mass, factor in zip(masses, factors, strict=False)]
        ranked = _distinct(tree, tree.concatenate(weighted)[:, tree.flat])
        nodes = torch.sort(ranked, dim=1, descending=True, stable=True).indices[:, :budget]
    elif mode in ("split", "learned") and weights is None:
        counts = _counts(mode, split, view.grid, budget, view.device)
        cells = _each([math.prod(tree.level_size(level)) for level in range(tree.root_level + 1)], view.device)
        ties = torch.arange(tree.count, device=view.device)  # nodes are numbered in tie-breaking order
        counts = counts[:, : cells.shape[1]]
        nodes = heaviest_of_groups(_distinct(tree, shares), tree.level[None], cells, counts, budget, ties)
    else:
        raise AllocatorError(
            f"pyramid has mode='global' with weights, 'split' with split, 'learned' with a LevelSplit, got {mode=}, "
            f"{weights=}, {split=}"
        )
    return make_allocation(view, tree.boxes(nodes), "dyadic" if tree.is_full else "box", scores=shares.gather(1, nodes))


def _root_level(grid: Size) -> int:
    return min(LEVELS - 1, (max(grid) - 1).bit_length())


def _distinct(tree: Tree, values: Float64[Tensor, "b nodes"]) -> Float64[Tensor, "b nodes"]:
    """Nonnegative values; a node with a single child, which is the same box, gets -1."""
    several = nn.functional.pad(tree.cost > 0, (0, tree.count - tree.internal), value=True)
    return torch.where(several, values, -1.0)


def level_capacity(grid: Size) -> tuple[int, ...]:
    """How many distinct cells levels 0 to 3 have; 0 where a grid is too small for the level.

    Only the last cell of a level can be the same box as its child: where both sides of the level below are odd.

    >>> level_capacity((64, 64)), level_capacity((5, 5))
    ((4096, 1024, 256, 64), (25, 8, 3, 1))
    """
    capacity = [grid[0] * grid[1]]
    for level in range(1, LEVELS):
        (w, h), (below_w, below_h) = ([cells_across(side, at) for side in grid] for at in (level, level - 1))
        repeats = below_w % 2 and below_h % 2
        capacity.append(w * h - int(repeats) if level <= _root_level(grid) else 0)
    return tuple(capacity)


def _counts(mode: str, split: Any, grid: Size, budget: int, device: torch.device) -> Int64[Tensor, "1 4"]:
    """Cells of each level that sum to the budget."""
    capacity = level_capacity(grid)
    if mode == "learned":
        if not isinstance(split, LevelSplit):
            raise AllocatorError(f"mode='learned' needs split=LevelSplit(), got {type(split).__name__}")
        shares = split().detach().double()[None]
    elif split is None:
        shares = _each(SPLIT, device).double()
    else:
        counts = _four_numbers("split", split)
        if sum(counts) != budget or any(count != int(count) for count in counts):
            raise BudgetError(
                f"split={tuple(split)} is {sum(counts):g} cells and the budget is {budget}: make them equal"
            )
        for level, (count, most) in enumerate(zip(counts, capacity, strict=True)):
            if count > most:
                raise BudgetError(
                    f"split asks for {count} cells of level {level} and the grid has {most}: ask for fewer"
                )
        return _each([int(count) for count in counts], device)
    return share_tokens(shares, _each(capacity, device)[0], budget, each=0)


def _four_numbers(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, Sequence) and len(values) == LEVELS:
        numbers = tuple(values)
        if all(isinstance(number, (int, float)) and 0 <= number < math.inf for number in numbers):
            return numbers
    raise AllocatorError(f"{name} is four numbers of at least 0, for levels 0 to 3, got {values!r}")


def _each(numbers: Sequence[int], device: torch.device) -> Int64[Tensor, "1 n"]:
    """Python numbers as a row, made on the device."""
    return torch.stack([torch.full((1,), number, dtype=torch.int64, device=device) for number in numbers], dim=1)


def soft_counts(shares: Float64[Tensor, "4"], capacity: Sequence[int], budget: int) -> Float64[Tensor, "4"]:
    """The budget in proportion to `shares`, no level above its capacity, not rounded: differentiable in the shares.

    >>> soft_counts(torch.full((4,), 0.25).double(), (99, 99, 20, 5), 100)
    tensor([37.5000, 37.5000, 20.0000,  5.0000], dtype=torch.float64)
    """
    room = _each(capacity, shares.device)[0].double()
    full = room == 0
    for _ in range(LEVELS):  # each round fills a level or is the last
        free = budget - torch.where(full, room, 0.0).sum()
        portion = torch.where(full, 0.0, shares)
        counts = torch.where(full, room, free * portion / portion.sum().clamp(min=1e-300))
        full = full | (counts >= room)
    return counts
