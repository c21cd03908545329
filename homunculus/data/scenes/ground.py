"""Where scenes happen: meadow, beach, table, carpet, tiles, pavement; and the clutter that is nobody's object.

Tones are muted, so that things stand out from them. `test-ood` happens elsewhere: on cork, on a quilt, on ice.
"""

from collections.abc import Callable
from itertools import cycle, pairwise

import numpy as np
from PIL import Image, ImageDraw

from homunculus.data.dice import Dice
from homunculus.data.record import Split
from homunculus.data.scenes.noise import Colour, cloud, grain, mixed, tint, vary
from homunculus.data.scenes.shapes import Point, smooth
from homunculus.geometry import Size


def ground(dice: Dice, split: Split, size: Size) -> tuple[str, Image.Image]:
    """A background by name and its picture.

    >>> ground(Dice("scene"), "test-ood", (128, 96))[1].size
    (128, 96)
    """
    name = dice.choice(tuple(HELD_OUT_GROUNDS if split == "test-ood" else GROUNDS))
    return name, (GROUNDS | HELD_OUT_GROUNDS)[name](dice, size)


def rough(
    dice: Dice, size: Size, dark: Colour, light: Colour, cells: Size, depth: int = 90, speck: int = 30
) -> Image.Image:
    """A surface between two colours: clouds of `depth` levels and specks on top."""
    smooth = np.asarray(cloud(dice, size, cells, 128 - depth, 127 + depth)).astype(np.int16)
    return tint(smooth + grain(dice, size, speck), dark, light)


def _outdoors(dice: Dice, size: Size, near: tuple[Colour, Colour], far: Colour, speck: int) -> Image.Image:
    """Sky over a horizon, hills between, ground in front."""
    width, height = size
    horizon = round(height * dice.uniform(0.16, 0.4))
    sky = vary(dice, (176, 204, 226), 14)
    image = Image.new("RGB", size)
    image.paste(tint(cloud(dice, (width, horizon), (5, 2), 60, 255), sky, (236, 240, 242)))
    draw = ImageDraw.Draw(image)
    for ridge in range(2):
        tops = np.asarray(cloud(dice, (width, 2), (7, 2), 0, min(255, horizon * (5 - 2 * ridge) // 12)))[0]
        line = [(x, horizon - int(tops[x])) for x in range(0, width, 4)]
        ring = [(0, height), *line, (width, line[-1][1]), (width, height)]
        draw.polygon(ring, fill=mixed(far, sky, 0.55 - 0.3 * ridge))
    floor = rough(dice, (width, height - horizon), *near, (9, 14), 80, speck)
    image.paste(floor, (0, horizon))
    return image


def _meadow(dice: Dice, size: Size) -> Image.Image:
    near = (vary(dice, (116, 140, 86), 10), vary(dice, (166, 184, 122), 10))
    image = _outdoors(dice, size, near, (110, 134, 104), 46)
    draw, step = ImageDraw.Draw(image), max(1, min(size) // 200)
    tones = [vary(dice, (122, 148, 86), 24) for _ in range(12)]
    for k, (x, y, tall, lean) in enumerate(dice.array(4 * 260).reshape(260, 4).tolist()):
        foot = int(x * size[0]), int((0.4 + 0.6 * y) * size[1])
        tip = foot[0] + int(lean * 5 - 2) * step, foot[1] - int(2 + 5 * tall) * step
        draw.line([foot, tip], fill=tones[k % 12], width=step)
    return image


def _beach(dice: Dice, size: Size) -> Image.Image:
    near = (vary(dice, (204, 186, 150), 8), vary(dice, (228, 214, 182), 8))
    return _outdoors(dice, size, near, (120, 158, 176), 40)


def planks(dice: Dice, size: Size, dark: Colour, light: Colour, across: int) -> Image.Image:
    """Boards side by side, each with its own tone and long grain."""
    width, height = size
    image = Image.new("RGB", size)
    draw = ImageDraw.Draw(image)
    edges = [height * k // across for k in range(across + 1)]
    for y0, y1 in pairwise(edges):
        shift = dice.uniform(-0.16, 0.16)
        tones = [mixed(c, (0, 0, 0), shift) if shift > 0 else mixed(c, (255, 255, 255), -shift) for c in (dark, light)]
        veins = cloud(dice, (width, y1 - y0), (dice.integer(3, 6), dice.integer(9, 22)))
        image.paste(tint(np.asarray(veins).astype(np.int16) + grain(dice, veins.size, 22), *tones), (0, y0))
        draw.line([(0, y0), (width, y0)], fill=mixed(dark, (0, 0, 0), 0.35), width=max(1, height // 400))
    return image


def _table(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(170, 138, 104), (190, 164, 130), (148, 122, 98)])
    image = planks(dice, size, mixed(tone, (60, 40, 20), 0.2), mixed(tone, (255, 240, 215), 0.25), dice.integer(3, 7))
    return image if dice.chance(0.5) else image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


def _carpet(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(160, 140, 146), (132, 146, 160), (168, 158, 138), (142, 152, 140)])
    image = rough(dice, size, mixed(tone, (0, 0, 0), 0.14), mixed(tone, (255, 255, 255), 0.14), (6, 6), 50, 80)
    width, height = size
    pattern = Image.new("L", size)
    draw, step = ImageDraw.Draw(pattern), max(12, min(size) // dice.integer(7, 12))
    style = dice.integer(0, 2)
    for row, y in enumerate(range(-step, height + step, step)):
        for x in range(-step - row % 2 * (step // 2), width + step, step):
            r = step // 3
            if style == 0:
                draw.line(
                    [(x - r, y), (x, y - r), (x + r, y), (x, y + r), (x - r, y)], fill=150, width=max(1, step // 14)
                )
            elif style == 1:
                draw.arc((x - r, y - r, x + r, y + r), 180, 360, fill=150, width=max(1, step // 12))
            else:
                draw.line(
                    [(x - step // 2, y), (x, y + step // 2), (x + step // 2, y)], fill=130, width=max(1, step // 9)
                )
    image.paste(mixed(tone, dice.choice([(255, 250, 235), (40, 40, 60)]), 0.34), (0, 0), pattern)
    border = min(size) // 28
    frame = ImageDraw.Draw(image)
    frame.rectangle(
        (border, border, width - border, height - border),
        outline=mixed(tone, (50, 40, 50), 0.4),
        width=max(1, border // 3),
    )
    return image


def slabs(dice: Dice, size: Size, tones: list[Colour], joint: Colour, across: int, offset: bool) -> Image.Image:
    """Slabs in rows, each a little different, with joints between."""
    width, height = size
    step = max(8, -(-min(size) // across))
    dirt = rough(dice, size, (40, 38, 36), (224, 224, 220), (7, 7), 34, 20)
    flat = Image.new("RGB", size, joint)
    draw, gap = ImageDraw.Draw(flat), max(1, step // 40)
    varied = [[vary(dice, tone, 7) for _ in range(8)] for tone in tones]
    picks = cycle(dice.octets(251).tolist())
    for row, y in enumerate(range(0, height, step)):
        for column, x in enumerate(range(-(step // 2) * (row % 2) * offset, width, step)):
            tone = varied[(row + column) % len(tones)][next(picks) % 8]
            draw.rectangle((x + gap, y + gap, x + step - gap, y + step - gap), fill=tone)
    return Image.blend(flat, dirt, 0.22)


def _tiles(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(214, 208, 196), (190, 204, 204), (206, 192, 184)])
    pair = [tone, mixed(tone, (90, 90, 100), dice.uniform(0.0, 0.35))]
    return slabs(dice, size, pair, (150, 146, 140), dice.integer(5, 10), False)


def _pavement(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(158, 156, 152), (172, 162, 150)])
    return slabs(dice, size, [tone], (110, 106, 100), dice.integer(4, 7), True)


def _cork(dice: Dice, size: Size) -> Image.Image:
    image = rough(dice, size, (168, 128, 86), (206, 170, 124), (60, 60), 90, 120)
    draw, width = ImageDraw.Draw(image), max(3, min(size) // 60)
    draw.rectangle((0, 0, size[0] - 1, size[1] - 1), outline=(122, 92, 66), width=width)
    return image


def _quilt(dice: Dice, size: Size) -> Image.Image:
    tones = dice.sample([(190, 176, 190), (176, 190, 196), (204, 194, 172), (184, 196, 178), (200, 178, 172)], 3)
    image = slabs(dice, size, tones, (226, 222, 214), dice.integer(5, 8), False)
    draw, step = ImageDraw.Draw(image), max(6, min(size) // 60)
    for y in range(step, size[1], 4 * step):
        for x in range(0, size[0], 2 * step):
            draw.line([(x, y), (x + step, y)], fill=(236, 232, 226), width=max(1, step // 6))
    return image


def _ice(dice: Dice, size: Size) -> Image.Image:
    image = _outdoors(dice, size, ((178, 198, 210), (226, 236, 240)), (168, 180, 192), 26)
    draw = ImageDraw.Draw(image)
    for _ in range(14):
        x, y = dice.integer(0, size[0]), dice.integer(size[1] // 2, size[1])
        points = [(x, y)]
        for _ in range(dice.integer(3, 7)):
            x, y = x + dice.integer(-size[0] // 18, size[0] // 18), y + dice.integer(-size[1] // 30, size[1] // 30)
            points.append((x, y))
        draw.line(points, fill=(240, 246, 250), width=max(1, min(size) // 400))
    return image


def scribble(dice: Dice, size: Size) -> list[tuple[int, int]]:
    """A wandering curve across a small part of the picture, for threads and twigs."""
    reach = max(8, min(size) // 12)
    x, y = dice.integer(0, size[0]), dice.integer(0, size[1])
    knots: list[Point] = [(x, y)]
    for _ in range(dice.integer(3, 7)):
        x, y = x + dice.integer(-reach, reach), y + dice.integer(-reach, reach)
        knots.append((x, y))
    return [(round(x), round(y)) for x, y in smooth(knots)[: -6 - 5]]  # without the piece that closes the curve


def littered(image: Image.Image, dice: Dice) -> None:
    """Scribbles under everything: they are no objects and nobody asks for them."""
    draw = ImageDraw.Draw(image)
    for _ in range(dice.integer(3, 9)):
        tone = dice.choice([(120, 112, 108), (150, 138, 124), (226, 222, 214), (104, 112, 120)])
        draw.line(
            scribble(dice, image.size),
            fill=tone,
            width=max(1, min(image.size) // dice.integer(260, 620)),
            joint="curve",
        )


GROUNDS: dict[str, Callable[[Dice, Size], Image.Image]] = {
    "meadow": _meadow,
    "beach": _beach,
    "table": _table,
    "carpet": _carpet,
    "tiles": _tiles,
    "pavement": _pavement,
}
HELD_OUT_GROUNDS: dict[str, Callable[[Dice, Size], Image.Image]] = {"cork": _cork, "quilt": _quilt, "ice": _ice}
