"""Best-first splitting as everybody would write it: one image, one heap. It defines what allocation/tree.py returns.

Slow on purpose. It shares no code with the fast version: masses, tie-breaking order and context are worked out again.
"""

import heapq
from functools import lru_cache
from typing import NamedTuple

import numpy as np


@lru_cache(maxsize=64)
def _spread(h: int, w: int) -> list[list[str]]:
    """The tie-breaking key of each cell of a level: the bits of x and y, lowest first, interleaved."""
    bits = (max(h, w) - 1).bit_length()
    return [["".join(f"{x >> i & 1}{y >> i & 1}" for i in range(bits)) for x in range(w)] for y in range(h)]


class Cell(NamedTuple):
    """A token: a square of 2^level leaves at (x, y) of its level's grid; `box` is clipped to the grid, in leaves."""

    level: int
    x: int
    y: int
    box: tuple[int, int, int, int]
    is_context: bool


def heap_allocation(
    density: np.ndarray, budget: int, root_level: int, context_level: int | None = None, reduce: str = "sum"
) -> list[Cell]:
    """The cells of one image `[gh, gw]`, in canonical order.

    >>> cells = heap_allocation(np.ones((8, 8)), budget=17, root_level=2)
    >>> len(cells), cells[0].is_context, {cell.level for cell in cells[1:]}
    (17, True, {1})
    """
    levels = [np.asarray(density, dtype=np.float64)]
    for _ in range(root_level):
        fine = levels[-1]
        fine = np.pad(fine, ((0, fine.shape[0] % 2), (0, fine.shape[1] % 2)))
        quarters = fine[::2, ::2], fine[::2, 1::2], fine[1::2, ::2], fine[1::2, 1::2]
        if reduce == "max":
            levels.append(np.maximum.reduce(quarters))
        else:
            levels.append((quarters[0] + quarters[1]) + (quarters[2] + quarters[3]))
    gh, gw = levels[0].shape
    mass = [[], *(level.tolist() for level in levels[1:])]  # leaves are never split, so their mass is never asked for
    spread = [[], *(_spread(*level.shape) for level in levels[1:])]

    def entry(level: int, x: int, y: int) -> tuple:
        return -mass[level][y][x], -level, spread[level][y][x], x, y

    def box(level: int, x: int, y: int) -> tuple[int, int, int, int]:
        return x << level, y << level, min(x + 1 << level, gw), min(y + 1 << level, gh)

    rows, columns = levels[root_level].shape
    cells = {(root_level, x, y) for y in range(rows) for x in range(columns)}
    heap = [entry(*cell) for cell in cells if root_level > 0]
    heapq.heapify(heap)
    left, kept = budget - len(cells), 0
    split: list[tuple[int, int, int]] = []  # cells with several children, heaviest first
    while heap:
        _, negative_level, _, x, y = heapq.heappop(heap)
        level = -negative_level
        h, w = levels[level - 1].shape
        children = [(level - 1, i, j) for j in (2 * y, 2 * y + 1) for i in (2 * x, 2 * x + 1) if i < w and j < h]
        keeps = context_level is not None and level >= context_level and len(children) > 1
        fits = len(children) - 1 + kept + keeps <= left
        if not fits and left <= len(split):  # what is left becomes context; if it finds no place, split once more
            break
        left -= len(children) - 1
        kept += keeps
        cells.remove((level, x, y))
        cells.update(children)
        if len(children) > 1:
            split.append((level, x, y))
        if not fits:
            break
        for child in children if level > 1 else ():
            heapq.heappush(heap, entry(*child))
    context = sorted(split, key=lambda cell: -cell[0])[:left]  # stable: of one level the heavier first

    def token(cell: tuple[int, int, int], is_context: bool) -> Cell:
        return Cell(*cell, box(*cell), is_context)

    def reading(cell: Cell) -> tuple[int, int]:  # twice the centre, y before x
        x0, y0, x1, y1 = cell.box
        return y0 + y1, x0 + x1

    def area(cell: Cell) -> int:
        x0, y0, x1, y1 = cell.box
        return (x1 - x0) * (y1 - y0)

    first = sorted((token(cell, True) for cell in context), key=lambda cell: (-area(cell), reading(cell)))
    return first + sorted((token(cell, False) for cell in cells), key=reading)
