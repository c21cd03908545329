"""What signs hang before: brick, wood, metal, foliage, sky, asphalt; plaster, cobbles and cloth for `test-ood`."""

from collections.abc import Callable
from itertools import cycle

import numpy as np
from PIL import Image, ImageDraw

from homunculus.data.dice import Dice
from homunculus.data.record import Split
from homunculus.data.scenes.ground import planks, rough
from homunculus.data.scenes.noise import Colour, cloud, grain, mixed, tint, vary
from homunculus.geometry import Size


def wall(dice: Dice, split: Split, size: Size) -> tuple[str, Image.Image]:
    """A background by name and its picture; under some of them the street begins.

    >>> wall(Dice("street"), "train", (128, 96))[1].size
    (128, 96)
    """
    name = dice.choice(tuple(HELD_OUT_WALLS if split == "test-ood" else WALLS))
    image = (WALLS | HELD_OUT_WALLS)[name](dice, size)
    if name not in ("sky", "asphalt", "cobbles") and dice.chance(0.45):
        _street(image, dice)
    return name, image


def _street(image: Image.Image, dice: Dice) -> None:
    width, height = image.size
    top = round(height * dice.uniform(0.76, 0.9))
    tone = dice.integer(104, 150)
    dark, light = (tone - 22, tone - 22, tone - 18), (tone + 22, tone + 22, tone + 20)
    image.paste(rough(dice, (width, height - top), dark, light, (9, 4), 50, 90), (0, top))
    draw, kerb = ImageDraw.Draw(image), max(2, height // 90)
    draw.rectangle((0, top, width, top + kerb), fill=(tone + 40, tone + 40, tone + 36))
    draw.rectangle((0, top + kerb, width, top + kerb + kerb // 2), fill=(tone - 50, tone - 50, tone - 46))


def _bricks(dice: Dice, size: Size, tone: Colour, mortar: Colour, wide: int, tall: int, odd: int = 20) -> Image.Image:
    """Rows of bricks, every other one shifted by half, each with a tone of its own."""
    width, height = size
    image, gap = Image.new("RGB", size, mortar), max(1, tall // 9)
    draw = ImageDraw.Draw(image)
    tones = [vary(dice, tone, odd) for _ in range(16)]
    picks = cycle(dice.octets(251).tolist())
    for row, y in enumerate(range(-dice.integer(0, tall - 1), height, tall)):
        for x in range(-(row % 2) * (wide // 2) - dice.integer(0, wide // 6), width, wide):
            draw.rectangle((x, y, x + wide - gap - 1, y + tall - gap - 1), fill=tones[next(picks) % 16])
    dirt = np.asarray(cloud(dice, size, (8, 8), 70, 185)).astype(np.int16) + grain(dice, size, 60)
    return Image.blend(image, tint(dirt, (16, 14, 12), (240, 236, 230)), 0.2)


def _brick(dice: Dice, size: Size) -> Image.Image:
    tall = max(5, min(size) // dice.integer(22, 34))
    tone = dice.choice([(156, 84, 66), (132, 78, 62), (176, 140, 108), (120, 108, 100)])
    return _bricks(dice, size, tone, vary(dice, (190, 184, 174), 12), tall * 5 // 2, tall)


def _wood(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(140, 104, 72), (108, 92, 80), (96, 112, 112), (168, 134, 96)])
    dark, light = mixed(tone, (20, 12, 4), 0.28), mixed(tone, (255, 240, 220), 0.2)
    if dice.chance(0.5):
        return planks(dice, size, dark, light, dice.integer(6, 12))
    return planks(dice, size[::-1], dark, light, dice.integer(6, 12)).transpose(Image.Transpose.ROTATE_90)


def _metal(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(128, 134, 140), (96, 116, 122), (142, 132, 120)])
    brushed = np.asarray(cloud(dice, size, (size[0] // 3, 4), 60, 200)).astype(np.int16) + grain(dice, size, 24)
    image = tint(brushed, mixed(tone, (0, 0, 0), 0.18), mixed(tone, (255, 255, 255), 0.18))
    draw, step = ImageDraw.Draw(image), max(12, min(size) // dice.integer(3, 5))
    line, rivet = max(1, step // 70), max(1, step // 40)
    for x in range(step // 2, size[0], step):
        draw.line([(x, 0), (x, size[1])], fill=mixed(tone, (0, 0, 0), 0.4), width=line)
        for y in range(step // 6, size[1], max(6, step // 4)):
            draw.ellipse((x + 2 * rivet, y, x + 4 * rivet, y + 2 * rivet), fill=mixed(tone, (255, 255, 255), 0.3))
    return image


def _foliage(dice: Dice, size: Size) -> Image.Image:
    image = tint(cloud(dice, size, (9, 9)), (24, 44, 26), (58, 88, 48))
    draw, length = ImageDraw.Draw(image), max(4, min(size) // 36)
    tones = [vary(dice, mixed((40, 74, 34), (128, 162, 78), share / 5), 8) for share in range(6)]
    count = min(2000, size[0] * size[1] * 4 // (5 * length * length))
    for k, (x, y, a, b) in enumerate(dice.array(4 * count).reshape(count, 4).tolist()):
        x, y = round(x * size[0]), round(y * size[1])
        dx, dy = round((a - 0.5) * 2 * length), round((b - 0.5) * 2 * length)
        points = [(x - dx, y - dy), (x - dy // 2, y + dx // 2), (x + dx, y + dy), (x + dy // 2, y - dx // 2)]
        draw.polygon(points, fill=tones[k * 6 // count])
    return image


def _sky(dice: Dice, size: Size) -> Image.Image:
    blue = vary(dice, dice.choice([(122, 164, 206), (150, 172, 192), (206, 168, 148)]), 12)
    fine, broad = cloud(dice, size, (14, 20)), cloud(dice, size, (4, 7))
    return tint(Image.blend(broad, fine, 0.3), blue, (240, 242, 242))


def _asphalt(dice: Dice, size: Size) -> Image.Image:
    tone = dice.integer(82, 128)
    image = rough(dice, size, (tone - 34, tone - 34, tone - 30), (tone + 34, tone + 34, tone + 32), (6, 6), 40, 127)
    draw, wide = ImageDraw.Draw(image), max(3, min(size) // 60)
    for _ in range(dice.integer(1, 2)):
        x = dice.integer(0, size[0])
        lean = dice.integer(-size[0] // 4, size[0] // 4)
        draw.line([(x, 0), (x + lean, size[1])], fill=(tone + 74, tone + 72, tone + 62), width=wide)
    return image


def _plaster(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(206, 190, 162), (190, 172, 168), (168, 184, 180)])
    image = rough(dice, size, mixed(tone, (0, 0, 0), 0.16), mixed(tone, (255, 255, 255), 0.2), (10, 10), 90, 40)
    draw = ImageDraw.Draw(image)
    for _ in range(9):
        x, y = dice.integer(0, size[0]), dice.integer(0, size[1])
        crack = [(x, y)]
        for _ in range(8):
            x, y = x + dice.integer(-size[0] // 40, size[0] // 40), y + dice.integer(0, size[1] // 30)
            crack.append((x, y))
        draw.line(crack, fill=mixed(tone, (40, 30, 20), 0.5), width=max(1, min(size) // 600))
    return image


def _cobbles(dice: Dice, size: Size) -> Image.Image:
    tall = max(8, min(size) // dice.integer(12, 18))
    return _bricks(dice, size, (132, 128, 124), (70, 68, 64), tall * 6 // 5, tall, 16)


def _cloth(dice: Dice, size: Size) -> Image.Image:
    tone = dice.choice([(150, 120, 130), (110, 128, 150), (150, 142, 110)])
    image = rough(dice, size, mixed(tone, (0, 0, 0), 0.2), mixed(tone, (255, 255, 255), 0.12), (5, 12), 90, 30)
    draw, step = ImageDraw.Draw(image), max(3, min(size) // 110)
    for k in range(0, max(size), 2 * step):
        draw.line([(k, 0), (k, size[1])], fill=mixed(tone, (0, 0, 0), 0.1), width=max(1, step // 3))
        draw.line([(0, k), (size[0], k)], fill=mixed(tone, (255, 255, 255), 0.1), width=max(1, step // 3))
    return image


WALLS: dict[str, Callable[[Dice, Size], Image.Image]] = {
    "brick": _brick,
    "wood": _wood,
    "metal": _metal,
    "foliage": _foliage,
    "sky": _sky,
    "asphalt": _asphalt,
}
HELD_OUT_WALLS: dict[str, Callable[[Dice, Size], Image.Image]] = {
    "plaster": _plaster,
    "cobbles": _cobbles,
    "cloth": _cloth,
}
