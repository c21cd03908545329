"""Sampling by CUDA's texture units: a batch becomes layers of one mipmapped array, read with hardware filtering.

What the hardware buys is any box at the price of a dyadic one: any place, angle and aspect, trilinear if asked; and
once the array is filled (`TexturePyramid`), every further look at the same images costs only its reads. What it costs:
images are copied and their mips written first, weights have 8 bits (texture_bound.py), and there are no gradients.

Against the definitions of kernels/reference.py:
  dyadic    one read of the cell's own mip: `sample_dyadic` up to the rounding of that mip; uint8 leaves bit for bit
  rotated   4x4 bilinear reads of a mip: `sample_rotated` up to the error bound
  box       as rotated by nothing: `sample_rotated` at angle 0, NOT the exact area average of `sample_boxes`
A box of more than twice the image's sides reads a finer mip than the definition says, for lack of a coarser one.
"""

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import torch
from jaxtyping import Float, Int32, Shaped
from torch import Tensor

from homunculus.errors import KernelError
from homunculus.geometry import Size, check_leaf
from homunculus.kernels.texture_arrays import MAX_LAYERS, MAX_SIDE, POOL, ArrayShape, MipArray, Precision, Reading
from homunculus.kernels.texture_build import INSTEAD, missing
from homunculus.kernels.texture_checks import (
    check_cells,
    check_images,
    checked_precision,
    checked_reading,
    refuse_capture,
)

__all__ = ["TexturePyramid", "mip_depth", "missing", "release", "sample_cells"]

CHUNK_BYTES = 1 << 30  # one call fills no larger array: more images take turns in it
KINDS = ("dyadic", "box", "rotated")


def mip_depth(size: Size, leaf: int, reads: int = 1) -> int:
    """The coarsest mip that boxes of up to twice the sides of the image (width, height) need.

    >>> mip_depth((1024, 1024), leaf=16), mip_depth((1024, 1024), leaf=16, reads=4), mip_depth((1, 1), leaf=16)
    (7, 5, 0)
    """
    spacing = 2 * math.sqrt(size[0] * size[1]) / (leaf * reads)
    return min(math.ceil(math.log2(max(1.0, spacing))), (max(size) - 1).bit_length())


def depth_for(size: Size, reading: Reading) -> int:
    """Dyadic cells lie within the image; all others may be twice as large."""
    if reading.filter == "point":
        return max(1, min(size) // reading.leaf).bit_length() - 1
    return mip_depth(size, reading.leaf, reading.reads)


def release() -> None:
    """Give the memory of all idle arrays back to CUDA; waits for the last work on each."""
    POOL.release()


class TexturePyramid:
    """Images `[B, 3, H, W]` and their mips in texture memory: filled once, sampled as often as you like.

    For several looks at the same images: fixation after fixation, question after question. It has the mips that patches
    of `leaf` pixels a side need, or of more. `precision` is "byte" for uint8 images and "half" for all others, unless
    "half" is asked for. Close it, or use it in a `with`: the array goes back to the pool, which `release()` empties.

    >>> with TexturePyramid(images) as pyramid:  # doctest: +SKIP
    ...     first = pyramid.sample(boxes, angle)
    ...     second = pyramid.sample(more_boxes, more_angles, reads=1, trilinear=True)
    """

    def __init__(
        self, images: Shaped[Tensor, "b 3 h w"], *, leaf: int = 16, precision: Precision | None = None
    ) -> None:
        check_images(images)
        refuse_capture()
        if not 1 <= len(images) <= MAX_LAYERS:
            raise KernelError(f"a texture holds 1 to {MAX_LAYERS} images, got {len(images)}: make several pyramids")
        self.batch, self.device, self.leaf = len(images), images.device, check_leaf(leaf)
        self.image_size: Size = (images.shape[3], images.shape[2])
        self.depth = mip_depth(self.image_size, leaf)
        shape = _shape(images, self.batch, self.depth, checked_precision(images, precision))
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            array = POOL.take(shape, stream.cuda_stream)
            self._close = weakref.finalize(self, POOL.give, array)
            array.wait(stream)
            array.fill(images.detach(), stream.cuda_stream)
            array.note(stream, alone=True)
            self._filled = stream.record_event()
        self._array = array

    def sample(
        self,
        boxes: Float[Tensor, "*cells 4"],
        angle: Float[Tensor, "*cells"] | None = None,
        *,
        leaf: int | None = None,
        offsets: Int32[Tensor, "images_plus_1"] | None = None,
        dtype: torch.dtype = torch.float32,
        scale: Sequence[float] = (1.0, 1.0, 1.0),
        shift: Sequence[float] = (0.0, 0.0, 0.0),
        reads: int = 4,
        trilinear: bool = False,
        dyadic: bool = False,
    ) -> Float[Tensor, "*cells 3 leaf leaf"]:
        """Patches of boxes in pixels, turned by `angle` about their centres: `reads` x `reads` reads a patch pixel.

        `trilinear` reads between two mips. `dyadic` promises whole blocks of pixels at multiples of their own side and
        reads each from its own mip. Cells are `[B, N]`, or `[M]` with `offsets`: image i owns offsets[i]:offsets[i+1].
        """
        if not self._close.alive:
            raise KernelError("this TexturePyramid is closed: sample before close(), or make another")
        refuse_capture()
        reading = checked_reading(self.leaf if leaf is None else leaf, reads, trilinear, dyadic, scale, shift)
        check_cells((self.batch, self.device), boxes, angle, offsets, dtype)
        depth = depth_for(self.image_size, reading)
        if depth > self.depth:
            raise KernelError(
                f"patches of {reading.leaf} pixels need mips to level {depth} and this pyramid has {self.depth}: "
                f"make it with TexturePyramid(images, leaf={reading.leaf})"
            )
        patches = _empty(boxes, reading.leaf, dtype)
        boxes, angle, offsets = _plain(boxes, None if dyadic else angle, offsets)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._filled)
            if patches.numel() > 0:
                flat = patches.view(-1, *patches.shape[-3:])
                self._array.sample(flat, boxes, angle, offsets, reading, stream.cuda_stream, images=self.batch)
            self._array.note(stream, alone=False)
        return patches

    def close(self) -> None:
        """Give the array back; whoever gets it next waits for the work queued here."""
        self._close()

    def __enter__(self) -> "TexturePyramid":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    reads: int = 4,
    trilinear: bool = False,
    precision: Precision | None = None,
) -> Float[Tensor, "*cells 3 leaf leaf"]:
    """`kernels.sample_cells` by texture units, arrays taken from a pool; see the top of this file for what differs.

    `reads` and `trilinear` are for boxes; `precision` as in `TexturePyramid`.

    >>> patches = sample_cells(images, boxes, angle, leaf=16, kind="rotated", dtype=torch.bfloat16)  # doctest: +SKIP
    """
    check_images(images)
    if kind not in KINDS:
        raise KernelError(f"cells are one of {', '.join(KINDS)}, not {kind!r}")
    reading = checked_reading(leaf, reads, trilinear, kind == "dyadic", scale, shift)
    check_cells((len(images), images.device), boxes, angle, offsets, dtype)
    how = (leaf, reading.reads, reading.filter, list(reading.scale), list(reading.shift))
    turned = angle if kind == "rotated" else None
    return sample_texture(images, boxes, turned, offsets, *how, dtype, checked_precision(images, precision))


@torch.library.custom_op("homunculus::sample_texture", mutates_args=(), device_types="cuda")
def sample_texture(
    images: Tensor,
    boxes: Tensor,
    angle: Tensor | None,
    offsets: Tensor | None,
    leaf: int,
    reads: int,
    filter: str,
    scale: Sequence[float],
    shift: Sequence[float],
    dtype: torch.dtype,
    precision: str,
) -> Tensor:
    """`sample_cells` after its checks, as torch.compile sees it."""
    refuse_capture()
    patches = _empty(boxes, leaf, dtype)
    if patches.numel() == 0:
        return patches
    reading = Reading(leaf, reads, filter, scale, shift)  # type: ignore[arg-type]  # a schema knows no literals
    depth = depth_for((images.shape[3], images.shape[2]), reading)
    one = _shape(images, 1, depth, precision)  # type: ignore[arg-type]
    layers = min(len(images), MAX_LAYERS, max(1, CHUNK_BYTES // one.bytes))
    boxes, angle, offsets = _plain(boxes, angle, offsets)
    packed = offsets is not None
    with torch.cuda.device(images.device), _lent(_shape(images, layers, depth, one.precision)) as (array, stream):
        for start in range(0, len(images), layers):
            these = slice(start, start + layers)
            array.fill(images[these], stream)
            # Whose a packed cell is only the device knows, so every part of the batch is offered all of them.
            own = slice(None) if packed else these
            flat = patches[own].view(-1, *patches.shape[-3:])
            part = {"images": len(images), "first": start} if packed else {"images": len(images[these])}
            turned = None if angle is None else angle[own]
            array.sample(flat, boxes[own], turned, offsets, reading, stream, **part)
    return patches


@sample_texture.register_fake
def _(images, boxes, angle, offsets, leaf, reads, filter, scale, shift, dtype, precision):  # type: ignore[no-untyped-def]
    return _empty(boxes, leaf, dtype)


@contextmanager
def _lent(shape: ArrayShape) -> Iterator[tuple[MipArray, int]]:
    """An array of the pool for the current stream, which first waits for whatever is still done to it elsewhere."""
    stream = torch.cuda.current_stream()
    array = POOL.take(shape, stream.cuda_stream)
    array.wait(stream)
    try:
        yield array, stream.cuda_stream
    finally:
        array.note(stream, alone=True)
        POOL.give(array)


def _shape(images: Tensor, layers: int, depth: int, precision: Precision) -> ArrayShape:
    size = (images.shape[3], images.shape[2])
    shape = ArrayShape.holding(size, layers, depth, precision, images.device.index)
    if max(shape.size) > MAX_SIDE:
        raise KernelError(f"{size[0]}x{size[1]} pixels exceed a texture's {MAX_SIDE} a side: use {INSTEAD}")
    return shape


def _empty(boxes: Tensor, leaf: int, dtype: torch.dtype) -> Tensor:
    return boxes.new_empty((*boxes.shape[:-1], 3, leaf, leaf), dtype=dtype)


def _plain(boxes: Tensor, angle: Tensor | None, offsets: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Side by side in memory, boxes and angles both float32 or both float64: as the kernel reads them."""
    boxes = (boxes if boxes.dtype in (torch.float32, torch.float64) else boxes.float()).detach().contiguous()
    angle = None if angle is None else angle.detach().to(boxes.dtype).contiguous()
    return boxes, angle, None if offsets is None else offsets.contiguous()
