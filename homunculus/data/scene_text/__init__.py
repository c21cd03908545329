"""Scene text: signs, plates, labels and covers before walls and hedges, at angles, bent, in shadow and glare."""

import numpy as np

from homunculus.data.dice import Dice
from homunculus.data.record import Question, Split
from homunculus.data.scene_text.layout import Text, arranged
from homunculus.data.scene_text.walls import wall
from homunculus.data.scenes.camera import photographed
from homunculus.data.stream import Drawing
from homunculus.geometry import Size

# name: which third of the picture across and down
CORNERS = {"top left": (0, 0), "top right": (2, 0), "bottom left": (0, 2), "bottom right": (2, 2)}


def draw(dice: Dice, split: Split, size: Size, clean: bool) -> Drawing:
    """A picture with writing and its questions.

    >>> drawing = draw(Dice("a street"), "train", (256, 192), clean=True)
    >>> drawing.image.shape, sorted({question.region for question in drawing.questions})
    ((192, 256, 3), ['periphery', 'secondary', 'target'])
    """
    name, image = wall(dice.fork("wall"), split, size)
    texts = arranged(image, dice.fork("things"), split)
    image = photographed(image, dice, clean, cast=0.4)
    asked = [Question(t.question, _answers(t.answer), (t.box,), t.region, t.kind) for t in texts if t.question]
    meta = {"wall": name, "texts": [{"text": t.answer, "box": list(t.box), "surface": t.surface} for t in texts]}
    return Drawing(np.array(image), (*asked, *_by_place(texts, size)), meta)


def _answers(text: str) -> tuple[str, ...]:
    """As it is written, and in small letters where that is something else."""
    return tuple(dict.fromkeys((text, text.lower())))


def _by_place(texts: list[Text], size: Size) -> list[Question]:
    """ "What word is at the bottom left?": for corners that a single text reaches into."""
    found = []
    for name, (across, down) in CORNERS.items():
        x0, y0 = size[0] * across / 3, size[1] * down / 3
        x1, y1 = x0 + size[0] / 3, y0 + size[1] / 3
        near = [t for t in texts if t.box[0] < x1 and t.box[2] > x0 and t.box[1] < y1 and t.box[3] > y0]
        if len(near) == 1 and near[0].region == "periphery":
            what = "What word is" if near[0].answer.isalpha() else "What is written"
            found.append(
                Question(f"{what} at the {name}?", _answers(near[0].answer), (near[0].box,), "periphery", "place")
            )
    return found
