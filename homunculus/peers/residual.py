"""`coarse-then-residual`: a coarse view first, then tokens where it is most wrong.

The idea of PVC (Yang et al., 2024, arXiv 2412.09613), which shows an image several times and trains the encoder to add
new detail each time, without the training: here a round adds what the rounds before it told worst.
"""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.geometry import Size
from homunculus.peers.likeness import marked, top
from homunculus.peers.registry import register
from homunculus.peers.spread import evenly
from homunculus.peers.tokens import Reduced, Seen, kept, picked


@register(
    "coarse-then-residual", "a coarse grid, then rounds of tokens where it is most wrong", query=False, attention=()
)
def coarse_then_residual(seen: Seen, budget: int, *, seed: int = 0, rounds: int = 4) -> Reduced:
    """Equal rounds: a uniform grid, then each time the tokens whose features are farthest from what is told of them."""
    if rounds < 1:
        raise AllocatorError(f"rounds of coarse-then-residual are 1 or more, 4 by default, got {rounds}")
    return kept(seen, torch.cat(in_rounds(seen.features, seen.grid, budget, rounds)[0], 1))


@torch.no_grad()
def in_rounds(
    features: Float[Tensor, "b n c"], grid: Size, budget: int, rounds: int
) -> tuple[list[Int64[Tensor, "b _"]], list[Float32[Tensor, "b n"]]]:
    """The tokens of each round and how wrong every place is after it, as a squared distance.

    A place is told by the kept token that lies nearest to it; in later rounds by the nearest newcomer, where that one
    tells it better. So no place gets worse, and those that are added are told exactly.

    >>> features = torch.tensor([[[0.0], [0], [0], [9], [0], [0], [0], [0], [0]]])
    >>> chosen, wrong = in_rounds(features, (3, 3), 2, 2)
    >>> [one.tolist() for one in chosen], [one.sum().item() for one in wrong]
    ([[[4]], [[3]]], [81.0, 0.0])
    """
    features = features.float()
    batch, count = features.shape[:2]
    rounds = min(rounds, budget)
    sizes = [budget * (i + 1) // rounds - budget * i // rounds for i in range(rounds)]
    new = evenly(grid, sizes[0], features.device).expand(batch, -1)
    wrong = torch.full((batch, count), torch.inf, device=features.device)
    have = torch.zeros_like(wrong, dtype=torch.bool)
    chosen: list[Tensor] = []
    errors: list[Tensor] = []
    for size in sizes:
        if chosen:
            new = top(wrong.masked_fill(have, -1.0), size).sort(1).values
        have = have | marked(new, count)
        told = picked(features, nearest_place(new, grid))
        wrong = wrong.minimum((features - told).square().sum(-1)).masked_fill(have, 0.0)
        chosen.append(new)
        errors.append(wrong)
    return chosen, errors


def nearest_place(index: Int64[Tensor, "b k"], grid: Size) -> Int64[Tensor, "b n"]:
    """Which of the named tokens lies nearest to each place of the grid, of equally near ones the first.

    >>> nearest_place(torch.tensor([[0, 4]]), (5, 1)).tolist()
    [[0, 0, 0, 4, 4]]
    """
    columns, rows = grid
    place = torch.arange(columns * rows, device=index.device)
    across = place % columns - (index % columns)[..., None]  # [b, k, n]
    down = place // columns - (index // columns)[..., None]
    return index.gather(1, (across.square() + down.square()).argmin(1))
