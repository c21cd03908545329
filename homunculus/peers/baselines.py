"""What any reducer must beat: tokens on a regular grid, and tokens drawn by lot."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.allocation.grid import scramble
from homunculus.peers.registry import register
from homunculus.peers.spread import evenly
from homunculus.peers.tokens import Reduced, Seen, kept


@register("uniform", "tokens on a regular grid, whatever is there", query=False, attention=False)
def uniform(seen: Seen, budget: int, *, seed: int = 0) -> Reduced:
    """Exactly the budget, as evenly spread as can be."""
    return kept(seen, evenly(seen.grid, budget, seen.features.device).expand(len(seen.features), -1))


@register("random", "tokens drawn by lot, the same ones for the same image and seed", query=False, attention=False)
def random(seen: Seen, budget: int, *, seed: int | Int64[Tensor, "b"] = 0) -> Reduced:
    """Without replacement, from `seed` (one for all, or one for each image) and the image's own features."""
    lots = drawn(seen.features, seed)
    return kept(seen, lots.sort(dim=1, stable=True).indices[:, :budget])


def drawn(features: Float[Tensor, "b n c"], seed: int | Int64[Tensor, "b"]) -> Int64[Tensor, "b n"]:
    """A 64-bit lot for every token, from the seed and every bit of the image's features in float32.

    Integers wrap and add up in any order, so lots are the same alone and in a batch, on any device.
    """
    count, channels = features.shape[1:]
    place = scramble(torch.arange(count, device=features.device))
    channel = scramble(torch.arange(channels, device=features.device)) | 1
    bits = features.detach().float().contiguous().view(torch.int32)
    token = (bits * channel).sum(-1)
    content = scramble(token ^ place).sum(1)
    image = scramble(scramble(content) + seed)
    return scramble(image[:, None] ^ place)
