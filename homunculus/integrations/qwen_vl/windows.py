"""Qwen2.5-VL's window attention for cells of several sizes: a window is a square of cells *of one level* of one image.

Most blocks of that tower attend within windows of 4 x 4 leaves. Cells put into such windows by where they lie would
mostly be alone in them. Each level has windows of its own instead, as the tower would see that level as an image: there
positions count cells of that level, while the blocks with full attention are given true positions. With every leaf kept
there is one level, and both are the stock tower's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.structures import Allocation


def cell_levels(allocation: Allocation) -> Int64[Tensor, "n"]:
    """The level of the grid each cell belongs to: whole numbers, for clipped cells and any boxes too.

    >>> import homunculus
    >>> cell_levels(homunculus.allocate(torch.ones(4, 4), 16, leaf=28)).unique().tolist()
    [0]
    """
    side = (allocation.boxes[0, :, 2:] - allocation.boxes[0, :, :2]).amax(1) / allocation.leaf
    return side.log2().round().clamp(min=0).long()


def window_order(allocations: list[Allocation], side: int) -> tuple[Int64[Tensor, "cells"], Int64[Tensor, "windows"]]:
    """Cells of all images sorted into windows of `side` x `side` cells of one level, and how many each window has."""
    keys = []
    for image, allocation in enumerate(allocations):
        level = cell_levels(allocation)
        place = (allocation.centers[0] / allocation.leaf / torch.exp2(level)[:, None]).floor().long()  # x, y
        window, within = place // side, place % side
        own = torch.full_like(level, image)
        keys.append(torch.stack((own, level, window[:, 1], window[:, 0], within[:, 1], within[:, 0]), dim=1))
    key = torch.cat(keys)
    order = torch.arange(len(key), device=key.device)
    for column in reversed(range(key.shape[1])):  # the last counts least
        order = order[torch.argsort(key[order, column], stable=True)]
    _, counts = torch.unique_consecutive(key[order, :4], dim=0, return_counts=True)
    return order, counts


def level_positions(
    positions: Float[Tensor, "patches 2"], allocation: Allocation, layout: Layout
) -> Float[Tensor, "patches 2"]:
    """Patch positions in patches of each cell's own level."""
    scale = torch.exp2(cell_levels(allocation).float()).repeat_interleave(layout.merge**2)[:, None]
    return (positions + 0.5) / scale - 0.5


@contextmanager
def true_positions(visual: Any, positions: Float[Tensor, "patches 2"], order: Int[Tensor, "cells"]) -> Iterator[None]:
    """While this lasts, blocks with full attention are given these positions instead of those of the windows."""
    embeddings = tuple(
        visual.permute_input_for_window_attn(table, order, seq_len=len(positions))
        for table in visual.rotary_pos_emb(positions.to(visual.dtype), positions)
    )

    def swap(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, kwargs | {"position_embeddings": embeddings}

    full = [visual.blocks[i] for i in visual.fullatt_block_indexes]
    hooks = [block.register_forward_pre_hook(swap, with_kwargs=True) for block in full]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
