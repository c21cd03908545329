"""How alike two images are to an eye that looks at one place: structural similarity at the scale of acuity.

SSIM (Wang, Bovik, Sheikh and Simoncelli 2004) compares the mean, the contrast and the pattern of two images in a small
window around every pixel. Every pixel counts the same and all detail counts, also that which an eye looking elsewhere
cannot see. Here both follow acuity, MAR(e) = MAR0 (1 + e / E2):

  scale    at eccentricity e the images are compared where one pixel is one MAR: halved log2(MAR in pixels) times, so
           that finer detail, which nobody sees there, is averaged away in both before they are compared;
  weight   a pixel counts 1 / MAR^2, as many spots as the eye can tell apart in it: the density that `acuity-bins`
           spends tokens by. Where acuity is finer than the pixels there is no more to tell apart than these, and the
           weight stays 1.

What is left out: how sensitive the eye is to contrast below the limit of acuity, colour, and crowding.
"""

import math
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from homunculus.biology.acuity import E2, MAR0, minimum_angle
from homunculus.biology.field import DEGREES, eccentricity_map, pixels_per_degree
from homunculus.errors import ImageError

SIGMA, REACH = 1.5, 5  # of the window, in pixels
STABLE = (0.01**2, 0.03**2)  # for images in [0, 1]
LUMA = (0.299, 0.587, 0.114)


class Alike(NamedTuple):
    """Similarities, 1 where images are the same: over the whole image, and within rings of eccentricity.

    `edges` are the rings' limits in degrees; a ring without pixels has NaN. `plain` is ordinary SSIM there.
    """

    whole: float
    edges: tuple[float, ...]
    rings: tuple[float, ...]
    plain: tuple[float, ...]


def acuity_similarity(
    image: Float[Tensor, "3 h w"],
    other: Float[Tensor, "3 h2 w2"],
    gaze: Float[Tensor, "2"],
    degrees: float = DEGREES,
    edges: tuple[float, ...] = (0, 1, 2, 5, 10, 20, 40),
    e2: float = E2,
) -> Alike:
    """Two images in [0, 1] as seen by an eye that looks at `gaze` (in pixels), the longer side spanning `degrees`.

    >>> page = torch.rand(3, 64, 96)
    >>> seen = acuity_similarity(page, page, torch.tensor([48.0, 32.0]))
    >>> round(seen.whole, 6), [round(ring, 3) for ring in seen.rings]
    (1.0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """
    if image.shape != other.shape:
        raise ImageError(f"images of {_size(image)} and {_size(other)} pixels are not two versions of one: resize one")
    size = image.shape[2], image.shape[1]
    x, y = eccentricity_map(gaze, size, degrees)
    e = (x * x + y * y).sqrt()
    angle = (minimum_angle(e, e2, MAR0) * pixels_per_degree(size, degrees)).clamp(min=1)  # in pixels
    first, second = _luma(image), _luma(other)
    at_acuity = _at_scale(first, second, angle.log2())
    weight = 1 / (angle * angle)
    plain = similarity(first, second)
    inside = [(e >= low) & (e < high) for low, high in pairwise(edges)]
    rings = tuple(_mean(at_acuity, weight * ring) for ring in inside)
    return Alike(_mean(at_acuity, weight), edges, rings, tuple(_mean(plain, ring.double()) for ring in inside))


def similarity(image: Float[Tensor, "h w"], other: Float[Tensor, "h w"]) -> Float64[Tensor, "h w"]:
    """SSIM around every pixel, in a Gaussian window of 1.5 pixels; beyond the border the image is mirrored.

    >>> similarity(torch.zeros(8, 8), torch.zeros(8, 8)).unique().tolist()
    [1.0]
    """
    a, b = image.double(), other.double()
    mean_a, mean_b = _window(a), _window(b)
    spread_a, spread_b = _window(a * a) - mean_a**2, _window(b * b) - mean_b**2
    both = _window(a * b) - mean_a * mean_b
    bright = (2 * mean_a * mean_b + STABLE[0]) / (mean_a**2 + mean_b**2 + STABLE[0])
    return bright * (2 * both + STABLE[1]) / (spread_a + spread_b + STABLE[1])


def _window(image: Float64[Tensor, "h w"]) -> Float64[Tensor, "h w"]:
    """The weighted mean around every pixel, rows and columns one after the other."""
    offsets = torch.arange(-REACH, REACH + 1, dtype=image.dtype, device=image.device)
    kernel = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    kernel = kernel / kernel.sum()
    for dim in (0, 1):
        side = image.shape[dim]
        # The border pixel is repeated by the mirror: ... b a | a b c ...
        place = torch.arange(-REACH, side + REACH, device=image.device) % (2 * side)
        padded = image.index_select(dim, torch.where(place < side, place, 2 * side - 1 - place))
        taps = (padded.narrow(dim, i, side) * weight for i, weight in enumerate(kernel))
        image = reduce(torch.add, taps)
    return image


def _at_scale(
    image: Float64[Tensor, "h w"], other: Float64[Tensor, "h w"], level: Float64[Tensor, "h w"]
) -> Float64[Tensor, "h w"]:
    """SSIM of the images halved `level` times, which may be a fraction, at every pixel."""
    result = torch.zeros_like(level)
    for step in range(math.ceil(level.max().item()) + 1):
        found = similarity(image, other)[None, None]
        found = F.interpolate(found, level.shape, mode="bilinear", align_corners=False)[0, 0]
        result = result + (1 - (level - step).abs()).clamp(min=0) * found
        image, other = _halved(image), _halved(other)
    return result


def _halved(image: Float64[Tensor, "h w"]) -> Float64[Tensor, "h2 w2"]:
    """Means of 2 x 2 pixels, or of those that exist at an odd border."""
    return F.avg_pool2d(image[None, None], 2, ceil_mode=True, count_include_pad=False)[0, 0]


def _luma(image: Float[Tensor, "3 h w"]) -> Float64[Tensor, "h w"]:
    return (image.double() * image.new_tensor(LUMA, dtype=torch.float64)[:, None, None]).sum(0)


def _mean(values: Float64[Tensor, "h w"], weight: Float64[Tensor, "h w"]) -> float:
    total = weight.sum()
    return ((values * weight).sum() / total).item() if total > 0 else math.nan


def _size(image: Tensor) -> str:
    return f"{image.shape[-1]}x{image.shape[-2]}"
