"""Which implementation does the work: the fastest here that gives the reference's result, unless one is named.

    HOMUNCULUS_KERNELS=reference    plain torch, any device, the definition of correct
    HOMUNCULUS_KERNELS=triton       fused kernels; CUDA devices, Python package triton
    HOMUNCULUS_KERNELS=texture      CUDA's texture units; hardware filtering with 8-bit weights, so not the same bits

Left to itself this takes Triton on a CUDA device for whatever it has kernels for, and the reference for the rest:
rotated cells, float64, gradients in boxes, CPUs. A CUDA device without Triton gets one warning that says what is
missing. A name that cannot be honoured is an error, never another implementation.
"""

import importlib.util
import os
import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int32, Shaped
from torch import Tensor

from homunculus.errors import KernelError
from homunculus.kernels import plain

ENVIRONMENT = "HOMUNCULUS_KERNELS"
IMPLEMENTATIONS = ("reference", "triton", "texture")

_HAS_TRITON = importlib.util.find_spec("triton") is not None  # looked for, not imported: that takes a second
_warned: set[str] = set()


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
    """The patch of every cell, value * scale + shift for each channel, values in [0, 1].

    `kind` is "dyadic" (whole blocks of pixels at multiples of their own side), "box" or "rotated". Cells are `[B, N]`,
    or `[M]` with `offsets`: image i owns cells offsets[i]:offsets[i+1].

    >>> images, boxes = torch.rand(1, 3, 32, 32), torch.tensor([[[4.5, 0.0, 20.0, 32.0]]])
    >>> sample_cells(images, boxes, torch.zeros(1, 1), leaf=16, kind="box", dtype=torch.bfloat16).dtype
    torch.bfloat16
    """
    name = forced() or ("triton" if _has_kernels(images, boxes, kind, dtype) and use_triton(images.device) else None)
    implementation = plain.sample_cells
    if name == "triton" and use_triton(images.device):
        from homunculus.kernels import triton_ops

        implementation = triton_ops.sample_cells
    elif name == "texture":
        from homunculus.kernels import texture

        implementation = texture.sample_cells
    return implementation(
        images, boxes, angle, leaf=leaf, kind=kind, offsets=offsets, dtype=dtype, scale=scale, shift=shift
    )


def _has_kernels(images: Tensor, boxes: Tensor, kind: str, dtype: torch.dtype) -> bool:
    """Whether Triton gives the reference's result for these."""
    return (
        kind != "rotated"
        and not boxes.requires_grad
        and images.dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
        and dtype in (torch.float16, torch.bfloat16, torch.float32)
    )


def forced() -> str | None:
    """The implementation that the environment names, or None.

    >>> os.environ["HOMUNCULUS_KERNELS"] = "reference"
    >>> forced()
    'reference'
    >>> del os.environ["HOMUNCULUS_KERNELS"]
    """
    name = os.environ.get(ENVIRONMENT) or None
    if name is not None and name not in IMPLEMENTATIONS:
        raise KernelError(f"{ENVIRONMENT}={name} names no implementation: use one of {', '.join(IMPLEMENTATIONS)}")
    return name


def use_triton(device: torch.device) -> bool:
    """Whether Triton kernels are to run for tensors on this device; an error where they are forced and cannot.

    >>> use_triton(torch.device("cpu"))
    False
    """
    name = forced()
    missing = triton_is_missing()
    if name == "triton":
        if missing is None and device.type != "cuda" and not _interpreted():
            missing = f"the tensors are on the {device.type.upper()}: move them to a CUDA device"
        if missing is not None:
            raise KernelError(f"{ENVIRONMENT}=triton, but {missing}")
        return True
    if name == "reference" or device.type != "cuda":
        return False
    if missing is not None:
        _warn_once(f"homunculus runs plain torch on {device}, many times slower than it could: {missing}")
    return missing is None


def triton_is_missing() -> str | None:
    """What keeps Triton from running, and the fix; None if nothing does."""
    return None if _HAS_TRITON else "Triton is not installed: pip install 'homunculus[kernels]'"


def texture_is_missing(device: torch.device) -> str | None:
    """What keeps CUDA's texture units out of reach, and the fix; None if nothing does."""
    from homunculus.kernels import texture

    return texture.missing(device)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=2)
