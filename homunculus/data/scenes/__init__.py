"""Scenes: many things, large and small, in clutter and shade; what is asked is seen on few of them."""

import numpy as np

from homunculus.data.dice import Dice
from homunculus.data.record import Split
from homunculus.data.scenes.camera import photographed
from homunculus.data.scenes.ground import ground, littered
from homunculus.data.scenes.layout import Canvas, Scene, compose
from homunculus.data.scenes.questions import questions
from homunculus.data.stream import Drawing
from homunculus.geometry import Size


def draw(dice: Dice, split: Split, size: Size, clean: bool) -> Drawing:
    """A scene and its questions; its things are listed in the meta.

    >>> drawing = draw(Dice("a scene"), "train", (160, 128), clean=True)
    >>> drawing.image.shape, sorted({question.region for question in drawing.questions})
    ((128, 160, 3), ['periphery', 'secondary', 'target'])
    """
    place, canvas, scene = laid(dice, split, size)
    image = photographed(canvas.image, dice, clean)
    meta = {"ground": place, "things": [thing.described() for thing in scene.things]}
    return Drawing(np.array(image), questions(scene, size, dice.fork("questions")), meta)


def laid(dice: Dice, split: Split, size: Size) -> tuple[str, Canvas, Scene]:
    """The scene before the light falls on it: the name of its ground, its canvas with owners, its things."""
    place, image = ground(dice.fork("ground"), split, size)
    littered(image, dice.fork("litter"))
    canvas = Canvas(image)
    return place, canvas, compose(canvas, dice.fork("things"), split)
