"""What is pressed, drawn or printed on a page besides text: logos, stamps, signatures, barcodes, margin marks.

Positions are pixels of the page, sizes are design pixels (at 1024), as in `Page`; every text comes back with its box.
Stamps are inked through a mask and multiplied, as ink on paper is, so print under a stamp stays black; the box of a
turned text is that of its turned ink. Barcodes are interleaved 2 of 5 and scan.
"""

from itertools import pairwise
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont

from homunculus.data import fonts
from homunculus.data.dice import Dice
from homunculus.data.documents.page import Colour, Page
from homunculus.data.documents.words import Words
from homunculus.data.record import Box

Piece = tuple[str, Box]  # a text and the box of its ink

_STAMP_INKS: tuple[Colour, ...] = ((176, 28, 40), (24, 52, 140), (20, 100, 72), (96, 36, 128), (52, 56, 64))
_STAMP_WORDS = ("RECEIVED", "APPROVED", "FILED", "ENTERED", "CHECKED", "COPY", "REGISTERED", "PAID", "ORIGINAL")
_HELD_OUT_STAMP_WORDS = ("DIGITISED", "CERTIFIED", "ARCHIVED", "NOTARISED", "DISPATCHED")

# Interleaved 2 of 5: which of a digit's five bars (or spaces) are wide.
WIDE = ("00110", "10001", "01001", "11000", "00101", "10100", "01100", "00011", "10010", "01010")


# Logos


def logo(page: Page, x: int, y: int, size: int, dice: Dice, letters: str = "") -> Box:
    """A drawn mark in a square of `size` design pixels; with letters it may be a monogram."""
    side = page.px(size)
    tile = Image.new("RGBA", (side * 4, side * 4), (*page.paper, 0))  # four times as large: smooth edges
    pen, n = ImageDraw.Draw(tile), side * 4
    mark = dice.choice(
        (_rings, _discs, _chevrons, _hexagon, _bars, _peaks, *((_monogram, _monogram) if letters else ()))
    )
    if mark is _monogram:
        _monogram(pen, n, page, letters, dice)
    else:
        mark(pen, n, page, dice)
    small = tile.reduce(4)
    page.image.paste(small, (x, y), small.getchannel("A"))
    left, top, right, bottom = small.getchannel("A").getbbox() or (0, 0, side, side)
    return x + left, y + top, x + right, y + bottom


def _rings(pen: ImageDraw.ImageDraw, n: int, page: Page, dice: Dice) -> None:
    pen.ellipse((0, 0, n - 1, n - 1), outline=page.accent, width=n // 9)
    pen.ellipse((n // 4, n // 4, n - n // 4, n - n // 4), fill=page.accent)
    if dice.chance(0.5):
        pen.rectangle((n // 2, n // 2, n, n), fill=(0, 0, 0, 0))


def _discs(pen: ImageDraw.ImageDraw, n: int, page: Page, dice: Dice) -> None:
    third = n * 3 // 5
    pen.ellipse((0, n // 5, third, n // 5 + third), fill=page.accent)
    pen.ellipse((n - third, n // 5, n - 1, n // 5 + third), fill=page.ink if dice.chance(0.5) else page.faint)
    pen.ellipse((n * 9 // 20, n * 7 // 20, n * 11 // 20, n * 13 // 20), fill=(255, 255, 255))


def _chevrons(pen: ImageDraw.ImageDraw, n: int, page: Page, dice: Dice) -> None:
    for step in range(dice.integer(2, 3)):
        left = step * n // 4
        points = [(left, 0), (left + n // 6, 0), (left + n // 2, n // 2), (left + n // 6, n - 1), (left, n - 1)]
        pen.polygon([*points, (left + n // 3, n // 2)], fill=page.ink if step == 1 else page.accent)


def _hexagon(pen: ImageDraw.ImageDraw, n: int, page: Page, dice: Dice) -> None:
    outer = [(n // 2, 0), (n * 14 // 15, n // 4), (n * 14 // 15, n * 3 // 4), (n // 2, n - 1)]
    pen.polygon([*outer, (n // 15, n * 3 // 4), (n // 15, n // 4)], fill=page.accent)
    pen.polygon([(n // 2, n // 2), *outer[1:]] if dice.chance(0.5) else [(n // 2, n // 2), *outer[:3]], fill=page.ink)
    pen.line([(n // 2, n // 2), (n // 2, n - 1)], fill=(255, 255, 255), width=n // 24)


def _bars(pen: ImageDraw.ImageDraw, n: int, page: Page, dice: Dice) -> None:
    heights = dice.shuffled((n // 3, n // 2, n * 2 // 3, n - 1))
    for place, height in enumerate(heights):
        left = place * n // 4
        pen.rounded_rectangle((left, n - 1 - height, left + n // 6, n - 1), n // 20, fill=page.accent)


def _peaks(pen: ImageDraw.ImageDraw, n: int, page: Page, dice: Dice) -> None:
    tip = n // 2 - n // 8 + dice.integer(0, n // 4)
    pen.polygon([(0, n * 4 // 5), (n // 3, n // 4), (n * 2 // 3, n * 4 // 5)], fill=page.accent)
    pen.polygon([(n // 4, n * 4 // 5), (tip, n // 8), (n - 1, n * 4 // 5)], fill=page.ink)
    pen.rectangle((0, n * 17 // 20, n - 1, n * 9 // 10), fill=page.accent)


def _monogram(pen: ImageDraw.ImageDraw, n: int, page: Page, letters: str, dice: Dice) -> None:
    if dice.chance(0.5):
        pen.ellipse((0, 0, n - 1, n - 1), fill=page.accent)
    else:
        pen.rounded_rectangle((0, 0, n - 1, n - 1), dice.choice((0, n // 8, n // 4)), fill=page.accent)
    font = fonts.load(page.head, n // (2 if len(letters) < 3 else 3), "bold")
    pen.text((n // 2, n // 2), letters, fill=(255, 255, 255), font=font, anchor="mm")


# Stamps


def stamp(page: Page, x: int, y: int, words: Words, dice: Dice, shape: str = "") -> dict[str, Piece]:
    """A rubber stamp centred at (x, y), round or rectangular, with a word and a date or a code: their boxes by name."""
    shape = shape or dice.choice(("round", "rectangular", "rectangular"))
    word = dice.choice(_HELD_OUT_STAMP_WORDS if page.split == "test-ood" else _STAMP_WORDS)
    name, value = dice.choice((("date", words.date(dice)), ("code", words.code(dice))))
    layers = (_round if shape == "round" else _rectangular)(page, word, value, words.company(dice).upper(), dice)
    angle = dice.integer(-24, 24) if shape == "round" else dice.integer(-14, 14)
    boxes = press(page, x, y, layers, angle, dice.choice(_STAMP_INKS), dice)
    found = {"word": (word, boxes[1]), name: (value, boxes[2])}
    page.written.extend(found.values())
    return found


def press(page: Page, x: int, y: int, layers: list[Image.Image], angle: int, ink: Colour, dice: Dice) -> list[Box]:
    """Ink masks of one size (mode L) on the page, turned by `angle` degrees about (x, y): the box of each."""
    turned = [layer.rotate(angle, Image.Resampling.BICUBIC, expand=True) for layer in layers]
    whole = turned[0]
    for layer in turned[1:]:
        whole = ImageChops.lighter(whole, layer)
    worn = dice.array(16 * 16).reshape(16, 16) * 110 + 120  # uneven ink: darker and lighter patches
    patches = Image.fromarray(worn.astype(np.uint8)).resize(whole.size, Image.Resampling.BILINEAR)
    left, top = x - whole.width // 2, y - whole.height // 2
    left = max(0, min(left, page.image.width - whole.width))
    top = max(0, min(top, page.image.height - whole.height))
    area = (left, top, left + whole.width, top + whole.height)
    tint = Image.composite(
        Image.new("RGB", whole.size, ink),
        Image.new("RGB", whole.size, (255, 255, 255)),
        ImageChops.multiply(whole, patches),
    )
    page.image.paste(ImageChops.multiply(page.image.crop(area), tint), area[:2])
    boxes = [layer.point(_INKED).getbbox() or (0, 0, 1, 1) for layer in turned]
    return [(left + a, top + b, left + c, top + d) for a, b, c, d in boxes]


_INKED = [0] * 48 + [255] * 208  # fainter than this is not seen


def _rectangular(page: Page, word: str, value: str, _: str, dice: Dice) -> list[Image.Image]:
    """Masks of the frame, the word and the value."""
    big, small = (fonts.load(page.head, page.px(size), "bold") for size in (30, 19))
    pad, edge = page.px(12), max(1, page.px(3))
    width = int(max(big.getlength(word), small.getlength(value))) + 2 * pad
    high, low = page.px(30), page.px(19)
    size = (width, high + low + 3 * pad)
    frame, upper, lower = (Image.new("L", size) for _ in range(3))
    ImageDraw.Draw(frame).rounded_rectangle((0, 0, size[0] - 1, size[1] - 1), page.px(8), outline=255, width=edge)
    if dice.chance(0.5):
        inset = 2 * edge
        ImageDraw.Draw(frame).rectangle((inset, inset, size[0] - 1 - inset, size[1] - 1 - inset), outline=200)
    ImageDraw.Draw(upper).text((width // 2, pad + high // 2), word, 255, big, "mm")
    ImageDraw.Draw(lower).text((width // 2, 2 * pad + high + low // 2), value, 255, small, "mm")
    return [frame, upper, lower]


def _round(page: Page, word: str, value: str, around: str, dice: Dice) -> list[Image.Image]:
    """Masks of the rings with a name set round them, of the word and of the value."""
    radius, edge = page.px(92), max(1, page.px(3))
    size = (2 * radius, 2 * radius)
    rings, upper, lower = (Image.new("L", size) for _ in range(3))
    pen = ImageDraw.Draw(rings)
    inner = page.px(28)
    pen.ellipse((0, 0, size[0] - 1, size[1] - 1), outline=255, width=edge)
    pen.ellipse((inner, inner, size[0] - 1 - inner, size[1] - 1 - inner), outline=255, width=max(1, edge // 2))
    _along_ring(rings, around, fonts.load(page.head, page.px(17), "bold"), radius - inner // 2)
    room = size[0] - 2 * inner - page.px(14)
    for mask, text, largest, place in ((upper, word, 24, -16), (lower, value, 18, 16)):
        font = fonts.load(page.head, page.px(largest), "bold")
        if font.getlength(text) > room:
            font = fonts.load(page.head, max(6, int(page.px(largest) * room / font.getlength(text))), "bold")
        ImageDraw.Draw(mask).text((radius, radius + page.px(place)), text, 255, font, "mm")
    if dice.chance(0.5):
        pen.line(
            (inner + page.px(14), radius, size[0] - inner - page.px(14), radius), fill=220, width=max(1, edge // 2)
        )
    return [rings, upper, lower]


def _along_ring(mask: Image.Image, text: str, font: ImageFont.FreeTypeFont, radius: int) -> None:
    """A text set clockwise round the middle of a mask, starting so that it is centred at the top."""
    widths = [font.getlength(letter) for letter in text]
    stretch = min(1.12, 1.85 * pi * radius / sum(widths))
    angle = -sum(widths) * stretch / radius / 2
    for letter, width in zip(text, widths, strict=True):
        angle += width * stretch / radius / 2
        side = int(2 * max(widths)) + 4
        glyph = Image.new("L", (side, side))
        ImageDraw.Draw(glyph).text((side // 2, side // 2), letter, 255, font, "mm")
        glyph = glyph.rotate(round(-angle * 180 / pi, 2), Image.Resampling.BICUBIC)
        middle = mask.width // 2 + radius * sin(angle), mask.height // 2 - radius * cos(angle)
        corner = round(middle[0]) - side // 2, round(middle[1]) - side // 2
        mask.paste(255, corner, glyph)
        angle += width * stretch / radius / 2


# Signatures, barcodes, marks


def signature(page: Page, x: int, y: int, width: int, dice: Dice, ink: Colour = (28, 36, 110)) -> Box:
    """A handwritten scrawl from (x, y) on its baseline, `width` design pixels long, in smooth curves."""
    across, tall, scale = page.px(width), page.px(width * 0.36), 3
    count = dice.integer(9, 14)
    knots = [(0.04, 0.6)]
    for place in range(1, count):
        high = place % 2 == 1
        reach = dice.uniform(0.05, 0.35) if place < 4 else dice.uniform(0.3, 0.5)
        knots.append((place / count * 0.86 + dice.uniform(-0.09, 0.05), reach if high else dice.uniform(0.55, 0.8)))
    knots += [(0.9, 0.62), (1.0, dice.uniform(0.3, 0.75))]
    if dice.chance(0.5):  # a stroke back under the name
        knots += [(0.85, 0.9), (0.3, 0.86), (0.7, 0.93)]
    line = _smooth(knots)
    mask = Image.new("L", (across * scale, tall * scale))
    pen = ImageDraw.Draw(mask)
    points = [(round(a * (across - 6) * scale) + 9, round(b * (tall - 6) * scale) + 9) for a, b in line]
    thick = max(2, page.px(2.2 * scale))
    for place, (a, b) in enumerate(pairwise(points)):
        pen.line((a, b), fill=255, width=thick + (place // 5) % 3 * scale // 2)
    mask = mask.reduce(scale)
    corner = (x, y - tall * 3 // 4)
    page.image.paste(ink, corner, mask)
    left, top, right, bottom = mask.getbbox() or (0, 0, 1, 1)
    return corner[0] + left, corner[1] + top, corner[0] + right, corner[1] + bottom


def _smooth(knots: list[tuple[float, float]], steps: int = 10) -> list[tuple[float, float]]:
    """A Catmull-Rom curve through the knots."""
    ends = [knots[0], *knots, knots[-1]]
    curve = []
    for a, b, c, d in zip(ends, ends[1:], ends[2:], ends[3:], strict=False):
        for t in (step / steps for step in range(steps)):
            weights = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2)
            four = tuple(zip(weights, (a, b, c, d), strict=True))
            curve.append((sum(w * p[0] for w, p in four) / 2, sum(w * p[1] for w, p in four) / 2))
    return curve


def bars(digits: str) -> list[int]:
    """The widths of bars and spaces in turn, from the first bar to the last, that code an even number of digits.

    >>> bars("27")[4:14]  # 2 in the bars, 7 in the spaces between them
    [1, 1, 3, 1, 1, 1, 1, 3, 3, 3]
    """
    widths = [1, 1, 1, 1]
    for left, right in zip(digits[::2], digits[1::2], strict=True):
        for bar, space in zip(WIDE[int(left)], WIDE[int(right)], strict=True):
            widths += [1 + 2 * int(bar), 1 + 2 * int(space)]
    return [*widths, 3, 1, 1]


def barcode(page: Page, x: int, y: int, digits: str, height: int = 56, size: int = 16) -> tuple[Box, Piece]:
    """A barcode with its top left corner at (x, y) and the digits below: the box of the bars, and the digits'.

    >>> page = Page((512, 512), "train", Dice("a barcode"))
    >>> (x0, _, x1, _), (text, _) = barcode(page, 20, 20, "204173")
    >>> x1 - x0 == barcode_width(page, text)
    True
    """
    module, bottom = max(1, page.px(1.6)), y + page.px(height)
    left = x
    for place, width in enumerate(bars(digits)):
        if place % 2 == 0:
            page.pen.rectangle((left, y, left + width * module - 1, bottom - 1), fill=(12, 12, 12))
        left += width * module
    box = page.write((x + left) // 2, bottom + page.px(4), digits, size, anchor="ma", face=page.mono)
    return (x, y, left, bottom), (digits, box)


def barcode_width(page: Page, digits: str) -> int:
    """How wide a barcode will be, in pixels of the page."""
    return sum(bars(digits)) * max(1, page.px(1.6))


def sideways(page: Page, x: int, y: int, text: str, size: int = 13) -> Piece:
    """A line set upwards, as in the margins of forms, its top left corner at (x, y)."""
    font = page.font(size)
    left, top, right, bottom = (int(edge) for edge in font.getbbox(text))
    mask = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(mask).text((-left, -top), text, 255, font)
    mask = mask.transpose(Image.Transpose.ROTATE_90)
    page.image.paste(page.faint, (x, y), mask)
    a, b, c, d = mask.getbbox() or (0, 0, 1, 1)
    box = (x + a, y + b, x + c, y + d)
    page.written.append((text, box))
    return text, box


def margin_marks(page: Page, dice: Dice) -> None:
    """Fold marks, punch holes or crop marks: what margins carry besides text."""
    width, height = page.size
    kind = dice.choice(("folds", "holes", "crops"))
    if kind == "folds":
        for share in (1 / 3, 1 / 2, 2 / 3):
            page.pen.line((page.px(6), round(height * share), page.px(18), round(height * share)), fill=page.faint)
    elif kind == "holes":
        radius, x = page.px(11), page.px(26)
        for share in dice.choice(((0.39, 0.61), (0.2, 0.4, 0.6, 0.8), (0.12, 0.5, 0.88))):
            y = round(height * share)
            page.pen.ellipse(
                (x - radius, y - radius, x + radius, y + radius), fill=(214, 214, 212), outline=(176, 176, 174)
            )
    else:
        gap, arm = page.px(16), page.px(14)
        for x, inward in ((gap, 1), (width - 1 - gap, -1)):
            for y, down in ((gap, 1), (height - 1 - gap, -1)):
                page.pen.line((x - inward * arm, y, x - inward * 3, y), fill=page.faint)
                page.pen.line((x, y - down * arm, x, y - down * 3), fill=page.faint)
