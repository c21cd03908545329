"""Image + Allocation to patches: read each cell's pixels, average, write one leaf-sized patch."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.errors import ImageError
from homunculus.kernels import reference
from homunculus.structures import Allocation


def sample(images: Shaped[Tensor, "b 3 h w"], allocation: Allocation) -> Float[Tensor, "b n 3 leaf leaf"]:
    """The patch of every cell of a batch of images of one size, uint8 or float in [0, 1]; patches are float in [0, 1].

    Averages are taken over sRGB code values. Differentiable in float images and in boxes that ask for it.

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
    if images.device.type == "cpu" and b > 1:  # a batch buys a CPU nothing and costs it its caches
        return torch.cat([sample(images[i : i + 1], allocation.select([i])) for i in range(b)])
    leaf = allocation.leaf
    if allocation.kind == "rotated":
        return reference.sample_rotated(images, allocation.boxes, allocation.angle, leaf)
    pixel_exact = all((gw * leaf, gh * leaf) == (w, h) for gw, gh in allocation.grids)
    if allocation.kind == "dyadic" and pixel_exact and not allocation.boxes.requires_grad:
        levels = allocation.levels.round().long()
        return reference.sample_dyadic(images, levels, allocation.boxes[..., :2].round().long(), leaf)
    return reference.sample_boxes(images, allocation.boxes, leaf)
