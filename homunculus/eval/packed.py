"""Methods with one budget for a whole batch: images get different counts, padded to the most of them to be read.

What an image is given depends on its batch mates, as nowhere else here: such a method has one budget for the questions
of `GROUP` images, `MATES` in all, always the same ones (see `running.Work`). What is allocated for several such groups
may then be read together, as padding changes nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.allocation import allocate_view
from homunculus.errors import AllocatorError
from homunculus.eval.drawing import EACH
from homunculus.model.encoder import Cells, cells_of
from homunculus.model.vlm import CompactVLM, view_of
from homunculus.peers.variable import Padded
from homunculus.sampling import sample
from homunculus.structures import Allocation, PackedAllocation

MATES = 8
GROUP = MATES // EACH  # images


def allocated_together(
    model: CompactVLM,
    images: Shaped[Tensor, "b 3 h w"],
    density: Float[Tensor, "b dh dw"],
    budget: int,
    allocator: str,
    **options: Any,
) -> list[Allocation]:
    """The cells that each image gets of the budget of all.

    >>> from homunculus.model.config import tiny
    >>> images, density = torch.rand(2, 3, 256, 256), torch.rand(2, 16, 16)
    >>> cells = allocated_together(CompactVLM(tiny()), images, density, 64, "token-bank")
    >>> sum(own.budget for own in cells), padded_cells(images, cells).counts == tuple(own.budget for own in cells)
    (128, True)
    """
    view = view_of(images, density, budget, allocator, leaf=model.config.leaf)
    packed = allocate_view(view, budget, allocator, **options)
    if not isinstance(packed, PackedAllocation):
        raise AllocatorError(f"{allocator} gives every image the same number of cells: nothing is to be padded")
    return packed.unpack()


def groups_of(images: Sequence[str]) -> list[list[int]]:
    """The places of questions that share a budget, by the names of the images they are about.

    >>> groups_of(["scenes/val/0", "scenes/val/1", "scenes/val/1", "scenes/val/2"])
    [[0, 1, 2], [3]]
    """
    groups: dict[int, list[int]] = {}
    for place, name in enumerate(images):
        groups.setdefault(int(name.rpartition("/")[2]) // GROUP, []).append(place)
    return list(groups.values())


def padded_cells(images: Shaped[Tensor, "b 3 h w"], allocations: Sequence[Allocation]) -> Padded:
    """The cells of each image, cut out and padded to the most that one of them has."""
    counts = tuple(allocation.budget for allocation in allocations)
    most, device = max(counts), images.device
    patches = [sample(images[i : i + 1], allocation)[0] for i, allocation in enumerate(allocations)]
    cells = [cells_of(allocation) for allocation in allocations]
    told = Cells(*(torch.stack([_filled(part[0], most) for part in parts]) for parts in zip(*cells, strict=True)))
    real = torch.arange(most, device=device) < torch.tensor(counts).to(device)[:, None]
    whole = torch.stack([_filled(part, most) for part in patches])
    return Padded(whole, told, None if min(counts) == most else real, counts)


def _filled(values: Tensor, count: int) -> Tensor:
    """Zeros behind what there is."""
    return torch.cat((values, values.new_zeros(count - len(values), *values.shape[1:])))
