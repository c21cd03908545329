"""Families of records, made on demand: any one by its index, or a stream of them, nothing stored."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from jaxtyping import UInt8

from homunculus.data.dice import Dice
from homunculus.data.record import REGIONS, SPLITS, Question, Record, Split
from homunculus.errors import DataError
from homunculus.geometry import Size

# Each module has draw(dice, split, size, clean) -> Drawing.
FAMILIES = {
    "documents": "homunculus.data.documents",
    "scenes": "homunculus.data.scenes",
    "scene-text": "homunculus.data.scene_text",
}


@dataclass(frozen=True, eq=False)
class Drawing:
    """What a family draws: an image [h, w, 3] and all that can be asked of it, every region at least once."""

    image: UInt8[np.ndarray, "h w 3"]
    questions: tuple[Question, ...]
    meta: dict[str, Any] = field(default_factory=dict)


Draw = Callable[[Dice, Split, Size, bool], Drawing]


def make(family: str, split: Split, index: int, *, size: Size = (1024, 1024), clean: bool = False) -> Record:
    """The record of a family with a number: the same for the same arguments, on every machine, in any order.

    A region is drawn for its first question, and the follow-ups ask about the other two and then the rest. `clean`
    leaves out skew, blur, noise and compression.

    >>> record = make("scenes", "train", 0, size=(256, 256))
    >>> record.key, record.image.shape, sorted({question.region for question in record.questions})
    ('scenes/train/0', (256, 256, 3), ['periphery', 'secondary', 'target'])
    """
    check(family, split)
    return record(import_module(FAMILIES[family]).draw, family, split, index, size=size, clean=clean)


def record(draw: Draw, family: str, split: Split, index: int, *, size: Size, clean: bool) -> Record:
    """The record of a drawing function with a number, whose dice are named by family, split and number."""
    dice = Dice(family, split, index)
    drawing = draw(dice.fork("drawing"), split, size, clean)
    questions = _in_turn(drawing.questions, dice.fork("questions"))
    return Record(f"{family}/{split}/{index}", drawing.image, questions[0], questions[1:], drawing.meta)


def stream(
    family: str, split: Split = "train", *, start: int = 0, stop: int | None = None, step: int = 1, **options: Any
) -> Iterator[Record]:
    """Records one after another, without end unless `stop` is given; worker k of n takes start=k, step=n.

    >>> [record.key for record in stream("scenes", stop=3, size=(128, 128))]
    ['scenes/train/0', 'scenes/train/1', 'scenes/train/2']
    """
    check(family, split)
    for index in count(start, step) if stop is None else range(start, stop, step):
        yield make(family, split, index, **options)


def check(family: str, split: str) -> None:
    """Refuse a family or split we do not have."""
    if family not in FAMILIES:
        raise DataError(f"no family '{family}': choose one of {', '.join(FAMILIES)}")
    if split not in SPLITS:
        raise DataError(f"no split '{split}': choose one of {', '.join(SPLITS)}")


def _in_turn(questions: tuple[Question, ...], dice: Dice) -> tuple[Question, ...]:
    """In random order, but each region asked about once before any is asked about again."""
    mixed = dice.shuffled(questions)
    first = [next(q for q in mixed if q.region == region) for region in dice.shuffled(REGIONS)]
    return (*first, *(q for q in mixed if q not in first))
