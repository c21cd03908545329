"""What any reducer must beat: tokens on a regular grid, and tokens drawn by lot."""

import torch
from jaxtyping import Int64
from torch import Tensor

from homunculus.allocation.grid import scramble
from homunculus.peers.registry import register
from homunculus.peers.spread import evenly
from homunculus.peers.tokens import Reduced, Seen, fingerprints, kept


@register("uniform", "tokens on a regular grid, whatever is there", query=False, attention=())
def uniform(seen: Seen, budget: int, *, seed: int = 0) -> Reduced:
    """Exactly the budget, as evenly spread as can be."""
    return kept(seen, evenly(seen.grid, budget, seen.features.device).expand(len(seen.features), -1))


@register("random", "tokens drawn by lot, the same ones for the same image and seed", query=False, attention=())
def random(seen: Seen, budget: int, *, seed: int | Int64[Tensor, "b"] = 0) -> Reduced:
    """Without replacement, from `seed` (one for all, or one for each image) and the image's own pixels.

    Where these are not known its features stand for them, in float32. A model that computes in another order for
    another batch changes their last bits, and one bit is another draw: pixels are better.
    """
    content = fingerprints(seen.features.float()) if seen.fingerprint is None else seen.fingerprint
    return kept(seen, lots(content, seen.features.shape[1], seed).sort(dim=1, stable=True).indices[:, :budget])


def lots(content: Int64[Tensor, "b"], count: int, seed: int | Int64[Tensor, "b"]) -> Int64[Tensor, "b n"]:
    """A 64-bit lot for each of `count` tokens, from the seed and the fingerprint of their image.

    >>> lots(torch.tensor([5, 5]), 2, torch.tensor([0, 1])).unique().numel(), lots(torch.tensor([5]), 2, 1).shape
    (4, torch.Size([1, 2]))
    """
    place = scramble(torch.arange(count, device=content.device))
    return scramble(scramble(scramble(content) + seed)[:, None] ^ place)
