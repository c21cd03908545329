"""A contact sheet: records side by side, a box round every answer, the questions and answers underneath."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from homunculus.data.fonts import FACES, load
from homunculus.data.record import REGIONS, Question, Record, Region
from homunculus.errors import DataError
from homunculus.geometry import Size
from homunculus.viz.overlay import panel_size
from homunculus.viz.palette import INK, PAPER, RULE, SOFT_INK, Colour

# Told apart by people who do not tell red from green, and on paper of any tone.
REGION_COLOUR: dict[Region | None, Colour] = {
    "target": (213, 60, 0),
    "secondary": (0, 98, 190),
    "periphery": (0, 140, 90),
    None: (110, 110, 110),
}
CELL, MARGIN, GAP = 480, 28, 26
TITLE, TEXT, LINE = 26, 16, 21
LINES = 2  # a question


def contact_sheet(records: Sequence[Record], title: str, columns: int = 4) -> Image.Image:
    """Images in rows, each over its first three questions: one of each region in what we make.

    >>> import numpy as np
    >>> page = Record("a/train/0", np.zeros((64, 48, 3), np.uint8), Question("What?", ("1",), ((5, 5, 20, 9),)))
    >>> contact_sheet([page], "One page").width
    536
    """
    if not records:
        raise DataError("a contact sheet of nothing: ask for at least one record")
    columns = min(columns, len(records))
    cells = [_cell(record) for record in records]
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    head = MARGIN + TITLE + GAP
    width = 2 * MARGIN + columns * CELL + (columns - 1) * GAP
    sheet = Image.new("RGB", (width, head + sum(heights) + GAP * (len(rows) - 1) + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), title, INK, load(FACES[0], TITLE, "bold"))
    if columns > 1:
        _legend(draw, width - MARGIN, MARGIN + 4)
    y = head
    for row, height in zip(rows, heights, strict=True):
        for place, cell in enumerate(row):
            sheet.paste(cell, (MARGIN + place * (CELL + GAP), y))
        y += height + GAP
    return sheet


def fewer_colours(sheet: Image.Image, colours: int) -> Image.Image:
    """The sheet in so many colours, the rare ones kept: a median cut would give them to the paper, and a small pink
    thing would come out grey.

    >>> sheet = Image.radial_gradient("L").convert("RGB")
    >>> sheet.paste((240, 90, 150), (10, 10, 14, 14))
    >>> red, green, blue = fewer_colours(sheet, 32).convert("RGB").getpixel((12, 12))
    >>> max(abs(red - 240), abs(green - 90), abs(blue - 150)) < 8
    True
    """
    return sheet.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=2)


def _cell(record: Record) -> Image.Image:
    questions = record.questions[:3]
    size = panel_size(record.image_size, (CELL - 2, CELL * 2))
    picture = Image.fromarray(record.image).resize(size, Image.Resampling.LANCZOS)
    captions = [(question, _wrapped(question.text, CELL - 24)) for question in questions]
    height = size[1] + 12 + sum(LINE * (len(lines) + 1) + 6 for _, lines in captions) + LINE
    cell = Image.new("RGB", (CELL, height), PAPER)
    cell.paste(picture, (1, 1))
    draw = ImageDraw.Draw(cell)
    draw.rectangle((0, 0, size[0] + 1, size[1] + 1), outline=RULE)
    scale = size[0] / record.image_size[0], size[1] / record.image_size[1]
    for question in questions:
        _boxes(draw, question, scale, size)
    y = size[1] + 12
    for question, lines in captions:
        colour = REGION_COLOUR[question.region]
        draw.rectangle((0, y + 4, 11, y + 15), fill=colour)
        for line in lines:
            draw.text((20, y), line, SOFT_INK, load(FACES[0], TEXT))
            y += LINE
        draw.text((20, y), _wrapped(question.answer, CELL - 24)[0], INK, load(FACES[0], TEXT, "bold"))
        y += LINE + 6
    draw.text((20, y), record.key, SOFT_INK, load(FACES[0], TEXT - 3))
    return cell


def _boxes(draw: ImageDraw.ImageDraw, question: Question, scale: tuple[float, float], size: Size) -> None:
    """Drawn round the box, not over the ink in it, and inside the picture."""
    for x0, y0, x1, y1 in question.boxes:
        for reach, colour, width in (
            (3, PAPER, 1),
            (2, REGION_COLOUR[question.region], 2),
        ):  # seen on its own colour too
            right, bottom = min(x1 * scale[0] + reach + 1, size[0]), min(y1 * scale[1] + reach + 1, size[1])
            corners = (max(1, x0 * scale[0] - reach), max(1, y0 * scale[1] - reach), right, bottom)
            draw.rectangle(corners, outline=colour, width=width)


def _legend(draw: ImageDraw.ImageDraw, right: int, y: int) -> None:
    face = load(FACES[0], TEXT)
    for region in reversed(REGIONS):
        right -= round(face.getlength(region))
        draw.text((right, y), region, INK, face)
        draw.rectangle((right - 20, y + 4, right - 9, y + 15), fill=REGION_COLOUR[region])
        right -= 40


def _wrapped(text: str, width: int) -> list[str]:
    """At most so many lines that fit, the last cut with an ellipsis where more would follow."""
    face, lines = load(FACES[0], TEXT, "bold"), [""]  # measured in the wider cut
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if not lines[-1] or face.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    kept = lines[:LINES]
    more = len(lines) > LINES
    while kept[-1] and face.getlength(kept[-1] + ("…" if more else "")) > width:
        kept[-1], more = kept[-1][:-1].rstrip(), True
    return [*kept[:-1], kept[-1] + ("…" if more else "")]
