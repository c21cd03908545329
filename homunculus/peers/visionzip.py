"""`visionzip`: the tokens most looked at, and a few that sum up the others (Yang et al., 2024, arXiv 2412.04467)."""

import torch
from jaxtyping import Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.peers.likeness import marked, top
from homunculus.peers.merging import assigned, themselves, weighted_mean
from homunculus.peers.registry import register
from homunculus.peers.tokens import Reduced, Seen, kept


@register(
    "visionzip",
    "the tokens most looked at, and a few that sum up the others",
    query=False,
    merges=True,
    attention=("late",),
)
def visionzip(seen: Seen, budget: int, *, seed: int = 0, dominant: float = 54 / 64) -> Reduced:
    """A share of dominant tokens by late attention, kept as they are; the rest are contextual.

    Contextual tokens stand evenly among the others in reading order, and each of the others joins the one most like it
    by the cosine of keys. A contextual token ends halfway between itself and the mean of those that joined it: the
    published sum of the two, at the length that the model knows.
    """
    if not 0 <= dominant <= 1:
        raise AllocatorError(f"dominant is a share of the budget from 0 to 1, 54/64 by default, got {dominant!r}")
    count, number = seen.features.shape[1], dominant_count(budget, dominant)
    first = top(seen.attention.float(), number)
    if number == budget:
        return kept(seen, first)
    contextual = among_others(first, count, budget - number)
    index = torch.cat((first, contextual), 1)
    joined = assigned(seen.keys, contextual, ~marked(index, count))
    joined = torch.cat((joined.new_zeros(len(index), number, count), joined), 1)  # nobody joins a dominant one
    index, order = index.sort(1)
    joined = joined.gather(1, order[..., None].expand(-1, -1, count))
    many = joined.sum(2)
    # 1 for the token itself, 1 for all that joined it together.
    weights = themselves(index, count) + joined / many[..., None].clamp(min=1)
    features = weighted_mean(weights, seen.features).to(seen.features.dtype)
    return kept(seen, index)._replace(features=features, mass=1.0 + many)


def dominant_count(budget: int, share: float) -> int:
    """How many tokens are dominant, rounded to the nearest.

    >>> dominant_count(64, 54 / 64), dominant_count(1, 54 / 64), dominant_count(273, 54 / 64)
    (54, 1, 230)
    """
    return min(int(budget * share + 0.5), budget)


def among_others(index: Int64[Tensor, "b k"], count: int, wanted: int) -> Int64[Tensor, "b wanted"]:
    """`wanted` of the tokens not in `index`, evenly spaced in reading order.

    >>> among_others(torch.tensor([[0, 3]]), 6, 2)
    tensor([[1, 4]])
    """
    others = marked(index, count).sort(dim=1, stable=True).indices[:, : count - index.shape[1]]
    return others[:, torch.arange(wanted, device=index.device) * others.shape[1] // max(wanted, 1)]
