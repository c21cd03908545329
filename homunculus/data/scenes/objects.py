"""Things to see: a shape in a colour and a texture, at a size and an angle, drawn with light from the upper left.

Colours vary within a name but names stay apart, also in shade. A texture is the colour with one companion that could
not be taken for another name's. `test-ood` pairs colours with textures that no other split pairs.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import cos, floor, radians, sin

from PIL import Image, ImageChops, ImageDraw

from homunculus.data.dice import Dice
from homunculus.data.record import Split
from homunculus.data.scenes.noise import Colour, mixed, vary
from homunculus.data.scenes.shapes import FIGURES, FIXED, HELD_OUT_SHAPES, SHAPES, Point
from homunculus.geometry import Size

_CREAM, _WHITE = (246, 242, 232), (255, 255, 255)

# name: the colour, and the companion that its textures are made with
COLOURS: dict[str, tuple[Colour, Colour]] = {
    "red": ((206, 32, 38), _CREAM),
    "orange": ((246, 134, 24), _CREAM),
    "yellow": ((250, 216, 46), (150, 112, 20)),
    "green": ((44, 146, 60), _CREAM),
    "blue": ((38, 86, 196), _CREAM),
    "purple": ((122, 48, 158), _CREAM),
    "pink": ((248, 150, 188), _CREAM),
    "brown": ((112, 68, 36), (222, 190, 150)),
    "black": ((44, 42, 48), (150, 150, 156)),
    "white": ((240, 240, 238), (158, 168, 186)),
}
_FADED: dict[str, Colour] = {"black": (172, 172, 178), "white": (112, 122, 142)}  # the others fade to cream
TEXTURES = ("plain", "striped", "dotted", "checked", "zigzag", "fading")
TEXTURE_SIDE = 24  # pixels: on anything smaller a texture could not be seen, so it is plain

_LEAN = {"leaf": 180, "key": 180, "fish": 30, "arrow": 180, "ring": 180, "moon": 40, "star": 36, "cross": 20}


@dataclass(frozen=True)
class Look:
    """What a thing looks like; `side` in pixels of the image, `angle` in whole degrees."""

    shape: str
    colour: str
    texture: str
    side: int
    rgb: Colour
    angle: int = 0
    mirrored: bool = False


def shapes(split: Split) -> tuple[str, ...]:
    """
    >>> "star" in shapes("train"), "star" in shapes("test-ood")
    (True, False)
    """
    return HELD_OUT_SHAPES if split == "test-ood" else SHAPES


def textures(split: Split, colour: str) -> tuple[str, ...]:
    """The textures a colour may have: plain, and its share of the others.

    >>> set(textures("train", "red")) & set(textures("test-ood", "red"))
    {'plain'}
    """
    place = tuple(COLOURS).index(colour)
    held_out = split == "test-ood"
    return tuple(t for k, t in enumerate(TEXTURES) if k == 0 or ((place + 2 * k) % 5 < 2) == held_out)


def look(dice: Dice, split: Split, shape: str, colour: str, side: int) -> Look:
    """A thing of that shape, colour and size with texture, tint and angle drawn."""
    texture = dice.choice(textures(split, colour)) if side >= TEXTURE_SIDE else "plain"
    lean = _LEAN.get(shape, 12)
    rgb = vary(dice, COLOURS[colour][0], 13)
    return Look(shape, colour, texture, side, rgb, dice.integer(-lean, lean), dice.chance(0.5))


def render(thing: Look) -> Image.Image:
    """The thing alone, RGBA, cropped to its ink; drawn larger and averaged down, so edges are soft.

    >>> render(Look("square", "red", "plain", 40, (200, 30, 30))).size
    (40, 40)
    """
    zoom = 4 if thing.side <= 24 else 3 if thing.side <= 64 else 2
    figure = _placed(thing.shape, thing.side * zoom, thing.angle, thing.mirrored)
    xs, ys = zip(*(point for _, points in figure for point in points), strict=True)
    x0, y0 = min(xs), min(ys)
    size = tuple(-(-(max(values) - min(values) + 1) // zoom) * zoom for values in (xs, ys))
    assert len(size) == 2
    parts = [(tone, [(x - x0, y - y0) for x, y in points]) for tone, points in figure]
    mask, ink = Image.new("L", size), _filled(thing, size, zoom)
    draw, cut = ImageDraw.Draw(ink), ImageDraw.Draw(mask)
    dark = (20, 16, 24)
    fill = {"shade": mixed(thing.rgb, dark, 0.32), "light": mixed(thing.rgb, _WHITE, 0.45)} | FIXED
    rim, thick = mixed(thing.rgb, dark, 0.5), max(1, min(thing.side * zoom // 60, 3 * zoom))
    gloss = None
    for tone, points in parts:
        if tone == "gloss":
            gloss = gloss or Image.new("L", size)
            ImageDraw.Draw(gloss).polygon(points, fill=80)
            continue
        cut.polygon(points, fill=0 if tone == "hole" else 255)
        draw.polygon(points, fill=fill.get(tone))
        if tone in ("body", "shade", "hole"):
            draw.line([*points, points[0]], fill=rim, width=thick)
    if gloss is not None and (place := gloss.getbbox()):
        ink.paste(_WHITE, place, gloss.crop(place))
    ink, mask = ink.reduce(zoom), mask.reduce(zoom)
    ink = ImageChops.multiply(ink, _roundness(ink.size))
    ink.putalpha(mask)
    return ink.crop(mask.getbbox())


@lru_cache(maxsize=4096)
def _turned(shape: str, angle: int, mirrored: bool) -> tuple[tuple[str, tuple[Point, ...]], ...]:
    """The figure turned about its middle, in thousandths of a hundredth: the same on every machine."""
    c, s = round(cos(radians(angle)), 4), round(sin(radians(angle)), 4)
    flip = -1 if mirrored else 1
    return tuple(
        (tone, tuple((c * (x - 50) * flip - s * (y - 50), s * (x - 50) * flip + c * (y - 50)) for x, y in points))
        for tone, points in FIGURES[shape]
    )


def _placed(shape: str, side: int, angle: int, mirrored: bool) -> list[tuple[str, list[tuple[int, int]]]]:
    """The figure as polygons of whole pixels, `side` across before it is turned."""
    scale = (side - 1) / 100
    return [
        (tone, [(floor(x * scale + 0.5), floor(y * scale + 0.5)) for x, y in points])
        for tone, points in _turned(shape, angle, mirrored)
    ]


def _filled(thing: Look, size: Size, zoom: int) -> Image.Image:
    """A canvas covered with the texture."""
    base, other = thing.rgb, COLOURS[thing.colour][1]
    canvas = Image.new("RGB", size, base)
    draw, (width, height) = ImageDraw.Draw(canvas), size
    period = max(5 * zoom, thing.side * zoom // 7)
    match thing.texture:
        case "striped":
            for x in range(-height, width, period):
                draw.polygon(
                    [
                        (x, 0),
                        (x + period * 2 // 5, 0),
                        (x + period * 2 // 5 + height // 2, height),
                        (x + height // 2, height),
                    ],
                    fill=other,
                )
        case "dotted":
            radius = period * 3 // 10
            for row, y in enumerate(range(period // 2, height + period, period)):
                for x in range(period // 2 + row % 2 * period // 2 - period, width + period, period):
                    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=other)
        case "checked":
            step = period * 3 // 4
            for row, y in enumerate(range(0, height, step)):
                for x in range(row % 2 * step, width, 2 * step):
                    draw.rectangle((x, y, x + step - 1, y + step - 1), fill=other)
        case "zigzag":
            for y in range(0, height + period, period):
                peaks = [
                    (x, y + (k % 2) * period // 2) for k, x in enumerate(range(-period, width + period, period // 2))
                ]
                draw.line(peaks, fill=other, width=period // 3, joint="curve")
        case "fading":
            ramp = Image.linear_gradient("L").resize((1, height), Image.Resampling.BILINEAR)  # every column is the same
            column = canvas.crop((0, 0, 1, height))
            column.paste(
                _FADED.get(thing.colour, _CREAM), (0, 0), ramp.point([level * 9 // 10 for level in range(256)])
            )
            canvas.paste(column.resize(size, Image.Resampling.NEAREST))
    return canvas


@lru_cache(maxsize=256)
def _roundness(size: Size) -> Image.Image:
    """Light from the upper left: what the drawn thing is multiplied with."""
    corners = Image.frombytes("L", (2, 2), bytes([255, 244, 244, 216]))
    return corners.resize(size, Image.Resampling.BILINEAR).convert("RGB")
