"""The figures: each a handful of polygons in a 100 x 100 box, the longest side filling it.

A part is (tone, points). `body` takes the colour and texture of the thing; `shade` and `light` are its colour darker
and lighter; `gloss` is a faint highlight; `hole` cuts through; the others have a colour of their own. Bodies come
first. All curves are polygons of rounded points, so the figures are the same on every machine.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

Point = tuple[float, float]
Part = tuple[str, Sequence[Point]]

FIXED = {
    "ink": (46, 42, 48),
    "paper": (242, 238, 226),
    "glass": (196, 220, 232),
    "metal": (168, 170, 178),
    "wood": (118, 88, 62),
}


def arc(cx: float, cy: float, rx: float, ry: float, start: int = 0, stop: int = 360) -> list[Point]:
    """Points every ten degrees of an ellipse, clockwise from the right as y points down."""
    turns = [math.radians(degree) for degree in range(start, stop + (stop - start < 360), 10)]
    return [(round(cx + rx * math.cos(t), 2), round(cy + ry * math.sin(t), 2)) for t in turns]


def smooth(points: Sequence[Point], pieces: int = 6) -> list[Point]:
    """A closed Catmull-Rom curve through the points.

    >>> len(smooth([(0, 0), (100, 0), (50, 80)]))
    18
    """
    found, n = [], len(points)
    for i in range(n):
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = (points[(i + k) % n] for k in (-1, 0, 1, 2))
        for wa, wb, wc, wd in _weights(pieces):
            x, y = sum((wa * ax, wb * bx, wc * cx, wd * dx)) / 2, sum((wa * ay, wb * by, wc * cy, wd * dy)) / 2
            found.append((round(x, 2), round(y, 2)))
    return found


@lru_cache(maxsize=8)
def _weights(pieces: int) -> tuple[tuple[float, float, float, float], ...]:
    """What the four points about each place of a Catmull-Rom curve weigh, twice."""
    ts = [piece / pieces for piece in range(pieces)]
    return tuple((-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2) for t in ts)


def box(x0: float, y0: float, x1: float, y1: float) -> list[Point]:
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def star(points: int, inner: float) -> list[Point]:
    """A star with its tips on the circle of radius 50."""
    turns = [math.radians(180 * k / points - 90) for k in range(2 * points)]
    radii = [50 if k % 2 == 0 else inner for k in range(2 * points)]
    return [(round(50 + r * math.cos(t), 2), round(50 + r * math.sin(t), 2)) for r, t in zip(radii, turns, strict=True)]


def _disc() -> list[Part]:
    return [("body", arc(50, 50, 50, 50)), ("gloss", arc(36, 32, 17, 13))]


def _square() -> list[Part]:
    return [("body", box(0, 0, 100, 100)), ("gloss", box(8, 8, 92, 16))]


def _triangle() -> list[Part]:
    return [("body", [(50, 4), (100, 94), (0, 94)]), ("gloss", [(50, 20), (54, 28), (22, 84), (14, 84)])]


def _star() -> list[Part]:
    return [("body", star(5, 21)), ("gloss", [(50, 14), (50, 50), (40, 38)])]


def _ring() -> list[Part]:
    return [
        ("body", arc(50, 50, 50, 50)),
        ("gloss", arc(50, 50, 44, 44, 190, 280) + arc(50, 50, 36, 36, 190, 280)[::-1]),
        ("hole", arc(50, 50, 25, 25)),
    ]


def _cross() -> list[Part]:
    a, b = 33, 67
    outline = [(a, 0), (b, 0), (b, a), (100, a), (100, b), (b, b), (b, 100), (a, 100), (a, b), (0, b), (0, a), (a, a)]
    return [("body", outline), ("gloss", box(37, 4, 45, 96))]


def _house() -> list[Part]:
    return [
        ("body", box(12, 44, 88, 100)),
        ("shade", [(50, 2), (100, 46), (0, 46)]),
        ("shade", box(70, 8, 82, 32)),
        ("paper", box(24, 56, 44, 76)),
        ("glass", box(26, 58, 42, 74)),
        ("wood", box(56, 62, 76, 100)),
        ("ink", arc(72, 82, 2, 2)),
    ]


def _tree() -> list[Part]:
    crown = [(50, 0), (72, 10), (86, 30), (84, 52), (66, 66), (50, 62), (34, 66), (16, 52), (14, 30), (28, 10)]
    return [
        ("body", smooth(crown)),
        ("wood", [(44, 60), (56, 60), (60, 100), (40, 100)]),
        ("gloss", arc(38, 24, 15, 12)),
    ]


def _car() -> list[Part]:
    outline = [(0, 58), (6, 48), (24, 44), (36, 24), (70, 24), (84, 46), (97, 50), (100, 70), (97, 74), (2, 74)]
    wheels: list[Part] = []
    for x in (24, 76):
        wheels += [("ink", arc(x, 73, 12, 12)), ("metal", arc(x, 73, 5, 5))]
    return [
        ("body", outline),
        ("glass", [(31, 44), (40, 29), (52, 29), (52, 44)]),
        ("glass", [(56, 44), (56, 29), (67, 29), (77, 44)]),
        *wheels,
        ("paper", arc(96, 57, 3, 4)),
    ]


def _fish() -> list[Part]:
    body = [(0, 50), (16, 33), (40, 24), (62, 34), (78, 50), (62, 66), (40, 76), (16, 67)]
    return [
        ("body", smooth(body)),
        ("shade", [(72, 50), (100, 26), (92, 50), (100, 74)]),
        ("shade", [(34, 27), (56, 12), (60, 33)]),
        ("paper", arc(15, 45, 5, 5)),
        ("ink", arc(14, 45, 2.5, 2.5)),
        ("shade", arc(30, 50, 3, 14, 90, 270) + arc(30, 50, 5, 16, 90, 270)[::-1]),
    ]


def _cup() -> list[Part]:
    return [
        ("body", [(4, 18), (70, 18), (64, 92), (10, 92)]),
        ("shade", arc(68, 48, 32, 28, -90, 90) + arc(66, 48, 18, 16, -90, 90)[::-1]),
        ("light", arc(37, 18, 33, 8)),
        ("shade", arc(37, 19, 28, 5)),
        ("gloss", [(14, 32), (22, 34), (24, 82), (18, 82)]),
    ]


def _key() -> list[Part]:
    shaft = [(38, 44), (100, 44), (100, 70), (92, 70), (92, 56), (84, 56), (84, 66), (76, 66), (76, 56), (38, 56)]
    return [("body", arc(23, 50, 23, 23)), ("body", shaft), ("hole", arc(19, 50, 10, 10))]


def _bottle() -> list[Part]:
    side = [(44, 8), (44, 26), (34, 40), (32, 50), (32, 96), (36, 100)]
    return [
        ("body", side + [(100 - x, y) for x, y in side[::-1]]),
        ("ink", box(42, 0, 58, 9)),
        ("paper", box(32, 60, 68, 84)),
        ("shade", box(38, 70, 62, 73)),
        ("gloss", box(36, 42, 42, 58)),
    ]


def _book() -> list[Part]:
    return [
        ("body", [(14, 0), (88, 0), (88, 84), (14, 84)]),
        ("shade", [(6, 6), (14, 0), (14, 84), (6, 96)]),
        ("paper", [(6, 96), (14, 85), (88, 85), (80, 97)]),
        ("shade", [(6, 96), (80, 97), (80, 100), (5, 100)]),
        ("light", box(28, 16, 74, 24)),
        ("light", box(36, 30, 66, 34)),
    ]


def _leaf() -> list[Part]:
    blade = [(50, 0), (70, 14), (80, 38), (72, 64), (50, 84), (28, 64), (20, 38), (30, 14)]
    veins: list[Part] = [
        ("shade", [(50, y), (50 + dx, y - 16), (50 + dx, y - 13), (50, y + 4)]) for y in (70, 50) for dx in (18, -18)
    ]
    return [("body", smooth(blade)), ("shade", [(49, 6), (51, 6), (53, 100), (47, 100)]), *veins]


def _heart() -> list[Part]:
    half = [(50, 26), (60, 10), (78, 6), (96, 18), (98, 40), (84, 64), (50, 97)]
    outline = smooth(half + [(100 - x, y) for x, y in half[-2:0:-1]])
    return [("body", outline), ("gloss", arc(28, 30, 10, 9))]


def _boat() -> list[Part]:
    return [
        ("body", [(0, 72), (100, 72), (84, 98), (16, 98)]),
        ("body", [(54, 8), (94, 62), (54, 62)]),
        ("light", [(46, 20), (46, 62), (14, 62)]),
        ("wood", box(48, 0, 52, 74)),
    ]


def _mushroom() -> list[Part]:
    return [
        ("body", [*arc(50, 50, 50, 46, 180, 360), (92, 58), (8, 58)]),
        ("paper", [(36, 58), (64, 58), (70, 100), (30, 100)]),
        ("shade", [(36, 58), (64, 58), (65, 63), (35, 63)]),
    ]


def _umbrella() -> list[Part]:
    scallops = [point for x in (83, 50, 17) for point in arc(x, 50, 17, 8, 180, 360)[::-1]]
    return [
        ("body", [*arc(50, 50, 50, 46, 180, 360), *scallops]),
        ("ink", box(48, 44, 52, 88)),
        ("ink", arc(56, 88, 8, 10, 0, 180) + arc(56, 88, 4, 6, 0, 180)[::-1]),
    ]


def _moon() -> list[Part]:
    return [("body", arc(50, 50, 50, 50, 40, 320) + arc(68, 50, 36, 38, 60, 300)[::-1])]


def _arrow() -> list[Part]:
    return [("body", [(0, 36), (54, 36), (54, 12), (100, 50), (54, 88), (54, 64), (0, 64)])]


def _lamp() -> list[Part]:
    return [
        ("body", [(32, 2), (68, 2), (88, 52), (12, 52)]),
        ("metal", box(47, 52, 53, 90)),
        ("ink", [(26, 94), (34, 88), (66, 88), (74, 94), (74, 100), (26, 100)]),
        ("gloss", [(36, 8), (44, 8), (34, 48), (24, 48)]),
    ]


def _hat() -> list[Part]:
    return [
        ("body", [(26, 20), (50, 12), (74, 20), (78, 70), (22, 70)]),
        ("ink", [(23, 56), (77, 56), (78, 68), (22, 68)]),
        ("shade", arc(50, 74, 50, 13)),
    ]


_COMMON: dict[str, Callable[[], list[Part]]] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "ring": _ring,
    "cross": _cross,
    "house": _house,
    "tree": _tree,
    "car": _car,
    "fish": _fish,
    "cup": _cup,
    "key": _key,
    "bottle": _bottle,
    "book": _book,
    "leaf": _leaf,
}
_HELD_OUT: dict[str, Callable[[], list[Part]]] = {
    "heart": _heart,
    "boat": _boat,
    "mushroom": _mushroom,
    "umbrella": _umbrella,
    "moon": _moon,
    "arrow": _arrow,
    "lamp": _lamp,
    "hat": _hat,
}
SHAPES = tuple(_COMMON)
HELD_OUT_SHAPES = tuple(_HELD_OUT)
FIGURES = {name: make() for name, make in (_COMMON | _HELD_OUT).items()}
PLURALS = {"cross": "crosses", "leaf": "leaves", "fish": "fish"}


def plural(shape: str) -> str:
    """
    >>> plural("leaf"), plural("star")
    ('leaves', 'stars')
    """
    return PLURALS.get(shape, shape + "s")
