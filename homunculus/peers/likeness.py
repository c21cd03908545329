"""How alike tokens are, and which come first: the two questions every reducer asks.

Cosines are rounded to 2^-20. A device adds in whatever order suits it, so two equal tokens may differ in their last
bits from a third; rounded they are equally like it, and the first of them is taken, alone or in any batch.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

STEPS = 1 << 20


def unit(vectors: Float[Tensor, "b n c"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "b n c"]:
    """Vectors of length 1, in full precision; those of length 0 stay so."""
    return torch.nn.functional.normalize(vectors.to(dtype), dim=-1)


def cosines(a: Float[Tensor, "b m c"], b: Float[Tensor, "b n c"]) -> Float[Tensor, "b m n"]:
    """The likeness of every vector of length 1 to every other, rounded.

    >>> cosines(unit(torch.tensor([[[2.0, 0], [3, 3]]])), unit(torch.tensor([[[5.0, 0]]]))).flatten().tolist()
    [1.0, 0.7071065902709961]
    """
    return (a @ b.mT).mul_(STEPS).round_().div_(STEPS)


def top(values: Float[Tensor, "b n"], count: int) -> Int64[Tensor, "b k"]:
    """Where the highest values are, the highest first; of equal ones the first.

    >>> top(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3)
    tensor([[1, 2, 3]])
    """
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]


def marked(index: Int64[Tensor, "b k"], count: int) -> Bool[Tensor, "b n"]:
    """Which of `count` tokens are named.

    >>> marked(torch.tensor([[2, 0]]), 4).tolist()
    [[True, False, True, False]]
    """
    nothing = torch.zeros(len(index), count, dtype=torch.bool, device=index.device)
    return nothing.scatter(1, index, torch.ones_like(index, dtype=torch.bool))
