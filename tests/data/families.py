"""A family that is quick to draw, for tests of what is done with records.

`python -m tests.data.families data write dots ...` is `homunculus` with this family, in worker processes too.
"""

import os
import time

import numpy as np

from homunculus.data import FAMILIES, REGIONS, Question
from homunculus.data.dice import Dice
from homunculus.data.stream import Drawing

NAME = "dots"


def draw(dice: Dice, split: str, size: tuple[int, int], clean: bool) -> Drawing:
    """A dot in a place and a shade that follow from the dice; SLOW seconds each if the environment says so."""
    time.sleep(float(os.environ.get("SLOW", "0")))
    x, y, shade = dice.integer(0, size[0] - 9), dice.integer(0, size[1] - 9), dice.integer(1, 255)
    image = np.zeros((size[1], size[0], 3), np.uint8)
    image[y : y + 8, x : x + 8] = shade, 0 if clean else 1, 7
    box = (x, y, x + 8, y + 8)
    questions = [
        Question(f"How “bright” is the {region} dot, in € {x}?", (str(shade), "x"), (box,), region, "shade")
        for region in REGIONS
    ]
    clean_or_not = Question("Is it clean?", ("yes" if clean else "no",), (), "target", "clean")
    return Drawing(image, (*questions, clean_or_not), {"shade": shade, "at": [x, y], "split": split})


if __name__ in ("__main__", "__mp_main__"):
    FAMILIES[NAME] = "tests.data.families"

if __name__ == "__main__":
    from homunculus.cli import main

    main()
