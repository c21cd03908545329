"""Columns that text, headings, formulas and lists flow through from left to right until the page is full."""

from collections.abc import Mapping
from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.documents import flow, formulas
from homunculus.data.documents.equations import Equation, equation
from homunculus.data.documents.flow import Span
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import Words
from homunculus.data.record import Box


@dataclass
class Columns:
    """Where on a page the next line goes. Tops and bottoms are pixels, one for each column; sizes are design pixels."""

    page: Page
    lefts: tuple[int, ...]
    width: int
    tops: list[int]
    bottoms: list[int]
    size: float
    signs: formulas.Signs
    leading: float = 1.3
    justify: bool = True
    at: int = 0
    full: bool = False

    def __post_init__(self) -> None:
        self.y = self.tops[0]

    @property
    def step(self) -> int:
        return self.page.px(self.size * self.leading)

    @property
    def left(self) -> int:
        return self.lefts[self.at]

    def lines(self) -> int:
        """How many lines of text still fit in this column."""
        return max(0, (self.bottoms[self.at] - self.y) // self.step)

    def turn(self) -> None:
        """On to the next column, or to the end."""
        if self.at + 1 < len(self.lefts):
            self.at += 1
            self.y = self.tops[self.at]
        else:
            self.full = True

    def text(self, content: str, indent: float = 0, inline: Mapping[str, formulas.Piece] | None = None) -> list[Span]:
        """Set a text, into the next column where this one ends; what the page has no room for is left out."""
        spans: list[Span] = []
        while content and not self.full:
            if not self.lines():
                self.turn()
                continue
            flowed = flow.paragraph(
                self.page, self.left, self.y, self.width, content, self.size, leading=self.leading,
                justify=self.justify, indent=indent, limit=self.lines(), inline=inline,
            )  # fmt: skip
            spans += flowed.spans
            self.y, content, indent = flowed.below, flowed.rest, 0
        return spans

    def reserve(self, lines: int, words: Words, dice: Dice) -> bool:
        """Make sure that so many lines fit, filling up the column with text if not; False when the page is full."""
        while not self.full and self.lines() < lines:
            self.text(words.text(dice, self.lines() // 2 + 2), indent=14)
        return not self.full

    def heading(self, text: str, size: float) -> None:
        """A heading with room above, none at the top of a column."""
        if self.y > self.tops[self.at]:
            self.y += self.step // 2
        flowed = flow.paragraph(self.page, self.left, self.y, self.width, text, size, cut="bold", face=self.page.head)
        self.y = flowed.below + self.page.px(4)

    def display(self, words: Words, dice: Dice, number: int) -> bool:
        """A numbered formula in the middle of the column, and questions about it; False when the page is full."""
        page, type_ = self.page, formulas.Type(self.signs, self.page.px(self.size * 1.12))
        room = self.width - page.px(60)
        tried = ((found, found.formula(type_)) for found in (equation(dice) for _ in range(40)))
        found, piece = next((found, piece) for found, piece in tried if piece.width <= room)
        gap = page.px(9)
        height = piece.box[3] - piece.box[1] + 2 * gap
        if not self.reserve(-(-height // self.step) + 1, words, dice):
            return False
        baseline = self.y + gap - piece.box[1]
        parts = formulas.draw(page, self.left + (self.width - piece.width) // 2, baseline, piece)
        middle = baseline - type_.axis
        page.write(self.left + self.width, middle, f"({number})", self.size, anchor="rm")
        self.y += height
        self._ask(dice, found, parts, number)
        return True

    def _ask(self, dice: Dice, found: Equation, parts: dict[str, tuple[str, Box]], number: int) -> None:
        for name in dice.sample(tuple(found.asked), 2):
            plain, box = parts[name]
            text = dice.choice(found.asked[name]).replace("@", f"({number})")
            answers = (plain,) if " " not in plain else (plain, plain.replace(" ", ""))
            self.page.ask(text, answers, [box], "target", "formula")
