"""`stratified` with a grid of strata that the question and the image's shape choose: from 1x1 to 8x8.

A whole number of columns and rows has no gradient. In training the choice is therefore a softmax over the 64 grids, and
a leaf's expected tokens are the mixture of what every grid would give it; at inference the likeliest grid is taken.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from homunculus.allocation.registry import register
from homunculus.allocation.stratified import Strata, spend_by_strata
from homunculus.density import FLOOR, with_floor
from homunculus.errors import AllocatorError, QueryError
from homunculus.geometry import Size
from homunculus.structures import Allocation, View

MOST = 8  # columns, and rows
STRATA = 16  # what the prior favours

# (queries, log aspect [B]) to logits over (columns, rows) [B, 8, 8]; queries are embeddings [B, D], texts or None
Predictor = Callable[[Any, Float[Tensor, "b"]], Float[Tensor, "b 8 8"]]


@register(
    "adaptive-stratified",
    "strata whose number and shape follow the question and the image's aspect",
    trains="GridPredictor, through a soft mixture over grids (adaptive.expected_tokens)",
)
def adaptive_stratified(view: View, budget: int, *, seed: int = 0, predictor: Predictor | None = None) -> Allocation:
    """The grid `predictor` finds likeliest among those the budget can serve; without one, about 16 square strata.

    A predictor gets the view's queries (embeddings as one tensor [B, D], else the list as it is, None if nobody asked)
    and ln(width / height). Without a predictor nothing reads the queries, texts or embeddings.
    """
    if predictor is not None and not callable(predictor):
        raise AllocatorError(f"a predictor is called with queries and aspects, got {type(predictor).__name__}")
    width, height = view.image_size
    aspect = torch.full((view.batch,), math.log(width / height), dtype=torch.float64, device=view.device)
    logits = grid_prior(aspect) if predictor is None else predictor(_asked(view), aspect)
    if logits.shape != (view.batch, MOST, MOST):
        raise AllocatorError(
            f"the predictor returned {list(logits.shape)}: logits over columns and rows are [{view.batch}, 8, 8]"
        )
    choice = logits.masked_fill(~possible_grids(view.grid, budget, view.device), -torch.inf).flatten(1).argmax(1)
    strata = Strata.each(view.grid, choice // MOST + 1, choice % MOST + 1, most=(MOST, MOST))
    return spend_by_strata(view, budget, strata)


def grid_prior(log_aspect: Float[Tensor, "b"]) -> Float[Tensor, "b 8 8"]:
    """Logits that favour about 16 strata, each as nearly square as can be.

    >>> [divmod(best, 8) for best in grid_prior(torch.tensor([0.0, 0.7])).flatten(1).argmax(1).tolist()]  # 4x4, 6x3
    [(3, 3), (5, 2)]
    """
    count, shape = _log_counts(log_aspect.device)
    off = shape - log_aspect[:, None, None]
    return (-(count * count) - off * off).to(log_aspect.dtype)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _log_counts(device: torch.device | str) -> tuple[Float64[Tensor, "8 8"], Float64[Tensor, "8 8"]]:
    """ln(columns * rows / 16) and ln(columns / rows), by columns and rows; one CPU's logarithms for every device."""
    columns = torch.arange(1, MOST + 1, dtype=torch.float64).log()[:, None]
    rows = columns.mT
    return (columns + rows - math.log(STRATA)).to(device), (columns - rows).to(device)


def possible_grids(grid: Size, budget: int, device: torch.device | str = "cpu") -> Bool[Tensor, "8 8"]:
    """Which columns x rows of strata a budget can serve over a leaf grid; 1x1 always.

    >>> int(possible_grids((64, 64), 4).sum())  # 1x1, 1x2, 2x1, 1x3, 3x1, 1x4, 4x1, 2x2
    8
    """
    columns = torch.arange(1, MOST + 1, device=device)[:, None]
    rows = columns.mT
    return (columns * rows <= budget) & (columns <= grid[0]) & (rows <= grid[1])


def _asked(view: View) -> Any:
    """The queries of a view as one tensor where all are embeddings; None where there are none."""
    queries = view.query
    if isinstance(queries, Tensor) or queries is None:
        return queries
    if all(query is None for query in queries):
        return None
    if all(isinstance(query, Tensor) for query in queries):
        return torch.stack([query.to(view.device, non_blocking=True) for query in queries])
    return queries


class GridPredictor(nn.Module):
    """Query embedding [B, D] (or None) and ln(width / height) [B] to logits over (columns, rows) [B, 8, 8].

    The fixed prior plus a learned part, which starts at zero: untrained, it chooses as the prior does. Embeddings are
    given in `dimension` numbers; without any it reads the shape alone.

    >>> GridPredictor(dimension=4)(torch.randn(2, 4), torch.zeros(2)).shape
    torch.Size([2, 8, 8])
    """

    def __init__(self, dimension: int = 0, hidden: int = 64) -> None:
        super().__init__()
        self.dimension = dimension
        self.read = nn.Linear(dimension + 1, hidden)
        self.choose = nn.Linear(hidden, MOST * MOST)
        nn.init.zeros_(self.choose.weight)
        nn.init.zeros_(self.choose.bias)

    def forward(self, query: Any, log_aspect: Float[Tensor, "b"]) -> Float[Tensor, "b 8 8"]:
        if query is None:
            query = log_aspect.new_zeros(len(log_aspect), self.dimension)
        if not isinstance(query, Tensor) or query.shape != (len(log_aspect), self.dimension):
            given = list(query.shape) if isinstance(query, Tensor) else "texts"
            raise QueryError(
                f"this predictor reads one embedding of {self.dimension} numbers for each of {len(log_aspect)} images, "
                f"got {given}: embed the queries first"
            )
        inputs = torch.cat((query.to(self.read.weight.dtype), log_aspect[:, None].to(self.read.weight.dtype)), dim=1)
        learned = self.choose(nn.functional.gelu(self.read(inputs)))
        return grid_prior(log_aspect) + learned.unflatten(1, (MOST, MOST))


def expected_tokens(
    relevance: Float64[Tensor, "b gh gw"], logits: Float[Tensor, "b 8 8"], budget: int, floor: float = FLOOR
) -> Float64[Tensor, "b gh gw"]:
    """The tokens every leaf can expect under a softmax over grids: the training form, differentiable in both.

    The relevance has mass 1. Under one grid a stratum spends its own token in proportion to the relevance inside it and
    the budget less one token per stratum goes by relevance, no leaf above 1: a closed form, where the hard rule takes
    the heaviest leaves. The sum is the budget, less what the cap cuts off. Memory is 64 maps for every image.

    >>> expected_tokens(torch.full((1, 16, 16), 1 / 256).double(), torch.zeros(1, 8, 8), 64).sum().round()
    tensor(64., dtype=torch.float64)
    """
    gh, gw = relevance.shape[1:]
    possible = possible_grids((gw, gh), budget, relevance.device)
    chance = logits.double().masked_fill(~possible, -torch.inf).flatten(1).softmax(1)  # [B, 64]
    place = torch.arange(MOST * MOST, device=relevance.device)
    columns, rows = place // MOST + 1, place % MOST + 1
    strata = Strata.each((gw, gh), columns.clamp(max=gw), rows.clamp(max=gh), most=(MOST, MOST))

    relevance = with_floor(relevance, floor)
    integral = nn.functional.pad(relevance, (1, 0, 1, 0)).cumsum(1).cumsum(2)
    corners = integral[:, strata.rows[:, :, None], strata.columns[:, None]]  # [B, 64, 9, 9]
    mass = corners.diff(dim=2).diff(dim=3).flatten(2)  # of every stratum of every grid
    share = 1 / torch.where(strata.capacity > 0, mass, 1.0) + (budget - columns * rows).clamp(min=0)[:, None]
    share = share.gather(2, strata.of_leaves.expand(len(relevance), -1, -1))  # tokens per relevance, [B, 64, leaves]
    tokens = (relevance.flatten(1)[:, None] * share).clamp(max=1)
    return (chance[:, :, None] * tokens).sum(1).unflatten(1, (gh, gw))
