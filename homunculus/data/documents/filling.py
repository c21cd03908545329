"""How a form is filled in: by pen or typewriter, on lines, in combs, with ticks, remarks and a signature.

What is printed is in the page's faces; what is filled in has a `Hand`. Each piece asks about what it draws.
"""

from dataclasses import dataclass
from functools import partial

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, furniture
from homunculus.data.documents.blocks import WHITE, Field
from homunculus.data.documents.page import Colour, Cut, Page
from homunculus.data.documents.words import Words, different
from homunculus.data.fonts import Face
from homunculus.data.record import Box

_PENS: tuple[Colour, ...] = ((24, 40, 130), (30, 30, 34), (16, 62, 140), (52, 40, 110))
_OFFICE = ("For office use only", "Office use", "To be completed by the office")


@dataclass(frozen=True)
class Hand:
    """How the form was filled in."""

    face: Face
    cut: Cut
    colour: Colour


def hand_of(page: Page, dice: Dice, upright: bool = False) -> Hand:
    cut: Cut = "regular" if upright else dice.choice(("italic", "italic", "regular"))
    face = page.mono if upright or dice.chance(0.3) else dice.choice((page.face, page.head))
    return Hand(face, cut, dice.choice(_PENS))


def enter(page: Page, hand: Hand, x: float, y: float, value: str, width: float) -> Box:
    """A value filled in on the line y."""
    size = page.fit(value, width, 20, cut=hand.cut, face=hand.face)
    return page.write(x, y, value, size, cut=hand.cut, fill=hand.colour, anchor="ls", face=hand.face)


def comb(page: Page, hand: Hand, x: int, y: int, value: str, cells: int) -> Box:
    """A value with a letter in each cell."""
    side, height = page.px(34), page.px(40)
    page.panel(x, y, x + cells * side, y + height, WHITE, page.faint)
    for place in range(1, cells):
        page.rule(x + place * side, y + height * 0.45, x + place * side, y + height, page.faint)
    before = len(page.written)
    found = [
        page.write(x + place * side + side / 2, y + height / 2, letter, 24, fill=hand.colour, anchor="mm",
                   face=hand.face)
        for place, letter in enumerate(value)
    ]  # fmt: skip
    whole = blocks.union(found)
    page.written[before:] = [(value, whole)]
    return whole


def options_to_tick(page: Page, words: Words, dice: Dice, hand: Hand, left: int, right: int, y: int) -> int:
    """Two rows of options, one ticked in each; the y below."""
    rows = (
        ("department", words.department),
        ("town", words.town),
        ("occupation", words.job),
        ("country", words.country),
    )
    for name, make in dice.sample(rows, 2):
        label = f"Preferred {name}"
        options = different(partial(make, dice), 4)
        ticked = dice.integer(0, 3)
        page.write(left, y + page.px(16), label, page.fit(label, page.px(190), 16), anchor="lm")
        step = (right - left - page.px(200)) / 4
        for place, option in enumerate(options):
            x, side = round(left + page.px(200) + place * step), page.px(18)
            square = (x, y + page.px(7), x + side, y + page.px(7) + side)
            page.panel(*square, fill=WHITE, edge=page.ink)
            box = page.write(x + side + page.px(7), y + page.px(16), option, page.fit(option, step - side - page.px(12),
                             15), anchor="lm")  # fmt: skip
            if place == ticked:
                _tick(page, dice, square, hand.colour)
                page.ask(
                    dice.choice((f"Which preferred {name} is ticked?", f"What is marked as the preferred {name}?",
                                 f"Which box is ticked for the preferred {name}?")),
                    option, [square, box], "secondary", "tick",
                )  # fmt: skip
        y += page.px(36)
    return y


def _tick(page: Page, dice: Dice, square: tuple[int, int, int, int], colour: Colour) -> None:
    x0, y0, x1, y1 = square
    thick = max(1, page.px(3))
    if dice.chance(0.5):
        page.pen.line((x0, y0, x1, y1), colour, thick)
        page.pen.line((x0, y1, x1, y0), colour, thick)
    else:
        tip = (x1 + page.px(4), y0 - page.px(5))
        page.pen.line([(x0 + 1, (y0 + y1) // 2), ((2 * x0 + x1) // 3, y1 - 1), tip], colour, thick, joint="curve")


def remarks(page: Page, words: Words, dice: Dice, hand: Hand, left: int, right: int, y: int) -> int:
    """Ruled lines for remarks where the page has room for them, with a remark on the first ones; the y below."""
    step = page.px(38)
    count = min(8, (page.size[1] - page.px(210) - y - page.px(26)) // step)
    if count < 1:
        return y
    page.write(left, y, dice.choice(("Remarks", "Further remarks", "Comments")), 15, cut="bold")
    y += page.px(22)
    lines = page.wrap(words.text(dice, 2), right - left - page.px(20), 20, cut=hand.cut, face=hand.face)[:count]
    for place in range(count):
        y += step
        page.rule(left, y, right, y, page.faint)
        if place < len(lines):
            box = enter(page, hand, left + page.px(10), y - page.px(7), lines[place], right - left)
            blocks.ask_place(page, dice, f"in line {place + 1} of the remarks", lines[place], box, "secondary")
    return y + page.px(6)


def office_corner(page: Page, words: Words, dice: Dice, x: int, y: int, width: int) -> None:
    """A tinted corner that the office fills in."""
    fields = [
        Field("File no.", words.code(dice), "file number"),
        Field("Received", words.date(dice), "date of receipt"),
        Field("Handled by", words.person(dice), "name of the clerk"),
    ]
    page.panel(x, y, x + width, y + page.px(112), page.tint, page.faint)
    caption = dice.choice(_OFFICE)
    page.write(x + page.px(10), y + page.px(7), caption, 13, cut="bold")
    found, _ = blocks.pairs(
        page, x + page.px(10), y + page.px(29), width - page.px(20), fields, "side", 15, leading=1.7
    )
    for field, box in zip(fields, found, strict=True):
        blocks.ask_section(page, dice, field.noun, "the box for the office", field.value, box, "periphery")


def sign(page: Page, words: Words, dice: Dice, hand: Hand, x: int, y: int, shape: int) -> None:
    """Place and date, and a signature, on lines with captions under them."""
    town, day = words.town(dice), words.date(dice, shape)
    for value, noun, at, width in ((town, "place of signing", 0, 180), (day, "date of signing", 196, 170)):
        left = x + page.px(at)
        page.rule(left, y, left + page.px(width), y, page.faint)
        page.write(left, y + page.px(6), noun.split()[0].capitalize(), 12, fill=page.faint)
        box = enter(page, hand, left + page.px(6), y - page.px(6), value, page.px(width - 10))
        blocks.ask_key(page, dice, noun, value, box, "periphery")
    left = x + page.px(384)
    page.rule(left, y, left + page.px(150), y, page.faint)
    page.write(left, y + page.px(6), "Signature", 12, fill=page.faint)
    furniture.signature(page, left + page.px(4), y, 140, dice, hand.colour)
