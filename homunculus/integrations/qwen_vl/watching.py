"""What published reducers ask of a vision tower beside its features: keys, and how much its tokens are looked at.

Neither tower has a CLS token, so a leaf's attention is what all patches of its image give to its own, mean over heads.
In Qwen2.5-VL most blocks attend within windows, where every window has the same to give: only blocks with full
attention can tell leaves apart. The last of them is the late one, whose keys are used too; the first is the early one.
A fused kernel does not tell its weights, so those of a block that somebody asks for are computed once more, in a hook,
a few rows at a time.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.peers.registry import full_precision
from homunculus.peers.tokens import BOTH

ROWS = 256  # of an attention table that are held at a time: whole, one of 16384 patches takes 16 GiB


class Looks(NamedTuple):
    """Of one image, or of a batch: its leaves' keys, and how much they are looked at, of size 0 where nobody asks."""

    keys: Float[Tensor, "*b leaves d"]
    late: Float[Tensor, "*b _"]
    early: Float[Tensor, "*b _"]


class Watched:
    """What was noted while a tower ran, all images end to end, in reading order."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.attention: dict[str, Tensor] = {}

    def of_images(self, leaves: Sequence[int]) -> list[Looks]:
        """The share of each image."""
        assert self.keys is not None  # the tower has run
        keys, nothing = self.keys.split(list(leaves)), [self.keys.new_zeros(0)] * len(leaves)
        late, early = (self.attention[when].split(list(leaves)) if when in self.attention else nothing for when in BOTH)
        return [Looks(*own) for own in zip(keys, late, early, strict=True)]


@contextmanager
def watched(
    visual: Any, image_grid_thw: Int64[Tensor, "images 3"], leaves: Sequence[int], attention: Collection[str]
) -> Iterator[Watched]:
    """While this lasts, the next run of the tower on these images is noted, its attention only in the blocks asked for:
    the late one, the early one, both or neither."""
    found, part = Watched(), visual.spatial_merge_unit
    back = _reading_order(visual, image_grid_thw)

    def note(module: Any, args: tuple, kwargs: dict[str, Any], when: str) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        query, key, _ = module.qkv(hidden).unflatten(1, (3, module.num_heads, -1)).unbind(1)  # [patches, heads, d]
        if when == "late":  # keys not yet turned by their places, the mean of a leaf's patches
            found.keys = key.flatten(1).unflatten(0, (-1, part)).mean(1)[back]
        if when in attention:
            library = sys.modules[type(module).__module__]
            turned = library.apply_rotary_pos_emb_vision(query, key, *kwargs["position_embeddings"])
            queries, keys = (one.split([count * part for count in leaves]) for one in turned)
            each = [received(q, k, module.scaling) for q, k in zip(queries, keys, strict=True)]
            found.attention[when] = torch.cat(each).unflatten(0, (-1, part)).sum(1)[back]

    full = getattr(visual, "fullatt_block_indexes", range(len(visual.blocks)))
    hooks = []
    for when, block in (("early", min(full)), ("late", max(full))):
        if when == "early" and when not in attention:
            continue  # of the late one there are keys as well
        own = visual.blocks[block].attn

        def hook(module: Any, args: tuple, kwargs: dict[str, Any], when: str = when) -> None:
            note(module, args, kwargs, when)

        hooks.append(own.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield found
    finally:
        for one in hooks:
            one.remove()


def _reading_order(visual: Any, image_grid_thw: Int64[Tensor, "images 3"]) -> Tensor | slice:
    """Where each leaf lies among those the tower has, which Qwen2.5-VL sorts by window."""
    if not hasattr(visual, "fullatt_block_indexes"):
        return slice(None)
    from transformers.vision_utils import get_vision_window_index

    sides = visual.spatial_merge_size, visual.window_size, visual.patch_size
    return get_vision_window_index(image_grid_thw, *sides)[0].argsort().to(image_grid_thw.device)


@torch.no_grad()
def received(
    query: Float[Tensor, "patches heads d"], key: Float[Tensor, "patches heads d"], scaling: float
) -> Float[Tensor, "patches"]:
    """How much all patches of an image look at each: the mean over patches and heads, sum 1.

    >>> query, key = torch.ones(3, 1, 2), torch.tensor([[[0.0, 0.0]], [[9.0, 0.0]], [[0.0, 0.0]]])
    >>> received(query, key, scaling=1.0).round(decimals=3).tolist()
    [0.0, 1.0, 0.0]
    """
    with full_precision(query.device.type):
        query, key = (part.float().transpose(0, 1) for part in (query, key))  # [heads, patches, d]
        total = torch.zeros(key.shape[1], device=key.device)
        for rows in query.split(ROWS, dim=1):
            total += (rows @ key.mT * scaling).softmax(-1).mean(0).sum(0)
        return total / key.shape[1]
