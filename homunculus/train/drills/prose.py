"""Blocks of drill pages that are read: paragraphs, lists, words strewn about, and the lines round a page's edge."""

import itertools
import re
from dataclasses import replace

from homunculus.data.documents.words import ordinal
from homunculus.data.record import Box
from homunculus.train.drills import strings
from homunculus.train.drills.sheet import BELOW, LEFT_OF, RIGHT_OF, SIZES, Sheet, Style

_AT_PLACE = (
    "What is written {}?", "What does it say {}?", "What text stands {}?", "Which text is printed {}?",
    "Read what is {}.", "What stands {}?",
)  # fmt: skip
_BEGINNING = (
    "Read the line that begins with {}.", "Which line begins with {}?", "Read on from {} to the end of the line.",
    "What does the line starting with {} say?",
)  # fmt: skip


def paragraph(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Sentences of words that mean nothing, with values among them, under a heading or none."""
    page, dice = sheet.page, sheet.dice
    style = sheet.style(largest=24)
    step, head = page.px(style.size * dice.uniform(1.35, 1.6)), page.px(style.size * 2.8) if dice.chance(0.5) else 0
    most = min(dice.integer(3, 12), int((bottom - y - head) // step))
    if most < 3:
        return None
    title = sheet.heading(x, y, width, style)[0] if head else ""
    wide = min(width, page.px(style.size) * 0.5 * dice.weighted((26, 32, 40, 48, 60, 72), (3, 4, 5, 3, 2, 1)))
    said = " ".join(_told(sheet) for _ in range(2 + most * int(wide) // page.px(style.size * 24)))
    lines = page.wrap(said, wide, style.size, cut=style.cut, face=style.face)[:most]
    for row, line in enumerate(lines):
        at = y + head + (row + 0.5) * step
        box = sheet.write(x, at, line, style)
        words = line.split()
        if len(words) > 2 and any(_rare(word) for word in words[:2]) and dice.chance(0.5):
            sheet.ask_any(_BEGINNING, line, box, "place", " ".join(words[:2]).rstrip(".,;:!?"))
        if title and row < 6 and dice.chance(0.25):
            sheet.ask(f"Read the {ordinal(row)} line under {{}}.", line, box, "place", title)
        _ask_sentence(sheet, line, box, x, style)
    return y + head + len(lines) * step


def _told(sheet: Sheet) -> str:
    """A sentence, of which one in two has a value in it."""
    dice = sheet.dice
    said = sheet.strings.fresh(strings.sentence, 90)
    if dice.chance(0.6) and (words := said.split()):
        value = sheet.strings.fresh(
            dice.choice((strings.number, strings.code, strings.date, strings.amount_in(("$", "EUR")))), 20
        )
        words.insert(dice.integer(1, max(1, len(words) - 1)), value.replace(" ", "") if dice.chance(0.5) else value)
        return " ".join(words)
    return said


def _ask_sentence(sheet: Sheet, line: str, box: Box, x: float, style: Style) -> None:
    """Ask for a word by the one before or after it."""
    page, dice = sheet.page, sheet.dice
    spans = [match.span() for match in re.finditer(r"\S+", line)]
    for (a, b), (c, d) in itertools.pairwise(spans):
        if not dice.chance(0.2):
            continue
        one, two = line[a:b].strip(".,;:!?"), line[c:d].strip(".,;:!?")
        if min(len(one), len(two)) < 3 or (not one.isalpha() and not two.isalpha()):
            continue
        back = dice.chance(0.25) and two.isalpha()
        if not back and not one.isalpha():
            continue
        answer, start, known = (one, a, two) if back else (two, c, one)
        if not _rare(known):
            continue
        start = line.index(answer, start)
        left = x + page.length(line[:start], style.size, cut=style.cut, face=style.face)
        right = x + page.length(line[: start + len(answer)], style.size, cut=style.cut, face=style.face)
        place = (max(box[0], int(left)), box[1], min(box[2], int(right) + 1), box[3])
        forms: tuple[str, ...]
        if back:
            forms = ("Which word comes before {}?", "What stands just before the word {}?")
        elif answer.isdigit():
            forms = ("Which number follows the word {}?", "What number comes after {}?")
        else:
            forms = ("What follows the word {}?", "What comes right after {} in the text?", "What is said after {}?")
        sheet.ask_any(forms, answer, place, "sentence", known)


def _rare(word: str) -> bool:
    """Whether a word comes once on its page."""
    word = word.strip(".,;:!?").casefold()
    return len(word) > 2 and word.isalpha() and word not in strings.COMMON


def listing(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """A list with numbers, letters or dots under a heading."""
    page, dice = sheet.page, sheet.dice
    style, ground = sheet.ground(sheet.style())
    step, head = page.px(style.size * dice.uniform(1.4, 2.0)), page.px(style.size * 2.8)
    pad = page.px(12) if ground else 0
    rows = min(dice.integer(3, 9), int((bottom - y - head - 2 * pad) // step))
    if rows < 2:
        return None
    below = y + head + 2 * pad + rows * step
    if ground:
        ground(x, y, x + width, below)
    title = sheet.heading(x + pad, y + pad, width - 2 * pad, style)[0]
    marks = ("{0}.", "{0})", "({1})", "{1})", "-", "*", "{2}.", "[{0}]", "{0}")
    mark = dice.choice([one for one in marks if "0" not in one] if sheet.counted else marks)
    sheet.listed |= "0" in mark
    indent = page.px(style.size * 2.2)
    last = ""
    for row in range(rows):
        middle = y + pad + head + (row + 0.5) * step
        sign = mark.format(row + 1, strings.LOWER[row], strings.UPPER[row])
        sheet.write(x + pad, middle, sign, style, key=True)
        text = sheet.value(width - 2 * pad - indent, style)
        box = sheet.write(x + pad + indent, middle, text, style)
        if len(sign) > 1 and dice.chance(0.6):
            name = sign.strip(".()[]")
            sheet.ask(dice.choice((f"What is item {name} under {{}}?", f"In the list {{}}, what stands at {name}?")),
                      text, box, "section", title)  # fmt: skip
        elif dice.chance(0.6):
            forms = (
                f"What is the {ordinal(row)} entry under {{}}?",
                f"In the list {{}}, read the {ordinal(row)} line.",
            )
            sheet.ask(dice.choice(forms), text, box, "place", title)
        if last and dice.chance(0.3):
            sheet.ask_any(("What comes after {} in the list?", *BELOW), text, box, "place", last)
        last = text
    return below


def strewn(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> float | None:
    """Single words about an empty area, of any size; neighbours stand roughly side by side."""
    page, dice = sheet.page, sheet.dice
    high, columns = page.px(dice.integer(46, 80)), dice.integer(1, max(1, min(4, int(width / page.px(150)))))
    rows = min(dice.integer(1, 5), int((bottom - y) // high))
    if rows < 1:
        return None
    wide = width / columns
    for row in range(rows):
        last: tuple[str, Box] | None = None
        for column in range(columns):
            if dice.chance(0.15):
                last = None
                continue
            style = sheet.style()
            style = replace(style, size=dice.choice(SIZES)) if dice.chance(0.5) else style
            room = wide - page.px(16)
            text = sheet.value(room, style) if dice.chance(0.5) else sheet.key(room, style)
            free = room - page.length(text, style.size, cut=style.cut, face=style.face)
            shift = max(0.0, high - page.px(style.size * 1.4)) / 2 * dice.uniform(-1, 1)
            at = x + column * wide + max(0.0, free) * dice.random()
            box = sheet.write(at, y + (row + 0.5) * high + shift, text, style)
            if last:
                sheet.ask_any(RIGHT_OF, text, box, "place", last[0])
                sheet.ask_any(LEFT_OF, *last, "place", text)
            last = text, box
    return y + rows * high


# Round the edge


def band(sheet: Sheet, x: float, y: float, width: float, name: str, side: str) -> None:
    """One to three lines side by side at the top or bottom of the page: the header or footer."""
    page, dice = sheet.page, sheet.dice
    style = sheet.style(largest=18)
    count = dice.integer(1, 3)
    room = width / count - page.px(14)
    places = {1: dice.choice(("l", "m", "r")), 2: "lr", 3: "lmr"}[count]
    for at in places:
        text = sheet.value(room, style) if dice.chance(0.7) else sheet.key(room, style)
        box = sheet.write({"l": x, "m": x + width / 2, "r": x + width}[at], y, text, style, at + "m")
        where = {"l": "on the left", "m": "in the middle", "r": "on the right"}[at]
        corner = {"l": f"at the {side} left", "m": f"at the {side} in the middle", "r": f"at the {side} right"}[at]
        alone = (f"in the {name}",) if count == 1 else ()
        sheet.ask(dice.choice(tuple(
            form.format(place) for place in (f"in the {name} {where}", corner, *alone) for form in _AT_PLACE
        )), text, box, "place")  # fmt: skip
        sheet.ask(f"Read the {name}{f' {where}' if count > 1 else ''}.", text, box, "place")


def margin(sheet: Sheet, x: float, y: float, width: float, bottom: float, side: str) -> None:
    """Short notes one under another down the side of the page."""
    page, dice = sheet.page, sheet.dice
    style = sheet.style(largest=15)
    count = dice.integer(2, 7)
    high = (bottom - y) / count
    for number in range(count):
        text = sheet.value(width, style) if dice.chance(0.5) else sheet.key(width, style)
        at = y + number * high + page.px(style.size) + (high - page.px(style.size * 2)) * dice.random()
        box = sheet.write(x, at, text, style)
        which = dice.choice(
            (ordinal(number), *(("top",) if not number else ()), *(("last",) if number == count - 1 else ()))
        )
        sheet.ask(dice.choice((f"What does the {which} note in the {side} margin say?",
                               f"Read the {which} note in the margin on the {side}.")), text, box, "place")  # fmt: skip
