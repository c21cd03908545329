"""What a published reducer is given and what it gives back.

It acts on the tokens of a whole image at full resolution, after a vision encoder: which model they come from does not
matter to it. It keeps exactly as many as it is told to. Tokens that are merged say for how many they stand.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor

from homunculus.allocation.grid import scramble
from homunculus.errors import AllocatorError
from homunculus.geometry import Size

BOTH = ("late", "early")  # layers of an encoder that tell how much each token is looked at


class Seen(NamedTuple):
    """All tokens of images, in reading order of a grid, and what models know about them beside their features."""

    features: Float[Tensor, "b n c"]
    places: Float[Tensor, "b n axes"]  # where each lies, in whatever its model turns by
    grid: Size  # columns and rows: n of them
    keys: Float[Tensor, "b n d"]  # what likeness is measured in: keys of an attention layer
    attention: Float[Tensor, "b n"]  # how much all tokens look at each in a late layer, sum 1: no CLS token is needed
    early: Float[Tensor, "b n"]  # the same in an early layer; either is [b, 0] where nobody asks for it
    relevance: Float[Tensor, "b n"] | None = None  # to the question, not below 0; None where nobody asks
    fingerprint: Int64[Tensor, "b"] | None = None  # of each image's pixels; None where they are not known


class Reduced(NamedTuple):
    """The tokens that are left, in reading order of those they come from."""

    features: Float[Tensor, "b k c"]
    places: Float[Tensor, "b k axes"]
    # of the token each comes from; where tokens became one, of the first of them, or of the one the others joined
    index: Int64[Tensor, "b k"]  # type: ignore[assignment]  # nobody looks for a value in it
    mass: Float32[Tensor, "b k"]  # for how many tokens each stands; bfloat16 could not count to 4096


Known = TypeVar("Known", Seen, Reduced)


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
    own = seen.fingerprint
    if own is not None and (own.shape != (batch,) or own.dtype != torch.int64):
        raise AllocatorError(
            f"fingerprints are int64, one for each of {batch} images, got {own.dtype} {list(own.shape)}: "
            "take those of the images' pixels"
        )


def fingerprints(values: Shaped[Tensor, "b *rest"]) -> Int64[Tensor, "b"]:
    """A 64-bit number for each image, made of every bit of its values: its pixels, or whatever else it is known by.

    Integers wrap and add up in any order, so it is the same alone and in a batch, on any device, and nobody waits.

    >>> one, two = fingerprints(torch.tensor([[3, 1, 2], [3, 2, 1]], dtype=torch.uint8)).tolist()
    >>> one != two, [one] == fingerprints(torch.tensor([[3, 1, 2]], dtype=torch.uint8)).tolist()
    (True, True)
    """
    content = values.detach().flatten(1).contiguous().view(torch.uint8)
    words = torch.nn.functional.pad(content, (0, -content.shape[1] % 8)).view(torch.int64)  # of eight bytes
    return scramble(words ^ scramble(torch.arange(words.shape[1], device=values.device))).sum(1)


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


def of_images(own: Known, which: Int64[Tensor, "k"]) -> Known:
    """What is known of these images out of a batch, each as often as it is named.

    >>> tokens, attention = torch.arange(4.0).view(2, 2, 1), torch.ones(2, 2)
    >>> seen = Seen(tokens, torch.zeros(2, 2, 4), (2, 1), tokens, attention, attention)
    >>> of_images(seen, torch.tensor([1, 1, 0])).features[..., 0].tolist()
    [[2.0, 3.0], [2.0, 3.0], [0.0, 1.0]]
    """
    return type(own)._make(part.index_select(0, which) if isinstance(part, Tensor) else part for part in own)


def in_parts(reduce: Callable[[Seen, slice], Reduced], seen: Seen, tokens: int) -> Reduced:
    """What is left of all images where no more than so many tokens, or one image, are reduced at a time: a reducer that
    compares every token with every other takes far more memory than what it is given and what it leaves. It is told
    which of the images they are.

    >>> tokens, attention = torch.arange(8.0).view(4, 2, 1), torch.ones(4, 2)
    >>> seen = Seen(tokens, torch.zeros(4, 2, 4), (2, 1), tokens, attention, attention)
    >>> first = lambda part, own: kept(part, torch.zeros(len(part.features), 1, dtype=torch.int64))
    >>> in_parts(first, seen, tokens=3).features.flatten().tolist()
    [0.0, 2.0, 4.0, 6.0]
    """
    images = max(1, tokens // max(1, seen.features.shape[1]))
    parts = [slice(first, first + images) for first in range(0, len(seen.features), images)]
    some = (Seen._make(part[own] if isinstance(part, Tensor) else part for part in seen) for own in parts)
    reduced = [reduce(part, own) for part, own in zip(some, parts, strict=True)]
    return reduced[0] if len(reduced) == 1 else Reduced._make(map(torch.cat, zip(*reduced, strict=True)))


def picked(values: Float[Tensor, "b n c"], index: Int64[Tensor, "b k"]) -> Float[Tensor, "b k c"]:
    """Rows of each image."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))
