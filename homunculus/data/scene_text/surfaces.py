"""The things that carry writing: signs, street signs, shops, posters, vans, cars, bottles, boxes, jerseys, books, tags.

Each is drawn flat about letters of height `u`, the unit of all its measures, and says what can be asked of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.record import Region, Split
from homunculus.data.scene_text import vocabulary as say
from homunculus.data.scene_text.lettering import Hand, hand, measure
from homunculus.data.scene_text.panel import Panel, on
from homunculus.data.scenes.noise import Colour, mixed, vary
from homunculus.data.scenes.objects import look, render, shapes

COLOURS: dict[str, Colour] = {
    "red": (186, 34, 38),
    "green": (28, 112, 62),
    "blue": (32, 78, 156),
    "yellow": (240, 204, 52),
    "white": (238, 238, 234),
    "black": (36, 36, 40),
    "orange": (232, 124, 30),
    "brown": (106, 68, 42),
}
BLACK, WHITE, GLASS = (24, 24, 28), (250, 248, 242), (92, 112, 124)


@dataclass(frozen=True)
class Surface:
    """How a thing is drawn, the regions it is for, and whether it stands taller than wide."""

    draw: Callable[[Dice, Split, int, str], Panel]
    regions: tuple[Region, ...]
    tall: bool = False
    turn: int = 8  # degrees it may be turned by


def _letters(dice: Dice, text: str) -> str:
    """As signs have it: mostly capitals."""
    return text.upper() if dice.chance(0.7) else text.capitalize()


def _sign(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), _letters(dice, say.word(dice, split))
    body = vary(dice, COLOURS[colour], 12)
    ink, wide = on(body, dice), measure(text, how, u)
    arched = u * 2 // 3 if dice.chance(0.3) else 0
    panel = Panel((wide + 2 * u, u * 3 + arched), body, how)
    radius = dice.choice([0, u // 3, u])
    panel.box((0, 0, panel.size[0] - 1, panel.size[1] - 1), body, radius)
    panel.frame(u // 5, mixed(body, ink, 0.8), max(2, u // 12), max(0, radius - u // 5))
    panel.write(
        text, (panel.size[0] // 2, panel.size[1] // 2), u, ink, f"What is written on the {colour} sign?", sag=arched
    )
    return panel


def _street(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.street(dice, split)
    body = vary(dice, COLOURS[colour], 12)  # not that of any other sign, lest "the green sign" be two
    panel = Panel((measure(text, how, u) + 2 * u, u * 12 // 5), body, how)
    ink = on(body, dice, 0.1)
    panel.box((0, 0, panel.size[0] - 1, panel.size[1] - 1), body, u // 4)
    panel.frame(u // 8, ink, max(2, u // 14), u // 6)
    panel.write(text, (panel.size[0] // 2, panel.size[1] // 2), u, ink, "What is the name on the street sign?")
    return panel


def _shop(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, name = hand(dice, split), say.brand(dice, split)
    text = _letters(dice, name)
    board, ink_width = (
        vary(dice, dice.choice([(50, 60, 52), (70, 34, 40), (36, 48, 76), (222, 208, 176)]), 10),
        measure(text, how, u),
    )
    wide = max(ink_width + 3 * u, u * 9)
    panel = Panel((wide, u * 7), GLASS, how)
    panel.fill(mixed(board, (0, 0, 0), 0.25))
    panel.box((0, 0, wide - 1, u * 9 // 4), board, 0, mixed(board, (255, 255, 255), 0.3))
    panel.write(
        text,
        (wide // 2, u * 9 // 8),
        u,
        on(board, dice, 0.15),
        "What is the name of the shop?",
        sag=u // 3 if dice.chance(0.2) else 0,
    )
    stripes, shade = max(6, wide // u), vary(dice, dice.choice([(190, 60, 52), (60, 120, 100), (206, 160, 70)]), 12)
    for k in range(stripes):  # the awning
        x0, x1 = wide * k // stripes, wide * (k + 1) // stripes
        panel.shape(
            [(x0, u * 9 // 4), (x1, u * 9 // 4), (x1, u * 15 // 4), (x0, u * 15 // 4)], shade if k % 2 else WHITE
        )
        panel.round((x0, u * 7 // 2, x1, u * 4), shade if k % 2 else WHITE)
    for x0, x1 in ((u // 3, wide * 3 // 5), (wide * 3 // 5 + u // 3, wide - u // 3)):
        panel.box(
            (x0, u * 17 // 4, x1, u * 7 - 1),
            mixed(GLASS, (255, 255, 255), 0.15),
            0,
            mixed(board, (255, 255, 255), 0.15),
        )
    panel.write(
        f"{say.hours(dice, split)}",
        (wide * 4 // 5, u * 11 // 2),
        max(6, u * 2 // 5),
        WHITE,
        "What are the opening hours of the shop?",
        width=wide * 3 // 10,
    )
    return panel


def _poster(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, (first, second) = hand(dice, split), say.title(dice, split).split()
    paper = vary(dice, dice.choice([(240, 228, 190), (206, 222, 226), (236, 208, 200), (60, 64, 92)]), 8)
    ink, number = on(paper, dice, 0.15), say.phone(dice, split)
    wide = max(measure(first, how, u), measure(second, how, u)) + 2 * u
    panel = Panel((wide, u * 7 + wide // 2), paper, how)
    panel.fill(paper).frame(u // 4, mixed(paper, ink, 0.5), max(2, u // 16))
    panel.write(first, (wide // 2, u * 5 // 4), u, ink)
    panel.write(second, (wide // 2, u * 3), u, ink, "What is the second word on the poster?")
    side = wide // 2
    figure = dice.choice(shapes(split))
    drawn = render(look(dice, split, figure, dice.choice(["red", "blue", "green", "orange"]), side))
    panel.paint.paste(drawn, ((wide - drawn.width) // 2, u * 17 // 4), drawn)
    panel.write(
        number,
        (wide // 2, panel.size[1] - u * 6 // 5),
        max(6, u * 3 // 5),
        ink,
        "What is the phone number on the poster?",
        width=wide - u,
    )
    return panel


def _van(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, name, number = hand(dice, split), say.brand(dice, split), say.phone(dice, split)
    body = vary(dice, dice.choice([(236, 234, 228), (222, 190, 70), (80, 120, 160), (170, 60, 50)]), 10)
    ink, small = on(body, dice, 0.15), max(6, u * 3 // 5)
    wide = max(measure(name, how, u), measure(number, how, small)) + 2 * u
    cab, tall = wide * 2 // 5, u * 13 // 2
    panel = Panel((wide + cab, tall), body, how)
    floor = tall - u
    panel.box((0, 0, wide, floor), body, u // 3)
    panel.shape(
        [
            (wide - u, u // 4),
            (wide + cab * 3 // 5, u // 4),
            (wide + cab - 1, u * 3),
            (wide + cab - 1, floor),
            (wide - u, floor),
        ],
        body,
    )
    panel.shape(
        [
            (wide + u // 4, u * 3 // 4),
            (wide + cab // 2, u * 3 // 4),
            (wide + cab * 4 // 5, u * 3),
            (wide + u // 4, u * 3),
        ],
        GLASS,
    )
    panel.line([(0, floor - u // 2), (wide + cab, floor - u // 2)], mixed(body, (0, 0, 0), 0.35), max(2, u // 8))
    for x in (wide // 5, wide + cab // 4):
        panel.round((x - u, tall - 2 * u, x + u, tall - 1), BLACK)
        panel.round((x - u // 2, tall - u * 3 // 2, x + u // 2, tall - u // 2), (160, 162, 168))
    panel.write(name, (wide // 2, u * 3 // 2), u, ink, "What is the name on the van?")
    panel.write(number, (wide // 2, u * 13 // 4), small, ink, "What is the phone number on the van?")
    return panel


def _car(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = Hand(hand(dice, split).face, True), say.plate(dice, split)
    body = vary(dice, dice.choice([(150, 34, 36), (40, 70, 120), (90, 94, 98), (206, 206, 204), (38, 66, 54)]), 12)
    plate = dice.choice([(244, 244, 238), (246, 206, 60)])
    inner = measure(text, how, u) + u
    wide, tall = max(inner * 2, u * 12), u * 10
    panel = Panel((wide, tall), body, how)
    for x in (wide // 12, wide - wide // 12 - u * 2):
        panel.box((x, tall - 2 * u, x + u * 2, tall - 1), BLACK, u // 3)
    panel.shape(
        [(wide // 5, 0), (wide * 4 // 5, 0), (wide * 9 // 10, u * 4), (wide // 10, u * 4)], mixed(body, (0, 0, 0), 0.12)
    )
    panel.shape(
        [(wide // 4, u // 2), (wide * 3 // 4, u // 2), (wide * 5 // 6, u * 7 // 2), (wide // 6, u * 7 // 2)], GLASS
    )
    panel.box((0, u * 7 // 2, wide - 1, tall - u), body, u)
    for x in (u // 3, wide - u // 3 - wide // 7):
        panel.box((x, u * 9 // 2, x + wide // 7, u * 23 // 4), (196, 30, 34), u // 3)
    panel.box((0, tall - u * 9 // 4, wide - 1, tall - u), mixed(body, (0, 0, 0), 0.35), u // 2)
    middle = wide // 2
    panel.box((middle - inner // 2, u * 19 // 4, middle + inner // 2, u * 27 // 4), plate, u // 5, (60, 60, 64))
    panel.write(text, (middle, u * 23 // 4), u, BLACK, "What is the number plate of the car?")
    return panel


def _bottle(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.brand(dice, split)
    glass = vary(dice, dice.choice([(36, 78, 52), (92, 54, 28), (70, 104, 126), (120, 28, 40)]), 10)
    label = vary(dice, dice.choice([(240, 230, 206), (226, 214, 120), (40, 44, 60)]), 8)
    wide = measure(text, how, u) + u
    tall = wide * 5 // 2
    panel = Panel((wide, tall), glass, how)
    neck = wide // 3
    panel.shape(
        [
            (neck, tall // 14),
            (wide - neck, tall // 14),
            (wide - neck, tall // 4),
            (wide - 1, tall * 2 // 5),
            (wide - 1, tall - u // 2),
            (wide - u // 2, tall - 1),
            (u // 2, tall - 1),
            (0, tall - u // 2),
            (0, tall * 2 // 5),
            (neck, tall // 4),
        ],
        glass,
    )
    panel.box((neck - u // 8, 0, wide - neck + u // 8, tall // 10), mixed(label, (120, 90, 40), 0.5), u // 6)
    panel.box((0, tall // 2, wide - 1, tall // 2 + u * 3), label)
    panel.line([(0, tall // 2 + u // 4), (wide, tall // 2 + u // 4)], mixed(label, glass, 0.6), max(1, u // 10))
    panel.line(
        [(0, tall // 2 + u * 11 // 4), (wide, tall // 2 + u * 11 // 4)], mixed(label, glass, 0.6), max(1, u // 10)
    )
    panel.write(
        text, (wide // 2, tall // 2 + u * 3 // 2), u, on(label, dice, 0.2), "What brand is on the bottle?", sag=-u // 3
    )
    panel.shape(
        [(u // 3, tall * 9 // 20), (u * 2 // 3, tall * 9 // 20), (u * 2 // 3, tall // 2 - 4), (u // 3, tall // 2 - 4)],
        mixed(glass, WHITE, 0.5),
    )
    return panel


def _box(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.code(dice, split)
    card = vary(dice, (186, 148, 104), 14)
    wide = measure(text, how, u) + u * 4
    panel = Panel((wide, u * 6), card, how)
    panel.fill(card).frame(0, mixed(card, (60, 40, 20), 0.4), max(2, u // 12))
    panel.box((wide // 2 - u // 2, 0, wide // 2 + u // 2, u * 3 // 2), mixed(card, (236, 224, 190), 0.6))
    panel.box((u, u * 9 // 4, wide - u, u * 5), WHITE, 0, (90, 84, 80))
    panel.write(text, (wide // 2, u * 29 // 8), u, BLACK, "What is the code on the cardboard box?")
    return panel


def _jersey(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, name = Hand(hand(dice, split).face, True), say.brand(dice, split).upper()
    cloth = vary(dice, dice.choice([(176, 30, 40), (32, 72, 150), (30, 110, 70), (236, 236, 232), (240, 180, 40)]), 10)
    number, ink = str(dice.integer(1, 99)), on(cloth, dice, 0.15)
    small = max(6, u * 3 // 5)
    chest = max(measure(name, how, small) + u, u * 4)
    sleeve = chest // 3
    wide, tall = chest + 2 * sleeve, chest * 6 // 5
    panel = Panel((wide, tall), cloth, how)
    panel.shape(
        [
            (sleeve, 0),
            (wide - sleeve, 0),
            (wide - 1, tall // 4),
            (wide - sleeve // 2, tall * 2 // 5),
            (wide - sleeve, tall // 3),
            (wide - sleeve, tall - 1),
            (sleeve, tall - 1),
            (sleeve, tall // 3),
            (sleeve // 2, tall * 2 // 5),
            (0, tall // 4),
        ],
        cloth,
    )
    middle = wide // 2
    panel.round((middle - chest // 6, -chest // 12, middle + chest // 6, chest // 12), mixed(cloth, (0, 0, 0), 0.35))
    for x in (sleeve, wide - sleeve):
        panel.line([(x, tall // 3), (x, tall // 12)], mixed(cloth, (0, 0, 0), 0.2), max(2, u // 12))
    panel.write(name, (middle, tall // 12 + u), small, ink, "What name is on the jersey?")
    panel.write(number, (middle, tall // 12 + u * 2 + u), u * 3 // 2, ink, "What is the number on the jersey?")
    return panel


def _books(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, shades = hand(dice, split), dice.sample(sorted(COLOURS), dice.integer(2, 3))
    titles = [say.title(dice, split) for _ in shades]
    thick = u * 2
    tall = max(measure(title, how, u) for title in titles) + u * 2
    panel = Panel((thick * len(shades), tall), (60, 50, 44), how)
    for k, (shade, title) in enumerate(zip(shades, titles, strict=True)):
        body, x = vary(dice, COLOURS[shade], 12), k * thick
        top = dice.integer(0, u)
        panel.box((x, top, x + thick - 1, tall - 1), body, 0, mixed(body, (0, 0, 0), 0.35))
        for y in (top + u // 2, tall - u // 2):
            panel.line([(x + 2, y), (x + thick - 3, y)], mixed(body, (230, 190, 90), 0.7), max(1, u // 10))
        ink = on(body, dice, 0.15)
        panel.write(
            title, (x + thick // 2, (tall + top) // 2), u, ink, f"What is the title of the {shade} book?", upright=True
        )
    return panel


def _tag(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.price(dice, split)
    card = vary(dice, dice.choice([(244, 236, 206), (250, 222, 90), (228, 120, 110)]), 8)
    wide = measure(text, how, u) + u * 3
    tall = u * 5 // 2
    panel = Panel((wide, tall), card, how)
    panel.shape([(u, 0), (wide - 1, 0), (wide - 1, tall - 1), (u, tall - 1), (0, tall * 2 // 3), (0, tall // 3)], card)
    panel.round((u // 3, tall // 2 - u // 5, u // 3 + u * 2 // 5, tall // 2 + u // 5), (90, 80, 70))
    panel.write(text, (wide // 2 + u // 3, tall // 2), u, on(card, dice, 0.2), "What is the price on the tag?")
    return panel


def _sticker(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.brand(dice, split)
    body = vary(dice, dice.choice([(70, 150, 150), (214, 120, 150), (150, 120, 190), (150, 180, 90)]), 10)
    wide, tall = measure(text, how, u) + u * 3, u * 3
    panel = Panel((wide, tall), body, how)
    panel.round((0, 0, wide - 1, tall - 1), WHITE).round((u // 6, u // 6, wide - 1 - u // 6, tall - 1 - u // 6), body)
    panel.write(text, (wide // 2, tall // 2), u, on(body, dice, 0.2), "What is written on the oval sticker?")
    return panel


SURFACES: dict[str, Surface] = {
    "sign": Surface(_sign, ("target", "secondary", "periphery"), turn=10),
    "street sign": Surface(_street, ("secondary", "periphery"), turn=6),
    "shop": Surface(_shop, ("target",), turn=3),
    "poster": Surface(_poster, ("target", "secondary"), tall=True, turn=8),
    "van": Surface(_van, ("target",), turn=3),
    "car": Surface(_car, ("target", "secondary"), turn=3),
    "bottle": Surface(_bottle, ("target", "secondary"), tall=True, turn=6),
    "box": Surface(_box, ("secondary", "periphery"), turn=14),
    "jersey": Surface(_jersey, ("target", "secondary"), tall=True, turn=10),
    "books": Surface(_books, ("secondary", "target"), tall=True, turn=5),
    "tag": Surface(_tag, ("periphery", "secondary"), turn=25),
    "sticker": Surface(_sticker, ("periphery",), turn=20),
}
