"""What every kernel is measured against: patches as dense weighted sums, patch = down @ image @ across^T.

In float64 this is the truth, independent of the reference's summed-area tables. In float32 it is what plain torch makes
of the same arithmetic, and sets the tolerance: a kernel's error may be at most twice that.
"""

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = {"uint8": torch.uint8, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def shares(low: Tensor, high: Tensor, extent: int, leaf: int, precision: torch.dtype) -> Tensor:
    """[..., leaf, extent]: which share of each patch pixel lies over each image pixel; the border owns all outside."""
    low, high = low.to(precision)[..., None, None], high.to(precision)[..., None, None]
    patch = torch.arange(leaf, device=low.device, dtype=precision)[:, None]
    start, stop = low + (high - low) * patch / leaf, low + (high - low) * (patch + 1) / leaf
    pixel = torch.arange(extent, dtype=precision, device=low.device)
    begin, end = pixel.clone(), pixel + 1
    begin[0], end[-1] = -torch.inf, torch.inf
    return (torch.minimum(stop, end) - torch.maximum(start, begin)).clamp(min=0) / (stop - start)


def dense_patches(images: Tensor, boxes: Tensor, leaf: int, precision: torch.dtype = torch.float64) -> Tensor:
    """[B, N, 3, leaf, leaf], all arithmetic in `precision`."""
    h, w = images.shape[-2:]
    across = shares(boxes[..., 0], boxes[..., 2], w, leaf, precision)
    down = shares(boxes[..., 1], boxes[..., 3], h, leaf, precision)
    pixels = images.to(precision) / (255 if images.dtype == torch.uint8 else 1)
    return torch.einsum("bnjh,bchw,bniw->bncji", down, pixels, across)


def error(found: Tensor, truth: Tensor) -> float:
    assert found.shape == truth.shape and found.isfinite().all()
    return float((found.double() - truth).abs().max())


def assert_as_good_as_torch(found: Tensor, truth: Tensor, torch_at_same_precision: Tensor) -> None:
    """At most twice the error of plain torch, and never asked to beat half a step of the type it is stored in."""
    step = torch.finfo(found.dtype).eps * float(truth.abs().max()) / 2
    assert error(found, truth) <= 2 * max(error(torch_at_same_precision, truth), step)


def picture(dtype: torch.dtype, batch: int, height: int, width: int, layout: str = "planar", seed: int = 0) -> Tensor:
    """A random image in one of the layouts users have."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=generator)
    whole = (whole if dtype == torch.uint8 else (whole / 255).to(dtype)).to(DEVICE)
    match layout:
        case "channels_last":
            return whole.contiguous(memory_format=torch.channels_last)
        case "slice":  # lines begin anywhere
            padded = whole.new_zeros(batch, 3, height + 2, width + 3)
            padded[..., 1:-1, 1:-2] = whole
            return padded[..., 1:-1, 1:-2]
        case "grey":  # one plane seen three times
            return whole[:, :1].expand(-1, 3, -1, -1)
    return whole


def blocks(batch: int, columns: int, lines: int, leaf: int, seed: int = 0) -> Tensor:
    """Every full block of every level over a leaf grid, shuffled: dyadic boxes that overlap in all ways."""
    boxes = [
        (x << level, y << level, x + 1 << level, y + 1 << level)
        for level in range(min(columns, lines).bit_length())
        for y in range(lines >> level)
        for x in range(columns >> level)
    ]
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(boxes), generator=generator) for _ in range(batch)]
    return (torch.tensor(boxes, dtype=torch.float32)[torch.stack(orders)] * leaf).to(DEVICE)


def anywhere(batch: int, count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Boxes of all sizes from under a pixel to the whole image and beyond it, some right on pixel edges."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(batch, count, 2, generator=generator)
    side = 0.5 * 10 ** (2.2 * torch.rand(batch, count, 2, generator=generator)) / 100
    boxes = torch.cat((centre - side, centre + side), dim=-1) * torch.tensor([width, height, width, height])
    boxes[:, ::3] = boxes[:, ::3].round()
    boxes[..., 2:] = torch.maximum(boxes[..., 2:], boxes[..., :2] + 0.25)
    boxes[:, 0] = torch.tensor([0.0, 0.0, width, height])
    return boxes.to(DEVICE)
