"""`topk` that is paid for every region it occupies.

The choice maximises (relevance captured) + weight * (share of regions occupied), exactly: give the best leaf of every
region the bonus weight / regions, and take the N highest. Proof. The bonuses inside a set never exceed the regions it
occupies, so the highest sum of raised scores is at most the optimum. And an optimal set may swap a leaf of each region
it occupies for that region's best leaf without loss; then its value is its sum of raised scores.
"""

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from homunculus.allocation.cells import leaf_cells, make_allocation
from homunculus.allocation.grid import first_leaves
from homunculus.allocation.registry import register
from homunculus.allocation.relaxed import coverage_penalty, hard_topk_mask, relaxed_topk
from homunculus.allocation.stratified import Strata
from homunculus.errors import AllocatorError
from homunculus.structures import Allocation, View


@register(
    "topk-coverage",
    "the most relevant leaves, with a bonus for every region that gets one",
    trains="the density, through TopKCoverage: relaxed top-k and relaxed.coverage_penalty",
)
def topk_coverage(view: View, budget: int, *, seed: int = 0, weight: float = 0.1, cells: int = 8) -> Allocation:
    """`weight` is what occupying all `cells` x `cells` regions is worth beside all of the relevance."""
    leaves = first_leaves(raised_by_coverage(view.relevance, weight, cells), budget)
    shares = view.relevance.flatten(1).gather(1, leaves)
    return make_allocation(view, leaf_cells(leaves, view.grid[0]), "dyadic", scores=shares)


def raised_by_coverage(
    relevance: Float64[Tensor, "b gh gw"], weight: float = 0.1, cells: int = 8
) -> Float64[Tensor, "b gh gw"]:
    """The relevance, the best leaf of every region raised by what its occupation is worth.

    >>> raised_by_coverage(torch.tensor([[[0.5, 0.25, 0.25, 0.0]]]).double(), weight=1.0, cells=2)
    tensor([[[1.0000, 0.2500, 0.7500, 0.0000]]], dtype=torch.float64)
    """
    if not (weight >= 0 and isinstance(cells, int) and cells > 0):
        raise AllocatorError(f"need weight of at least 0 and a whole number of cells, got {weight=}, {cells=}")
    gh, gw = relevance.shape[1:]
    columns, rows = min(cells, gw), min(cells, gh)
    regions = Strata.even((gw, gh), columns, rows, relevance.device)
    best = best_of_groups(relevance, regions.of_leaves, columns * rows)
    return torch.where(best, relevance + weight / (columns * rows), relevance)


def best_of_groups(
    values: Float64[Tensor, "b gh gw"], group: Int64[Tensor, "_b leaves"], groups: int
) -> Bool[Tensor, "b gh gw"]:
    """Marks the highest leaf of every group that has any; ties go to the first in spreading order.

    >>> best_of_groups(torch.tensor([[[1.0, 3.0, 2.0]]]).double(), torch.tensor([[0, 0, 2]]), 3)
    tensor([[[False,  True,  True]]])
    """
    order = first_leaves(values, values[0].numel())
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, place)
    group = group.expand_as(rank)
    first = torch.full_like(rank[:, :1], rank.shape[1]).repeat(1, groups).scatter_reduce_(1, group, rank, "amin")
    return (rank == first.gather(1, group)).unflatten(1, values.shape[1:])


class TopKCoverage(nn.Module):
    """The training form: scores over leaves (log-densities) to token probabilities and the penalty to add to the loss.

    In training mode the probabilities are relaxed and sum to the budget; in evaluation mode they are 0 or 1, the very
    choice of `topk-coverage` with the density softmax(scores).

    >>> probabilities, penalty = TopKCoverage(budget=4)(torch.randn(2, 16, 16))
    >>> probabilities.shape, penalty.shape
    (torch.Size([2, 16, 16]), torch.Size([2]))
    """

    def __init__(
        self, budget: int = 273, weight: float = 0.1, cells: int = 8, temperature: float = 0.1, noise: float = 0.0
    ) -> None:
        super().__init__()
        self.budget, self.weight, self.cells = budget, weight, cells
        self.temperature, self.noise = temperature, noise  # plain numbers: a schedule sets them between steps

    def forward(self, scores: Float[Tensor, "b gh gw"]) -> tuple[Float[Tensor, "b gh gw"], Float[Tensor, "b"]]:
        flat = scores.flatten(1)
        if self.training:
            chosen = relaxed_topk(flat, self.budget, self.temperature, self.noise).unflatten(1, scores.shape[1:])
        else:
            density = flat.double().softmax(1).unflatten(1, scores.shape[1:])
            raised = raised_by_coverage(density, self.weight, self.cells)
            chosen = hard_topk_mask(raised, self.budget).to(scores.dtype)
        return chosen, self.weight * coverage_penalty(chosen, self.cells)
