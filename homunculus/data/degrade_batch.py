"""The wear of `degrade` as batched tensor operations, for training: skew, blur, tone and light, noise, JPEG.

Every step is elementwise over the batch or exact in any order of summation, so an image comes out bit for bit the same
alone and among others, and nothing waits for the device. Noise is a hash of the pixel and the image's seed rather than
a generator's stream, which would depend on the batch. JPEG is the standard's own quantisation of 8 x 8 cosine blocks
with halved chroma, its cosines in units of 1/1024 and its values of 1/2, so that float32 sums them exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from homunculus.data.degrade import MAX_SINE, MIN_QUALITY, NOISE, SHADE, TONES
from homunculus.errors import DataError

MAX_SIGMA = 1.0  # of the blur
RADIUS = 4  # of its taps: what lies beyond has a weight below 1e-4 at the widest

# The tables of the JPEG standard (ITU T.81, annex K) for quality 50: brightness, colour.
_BRIGHTNESS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_COLOUR = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# Row i is the cosine of frequency i at eight places, sqrt(8) times the orthonormal one, in units of 1/1024.
_COSINES = tuple(
    tuple(round(1024 * math.sqrt(1 if i == 0 else 2) * math.cos((2 * j + 1) * i * math.pi / 16)) for j in range(8))
    for i in range(8)
)


@dataclass(frozen=True, eq=False)
class Parameters:
    """The wear of each image of a batch. Zeros (and a tone of 1) leave an image as it is."""

    sine: Float[Tensor, " b"]  # of the clockwise turn about the middle
    sigma: Float[Tensor, " b"]  # of the blur, in pixels
    tone: Float[Tensor, "b 3"]  # what white becomes
    shade: Float[Tensor, "b 3 3"]  # light taken away at 3 x 3 places
    noise: Float[Tensor, " b"]  # standard deviation, white being 1
    seed: Int[Tensor, " b"]  # which noise
    quality: Float[Tensor, " b"]  # of the JPEG; 0 is none

    def to(self, device: torch.device | str) -> "Parameters":
        return Parameters(*(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)))

    def __getitem__(self, which: slice) -> "Parameters":
        return Parameters(*(getattr(self, field.name)[which] for field in fields(self)))


def draw_parameters(batch: int, generator: torch.Generator, *, fully: bool = False) -> Parameters:
    """Wear for `batch` images on the generator's device: each kind in random strength and sometimes absent.

    >>> draw_parameters(4, torch.Generator().manual_seed(0)).tone.shape
    torch.Size([4, 3])
    """
    device = generator.device
    strength, present, shade = (torch.rand(batch, n, generator=generator, device=device) for n in (6, 6, 9))
    likely = _constant((0.6, 0.6, 0.5, 0.5, 0.6, 0.6), device)
    drawn = torch.ones_like(strength) if fully else strength * (present < likely)
    turned, blurred, toned, shaded, noisy, packed = drawn.unbind(1)
    side = torch.randint(0, 2, (batch,), generator=generator, device=device) * 2 - 1
    paper = torch.randint(1, len(TONES), (batch,), generator=generator, device=device)
    tones = _constant(TONES, device) / 255
    return Parameters(
        sine=turned * MAX_SINE * side,
        sigma=blurred * MAX_SIGMA,
        tone=torch.where(toned[:, None] > 0, tones[paper], tones[0]),
        shade=(shaded * SHADE)[:, None, None] * shade.view(batch, 3, 3),
        noise=noisy * (NOISE / 255),
        seed=torch.randint(0, 2**31 - 1, (batch,), generator=generator, device=device, dtype=torch.int32),
        quality=torch.where(packed > 0, (95 - packed * (95 - MIN_QUALITY)).round(), 0.0),
    )


@torch.no_grad()
def degrade_batch(
    images: Shaped[Tensor, "b 3 h w"],
    boxes: Float[Tensor, "b k 4"],
    parameters: Parameters,
) -> tuple[Shaped[Tensor, "b 3 h w"], Float[Tensor, "b k 4"]]:
    """Worn images, of the type they came in (uint8, or floats in [0, 1]), and where their boxes went.

    Boxes without area are padding and stay. A turn that would push a box off its image is made smaller or left out.

    >>> images, boxes = torch.ones(2, 3, 64, 48), torch.tensor([[[8.0, 8, 20, 12]]]).expand(2, -1, -1)
    >>> worn, moved = degrade_batch(images, boxes, draw_parameters(2, torch.Generator().manual_seed(1)))
    >>> worn.shape, worn.dtype, moved.shape
    (torch.Size([2, 3, 64, 48]), torch.float32, torch.Size([2, 1, 4]))
    """
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(f"images to degrade are uint8 or floats in [0, 1], got {images.dtype}")
    size = images.shape[3], images.shape[2]
    p = parameters
    sine = safe_sines(boxes, size, p.sine)
    worn = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    worn = blur(turn(worn, sine), p.sigma)
    worn = add_noise(worn * light(p.tone, p.shade, size), p.noise, p.seed)
    worn = jpeg(worn, p.quality)
    if images.dtype == torch.uint8:
        worn = (worn * 255).round().to(torch.uint8)
    return worn.to(images.dtype), turn_boxes(boxes, size, sine)


def turn(images: Float[Tensor, "b 3 h w"], sine: Float[Tensor, " b"]) -> Float[Tensor, "b 3 h w"]:
    """Turned clockwise about the middle, bilinear; bare corners take the left edge's median. 0 changes nothing."""
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device) + 0.5 - width / 2
    y = (torch.arange(height, device=images.device) + 0.5 - height / 2)[:, None]
    s = sine[:, None, None]
    c = (1 - s * s).sqrt()
    where = torch.stack(((c * x + s * y) * (2 / width), (c * y - s * x) * (2 / height)), -1)  # [b, h, w, 2] in [-1, 1]
    fill = images[..., 0].median(2).values[..., None, None]
    turned = F.grid_sample(images - fill, where, "bilinear", "zeros", align_corners=False) + fill
    return torch.where((sine == 0)[:, None, None, None], images, turned)


def turn_boxes(boxes: Float[Tensor, "b k 4"], size: tuple[int, int], sine: Float[Tensor, " b"]) -> Tensor:
    """Boxes round the corners of turned boxes, clipped to the image; those without area stay."""
    x0, y0, x1, y1 = _turned(boxes, size, sine).unbind(-1)
    clipped = torch.stack((x0.clamp(min=0), y0.clamp(min=0), x1.clamp(max=size[0]), y1.clamp(max=size[1])), -1)
    stay = (sine == 0)[:, None] | _empty(boxes)
    return torch.where(stay[..., None], boxes, clipped)


def safe_sines(boxes: Float[Tensor, "b k 4"], size: tuple[int, int], sine: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Each turn, halved up to three times until every box stays on its image; 0 where that is not enough."""
    safe = torch.zeros_like(sine)
    for share in (0.125, 0.25, 0.5, 1.0):
        turned = _turned(boxes, size, sine * share)
        inside = (turned[..., :2] >= 0).all(-1) & (turned[..., 2] <= size[0]) & (turned[..., 3] <= size[1])
        safe = torch.where((inside | _empty(boxes)).all(1), sine * share, safe)
    return safe


def _empty(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] <= boxes[..., 0]) | (boxes[..., 3] <= boxes[..., 1])


def _turned(boxes: Tensor, size: tuple[int, int], sine: Tensor) -> Tensor:
    mx, my = size[0] / 2, size[1] / 2
    s = sine[:, None, None]
    c = (1 - s * s).sqrt()
    x0, y0, x1, y1 = boxes.unbind(-1)
    x, y = torch.stack((x0, x0, x1, x1), -1) - mx, torch.stack((y0, y1, y0, y1), -1) - my  # four corners [b, k, 4]
    xs, ys = mx + c * x - s * y, my + s * x + c * y
    return torch.stack((xs.amin(-1), ys.amin(-1), xs.amax(-1), ys.amax(-1)), -1)


def blur(images: Float[Tensor, "b 3 h w"], sigma: Float[Tensor, " b"]) -> Float[Tensor, "b 3 h w"]:
    """Gaussian, edges repeated. Taps are added one by one: a convolution may sum in another order in another batch."""
    steps = torch.arange(-RADIUS, RADIUS + 1, device=images.device)
    bell = torch.exp(-0.5 * (steps / sigma.clamp(min=1e-2)[:, None]) ** 2)  # [b, 9]; 0 but for the middle at sigma 0
    taps = (bell / bell.sum(1, keepdim=True))[..., None, None, None].unbind(1)
    for axis, pad in ((3, (RADIUS, RADIUS, 0, 0)), (2, (0, 0, RADIUS, RADIUS))):
        padded = F.pad(images, pad, mode="replicate")
        length = images.shape[axis]
        images = taps[0] * padded.narrow(axis, 0, length)
        for i in range(1, len(taps)):
            images = images + taps[i] * padded.narrow(axis, i, length)
    return images


def light(tone: Float[Tensor, "b 3"], shade: Float[Tensor, "b 3 3"], size: tuple[int, int]) -> Float[Tensor, "b 3 h w"]:
    """What images are multiplied by: the tone of the paper under uneven light."""
    smooth = F.interpolate(shade[:, None], size[::-1], mode="bicubic", align_corners=False).clamp(0, 1)
    return tone[:, :, None, None] * (1 - smooth)


def add_noise(
    images: Float[Tensor, "b 3 h w"], deviation: Float[Tensor, " b"], seed: Int[Tensor, " b"]
) -> Float[Tensor, "b 3 h w"]:
    """Noise of a given deviation from a hash of pixel and seed, nearly normal; the result lies in [0, 1]."""
    count = images[0].numel()
    bits = torch.arange(count, dtype=torch.int32, device=images.device) * -1640531527 + seed[:, None].to(torch.int32)
    for multiplier in (-2048144789, -1028477387):  # rounds of a 32-bit mixer: shift, xor, multiply
        bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * multiplier
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    octets = (bits & 0xFF) + (bits >> 8 & 0xFF) + (bits >> 16 & 0xFF) + (bits >> 24 & 0xFF)  # four dice of 256 sides
    normal = (octets - 510) / math.sqrt(4 * (256**2 - 1) / 12)
    return (images + deviation[:, None, None, None] * normal.view(images.shape)).clamp(0, 1)


def jpeg(images: Float[Tensor, "b 3 h w"], quality: Float[Tensor, " b"]) -> Float[Tensor, "b 3 h w"]:
    """What JPEG of a quality from 1 to 100 leaves of images in [0, 1], colour at half the resolution; 0 leaves all."""
    height, width = images.shape[2:]
    rgb = F.pad((images * 255).round(), (0, -width % 16, 0, -height % 16), mode="replicate")
    r, g, b = rgb.unbind(1)
    y = (0.299 * r + 0.587 * g + 0.114 * b).round() - 128
    colour = torch.stack((-0.168736 * r - 0.331264 * g + 0.5 * b, 0.5 * r - 0.418688 * g - 0.081312 * b), 1).round()
    q = quality.clamp(1, 100)
    scale = torch.where(q < 50, (5000 / q).floor(), 200 - 2 * q)[:, None, None]
    y = _quantised(y[:, None], scale, _BRIGHTNESS)[:, 0] + 128
    colour = _quantised(F.avg_pool2d(colour, 2).round(), scale, _COLOUR)
    cb, cr = F.interpolate(colour, scale_factor=2.0, mode="bilinear", align_corners=False).unbind(1)
    rgb = torch.stack((y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb), 1)
    packed = rgb[..., :height, :width].round().clamp(0, 255) / 255
    return torch.where((quality > 0)[:, None, None, None], packed, images)


def _quantised(channels: Tensor, scale: Tensor, table: tuple[tuple[int, ...], ...]) -> Tensor:
    """Channels [b, c, h, w] of whole numbers about 0 through the cosine transform, rounded to the table's steps."""
    b, c, h, w = channels.shape
    steps = _constant(table, channels.device)
    steps = ((steps * scale + 50) / 100).floor().clamp(1, 255)[:, None, None, None]  # [b, 1, 1, 1, 8, 8]
    cosines = _constant(_COSINES, channels.device) / 1024
    blocks = channels.view(b, c, h // 8, 8, w // 8, 8).transpose(3, 4)
    with torch.autocast(channels.device.type, enabled=False):  # half precision would not be exact
        rows = (blocks @ cosines.T * 2).round() / 2
        share = cosines @ rows / (8 * steps)
        levels = share.sign() * (share.abs() + 0.5).floor() * steps  # halves go away from 0
        rows = (levels @ cosines * 2).round() / 2
        back = (cosines.T @ rows / 8 + 0.5).floor().clamp(-128, 127)
    return back.transpose(3, 4).reshape(b, c, h, w)


def _constant(values: Sequence[Any], device: torch.device) -> Tensor:
    """A table on a device without waiting for it."""
    return torch.tensor(values, dtype=torch.float32).to(device, non_blocking=True)
