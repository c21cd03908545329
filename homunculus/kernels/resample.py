"""Exact area resampling: every output pixel is the mean of the input over its own footprint, fractions included.

The input is piecewise constant on its pixels, so the operation preserves constants and the mean, and area averages
over nested footprints compose: resampling to a grid and pooling it equals resampling to the coarse grid directly.
Rows and columns are weighted sums of a few taps, element by element, so an image's bits do not depend on its batch
mates.
"""

import math
from functools import lru_cache, reduce

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

# How much float32 one strip of rows may take: large images are never turned into floats as a whole. On a CPU a strip
# should stay near the caches (and below what the allocator maps anew each time); a GPU wants few large launches.
STRIP_BYTES = {"cpu": 1 << 24, "cuda": 1 << 30}


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the cached tables outlive whoever asked for them first
def area_taps(n_in: int, n_out: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Input indices and weights `[n_out, taps]` (weights float64, rows sum to 1) of each output pixel along one axis.

    >>> area_taps(3, 2)
    (tensor([[0, 1],
            [1, 2]]), tensor([[0.6667, 0.3333],
            [0.3333, 0.6667]], dtype=torch.float64))
    """
    # Edges are multiples of 1/n_out input pixels: overlaps are integers in that unit, hence exact.
    left = torch.arange(n_out)[:, None] * n_in
    first = left // n_out
    taps = int(((left + n_in - 1) // n_out - first).max()) + 1
    index = first + torch.arange(taps)
    overlap = torch.minimum((index + 1) * n_out, left + n_in) - torch.maximum(index * n_out, left)
    return index.clamp(max=n_in - 1).to(device), (overlap.clamp(min=0).double() / n_in).to(device)


def _resample_axis(x: Tensor, dim: int, index: Tensor, weight: Tensor) -> Tensor:
    shape = [1] * x.ndim
    shape[dim] = -1
    terms = (x.index_select(dim, i) * w.to(x.dtype).reshape(shape) for i, w in zip(index.T, weight.T, strict=True))
    return reduce(torch.add, terms)


def as_float(x: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """float32 and float64 as they are, integers and half precision as float32: nothing is averaged in less."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def area_resample(
    x: Shaped[Tensor, "*batch h w"], size: tuple[int, int], rows: tuple[int, int] | None = None
) -> Float[Tensor, "*batch h2 w2"]:
    """`x` resampled to `size` = (width, height) by exact area averages; integers and half precision become float32.

    `rows` = (first, last+1) computes only those output rows: the way to walk a large image in strips.

    >>> area_resample(torch.tensor([[0.0, 3.0, 6.0]]), (2, 1))
    tensor([[1., 5.]])
    """
    h, w = x.shape[-2:]
    width, height = size
    first, last = rows or (0, height)
    top, bottom = first * h // height, -(-last * h // height)  # the input rows below: only they become floats
    x = x[..., top:bottom, :]
    x = as_float(x)
    if height != h:
        index, weight = area_taps(h, height, x.device)
        index = (index[first:last] - top).clamp(max=bottom - top - 1)
        x = _resample_axis(x, x.ndim - 2, index, weight[first:last])
    if width != w:
        x = _resample_axis(x, x.ndim - 1, *area_taps(w, width, x.device))
    return x


def strip_rows(x: Shaped[Tensor, "*batch h w"], size: tuple[int, int], unit: int) -> list[tuple[int, int]]:
    """Ranges of output rows, each a multiple of `unit` rows, such that a float32 strip stays within `STRIP_BYTES`.

    >>> strip_rows(torch.empty(1, 3, 1024, 4096, dtype=torch.uint8), (4096, 1024), unit=256)
    [(0, 256), (256, 512), (512, 768), (768, 1024)]
    """
    width, height = size
    row_bytes = 4 * math.prod(x.shape[:-2]) * max(width, x.shape[-1] * x.shape[-2] / height)
    strip_bytes = STRIP_BYTES.get(x.device.type, STRIP_BYTES["cuda"])
    step = max(1, int(strip_bytes / row_bytes) // unit) * unit
    return [(start, min(start + step, height)) for start in range(0, height, step)]
