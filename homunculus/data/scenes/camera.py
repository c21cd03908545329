"""What light and a camera do to a picture: uneven light, vignetting; then blur, noise and compression.

Nothing here moves a pixel, so boxes stay true.
"""

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from homunculus.data.dice import Dice
from homunculus.geometry import Size

_DIMMEST = 50  # of 255: what the light loses at most
_KNOTS = 48  # the light is smooth: a map of 48 x 48 stretched over the picture


def photographed(image: Image.Image, dice: Dice, clean: bool, cast: float = 0.0) -> Image.Image:
    """The picture in its light and, unless clean, with a slight blur (on some), sensor noise and JPEG.

    With chance `cast` the soft-edged shadow of something large lies across it. The noise is that of the light, so one
    multiplication does both.

    >>> photographed(Image.new("RGB", (64, 48)), Dice("camera"), clean=False).size
    (64, 48)
    """
    shade = light(dice.fork("light"), image.size, cast)
    if clean:
        return ImageChops.multiply(image, shade.convert("RGB"))
    camera = dice.fork("camera")
    if camera.chance(0.25):
        image = Image.fromarray(softened(np.asarray(image), camera.integer(3, 4)))
    shade = ImageChops.subtract(shade, _noise(camera, image.size, camera.integer(2, 9)))
    buffer = io.BytesIO()
    ImageChops.multiply(image, shade.convert("RGB")).save(buffer, "JPEG", quality=camera.integer(58, 90))
    seen = Image.open(buffer)
    seen.load()
    return seen


def light(dice: Dice, size: Size, cast: float = 0.0) -> Image.Image:
    """Light that falls off to one side and towards the corners, mode L, 255 where it is full.

    It falls to four fifths at most: enough to see it, not so much that orange turns brown.

    >>> light(Dice("lamp"), (64, 48)).size
    (64, 48)
    """
    x, y = np.meshgrid(np.arange(_KNOTS) - _KNOTS // 2, np.arange(_KNOTS) - _KNOTS // 2)
    slope = x * dice.integer(-5, 5) + y * dice.integer(-5, 5)
    fall = (x * x + y * y) * dice.integer(0, 4)
    dim = fall * 36 // _KNOTS**2 - slope * 9 // _KNOTS
    dim -= dim.min()
    shade = Image.fromarray((255 - dim * _DIMMEST // max(_DIMMEST, dim.max())).astype(np.uint8))
    if dice.chance(cast):
        shade = ImageChops.multiply(shade, _cast(dice))
    return shade.resize(size, Image.Resampling.BILINEAR)


def _cast(dice: Dice) -> Image.Image:
    """Darker on one side of a slanting, soft edge."""
    shadow = Image.new("L", (_KNOTS, _KNOTS), 255)
    x, lean = dice.integer(8, 40), dice.integer(-20, 20)
    side = dice.choice([0, _KNOTS])
    shade = dice.integer(150, 210)
    ImageDraw.Draw(shadow).polygon([(side, 0), (x, 0), (x + lean, _KNOTS), (side, _KNOTS)], fill=shade)
    return shadow.filter(ImageFilter.BoxBlur(1))


def softened(pixels: UInt8[np.ndarray, "h w 3"], halvings: int) -> UInt8[np.ndarray, "h w 3"]:
    """Each pixel averaged with its four neighbours: they weigh one each, all together 2^halvings.

    >>> softened(np.full((2, 2, 3), 9, np.uint8), 3)[0, 0]
    array([9, 9, 9], dtype=uint8)
    """
    height, width, _ = pixels.shape
    flat = pixels.reshape(height, 3 * width).astype(np.uint16)
    total = flat * np.uint16(2**halvings - 4)
    total[1:] += flat[:-1]
    total[:-1] += flat[1:]
    total[:, 3:] += flat[:, :-3]
    total[:, :-3] += flat[:, 3:]
    total[[0, -1]] += flat[[0, -1]]  # beyond the border lies the border
    total[:, :3] += flat[:, :3]
    total[:, -3:] += flat[:, -3:]
    return (total >> np.uint16(halvings)).astype(np.uint8).reshape(pixels.shape)


def _noise(dice: Dice, size: Size, strength: int) -> Image.Image:
    """Noise from 0 to twice the strength, mode L, peaked in the middle, one draw a pixel."""
    table = bytes((level % 16 + level // 16) * strength // 15 for level in range(256))
    return Image.frombytes("L", size, dice.octets(size[0] * size[1]).tobytes().translate(table))
