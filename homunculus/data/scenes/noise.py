"""Procedural roughness: smooth clouds, fine grain and a two-colour tint, in integers so that every machine agrees."""

import numpy as np
from jaxtyping import Int16, UInt8
from PIL import Image

from homunculus.data.dice import Dice
from homunculus.geometry import Size

Colour = tuple[int, int, int]

_GRAIN = 256  # side of the tile of fine grain: repeats are not seen at one pixel


def cloud(dice: Dice, size: Size, cells: Size, low: int = 0, high: int = 255) -> Image.Image:
    """Smooth noise, mode L: random levels at `cells` across and down, a bicubic surface between them.

    >>> cloud(Dice("sky"), (64, 32), (4, 2)).size
    (64, 32)
    """
    across, down = max(2, cells[0]), max(2, cells[1])
    levels = low + dice.octets(across * down).astype(np.int32) * (high - low) // 255
    coarse = Image.fromarray(levels.astype(np.uint8).reshape(down, across))
    # Curved between the levels, then straight to full size: as smooth as one sees, in half the time.
    middle = max(across, size[0] // 4), max(down, size[1] // 4)
    return coarse.resize(middle, Image.Resampling.BICUBIC).resize(size, Image.Resampling.BILINEAR)


def grain(dice: Dice, size: Size, strength: int) -> Int16[np.ndarray, "h w"]:
    """Fine noise about 0 within ±strength, peaked in the middle, one value a pixel."""
    levels = np.arange(256)
    table = ((levels % 16 + levels // 16 - 15) * strength // 15).astype(np.int16)
    tile = table[dice.octets(_GRAIN * _GRAIN)].reshape(_GRAIN, _GRAIN)
    repeats = (-(-size[1] // _GRAIN), -(-size[0] // _GRAIN))
    return np.tile(tile, repeats)[: size[1], : size[0]]


def tint(levels: np.ndarray | Image.Image, dark: Colour, light: Colour) -> Image.Image:
    """Levels 0 to 255 [h, w] as a picture between two colours."""
    image = levels.copy() if isinstance(levels, Image.Image) else Image.fromarray(clipped(levels))
    image.putpalette([d + (e - d) * level // 255 for level in range(256) for d, e in zip(dark, light, strict=True)])
    return image.convert("RGB")


def clipped(levels: np.ndarray) -> UInt8[np.ndarray, "..."]:
    """Integers as bytes, cut at 0 and 255."""
    return np.clip(levels, 0, 255).astype(np.uint8)


def vary(dice: Dice, colour: Colour, by: int) -> Colour:
    """A colour near another: all channels moved together by up to `by`, and each by up to a third of it more."""
    common = dice.integer(-by, by)
    r, g, b = (min(255, max(0, c + common + dice.integer(-(by // 3), by // 3))) for c in colour)
    return r, g, b


def mixed(one: Colour, other: Colour, share: float) -> Colour:
    """`share` of the other colour in the one.

    >>> mixed((0, 0, 0), (200, 100, 50), 0.5)
    (100, 50, 25)
    """
    r, g, b = (round(a + (c - a) * share) for a, c in zip(one, other, strict=True))
    return r, g, b
