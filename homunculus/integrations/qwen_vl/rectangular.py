"""Attention over images of equal length as one rectangle `[images, heads, length, d]`.

The towers lay all patches of a batch end to end and attend image by image, in a loop that first asks the device for the
lengths. With one budget for all images, or with one image, the lengths are known and equal: one call does it, and the
host never waits.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

NAME = "_homunculus_rectangle"  # where a tower keeps what its attention is told


class Rectangle:
    """How many images of equal length there are; 0 leaves attention to the library."""

    images = 0


def install(visual: Any) -> Callable[[], None]:
    """Blocks of this tower that attend within whole images may be told to do so in one call; returns how to undo it.

    Blocks that attend within windows are left alone.
    """
    rectangle = Rectangle()
    setattr(visual, NAME, rectangle)
    full = getattr(visual, "fullatt_block_indexes", range(len(visual.blocks)))
    modules = [visual.blocks[i].attn for i in full]
    for attention in modules:
        attention.forward = partial(_attend, attention, attention.forward, rectangle)

    def undo() -> None:
        delattr(visual, NAME)
        for attention in modules:
            del attention.forward

    return undo


@contextmanager
def rectangular_attention(visual: Any, lengths: Sequence[int]) -> Iterator[None]:
    """While this lasts, attention runs in one call if all images have one length."""
    rectangle = getattr(visual, NAME)
    rectangle.images = len(lengths) if len(set(lengths)) == 1 else 0
    try:
        yield
    finally:
        rectangle.images = 0


def _attend(
    attention: Any,
    stock: Callable[..., Tensor],
    rectangle: Rectangle,
    hidden_states: Float[Tensor, "patches d"],
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs: Any,
) -> Float[Tensor, "patches d"]:
    """What the module's own forward computes, all images at once, by the attention it is configured with."""
    images = rectangle.images
    if not images or position_embeddings is None:
        return stock(hidden_states, position_embeddings=position_embeddings, **kwargs)
    library = sys.modules[type(attention).__module__]
    qkv = attention.qkv(hidden_states).unflatten(1, (3, attention.num_heads, -1))
    query, key, value = qkv.unbind(1)  # [patches, heads, d]
    query, key = library.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    interface = library.ALL_ATTENTION_FUNCTIONS.get_interface(
        attention.config._attn_implementation, library.eager_attention_forward
    )
    kwargs = {name: given for name, given in kwargs.items() if name not in ("cu_seqlens", "max_seqlen")}
    output, _ = interface(
        attention,
        *(part.unflatten(0, (images, -1)).transpose(1, 2) for part in (query, key, value)),
        attention_mask=None,
        scaling=attention.scaling,
        dropout=attention.attention_dropout if attention.training else 0.0,
        is_causal=False,
        **kwargs,
    )
    return attention.proj(output.reshape(hidden_states.shape[0], -1))
