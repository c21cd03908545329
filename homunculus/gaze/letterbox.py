"""The bars beside a photograph on a display: undone for places, and found in files that were saved with them.

A file does not say where its bars end. Rows and columns that are black from end to end may be bars or the photograph's
own; bars are on one axis, equal on both sides, and leave a photograph whose aspect is common, or at least plausible.
A photograph whose own sides are black may still lose them, where what is left is plausible; its fixations there count
as outside, all others keep their place in it, as a crop moves nothing.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image

from homunculus.errors import DataError
from homunculus.geometry import Size

DARK = 16  # the brightest pixel in a bar that is black but for compression
FAINT = 3.0  # its mean, where a night is brighter
SLIGHT = 2  # pixels that are no bar yet
COMMON = (16 / 9, 3 / 2, 4 / 3, 1.0, 3 / 4, 2 / 3, 9 / 16)  # aspects of photographs
NEARLY = 0.01  # as a share of an aspect: 640x427 is 3 / 2
PLAUSIBLE = (1.2, 2.0)  # aspects of all of COCO-Search18 (from memory)


def undo_letterbox(
    points: Float64[np.ndarray, "n 2"], size: Size, display: Size
) -> tuple[Float64[np.ndarray, "n 2"], float]:
    """Points of a display to pixels of the image shown on it, and how many display pixels one of its pixels took.

    The image was enlarged until it touched two sides, its aspect kept, and centred.

    >>> undo_letterbox(np.array([[840.0, 525.0], [140.0, 0.0]]), (640, 480), (1680, 1050))
    (array([[320., 240.],
           [  0.,   0.]]), 2.1875)
    """
    scale = min(display[0] / size[0], display[1] / size[1])
    margin = (np.array(display) - np.array(size) * scale) / 2
    return (points - margin) / scale, scale


def without_bars(path: Path) -> tuple[int, int, int, int]:
    """(x0, y0, x1, y1) of the image in a file that may have black bars left and right, or above and below."""
    try:
        with Image.open(path) as opened:
            grey = np.asarray(opened.convert("L"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read ({error}): download it again") from None
    height, width = grey.shape
    left, above = likely_bars((width, height), (black_margin(grey.T), black_margin(grey)))
    return left, above, width - left, height - above


def black_margin(grey: UInt8[np.ndarray, "rows columns"]) -> int:
    """How many rows are black from end to end, above and below alike; none where all are.

    >>> black_margin(np.array([[0, 0], [1, 0], [90, 0], [0, 0]], dtype=np.uint8))
    1
    """
    lit = np.flatnonzero((grey.max(1) > DARK) | (grey.mean(1) > FAINT))
    return int(min(lit[0], len(grey) - 1 - lit[-1])) if len(lit) else 0


def likely_bars(size: Size, margins: tuple[int, int]) -> tuple[int, int]:
    """The bars (left and right, above and below) of a file, of whose black margins some may be the photograph's own.

    >>> display = 1680, 1050
    >>> likely_bars(display, (140, 0)), likely_bars(display, (84, 52))  # 640x480; 640x360 with black sides
    ((140, 0), (0, 52))
    >>> likely_bars(display, (280, 0)), likely_bars(display, (184, 0))  # 640x480 with black sides; 640x512
    ((140, 0), (184, 0))
    """
    widest, other = sorted(((margins[0], 0), (0, margins[1])), key=max, reverse=True)
    if max(widest) <= SLIGHT:
        return 0, 0
    for bars in (widest, other):
        aspect = _aspect(size, bars)
        if max(bars) > SLIGHT and any(abs(aspect / common - 1) < NEARLY for common in COMMON):
            return bars
    if PLAUSIBLE[0] <= _aspect(size, widest) <= PLAUSIBLE[1]:
        return widest
    # Too much is black: as much of it as a photograph of a common aspect leaves.
    fitting = [_bars_of(size, aspect) for aspect in COMMON]
    return max((bars for bars in fitting if bars[0] <= margins[0] and bars[1] <= margins[1]), key=max, default=widest)


def _aspect(size: Size, bars: tuple[int, int]) -> float:
    return (size[0] - 2 * bars[0]) / (size[1] - 2 * bars[1])


def _bars_of(size: Size, aspect: float) -> tuple[int, int]:
    """Those of a photograph of that aspect, as large as it can be shown."""
    return max(0, int((size[0] - size[1] * aspect) / 2)), max(0, int((size[1] - size[0] / aspect) / 2))
