"""Colours that keep their order in greyscale, and text in the one font that Pillow always has."""

import unicodedata
from functools import lru_cache

import torch
from jaxtyping import Float, UInt8
from PIL import ImageFont
from torch import Tensor

from homunculus.errors import OutputError

Colour = tuple[int, int, int]

INK: Colour = (28, 28, 36)
SOFT_INK: Colour = (104, 104, 116)
PAPER: Colour = (255, 255, 255)
RULE: Colour = (214, 214, 222)

# Fine to coarse, light to dark: luminance falls at every step.
_LEVELS: list[Colour] = [
    (255, 236, 150),
    (255, 190, 104),
    (238, 134, 122),
    (176, 108, 168),
    (112, 92, 168),
    (70, 70, 138),
    (40, 42, 92),
]
_HEAT: list[Colour] = [(14, 14, 34), (74, 32, 110), (176, 48, 102), (240, 118, 60), (253, 202, 84), (255, 250, 214)]


def level_colour(level: float) -> Colour:
    """The colour of a level, fractions included: 0 is the lightest.

    >>> level_colour(0), level_colour(0.5)
    ((255, 236, 150), (255, 213, 127))
    """
    return _between(_LEVELS, level)


def heat(values: Float[Tensor, "h w"]) -> UInt8[Tensor, "3 h w"]:
    """Values in [0, 1] as colours from near-black to near-white.

    >>> heat(torch.tensor([[0.0, 1.0]]))[:, 0].tolist()
    [[14, 255], [14, 250], [34, 214]]
    """
    stops = torch.tensor(_HEAT, dtype=torch.float32)
    place = values.float().clamp(0, 1) * (len(_HEAT) - 1)
    low = place.floor().long().clamp(max=len(_HEAT) - 2)
    mixed = torch.lerp(stops[low], stops[low + 1], (place - low)[..., None])
    return mixed.round().to(torch.uint8).permute(2, 0, 1)


def _between(stops: list[Colour], place: float) -> Colour:
    place = min(max(place, 0.0), len(stops) - 1.0)
    low = min(int(place), len(stops) - 2)
    return tuple(round(a + (b - a) * (place - low)) for a, b in zip(stops[low], stops[low + 1], strict=True))  # type: ignore[return-value]


@lru_cache(maxsize=32)
def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own font, laid out the same on every machine."""
    found = ImageFont.load_default(size)
    if not isinstance(found, ImageFont.FreeTypeFont):
        raise OutputError("this Pillow was built without FreeType and cannot draw text: install Pillow's own wheel")
    return found


def drawable(text: str) -> str:
    """The text with every character the font lacks replaced by its plain form, or by a question mark.

    >>> drawable("Größe, naïve?")
    'Gro?e, naive?'
    """
    text = (
        text.replace("–", "-").replace("—", "-").replace("×", "x").replace("’", "'").replace("“", '"').replace("”", '"')
    )
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(c if c == " " or _has_glyph(c) else "?" for c in plain if c.isprintable())


@lru_cache(maxsize=1024)
def _has_glyph(character: str) -> bool:
    missing = bytes(font(20).getmask("\uffff"))
    return bytes(font(20).getmask(character)) != missing


def fitted(text: str, size: int, width: int) -> str:
    """The text, cut with an ellipsis where it would be wider than `width` pixels.

    >>> fitted("a rather long question", 14, 60)
    'a rathe...'
    """
    text = drawable(text[:2000])
    if font(size).getlength(text) <= width:
        return text
    low, high = 0, len(text)  # the longest prefix that fits, by bisection
    while low < high:
        middle = (low + high + 1) // 2
        fits = font(size).getlength(text[:middle] + "...") <= width
        low, high = (middle, high) if fits else (low, middle - 1)
    return text[:low].rstrip() + "..."
