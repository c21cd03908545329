"""Where there is something to see: model-free relevance of pixels, one nonnegative value per leaf.

Every map is built from operations that round each element on its own, so an image gets the same bits alone and in a
batch. Nothing here is differentiated: pixels say where to look, they are not trained to.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from homunculus.density import normalise, total_mass
from homunculus.kernels.resample import area_resample
from homunculus.pyramid import ImagePyramid
from homunculus.relevance.learned import learned

SURROUND_LEVELS = 2  # a surround is this many octaves wider than its centre
CENTRE_SCALES = 3
QUIET = 0.5 / 255  # contrast inside a leaf that is rounding, not detail
NOISE = 6 / 255  # differences of colour that JPEG makes out of nothing


@torch.no_grad()
def uniform(pyramid: ImagePyramid) -> Float64[Tensor, "b gh gw"]:
    """The same everywhere: relevance that knows nothing.

    >>> uniform(ImagePyramid(torch.rand(1, 3, 64, 64), (4, 4))).unique().tolist()
    [0.0625]
    """
    gw, gh = pyramid.grid
    ones = torch.ones(pyramid.images.shape[0], gh, gw, dtype=torch.float64, device=pyramid.images.device)
    return normalise(ones)


@torch.no_grad()
def detail(pyramid: ImagePyramid) -> Float64[Tensor, "b gh gw"]:
    """What exists: root-mean-square contrast inside each leaf, from the Laplacian bands that fit into it.

    >>> image = torch.full((1, 3, 64, 64), 0.5); image[..., 20:28, 36:44:2] = 0.0
    >>> detail(ImagePyramid(image, (4, 4)))[0].nonzero().tolist()
    [[1, 2]]
    """
    energy = pyramid.energy[0].double()
    for band in range(1, pyramid.inner_bands):
        energy = energy + pyramid.energy[band].double()
    # The root: one black rule across a page should not outweigh a paragraph by the square of its contrast.
    contrast = energy.sqrt() / pyramid.leaf
    return normalise((contrast - QUIET).clamp(min=0))


@torch.no_grad()
def saliency(pyramid: ImagePyramid) -> Float64[Tensor, "b gh gw"]:
    """Where it stands out, from its surround and from the whole image: intensity and two colour axes, three octaves.

    Each feature map counts by its contrast and by how far its peak rises above its mean, so one odd patch beats a field
    of equal ones; contrasts that only compression or a sensor would make do not count at all.

    >>> image = torch.full((1, 3, 256, 256), 0.5); image[:, 0, 96:112, 160:176] = 1.0
    >>> int(saliency(ImagePyramid(image, (16, 16)))[0].argmax()) == 6 * 16 + 10
    True
    """
    gw, gh = pyramid.grid
    features = {level: _opponent(pixels) for level, pixels in pyramid.gaussian.items()}
    first = pyramid.base_level
    total = torch.zeros(pyramid.images.shape[0], gh, gw, dtype=torch.float64, device=pyramid.images.device)
    for level in range(first, min(first + CENTRE_SCALES, max(features) - SURROUND_LEVELS + 1)):
        centre, surround = features[level], _smooth(features[level + SURROUND_LEVELS])
        local = (centre - _enlarge(surround, centre.shape[-1], centre.shape[-2])).abs()
        # Blank paper beside ink differs from its surround as much as the ink does, but not from the page as a whole.
        contrast = (local * (centre - features[max(features)]).abs()).sqrt()
        clear = (contrast - NOISE).clamp(min=0).double()
        for feature in area_resample(clear, (gw, gh)).unbind(1):
            total = total + _promote(feature)
    return normalise(total)


def cosine(
    features: Float[Tensor, "b h w c"], words: Float[Tensor, "b t c"], temperature: float = 0.1
) -> Float[Tensor, "b h w"]:
    """How a question couples to the image: each cell's best cosine with any of the question's words, exponentiated.

    A building block for query scorers: cells ask, words answer, so every cell gets a score of its own.

    >>> cells = torch.eye(4).reshape(1, 2, 2, 4)
    >>> int(cosine(cells, cells[:, 1, :1]).argmax())
    2
    """
    similarity = F.normalize(features, dim=-1).flatten(1, 2) @ F.normalize(words, dim=-1).mT
    best = similarity.amax(-1).unflatten(1, features.shape[1:3])
    return ((best - best.amax(dim=(1, 2), keepdim=True)) / temperature).exp()


def _opponent(rgb: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    """Intensity, red against green, blue against yellow."""
    red, green, blue = rgb.unbind(1)
    yellow = (red + green) / 2
    return torch.stack((yellow * (2 / 3) + blue / 3, red - green, blue - yellow), dim=1)


def _smooth(x: Tensor) -> Tensor:
    """A 3x3 mean of the pixels that exist: takes the block edges off a surround."""
    return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


def _enlarge(x: Tensor, width: int, height: int) -> Tensor:
    factor = 1 << SURROUND_LEVELS
    return x.repeat_interleave(factor, -2).repeat_interleave(factor, -1)[..., :height, :width]


def _promote(feature: Float64[Tensor, "b h w"]) -> Float64[Tensor, "b h w"]:
    """Weighs a map by (1 - mean/peak)^2: next to 1 for a lonely peak, 0 for a flat map."""
    peak = feature.amax(dim=(1, 2), keepdim=True)
    mean = total_mass(feature) / (feature.shape[1] * feature.shape[2])
    lonely = 1 - mean / torch.where(peak > 0, peak, 1.0)
    return feature * lonely * lonely


@torch.no_grad()
def pixels(pyramid: ImagePyramid) -> Float64[Tensor, "b gh gw"]:
    """All that pixels alone say: saliency and detail in equal parts.

    >>> round(pixels(ImagePyramid(torch.rand(1, 3, 64, 64), (4, 4))).sum().item(), 9)
    1.0
    """
    return normalise(saliency(pyramid) + detail(pyramid))


SOURCES: dict[str, Callable[..., Tensor]] = {
    "uniform": uniform,
    "detail": detail,
    "saliency": saliency,
    "pixels": pixels,
    "learned": learned,  # the only one that is told the questions
}
