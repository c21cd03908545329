"""What stands round the text of a page: letterheads, running headers, footers, and questions about all of it.

Every text drawn comes back with its box, by name, and `ask` has wordings for each name: the periphery of a document is
furniture. `adorn` adds a random selection. Logos, stamps, signatures and barcodes are in `marks`, and named here too.
"""

from collections.abc import Sequence

from homunculus.data.dice import Dice
from homunculus.data.documents.marks import (
    Piece,
    barcode,
    barcode_width,
    logo,
    margin_marks,
    sideways,
    signature,
    stamp,
)  # fmt: skip
from homunculus.data.documents.page import Cut, Page
from homunculus.data.documents.words import Words
from homunculus.data.record import Box, Region

__all__ = [
    "MARGIN", "Piece", "adorn", "ask", "ask_any", "barcode", "barcode_width", "footer", "header", "letterhead", "logo",
    "margin_marks", "sideways", "signature", "stamp",
]  # fmt: skip

MARGIN = 64  # design pixels at each edge that belong to furniture

# Heads and feet


def letterhead(page: Page, words: Words, dice: Dice, name: str = "") -> tuple[dict[str, Piece], int]:
    """Logo, firm and how to reach it at the top of the page: the texts by name, and the y below."""
    name = name or words.company(dice)
    ending = words.domain(dice).partition(".")[2]
    site = "".join(letter for letter in "".join(name.split()[:2]).lower() if letter.isalnum()) + "." + ending
    facts = {"phone": words.phone(dice), "site": site}
    facts = {fact: facts[fact] for fact in dice.shuffled(("phone", "site"))}
    address = f"{words.street(dice)}, {words.postcode(dice)} {words.town(dice)}"
    initials = "".join(part[0] for part in name.split()[:2])
    width, side, top = page.size[0], page.px(MARGIN), page.px(30)
    found: dict[str, Piece] = {}
    shape = dice.choice(("left", "centred", "band"))
    if shape == "band":
        deep = page.px(92)
        page.pen.rectangle((0, 0, width, deep), fill=page.accent)
        white = (250, 250, 250)
        size = page.fit(name, width * 0.5, 30, cut="bold", face=page.head)
        found["name"] = (
            name,
            page.write(side, deep // 2, name, size, cut="bold", fill=white, anchor="lm", face=page.head),
        )
        for row, (fact, text) in enumerate({"address": address, **facts}.items()):
            y = page.px(24 + 22 * row)
            found[fact] = text, page.write(width - side, y, text, 14, fill=white, anchor="rm")
        return found, deep
    if shape == "centred":
        middle = width // 2
        logo(page, middle - page.px(24), page.px(20), 48, dice, initials)
        size = page.fit(name, width * 0.7, 28, cut="bold", face=page.head)
        found["name"] = name, page.write(middle, page.px(76), name, size, cut="bold", anchor="ma", face=page.head)
        line = "   ".join((address, *facts.values()))
        size = page.fit(line, width - 2 * side, 15)
        found |= _line(
            page, middle - page.length(line, size) / 2, page.px(114), size, "   ", {"address": address, **facts}
        )
        bottom = page.px(138)
    else:
        logo(page, side, top, 64, dice, initials)
        size = page.fit(name, width * 0.5, 30, cut="bold", face=page.head)
        x = side + page.px(80)
        found["name"] = name, page.write(x, top, name, size, cut="bold", face=page.head, fill=page.accent)
        found["address"] = address, page.write(x, top + page.px(42), address, 15, fill=page.faint)
        for row, (fact, text) in enumerate(facts.items()):
            y = top + page.px(6 + 24 * row)
            found[fact] = text, page.write(width - side, y, text, 15, fill=page.faint, anchor="ra")
        bottom = top + page.px(78)
    if dice.chance(0.7):
        page.pen.line(
            (side, bottom, width - side, bottom), fill=page.accent, width=max(1, page.px(dice.choice((1, 2, 4))))
        )
    return found, bottom + page.px(6)


def _line(page: Page, x: float, y: int, size: float, gap: str, facts: dict[str, str]) -> dict[str, Piece]:
    """Several facts on one line with a gap between them."""
    found = {}
    for fact, text in facts.items():
        found[fact] = text, page.write(x, y, text, size, fill=page.faint)
        x += page.length(text + gap, size)
    return found


def header(page: Page, words: Words, dice: Dice) -> dict[str, Piece]:
    """A running header in the top margin: a title, and a code or a date across from it."""
    width, side, y = page.size[0], page.px(MARGIN), page.px(34)
    fact, value = dice.choice((("header code", words.code(dice)), ("header date", words.date(dice))))
    title = words.heading(dice)
    texts = [("header title", title), (fact, value)]
    (left, text), (right, other) = texts if dice.chance(0.6) else texts[::-1]
    size = dice.choice((13, 14, 15))
    cut: Cut = dice.choice(("regular", "regular", "italic"))
    found = {left: (text, page.write(side, y, text, size, fill=page.faint, anchor="ls", cut=cut))}
    found[right] = other, page.write(width - side, y, other, size, fill=page.faint, anchor="rs", cut=cut)
    if dice.chance(0.6):
        page.pen.line((side, y + page.px(8), width - side, y + page.px(8)), fill=page.faint)
    return found


def footer(page: Page, words: Words, dice: Dice) -> dict[str, Piece]:
    """The foot of the page: its number, a code, and at times how to reach somebody."""
    width, height = page.size
    side, y, size = page.px(MARGIN), height - page.px(26), dice.choice((13, 14, 15))
    page_number, code = str(dice.integer(2, 480)), words.code(dice)
    found: dict[str, Piece] = {}
    before, after = dice.choice(
        (
            ("", ""),
            ("Page ", ""),
            ("- ", " -"),
            ("p. ", ""),
            ("Page ", f" of {dice.integer(481, 990)}"),
            ("", f" / {dice.integer(481, 990)}"),
        )
    )
    places = dice.shuffled((side, width // 2, width - side)) if dice.chance(0.5) else [width - side, side, width // 2]
    anchors = {side: "ls", width // 2: "ms", width - side: "rs"}

    def put(place: int, prefix: str, text: str, suffix: str = "") -> Box:
        whole = page.length(prefix + text + suffix, size)
        x = place - {"ls": 0, "ms": whole / 2, "rs": whole}[anchors[place]]
        if prefix:
            page.write(x, y, prefix.rstrip(), size, fill=page.faint, anchor="ls")
        box = page.write(x + page.length(prefix, size), y, text, size, fill=page.faint, anchor="ls")
        if suffix:
            page.write(
                x + page.length(prefix + text + " ", size), y, suffix.lstrip(), size, fill=page.faint, anchor="ls"
            )
        return box

    found["page"] = page_number, put(places[0], before, page_number, after)
    found["footer code"] = code, put(places[1], dice.choice(("", "Form ", "Doc. ", "Ref. ")), code)
    if dice.chance(0.6):
        fact, text = dice.choice(
            (
                ("footer phone", words.phone(dice)),
                ("footer date", words.date(dice)),
                ("footer email", words.email(dice)),
            )
        )
        found[fact] = text, put(places[2], "", text)
    if dice.chance(0.6):
        page.pen.line((side, y - page.px(22), width - side, y - page.px(22)), fill=page.faint)
    return found


# Questions

_WORDINGS = {
    "page": ("What is the page number?", "Which page is this?", "What number is printed as the page number?"),
    "footer code": ("What code is in the footer?", "Which code stands at the bottom of the page?",
                    "What is the document code in the footer?"),
    "footer phone": ("What phone number is in the footer?", "Which telephone number is at the foot of the page?"),
    "footer date": ("What date is in the footer?", "Which date is printed at the foot of the page?"),
    "footer email": ("What e-mail address is in the footer?", "Which e-mail address stands at the foot of the page?"),
    "header title": ("What is the title in the running header?", "What words are in the header line of the page?"),
    "header code": ("What code is in the header?", "Which code is printed in the top margin?"),
    "header date": ("What date is in the header?", "Which date is printed in the top margin?"),
    "margin": ("What code runs up the margin?", "Which code is printed sideways in the margin?"),
    "stamp date": ("What date is on the stamp?", "Which date does the stamp show?", "When was the page stamped?"),
    "stamp code": ("What code is on the stamp?", "Which number or code does the stamp show?"),
    "name": ("What organisation is named in the letterhead?", "Whose letterhead is this?"),
    "phone": ("What phone number is in the letterhead?", "Which telephone number stands at the top of the page?"),
    "site": ("What website is in the letterhead?", "Which web address is at the top of the page?"),
    "address": ("What address is in the letterhead?", "Which postal address stands at the top of the page?"),
    "barcode": ("What number is printed under the barcode?", "What are the digits of the barcode?"),
}  # fmt: skip


def ask_any(
    page: Page, dice: Dice, wordings: Sequence[str], answers: str | tuple[str, ...], boxes: Sequence[Box],
    region: Region, kind: str,
) -> None:  # fmt: skip
    """Ask for something in one of several wordings."""
    page.ask(dice.choice(wordings), answers, boxes, region, kind)


def ask(page: Page, dice: Dice, pieces: dict[str, Piece]) -> None:
    """Ask about pieces of furniture, each by the name under which its function returned it."""
    for name, (text, box) in pieces.items():
        if name in _WORDINGS:
            ask_any(page, dice, _WORDINGS[name], text, [box], "periphery", "place")


def adorn(page: Page, words: Words, dice: Dice, *, head: bool = True, spot: tuple[int, int] | None = None) -> None:
    """A random selection of furniture with its questions, a footer always among it.

    It keeps to the outer MARGIN design pixels; `head=False` leaves the top to the caller, and `spot` is the middle of a
    place of 200 by 200 design pixels, free or nearly so, where a stamp may fall.

    >>> page = Page((512, 512), "train", Dice("a page"))
    >>> adorn(page, Words("train"), Dice("furniture"))
    >>> {question.region for question in page.questions}
    {'periphery'}
    """
    found = footer(page, words, dice)
    if head and dice.chance(0.7):
        found |= header(page, words, dice)
    if dice.chance(0.25):
        margin_marks(page, dice)
    if dice.chance(0.3):
        text = words.code(dice)
        right = page.size[0] - page.px(30)
        found["margin"] = sideways(page, right, round(page.size[1] * dice.uniform(0.3, 0.7)), text)
    if spot is not None and dice.chance(0.5):
        found |= {f"stamp {name}": piece for name, piece in stamp(page, *spot, words, dice).items()}
    ask(page, dice, found)
