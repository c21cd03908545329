"""Documents: pages of many kinds with questions whose answer is one small place, as in DocVQA.

A layout is a module with `ARRANGEMENTS` for the ordinary splits and `HELD_OUT` for `test-ood`: functions
draw(page, words, dice) that fill a `Page` and note what can be asked of it. `draw` throws the dice for which one.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np

from homunculus.data.degrade import draw_wear, safe_sine, wear_page
from homunculus.data.dice import Dice
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import Words
from homunculus.data.record import Split
from homunculus.data.stream import Drawing
from homunculus.errors import DataError
from homunculus.geometry import Size

Arrangement = Callable[[Page, Words, Dice], None]

SMALLEST = 512  # pixels of the shorter side: the smallest type is 6 pixels there

LAYOUTS = {
    name: f"homunculus.data.documents.{name}"
    for name in ("invoice", "receipt", "form", "ticket", "report", "letter", "paper")
}


def arrangements(kind: str, split: Split) -> tuple[Arrangement, ...]:
    """The ways in which a split arranges a kind of document.

    >>> [arrange.__name__ for arrange in arrangements("invoice", "test-ood")]
    ['sidebar']
    """
    layout = import_module(LAYOUTS[kind])
    return tuple(layout.HELD_OUT if split == "test-ood" else layout.ARRANGEMENTS)


def draw(dice: Dice, split: Split, size: Size, clean: bool) -> Drawing:
    """A page with its questions, as printed if `clean` and otherwise as scanned or photographed.

    >>> drawing = draw(Dice("a document"), "train", (512, 512), True)
    >>> drawing.image.shape, sorted(drawing.meta)
    ((512, 512, 3), ['arrangement', 'face', 'kind', 'sine', 'texts'])
    """
    if min(size) < SMALLEST:
        raise DataError(f"a document of {size} cannot be read: make it at least {SMALLEST} pixels on its shorter side")
    kind = dice.choice(tuple(LAYOUTS))
    arrange = dice.choice(arrangements(kind, split))
    page = compose(arrange, dice.fork("page"), split, size)
    image, questions, sine = page.image, page.questions, 0.0
    written = [box for _, box in page.written]
    if not clean:
        flat = [box for question in questions for box in question.boxes]
        wear = draw_wear(own := dice.fork("wear"))
        image, moved = wear_page(image, flat, wear, own, written)
        sine = safe_sine(flat, size, wear.sine)
        places = iter(moved)
        questions = [replace(question, boxes=tuple(next(places) for _ in question.boxes)) for question in questions]
        written = list(places)
    texts = [
        {"text": text, "box": list(box), "letters": page.letters.get((text, before), [])}
        for (text, before), box in zip(page.written, written, strict=True)
    ]
    meta = {"kind": kind, "arrangement": arrange.__name__, "face": page.face.name, "sine": sine, "texts": texts}
    return Drawing(np.array(image), tuple(questions), meta)


def compose(arrange: Arrangement, dice: Dice, split: Split, size: Size) -> Page:
    """A page in one arrangement, as printed."""
    page = Page(size, split, dice.fork("sheet"))
    arrange(page, Words(split), dice.fork("content"))
    return page
