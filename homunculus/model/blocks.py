"""What every transformer here is made of: attention with rotated queries and keys, and an MLP, both on a residual."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from homunculus.model.rotary import Turns


class Norm(nn.RMSNorm):
    """In the precision of what it gets: under autocast torch has no fast kernel for a weight of another."""

    def forward(self, x: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c"]:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def split(x: Float[Tensor, "b t c"], heads: int) -> Float[Tensor, "b heads t d"]:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(
    query: Float[Tensor, "b heads t d"],
    key: Float[Tensor, "b heads s d"],
    value: Float[Tensor, "b heads s d"],
    mask: Bool[Tensor, "b 1 #t s"] | None = None,
) -> Float[Tensor, "b t c"]:
    """Heads put side by side again; True in the mask may be looked at."""
    if mask is None or torch.compiler.is_compiling():
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    else:  # text, as long as a question happens to be, and longer with every letter
        with any_shape():
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return found.transpose(1, 2).flatten(2)


@contextmanager
def any_shape() -> Iterator[None]:
    """Attention without cuDNN, which makes a plan for every new shape; an answer has a new one with every letter."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


class KeysValues(nn.Module):
    """What of a sequence can be looked at: keys and values, both [b, heads, s, d]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, 2 * width, bias=False)
        self.norm = Norm(width // heads)

    def forward(self, x: Float[Tensor, "b s c"], turns: Turns | None) -> tuple[Tensor, Tensor]:
        key, value = (split(part, self.heads) for part in self.linear(x).chunk(2, dim=-1))
        key = self.norm(key)
        return (key if turns is None else turns.rotate(key)), value


class Attention(nn.Module):
    """Queries from one sequence, keys and values from the same or another. Queries and keys are normalised, which
    keeps large learning rates in bfloat16 from running away."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.query_norm = Norm(width // heads)
        self.keys_values = KeysValues(width, heads)
        self.out = nn.Linear(width, width, bias=False)

    def queries(self, x: Float[Tensor, "b t c"], turns: Turns | None) -> Float[Tensor, "b heads t d"]:
        query = self.query_norm(split(self.query(x), self.heads))
        return query if turns is None else turns.rotate(query)

    def forward(
        self, x: Float[Tensor, "b t c"], turns: Turns | None = None, mask: Bool[Tensor, "b 1 #t t"] | None = None
    ) -> Float[Tensor, "b t c"]:
        key, value = self.keys_values(x, turns)
        return self.out(attend(self.queries(x, turns), key, value, mask))


class MLP(nn.Sequential):
    def __init__(self, width: int, growth: int = 4) -> None:
        super().__init__(
            nn.Linear(width, growth * width, bias=False), nn.GELU(), nn.Linear(growth * width, width, bias=False)
        )


class Block(nn.Module):
    """Self-attention and an MLP, each on what was normalised before it."""

    def __init__(self, width: int, heads: int, growth: int = 4) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = Norm(width)
        self.mlp = MLP(width, growth)

    def forward(
        self, x: Float[Tensor, "b t c"], turns: Turns | None = None, mask: Bool[Tensor, "b 1 #t t"] | None = None
    ) -> Float[Tensor, "b t c"]:
        x = x + self.attention(self.norm(x), turns, mask)
        return x + self.mlp(self.mlp_norm(x))
