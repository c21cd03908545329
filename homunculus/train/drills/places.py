"""Blocks of drill pages whose parts only a place or a number tells apart: alike parts one beside or under another, and
lines that are counted. A question names a part as people do ("the top slip", "number 4"), by words that are nowhere on
the page; blocks as in `blocks`.
"""

from dataclasses import replace
from functools import partial

from homunculus.data.documents.words import ordinal
from homunculus.data.record import Box
from homunculus.train.drills.sheet import BY_KEY, Sheet, Style
from homunculus.train.drills.strings import word

_NOUNS = ("part", "box", "panel", "strip", "card", "slip", "field", "frame", "block", "half page", "piece")
_DOWN = {2: ("top", "bottom"), 3: ("top", "middle", "bottom"), 4: ("top", "", "", "bottom")}
_LOW = {2: ("upper", "lower"), 3: ("upper", "middle", "lower"), 4: ("upper", "", "", "lower")}
_ALONG = {2: ("left", "right"), 3: ("left", "middle", "right")}
_IN_PART = (
    "In the {1} {2}, what is the {0}?", "What is the {0} in the {1} {2}?", "Which {0} is given in the {1} {2}?",
    "Look at the {1} {2}: what is the {0}?", "What does the {1} {2} say for {0}?", "For the {1} {2}, read the {0}.",
)  # fmt: skip
_AT_NUMBER = (
    "What stands at number {}?", "What was written for number {}?", "Which value has number {}?",
    "Number {}: what is it?", "What is given at {}?", "What was entered in line {}?", "Read the answer to number {}.",
    "What belongs to item {}?",
)  # fmt: skip


def stack(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Two to four parts with the same labels and no headings, one under another or side by side."""
    page, dice = sheet.page, sheet.dice
    style, gap = sheet.style(largest=18), page.px(14)
    above, down = dice.chance(0.5), dice.chance(0.6)
    step = page.px(style.size * (dice.uniform(2.8, 3.4) if above else dice.uniform(1.5, 1.9)))
    count = dice.integer(2, 4) if down else min(3, int(width / page.px(style.size * 13)))
    wide = width if down else (width - (count - 1) * gap) / max(1, count)
    columns = 2 if wide > page.px(style.size * 26) and dice.chance(0.7) else 1
    room = bottom - y if not down else (bottom - y - (count - 1) * gap) / count
    rows = min(dice.integer(1 if columns > 1 else 2, 4), int((room - 2 * gap) // step))
    if count < 2 or rows < 1 or rows * columns < 2:
        return None
    high = 2 * gap + rows * step
    inner = (wide - (columns + 1) * gap) / columns
    keys = [sheet.key(inner * (1.0 if above else 0.45) - gap, style, 12) for _ in range(rows * columns)]
    look = dice.choice(("edges", "grounds", "rules", "open"))
    noun = dice.choice(_NOUNS) if dice.chance(0.6) else sheet.strings.fresh(word, 12)
    for number, names in enumerate(_names(count, down)):
        own, ground = sheet.ground(style) if look == "grounds" else (style, None)
        left, top = (x, y + number * (high + gap)) if down else (x + number * (wide + gap), y)
        if look == "edges" or ground:
            (ground or partial(page.panel, edge=own.line))(left, top, left + wide, top + high)
        elif look == "rules" and number:
            ends = (left, top - gap / 2, left + wide, top - gap / 2)
            page.rule(*(ends if down else (left - gap / 2, top, left - gap / 2, top + high)), own.line)
        for place, key in enumerate(keys):
            column, row = divmod(place, rows)
            at = left + gap + column * (inner + gap), top + gap + (row + 0.5) * step
            value, box = _labelled(sheet, *at, inner, key, above, own)
            sheet.ask_any(_IN_PART, value, box, "section", key, dice.choice(names), noun)
    return y + (count * (high + gap) - gap if down else high)


def _names(count: int, down: bool) -> list[list[str]]:
    """What each of so many parts may be called: the middle ones of four are only counted."""
    ways = (_DOWN, _LOW) if down else (_ALONG,)
    return [[way[count][part] for way in ways if way[count][part]] + [ordinal(part)] for part in range(count)]


def _labelled(sheet: Sheet, x: float, y: float, width: float, key: str, above: bool, style: Style) -> tuple[str, Box]:
    """A label, with a value below it or beside it: the value and its box."""
    half = sheet.page.px(style.size * 0.66) if above else 0
    shift = 0.0 if above else 0.45 * width
    sheet.write(x, y - half, key, style, key=True)
    value = sheet.value(width - shift, style)
    return value, sheet.write(x + shift, y + half, value, style)


def numbered(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Labels with numbers before them and their values beside or below; the only numbers of their page."""
    page, dice = sheet.page, sheet.dice
    if sheet.counted or sheet.listed:
        return None
    style = sheet.style(largest=22)
    above = dice.chance(0.25)
    step = page.px(style.size * (dice.uniform(2.9, 3.6) if above else dice.uniform(1.6, 2.4)))
    rows = min(dice.integer(3, 14), int((bottom - y) // step))
    if rows < 3 or width < page.px(style.size * 12):
        return None
    sheet.counted = True
    first = 1 if dice.chance(0.8) else dice.integer(2, 40)
    mark, share = dice.choice(("{}.", "{})", "{}", "({})", "No. {}")), 1.0 if above else dice.uniform(0.4, 0.55)
    ruled, tinted = dice.chance(0.5), not above and dice.chance(0.3)
    if tinted:
        page.panel(x + width * share, y, x + width, y + rows * step, page.tint)
    for row in range(rows):
        middle, number = y + (row + 0.5) * step, str(first + row)
        half = page.px(style.size * 0.66) if above else 0
        sign = mark.format(number)
        indent = page.length(f"{sign} ", style.size, cut=style.key_cut, face=style.face) + page.px(4)
        sheet.write(x, middle - half, sign, style, key=True)
        key = sheet.key(width * share - indent - page.px(12), style)
        sheet.write(x + indent, middle - half, key, style, key=True)
        start = x + (indent if above else width * share + page.px(8))
        value = sheet.value(x + width - start - page.px(4), style)
        box = sheet.write(start, middle + half, value, replace(style, cut="regular"))
        if ruled:
            page.rule(x, y + (row + 1) * step, x + width, y + (row + 1) * step, style.line)
        if dice.chance(0.6):
            sheet.ask_any(_AT_NUMBER, value, box, "place", number)
        else:
            sheet.ask_any(BY_KEY, value, box, "key", key)
    return y + rows * step
