"""Figures and tables of papers and reports, numbered and captioned, with questions about what they show."""

from collections.abc import Sequence

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, chart, flow, science
from homunculus.data.documents.equations import number
from homunculus.data.documents.flow import mark
from homunculus.data.documents.furniture import ask_any
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import Words, different, ordinal
from homunculus.data.record import Box, Region

_SHOWN = (
    "Recall",
    "Yield",
    "Loss",
    "Gain",
    "Error",
    "Score",
    "Depth",
    "Speed",
    "Drag",
    "Mass",
    "Bias",
    "Range",
    "Load",
)
_HELD_OUT_SHOWN = ("Tilt", "Haze", "Creep", "Flux", "Skew", "Sway", "Pitch", "Glare", "Wear")
_UNITS = ("%", "kN", "ms", "kHz", "mm", "kg", "MW", "K")


def add(page: Page, words: Words, dice: Dice, x: int, y: int, width: int, which: int = 0) -> int:
    """A figure or a table from the top left corner (x, y): the y below it. Numbers do not repeat for other `which`."""
    label = dice.integer(1, 9) + 10 * which
    kind = dice.choice((table, bars_or_line, plot))
    return kind(page, words, dice, x, y, width, label) + page.px(18)


def shown(words: Words) -> tuple[str, ...]:
    """What tables and charts are of, in a word."""
    return _HELD_OUT_SHOWN if words.held_out else _SHOWN


def table(page: Page, words: Words, dice: Dice, x: int, y: int, width: int, label: int) -> int:
    """A table under its caption."""
    value = number(dice)
    caption = f"Table {label}: {words.heading(dice)}, tolerance {mark(value)}."
    flowed = flow.paragraph(page, x, y, width, caption, 13)
    wordings = (f"Which tolerance is stated in the caption of Table {label}?",
                f"What is the tolerance according to the caption of Table {label}?")  # fmt: skip
    ask_any(page, dice, wordings, value, flowed.spans[0][1], "secondary", "place")
    columns = 3 if width < page.px(360) else dice.integer(4, 5) if width < page.px(500) else dice.integer(5, 7)
    heads = ["Run", *dice.sample(shown(words), columns - 1)]
    runs = different(lambda: words.pattern(dice, dice.choice(("A9", "AA", "AA-9"))), dice.integer(4, 9))
    rows = [[run, *(f"{dice.integer(101, 9899) / 100:.2f}" for _ in heads[1:])] for run in runs]
    top = flowed.below + page.px(4)
    page.rule(x, top, x + width, top, page.ink, 2)
    boxes, below = blocks.table(page, x, top, width, heads, rows, shares(page, heads, rows, 13), "open", 13, step=22)
    ask_cells(page, dice, f"Table {label}", heads, rows, boxes, 2, "secondary")
    return below


def shares(page: Page, heads: Sequence[str], rows: Sequence[Sequence[str]], size: float) -> list[float]:
    """How wide each column of a table wants to be, in pixels: as its widest text, and room around it."""
    columns = zip(heads, *rows, strict=True)
    return [max(page.length(text, size, cut="bold") for text in column) + page.px(24) for column in columns]


def ask_cells(
    page: Page, dice: Dice, label: str, heads: Sequence[str], rows: Sequence[Sequence[str]],
    boxes: Sequence[Sequence[Box]], count: int, region: Region,
) -> None:  # fmt: skip
    """Ask for `count` cells of a labelled table, by the heads of row and column or by their places."""
    cells = [(row, column) for row in range(len(rows)) for column in range(1, len(heads))]
    for row, column in dice.sample(cells, count):
        name, head = rows[row][0], heads[column][0].lower() + heads[column][1:]
        if dice.chance(0.6):
            by_name = (f"What is the {head} for {name} in {label}?", f"In {label}, what {head} is given for {name}?",
                       f"Look at the row of {name} in {label}: what is the {head}?")  # fmt: skip
            ask_any(page, dice, by_name, rows[row][column], [boxes[row][column]], region, "key")
        else:
            at = f"{ordinal(row)} row, {ordinal(column)} column"
            by_place = (f"What stands in the {at} of {label}, not counting the heads?",
                        f"Below the heads of {label}, what is in the {at}?")  # fmt: skip
            ask_any(page, dice, by_place, rows[row][column], [boxes[row][column]], region, "place")


def bars_or_line(page: Page, words: Words, dice: Dice, x: int, y: int, width: int, label: int) -> int:
    """A chart with its values printed, over its caption."""
    height = min(page.px(dice.integer(190, 240)), width * 3 // 4)
    nouns = [noun for noun in words.vocabulary.nouns if len(noun) < 8]
    names = dice.sample(nouns, 4 if width < page.px(500) else dice.integer(6, 8))
    values = [f"{dice.integer(110, 989) / 10:.1f}" for _ in names]
    axis = f"{dice.choice(shown(words))} ({dice.choice(_UNITS)})"
    draw = dice.choice((chart.bars, chart.line))
    boxes = draw(page, x, y, width, height, names, values, axis, dice.choice((page.accent, page.faint)))
    for place in dice.sample(range(len(names)), 2):
        wordings = (f"In Figure {label}, which value is printed for {names[place]}?",
                    f"What value does Figure {label} show for {names[place]}?")  # fmt: skip
        ask_any(page, dice, wordings, values[place], [boxes[place]], "secondary", "key")
    return _caption(page, words, dice, x, y + height, width, label)


def plot(page: Page, words: Words, dice: Dice, x: int, y: int, width: int, label: int) -> int:
    """Curves in a frame, told apart by their strokes in a legend that gives a value for each, over its caption."""
    height = min(page.px(dice.integer(200, 250)), width * 3 // 4)
    strokes = dice.sample(("solid", "dashed", "dotted"), dice.integer(2, 3))
    name, unit = dice.choice("TLRQDHVP"), dice.choice(_UNITS)
    values = different(lambda: f"{number(dice)} {unit}", len(strokes))
    across, up = dice.sample(shown(words), 2)
    boxes = chart.plot(page, x, y, width, height, strokes, name, values, across, up, dice)
    for stroke, value, box in zip(strokes[:2], values, boxes, strict=False):
        wordings = (f"In Figure {label}, which {name} belongs to the {stroke} curve?",
                    f"For which {name} is the {stroke} curve of Figure {label} drawn?")  # fmt: skip
        ask_any(page, dice, wordings, (value, value.split()[0]), [box], "secondary", "key")
    return _caption(page, words, dice, x, y + height, width, label)


def _caption(page: Page, words: Words, dice: Dice, x: int, y: int, width: int, label: int) -> int:
    fact = science.measured(words, dice)
    text = f"Figure {label}: {words.heading(dice)}. {fact.sentence}"
    flowed = flow.paragraph(page, x, y + page.px(4), width, text, 13, justify=True)
    wordings = (f"According to the caption of Figure {label}, what is the {fact.of}?",
                f"What {fact.of} is stated in the caption of Figure {label}?")  # fmt: skip
    ask_any(page, dice, wordings, fact.answers, flowed.spans[0][1], "secondary", "place")
    return flowed.below
