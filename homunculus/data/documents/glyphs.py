"""Lines of type from letters that are rendered once.

FreeType renders a line anew each time, which takes most of the time of a page. Here each letter of a font is rendered
once and kept, and a line puts the letters where Pillow puts them: on whole pixels, by advance and kerning. The pixels
are Pillow's own (a test compares), at a fraction of the time.
"""

from functools import lru_cache
from typing import Any

from PIL import ImageDraw, ImageFont

from homunculus.errors import DataError

Corners = tuple[int, int, int, int]


class Glyphs:
    """The letters of a font at one size, rendered when they are first needed.

    >>> from homunculus.data.fonts import FACES, load
    >>> glyphs = Glyphs(load(FACES[0], 20))
    >>> glyphs.length("Total") == load(FACES[0], 20).getlength("Total")
    True
    """

    def __init__(self, font: ImageFont.FreeTypeFont) -> None:
        self.font = font
        self.ascent, descent = font.getmetrics()
        self.descent = -descent
        self._letters: dict[str, tuple[Any, int, int, Corners | None, float]] = {}
        self._kerning: dict[str, float] = {}

    def length(self, text: str) -> float:
        """How far a line reaches, in pixels."""
        return self._line(text)[1]

    def draw(self, pen: ImageDraw.ImageDraw, x: int, y: int, text: str, ink: int, anchor: str) -> Corners | None:
        """Draw a line with its anchor at (x, y): the box of its ink, or None if it has none."""
        places, reach = self._line(text)
        x -= _left(reach, anchor)
        y += self._rise(anchor)
        paint = pen.draw.draw_bitmap
        left, top, right, bottom = 1 << 30, 1 << 30, -(1 << 30), -(1 << 30)
        for letter, place in places:
            mask, dx, dy, box, _ = self._letters[letter]
            if box is None:
                continue
            dx, dy = x + place + dx, y + dy
            paint((dx, dy), mask, ink)
            left, top = min(left, dx + box[0]), min(top, dy + box[1])
            right, bottom = max(right, dx + box[2]), max(bottom, dy + box[3])
        return (left, top, right, bottom) if left < right else None

    def centres(self, x: int, text: str, anchor: str) -> list[float]:
        """Where the middle of each letter of a line comes to lie, across, if it is drawn with its anchor at x.

        >>> from homunculus.data.fonts import FACES, load
        >>> Glyphs(load(FACES[4], 20)).centres(100, "mono", "la")
        [106.0, 118.0, 130.0, 142.0]
        """
        places, reach = self._line(text)
        x -= _left(reach, anchor)
        return [x + place + self._letters[letter][4] / 2 for letter, place in places]

    def _line(self, text: str) -> tuple[list[tuple[str, int]], float]:
        """Each letter with the pixel it starts at, and the length of the line."""
        x, last, places = 0.0, "", []
        letters, kerning = self._letters, self._kerning
        for letter in text:
            if letter not in letters:
                mask, (dx, dy) = self.font.getmask2(letter, "L", anchor="ls")
                letters[letter] = mask, dx, dy, mask.getbbox(), self.font.getlength(letter)
            pair = last + letter
            if pair not in kerning:
                kerning[pair] = self.font.getlength(pair) - (letters[last][4] + letters[letter][4]) if last else 0.0
            x += kerning[pair]
            places.append((letter, int(x + 0.5)))
            x += letters[letter][4]
            last = letter
        return places, x

    def _rise(self, anchor: str) -> int:
        """How far below the anchor the line stands."""
        if anchor[1] not in "ams":
            raise DataError(f"the anchor '{anchor}' is not one of l, m, r with a, m, s")
        return {"a": self.ascent, "m": (self.ascent + self.descent) // 2, "s": 0}[anchor[1]]


def _left(reach: float, anchor: str) -> int:
    """How far left of its anchor a line begins."""
    if anchor[0] == "l":
        return 0
    return int(reach / 2 + 0.5) if anchor[0] == "m" else int(reach + 0.5)


@lru_cache(maxsize=4096)
def glyphs(font: ImageFont.FreeTypeFont) -> Glyphs:
    """The letters of a font, kept from page to page."""
    return Glyphs(font)
