"""Running text set word by word: justified or ragged, with the boxes of marked words and with formulas in the line.

Words are kept as masks, since running text repeats them: a full page of it takes a few milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from homunculus.data.documents import formulas
from homunculus.data.documents.glyphs import glyphs
from homunculus.data.documents.page import Colour, Cut, Page
from homunculus.data.fonts import Face, missing
from homunculus.data.record import Box
from homunculus.errors import DataError

_OPEN, _CLOSE = "\x01", "\x02"

Span = tuple[str, list[Box]]  # a marked text, and the box of it on each line it is on


def mark(value: str) -> str:
    """A value inside a text whose boxes are wanted.

    >>> f"due on {mark('3 May')}." != "due on 3 May."
    True
    """
    return f"{_OPEN}{value}{_CLOSE}"


@dataclass(frozen=True)
class Flowed:
    """What became of a text: its marked spans in order, the y below its last line, and what there was no room for."""

    spans: list[Span]
    below: int
    rest: str = ""


def paragraph(
    page: Page, x: int, y: int, width: int, text: str, size: float = 20, *, leading: float = 1.36,
    justify: bool = False, indent: float = 0, limit: int | None = None, cut: Cut = "regular",
    face: Face | None = None, fill: Colour | None = None, inline: Mapping[str, formulas.Piece] | None = None,
) -> Flowed:  # fmt: skip
    """Set a text to a width from the top left corner (x, y), in at most `limit` lines.

    A letter of the private use area that is a key of `inline` is drawn as that formula.

    >>> from homunculus.data.dice import Dice
    >>> page = Page((512, 512), "train", Dice("flow"))
    >>> flowed = paragraph(page, 20, 20, 200, f"The rent is due on {mark('3 May 2031')} at noon.", 16)
    >>> flowed.spans[0][0], len(flowed.spans[0][1]) in (1, 2), flowed.below > 30
    ('3 May 2031', True, True)
    """
    face, inline = face or page.face, inline or {}
    font, paint = page.font(size, cut, face), fill or page.ink
    plain = "".join(letter for letter in text if letter not in (_OPEN, _CLOSE, *inline))
    if lacking := missing(face, "".join(sorted(set(plain)))):
        raise DataError(f"{face.name} cannot write {lacking!r} of {plain!r}: choose other letters or another face")
    step, ink = page.px(size * leading), page.pen.draw.draw_ink(paint)
    space, ascent = gap(font), font.getmetrics()[0]
    baseline, inside = y + ascent, False
    spans: list[tuple[str, list[tuple[int, Box]]]] = []
    lines = _lines(text.split(), width, space, page.px(indent), font, inline)
    shown = lines[:limit]
    for number, (line, used) in enumerate(shown):
        start = pen = x + (page.px(indent) if number == 0 else 0)
        gaps, spare = len(line) - 1, width - (pen - x) - used
        if not (justify and gaps and number < len(lines) - 1 and spare < width // 3):
            spare = 0
        said, centres = [], []
        for place, word in enumerate(line):
            if place:
                room = space + spare * place // gaps - spare * (place - 1) // gaps
                said.append(" ")
                centres.append(pen + room / 2)
                pen += room
            for part in _parts(word):
                if part == _OPEN:
                    inside = True
                    spans.append(("", []))
                elif part == _CLOSE:
                    inside = False
                elif part in inline:
                    formulas.draw(page, pen, baseline, inline[part], paint)
                    pen += inline[part].width
                else:
                    mask, (left, top, right, bottom), advance, middles = _word(font, part)
                    page.pen.draw.draw_bitmap((pen + left, baseline + top), mask, ink)
                    if inside:
                        box = (pen + left, baseline + top, pen + right, baseline + bottom)
                        spans[-1] = _extended(spans[-1], part, box, number)
                    centres += [pen + middle for middle in middles]
                    pen += advance
                    said.append(part)
        if pen > page.size[0] or baseline > page.size[1]:
            raise DataError(f"the line {''.join(said)!r} leaves the page of {page.size}: set less text")
        page.note("".join(said), (start, baseline - ascent, pen, baseline + step - ascent), centres)
        baseline += step
    found = [(value, [box for _, box in boxes]) for value, boxes in spans]
    rest = " ".join(" ".join(line) for line, _ in lines[len(shown) :])
    return Flowed(found, baseline - ascent, rest)


def count(page: Page, width: int, text: str, size: float = 20, *, indent: float = 0, cut: Cut = "regular",
          face: Face | None = None) -> int:  # fmt: skip
    """How many lines a text without formulas will take."""
    font = page.font(size, cut, face)
    return len(_lines(text.split(), width, gap(font), page.px(indent), font, {}))


def gap(font: ImageFont.FreeTypeFont) -> int:
    """The least room between two words."""
    return max(round(font.getlength(" ")), round(font.size * 0.25))


def _extended(
    span: tuple[str, list[tuple[int, Box]]], part: str, box: Box, line: int
) -> tuple[str, list[tuple[int, Box]]]:
    """A span with one more word: on the same line the box grows, on a new line there is another."""
    value, boxes = span
    if boxes and boxes[-1][0] == line:
        old = boxes[-1][1]
        grown = min(old[0], box[0]), min(old[1], box[1]), max(old[2], box[2]), max(old[3], box[3])
        boxes = [*boxes[:-1], (line, grown)]
    else:
        boxes = [*boxes, (line, box)]
    return f"{value} {part}".strip(), boxes


def _lines(
    words: list[str], width: int, space: int, indent: int, font: ImageFont.FreeTypeFont,
    inline: Mapping[str, formulas.Piece],
) -> list[tuple[list[str], int]]:  # fmt: skip
    """The words of each line and how wide they are with plain spaces."""
    lines: list[tuple[list[str], int]] = []
    line: list[str] = []
    used, room = 0, width - indent
    for word in words:
        long = sum(
            inline[part].width if part in inline else _word(font, part)[2]
            for part in _parts(word)
            if part not in (_OPEN, _CLOSE)
        )
        if line and used + space + long > room:
            lines.append((line, used))
            line, used, room = [], -space, width
        elif not line:
            used = -space
        line.append(word)
        used += space + long
    return [*lines, (line, used)]


@lru_cache(maxsize=16384)
def _parts(word: str) -> tuple[str, ...]:
    """A word cut at its marks and formulas (private letters), each of them a part."""
    apart = (f"\x00{sign}\x00" if sign in (_OPEN, _CLOSE) or "\ue000" <= sign <= "\uf8ff" else sign for sign in word)
    return tuple(part for part in "".join(apart).split("\x00") if part)


@lru_cache(maxsize=16384)
def _word(font: ImageFont.FreeTypeFont, text: str) -> tuple[Any, tuple[int, int, int, int], int, list[float]]:
    """The mask of a word, where that lies from the pen on the baseline, how far the pen moves on, and how far along the
    middle of each letter is."""
    letters, pad = glyphs(font), round(font.size)  # letters may lean out of their room
    reach = round(letters.length(text))
    canvas = Image.new("L", (reach + 2 * pad, letters.ascent - letters.descent + 2 * pad))
    box = letters.draw(ImageDraw.Draw(canvas), pad, letters.ascent + pad, text, 255, "ls")
    if box is None:
        raise DataError(f"{text!r} leaves no ink: write letters")
    left, top, right, bottom = box
    down = letters.ascent + pad
    return (
        canvas.crop(box).im,
        (left - pad, top - down, right - pad, bottom - down),
        reach,
        letters.centres(0, text, "ls"),
    )
