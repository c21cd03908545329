"""Reports: a title, sections with figures in sentences, tables with row and column heads, a chart, captions.

Tables are the target, the text and the chart are secondary, headers and footers are the periphery. The held-out
arrangement is a briefing with key figures in a coloured column.
"""

from collections.abc import Callable
from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, chart, floats, flow, furniture
from homunculus.data.documents.blocks import WHITE, Ruling
from homunculus.data.documents.flow import mark
from homunculus.data.documents.furniture import ask_any
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import Words, different

_KINDS = ("Annual report", "Quarterly report", "Survey", "Field report", "Audit", "Progress report", "Test report")
_HELD_OUT_KINDS = ("Briefing", "Almanac", "Dossier", "Gazette")
_AXES = ("thousand", "tonnes", "per cent", "days", "index", "million")
_HELD_OUT_AXES = ("bales", "knots", "casks", "furlongs")
_RULINGS: tuple[Ruling, ...] = ("rules", "grid", "zebra", "open", "band")

# What a column is headed, from which to which its values go in hundredths, and their decimals.
_MEASURES = (
    ("Output (t)", 1000, 99900, 1), ("Cost (EUR)", 100000, 99999900, 0), ("Staff", 1200, 98900, 0),
    ("Share (%)", 100, 9890, 1), ("Orders", 11000, 999900, 0), ("Growth (%)", 20, 4500, 1),
    ("Stock (m3)", 1000, 99000, 1), ("Energy (MWh)", 1000, 990000, 1), ("Hours", 10000, 890000, 0),
    ("Visits", 10000, 990000, 0), ("Waste (kg)", 1000, 99000, 1),
)  # fmt: skip
_HELD_OUT_MEASURES = (
    ("Rainfall (mm)", 1000, 99900, 1), ("Bushels", 10000, 990000, 0), ("Herd", 1200, 98900, 0),
    ("Tariff (%)", 100, 8900, 1), ("Catch (kg)", 10000, 990000, 1), ("Acreage (ha)", 1000, 99900, 1),
    ("Pupils", 1200, 98900, 0),
)  # fmt: skip

# A sentence about a noun (N) with a value (V), questions to it, and the kind of the value.
_STATED = (
    ("Spending on the N came to V over the period.",
     ("How much was spent on the N?", "What did spending on the N come to?"), "amount"),
    ("The backlog of the N stood at V when the books were closed.",
     ("How large was the backlog of the N?", "At how much did the backlog of the N stand?"), "quantity"),
    ("The share of the N reached V of the total.",
     ("Which share did the N reach?", "What share of the total was the N?"), "percentage"),
    ("The contract for the N was signed on V.",
     ("When was the contract for the N signed?", "On which date was the contract for the N signed?"), "date"),
    ("Complaints about the N were answered by V.",
     ("Who answered complaints about the N?", "By whom were complaints about the N answered?"), "person"),
    ("The budget line of the N is V.",
     ("What is the budget line of the N?", "Which budget line does the N have?"), "code"),
)  # fmt: skip
_HELD_OUT_STATED = (
    ("Subsidies for the N totalled V this season.",
     ("To what did subsidies for the N add up?", "How high were the subsidies for the N?"), "amount"),
    ("The yearbook prints V for the N.",
     ("What does the yearbook print for the N?", "Which entry for the N is in the yearbook?"), "quantity"),
    ("The ballot on the N was held on V.",
     ("On which day was the ballot on the N held?", "When was the ballot on the N?"), "date"),
    ("Turnout for the N touched V.",
     ("Which turnout did the N touch?", "How high was turnout for the N?"), "percentage"),
)  # fmt: skip
_VALUES: dict[str, Callable[[Words, Dice], str]] = {
    "amount": lambda words, dice: words.amount(dice, "EUR", 100, 99999),
    "quantity": lambda words, dice: words.quantity(dice),
    "percentage": lambda words, dice: words.percentage(dice),
    "date": lambda words, dice: words.date(dice),
    "person": lambda words, dice: words.person(dice),
    "code": lambda words, dice: words.code(dice),
}


@dataclass(frozen=True)
class Strip:
    """A strip of the page that things are set into from top to bottom: pixels, and the size of its type."""

    page: Page
    words: Words
    dice: Dice
    x: int
    width: int
    size: float

    @property
    def step(self) -> int:
        return self.page.px(self.size * 1.36)


def sectioned(page: Page, words: Words, dice: Dice) -> None:
    """A title, then numbered sections one under another: text, a table, a chart beside text."""
    side = page.px(dice.integer(70, 96))
    width, bottom = page.size[0] - 2 * side, page.size[1] - page.px(64)
    strip = Strip(page, words, dice, side, width, dice.choice((15, 16, 17)))
    y = _title(strip, page.px(72))
    number, label = dice.integer(1, 7), dice.integer(1, 20)
    y = _section(strip, y, f"{number}.", 2)
    y = _table(strip, y, f"Table {label}", dice.integer(5, 8), 3)
    y = _heading(strip, y, f"{number + 1}.")
    half, gap = width * dice.choice((45, 50, 55)) // 100, page.px(24)
    height = min(page.px(dice.integer(210, 260)), bottom - y - page.px(50))
    at_left = dice.chance(0.5)
    beside = Strip(page, words, dice, side if at_left else side + width - half, half, strip.size)
    _chart(beside, y, height, f"Figure {label}")
    text = Strip(page, words, dice, side + half + gap if at_left else side, width - half - gap, strip.size)
    below = _stated(text, y, (height + page.px(30)) // strip.step)
    _fill(strip, max(below, y + height + page.px(44)), bottom, f"{number + 2}.")
    _stamp(strip)
    furniture.adorn(page, words, dice)


def tabular(page: Page, words: Words, dice: Dice) -> None:
    """Mostly tables: a short text, a wide table, then a narrow one beside a chart."""
    side = page.px(dice.integer(66, 80))
    width, bottom = page.size[0] - 2 * side, page.size[1] - page.px(64)
    strip = Strip(page, words, dice, side, width, dice.choice((14, 15, 16)))
    y = _section(strip, _title(strip, page.px(70)), "", 1)
    first = dice.integer(1, 30)
    y = _table(strip, y, f"Table {first}", dice.integer(6, 9), 3)
    half = (width - page.px(28)) // 2
    height = min(page.px(270), bottom - y - page.px(56))
    left = Strip(page, words, dice, side, half, strip.size)
    below = _table(left, y, f"Table {first + 1}", 5, 1, columns=3)
    right = Strip(page, words, dice, side + width - half, half, strip.size)
    _chart(right, y, height, f"Figure {dice.integer(1, 20)}")
    _fill(strip, max(below, y + height + page.px(50)), bottom, "")
    _stamp(strip)
    furniture.adorn(page, words, dice)


def briefing(page: Page, words: Words, dice: Dice) -> None:
    """A coloured column of key figures at the left, text and a banded table at the right."""
    column, gap = page.size[0] * 29 // 100, page.px(28)
    inner, foot = column - 2 * gap, page.size[1] - page.px(24)
    page.panel(0, 0, column, page.size[1], page.accent)
    name = words.company(dice)
    flowed = flow.paragraph(page, gap, page.px(40), inner, name, 22, cut="bold", fill=WHITE, face=page.head)
    y = flowed.below + page.px(24)
    for noun in dice.sample(words.vocabulary.nouns, 5):
        value = dice.choice((words.percentage, words.quantity, words.code))(dice)
        page.rule(gap, y, gap + inner, y, WHITE)
        large = page.fit(value, inner, 28, face=page.head)
        box = page.write(gap, y + page.px(14), value, large, fill=WHITE, face=page.head)
        page.write(gap, y + page.px(54), noun, page.fit(noun, inner, 16), fill=WHITE)
        wordings = (f"Which key figure is given for {noun}?", f"In the coloured column, what stands over {noun}?")
        ask_any(page, dice, wordings, value, [box], "secondary", "key")
        y += page.px(100)
    right, bottom = page.size[0] - page.px(44), page.size[1] - page.px(60)
    strip = Strip(page, words, dice, column + gap, right - column - gap, 16)
    y = _section(strip, _title(strip, page.px(56)), "", 1)
    y = _table(strip, y, f"Sheet {dice.integer(1, 40)}", 7, 3, columns=4, ruling="band")
    height = min(page.px(230), bottom - y - page.px(40))
    _chart(strip, y, height, f"Panel {dice.integer(1, 40)}")
    _fill(strip, y + height + page.px(44), bottom, "")
    code, phone = words.code(dice), words.phone(dice)
    found = {"footer code": (code, page.write(right, foot, code, 14, fill=page.faint, anchor="rs"))}
    found["footer phone"] = phone, page.write(gap, foot, phone, page.fit(phone, inner, 15), fill=WHITE, anchor="ls")
    furniture.ask(page, dice, found)


ARRANGEMENTS = (sectioned, tabular)
HELD_OUT = (briefing,)


def _title(strip: Strip, y: int) -> int:
    """The kind of report, its title, who wrote it and when: the y below."""
    page, words, dice, x = strip.page, strip.words, strip.dice, strip.x
    kind = dice.choice(_HELD_OUT_KINDS if words.held_out else _KINDS)
    page.write(x, y, kind, 15, fill=page.accent, cut="bold")
    y += page.px(26)
    for line in page.wrap(words.heading(dice), strip.width, 30, cut="bold", face=page.head):
        page.write(x, y, line, 30, cut="bold", face=page.head)
        y += page.px(40)
    writer, date = words.person(dice), words.date(dice)
    writer_box = page.write(x, y, writer, 15)
    date_box = page.write(x + page.length(writer + "    ", 15), y, date, 15, fill=page.faint)
    if dice.chance(0.5):
        wordings = ("Who wrote the report?", "What name stands under the title?")
        ask_any(page, dice, wordings, writer, [writer_box], "secondary", "place")
    else:
        wordings = ("What is the date of the report?", "Which date stands under the title?")
        ask_any(page, dice, wordings, date, [date_box], "secondary", "place")
    return y + page.px(40)


def _stamp(strip: Strip) -> None:
    """At times a stamp beside the title, where that leaves room."""
    page, right = strip.page, strip.x + strip.width
    title = max(box[2] for _, box in page.written if box[1] < page.px(170))
    if strip.dice.chance(0.4) and title < right - page.px(270):
        found = furniture.stamp(page, right - page.px(130), page.px(118), strip.words, strip.dice, "rectangular")
        furniture.ask(page, strip.dice, {f"stamp {name}": piece for name, piece in found.items()})


def _heading(strip: Strip, y: int, number: str) -> int:
    page, text = strip.page, f"{number} {strip.words.heading(strip.dice)}".strip()
    size = page.fit(text, strip.width, strip.size + 4, cut="bold", face=page.head)
    page.write(strip.x, y, text, size, cut="bold", face=page.head, fill=page.accent)
    return y + page.px((strip.size + 4) * 1.6)


def _section(strip: Strip, y: int, number: str, parts: int) -> int:
    y = _heading(strip, y, number)
    for _ in range(parts):
        y = _stated(strip, y) + strip.page.px(8)
    return y + strip.page.px(8)


def _stated(strip: Strip, y: int, lines: int = 0) -> int:
    """A paragraph that states a figure, and the question about it; with `lines`, as long as that."""
    page, words, dice = strip.page, strip.words, strip.dice
    sentence, wordings, kind = dice.choice(_HELD_OUT_STATED if words.held_out else _STATED)
    said = " ".join(question.text for question in page.questions)
    noun = different(lambda: words.noun(dice), 60)
    unused = next(one for one in noun if f"the {one}" not in said)
    value = _VALUES[kind](words, dice)
    stated = sentence.replace("N", unused, 1).replace("V", mark(value), 1)
    text = f"{words.sentence(dice)} {stated} {words.text(dice, dice.integer(1, 2))}"
    while flow.count(page, strip.width, text, strip.size) < lines:
        text = f"{text} {words.sentence(dice)}"
    flowed = flow.paragraph(page, strip.x, y, strip.width, text, strip.size, limit=lines or None)
    ask_any(page, dice, [wording.replace("N", unused) for wording in wordings], value, flowed.spans[0][1], "secondary",
            "sentence")  # fmt: skip
    return flowed.below


def _table(
    strip: Strip, y: int, label: str, count: int, asked: int, *, columns: int = 0, ruling: Ruling | None = None
) -> int:
    """A captioned table of places, people or lots against measures, and questions: the y below."""
    page, words, dice = strip.page, strip.words, strip.dice
    caption = f"{label}. {words.heading(dice)}"
    page.write(strip.x, y, caption, page.fit(caption, strip.width, 14, cut="italic"), cut="italic")
    measures = dice.sample(_HELD_OUT_MEASURES if words.held_out else _MEASURES, (columns or dice.integer(4, 6)) - 1)
    kinds = ("Parish", "Steward", "Croft") if words.held_out else ("Site", "Contact", "Lot")
    kind, name = dice.choice(tuple(zip(kinds, (words.town, words.person, words.code), strict=True)))
    heads = [kind, *(measure[0] for measure in measures)]
    rows = [
        [row, *(f"{dice.integer(low, high) / 100:,.{decimals}f}" for _, low, high, decimals in measures)]
        for row in different(lambda: name(dice), count)
    ]
    shares = floats.shares(page, heads, rows, 14)
    lines: Ruling = dice.choice(_RULINGS) if ruling is None else ruling
    boxes, below = blocks.table(
        page, strip.x, y + page.px(22), strip.width, heads, rows, shares, lines, 14,
        step=dice.choice((27, 29, 31)),
    )  # fmt: skip
    floats.ask_cells(page, dice, label, heads, rows, boxes, asked, "target")
    return below + page.px(20)


def _chart(strip: Strip, y: int, height: int, label: str) -> None:
    """A chart with its caption, and questions about two values printed in it."""
    page, words, dice = strip.page, strip.words, strip.dice
    start = dice.integer(1951, 2018)
    short = [noun for noun in words.vocabulary.nouns if len(noun) < 8]
    names = [str(start + year) for year in range(5)] if dice.chance(0.5) else dice.sample(short, 5)
    values = [f"{dice.integer(110, 9890) / 10:.1f}" for _ in names]
    draw = dice.choice((chart.bars, chart.bars, chart.line))
    axis = dice.choice(_HELD_OUT_AXES if words.held_out else _AXES)
    boxes = draw(page, strip.x, y, strip.width, height, names, values, axis)
    caption = f"{label}. {words.heading(dice)}"
    size = page.fit(caption, strip.width, 14, cut="italic")
    page.write(strip.x, y + height + page.px(8), caption, size, cut="italic")
    for place in dice.sample(range(len(names)), 2):
        name = names[place]
        wordings = (f"What value does {label} show for {name}?", f"In {label}, which number is printed at {name}?")
        ask_any(page, dice, wordings, values[place], [boxes[place]], "secondary", "key")


def _fill(strip: Strip, y: int, bottom: int, number: str) -> None:
    """Text down to the bottom, with a heading where there is room for one."""
    page, words, dice, step = strip.page, strip.words, strip.dice, strip.step
    if bottom - y > 5 * step:
        y = _heading(strip, y, number)
    if (lines := (bottom - y) // step) >= 4:
        y = _stated(strip, y, min(lines, dice.integer(4, 7))) + step // 2
    while (lines := (bottom - y) // step) >= 2:
        text = words.text(dice, dice.integer(3, 6))
        y = flow.paragraph(page, strip.x, y, strip.width, text, strip.size, limit=lines).below + step // 2
