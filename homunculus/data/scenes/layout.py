"""Which things a scene has and where: a large one in the middle, others about it, small ones near the border.

Things are laid one over another, and a map of owners [h, w] keeps whose pixel each is. A place is taken only if nothing
beneath loses more than it may, so every thing stays at least 85 % visible; boxes are those of the pixels one sees.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFilter

from homunculus.data.dice import Dice
from homunculus.data.record import Region, Split
from homunculus.data.scenes.ground import scribble
from homunculus.data.scenes.objects import COLOURS, Look, look, render, shapes
from homunculus.geometry import Size

VISIBLE = 0.85
BORDER = 0.15  # a thing is in the periphery when its centre is this close to a border, as a share of the image

_TRIES = 30
_SMALLEST = 8  # pixels, however small the image


@dataclass(frozen=True)
class Thing:
    """A thing in the picture: its look, the box of its visible pixels, how many there are and would be."""

    look: Look
    box: tuple[int, int, int, int]
    region: Region
    pixels: int
    whole: int

    @cached_property
    def extent(self) -> int:
        return max(self.box[2] - self.box[0], self.box[3] - self.box[1])

    @cached_property
    def centre(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    def described(self) -> dict[str, Any]:
        """In plain types, for the record's meta."""
        return {
            "shape": self.look.shape,
            "colour": self.look.colour,
            "texture": self.look.texture,
            "box": list(self.box),
            "region": self.region,
            "pixels": self.pixels,
            "visible": round(self.pixels / self.whole, 4),
        }


@dataclass(frozen=True)
class Scene:
    """The things in the order they were laid, and the colour and shape that were laid to be counted."""

    things: tuple[Thing, ...]
    counted: tuple[str, str]


class Canvas:
    """The picture while it is being laid, and the owner of every pixel: 0 the ground, k the k-th thing, 255 clutter."""

    def __init__(self, image: Image.Image) -> None:
        self.image = image
        self.owners: UInt8[np.ndarray, "h w"] = np.zeros((image.height, image.width), np.uint8)
        self.whole: list[int] = [0]
        self.pixels: list[int] = [0]

    def fits(self, mask: np.ndarray, x: int, y: int, most_over: float) -> np.ndarray | None:
        """What each owner would lose to a mask at a place, or None where it may not lie."""
        height, width = mask.shape
        if x < 0 or y < 0 or x + width > self.image.width or y + height > self.image.height:
            return None
        lost = np.bincount(self.owners[y : y + height, x : x + width][mask], minlength=256)
        if lost[1:].sum() > most_over * mask.sum():
            return None
        for owner in np.flatnonzero(lost[1 : len(self.whole)]) + 1:
            if self.pixels[owner] - lost[owner] < VISIBLE * self.whole[owner]:
                return None
        return lost

    def take(self, mask: np.ndarray, x: int, y: int, lost: np.ndarray, owner: int) -> None:
        height, width = mask.shape
        self.owners[y : y + height, x : x + width][mask] = owner
        for other in range(1, len(self.whole)):
            self.pixels[other] -= int(lost[other])

    def lay(self, drawn: Image.Image, x: int, y: int, lost: np.ndarray) -> None:
        """Put a thing down with its shadow."""
        mask = _solid(drawn)
        self.take(mask, x, y, lost, len(self.whole))
        self.whole.append(int(mask.sum()))
        self.pixels.append(self.whole[-1])
        soft, reach = _shadow(drawn)
        self.image.paste((28, 24, 34), (x - reach // 2, y - reach // 3), soft)
        self.image.paste(drawn, (x, y), drawn)

    def box(self, owner: int, x: int, y: int, size: Size) -> tuple[int, int, int, int]:
        """The box of an owner's pixels, sought where it was laid."""
        seen = self.owners[y : y + size[1], x : x + size[0]] == owner
        across, down = np.flatnonzero(seen.any(0)), np.flatnonzero(seen.any(1))
        return int(x + across[0]), int(y + down[0]), int(x + across[-1] + 1), int(y + down[-1] + 1)


def compose(canvas: Canvas, dice: Dice, split: Split) -> Scene:
    """Lay a scene on a canvas."""
    size = canvas.image.size
    laid: list[tuple[Look, str, int, int, Size]] = []
    plan, counted = _plan(dice, split, size)
    for wanted, role in plan:
        drawn = render(wanted)
        mask = _solid(drawn)
        for _ in range(_TRIES):
            x, y = _spot(dice, role, size, drawn.size)
            lost = canvas.fits(mask, x, y, 0.0 if wanted.side < 40 else 0.1)
            if lost is not None:
                canvas.lay(drawn, x, y, lost)
                laid.append((wanted, role, x, y, drawn.size))
                break
    _twigs(canvas, dice)
    things = []
    for owner, (wanted, role, x, y, extent) in enumerate(laid, 1):
        box = canvas.box(owner, x, y, extent)
        things.append(Thing(wanted, box, _region(role, box, size), canvas.pixels[owner], canvas.whole[owner]))
    return Scene(tuple(things), counted)


def _plan(dice: Dice, split: Split, size: Size) -> tuple[list[tuple[Look, str]], tuple[str, str]]:
    """What to lay and where: one thing of each role with a shape of its own, a group to count, and others."""
    names, colours = dice.shuffled(shapes(split)), tuple(COLOURS)
    scale = min((size[0] * size[1]) ** 0.5 / 1024, min(size) / 640)

    def one(shape: str, low: int, high: int, colour: str | None = None) -> Look:
        side = max(_SMALLEST, round(dice.uniform(low, high) * scale))
        return look(dice, split, shape, colour or dice.choice(colours), side)

    own, rest = names[:3], names[3:]
    plan = [(one(own[0], 190, 400), "middle"), (one(own[1], 70, 160), "inner"), (one(own[2], 34, 100), "border")]
    counted, shade = rest[0], dice.choice(colours)
    low = dice.integer(26, 60)
    plan += [(one(counted, low, low + 24, shade), "any") for _ in range(dice.integer(0, 9))]
    others = tuple(colour for colour in colours if colour != shade)
    for role, low, high, least, most in (
        ("middle", 110, 220, 0, 2),
        ("inner", 50, 150, 2, 5),
        ("border", 30, 100, 2, 5),
        ("any", 14, 60, 4, 9),
    ):
        for _ in range(dice.integer(least, most)):
            shape = dice.choice(rest)
            plan.append((one(shape, low, high, dice.choice(others) if shape == counted else None), role))
    return plan, (shade, counted)


def _spot(dice: Dice, role: str, size: Size, extent: Size) -> tuple[int, int]:
    """The upper left corner of a thing so that its centre lies where its role wants it."""
    inside = BORDER + 0.03  # hiding part of a thing moves the centre of what is seen a little
    span = {"middle": (0.3, 0.7), "inner": (inside, 1 - inside)}.get(role, (0.0, 1.0))
    share = [dice.uniform(*span), dice.uniform(*span)]
    if role == "border":
        axis = dice.integer(0, 1)
        share[axis] = dice.uniform(0.0, BORDER - 0.03)
        if dice.chance(0.5):
            share[axis] = 1 - share[axis]
    x, y = (round(share[k] * size[k] - extent[k] / 2) for k in (0, 1))
    return min(max(x, 1), size[0] - extent[0] - 1), min(max(y, 1), size[1] - extent[1] - 1)


def _region(role: str, box: tuple[int, int, int, int], size: Size) -> Region:
    x, y = (box[0] + box[2]) / 2 / size[0], (box[1] + box[3]) / 2 / size[1]
    if min(x, y, 1 - x, 1 - y) < BORDER:
        return "periphery"
    return "target" if role == "middle" else "secondary"


def _twigs(canvas: Canvas, dice: Dice) -> None:
    """Thin things in front: where one would hide too much, it is left out."""
    thick = max(1, min(canvas.image.size) // 230)
    for _ in range(dice.integer(2, 7)):
        points = scribble(dice, canvas.image.size)
        x0, y0 = (max(0, min(values)) for values in zip(*points, strict=True))
        x1, y1 = (min(side, max(v)) for side, v in zip(canvas.image.size, zip(*points, strict=True), strict=True))
        tone = dice.choice([(92, 78, 62), (112, 118, 84), (80, 76, 78), (206, 198, 182)])
        if x1 <= x0 or y1 <= y0:
            continue
        line = Image.new("1", (x1 - x0, y1 - y0))
        ImageDraw.Draw(line).line([(x - x0, y - y0) for x, y in points], fill=1, width=thick, joint="curve")
        mask = np.asarray(line)
        lost = canvas.fits(mask, x0, y0, 1.0)
        if lost is not None:
            canvas.take(mask, x0, y0, lost, 255)
            canvas.image.paste(tone, (x0, y0), line)


def _solid(drawn: Image.Image) -> np.ndarray:
    """Where a thing covers at least half a pixel."""
    return np.asarray(drawn.getchannel("A")) >= 128


def _shadow(drawn: Image.Image) -> tuple[Image.Image, int]:
    """A soft mask of the thing, larger by twice the reach of the blur."""
    reach = max(2, max(drawn.size) // 12)
    mask = drawn.getchannel("A").point([level * 9 // 20 for level in range(256)])
    room = Image.new("L", (drawn.width + 2 * reach, drawn.height + 2 * reach))
    room.paste(mask, (reach, reach))
    return room.filter(ImageFilter.BoxBlur(reach // 2)), reach
