"""Flat things seen at an angle: the projection that carries a rectangle onto a quadrilateral, and pictures through it.

The projection is solved in closed form with plain arithmetic, so it is the same on every machine. Image coordinates
put pixel i on [i, i + 1), as everywhere in this library.
"""

from collections.abc import Sequence
from math import cos, radians, sin

from PIL import Image

from homunculus.data.dice import Dice
from homunculus.geometry import Size

Corner = tuple[float, float]
Quad = tuple[Corner, Corner, Corner, Corner]  # upper left, upper right, lower right, lower left
Projection = tuple[float, float, float, float, float, float, float, float]


def tilted(dice: Dice, size: Size, into: tuple[float, float, float, float], turn: int, depth: float) -> Quad:
    """A rectangle of that shape turned by up to `turn` degrees and foreshortened, as large as fits into a box."""
    angle = dice.integer(-turn, turn)
    c, s = round(cos(radians(angle)), 4), round(sin(radians(angle)), 4)
    w, h = size[0] / 2, size[1] / 2
    shrink = 1 - dice.uniform(0, depth)
    side, lean = dice.integer(0, 3), dice.uniform(-depth / 2, depth / 2)
    corners = [[-w, -h], [w, -h], [w, h], [-w, h]]
    axis = 1 if side % 2 else 0  # which edge is farther away: top, right, bottom, left
    for corner in (side, (side + 1) % 4):
        corners[corner][axis] *= shrink
    turned = [(c * x - s * y, s * x + c * y + lean * x) for x, y in corners]
    xs, ys = zip(*turned, strict=True)
    scale = min((into[2] - into[0]) / (max(xs) - min(xs)), (into[3] - into[1]) / (max(ys) - min(ys)), 1.0)
    room = into[2] - into[0] - scale * (max(xs) - min(xs)), into[3] - into[1] - scale * (max(ys) - min(ys))
    ox, oy = into[0] + room[0] * dice.random(), into[1] + room[1] * dice.random()
    a, b, d, e = (
        (round((ox + (x - min(xs)) * scale) * 4) / 4, round((oy + (y - min(ys)) * scale) * 4) / 4) for x, y in turned
    )
    return a, b, d, e


def projection(size: Size, quad: Quad) -> Projection:
    """The eight numbers that take a point of the picture back to the flat rectangle [0, w] x [0, h].

    >>> projection((10, 20), ((0, 0), (5, 0), (5, 10), (0, 10)))[::4]
    (2.0, 2.0)
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = quad
    # The unit square onto the quadrilateral, then its inverse, then the scale of the rectangle.
    sx, sy = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    dx1, dx2, dy1, dy2 = x1 - x2, x3 - x2, y1 - y2, y3 - y2
    det = dx1 * dy2 - dx2 * dy1
    g, h = (sx * dy2 - dx2 * sy) / det, (dx1 * sy - sx * dy1) / det
    a, b, c = x1 - x0 + g * x1, x3 - x0 + h * x3, x0
    d, e, f = y1 - y0 + g * y1, y3 - y0 + h * y3, y0
    rows = (e - f * h, c * h - b, b * f - c * e), (f * g - d, a - c * g, c * d - a * f)
    last = (d * h - e * g, b * g - a * h, a * e - b * d)
    (p, q, r), (t, u, v) = ([value * side / last[2] for value in row] for row, side in zip(rows, size, strict=True))
    return p, q, r, t, u, v, last[0] / last[2], last[1] / last[2]


def onto(point: Corner, size: Size, quad: Quad) -> Corner:
    """Where a point of the flat rectangle is seen."""
    p, q, r, t, u, v, g, h = projection(size, quad)
    # Solve x (p - X g) + y (q - X h) = X - r and the like for Y.
    a, b, c = p - point[0] * g, q - point[0] * h, point[0] - r
    d, e, f = t - point[1] * g, u - point[1] * h, point[1] - v
    det = a * e - b * d
    return (c * e - b * f) / det, (a * f - c * d) / det


def through(flat: Image.Image, way: Projection, window: tuple[int, int, int, int], at: Corner = (0, 0)) -> Image.Image:
    """What a window of the picture shows of a flat image that lies at a place of its rectangle."""
    p, q, r, t, u, v, g, h = way
    (x, y), (ox, oy) = window[:2], at
    w = g * x + h * y + 1
    numbers = (
        (p - ox * g) / w,
        (q - ox * h) / w,
        (p * x + q * y + r) / w - ox,
        (t - oy * g) / w,
        (u - oy * h) / w,
        (t * x + u * y + v) / w - oy,
        g / w,
        h / w,
    )
    size = window[2] - window[0], window[3] - window[1]
    return flat.transform(size, Image.Transform.PERSPECTIVE, numbers, Image.Resampling.BILINEAR)


def window(corners: Sequence[Corner], size: Size) -> tuple[int, int, int, int]:
    """The whole pixels about some corners, inside the picture."""
    xs, ys = zip(*corners, strict=True)
    low = max(0, int(min(xs)) - 1), max(0, int(min(ys)) - 1)
    return *low, min(size[0], int(max(xs)) + 2), min(size[1], int(max(ys)) + 2)
