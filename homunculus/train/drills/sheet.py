"""A drill page being filled: type in many looks, texts that fit their room, and the questions as they come up.

Every text of a page comes from one `Strings`, so labels and values are different and a label names one place. Questions
are kept with the block they ask about; which blocks are the main matter is known when the page is full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from homunculus.data.dice import Dice
from homunculus.data.documents.blocks import WHITE
from homunculus.data.documents.page import Colour, Cut, Page
from homunculus.data.fonts import Face, missing
from homunculus.data.record import Box
from homunculus.train.drills.strings import Strings, label, number

LONGEST_ANSWER = 60  # letters
LONGEST_NAMES = 40  # letters of all labels in a question: longer ones would be cut when they are put in numbers

SIZES = (12, 13, 14, 15, 16, 18, 20, 22, 24, 28, 33, 40)  # few, so that letters once drawn are soon met again
_LIKELY = (9, 9, 10, 9, 10, 9, 6, 4, 2, 1, 0, 0)
_SIGNS = ("EUR", "USD", "GBP", "CHF", "SEK", "$", "$", "€", "£")
_LIGHT: tuple[Colour, ...] = (WHITE, WHITE, (236, 240, 246), (255, 240, 190), (214, 236, 214))

BY_KEY = (
    "What is the {}?", "What is the {}?", "What does it say for the {}?", "Can you read the {}?", "Please give the {}.",
    "I need the {}: what is it?", "Find the {}.", "Tell me the {}.", "Which {} is given?", "What {} is stated?",
    "Which {} is shown here?", "What does it say for {}?", "{}?", "What is given for {}?", "Read the value of {}.",
    "What is stated as {}?", "Look up {}.", "Which value has {}?", "What is entered for {}?", "What belongs to {}?",
    "Give me the {}, please.", "What value is given as the {}?", "{}: what is it?",
)  # fmt: skip
BACKWARDS = (
    "Which label has the value {}?", "What is {} the value of?", "To which label does {} belong?",
    "What is it that is {}?",
)  # fmt: skip
RIGHT_OF = ("What stands to the right of {}?", "What is written right of {}?", "What is printed beside {}?")
LEFT_OF = ("What stands to the left of {}?", "Which text is just left of {}?")
BELOW = ("What stands below {}?", "What is written under {}?", "What comes directly below {}?")
ABOVE = ("What stands above {}?", "What is written over {}?", "Which text is directly above {}?")


@dataclass(frozen=True)
class Style:
    """How a block is set: face, type in design pixels, cuts and colours of labels and values."""

    face: Face
    size: float
    cut: Cut
    key_cut: Cut
    fill: Colour
    key_fill: Colour
    line: Colour  # of rules


@dataclass(frozen=True)
class Candidate:
    """A question that could be asked: its answer and where that stands, its kind, its block, and what it names."""

    text: str
    answer: str
    box: Box
    kind: str
    block: int
    names: tuple[str, ...]


class Sheet:
    """A page with the dice and the strings to fill it, and the questions found so far."""

    def __init__(self, page: Page, dice: Dice, faces: Sequence[Face]) -> None:
        self.page, self.dice, self.faces = page, dice, faces
        self.strings = Strings(dice.fork("strings"))
        self.blocks: list[float] = []  # how much of the page each takes
        self.found: dict[str, Candidate] = {}
        self.counted = self.listed = False  # whether a number alone names a line, and whether a list has numbers

    # Looks

    def style(self, largest: float = 40) -> Style:
        """A look at random: mostly the page's face and ink."""
        page, dice = self.page, self.dice
        face = page.face if dice.chance(0.4) else dice.choice(self.faces)
        self.strings.signs = tuple(sign for sign in _SIGNS if not missing(face, sign))
        size = min(dice.weighted(SIZES, _LIKELY), largest)
        cuts: tuple[Cut, ...] = ("regular", "regular", "regular", "bold", "italic")
        inks = (page.ink, page.ink, page.ink, page.faint, page.accent)
        fill, key_fill = dice.choice(inks), dice.choice(inks)
        return Style(face, size, dice.choice(cuts), dice.choice(cuts), fill, key_fill, page.faint)

    def ground(self, style: Style) -> tuple[Style, Callable[[float, float, float, float], None] | None]:
        """At times a ground for a block, and the style with colours that can be read on it."""
        page, kind = self.page, self.dice.random()
        if kind < 0.6:
            return style, None
        if kind < 0.72:
            return style, lambda x0, y0, x1, y1: page.panel(x0, y0, x1, y1, edge=style.line)
        if kind < 0.84:
            return style, lambda x0, y0, x1, y1: page.panel(x0, y0, x1, y1, page.tint)
        light, dark = self.dice.choice(_LIGHT), self.dice.choice((page.accent, page.accent, page.ink))
        on_dark = replace(style, fill=light, key_fill=self.dice.choice((light, WHITE)), line=light)
        return on_dark, lambda x0, y0, x1, y1: page.panel(x0, y0, x1, y1, dark)

    # Texts

    def fitting(self, make: Callable[[int], str], width: float, size: float, cut: Cut, face: Face) -> str:
        """A text by a maker of texts of at most so many letters, no wider than so many pixels."""
        longest = max(1, int(width / (0.44 * self.page.px(size))))
        for _ in range(4):
            text = make(longest)
            if self.page.length(text, size, cut=cut, face=face) <= width:
                return text
            longest = max(1, min(longest, len(text)) * 4 // 5)
        while True:
            text = self.strings.fresh(number, min(longest, 3))
            if longest == 1 or self.page.length(text, size, cut=cut, face=face) <= width:
                return text
            longest = max(1, longest - 1)

    def key(self, width: float, style: Style, longest: int = 24) -> str:
        return self.fitting(
            lambda most: self.strings.label(min(most, longest)), width, style.size, style.key_cut, style.face
        )

    def value(self, width: float, style: Style) -> str:
        return self.fitting(
            lambda most: self.strings.value(min(most, LONGEST_ANSWER)), width, style.size, style.cut, style.face
        )

    def write(self, x: float, y: float, text: str, style: Style, anchor: str = "lm", *, key: bool = False) -> Box:
        cut, fill = (style.key_cut, style.key_fill) if key else (style.cut, style.fill)
        return self.page.write(x, y, text, style.size, cut=cut, fill=fill, anchor=anchor, face=style.face)

    def heading(self, x: float, y: float, width: float, style: Style) -> tuple[str, float]:
        """A line over a block, larger than it: its text and the y below."""
        size = self.dice.choice([one for one in SIZES if 1.0 <= one / style.size <= 1.7])
        cut: Cut = self.dice.choice(("bold", "bold", "regular", "italic"))
        face = style.face if self.dice.chance(0.6) else self.page.head
        text = self.fitting(lambda most: self.strings.fresh(label, min(most, 22)), width, size, cut, face)
        height = self.page.px(size * 1.5)
        self.page.write(x, y + height / 2, text, size, cut=cut, fill=style.key_fill, anchor="lm", face=face)
        if self.dice.chance(0.3):
            self.page.rule(x, y + height, x + width, y + height, style.line)
            height += self.page.px(4)
        return text, y + height

    # Questions

    def begin(self) -> None:
        """What is asked from here on is of a new block."""
        self.blocks.append(0.0)

    def ask(self, template: str, answer: str, box: Box, kind: str, *names: str) -> None:
        """Note a question, unless it or its answer is too long or it has been noted before."""
        if len(answer) > LONGEST_ANSWER or sum(map(len, names)) > LONGEST_NAMES:
            return
        text = template.format(*names)
        found = Candidate(text, answer, box, kind, len(self.blocks) - 1, names)
        self.found.setdefault(text.casefold(), found)

    def spoken(self, name: str) -> str:
        """A label as a question has it: as printed, or in other case."""
        way = self.dice.random()
        if way < 0.6:
            return name
        return name.lower() if way < 0.9 else name.upper() if way < 0.95 else name.capitalize()

    def ask_any(self, templates: tuple[str, ...], answer: str, box: Box, kind: str, *names: str) -> None:
        """Ask in one of some forms."""
        self.ask(self.dice.choice(templates), answer, box, kind, *(self.spoken(name) for name in names))


Block = Callable[[Sheet, float, float, float, float], float | None]
