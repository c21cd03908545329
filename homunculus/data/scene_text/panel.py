"""A flat thing with writing on it, before it is seen at an angle: its paint, its outline and the ink of each text."""

from dataclasses import dataclass

from PIL import Image, ImageDraw

from homunculus.data.dice import Dice
from homunculus.data.scene_text.lettering import Hand, bent, written
from homunculus.data.scenes.noise import Colour, mixed
from homunculus.geometry import Size

Points = list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Ink:
    """A text on a panel: what is asked of it (or nothing), what it says, its mask and where the mask lies."""

    question: str
    answer: str
    kind: str
    mask: Image.Image
    at: tuple[int, int]


class Panel:
    """`paint` RGB and `outline` L of one size; coordinates are pixels of that size.

    >>> from homunculus.data.fonts import FACES
    >>> panel = Panel((200, 80), (20, 90, 40), Hand(FACES[0], True))
    >>> panel.fill((20, 90, 40)).write("EXIT", (100, 40), 30, (255, 255, 255), "What is written on the green sign?")
    >>> panel.inks[0].answer
    'EXIT'
    """

    def __init__(self, size: Size, colour: Colour, how: Hand) -> None:
        self.paint = Image.new("RGB", size, colour)
        self.outline = Image.new("L", size)
        self.how = how
        self.inks: list[Ink] = []
        self._brush, self._cutter = ImageDraw.Draw(self.paint), ImageDraw.Draw(self.outline)

    @property
    def size(self) -> Size:
        return self.paint.size

    def fill(self, colour: Colour) -> "Panel":
        """The whole rectangle."""
        return self.box((0, 0, self.size[0] - 1, self.size[1] - 1), colour)

    def box(
        self, edges: tuple[int, int, int, int], colour: Colour, radius: int = 0, rim: Colour | None = None
    ) -> "Panel":
        wide = max(2, min(self.size) // 40)
        self._brush.rounded_rectangle(edges, radius, fill=colour, outline=rim, width=wide if rim else 0)
        self._cutter.rounded_rectangle(edges, radius, fill=255)
        return self

    def frame(self, margin: int, colour: Colour, wide: int, radius: int = 0) -> "Panel":
        """A line inside the edge of the whole panel."""
        edges = (margin, margin, self.size[0] - 1 - margin, self.size[1] - 1 - margin)
        self._brush.rounded_rectangle(edges, radius, outline=colour, width=wide)
        return self

    def shape(self, points: Points, colour: Colour) -> "Panel":
        self._brush.polygon(points, fill=colour)
        self._cutter.polygon(points, fill=255)
        return self

    def round(self, edges: tuple[int, int, int, int], colour: Colour) -> "Panel":
        self._brush.ellipse(edges, fill=colour)
        self._cutter.ellipse(edges, fill=255)
        return self

    def erase(self, edges: tuple[int, int, int, int]) -> "Panel":
        """Cut an oval hole."""
        self._cutter.ellipse(edges, fill=0)
        return self

    def line(self, points: Points, colour: Colour, wide: int) -> "Panel":
        self._brush.line(points, fill=colour, width=wide)
        self._cutter.line(points, fill=255, width=wide)
        return self

    def write(
        self,
        text: str,
        centre: tuple[int, int],
        height: int,
        colour: Colour,
        question: str = "",
        kind: str = "key",
        *,
        width: int = 0,
        sag: int = 0,
        upright: bool = False,
    ) -> None:
        """Write a text about a centre, capitals `height` tall, narrowed to a width, bent or standing on its side.

        Without a question it is part of the picture and not asked for.
        """
        mask = written(text, self.how, height)
        if width and mask.width > width:
            mask = mask.resize((width, mask.height), Image.Resampling.BILINEAR)
        if sag:
            mask = bent(mask, sag)
        if upright:
            mask = mask.transpose(Image.Transpose.ROTATE_270)
        at = centre[0] - mask.width // 2, centre[1] - mask.height // 2
        self.print(colour, mask, at)
        self.inks.append(Ink(question, text, kind, mask, at))

    def print(self, colour: Colour, mask: Image.Image, at: tuple[int, int]) -> None:
        """Put ink on the paint."""
        self.paint.paste(colour, at, mask)


def on(colour: Colour, dice: Dice, faint: float = 0.25) -> Colour:
    """A colour to write in: clearly lighter or darker, but sometimes (with chance `faint`) only just."""
    level = (colour[0] * 3 + colour[1] * 6 + colour[2]) // 10
    ink = (
        dice.choice([(20, 20, 24), (30, 30, 70), (60, 14, 20)])
        if level > 118
        else dice.choice([(250, 248, 240), (255, 240, 170)])
    )
    return mixed(colour, ink, dice.uniform(0.42, 0.6) if dice.chance(faint) else 1.0)
