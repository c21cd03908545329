"""A steerable pyramid (Simoncelli and Freeman 1995): an image cut into octaves, each octave into four orientations.

Everything is a mask on the image's spectrum. With r the frequency in octaves above Nyquist, the low pass number c falls
from 1 to 0 over one octave, L_c = cos(pi/2 * clamp(r + c + 1, 0, 1)), and H_c is the sine: L_c^2 + H_c^2 = 1. Then

    high residual   H_0
    scale s         L_s * H_(s+1) * i * sqrt(4/5) * cos^3(theta - theta_k),  k = 0..3
    low residual    L_scales

where theta is the direction of the frequency vector. The squares of all masks add up to 1 at every frequency, so with
orthonormal transforms the pyramid is a tight frame: it keeps the energy, and synthesis is analysis run backwards with
the masks conjugated.

An orientation is that of the *strokes*, k * 45 degrees from the x axis towards y (clockwise as seen, since y is down):
band 0 answers to horizontal strokes, 1 to those that fall to the right (\\), 2 to vertical ones, 3 to those that
rise to the right (/). Brightness changes across them, at theta_k = k * 45 + 90 degrees. Of a grating with strokes at
angle a, the share 4/5 * cos^6(a - k * 45 degrees) is in band k.

Scale s ends at the Nyquist frequency of a grid 2^s times coarser, so it is kept on ceil(n / 2^s) samples a side and
nothing is lost, whether n is even or odd. Sample j lies at pixel j * n / ceil(n / 2^s). Borders wrap around.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Float64
from torch import Tensor

from homunculus.geometry import Size
from homunculus.kernels.resample import area_resample
from homunculus.pyramid import ImagePyramid

STROKES = tuple(k * math.pi / 4 for k in range(4))

LUMA = 0.299, 0.587, 0.114
MARGIN = 16  # mirrored pixels around the image, so that one border does not see the opposite one
QUANTUM = 2.0**-20  # energies are multiples of this: below a fifth of a grey level there is nothing, and ties are ties
MAX_KEPT_PIXELS = 1 << 19  # masks of larger images are made anew: the kept ones take 134 MB at most


class SteerablePyramid(NamedTuple):
    """The residuals and the bands, fine to coarse, the four orientations of each along axis 1."""

    high: Float[Tensor, "b h w"]
    bands: tuple[Float[Tensor, "b 4 _h _w"], ...]
    low: Float[Tensor, "b _h _w"]


def steerable_pyramid(images: Float[Tensor, "b h w"], scales: int, decimate: bool = True) -> SteerablePyramid:
    """The pyramid of grey images, float32 or float64; without `decimate` every band keeps the size of the image.

    >>> pyramid = steerable_pyramid(torch.rand(2, 48, 65), 3)
    >>> [tuple(band.shape) for band in pyramid.bands], tuple(pyramid.low.shape)
    ([(2, 4, 48, 65), (2, 4, 24, 33), (2, 4, 12, 17)], (2, 6, 9))
    """
    whole = images.shape[-1], images.shape[-2]
    spectrum = torch.fft.rfft2(images, norm="ortho")
    sizes = [_coarser(whole, scale if decimate else 0) for scale in range(scales + 1)]
    bands = tuple(_analyse(spectrum, whole, scale, sizes[scale]) for scale in range(scales))
    high, low = _residual_masks(whole, scales, sizes[-1], images.dtype, images.device)
    return SteerablePyramid(
        _to_pixels(spectrum * high, whole), bands, _to_pixels(_crop(spectrum, whole, sizes[-1]) * low, sizes[-1])
    )


def collapse_steerable(pyramid: SteerablePyramid) -> Float[Tensor, "b h w"]:
    """The images a steerable pyramid was made from.

    >>> images = torch.rand(1, 31, 50)
    >>> bool((collapse_steerable(steerable_pyramid(images, 2)) - images).abs().max() < 1e-5)
    True
    """
    size = _size(pyramid.high)
    kind = pyramid.high.dtype, pyramid.high.device
    high, low = _residual_masks(size, len(pyramid.bands), _size(pyramid.low), *kind)
    spectrum = torch.fft.rfft2(pyramid.high, norm="ortho") * high
    spectrum = spectrum + _embed(torch.fft.rfft2(pyramid.low, norm="ortho") * low, _size(pyramid.low), size)
    for scale, band in enumerate(pyramid.bands):
        masks = _band_masks(size, scale, _size(band), *kind)
        oriented = (torch.fft.rfft2(band, norm="ortho") * masks).sum(1) * -1j
        spectrum = spectrum + _embed(oriented, _size(band), size)
    return _to_pixels(spectrum, size)


@torch.no_grad()
def orientation_energy(pyramid: ImagePyramid, scales: int = 2) -> Float64[Tensor, "b 4 gh gw"]:
    """The mean square of each orientation band inside every leaf, over the finest `scales` octaves.

    It looks at the luma of the pyramid's base level, 4 to 7 pixels a leaf: two scales hold the wavelengths from half a
    leaf to about three, so a line of small type counts as one horizontal stroke, not as the letters it is made of.
    Angles are those of the fitted image, which may differ by a few degrees from the original's where sx is not sy.

    >>> image = torch.zeros(1, 3, 128, 128); image[..., 8::16, :] = 1.0  # horizontal rules
    >>> energy = orientation_energy(ImagePyramid(image, (8, 8)))
    >>> energy.shape, int(energy.mean((0, 2, 3)).argmax())
    (torch.Size([1, 4, 8, 8]), 0)
    """
    # One image at a time: a transform of many rounds differently from a transform of one.
    return torch.stack([_leaf_energy(pixels, pyramid.grid, scales) for pixels in pyramid.gaussian[pyramid.base_level]])


def _leaf_energy(pixels: Float[Tensor, "3 h w"], grid: Size, scales: int) -> Float64[Tensor, "4 gh gw"]:
    h, w = pixels.shape[1:]
    red, green, blue = (channel.double() * weight for channel, weight in zip(pixels, LUMA, strict=True))
    rows, columns = _mirrored(h, pixels.device), _mirrored(w, pixels.device)
    framed = (red + green + blue).index_select(0, rows).index_select(1, columns)
    whole = _size(framed)
    spectrum = torch.fft.rfft2(framed, norm="ortho")[None]
    energy = torch.zeros((), dtype=torch.float64, device=pixels.device)
    for scale in range(scales):
        band = _analyse(spectrum, whole, scale, whole)[0, :, MARGIN : MARGIN + h, MARGIN : MARGIN + w]
        energy = energy + area_resample(band * band, grid)
    return (energy / QUANTUM).round() * QUANTUM


def _mirrored(n: int, device: torch.device) -> Tensor:
    """Indices of a row of n pixels with a margin on both sides, reflected as often as a short row needs it."""
    place = torch.arange(-MARGIN, n + MARGIN, device=device) % (2 * n)
    return torch.minimum(place, 2 * n - 1 - place)


# ----------------------------------------------------------------------------------------------------------- spectra


def _size(x: Tensor) -> Size:
    return x.shape[-1], x.shape[-2]


def _coarser(size: Size, scale: int) -> Size:
    return -(-size[0] >> scale), -(-size[1] >> scale)


def _analyse(spectrum: Complex[Tensor, "b h wf"], whole: Size, scale: int, size: Size) -> Float[Tensor, "b 4 _h _w"]:
    masks = _band_masks(whole, scale, size, spectrum.real.dtype, spectrum.device)
    return _to_pixels(_crop(spectrum, whole, size)[:, None] * 1j * masks, size)


def _to_pixels(spectrum: Complex[Tensor, "*b _h _wf"], size: Size) -> Float[Tensor, "*b _h2 _w"]:
    return torch.fft.irfft2(spectrum, s=(size[1], size[0]), norm="ortho")


def _crop(spectrum: Complex[Tensor, "b h wf"], whole: Size, size: Size) -> Complex[Tensor, "b _h2 _wf2"]:
    """The frequencies that a grid of `size` has: rows 0, 1, ... and ..., -2, -1, and the nonnegative columns."""
    if size == whole:
        return spectrum
    height = size[1]
    kept = spectrum[..., : size[0] // 2 + 1]
    return torch.cat((kept[..., : height - height // 2, :], kept[..., whole[1] - height // 2 :, :]), dim=-2)


def _embed(spectrum: Complex[Tensor, "b h wf"], size: Size, whole: Size) -> Complex[Tensor, "b _h2 _wf2"]:
    """A spectrum of `size` among the frequencies of the whole image, zeros elsewhere: the transpose of `_crop`."""
    if size == whole:
        return spectrum
    first, last = spectrum.split((size[1] - size[1] // 2, size[1] // 2), dim=-2)
    columns = whole[0] // 2 - size[0] // 2
    return torch.cat((F.pad(first, (0, columns, 0, whole[1] - size[1])), F.pad(last, (0, columns))), dim=-2)


# ------------------------------------------------------------------------------------------------------------- masks


def _band_masks(
    whole: Size, scale: int, size: Size, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "4 _h _wf"]:
    """The four masks of a scale, without their common factor i, at the frequencies of a grid of `size`."""
    make = _kept_band_masks if size[0] * size[1] <= MAX_KEPT_PIXELS else _kept_band_masks.__wrapped__
    return make(whole, scale, size, dtype, device)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # the masks outlive whoever asked for them first
def _kept_band_masks(
    whole: Size, scale: int, size: Size, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "4 _h _wf"]:
    fx, fy, octave = _frequencies(whole, size, device)
    radial = _low(octave, scale) * _high(octave, scale + 1) * math.sqrt(4 / 5)
    length = torch.where(octave > -torch.inf, torch.exp2(octave), 1.0)
    across = [fy * math.cos(stroke) - fx * math.sin(stroke) for stroke in STROKES]  # |f| cos(theta - theta_k)
    return torch.stack([radial * (component / length) ** 3 for component in across]).to(dtype)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _residual_masks(
    whole: Size, scales: int, size: Size, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, "h _wf"], Float[Tensor, "_h2 _wf2"]]:
    high = _high(_frequencies(whole, whole, device)[2], 0)
    low = _low(_frequencies(whole, size, device)[2], scales)
    return high.to(dtype), low.to(dtype)


def _frequencies(whole: Size, size: Size, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of a grid of `size` over the whole image: the components in units of the image's Nyquist frequency, and the
    length in octaves, 0 at Nyquist and -inf at the constant."""
    (width, height), (w, h) = whole, size
    fx = torch.fft.rfftfreq(w, 1 / w, dtype=torch.float64, device=device) * (2 / width)
    fy = torch.fft.fftfreq(h, 1 / h, dtype=torch.float64, device=device)[:, None] * (2 / height)
    return fx, fy, (fx * fx + fy * fy).log2() / 2


def _low(octave: Tensor, cut: int) -> Tensor:
    return torch.cos((octave + (cut + 1)).clamp(0, 1) * (math.pi / 2))


def _high(octave: Tensor, cut: int) -> Tensor:
    return torch.sin((octave + (cut + 1)).clamp(0, 1) * (math.pi / 2))
