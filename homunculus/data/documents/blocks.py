"""What documents are made of: keys with values, tables, addresses, lines at the foot; and how one asks about them.

Places and widths are pixels of the page, type is in design pixels. A block draws and returns the boxes of its values
and the y below it; asking is separate, because the same block is the main matter of one page and a margin of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from homunculus.data.dice import Dice
from homunculus.data.documents.page import Colour, Cut, Page
from homunculus.data.documents.words import ordinal
from homunculus.data.fonts import Face
from homunculus.data.record import Box, Region

WHITE: Colour = (255, 255, 255)

Pairs = Literal["side", "edges", "above", "colon", "grid"]
Ruling = Literal["rules", "grid", "zebra", "open", "band"]

_BY_KEY = (
    "What is the {}?", "What is the {}?", "What does it say for the {}?", "Can you read the {}?", "Please give the {}.",
    "I need the {}: what is it?", "Find the {}.", "Tell me the {}.",
)  # fmt: skip
_SHORT = ("Which {} is given?", "What {} is stated?", "Which {} is shown here?")  # for nouns of one or two words
_IN_SECTION = (
    "What is the {} in {}?", "Which {} is given in {}?", "In {}, what is the {}?", "Look at {}: what is the {}?",
)  # fmt: skip
_AT_PLACE = (
    "What is written {}?", "What does it say {}?", "What text stands {}?", "Which text is printed {}?",
    "Read what is {}.",
)  # fmt: skip


_PEOPLE = (
    "Who is the {}?", "Who is named as the {}?", "What is the name of the {}?", "Whose name is given for the {}?",
)  # fmt: skip
_ROLES = ("person", "representative", "holder", "cashier", "server", "passenger", "applicant", "guest", "driver",
          "sender", "supervisor", "witness", "doctor", "buyer", "operator")  # fmt: skip
_SPOKEN = {"Qty": "quantity", "Article no.": "article number", "Dept.": "department", "Departs": "departure time",
           "Arrives": "arrival time", "Bags": "baggage allowance"}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A key as printed, the value, and what a question calls it."""

    key: str
    value: str
    noun: str


def union(boxes: Sequence[Box]) -> Box:
    """The smallest box round some boxes.

    >>> union([(1, 2, 3, 4), (2, 0, 9, 3)])
    (1, 0, 9, 4)
    """
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


# Drawing


def pairs(
    page: Page,
    x: float,
    y: float,
    width: float,
    fields: Sequence[Field],
    style: Pairs = "side",
    size: float = 17,
    *,
    leading: float = 1.65,
    share: float = 0.46,
    fill: Colour | None = None,
    faint: Colour | None = None,
    face: Face | None = None,
) -> tuple[list[Box], int]:
    """Keys with their values, one to a row: the box of each value, and the y below.

    >>> page = Page((512, 512), "train", Dice("a page"))
    >>> boxes, below = pairs(page, 10, 10, 300, [Field("Date", "2 May 2019", "date"), Field("No.", "A-17", "number")])
    >>> len(boxes), below > boxes[1][3] > boxes[0][3]
    (2, True)
    """
    boxes, top, step = [], float(y), page.px(size * leading)
    inset = page.px(8) if style == "grid" else 0
    faint = faint or page.faint
    for field in fields:
        middle = top + step / 2
        if style == "above":
            small = max(12, size - 4)
            page.write(x, top, field.key, page.fit(field.key, width, small, face=face), fill=faint, face=face)
            top += page.px(small * 1.3)
            room = page.fit(field.value, width, size, cut="bold", face=face)
            boxes.append(page.write(x, top, field.value, room, cut="bold", fill=fill, face=face))
            top += page.px(size * leading * 1.1)
            continue
        if style == "colon":
            key = f"{field.key}:"
            key_size = page.fit(key, width * 0.6, size, cut="bold", face=face)
            page.write(x, middle, key, key_size, cut="bold", anchor="lm", fill=fill, face=face)
            start = page.length(key, key_size, cut="bold", face=face) + page.px(8)
            room = page.fit(field.value, width - start, size, face=face)
            boxes.append(page.write(x + start, middle, field.value, room, anchor="lm", fill=fill, face=face))
        else:
            split = width * share
            page.write(x + inset, middle, field.key, page.fit(field.key, split - inset - page.px(6), size, face=face),
                       anchor="lm", fill=faint, face=face)  # fmt: skip
            room = page.fit(field.value, width - split - inset, size, face=face)
            right = style == "edges"
            at = x + width if right else x + split + inset
            anchor = "rm" if right else "lm"
            boxes.append(page.write(at, middle, field.value, room, anchor=anchor, fill=fill, face=face))
            if style == "grid":
                page.panel(x, top, x + width, top + step, edge=faint)
                page.rule(x + split, top, x + split, top + step, faint)
        top += step
    return boxes, round(top)


def table(
    page: Page,
    x: float,
    y: float,
    width: float,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    shares: Sequence[float],
    ruling: Ruling = "rules",
    size: float = 16,
    *,
    step: float = 34,
    aligns: str = "",
    face: Face | None = None,
) -> tuple[list[list[Box]], int]:
    """Rows under heads, columns by share of the width, `aligns` an l or r for each: boxes [rows][columns], y below."""
    aligns = aligns or "l" + "r" * (len(heads) - 1)
    height, pad = page.px(step), page.px(8)
    lefts = [x + width * sum(shares[:place]) / sum(shares) for place in range(len(shares) + 1)]
    if ruling == "band":
        page.panel(x, y, x + width, y + height, page.accent)
    elif ruling == "zebra":
        page.rule(x, y + height, x + width, y + height, page.accent, 2)
    elif ruling != "grid":
        page.rule(x, y + height, x + width, y + height, page.ink, 2)
    boxes: list[list[Box]] = []
    for place, row in enumerate((heads, *rows)):
        top = round(y) + place * height
        if place and place % 2 == 0 and ruling in ("zebra", "band"):
            page.panel(x, top, x + width, top + height, page.tint)
        elif place and ruling == "rules":
            page.rule(x, top + height, x + width, top + height, page.faint)
        fill = WHITE if ruling == "band" and not place else None
        boxes.append([])
        for text, left, right, align in zip(row, lefts[:-1], lefts[1:], aligns, strict=True):
            cut: Cut = "regular" if place else "bold"
            room = page.fit(text, right - left - 2 * pad, size, cut=cut, face=face)
            at = left + pad if align == "l" else right - pad
            boxes[-1].append(
                page.write(at, top + height / 2, text, room, cut=cut, fill=fill, anchor=align + "m", face=face)
            )
    bottom = round(y) + (len(rows) + 1) * height
    if ruling == "grid":
        for place in range(len(rows) + 2):
            page.rule(x, round(y) + place * height, x + width, round(y) + place * height, page.faint)
        for left in lefts:
            page.rule(left, y, left, bottom, page.faint)
    elif ruling != "rules":
        page.rule(x, bottom, x + width, bottom, page.ink)
    return boxes[1:], bottom


def lines(
    page: Page,
    x: float,
    y: float,
    texts: Sequence[str],
    size: float = 17,
    *,
    anchor: str = "la",
    leading: float = 1.4,
    fill: Colour | None = None,
    face: Face | None = None,
) -> tuple[list[Box], int]:
    """Lines under one another, each set as given: the box of each, and the y below."""
    step = page.px(size * leading)
    boxes = [
        page.write(x, y + place * step, text, size, anchor=anchor, fill=fill, face=face)
        for place, text in enumerate(texts)
    ]
    return boxes, round(y) + len(texts) * step


def spread(
    page: Page, left: float, right: float, y: float, texts: Sequence[str], size: float = 14, fill: Colour | None = None
) -> list[Box]:
    """Up to three lines side by side from left to right, standing on y."""
    room = (right - left) / len(texts) - page.px(12)
    places = {1: ("m",), 2: ("l", "r"), 3: ("l", "m", "r")}[len(texts)]
    return [
        page.write(
            {"l": left, "m": (left + right) / 2, "r": right}[place], y, text, page.fit(text, room, size),
            fill=fill or page.faint, anchor=place + "s",
        )
        for text, place in zip(texts, places, strict=True)
    ]  # fmt: skip


# Asking


def ask_key(page: Page, dice: Dice, noun: str, value: str, box: Box, region: Region, *more: str) -> None:
    """Ask for a value by the name of its key, in the usual words or in `more` ways fit for this one.

    >>> page = Page((256, 256), "train", Dice("a page"))
    >>> ask_key(page, Dice("asking"), "total", "41.20", page.write(20, 20, "41.20", 40), "target")
    >>> page.questions[0].answer, "total" in page.questions[0].text
    ('41.20', True)
    """
    usual = _PEOPLE if noun.endswith(_ROLES) else _BY_KEY + (_SHORT if noun.count(" ") < 2 else ())
    texts = more if more and dice.chance(0.6) else [template.format(noun) for template in usual]
    page.ask(dice.choice(texts), value, [box], region, "key")


def ask_fields(page: Page, dice: Dice, fields: Sequence[Field], boxes: Sequence[Box], region: Region) -> None:
    """Ask for each value by its key."""
    for field, box in zip(fields, boxes, strict=True):
        ask_key(page, dice, field.noun, field.value, box, region)


def ask_section(page: Page, dice: Dice, noun: str, section: str, value: str, box: Box, region: Region) -> None:
    """Ask for a value by its name and the part of the page it stands in."""
    place = dice.integer(0, len(_IN_SECTION) - 1)
    text = _IN_SECTION[place].format(*((noun, section) if place < 2 else (section, noun)))
    page.ask(text, value, [box], region, "section")


def ask_place(page: Page, dice: Dice, where: str, value: str, box: Box, region: Region) -> None:
    """Ask what is written somewhere: "in the footer on the left"."""
    page.ask(dice.choice(_AT_PLACE).format(where), value, [box], region, "place")


def ask_spread(
    page: Page, dice: Dice, band: str, texts: Sequence[str], boxes: Sequence[Box], region: Region = "periphery"
) -> None:
    """Ask for each text of a `spread`: "in the footer", and on which side where there are several."""
    sides = {1: ("",), 2: (" on the left", " on the right"), 3: (" on the left", " in the middle", " on the right")}
    for text, box, side in zip(texts, boxes, sides[len(texts)], strict=True):
        ask_place(page, dice, f"in the {band}{side}", text, box, region)


def ask_cells(
    page: Page,
    dice: Dice,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    boxes: Sequence[Sequence[Box]],
    count: int,
    region: Region,
    *,
    name: str = "table",
    by: int = 0,
) -> None:
    """Ask for some cells of a table, by row and column or by the text in column `by`, whose texts are all different."""
    cells = [(row, column) for row in range(min(len(rows), 20)) for column in range(len(heads)) if column != by]
    for row, column in dice.sample(cells, count):
        value, box = rows[row][column], boxes[row][column]
        if dice.chance(0.5):
            head = _SPOKEN.get(heads[column], heads[column] if heads[column].isupper() else heads[column].lower())
            text = dice.choice(
                (f"What is the {head} for {rows[row][by]}?", f"In the row of {rows[row][by]}, what is the {head}?",
                 f"Which {head} belongs to {rows[row][by]}?")
            )  # fmt: skip
            page.ask(text, value, [box], region, "key")
        else:
            text = dice.choice(
                (f"What is in the {ordinal(row)} row, {ordinal(column)} column of the {name}, below its head?",
                 f"What does the {name} have in row {row + 1}, column {column + 1}, not counting the head?",
                 f"In the {ordinal(row)} row of the {name} under its head, what stands in column {column + 1}?")
            )  # fmt: skip
            page.ask(text, value, [box], region, "place")
