"""Things with writing on them that only `test-ood` shows: banners, buses, mugs, door plates, crates, luggage labels."""

from homunculus.data.dice import Dice
from homunculus.data.record import Split
from homunculus.data.scene_text import vocabulary as say
from homunculus.data.scene_text.lettering import Hand, hand, measure
from homunculus.data.scene_text.panel import Panel, on
from homunculus.data.scene_text.surfaces import BLACK, COLOURS, GLASS, WHITE, Surface
from homunculus.data.scenes.noise import mixed, vary


def _banner(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.word(dice, split).upper()
    cloth, sag = vary(dice, COLOURS[colour], 12), u
    wide, tall = measure(text, how, u) + u * 3, u * 4
    panel = Panel((wide, tall), cloth, how)
    steps = [(wide * k // 16, sag * (k - 8) * (k - 8) // 64) for k in range(17)]  # hangs as its letters do
    panel.shape(steps + [(x, y + u * 3 - 1) for x, y in steps[::-1]], cloth)
    for x, y in steps[1:-1:2]:
        panel.line([(x, y), (x, y + u // 3)], mixed(cloth, WHITE, 0.6), max(1, u // 10))
    ink = on(cloth, dice)
    panel.write(text, (wide // 2, u * 2), u, ink, f"What is written on the {colour} banner?", sag=sag * 4 // 5)
    return panel


def _bus(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, goal = hand(dice, split), say.word(dice, split).capitalize()
    body = vary(dice, dice.choice([(176, 40, 44), (40, 96, 86), (210, 150, 50)]), 10)
    number = str(dice.integer(100, 999))
    wide = measure(f"{number}  {goal}", how, u) + u * 4
    tall = max(u * 9, wide * 4 // 5)
    panel = Panel((wide, tall), body, how)
    for x in (wide // 10, wide * 9 // 10 - u * 2):
        panel.box((x, tall - u * 2, x + u * 2, tall - 1), BLACK, u // 3)
    panel.box((0, 0, wide - 1, tall - u), body, u)
    panel.box((u, u // 2, wide - u, u * 5 // 2), (26, 26, 24), u // 4)
    amber = dice.choice([(250, 190, 60), (236, 236, 220)])
    left = u * 3 // 2 + measure(number, how, u) // 2
    panel.write(number, (left, u * 3 // 2), u, amber, "What is the number of the bus?")
    right = wide - u * 3 // 2 - measure(goal, how, u) // 2
    panel.write(goal, (right, u * 3 // 2), u, amber, "Where does the bus go?")
    panel.box((u, u * 3, wide - u, tall * 13 // 20), GLASS, u // 2, mixed(body, BLACK, 0.5))
    panel.line([(wide // 2, u * 3), (wide // 2, tall * 13 // 20)], mixed(body, BLACK, 0.5), max(2, u // 8))
    for x in (u, wide - u * 3):
        panel.round((x, tall - u * 3, x + u * 2, tall - u * 2 + u // 2), (250, 244, 214))
    return panel


def _mug(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.brand(dice, split)
    clay = vary(dice, dice.choice([(226, 218, 204), (64, 84, 104), (176, 96, 74)]), 10)
    wide = measure(text, how, u) + u
    tall, grip = wide * 11 // 10, wide // 3
    panel = Panel((wide + grip, tall), clay, how)
    panel.round((wide - grip, tall // 4, wide + grip - 1, tall * 3 // 4), mixed(clay, BLACK, 0.2))
    panel.erase((wide - grip * 3 // 5, tall * 7 // 20, wide + grip * 3 // 5, tall * 13 // 20))
    panel.box((0, wide // 10, wide, tall - 1), clay, u // 2)
    panel.round((0, 0, wide, wide // 5), mixed(clay, WHITE, 0.35))
    panel.round((u // 3, u // 6, wide - u // 3, wide // 5 - u // 6), mixed(clay, BLACK, 0.55))
    panel.write(text, (wide // 2, tall * 11 // 20), u, on(clay, dice, 0.2), "What is written on the mug?", sag=-u // 2)
    return panel


def _door(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, name = hand(dice, split), say.brand(dice, split)
    brass = vary(dice, dice.choice([(190, 158, 84), (176, 178, 182), (84, 62, 48)]), 10)
    wide = measure(name, how, u) + u * 2
    panel = Panel((wide, u * 3), brass, how)
    panel.box((0, 0, wide - 1, u * 3 - 1), brass, u // 3)
    panel.frame(u // 6, mixed(brass, WHITE, 0.4), max(1, u // 14), u // 4)
    for x in (u // 2, wide - u // 2):
        panel.round((x - u // 8, u * 3 // 2 - u // 8, x + u // 8, u * 3 // 2 + u // 8), mixed(brass, BLACK, 0.5))
    panel.write(
        name,
        (wide // 2, u * 3 // 2),
        u,
        on(brass, dice, 0.3),
        "What is the name on the door plate?",
        width=wide - u * 3 // 2,
    )
    return panel


def _crate(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = Hand(hand(dice, split).face, True), say.word(dice, split).upper()
    wood = vary(dice, (168, 128, 84), 14)
    wide = max(measure(text, how, u) + u * 3, u * 7)
    tall = u * 6
    panel = Panel((wide, tall), wood, how)
    for k in range(4):
        panel.box(
            (0, tall * k // 4, wide - 1, tall * (k + 1) // 4 - 1), vary(dice, wood, 10), 0, mixed(wood, BLACK, 0.4)
        )
    panel.write(text, (wide // 2, tall * 3 // 8), u, mixed(wood, BLACK, 0.75), "What is written on the crate?")
    panel.write(
        say.code(dice, split),
        (wide // 2, tall * 5 // 8),
        max(6, u * 3 // 5),
        mixed(wood, BLACK, 0.75),
        "What is the code on the crate?",
    )
    for x in (0, wide - u * 2 // 3):
        panel.box((x, 0, x + u * 2 // 3, tall - 1), mixed(wood, BLACK, 0.15), 0, mixed(wood, BLACK, 0.45))
    return panel


def _label(dice: Dice, split: Split, u: int, colour: str) -> Panel:
    how, text = hand(dice, split), say.phone(dice, split)
    leather = vary(dice, dice.choice([(132, 76, 48), (60, 84, 80), (120, 50, 66)]), 10)
    wide, tall = measure(text, how, u) + u * 4, u * 3
    panel = Panel((wide, tall), leather, how)
    panel.box((0, 0, wide - 1, tall - 1), leather, u)
    panel.round((u // 2, tall // 2 - u // 4, u, tall // 2 + u // 4), (230, 220, 200))
    panel.box((u * 3 // 2, u // 2, wide - u, tall - u // 2), WHITE, u // 4)
    middle = (u * 3 // 2 + wide - u) // 2
    panel.write(
        text, (middle, tall // 2), u, BLACK, "What is the phone number on the luggage label?", width=wide - u * 3
    )
    return panel


HELD_OUT_SURFACES: dict[str, Surface] = {
    "banner": Surface(_banner, ("target", "secondary", "periphery"), turn=6),
    "bus": Surface(_bus, ("target",), turn=3),
    "mug": Surface(_mug, ("target", "secondary"), tall=True, turn=6),
    "door plate": Surface(_door, ("secondary", "periphery"), turn=8),
    "crate": Surface(_crate, ("target", "secondary"), turn=8),
    "label": Surface(_label, ("periphery", "secondary"), turn=22),
}
