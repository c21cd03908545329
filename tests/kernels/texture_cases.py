"""What the tests of texture sampling share, emulated or on a GPU: images, boxes, comparison with the reference."""

import torch
from torch import Tensor

from homunculus.kernels import reference
from homunculus.kernels.texture import depth_for
from homunculus.kernels.texture_arrays import ArrayShape, Precision, Reading
from homunculus.kernels.texture_bound import texture_error_bound

SIZES = [(61, 67), (1, 1), (1, 300), (130, 97), (64, 64)]  # height, width
DTYPES = [torch.uint8, torch.float32, torch.float16, torch.bfloat16]
# reads a side and filter; the first is the definition
READINGS = [(4, "bilinear"), (1, "trilinear"), (3, "bilinear"), (2, "trilinear"), (1, "bilinear")]


def noise(dtype: torch.dtype, *shape: int, contrast: float = 1.0) -> Tensor:
    """Values in 0.5 -+ contrast / 2: whatever is misplaced by a fraction of a pixel shows."""
    values = 0.5 + (torch.rand(shape) - 0.5) * contrast
    return (values * 255).round().to(torch.uint8) if dtype == torch.uint8 else values.to(dtype)


def any_boxes(batch: int, count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Boxes of every size and aspect, some outside, the first the whole image; and angles of any number of turns."""
    size = torch.tensor([width, height])
    corners = (torch.rand(batch, count, 2) * 1.4 - 0.3) * size
    sides = size * torch.exp(torch.rand(batch, count, 2) * 5 - 4.5) + 0.01
    boxes = torch.cat((corners, corners + sides), dim=-1)
    boxes[:, 0] = torch.cat((torch.zeros(2), size))
    return boxes, torch.randn(batch, count) * 4


def blocks(batch: int, height: int, width: int, leaf: int) -> Tensor:
    """Every dyadic cell of the image, `[batch, n, 4]`."""
    found = []
    for level in range(max(1, min(height, width) // leaf).bit_length()):
        side = leaf << level
        rows, columns = range(0, height - side + 1, side), range(0, width - side + 1, side)
        found += [[x, y, x + side, y + side] for y in rows for x in columns]
    return torch.tensor(found, dtype=torch.float32).expand(batch, -1, -1)


def precisions(dtype: torch.dtype) -> list[Precision]:
    return ["byte", "half"] if dtype == torch.uint8 else ["half"]


def expected(images: Tensor, boxes: Tensor, angle: Tensor | None, reading: Reading) -> Tensor:
    """By the definition, in float64."""
    if reading.filter == "point":
        levels = ((boxes[..., 2] - boxes[..., 0]) / reading.leaf).log2().round().long()
        patches = reference.sample_dyadic(images, levels, boxes[..., :2].long(), reading.leaf)
    else:
        turn = torch.zeros_like(boxes[..., 0]) if angle is None else angle
        how = {"reads": reading.reads, "trilinear": reading.filter == "trilinear"}
        patches = reference.sample_rotated(images, boxes, turn, reading.leaf, **how)
    colours = [
        torch.tensor(given, dtype=torch.float64, device=images.device) for given in (reading.scale, reading.shift)
    ]
    return patches.double() * colours[0][:, None, None] + colours[1][:, None, None]


def assert_within_bound(
    found: Tensor,
    images: Tensor,
    boxes: Tensor,
    angle: Tensor | None,
    reading: Reading,
    precision: Precision,
) -> None:
    h, w = images.shape[-2:]
    values = images.double() / (255 if images.dtype == torch.uint8 else 1)
    contrast = (values.max() - values.min()).item()  # no two texels of any mip differ by more
    shape = ArrayShape.holding((w, h), 1, depth_for((w, h), reading), precision)
    bound = texture_error_bound(
        precision,
        dyadic=reading.filter == "point",
        trilinear=reading.filter == "trilinear",
        reads=reading.reads,
        contrast=contrast,
        between=contrast,
        longest=max(shape.size),
        dtype=found.dtype,
        scale=max(map(abs, reading.scale)),
        shift=max(map(abs, reading.shift)),
    )
    error = (found.double() - expected(images, boxes, angle, reading)).abs().max().item()
    assert error <= bound, f"off by {error:.2e}, at most {bound:.2e} is allowed: {reading} {precision} {images.shape}"
