"""The reference as an implementation: the definitions of reference.py behind the signature that all share."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int32, Shaped
from torch import Tensor

from homunculus.kernels import reference

ROTATED = 1 << 14  # turned cells that a GPU reads together: sixteen places for each pixel, in doubles, take 13 GiB


def sample_cells(
    images: Shaped[Tensor, "b 3 h w"],
    boxes: Float[Tensor, "*cells 4"],
    angle: Float[Tensor, "*cells"],
    *,
    leaf: int,
    kind: str,
    offsets: Int32[Tensor, "images_plus_1"] | None = None,
    dtype: torch.dtype = torch.float32,
    scale: Sequence[float] = (1.0, 1.0, 1.0),
    shift: Sequence[float] = (0.0, 0.0, 0.0),
) -> Float[Tensor, "*cells 3 leaf leaf"]:
    """`kernels.sample_cells` in plain torch, on any device; differentiable in float images and in boxes.

    >>> images, boxes = torch.rand(1, 3, 32, 32), torch.tensor([[[0.0, 0.0, 32.0, 32.0]]])
    >>> sample_cells(images, boxes, torch.zeros(1, 1), leaf=16, kind="dyadic").shape
    torch.Size([1, 1, 3, 16, 16])
    """
    if offsets is None:
        patches = _sample_batch(images, boxes, angle, leaf, kind)
    elif len(images) == 1:
        patches = _sample(images, boxes[None], angle[None], leaf, kind)[0]
    elif images.device.type == "cpu" or kind == "rotated":
        bounds = offsets.tolist()
        own = [slice(*bounds[i : i + 2]) for i in range(len(images))]
        parts = [_sample(images[i : i + 1], boxes[None, s], angle[None, s], leaf, kind)[0] for i, s in enumerate(own)]
        patches = torch.cat(parts)
    else:
        patches = _sample_side_by_side(images, boxes, offsets, leaf, kind)
    if tuple(scale) != (1.0, 1.0, 1.0) or tuple(shift) != (0.0, 0.0, 0.0):
        colours = [torch.stack([patches.new_full((1, 1), v) for v in values]) for values in (scale, shift)]
        patches = patches * colours[0] + colours[1]
    return patches.to(dtype)


def together(device: str, kind: str, cells: int) -> int | None:
    """How many images of so many cells to sample at once; None is all of them.

    >>> together("cpu", "box", 273), together("cuda", "rotated", 273), together("cuda", "box", 273)
    (1, 60, None)
    """
    if device == "cpu":  # a batch buys a CPU nothing and costs it its caches
        return 1
    return max(1, ROTATED // max(1, cells)) if kind == "rotated" else None


def _sample_batch(images: Tensor, boxes: Tensor, angle: Tensor, leaf: int, kind: str) -> Tensor:
    each = together(images.device.type, kind, boxes.shape[1])
    if each is None or each >= len(images):
        return _sample(images, boxes, angle, leaf, kind)
    some = (slice(i, i + each) for i in range(0, len(images), each))
    return torch.cat([_sample(images[i], boxes[i], angle[i], leaf, kind) for i in some])


def _sample(images: Tensor, boxes: Tensor, angle: Tensor, leaf: int, kind: str) -> Tensor:
    if kind == "rotated":
        return reference.sample_rotated(images, boxes, angle, leaf)
    if kind == "box" or boxes.requires_grad:
        return reference.sample_boxes(images, boxes, leaf)
    levels = ((boxes[..., 2] - boxes[..., 0]) / leaf).log2().round().long()
    return reference.sample_dyadic(images, levels, boxes[..., :2].round().long(), leaf)


def _sample_side_by_side(images: Tensor, boxes: Tensor, offsets: Tensor, leaf: int, kind: str) -> Tensor:
    """How many cells an image has is known to the device alone, so all images become one wide image with M cells."""
    h, w = images.shape[-2:]
    # Wide enough apart for no block of a mip to lie in two images.
    block = leaf << max(0, (min(h, w) // leaf).bit_length() - 1) if kind == "dyadic" else 1
    pitch = -(-w // block) * block
    wide = torch.nn.functional.pad(images, (0, pitch - w)).permute(1, 2, 0, 3).flatten(2)[None]
    cell = torch.arange(boxes.shape[0], dtype=torch.int32, device=images.device)
    image = torch.searchsorted(offsets[1:].contiguous(), cell, right=True)
    shift = torch.stack((image * pitch, torch.zeros_like(image)), dim=1).repeat(1, 2)
    moved = boxes.double() + shift  # float32 has not the digits for the far end
    return _sample(wide, moved[None], moved[None, :, 0], leaf, kind)[0]
