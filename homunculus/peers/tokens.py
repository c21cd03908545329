"""What a published reducer is given and what it gives back.

It acts on the tokens of a whole image at full resolution, after a vision encoder: which model they come from does not
matter to it. It keeps exactly as many as it is told to. Tokens that are merged say for how many they stand.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.geometry import Size


class Seen(NamedTuple):
    """All tokens of images, in reading order of a grid, and what models know about them beside their features."""

    features: Float[Tensor, "b n c"]
    places: Float[Tensor, "b n axes"]  # where each lies, in whatever its model turns by
    grid: Size  # columns and rows: n of them
    keys: Float[Tensor, "b n d"]  # what likeness is measured in: keys of an attention layer
    attention: Float[Tensor, "b n"]  # how much all tokens look at each in a late layer, sum 1: no CLS token is needed
    early: Float[Tensor, "b n"]  # the same in an early layer; both may be [b, 0] for peers that do not ask
    relevance: Float[Tensor, "b n"] | None = None  # to the question, not below 0; None where nobody asks


class Reduced(NamedTuple):
    """The tokens that are left, in reading order of those they come from."""

    features: Float[Tensor, "b k c"]
    places: Float[Tensor, "b k axes"]
    # of the token each comes from; where tokens became one, of the first of them, or of the one the others joined
    index: Int64[Tensor, "b k"]  # type: ignore[assignment]  # nobody looks for a value in it
    mass: Float32[Tensor, "b k"]  # for how many tokens each stands; bfloat16 could not count to 4096


def check_seen(seen: Seen) -> None:
    """Refuse tokens that do not fit each other; looks at shapes only.

    >>> tokens, attention = torch.zeros(1, 6, 8), torch.ones(1, 6)
    >>> check_seen(Seen(tokens, tokens, (2, 2), tokens, attention, attention))
    Traceback (most recent call last):
    homunculus.errors.AllocatorError: a grid of 2x2 has 4 tokens, the features have 6: give grid as (columns, rows)
    """
    batch, count = seen.features.shape[:2]
    columns, rows = seen.grid
    if columns * rows != count:
        raise AllocatorError(
            f"a grid of {columns}x{rows} has {columns * rows} tokens, the features have {count}: "
            "give grid as (columns, rows)"
        )
    for name in ("places", "keys", "attention", "early", "relevance"):
        value = getattr(seen, name)
        if name in ("attention", "early") and value.shape[1] == 0:
            continue
        if value is not None and value.shape[:2] != (batch, count):
            raise AllocatorError(
                f"{name} begins with {list(value.shape[:2])}, the features with {[batch, count]}: one for every token"
            )


def kept(seen: Seen, index: Int64[Tensor, "b k"]) -> Reduced:
    """Tokens as they are, in reading order.

    >>> tokens, attention = torch.arange(4.0).view(1, 4, 1), torch.ones(1, 4)
    >>> seen = Seen(tokens, torch.zeros(1, 4, 4), (2, 2), tokens, attention, attention)
    >>> kept(seen, torch.tensor([[3, 1]])).features.flatten().tolist()
    [1.0, 3.0]
    """
    index = index.sort(1).values
    features, places = (picked(values, index) for values in (seen.features, seen.places))
    return Reduced(features, places, index, torch.ones(index.shape, device=index.device))


def picked(values: Float[Tensor, "b n c"], index: Int64[Tensor, "b k"]) -> Float[Tensor, "b k c"]:
    """Rows of each image."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
