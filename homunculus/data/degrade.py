"""A clean page made to look scanned or photographed: skew, blur, paper tone and uneven light, sensor noise, JPEG.

Everything is Pillow's 8-bit arithmetic, because a page of 1024 x 1024 has 70 ms: the light is a map of 3 x 3 enlarged,
noise is cut from one tile that is made once, the blur is three taps each way. A turn is given by its sine, so that the
cosine is a square root, which every machine rounds alike. `degrade_batch` does the same to tensors.
"""

import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageFilter

from homunculus.data.dice import Dice
from homunculus.data.record import Box
from homunculus.errors import DataError
from homunculus.geometry import Size

MAX_SINE = 2287 / 65536  # two degrees
MAX_TAP = 0.32  # weight of each neighbour of the blur: a standard deviation of 0.8 pixels
MIN_QUALITY = 40
SHADE = 0.25  # how much darker the darkest corner may be
NOISE = 12.0  # standard deviation, in grey levels of 255
TILE = 1280
TONES = ((255, 255, 255), (253, 249, 238), (250, 243, 224), (244, 244, 240), (247, 250, 252), (236, 228, 207))


@dataclass(frozen=True)
class Wear:
    """How a page is worn. The values here leave it as it is."""

    sine: float = 0.0  # of the clockwise turn about the middle
    tap: float = 0.0  # weight of each neighbour in the blur, the middle has 1 - 2 tap
    tone: tuple[int, int, int] = (255, 255, 255)  # what white becomes
    shade: tuple[float, ...] = ()  # light taken away at 3 x 3 places, row by row; empty is none
    noise: float = 0.0  # standard deviation in grey levels
    quality: int = 0  # of the JPEG; 0 is none


def draw_wear(dice: Dice, *, fully: bool = False, skew: bool = True) -> Wear:
    """Each kind of wear in random strength and sometimes absent; all of them as strong as they get if `fully`.

    >>> draw_wear(Dice("example"), fully=True, skew=False).quality
    40
    """
    shade = tuple(dice.array(9).tolist())

    def strength(probability: float) -> float:
        drawn = dice.random() if dice.chance(probability) else 0.0
        return 1.0 if fully else drawn

    turned, blurred, toned, shaded, noisy, packed = (strength(p) for p in (0.6, 0.6, 0.5, 0.5, 0.6, 0.6))
    sign = dice.choice((-1, 1))
    return Wear(
        sine=sign * round(turned * MAX_SINE * 65536) / 65536 if skew else 0.0,
        tap=blurred * MAX_TAP,
        tone=dice.choice(TONES[1:]) if toned else TONES[0],
        shade=tuple(shaded * SHADE * place for place in shade) if shaded else (),
        noise=noisy * NOISE,
        quality=round(95 - packed * (95 - MIN_QUALITY)) if packed else 0,
    )


def degrade_page(
    image: Image.Image,
    boxes: Sequence[Box],
    dice: Dice,
    *,
    fully: bool = False,
    skew: bool = True,
    others: Sequence[Box] = (),
) -> tuple[Image.Image, list[Box]]:
    """A worn page and where its boxes went. A turn that would push a box off the page is made smaller, or left out;
    `others` go along behind them, wherever that takes them.

    >>> page, boxes = degrade_page(Image.new("RGB", (640, 480), "white"), [(10, 20, 30, 40)], Dice("page", 1))
    >>> page.size, len(boxes)
    ((640, 480), 1)
    """
    if image.mode != "RGB":
        raise DataError(f"a page to degrade is an RGB image, got mode {image.mode}: convert it first")
    return wear_page(image, boxes, draw_wear(dice, fully=fully, skew=skew), dice, others)


def wear_page(
    image: Image.Image, boxes: Sequence[Box], wear: Wear, dice: Dice, others: Sequence[Box] = ()
) -> tuple[Image.Image, list[Box]]:
    """A page with a wear of known kind and strength; `dice` only says which noise.

    >>> page, boxes = wear_page(Image.new("RGB", (64, 64), "white"), [(0, 0, 9, 9)], Wear(), Dice("any"))
    >>> page.getextrema(), boxes
    (((255, 255), (255, 255), (255, 255)), [(0, 0, 9, 9)])
    """
    sine = safe_sine(boxes, image.size, wear.sine)
    if sine:
        image = turn(image, sine)
    if wear.tap:
        image = blur(image, wear.tap)
    if wear.shade:
        image = ImageChops.multiply(image, _light(image.size, wear))
    elif wear.tone != TONES[0]:
        image = toned(image, wear.tone)
    if wear.noise:
        image = ImageChops.add(image, _noise(image.size, wear.noise, dice), 1, -128)
    if wear.quality:
        image = jpeg(image, wear.quality)
    return image, turn_boxes([*boxes, *others], image.size, sine)


def turn(image: Image.Image, sine: float) -> Image.Image:
    """Turned clockwise about its middle, same size; bare corners take the commonest colour of the left edge."""
    width, height = image.size
    cosine, x, y = math.sqrt(1 - sine * sine), width / 2, height / 2
    backwards = (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)
    edge: Counter[Any] = Counter(image.crop((0, 0, 1, height)).get_flattened_data())
    fill = max(edge, key=lambda colour: (edge[colour], colour))
    return image.transform(image.size, Image.Transform.AFFINE, backwards, Image.Resampling.BILINEAR, fillcolor=fill)


def turn_boxes(boxes: Sequence[Box], size: Size, sine: float) -> list[Box]:
    """Boxes round the corners of turned boxes, out to whole pixels, clipped to the image.

    >>> turn_boxes([(0, 50, 100, 60)], size=(100, 100), sine=0.02)
    [(0, 49, 100, 61)]
    """
    if not sine:
        return list(boxes)
    (width, height), turned = size, _turned(boxes, size, sine)
    return [
        (max(0, math.floor(x0)), max(0, math.floor(y0)), min(width, math.ceil(x1)), min(height, math.ceil(y1)))
        for x0, y0, x1, y1 in turned
    ]


def safe_sine(boxes: Sequence[Box], size: Size, sine: float) -> float:
    """The turn, halved up to three times until every box stays on the page; 0 if that is not enough.

    >>> safe_sine([(0, 0, 5, 5)], (100, 100), 0.02), safe_sine([(50, 50, 60, 60)], (100, 100), 0.02)
    (0.0, 0.02)
    """
    for share in (1.0, 0.5, 0.25, 0.125):
        turned = _turned(boxes, size, sine * share)
        if all(x0 >= 0 and y0 >= 0 and x1 <= size[0] and y1 <= size[1] for x0, y0, x1, y1 in turned):
            return sine * share
    return 0.0


def _turned(boxes: Sequence[Box], size: Size, sine: float) -> list[Box]:
    cosine, mx, my = math.sqrt(1 - sine * sine), size[0] / 2, size[1] / 2
    turned = []
    for x0, y0, x1, y1 in boxes:
        corners = [(x - mx, y - my) for x in (x0, x1) for y in (y0, y1)]
        xs = [mx + cosine * x - sine * y for x, y in corners]
        ys = [my + sine * x + cosine * y for x, y in corners]
        turned.append((min(xs), min(ys), max(xs), max(ys)))
    return turned


def blur(image: Image.Image, tap: float) -> Image.Image:
    """Three taps each way, (tap, 1 - 2 tap, tap); the outermost pixels stay as they are."""
    row = (tap, 1 - 2 * tap, tap)
    return image.filter(ImageFilter.Kernel((3, 3), [a * b for a in row for b in row], scale=1))


def toned(image: Image.Image, tone: tuple[int, int, int]) -> Image.Image:
    """Multiplied by a colour, 255 being 1: what `ImageChops.multiply` makes of a sheet of it, by a table.

    >>> toned(Image.new("RGB", (1, 1), (255, 100, 0)), (200, 255, 100)).getpixel((0, 0))
    (200, 100, 0)
    """
    return image.point([level * of // 255 for of in tone for level in range(256)])


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    """Compressed and read back."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    seen = Image.open(file)
    seen.load()
    return seen


def _light(size: Size, wear: Wear) -> Image.Image:
    """What the page is multiplied by: the tone of the paper under uneven light, 255 for all of it."""
    levels = [round(255 * (1 - place)) for place in wear.shade]
    light = Image.frombytes("L", (3, 3), bytes(levels)).resize(size, Image.Resampling.BICUBIC)
    return Image.merge("RGB", [light.point([level * tone // 255 for level in range(256)]) for tone in wear.tone])


def _noise(size: Size, deviation: float, dice: Dice) -> Image.Image:
    """Noise about 128 for three channels, each cut from the tile somewhere else."""
    stretch = [min(255, max(0, round(128 + (level - 128) * deviation / 32))) for level in range(256)]
    tile = _tile().point(stretch)
    channels = [_cut(tile, size, dice.integer(0, TILE - 1), dice.integer(0, TILE - 1)) for _ in range(3)]
    return Image.merge("RGB", channels)


def _cut(tile: Image.Image, size: Size, left: int, top: int) -> Image.Image:
    """The tile from (left, top) on, repeated as often as it takes."""
    sheet = Image.new("L", size)
    for x in range(-left, size[0], TILE):
        for y in range(-top, size[1], TILE):
            sheet.paste(tile, (x, y))
    return sheet


@lru_cache(maxsize=1)
def _tile() -> Image.Image:
    """Normal values about 128 with a standard deviation of 32, the same in every process."""
    values = Dice("sensor noise").normal(TILE * TILE).reshape(TILE, TILE)
    return Image.fromarray(np.clip(np.rint(128 + 32 * values), 0, 255).astype(np.uint8))
