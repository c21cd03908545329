"""Exact area resampling: every output pixel is the mean of the input over its own footprint, fractions included.

The input is piecewise constant on its pixels, so the operation preserves constants and the mean, and area averages
over nested footprints compose: resampling to a grid and pooling it equals resampling to the coarse grid directly.
Rows and columns are weighted sums of a few taps, element by element, so an image's bits do not depend on its batch
mates.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, reduce

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.geometry import Size

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


def halve(x: Float[Tensor, "*batch h w"]) -> Float[Tensor, "*batch h2 w2"]:
    """The mean of every 2x2 block, or of the pixels that exist where an odd side cuts it.

    >>> halve(torch.tensor([[[0.0, 2.0, 7.0]]]))
    tensor([[[1., 7.]]])
    """
    return F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)


def area_resample(
    x: Shaped[Tensor, "*batch h w"], size: Size, rows: tuple[int, int] | None = None
) -> Float[Tensor, "*batch h2 w2"]:
    """`x` resampled to `size` = (width, height) by exact area averages; integers and half precision become float32.

    `rows` = (first, last+1) computes only those output rows: the way to walk a large image in strips.

    >>> area_resample(torch.tensor([[0.0, 3.0, 6.0]]), (2, 1))
    tensor([[1., 5.]])
    """
    h, w = x.shape[-2:]
    rows = rows or (0, size[1])
    top, bottom = input_rows(h, size[1], rows)
    return resample_span(x[..., top:bottom, :], (w, h), size, rows)


def input_rows(h: int, height: int, rows: tuple[int, int]) -> tuple[int, int]:
    """The input rows (of h) under these output rows (of `height`)."""
    return rows[0] * h // height, -(-rows[1] * h // height)


def resample_span(
    x: Shaped[Tensor, "*batch h w"], whole: Size, size: Size, rows: tuple[int, int]
) -> Float[Tensor, "*batch h2 w2"]:
    """Output rows of the resampling of an image of `whole` size, of which `x` holds just the input rows it takes."""
    (w, h), (width, height) = whole, size
    top, bottom = input_rows(h, height, rows)
    x = as_float(x)
    if height != h:
        index, weight = area_taps(h, height, x.device)
        index = (index[slice(*rows)] - top).clamp(max=bottom - top - 1)
        x = _resample_axis(x, x.ndim - 2, index, weight[slice(*rows)])
    if width != w:
        x = _resample_axis(x, x.ndim - 1, *area_taps(w, width, x.device))
    return x


def area_resample_in_strips(x: Shaped[Tensor, "*batch h w"], size: Size) -> Float[Tensor, "*batch h2 w2"]:
    """`area_resample`, the input turned into floats strip by strip: for large images of few bits.

    >>> area_resample_in_strips(torch.full((3, 100, 70), 51, dtype=torch.uint8), (7, 5)).round().unique().tolist()
    [51.0]
    """
    return torch.cat([area_resample(x, size, rows) for rows in strip_rows(x.shape, size, device=x.device)], dim=-2)


def strip_rows(
    shape: Sequence[int], size: Size, unit: int = 1, device: torch.device | str = "cpu"
) -> list[tuple[int, int]]:
    """Ranges of output rows, each a multiple of `unit` rows, such that a float32 strip stays within `STRIP_BYTES`.

    `shape` is the input's, [..., h, w]; `size` the output's (width, height).

    >>> strip_rows((1, 3, 1024, 4096), (4096, 1024), unit=256)
    [(0, 256), (256, 512), (512, 768), (768, 1024)]
    """
    width, height = size
    row_bytes = 4 * math.prod(shape[:-2]) * max(width, shape[-1] * shape[-2] / height)
    limit = STRIP_BYTES.get(torch.device(device).type, STRIP_BYTES["cuda"])
    step = max(1, int(limit / row_bytes) // unit) * unit
    return [(start, min(start + step, height)) for start in range(0, height, step)]
