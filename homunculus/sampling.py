"""Image + Allocation to patches: read each cell's pixels, average, write one leaf-sized patch."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.errors import ImageError
from homunculus.kernels.dispatch import sample_cells
from homunculus.structures import Allocation, PackedAllocation

PATCH_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def sample(
    images: Shaped[Tensor, "b 3 h w"],
    allocation: Allocation | PackedAllocation,
    *,
    dtype: torch.dtype | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Float[Tensor, "*cells 3 leaf leaf"]:
    """The patch of every cell of a batch of images of one size, uint8 or float in [0, 1]; patches are float in [0, 1].

    `[B, N, 3, leaf, leaf]`, or `[M, 3, leaf, leaf]` for a `PackedAllocation`. Averages are taken over sRGB code values.
    `mean` and `std`, three numbers each, normalise as an encoder wants it, (patch - mean) / std; `dtype` is that of the
    patches (default float32; float64 for float64 images). Both cost nothing extra on a GPU, where one fused kernel does
    all of it. Differentiable in float images and in boxes that ask for it; kernels/dispatch.py says what runs where.

    >>> import homunculus, torch
    >>> images = torch.randint(0, 256, (2, 3, 480, 640), dtype=torch.uint8)
    >>> allocation = homunculus.allocate(torch.rand(2, 30, 40), 100, "uniform", image_size=(640, 480))
    >>> sample(images, allocation).shape
    torch.Size([2, 100, 3, 16, 16])
    >>> sample(images, allocation, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), dtype=torch.bfloat16).dtype
    torch.bfloat16
    """
    b, _, h, w = images.shape
    if allocation.image_sizes != ((w, h),) * b:
        raise ImageError(
            f"{b} images of {w}x{h} pixels do not match an allocation made for {sorted(set(allocation.image_sizes))} "
            f"({len(allocation)} of them): sample the images that were allocated"
        )
    scale, shift = _colours(mean, std)
    default = torch.float64 if images.dtype == torch.float64 else torch.float32
    if dtype is not None and dtype not in PATCH_TYPES:
        raise ImageError(f"patches are float16, bfloat16, float32 or float64, not {dtype}")
    return sample_cells(
        images,
        allocation.boxes,
        allocation.angle,
        leaf=allocation.leaf,
        kind="box" if allocation.kind == "dyadic" and not _pixel_exact(allocation) else allocation.kind,
        offsets=allocation.offsets if isinstance(allocation, PackedAllocation) else None,
        dtype=dtype or default,
        scale=scale,
        shift=shift,
    )


def _pixel_exact(allocation: Allocation | PackedAllocation) -> bool:
    """Whether a leaf is leaf x leaf whole pixels, so that dyadic cells are whole blocks."""
    pairs = zip(allocation.grids, allocation.image_sizes, strict=True)
    return all((gw * allocation.leaf, gh * allocation.leaf) == size for (gw, gh), size in pairs)


def _colours(mean: Sequence[float] | None, std: Sequence[float] | None) -> tuple[list[float], list[float]]:
    """(value - mean) / std as value * scale + shift."""
    means, stds = [list(map(float, given)) for given in (mean or (0.0,) * 3, std or (1.0,) * 3)]
    if len(means) != 3 or len(stds) != 3 or not all(s > 0 for s in stds):
        raise ImageError(f"mean and std are three numbers each, std above 0, got {mean=} and {std=}")
    return [1 / s for s in stds], [-m / s for m, s in zip(means, stds, strict=True)]
