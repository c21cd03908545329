"""What lies where on an image, for dense supervision: the letters of its texts; of a scene's things shape, colour and
pattern. A mark is a place in pixels and a number: that of an ASCII letter, or one of those that no such letter has.
"""

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Int16
from torch import Tensor

from homunculus.data.record import Record
from homunculus.data.scenes.objects import COLOURS, TEXTURES
from homunculus.data.scenes.shapes import SHAPES
from homunculus.model.tokenizer import FIRST_BYTE, PAD

ASCII = 128
NAMES = {name: FIRST_BYTE + ASCII + i for i, name in enumerate((*SHAPES, *COLOURS, *TEXTURES))}
ACROSS, DOWN = (0.3, 0.43, 0.57, 0.7), (0.3, 0.5, 0.7)  # of a thing's box: there it is, whatever its outline

Mark = tuple[int, int, int]  # x, y, number


def marks(record: Record, rows: int, length: int) -> Tensor:
    """Marks of all texts whose letters have known places, and of all things: [rows, length, 3], each in a row of its
    own, a long one in several; zeros where there are no more."""
    sine = record.meta.get("sine", 0.0)
    texts = (letter_marks(t["text"], t["box"], t.get("letters", ()), sine) for t in record.meta.get("texts", ()))
    things = (thing_marks(thing) for thing in record.meta.get("things", ()))
    found = [own[at : at + length] for own in (*texts, *things) for at in range(0, len(own), length)]
    made: Int16[Tensor, "rows length 3"] = torch.zeros(rows, length, 3, dtype=torch.int16)
    for row, own in zip(made, found, strict=False):
        row[: len(own)] = torch.tensor(own)
    return made


def letter_marks(text: str, box: Sequence[float], along: Sequence[float], sine: float = 0.0) -> list[Mark]:
    """The letters of a text on a page that was turned clockwise by so much; one that is not ASCII has no number.

    >>> letter_marks("No", (10, 20, 30, 40), (0.25, 0.75))
    [(15, 30, 81), (25, 30, 114)]
    """
    x0, y0, x1, y1 = box
    return [
        (
            round(x0 + (x1 - x0) * at),
            round((y0 + y1) / 2 + (x1 - x0) * (at - 0.5) * sine),
            FIRST_BYTE + ord(letter) if ord(letter) < ASCII else PAD,
        )
        for letter, at in zip(text, along, strict=False)
    ]


def thing_marks(thing: dict) -> list[Mark]:
    """Shape, colour and pattern, at some places inside a thing; nothing where a name is not one we teach."""
    names = [NAMES.get(thing[what]) for what in ("shape", "colour", "texture")]
    if None in names:
        return []
    x0, y0, x1, y1 = thing["box"]
    places = [(round(x0 + (x1 - x0) * across), round(y0 + (y1 - y0) * down)) for down, across in product(DOWN, ACROSS)]
    return [(x, y, name) for x, y in places for name in names if name]
