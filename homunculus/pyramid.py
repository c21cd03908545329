"""Image to Gaussian, Laplacian and mass pyramids.

All of them halve by exact 2x2 blocks. A level is the area average (or sum, or maximum) of the level below, centred on
the same place, never shifted by half a pixel as strided blurs are. On an odd side the last block is clipped: it
averages what exists of it. Upsampling repeats pixels, so a Laplacian band sums to zero inside every block, bands of
different levels are orthogonal, and the energy of the bands below a cell is exactly the squared error of showing that
cell by its own average.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from homunculus.geometry import Size
from homunculus.kernels.resample import area_resample, halve, strip_rows

Reduce = Literal["sum", "max"]


# ---------------------------------------------------------------------------------------------- sums and maxima


def pool_blocks(x: Float[Tensor, "*batch h w"], reduce: Reduce = "sum") -> Float[Tensor, "*batch h2 w2"]:
    """Sum (or maximum) over 2x2 blocks; an odd side is filled up with zeros, which changes neither for x >= 0.

    The order of additions is fixed, (x00+x01)+(x10+x11), so a block never rounds below one of its parts and a flipped
    image gives the flipped result to the last bit.

    >>> pool_blocks(torch.tensor([[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]))
    tensor([[10., 11.]])
    """
    h, w = x.shape[-2:]
    if h % 2 or w % 2:
        x = F.pad(x, (0, w % 2, 0, h % 2))
    add = torch.maximum if reduce == "max" else torch.add
    rows = add(x[..., 0::2], x[..., 1::2])
    return add(rows[..., 0::2, :], rows[..., 1::2, :])


def mass_pyramid(
    density: Float64[Tensor, "b h w"], levels: int, reduce: Reduce = "sum"
) -> tuple[Float64[Tensor, "b _h _w"], ...]:
    """The density and its block sums at levels 0..`levels`: entry L has one value for each cell of level L.

    >>> [level.shape[1:] for level in mass_pyramid(torch.ones(1, 5, 8, dtype=torch.float64), 2)]
    [torch.Size([5, 8]), torch.Size([3, 4]), torch.Size([2, 2])]
    """
    pyramid = [density]
    for _ in range(levels):
        pyramid.append(pool_blocks(pyramid[-1], reduce))
    return tuple(pyramid)


def region_max(pyramid: Sequence[Float64[Tensor, "b _h _w"]], boxes: Shaped[Tensor, "b n 4"]) -> Float64[Tensor, "b n"]:
    """An upper bound of the density inside each box (leaf units), read from one level of a max-pyramid.

    The level is the finest at which the box touches at most 2x2 cells, so the answer costs four reads however large the
    region is (the hierarchical-depth query of rendering). It is exact when the box is made of whole cells of that
    level. The pyramid must reach up to two cells a side; where it does not, the answer is NaN.

    >>> density = torch.zeros(1, 8, 8, dtype=torch.float64); density[0, 5, 6] = 3.0
    >>> levels = mass_pyramid(density, 3, reduce="max")
    >>> region_max(levels, torch.tensor([[[4.0, 4.0, 8.0, 8.0], [0.0, 0.0, 4.0, 8.0]]]))
    tensor([[3., 0.]], dtype=torch.float64)
    """
    first = boxes[..., :2].floor().long()
    last = torch.maximum(boxes[..., 2:].ceil().long() - 1, first)
    answer = torch.full(boxes.shape[:2], torch.nan, dtype=pyramid[0].dtype, device=boxes.device)
    for level in reversed(range(len(pyramid))):
        maxima = pyramid[level]
        h, w = maxima.shape[1:]
        low, high = first >> level, last >> level
        (x0, y0), (x1, y1) = (corner.unbind(-1) for corner in (low, high))
        x0, x1, y0, y1 = x0.clamp(0, w - 1), x1.clamp(0, w - 1), y0.clamp(0, h - 1), y1.clamp(0, h - 1)
        reads = [maxima.flatten(1).gather(1, y * w + x) for y in (y0, y1) for x in (x0, x1)]
        bound = torch.stack(reads).amax(0)
        answer = torch.where(((high - low) <= 1).all(-1), bound, answer)  # finer levels overwrite coarser ones
    return answer


# ------------------------------------------------------------------------------------------- Gaussian and Laplacian


def gaussian_pyramid(image: Float[Tensor, "b c h w"], levels: int) -> list[Float[Tensor, "b c _h _w"]]:
    """The image and its means over 2^L x 2^L blocks, L = 1..`levels`.

    >>> [tuple(level.shape[2:]) for level in gaussian_pyramid(torch.zeros(1, 3, 12, 10), 3)]
    [(12, 10), (6, 5), (3, 3), (2, 2)]
    """
    pyramid = [image]
    for _ in range(levels):
        pyramid.append(halve(pyramid[-1]))
    return pyramid


def double(x: Float[Tensor, "b c h w"], size: Size) -> Float[Tensor, "b c h2 w2"]:
    """Each pixel repeated over its 2x2 block, cut to `size` = (width, height)."""
    return x.repeat_interleave(2, dim=-2).repeat_interleave(2, dim=-1)[..., : size[1], : size[0]]


def laplacian_pyramid(gaussian: Sequence[Float[Tensor, "b c _h _w"]]) -> list[Float[Tensor, "b c _h _w"]]:
    """What each level adds to the one above it; the last entry is the coarsest level itself.

    >>> bands = laplacian_pyramid(gaussian_pyramid(torch.rand(1, 3, 12, 10), 3))
    >>> collapse(bands).shape
    torch.Size([1, 3, 12, 10])
    """
    bands = [fine - double(coarse, (fine.shape[-1], fine.shape[-2])) for fine, coarse in pairwise(gaussian)]
    return [*bands, gaussian[-1]]


def collapse(bands: Sequence[Float[Tensor, "b c _h _w"]]) -> Float[Tensor, "b c h w"]:
    """The image a Laplacian pyramid was made from."""
    image = bands[-1]
    for band in reversed(bands[:-1]):
        image = band + double(image, (band.shape[-1], band.shape[-2]))
    return image


# ---------------------------------------------------------------------------------------- an image on its leaf grid


@dataclass(frozen=True)
class ImagePyramid:
    """An image laid on its leaf grid, and what later stages ask of it. Nothing is computed before it is asked for.

    The fitted image has gw*leaf x gh*leaf pixels; it is walked in strips and never held as floats in one piece.

    >>> pyramid = ImagePyramid(torch.zeros(1, 3, 70, 100, dtype=torch.uint8), grid=(6, 4))
    >>> sorted(pyramid.gaussian), pyramid.gaussian[2].shape, pyramid.energy[0].shape
    ([2, 3, 4, 5, 6, 7], torch.Size([1, 3, 16, 24]), torch.Size([1, 4, 6]))
    """

    images: Shaped[Tensor, "b 3 h w"]
    grid: Size
    leaf: int = 16

    @property
    def fitted_size(self) -> Size:
        return self.grid[0] * self.leaf, self.grid[1] * self.leaf

    @property
    def inner_bands(self) -> int:
        """How many bands fit inside a leaf, which is how often its side can be halved: 4 for 16 pixels, 2 for 28."""
        return (self.leaf & -self.leaf).bit_length() - 1

    @property
    def base_level(self) -> int:
        """The finest Gaussian level kept: 4 to 7 pixels a leaf."""
        return max(0, (self.leaf // 4).bit_length() - 1)

    @property
    def gaussian(self) -> dict[int, Float[Tensor, "b 3 _h _w"]]:
        """Gaussian levels of the fitted image in [0, 1], by level, from `base_level` up to a single pixel."""
        return self._levels[0]

    @property
    def energy(self) -> dict[int, Float[Tensor, "b _h _w"]]:
        """Squared Laplacian bands by level (mean over channels, summed over fitted pixels).

        Band l is what a cell of level l+1 gains by being split. Bands inside a leaf are summed by leaf; coarser ones by
        the smallest cells that hold whole band pixels, which are of level `energy_level(l)`.
        """
        return self._levels[1]

    def energy_level(self, band: int) -> int:
        return max(0, band - self.inner_bands)

    @cached_property
    def _levels(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        gh, top = self.grid[1], (max(self.fitted_size) - 1).bit_length()
        # A strip is 2^s leaf rows, so that s + inner_bands halvings never look outside it.
        strip_leaves = strip_rows(self.images.shape, self.fitted_size, self.leaf, self.images.device)[0][1] // self.leaf
        height = 1 << (strip_leaves.bit_length() - 1)
        local = min(height.bit_length() - 1 + self.inner_bands, top)
        strips = [self._descend(self._fitted(y, min(y + height, gh)), 0, local) for y in range(0, gh, height)]
        gaussian, energy = (
            {level: torch.cat([strip[part][level] for strip in strips], dim=-2) for level in strips[0][part]}
            for part in (0, 1)
        )
        upper_gaussian, upper_energy = self._descend(gaussian[local], local, top)
        return gaussian | upper_gaussian, energy | upper_energy

    def _fitted(self, first: int, last: int) -> Float[Tensor, "b 3 h w"]:
        """Leaf rows first..last-1 of the fitted image, in [0, 1]."""
        strip = area_resample(self.images, self.fitted_size, (first * self.leaf, last * self.leaf))
        return strip if self.images.is_floating_point() else strip / 255

    def _descend(self, x: Tensor, start: int, stop: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """From level `start` to `stop`: the Gaussian levels worth keeping, and the energy of every band passed."""
        gaussian, energy = {start: x}, {}
        for level in range(start, stop):
            gaussian[level + 1] = coarse = halve(x)
            red, green, blue = (x - double(coarse, (x.shape[-1], x.shape[-2]))).square().unbind(1)
            side = (self.leaf << self.energy_level(level)) >> level  # of an energy cell, in pixels of this band
            band = ((red + green) + blue)[:, None] * (4**level / 3)
            energy[level] = F.avg_pool2d(band, side, ceil_mode=True, divisor_override=1).squeeze(1)
            x = coarse
        kept = {level: g for level, g in gaussian.items() if level >= self.base_level or level == stop}
        return kept, energy
