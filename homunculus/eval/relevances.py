"""Where a plan says to look, in words: the model's own scorer, the truth, the truth spoilt on purpose, or a mixture.

    predicted     the model's scorer, asked the question
    first-turn    the scorer, asked the first question about the image: all that was made of it is kept for the others
    first-cells   only the cells of it are kept; how relevant each of them is the scorer says anew, asked the question
    true          the true region
    hit-70        the true region for 70 % of the questions, for the others a wrong place of the same form
    moved-4       the true region displaced by 4 leaves, in any direction
    detail        a source of the library by its name, which hears no question
    0.5 predicted + 0.5 detail    a mixture of sources

Which questions a spoilt one fails at, and where it looks instead, follows from the question's key alone: every method
is misled alike, and of two rates the higher fails at some of the questions the lower fails at, and at no others.
"""

import math
import re
from collections.abc import Sequence

from jaxtyping import Float64
from torch import Tensor

from homunculus.data import relevance_map
from homunculus.data.dice import Dice
from homunculus.data.record import Box
from homunculus.errors import RelevanceError
from homunculus.geometry import Size
from homunculus.relevance.maps import SOURCES

LEAF = 16
TRIES = 64
KEPT_CELLS = "first-cells"
LEARNED = ("predicted", "first-turn", KEPT_CELLS)

_SPOILT = re.compile(r"hit-(?P<rate>100|\d?\d)|moved-(?P<leaves>\d{1,3})")


def check_relevance(words: str) -> None:
    """Refuse what nobody could look by.

    >>> check_relevance("0 predicted + 0.5 detail")
    Traceback (most recent call last):
    homunculus.errors.RelevanceError: '0 predicted' has no weight: write a number above 0, as in '0.5 detail'
    """
    mixture_of(words)


def mixture_of(words: str) -> list[tuple[str, float]]:
    """The sources of a relevance in words, with their weights.

    >>> mixture_of("true"), mixture_of("0.75 predicted + 0.25 detail")
    ([('true', 1.0)], [('predicted', 0.75), ('detail', 0.25)])
    """
    parts = []
    for part in words.split("+"):
        *weight, name = part.split() or [""]
        known = name in (*LEARNED, "true") or (name in SOURCES and name != "learned") or _SPOILT.fullmatch(name)
        if not known or len(weight) > 1:
            sources = ", ".join(source for source in SOURCES if source != "learned")
            raise RelevanceError(
                f"no relevance {part.strip()!r}: say predicted, first-turn, first-cells, true, hit-70, moved-4, a "
                f"source ({sources}) or a mixture such as '0.5 predicted + 0.5 detail'"
            )
        parts.append((name, _weight(weight[0] if weight else "1", part)))
    if len(parts) > 1 and KEPT_CELLS in (name for name, _ in parts):
        raise RelevanceError(f"{KEPT_CELLS} is not a map that could be mixed: leave it alone, or mix predicted")
    return parts


def _weight(text: str, part: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise RelevanceError(f"{part.strip()!r} has no weight: write a number above 0, as in '0.5 detail'")
    return value


def told_region(name: str, key: str, boxes: Sequence[Box], size: Size) -> Float64[Tensor, "gh gw"] | None:
    """The map of a relevance that knows the truth, for one question; None for those that do not.

    >>> told_region("moved-0", "scenes/val/0#0", [(0, 0, 16, 16)], (64, 32)).tolist()[0]
    [1.0, 0.0, 0.0, 0.0]
    """
    spoilt = _SPOILT.fullmatch(name)
    if name != "true" and spoilt is None:
        return None
    places = list(boxes)
    if spoilt is not None and spoilt["rate"] is not None:
        if Dice("hit", key).random() >= int(spoilt["rate"]) / 100:
            places = elsewhere(key, boxes, size)
    elif spoilt is not None:
        places = displaced(key, boxes, size, LEAF * int(spoilt["leaves"]))
    return relevance_map(places, size, (-(-size[0] // LEAF), -(-size[1] // LEAF)))


def elsewhere(key: str, boxes: Sequence[Box], size: Size) -> list[Box]:
    """The boxes as they are to each other, at a place where they do not meet those that are right, if there is one.

    >>> elsewhere("key", [(0, 0, 40, 8)], (64, 64)) != [(0, 0, 40, 8)]
    True
    """
    dice = Dice("elsewhere", key)
    x0, y0, x1, y1 = bounds(boxes)
    best, least = list(boxes), math.inf
    for _ in range(TRIES):
        dx = dice.uniform(0, max(0.0, size[0] - (x1 - x0))) - x0
        dy = dice.uniform(0, max(0.0, size[1] - (y1 - y0))) - y0
        moved = [(a + dx, b + dy, c + dx, d + dy) for a, b, c, d in boxes]
        shared = sum(_shared(one, other) for one in moved for other in boxes)
        if shared < least:
            best, least = moved, shared
        if least == 0:
            break
    return best


def displaced(key: str, boxes: Sequence[Box], size: Size, distance: float) -> list[Box]:
    """The boxes so many pixels away in one of 16 directions: one that leaves the most of them inside the image.

    >>> displaced("key", [(0, 0, 16, 16)], (64, 64), 0.0)
    [(0.0, 0.0, 16.0, 16.0)]
    """
    turn = Dice("moved", key).random()
    ways = []
    for k in range(16):
        angle = 2 * math.pi * (turn + k / 16)
        dx, dy = distance * math.cos(angle), distance * math.sin(angle)
        moved = [(a + dx, b + dy, c + dx, d + dy) for a, b, c, d in boxes]
        inside = sum(_shared(box, (0.0, 0.0, float(size[0]), float(size[1]))) for box in moved)
        ways.append((round(inside, 6), -k, moved))
    inside, _, found = max(ways)
    if inside <= 0:
        raise RelevanceError(
            f"nothing of an image of {size[0]}x{size[1]} is {distance:g} pixels away: displace it less"
        )
    return found


def bounds(boxes: Sequence[Box]) -> Box:
    """The box round boxes."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def _shared(one: Box, other: Box) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, across) * max(0.0, down)
