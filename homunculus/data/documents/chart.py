"""Small charts with labelled axes: bars and lines whose values are printed at them, so that they can be read."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from homunculus.data.dice import Dice
from homunculus.data.documents.page import Colour, Page
from homunculus.data.record import Box


def bars(
    page: Page, x: int, y: int, width: int, height: int, names: Sequence[str], values: Sequence[str], axis: str = "",
    fill: Colour | None = None, size: int = 13,
) -> list[Box]:  # fmt: skip
    """A bar for each name in a frame with its top left corner at (x, y): the box of the value printed over each.

    >>> page = Page((512, 512), "train", Dice("a chart"))
    >>> low, high = bars(page, 20, 20, 200, 160, ["spring", "autumn"], ["12.5", "31.0"])
    >>> high[1] < low[1]  # a taller bar carries its value higher
    True
    """
    left, bottom, scale = _axes(page, x, y, width, height, [float(value) for value in values], axis, size)
    step = (x + width - left) / len(values)
    room = step - page.px(4)
    boxes = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        middle = round(left + (place + 0.5) * step)
        top, half = bottom - round(float(value) * scale), max(2, round(step * 0.31))
        page.pen.rectangle((middle - half, top, middle + half, bottom - 1), fill=fill or page.accent)
        boxes.append(page.write(middle, top - page.px(3), value, page.fit(value, room, size), anchor="ms"))
        page.write(middle, bottom + page.px(6), name, page.fit(name, room, size), anchor="ma")
    page.pen.line((left, bottom, x + width, bottom), fill=page.ink, width=max(1, page.px(1)))
    return boxes


def line(
    page: Page, x: int, y: int, width: int, height: int, names: Sequence[str], values: Sequence[str], axis: str = "",
    fill: Colour | None = None, size: int = 13,
) -> list[Box]:  # fmt: skip
    """Points joined by a line in a frame, its top left corner at (x, y): the box of the value printed over each."""
    left, bottom, scale = _axes(page, x, y, width, height, [float(value) for value in values], axis, size)
    step = (x + width - left) / len(values)
    points = [
        (round(left + (place + 0.5) * step), bottom - round(float(value) * scale)) for place, value in enumerate(values)
    ]
    curve(page, (x, y, x + width, bottom), [points], fill or page.accent, 2.2)
    boxes, room = [], step - page.px(4)
    for place, ((across, high), name, value) in enumerate(zip(points, names, values, strict=True)):
        dot = max(1, page.px(4))
        page.pen.ellipse((across - dot, high - dot, across + dot, high + dot), fill=fill or page.accent)
        beside = [points[other][1] for other in (place - 1, place + 1) if 0 <= other < len(points)]
        valley = max(beside) < high < bottom - page.px(30)  # the line leaves upwards: the value goes below
        level, fitting = high + page.px(16 if valley else -16), page.fit(value, room, size)
        half = round(page.length(value, fitting) / 2) + 1
        page.pen.rectangle((across - half, level - page.px(6), across + half, level + page.px(6)), fill=page.paper)
        boxes.append(page.write(across, level, value, fitting, anchor="mm"))
        page.write(across, bottom + page.px(6), name, page.fit(name, room, size), anchor="ma")
    page.pen.line((left, bottom, x + width, bottom), fill=page.ink, width=max(1, page.px(1)))
    return boxes


def plot(
    page: Page, x: int, y: int, width: int, height: int, strokes: Sequence[str], name: str, values: Sequence[str],
    across: str, up: str, dice: Dice, size: int = 13,
) -> list[Box]:  # fmt: skip
    """Curves in a frame with ticks, and a legend of strokes with their values: the box of each value."""
    left, right, top, bottom = x + page.px(44), x + width - page.px(4), y + page.px(28), y + height - page.px(38)
    page.write(x, y, up, size)
    page.write((left + right) // 2, y + height - page.px(2), across, size, anchor="ms")
    page.pen.rectangle((left, top, right, bottom), outline=page.ink, width=max(1, page.px(1)))
    unit_x, unit_y, tick = dice.choice((0.1, 0.5, 2, 20)), dice.choice((0.2, 1, 5, 50)), page.px(5)
    for place in range(5):
        mark_x, mark_y = left + (right - left) * place // 4, bottom - (bottom - top) * place // 4
        page.pen.line((mark_x, bottom, mark_x, bottom - tick), fill=page.ink)
        page.pen.line((left, mark_y, left + tick, mark_y), fill=page.ink)
        anchor = "ra" if place == 4 else "ma"
        page.write(mark_x, bottom + page.px(4), f"{place * unit_x:g}", 12, anchor=anchor)
        page.write(left - page.px(5), mark_y, f"{place * unit_y:g}", 12, anchor="rm")
    legend = top + page.px(8)
    deepest = legend + page.px(size * 1.4) * len(values)
    boxes = []
    for place, (stroke, value) in enumerate(zip(strokes, values, strict=True)):
        start, bend, end = dice.uniform(0.02, 0.3), dice.uniform(-0.3, 0.3), dice.uniform(0.3, 0.95)
        count = (right - left) // max(1, page.px(6))
        steps = [step / count for step in range(count + 1)]
        levels = [start + (end - start) * t + bend * 4 * t * (1 - t) for t in steps]
        points = [
            (left + round((right - left) * t), bottom - round((bottom - deepest) * min(1.0, max(0.0, level))))
            for t, level in zip(steps, levels, strict=True)
        ]
        row = legend + page.px(size * 1.4) * place + page.px(size // 2)
        sample = [(left + page.px(14) + page.px(3) * step, row) for step in range(13)]
        for run in (points, sample):
            keep = {"solid": 1, "dashed": 4, "dotted": 2}[stroke]
            parts = [run] if keep == 1 else [run[at : at + keep // 2 + 1] for at in range(0, len(run) - 1, keep)]
            curve(page, (x, y, x + width, y + height), parts, page.accent, 1.6)
        page.write(left + page.px(60), row, f"{name} =", size, anchor="lm")
        at = left + page.px(60) + page.length(f"{name} = ", size)
        boxes.append(page.write(at, row, value, size, anchor="lm"))
    return boxes


def curve(
    page: Page, frame: tuple[int, int, int, int], parts: Sequence[Sequence[tuple[int, int]]], fill: Colour,
    weight: float = 2,
) -> None:  # fmt: skip
    """A smooth-edged line inside a frame, in one part or several."""
    edge = page.px(4) + 2
    across, down = [a for part in parts for a, _ in part], [b for part in parts for _, b in part]
    left, top = max(frame[0], min(across) - edge), max(frame[1], min(down) - edge)
    right, bottom = min(frame[2], max(across) + edge), min(frame[3], max(down) + edge)
    mask = Image.new("L", ((right - left) * 2, (bottom - top) * 2))
    pen = ImageDraw.Draw(mask)
    for part in parts:
        doubled = [((a - left) * 2, (b - top) * 2) for a, b in part]
        pen.line(doubled, fill=255, width=max(2, page.px(2 * weight)), joint="curve")
    page.image.paste(fill, (left, top), mask.reduce(2))


def _axes(
    page: Page, x: int, y: int, width: int, height: int, values: Sequence[float], axis: str, size: int
) -> tuple[int, int, float]:
    """Grid lines and their labels: the left edge of the plot, its bottom, and the pixels to a unit."""
    tick = _tick(max(values))
    ticks = [tick * place for place in range(int(max(values) / tick) + 2)]
    labels = [f"{value:g}" for value in ticks]
    left = x + page.px(10) + round(max(page.length(label, size) for label in labels))
    head = page.px(size * (2.6 if axis else 1.4))  # the values over the tallest need room
    bottom = y + height - page.px(size * 2)
    scale = (bottom - y - head) / ticks[-1]
    if axis:
        page.write(x, y, axis, page.fit(axis, width, size), fill=page.faint)
    for value, label in zip(ticks, labels, strict=True):
        level = bottom - round(value * scale)
        page.pen.line((left, level, x + width, level), fill=page.tint if value else page.ink)
        page.write(left - page.px(6), level, label, size, fill=page.faint, anchor="rm")
    return left, bottom, scale


def _tick(largest: float) -> float:
    """A round step that divides the axis into about four."""
    power = 1.0
    while power * 10 <= largest:
        power *= 10
    while power > largest:
        power /= 10
    return next(step * power for step in (0.2, 0.5, 1, 2, 2.5) if largest / (step * power) < 5)
