"""Words as flat masks: set in a face the split may use, straight or bent along an arc."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from PIL import Image, ImageDraw
from PIL.ImageFont import FreeTypeFont

from homunculus.data.dice import Dice
from homunculus.data.fonts import Face, faces, load, missing
from homunculus.data.record import Split
from homunculus.errors import DataError

_STRIPS = 24  # of a bent word: narrow enough that no letter shows a corner


@dataclass(frozen=True)
class Hand:
    """How a surface is lettered: the face and its cut."""

    face: Face
    bold: bool


def hand(dice: Dice, split: Split) -> Hand:
    """A face of the split, mostly in bold: signs are."""
    return Hand(dice.choice(faces(split)), dice.chance(0.75))


def font(how: Hand, height: int) -> FreeTypeFont:
    """The font whose capitals are `height` pixels tall."""
    return load(how.face, max(6, round(height * 100 / _capital(how))), "bold" if how.bold else "regular")


@lru_cache(maxsize=64)
def _capital(how: Hand) -> float:
    """The height of a capital at 100 pixels."""
    _, top, _, bottom = load(how.face, 100, "bold" if how.bold else "regular").getbbox("H")
    return bottom - top


def measure(text: str, how: Hand, height: int) -> int:
    """How wide a text will be."""
    x0, _, x1, _ = font(how, height).getbbox(text)
    return round(x1 - x0)


def written(text: str, how: Hand, height: int) -> Image.Image:
    """The text as a mask, mode L, cropped to its ink; capitals are `height` pixels tall.

    >>> from homunculus.data.fonts import FACES
    >>> written("EXIT", Hand(FACES[0], True), 40).height in range(38, 44)
    True
    """
    if lacking := missing(how.face, text):
        raise DataError(f"{how.face.name} cannot write {lacking!r} of {text!r}: choose another face")
    letters = font(how, height)
    x0, y0, x1, y1 = (round(edge) for edge in letters.getbbox(text))
    mask = Image.new("L", (x1 - x0 + 4, y1 - y0 + 4))
    ImageDraw.Draw(mask).text((2 - x0, 2 - y0), text, font=letters, fill=255)
    return mask.crop(mask.getbbox())


def bent(mask: Image.Image, sag: int) -> Image.Image:
    """The mask with its middle `sag` pixels above its ends (below, where negative): a shallow arc.

    >>> bent(Image.new("L", (200, 40), 255), 30).size
    (200, 70)
    """
    width, height = mask.size
    tall = height + abs(sag)

    def drop(x: int) -> float:  # how far down the column at x hangs
        off = 2 * x - width
        depth = abs(sag) * off * off / (width * width)
        return depth if sag > 0 else abs(sag) - depth

    edges = [width * k // _STRIPS for k in range(_STRIPS + 1)]
    mesh = []
    for left, right in pairwise(edges):
        if right > left:
            a, b = drop(left), drop(right)
            mesh.append(((left, 0, right, tall), (left, -a, left, tall - a, right, tall - b, right, -b)))
    return mask.transform((width, tall), Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)
