"""Blocks of drill pages that are looked up: labels with their values, boxes, cells and tables.

A block is a function block(sheet, x, y, width, bottom) in pixels of the page. It draws from the corner (x, y) down,
notes its questions and returns the y below it, or None, drawing nothing, where there is no room.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from homunculus.data.documents.page import Page
from homunculus.data.documents.words import ordinal
from homunculus.data.record import Box
from homunculus.train.drills import strings
from homunculus.train.drills.sheet import ABOVE, BACKWARDS, BELOW, BY_KEY, RIGHT_OF, SIZES, Sheet, Style

_UNDER_HEADING = (
    "What is the {1} in {0}?", "Under {0}, what is the {1}?", "In {0}, what is the {1}?", "Which {1} is given in {0}?",
    "Look at {0}: what is the {1}?", "In the section {0}, what is the {1}?",
)  # fmt: skip
_IN_BOX = ("In the box headed {0}, what is the {1}?", "Which {1} is given in the box {0}?", *_UNDER_HEADING)
_CELL = (
    "In the row of {0}, what is the {1}?", "What is the {1} for {0}?", "Which {1} belongs to {0}?",
    "What {1} is given for {0}?", "{1} of {0}?", "Find the {1} in the row {0}.", "For {0}, read the {1}.",
)  # fmt: skip


def pairs(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Labels with their values, one to a row, side by side or the label above."""
    page, dice = sheet.page, sheet.dice
    style, ground = sheet.ground(sheet.style())
    way = dice.choice(("side", "side", "colon", "leaders", "edges", "close", "above"))
    step = page.px(style.size * (dice.uniform(3.0, 3.8) if way == "above" else dice.uniform(1.4, 2.1)))
    pad, head = page.px(12) if ground else 0, page.px(style.size * 2.8) if dice.chance(0.6) else 0
    rows = min(dice.integer(3, 9), int((bottom - y - head - 2 * pad) // step))
    if rows < 2:
        return None
    if ground:
        ground(x, y, x + width, y + head + 2 * pad + rows * step)
    left, room, top = x + pad, width - 2 * pad, y + pad
    below = y + head + 2 * pad + rows * step
    title = ""
    if head:
        title = sheet.heading(left, top, room, style)[0]
        top += head
    share = dice.uniform(0.34, 0.52)
    kept: list[tuple[str, str, Box, Box]] = []
    for row in range(rows):
        middle = top + (row + 0.5) * step
        if way == "above":
            half = page.px(style.size * 0.66)
            key, value = sheet.key(room, style), sheet.value(room, style)
            boxes = (
                sheet.write(left, middle - half, key, style, key=True),
                sheet.write(left, middle + half, value, style),
            )
        else:
            boxes, key, value = _in_a_row(sheet, left, middle, room, share, way, style)
        kept.append((key, value, *boxes))
    for row, (key, value, key_box, box) in enumerate(kept):
        _ask_pair(sheet, key, value, box, "below" if way == "above" else "beside")
        if title:
            sheet.ask_any(_IN_BOX if ground else _UNDER_HEADING, value, box, "section", title, key)
            if dice.chance(0.3):
                text = f"Which value stands in the {ordinal(row)} line under {{}}?"
                sheet.ask(text if way != "above" else f"What is the {ordinal(row)} value under {{}}?", value, box,
                          "place", title)  # fmt: skip
        if dice.chance(0.25):
            sheet.ask_any(BACKWARDS, key, key_box, "key", value)
        if row and way in ("side", "edges") and dice.chance(0.2):
            sheet.ask_any(BELOW, value, box, "place", kept[row - 1][1])
    return below


def _in_a_row(
    sheet: Sheet, x: float, y: float, width: float, share: float, way: str, style: Style
) -> tuple[tuple[Box, Box], str, str]:
    """A label and its value in one row: both boxes and both texts."""
    page = sheet.page
    gap, colon = page.px(10), ":" if way == "colon" else ""
    key = sheet.key(width * share - gap - page.px(style.size * 0.4), style)
    key_box = sheet.write(x, y, key + colon, style, key=True)
    start = key_box[2] + gap if way in ("colon", "close") else x + width * share
    value = sheet.value(x + width - start, style)
    right = way in ("edges", "leaders")
    box = sheet.write(x + width if right else start, y, value, style, "rm" if right else "lm")
    if way == "leaders":
        for dot in range(int(key_box[2]) + gap, int(box[0]) - gap, max(3, page.px(style.size * 0.45))):
            page.panel(dot, y + page.px(style.size * 0.3), dot, y + page.px(style.size * 0.3), style.line)
    return (key_box, box), key, value


def _ask_pair(sheet: Sheet, key: str, value: str, box: Box, where: str) -> None:
    """Ask for a value by its label, or by where it stands."""
    if sheet.dice.chance(0.75):
        sheet.ask_any(BY_KEY, value, box, "key", key)
    else:
        sheet.ask_any(BELOW if where == "below" else RIGHT_OF, value, box, "place", key)


def twins(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Boxes side by side with the same labels and different values: only the heading says which is meant."""
    page, dice = sheet.page, sheet.dice
    style = sheet.style(largest=18)
    count = min(3, int(width / page.px(style.size * 14)))
    step, gap = page.px(style.size * dice.uniform(1.5, 1.9)), page.px(14)
    rows = min(dice.integer(2, 6), int((bottom - y - 3 * gap) // step) - 2)
    if count < 2 or rows < 2:
        return None
    wide = (width - (count - 1) * gap) / count
    share, inner = 0.45, wide - 2 * gap
    keys = [sheet.key(inner * share - gap, style, 12) for _ in range(rows)]
    below = y + 2 * gap + page.px(style.size * 2.8) + rows * step
    if below > bottom:
        return None
    for number in range(count):
        own, ground = sheet.ground(style)
        left = x + number * (wide + gap)
        (ground or partial(page.panel, edge=own.line))(left, y, left + wide, below)
        title, _ = sheet.heading(left + gap, y + gap, inner, own)
        top = y + gap + page.px(style.size * 2.8)
        for row, key in enumerate(keys):
            middle = top + (row + 0.5) * step
            sheet.write(left + gap, middle, key, own, key=True)
            value = sheet.value(inner * (1 - share), own)
            box = sheet.write(left + gap + inner * share, middle, value, own)
            sheet.ask_any(_IN_BOX, value, box, "section", title, key)
    return below


def cells(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Boxed cells, in each a label over its value."""
    page, dice = sheet.page, sheet.dice
    style = sheet.style(largest=22)
    high = page.px(style.size * dice.uniform(2.9, 3.6))
    columns = dice.integer(1, max(1, min(4, int(width / page.px(style.size * 8)))))
    rows = min(dice.integer(2, 6), int((bottom - y) // high))
    if rows < 1:
        return None
    wide, pad = width / columns, page.px(8)
    small = replace(style, size=dice.choice([size for size in SIZES if size <= style.size][-3:]))
    grid: list[list[str]] = []
    for row in range(rows):
        grid.append([])
        for column in range(columns):
            left, top = x + column * wide, y + row * high
            page.panel(left, top, left + wide, top + high, edge=style.line)
            key, value = sheet.key(wide - 2 * pad, small), sheet.value(wide - 2 * pad, style)
            sheet.write(left + pad, top + high * 0.28, key, small, key=True)
            box = sheet.write(left + pad, top + high * 0.7, value, style)
            grid[-1].append(key)
            _ask_pair(sheet, key, value, box, "below")
            if column and dice.chance(0.2):
                sheet.ask("What is in the cell to the right of {}?", value, box, "place", grid[row][column - 1])
    return y + rows * high


def table(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Rows with heads under columns with heads, with or without rules and title."""
    page, dice = sheet.page, sheet.dice
    style = sheet.style(largest=20)
    columns = min(dice.integer(3, 7), int(width / page.px(style.size * 5)))
    step, head = page.px(style.size * dice.uniform(1.5, 2.2)), page.px(style.size * 2.8)
    rows = min(dice.integer(3, 10), int((bottom - y - head) // step) - 1)
    if columns < 2 or rows < 2:
        return None
    title, top = _table_title(sheet, x, y, width, style), y + head
    ruling = dice.choice(("rules", "grid", "zebra", "open", "band"))
    parts = [dice.uniform(0.8, 1.3) * (1.4 if not column else 1) for column in range(columns)]
    lefts = [x + width * sum(parts[:column]) / sum(parts) for column in range(columns + 1)]
    aligns = ["l", *(dice.choice("lrm") for _ in parts[1:])]
    head_style = replace(style, cut="bold" if dice.chance(0.7) else style.cut, fill=style.key_fill)
    if ruling == "band":
        head_style = replace(head_style, fill=(255, 255, 255))
        page.panel(x, top, x + width, top + step, page.accent)
    makers = [_column(sheet) for _ in parts]
    texts: list[list[str]] = []
    boxes: list[list[Box]] = []
    for row in range(rows + 1):
        middle = top + (row + 0.5) * step
        if ruling == "zebra" and row % 2:
            page.panel(x, top + row * step, x + width, top + (row + 1) * step, page.tint)
        texts.append([])
        boxes.append([])
        for column, (left, right) in enumerate(itertools.pairwise(lefts)):
            own = head_style if not row else style
            pad, room = page.px(7), right - left - page.px(14)
            make = partial(_at_most, sheet.strings.label, 16) if not row or not column else makers[column]
            text = sheet.fitting(make, room, own.size, own.cut, own.face)
            at = {"l": left + pad, "r": right - pad, "m": (left + right) / 2}[aligns[column]]
            texts[-1].append(text)
            boxes[-1].append(sheet.write(at, middle, text, own, aligns[column] + "m"))
    below = top + (rows + 1) * step
    _rule_table(page, ruling, lefts, top, step, rows, style)
    _ask_table(sheet, texts, boxes, title)
    return below


def _at_most(make: Callable[[int], str], most: int, room: int) -> str:
    """A text of at most `most` letters, and no more than there is room for."""
    return make(min(most, room))


def _column(sheet: Sheet) -> Callable[[int], str]:
    """What stands in a column of a table: anything, or always the same kind."""
    if sheet.dice.chance(0.35):
        return sheet.strings.value
    kind = sheet.dice.choice(
        (strings.number, strings.code, strings.date, strings.person, strings.phrase, strings.place)
    )
    return lambda most: sheet.strings.fresh(kind, most)


def _table_title(sheet: Sheet, x: float, y: float, width: float, style: Style) -> str:
    """A table's title over it, or none."""
    kind = sheet.dice.random()
    if kind < 0.25:
        return ""
    if kind < 0.6:
        return sheet.heading(x, y, width, style)[0]
    title = sheet.strings.fresh(lambda dice: f"Table {dice.integer(1, 60)}", 8)
    sheet.page.write(x, y + sheet.page.px(style.size), title, style.size, cut="bold", fill=style.key_fill, anchor="lm",
                     face=style.face)  # fmt: skip
    return title


def _rule_table(page: Page, ruling: str, lefts: list[float], top: float, step: int, rows: int, style: Style) -> None:
    below, (left, right) = top + (rows + 1) * step, (lefts[0], lefts[-1])
    if ruling == "open":
        return
    lines = range(rows + 2) if ruling in ("rules", "grid") else (1, rows + 1)
    for line in lines:
        page.rule(left, top + line * step, right, top + line * step, style.line)
    if ruling == "grid":
        for at in lefts:
            page.rule(at, top, at, below, style.line)


def _ask_table(sheet: Sheet, texts: Sequence[Sequence[str]], boxes: Sequence[Sequence[Box]], title: str) -> None:
    """Ask for about half the cells, by row and column, by place in the table or by what stands beside."""
    dice, heads = sheet.dice, texts[0]
    for row in range(1, len(texts)):
        for column in range(1, len(heads)):
            value, box, name = texts[row][column], boxes[row][column], texts[row][0]
            way = dice.random()
            if way < 0.3:
                sheet.ask_any(_CELL, value, box, "key", name, heads[column])
            elif way < 0.42 and title:
                if dice.chance(0.4):
                    sheet.ask_any(("What {1} is given for {0} in {2}?", "In {2}, what is the {1} of {0}?"), value, box,
                                  "section", name, heads[column], title)  # fmt: skip
                else:
                    counted = f"{ordinal(row - 1)} row, {ordinal(column)} column of {{}}, below its head"
                    sheet.ask(f"What is in the {counted}?", value, box, "place", title)
            elif way < 0.5:
                sheet.ask_any(RIGHT_OF, value, box, "place", texts[row][column - 1])
            elif way < 0.56:
                sheet.ask_any(BELOW, value, box, "place", texts[row - 1][column])
            elif way < 0.6 and row + 1 < len(texts):
                sheet.ask_any(ABOVE, value, box, "place", texts[row + 1][column])
            elif way < 0.63:
                sheet.ask_any(("Which row has {} in it?", "In the row of {}, what stands first?"), name, boxes[row][0],
                              "key", value)  # fmt: skip
            elif way < 0.66:
                sheet.ask_any(("What is the head of the column with {}?", "Under which column head does {} stand?"),
                              heads[column], boxes[0][column], "key", value)  # fmt: skip
