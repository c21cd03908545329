"""What texture sampling refuses, each with the way out; nothing here waits for the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from homunculus.errors import ImageError, KernelError
from homunculus.geometry import check_leaf
from homunculus.kernels.texture_arrays import ELEMENTS, Filter, Precision, Reading
from homunculus.kernels.texture_build import INSTEAD, missing


def check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < 1:
        raise ImageError(f"images are [batch, 3, height, width], got {list(images.shape)}")
    if images.dtype not in ELEMENTS:
        raise ImageError(f"textures hold uint8, float16, bfloat16 or float32 images, not {images.dtype}: convert them")
    if images.device.type != "cuda":
        raise KernelError(missing(images.device))
    if images.requires_grad and torch.is_grad_enabled():
        raise KernelError(f"textures have no gradient and these images ask for one: use {INSTEAD}")


def check_cells(
    images: tuple[int, torch.device], boxes: Tensor, angle: Tensor | None, offsets: Tensor | None, dtype: torch.dtype
) -> None:
    """Against how many images there are and where."""
    batch, device = images
    ahead = (batch,) if offsets is None else ()
    if boxes.ndim != len(ahead) + 2 or boxes.shape[-1] != 4 or boxes.shape[:-2] != ahead:
        want = f"[{batch}, cells, 4]" if offsets is None else "[cells, 4]"
        raise KernelError(f"boxes of {batch} images are {want}, got {list(boxes.shape)}")
    if angle is not None and angle.shape != boxes.shape[:-1]:
        raise KernelError(f"every box has one angle: {list(boxes.shape[:-1])}, got {list(angle.shape)}")
    if offsets is not None and (offsets.dtype != torch.int32 or offsets.shape != (batch + 1,)):
        raise KernelError(f"offsets of {batch} images are {batch + 1} int32, got {offsets.dtype} {list(offsets.shape)}")
    tensors = [tensor for tensor in (boxes, angle, offsets) if tensor is not None]
    if any(tensor.device != device for tensor in tensors):
        raise KernelError(f"the images are on {device} and some of boxes, angle and offsets are not: move them there")
    if any(tensor.requires_grad for tensor in tensors) and torch.is_grad_enabled():
        raise KernelError("textures have no gradient and these boxes ask for one: use HOMUNCULUS_KERNELS=reference")
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise KernelError(f"texture patches are float32, float16 or bfloat16, not {dtype}: convert them afterwards")


def checked_reading(
    leaf: int, reads: int, trilinear: bool, dyadic: bool, scale: Sequence[float], shift: Sequence[float]
) -> Reading:
    """
    >>> checked_reading(16, reads=4, trilinear=False, dyadic=True, scale=(1, 1, 1), shift=(0, 0, 0)).filter
    'point'
    """
    check_leaf(leaf)
    if isinstance(reads, bool) or not isinstance(reads, int) or reads < 1:
        raise KernelError(f"reads is how many a side of a patch pixel, at least 1, got {reads!r}: 4 is the default")
    if dyadic and trilinear:
        raise KernelError("dyadic cells are read from one mip and trilinear reads lie between two: choose one")
    if len(scale) != 3 or len(shift) != 3:
        raise KernelError(f"scale and shift are three numbers each, got {len(scale)} and {len(shift)}")
    filter: Filter = "point" if dyadic else "trilinear" if trilinear else "bilinear"
    return Reading(leaf, 1 if dyadic else reads, filter, tuple(scale), tuple(shift))


def checked_precision(images: Tensor, precision: str | None) -> Precision:
    """What was asked for, if it can hold the images; "byte" for uint8 and "half" for floats otherwise."""
    own: Precision = "byte" if images.dtype == torch.uint8 else "half"
    if precision not in (None, "byte", "half"):
        raise KernelError(f"precision is 'byte' or 'half', not {precision!r}")
    if precision == "byte" and own == "half":
        raise KernelError(f"bytes hold uint8 images, not {images.dtype}: use precision='half'")
    return precision or own  # type: ignore[return-value]


def refuse_capture() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise KernelError(f"textures come from a pool and cannot be part of a CUDA graph: use {INSTEAD}")
