"""`divprune`: keep tokens as unlike each other as possible (Alvar et al., 2025, arXiv 2503.02175).

The best set by the max-min distance is too hard to find; a greedy one is at most twice as bad. It begins with the
token farthest from its nearest neighbour and always adds the one farthest from those it has.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.peers.likeness import cosines, unit
from homunculus.peers.registry import register
from homunculus.peers.tokens import Reduced, Seen, kept, picked

BLOCK = 512  # rows of the table of likeness held at a time


@register("divprune", "tokens as unlike each other as possible", query=False, attention=())
def divprune(seen: Seen, budget: int, *, seed: int = 0) -> Reduced:
    """Greedy max-min of 1 - cosine of features."""
    return kept(seen, most_unlike(seen.features, budget))


@torch.no_grad()
def most_unlike(features: Float[Tensor, "b n c"], budget: int) -> Int64[Tensor, "b k"]:
    """In the order chosen; of equally good ones the first.

    >>> most_unlike(torch.tensor([[[1.0, 0], [1, 0.1], [-1, 0], [1, 0.2]]]), 3)
    tensor([[2, 0, 3]])
    """
    vectors = unit(features)
    chosen = nearest_likeness(vectors).argmin(1, keepdim=True)
    nearest = torch.full(vectors.shape[:2], -torch.inf, device=vectors.device)  # likeness to the nearest chosen one
    found = [chosen]
    for _ in range(budget - 1):
        likeness = cosines(vectors, picked(vectors, chosen))[..., 0]
        nearest = nearest.maximum(likeness).scatter(1, chosen, torch.full_like(nearest[:, :1], torch.inf))
        chosen = nearest.argmin(1, keepdim=True)
        found.append(chosen)
    return torch.cat(found, 1)


def nearest_likeness(vectors: Float[Tensor, "b n c"]) -> Float[Tensor, "b n"]:
    """How alike each is to the most alike other one, a block of rows at a time: a whole table of 4096 is 64 MiB."""
    found = []
    for start, block in zip(range(0, vectors.shape[1], BLOCK), vectors.split(BLOCK, dim=1), strict=True):
        likeness = cosines(block, vectors)
        likeness.diagonal(start, dim1=1, dim2=2).fill_(-torch.inf)  # itself
        found.append(likeness.amax(2))
    return torch.cat(found, 1)
