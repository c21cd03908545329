"""Image + Allocation to patches: read each cell's pixels, average, write one leaf-sized patch."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.errors import ImageError
from homunculus.kernels import reference
from homunculus.structures import Allocation, PackedAllocation, rectangular


def sample(
    images: Shaped[Tensor, "b 3 h w"], allocation: Allocation | PackedAllocation
) -> Float[Tensor, "*cells 3 leaf leaf"]:
    """The patch of every cell of a batch of images of one size, uint8 or float in [0, 1]; patches are float in [0, 1].

    `[B, N, 3, leaf, leaf]`, or `[M, 3, leaf, leaf]` for a `PackedAllocation`. Averages are taken over sRGB code values.
    Differentiable in float images and in boxes that ask for it.

    >>> import homunculus, torch
    >>> images = torch.randint(0, 256, (2, 3, 480, 640), dtype=torch.uint8)
    >>> allocation = homunculus.allocate(torch.rand(2, 30, 40), 100, "uniform", image_size=(640, 480))
    >>> sample(images, allocation).shape
    torch.Size([2, 100, 3, 16, 16])
    """
    b, _, h, w = images.shape
    if allocation.image_sizes != ((w, h),) * b:
        raise ImageError(
            f"{b} images of {w}x{h} pixels do not match an allocation made for {sorted(set(allocation.image_sizes))} "
            f"({len(allocation)} of them): sample the images that were allocated"
        )
    if isinstance(allocation, PackedAllocation):
        return _sample_packed(images, allocation)
    if images.device.type == "cpu" and b > 1:  # a batch buys a CPU nothing and costs it its caches
        return torch.cat([sample(images[i : i + 1], allocation.select([i])) for i in range(b)])
    if allocation.kind == "rotated":
        return reference.sample_rotated(images, allocation.boxes, allocation.angle, allocation.leaf)
    return _sample_boxes(images, allocation.boxes, allocation.levels, allocation.leaf, _from_mips(allocation))


def _from_mips(allocation: Allocation | PackedAllocation) -> bool:
    """Whether the cells are whole blocks of pixels, which a mip holds ready."""
    leaf = allocation.leaf
    exact = all(
        (gw * leaf, gh * leaf) == size for (gw, gh), size in zip(allocation.grids, allocation.image_sizes, strict=True)
    )
    return allocation.kind == "dyadic" and exact and not allocation.boxes.requires_grad


def _sample_boxes(images: Tensor, boxes: Tensor, levels: Tensor, leaf: int, from_mips: bool) -> Tensor:
    if from_mips:
        return reference.sample_dyadic(images, levels.round().long(), boxes[..., :2].round().long(), leaf)
    return reference.sample_boxes(images, boxes, leaf)


def _sample_packed(images: Tensor, packed: PackedAllocation) -> Float[Tensor, "m 3 leaf leaf"]:
    if len(images) == 1:
        return sample(images, rectangular(packed))[0]
    if images.device.type == "cpu" or packed.kind == "rotated":
        return torch.cat([sample(images[i : i + 1], own)[0] for i, own in enumerate(packed.unpack())])
    return _sample_side_by_side(images, packed)


def _sample_side_by_side(images: Tensor, packed: PackedAllocation) -> Float[Tensor, "m 3 leaf leaf"]:
    """How many cells an image has is known to the device alone, so all images become one wide image with M cells."""
    h, w = images.shape[-2:]
    # Wide enough apart for no block of a mip to lie in two images.
    block = packed.leaf << max(0, (min(h, w) // packed.leaf).bit_length() - 1) if _from_mips(packed) else 1
    pitch = -(-w // block) * block
    wide = torch.nn.functional.pad(images, (0, pitch - w)).permute(1, 2, 0, 3).flatten(2)[None]
    cell = torch.arange(packed.boxes.shape[0], dtype=torch.int32, device=images.device)
    image = torch.searchsorted(packed.offsets[1:].contiguous(), cell, right=True)
    shift = torch.stack((image * pitch, torch.zeros_like(image)), dim=1).repeat(1, 2)
    boxes = packed.boxes.double() + shift  # float32 has not the digits for the far end
    return _sample_boxes(wide, boxes[None], packed.levels[None], packed.leaf, _from_mips(packed))[0]
