"""A sheet being drawn: text set with its ink box known, and the questions that the sheet answers.

Places and widths are pixels of the page; type sizes and `px` are lengths at 1024, so that a layout for 1024² is drawn
at any size: the shorter side is always 1024 long in design pixels.
"""

from collections.abc import Sequence
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from homunculus.data.dice import Dice
from homunculus.data.documents.glyphs import glyphs
from homunculus.data.fonts import Face, faces, load, missing
from homunculus.data.record import Box, Question, Region, Split
from homunculus.errors import DataError
from homunculus.geometry import Size

Colour = tuple[int, int, int]
Cut = Literal["regular", "bold", "italic"]

TYPE = (12, 40)  # the smallest and largest type, in design pixels

_PAPERS: tuple[Colour, ...] = ((255, 255, 255), (253, 253, 250), (250, 249, 244), (247, 249, 251), (252, 248, 240))
_INKS: tuple[Colour, ...] = ((16, 16, 18), (28, 28, 30), (38, 40, 46), (20, 26, 48), (44, 36, 32))
_ACCENTS: tuple[Colour, ...] = (
    (20, 62, 120), (140, 28, 36), (16, 98, 72), (92, 44, 120), (176, 78, 18), (12, 96, 120), (70, 74, 82),
    (112, 84, 20), (34, 40, 60), (150, 32, 96), (46, 110, 40), (30, 80, 160),
)  # fmt: skip


class Page:
    """A sheet being drawn: a Pillow image and pen, the faces chosen for it, and the questions asked of it.

    >>> page = Page((512, 512), "train", Dice("a page"))
    >>> x0, y0, x1, y1 = page.write(page.px(100), page.px(80), "INV-20417", 24)
    >>> page.ask("What is the invoice number?", "INV-20417", [(x0, y0, x1, y1)], "target", "key")
    >>> page.questions[0].answer, 45 <= x0 < x1 < 140
    ('INV-20417', True)
    """

    def __init__(self, size: Size, split: Split, dice: Dice) -> None:
        self.size, self.split = size, split
        self.zoom = min(size) / 1024
        self.width, self.height = size[0] / self.zoom, size[1] / self.zoom  # in design pixels, both >= 1024
        text_faces = faces(split, "sans") + faces(split, "serif")
        self.face: Face = dice.choice(text_faces)
        self.head: Face = self.face if dice.chance(0.6) else dice.choice(text_faces)
        self.mono: Face = dice.choice(faces(split, "mono"))
        self.paper, self.ink, self.accent = dice.choice(_PAPERS), dice.choice(_INKS), dice.choice(_ACCENTS)
        self.faint: Colour = _between(self.ink, self.paper, dice.choice((0.4, 0.45, 0.5)))
        self.tint: Colour = _between(self.paper, self.accent, 0.1)  # behind text: zebra rows, panels
        self.image = Image.new("RGB", size, self.paper)
        self.pen = ImageDraw.Draw(self.image)
        self.written: list[tuple[str, Box]] = []
        self.letters: dict[tuple[str, Box], list[float]] = {}  # how far along its box each letter is
        self.questions: list[Question] = []

    def px(self, n: float) -> int:
        """A length given at 1024 in pixels of this page."""
        return round(n * self.zoom)

    def can(self, text: str) -> bool:
        """Whether every face of this page has every letter of a text."""
        return not any(missing(face, text) for face in (self.face, self.head, self.mono))

    def font(self, size: float = 20, cut: Cut = "regular", face: Face | None = None) -> ImageFont.FreeTypeFont:
        return load(face or self.face, max(1, self.px(size)), cut)

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 20,
        *,
        cut: Cut = "regular",
        fill: Colour | None = None,
        anchor: str = "la",
        face: Face | None = None,
    ) -> Box:
        """Set one line of text, and return the tight box of its ink."""
        face = face or self.face
        if lacking := missing(face, text):
            raise DataError(f"{face.name} cannot write {lacking!r} of {text!r}: choose other letters or another face")
        colour = self.pen.draw.draw_ink(fill or self.ink)
        line = glyphs(self.font(size, cut, face))
        box = line.draw(self.pen, round(x), round(y), text, colour, anchor)
        if box is None:
            raise DataError(f"{text!r} leaves no ink at size {size}: write letters, and larger")
        if box[0] < 0 or box[1] < 0 or box[2] > self.size[0] or box[3] > self.size[1]:
            raise DataError(f"{text!r} at {box} leaves the page of {self.size}: move it or set it smaller")
        self.note(text, box, line.centres(round(x), text, anchor))
        return box

    def note(self, text: str, box: Box, centres: Sequence[float]) -> None:
        """Remember what is written where, and where the middle of each letter is, across."""
        self.written.append((text, box))
        self.letters[text, box] = [round((at - box[0]) / (box[2] - box[0]), 3) for at in centres]

    def length(self, text: str, size: float = 20, *, cut: Cut = "regular", face: Face | None = None) -> float:
        """How wide a line is, in pixels of the page."""
        return glyphs(self.font(size, cut, face)).length(text)

    def fit(
        self, text: str, width: float, size: float = 20, *, cut: Cut = "regular", face: Face | None = None
    ) -> float:
        """The largest type up to `size` in which a line is at most `width` wide; an error below the smallest type."""
        while self.length(text, size, cut=cut, face=face) > width:
            size -= 1
            if size < TYPE[0]:
                raise DataError(f"{text!r} is wider than {width:.0f} px in the smallest type: give it more room")
        return size

    def wrap(
        self, text: str, width: float, size: float = 20, *, cut: Cut = "regular", face: Face | None = None
    ) -> list[str]:
        """The lines of a text set to a width: as many words to each as fit."""
        length = glyphs(self.font(size, cut, face)).length
        space = length(" ")
        lines: list[list[str]] = [[]]
        used = 0.0
        for word in text.split():
            room = length(word)
            if lines[-1] and used + room > width:
                lines.append([])
                used = 0.0
            lines[-1].append(word)
            used += room + space
        return [" ".join(line) for line in lines if line]

    def paragraph(
        self,
        x: float,
        y: float,
        width: float,
        text: str,
        size: float = 20,
        *,
        leading: float = 1.4,
        cut: Cut = "regular",
        fill: Colour | None = None,
        face: Face | None = None,
    ) -> tuple[list[tuple[str, Box]], int]:
        """Set a text to a width: its lines with the box of each, and the y below the last."""
        lines = self.wrap(text, width, size, cut=cut, face=face)
        step = self.px(size * leading)
        boxes = [
            self.write(x, y + row * step, line, size, cut=cut, fill=fill, face=face) for row, line in enumerate(lines)
        ]
        return list(zip(lines, boxes, strict=True)), round(y) + len(lines) * step

    def rule(self, x0: float, y0: float, x1: float, y1: float, fill: Colour | None = None, width: float = 1) -> None:
        """A straight line, at least a pixel wide."""
        self.pen.line((round(x0), round(y0), round(x1), round(y1)), fill or self.ink, max(1, self.px(width)))

    def panel(
        self, x0: float, y0: float, x1: float, y1: float, fill: Colour | None = None, edge: Colour | None = None,
        width: float = 1,
    ) -> None:  # fmt: skip
        """A rectangle, filled or edged or both."""
        self.pen.rectangle((round(x0), round(y0), round(x1), round(y1)), fill, edge, max(1, self.px(width)))

    def ask(self, text: str, answers: str | tuple[str, ...], boxes: Sequence[Box], region: Region, kind: str) -> None:
        """Note a question that this page answers; each may be asked once, or its answer would not be unique."""
        if any(question.text == text for question in self.questions):
            raise DataError(f"{text!r} is asked twice of one page: name the place in the question")
        self.questions.append(
            Question(text, (answers,) if isinstance(answers, str) else answers, tuple(boxes), region, kind)
        )


def _between(a: Colour, b: Colour, share: float) -> Colour:
    """The colour a share of the way from a to b."""
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(a, b, strict=True))
    return red, green, blue
