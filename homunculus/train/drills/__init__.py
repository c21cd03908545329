"""Drills: pages for training only, full of words that nobody knows, with questions about labels never met before.

A reader that has learnt its training vocabulary instead of letters reads "genial" as "general". Here that does not pay:
words are invented, anything may be a label and anything its value, in every face, size, case and colour of the train
split. `make` and `check` know the families of `homunculus.data` too; users' data sets have no drills.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from homunculus.data.degrade import draw_wear, safe_sine, wear_page
from homunculus.data.dice import Dice
from homunculus.data.documents import SMALLEST
from homunculus.data.documents.page import Page
from homunculus.data.fonts import Face, faces
from homunculus.data.record import REGIONS, Record, Region, Split
from homunculus.data.stream import Drawing, record
from homunculus.data.stream import check as check_data
from homunculus.data.stream import make as make_data
from homunculus.errors import DataError
from homunculus.geometry import Size
from homunculus.train.drills.blocks import cells, pairs, table, twins
from homunculus.train.drills.places import numbered, stack
from homunculus.train.drills.prose import band, listing, margin, paragraph, strewn
from homunculus.train.drills.sheet import Block, Candidate, Sheet
from homunculus.train.drills.typefaces import faces_in

NAME = "drills"
MOST: dict[Region, int] = {"target": 22, "secondary": 22, "periphery": 8}  # questions of a page
OTHER_FACES = 0.8  # of the pages, where there are any
WORN, TURNED = 0.6, 0.5  # of the pages, of the worn ones: wear takes three times as long as drawing a page

BLOCKS: dict[Block, float] = {
    pairs: 6, twins: 2, stack: 2.5, numbered: 1.5, cells: 2.5, table: 4, paragraph: 3, listing: 2, strewn: 1.5
}  # fmt: skip


def make(
    family: str,
    split: Split,
    index: int,
    *,
    size: Size = (1024, 1024),
    clean: bool = False,
    faces: str | None = None,
) -> Record:
    """The record of a family with a number, as `homunculus.data.make` has it; drills too, these mostly in `faces`, a
    folder of them, where one is given.

    >>> make("drills", "train", 12, size=(512, 512)).key
    'drills/train/12'
    """
    check(family, split)
    if family != NAME:
        return make_data(family, split, index, size=size, clean=clean)
    more = faces_in(faces) if faces else ()
    return record(partial(draw, more=more), family, split, index, size=size, clean=clean)


def check(family: str, split: str) -> None:
    """Refuse a family or split that nothing can be trained on."""
    if family != NAME:
        check_data(family, split)
    elif split not in ("train", "val"):
        raise DataError(f"there are no drills for '{split}': they are for training only, take train or val")


def draw(dice: Dice, split: Split, size: Size, clean: bool, more: Sequence[Face] = ()) -> Drawing:
    """A page with its questions, as printed if `clean` and otherwise mostly as scanned or photographed.

    >>> drawing = draw(Dice("a drill"), "train", (512, 512), True)
    >>> drawing.image.shape, len(drawing.meta["texts"]) >= 25, len(drawing.questions) >= 20
    ((512, 512, 3), True, True)
    """
    check(NAME, split)
    if min(size) < SMALLEST:
        raise DataError(f"a drill of {size} cannot be read: make it at least {SMALLEST} pixels on its shorter side")
    page = compose(dice.fork("page"), split, size, more)
    image, questions = page.image, page.questions
    places = [*(question.boxes[0] for question in questions), *(box for _, box in page.written)]
    sine = 0.0
    if not clean and dice.chance(WORN):
        asked = len(questions)
        wear = draw_wear(own := dice.fork("wear"), skew=dice.chance(TURNED))
        sine = safe_sine(places[:asked], size, wear.sine)
        image, places = wear_page(image, places[:asked], wear, own, places[asked:])
    questions = [replace(one, boxes=(box,)) for one, box in zip(questions, places, strict=False)]
    texts = [
        {"text": text, "box": list(box), "letters": page.letters[text, before]}
        for (text, before), box in zip(page.written, places[len(questions) :], strict=True)
    ]
    return Drawing(
        np.array(image), tuple(questions), {"kind": NAME, "face": page.face.name, "sine": sine, "texts": texts}
    )


def compose(dice: Dice, split: Split, size: Size, more: Sequence[Face] = ()) -> Page:
    """A page as printed: bands one under another, each in one to three columns, and lines round the edge."""
    page = Page(size, split, dice.fork("sheet"))
    known = faces(split)
    if more and (own := dice.fork("face")).chance(OTHER_FACES):
        known = (*own.sample(known, 1), *own.sample(more, 3))
        page.face = page.head = known[-1]
    sheet = Sheet(page, dice.fork("content"), known)
    left, right = page.px(dice.integer(28, 64)), size[0] - page.px(dice.integer(28, 64))
    top, bottom = page.px(dice.integer(30, 50)), size[1] - page.px(dice.integer(30, 50))
    sheet.begin()  # block 0 is what stands round the edge
    edges = dice.choice(("header", "footer", "both", "both", "both"))
    if edges != "footer":
        band(sheet, left, top, right - left, "header", "top")
        top += page.px(30)
    if edges != "header":
        band(sheet, left, bottom, right - left, "footer", "bottom")
        bottom -= page.px(30)
    if dice.chance(0.3):
        side, wide = dice.choice(("left", "right")), page.px(dice.integer(100, 150))
        margin(sheet, left if side == "left" else right - wide, top, wide, bottom, side)
        left, right = (left + wide + page.px(20), right) if side == "left" else (left, right - wide - page.px(20))
    while bottom - top > page.px(70):
        high = min(bottom - top, page.px(dice.integer(240, 620)))
        if bottom - top - high < page.px(150):
            high = bottom - top
        _columns(sheet, left, top, right - left, top + high)
        top += high
    _ask_beginnings(sheet)
    _ask(sheet)
    return page


def _columns(sheet: Sheet, x: float, y: float, width: float, bottom: float) -> None:
    """Fill an area in columns of any width, each from the top down with one block after another."""
    page, dice = sheet.page, sheet.dice
    gap = page.px(dice.integer(18, 40))
    count = dice.integer(1 if width < page.px(1200) else 2, min(3, int(width / page.px(250))))
    parts = [dice.uniform(0.75, 1.35) for _ in range(count)]
    wide = [(width - gap * (count - 1)) * part / sum(parts) for part in parts]
    for column in range(count):
        at = x + sum(wide[:column]) + gap * column
        top, missed = y, 0
        while missed < 5 and bottom - top > page.px(40):
            block = dice.weighted(list(BLOCKS), list(BLOCKS.values()))
            sheet.begin()
            below = block(sheet, at, top, wide[column], bottom - page.px(14))
            if below is None:
                missed += 1
                continue
            sheet.blocks[-1] = (below - top) * wide[column]
            top = below + page.px(dice.integer(16, 40))


def _ask_beginnings(sheet: Sheet) -> None:
    """Ask for some words by their first letters, or their last, where no other word has these."""
    sheet.begin()
    printed = " ".join(text for text, _ in sheet.page.written).casefold()
    every = f" {' '.join(re.findall('[a-z0-9]+', printed))} "
    single = [(text, box) for text, box in sheet.page.written if text.isalpha() and len(text) > 4]
    for text, box in sheet.dice.sample(single, 6):
        first, last = text[:3], text[-3:]
        if every.count(f" {first.casefold()}") == 1 and sheet.dice.chance(0.6):
            sheet.ask_any(("Which word begins with {}?", "Find the word that starts with {}."), text, box, "key", first)
        elif every.count(f"{last.casefold()} ") == 1:
            sheet.ask_any(("Which word ends with {}?", "Find the word that ends in {}."), text, box, "key", last)


def _ask(sheet: Sheet) -> None:
    """Of all questions found, some: of the edge (periphery), the largest block (target) and the others (secondary)."""
    largest = max(range(1, len(sheet.blocks)), key=sheet.blocks.__getitem__)
    by_region: dict[Region, list[Candidate]] = {region: [] for region in REGIONS}
    for found in sheet.dice.shuffled(list(sheet.found.values())):
        if not sheet.strings.repeated.isdisjoint(name.casefold() for name in found.names):
            continue
        by_region["periphery" if not found.block else "target" if found.block == largest else "secondary"].append(found)
    if not by_region["target"] or not by_region["secondary"]:  # one block alone has questions
        rest = by_region["target"] + by_region["secondary"]
        by_region["target"], by_region["secondary"] = rest[::2], rest[1::2]
    for region, most in MOST.items():
        for found in by_region[region][:most]:
            sheet.page.ask(found.text, found.answer, [found.box], region, found.kind)
