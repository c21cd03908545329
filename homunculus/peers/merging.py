"""Tokens given up are not lost: the kept ones take them in.

Sums go through a matrix of who belongs to whom, not through scattered additions: those come out in another order, and
so in other bits, each time a GPU does them.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from homunculus.peers.likeness import cosines, marked, unit
from homunculus.peers.tokens import picked


def weighted_mean(weights: Float[Tensor, "b k n"], values: Float[Tensor, "b n c"]) -> Float[Tensor, "b k c"]:
    """A mean of tokens for each row of weights, at least in float32; where all weights are 0, zero.

    >>> weighted_mean(torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[0.0], [4.0]]])).flatten().tolist()
    [3.0]
    """
    dtype = torch.promote_types(values.dtype, torch.float32)
    total = weights.sum(2, keepdim=True)
    return (weights / total.where(total > 0, 1.0)).to(dtype) @ values.to(dtype)


def nearest_kept(keys: Float[Tensor, "b n d"], index: Int64[Tensor, "b k"]) -> Bool[Tensor, "b k n"]:
    """Whom each kept token takes in: those not kept for which it is the most alike of all kept ones.

    >>> nearest_kept(torch.tensor([[[1.0, 0], [0, 1], [0.1, 1]]]), torch.tensor([[0, 1]])).tolist()
    [[[False, False, False], [False, False, True]]]
    """
    return assigned(keys, index, ~marked(index, keys.shape[1]))


@torch.no_grad()
def assigned(
    keys: Float[Tensor, "b n d"], centres: Int64[Tensor, "b k"], free: Bool[Tensor, "b n"]
) -> Bool[Tensor, "b k n"]:
    """Each free token belongs to the centre most like it, of equally alike ones to the first; no other does."""
    keys = unit(keys)
    owner = cosines(picked(keys, centres), keys).argmax(1)  # [b, n]
    numbers = torch.arange(centres.shape[1], device=keys.device)
    return (owner[:, None] == numbers[:, None]) & free[:, None]


def themselves(index: Int64[Tensor, "b k"], count: int) -> Bool[Tensor, "b k n"]:
    """Each kept token belongs to itself.

    >>> themselves(torch.tensor([[2, 0]]), 3).int().tolist()
    [[[0, 0, 1], [1, 0, 0]]]
    """
    return index[..., None] == torch.arange(count, device=index.device)
