"""The Triton kernels as torch operators: strides and types sorted out, gradients, fake kernels for torch.compile.

`homunculus::pool_cells` and its backward `homunculus::spread_cells` wait for nothing, allocate only their result and
can be captured in a CUDA graph. Images may be uint8, float16, bfloat16 or float32 with any strides; averages are
float32.
"""

import math
from collections.abc import Sequence

import torch
import triton
from jaxtyping import Float, Int32, Shaped
from torch import Tensor

from homunculus.errors import KernelError
from homunculus.kernels.launch import on
from homunculus.kernels.triton_pool import pool_boxes, pool_dyadic, spread_boxes

IMAGE_TYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
PATCH_TYPES = (torch.float16, torch.bfloat16, torch.float32)

# Warps to a program, units in a register tile, programs to a cell: `python -m bench.kernels --tune` tries others.
# Reading words, 64 registers do, and twice as many warps hide the wait for memory.
DYADIC = {"warps": 2, "registers": 256, "limit": 64}
BOXES = {"warps": 1, "parts": 4}
TILE, CHUNK = 64, 128


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
    """`kernels.sample_cells` in Triton: axis-aligned cells, differentiable in float images."""
    if kind == "rotated":
        raise KernelError("Triton has no kernel for rotated cells: use reference or texture")
    if boxes.requires_grad:
        raise KernelError("the Triton kernels have no gradient in the boxes: use reference")
    if images.dtype not in IMAGE_TYPES or dtype not in PATCH_TYPES:
        raise KernelError(f"the Triton kernels know no {images.dtype} images and {dtype} patches: use reference")
    flat = boxes.reshape(-1, 4).contiguous()
    patches = pool_cells(images, flat, offsets, leaf, kind == "dyadic", dtype, list(scale), list(shift))
    return patches.unflatten(0, boxes.shape[:-1])


def dyadic_parts(cells: int, bytes_per_cell: float, columns: int) -> int:
    """Programs to a cell: some 6 KiB each, and no fewer than 2048 in all while there are rows to share out.

    On an H200 this is within a tenth of the best from 1 to 64 images of 1024 to 4096 pixels a side.
    """
    wanted = max(bytes_per_cell / 6144, 2048 / cells, 1.0)
    return min(columns, 1 << round(math.log2(wanted)))


@torch.library.custom_op("homunculus::pool_cells", mutates_args=())
def pool_cells(
    images: Tensor,
    boxes: Tensor,
    offsets: Tensor | None,
    leaf: int,
    dyadic: bool,
    dtype: torch.dtype,
    scale: Sequence[float],
    shift: Sequence[float],
) -> Tensor:
    """Patches `[M, 3, leaf, leaf]` of M cells, equally many for each image or as `offsets` say."""
    batch, _, height, width = images.shape
    cells = boxes.shape[0]
    out = torch.empty((cells, 3, leaf, leaf), dtype=dtype, device=images.device)
    if cells == 0:
        return out
    unit = 255.0 if images.dtype == torch.uint8 else 1.0
    colours = {"scale": tuple(s / unit for s in scale), "shift": tuple(shift)}
    image_pitch, plane_pitch, pitch, pixel = _pitches(images)
    columns = triton.next_power_of_2(leaf)
    shape = {"LEAF": leaf, "COLS": columns, "PIXEL": pixel}
    packing = {"PACKED": offsets is not None, "SPAN": 1 if offsets is None else triton.next_power_of_2(batch)}
    # Bytes are read four at a time where lines begin at words; whole blocks of pixels also where they go RGBRGB...
    by_words = images.dtype == torch.uint8 and leaf % 4 == 0
    interleaved = dyadic and by_words and (plane_pitch, pixel) == (1, 3)
    pitches = (image_pitch, pitch) if interleaved else (image_pitch, plane_pitch, pitch)
    align = _alignment(images, pitches) if pixel == 1 or interleaved else 1
    words = by_words and align % 4 == 0 and (dyadic or width % 4 == 0)
    if interleaved and not words:
        align = 1
    cell_arguments = (images, boxes, boxes if offsets is None else offsets, out, batch, cells // batch, width, height)
    with on(images.device):
        if dyadic:
            parts = dyadic_parts(cells, 3 * images.element_size() * batch * height * width / cells, columns)
            pool_dyadic[(cells * parts,)](
                *cell_arguments,
                *(p // align for p in (image_pitch, plane_pitch, pitch)),
                **colours,
                **shape,
                **packing,
                PARTS=parts,
                WORDS=words,
                ALIGN=align,
                REGISTERS=DYADIC["registers"] if words else 4 * DYADIC["registers"],
                num_warps=DYADIC["warps"],
                maxnreg=DYADIC["limit"] if words else None,
                enable_fp_fusion=True,
            )
        else:
            parts = min(BOXES["parts"], columns)
            pool_boxes[(cells * parts,)](
                *cell_arguments,
                *(p // (4 if words else 1) for p in (image_pitch, plane_pitch, pitch)),
                **colours,
                **shape,
                **packing,
                PARTS=parts,
                WORDS=words,
                num_warps=BOXES["warps"],
                enable_fp_fusion=True,
            )
    return out


@pool_cells.register_fake
def _(images, boxes, offsets, leaf, dyadic, dtype, scale, shift):  # type: ignore[no-untyped-def]
    return images.new_empty((boxes.shape[0], 3, leaf, leaf), dtype=dtype)


@torch.library.custom_op("homunculus::spread_cells", mutates_args=())
def spread_cells(
    gradient: Tensor,
    boxes: Tensor,
    offsets: Tensor | None,
    images_shape: Sequence[int],
    dtype: torch.dtype,
    scale: Sequence[float],
) -> Tensor:
    """The gradient `[B, 3, H, W]` of the images, from that of the patches `[M, 3, leaf, leaf]`."""
    batch, _, height, width = images_shape
    leaf = gradient.shape[-1]
    out = torch.empty(tuple(images_shape), dtype=dtype, device=gradient.device)
    gradient = gradient.contiguous()
    with on(gradient.device):
        spread_boxes[(math.ceil(width / TILE) * math.ceil(height / TILE), batch, 3)](
            gradient,
            boxes,
            boxes if offsets is None else offsets,
            out,
            boxes.shape[0] // batch,
            width,
            height,
            tuple(scale),
            LEAF=leaf,
            COLS=max(16, triton.next_power_of_2(leaf)),  # tl.dot takes no less
            TILE=TILE,
            CHUNK=CHUNK,
            PACKED=offsets is not None,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


@spread_cells.register_fake
def _(gradient, boxes, offsets, images_shape, dtype, scale):  # type: ignore[no-untyped-def]
    return gradient.new_empty(tuple(images_shape), dtype=dtype)


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    images, boxes, offsets, _, _, _, scale, _ = inputs
    ctx.save_for_backward(boxes, offsets)
    ctx.images_shape, ctx.images_dtype, ctx.scale = images.shape, images.dtype, scale


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    boxes, offsets = ctx.saved_tensors
    images = None
    if ctx.needs_input_grad[0]:
        images = spread_cells(gradient, boxes, offsets, list(ctx.images_shape), ctx.images_dtype, ctx.scale)
    return images, None, None, None, None, None, None, None


pool_cells.register_autograd(_backward, setup_context=_remember)


def _pitches(images: Tensor) -> tuple[int, int, int, int]:
    """Elements from one image, plane, line and pixel to the next; axes of length 1 have none that matter."""
    image, plane, line, pixel = (0 if n == 1 else s for n, s in zip(images.shape, images.stride(), strict=True))
    return image, plane, line, pixel or 1


def _alignment(images: Tensor, pitches: Sequence[int]) -> int:
    """The largest power of two of elements, up to 16 bytes, that every line begins at a multiple of."""
    size = images.element_size()
    return math.gcd(16 // size, images.data_ptr() // size, *pitches)
