"""Whole figures: the three panels of `homunculus look`, and the gallery of all allocators."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from PIL import Image, ImageDraw
from torch import Tensor

from homunculus.allocation import Allocator, coverage, get_allocator
from homunculus.geometry import Size, leaf_side
from homunculus.reconstruct import reconstruct
from homunculus.structures import Allocation, View, VisualTokens, rectangular
from homunculus.viz.overlay import mark_fixations, mark_scanpath, overlay, panel_size, relevance_panel, to_pil
from homunculus.viz.palette import INK, PAPER, RULE, SOFT_INK, fitted, font, level_colour

MARGIN, GAP = 28, 24
TITLE, CAPTION, SMALL = 26, 20, 16
MOST_LEVELS = 8  # in a legend


@dataclass(frozen=True)
class Panel:
    """A picture with a caption above and, for the cells, a legend below."""

    picture: Image.Image
    caption: str
    note: str = ""
    legend: Sequence[tuple[float, str]] = ()  # (level, text)


def look_figure(
    image: Shaped[Tensor, "3 h w"],
    view: View,
    tokens: VisualTokens,
    question: str | None,
    method: Allocator,
    box: Size = (640, 920),
    scanpath: Float[Tensor, "f 3"] | None = None,
) -> Image.Image:
    """Cells over the image, what the tokens are spent by, and the image the model would see, side by side.

    `scanpath` are fixations in the order they were looked at, drawn instead of those of the view.
    """
    full = image.shape[2], image.shape[1]
    size = panel_size(full, box)
    allocation = rectangular(tokens.allocation)
    fixations = view.fixations[0] if view.fixations is not None and method.uses_gaze else None
    cells = overlay(image, allocation, size)
    wanted = relevance_panel(image, method.density(view)[0], size)
    scale = size[0] / full[0], size[1] / full[1]
    for picture in (cells, wanted):
        if scanpath is None:
            mark_fixations(picture, fixations, scale)
        else:
            mark_scanpath(picture, scanpath, scale)
    seen = to_pil(reconstruct(tokens, max(size)).images[0], size)
    context = int(allocation.is_context.sum())
    panels = [
        Panel(
            cells,
            f"{allocation.budget} tokens, {method.name}",
            "cells by side" + (f"; {context} more, repeating a coarse one" if context else ""),
            side_legend(allocation),
        ),
        Panel(
            wanted,
            "relevance" if fixations is None else "relevance and gaze",
            "bright: tokens wanted" + ("" if scanpath is None else "; numbers: looks"),
        ),
        Panel(
            seen,
            "what the model sees",
            f"{full[0]} x {full[1]} px in {allocation.budget} patches of {allocation.leaf} px",
        ),
    ]
    return compose(question or "no question: relevance of the image alone", panels, columns=3)


def gallery_figure(
    image: Shaped[Tensor, "3 h w"], looks: dict[str, VisualTokens], view: View, title: str
) -> Image.Image:
    """Every allocator on one image: its cells, how many of them are how large, and what they cover."""
    full = image.shape[2], image.shape[1]
    size = panel_size(full, (330, 440))
    panels = []
    for name, tokens in looks.items():
        allocation = rectangular(tokens.allocation)
        picture = overlay(image, allocation, size)
        note = f"covers {coverage(allocation).union.item():.0%} of the image"
        if view.fixations is not None and get_allocator(name).uses_gaze:
            mark_fixations(picture, view.fixations[0], (size[0] / full[0], size[1] / full[1]))
        elif view.fixations is not None:
            note += "; ignores the gaze"
        panels.append(Panel(picture, name, note, side_legend(allocation)))
    return compose(title, panels, columns=5)


def level_counts(allocation: Allocation, index: int = 0) -> list[tuple[float, int]]:
    """(level, tokens) from fine to coarse, context excluded; levels to one decimal, or whole where there are many."""
    levels = allocation.levels[index][~allocation.is_context[index]]
    values, counts = torch.round(levels, decimals=1).unique(return_counts=True)
    if len(values) > MOST_LEVELS:
        values, counts = levels.round().unique(return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


def side_legend(allocation: Allocation, index: int = 0) -> list[tuple[float, str]]:
    """(level, "side: count") for every level, the side in pixels of the image."""
    leaf = leaf_side(allocation.grids[index], allocation.image_sizes[index])
    return [(level, f"{pixels(leaf * 2**level)}: {count}") for level, count in level_counts(allocation, index)]


def pixels(side: float) -> str:
    """A length for people.

    >>> pixels(16.0), pixels(1472.3), pixels(0.0556)
    ('16 px', '1472 px', '0.056 px')
    """
    return f"{side:.0f} px" if side >= 10 else f"{side:.2g} px"


def compose(title: str, panels: Sequence[Panel], columns: int) -> Image.Image:
    """Panels in rows under a title; every row is as high as its tallest picture, legends never overlap."""
    columns = min(columns, len(panels))
    width = max(320, max(panel.picture.width for panel in panels))
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [max(panel.picture.height for panel in row) for row in rows]
    below = [max(_legend_height(panel, width) for panel in row) for row in rows]
    head, above = TITLE + GAP, CAPTION + 12
    total_width = 2 * MARGIN + columns * width + (columns - 1) * GAP
    total_height = (
        2 * MARGIN + head + sum(above + h + b for h, b in zip(heights, below, strict=True)) + GAP * (len(rows) - 1)
    )
    figure = Image.new("RGB", (total_width, total_height), PAPER)
    draw = ImageDraw.Draw(figure)
    draw.text((MARGIN, MARGIN), fitted(title, TITLE, total_width - 2 * MARGIN), INK, font(TITLE))
    y = MARGIN + head
    for row, height, legend in zip(rows, heights, below, strict=True):
        for column, panel in enumerate(row):
            x = MARGIN + column * (width + GAP)
            draw.text((x, y), fitted(panel.caption, CAPTION, width), INK, font(CAPTION))
            figure.paste(panel.picture, (x, y + above))
            right, bottom = x + panel.picture.width, y + above + panel.picture.height
            draw.rectangle((x - 1, y + above - 1, right, bottom), outline=RULE)
            _draw_legend(draw, panel, x, bottom + 10, width)
        y += above + height + legend + GAP
    return figure


def _entries(panel: Panel, width: int) -> list[list[tuple[float, str, int]]]:
    """Legend entries (level, text, pixels wide) broken into lines that fit."""
    lines: list[list[tuple[float, str, int]]] = [[]]
    used = 0
    for level, text in panel.legend:
        wide = SMALL + 6 + round(font(SMALL).getlength(text)) + 18
        if used + wide > width and lines[-1]:
            lines.append([])
            used = 0
        lines[-1].append((level, text, wide))
        used += wide
    return lines if panel.legend else []


def _legend_height(panel: Panel, width: int) -> int:
    return 10 + (SMALL + 10) * (len(_entries(panel, width)) + bool(panel.note))


def _draw_legend(draw: ImageDraw.ImageDraw, panel: Panel, x: int, y: int, width: int) -> None:
    if panel.note:
        draw.text((x, y), fitted(panel.note, SMALL, width), SOFT_INK, font(SMALL))
        y += SMALL + 10
    for line in _entries(panel, width):
        place = x
        for level, text, wide in line:
            draw.rectangle((place, y + 1, place + SMALL, y + 1 + SMALL), fill=level_colour(level), outline=INK)
            draw.text((place + SMALL + 6, y), text, INK, font(SMALL))
            place += wide
        y += SMALL + 10
