"""Letters: a sender, an address, references, a subject, paragraphs that state facts, a signature.

The facts in the paragraphs are the target, the address, date, subject and references are secondary, letterhead, foot
and stamps are the periphery. The held-out arrangement is a fax in typewriter type.
"""

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, flow, furniture
from homunculus.data.documents.blocks import Field
from homunculus.data.documents.facts import Known, letter_facts
from homunculus.data.documents.furniture import ask_any
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import Words, different

_SALUTATIONS = ("Dear {},", "Dear Ms {},", "Dear Mr {},", "Dear Dr {},", "Good day {},")
_HELD_OUT_SALUTATIONS = ("Esteemed {},", "Honoured {},")
_CLOSINGS = ("Yours sincerely,", "Yours faithfully,", "Kind regards,", "With best wishes,", "Yours truly,")
_HELD_OUT_CLOSINGS = ("Cordially,", "Respectfully,", "Warmly,")
_REFERENCES = (
    ("Our ref.", 'reference marked "Our ref."'), ("Your ref.", 'reference marked "Your ref."'),
    ("Case no.", "case number"), ("Member no.", "member number"), ("File", "file"), ("Policy", "policy number"),
)  # fmt: skip


def business(page: Page, words: Words, dice: Dice) -> None:
    """A letterhead, the address in its window, a line of references, the subject in bold."""
    found, y = furniture.letterhead(page, words, dice)
    furniture.ask(page, dice, found)
    left, width, size = page.px(84), page.size[0] - 2 * page.px(84), dice.choice((16, 17, 18))
    name = words.person(dice)
    y = _address(page, words, dice, left, y + page.px(34), size, name)
    fields = [Field(key, words.code(dice), noun) for key, noun in dice.sample(_REFERENCES, dice.integer(1, 2))]
    fields.append(Field("Date", words.date(dice), "date of the letter"))
    step = width // len(fields)
    for place, field in enumerate(fields):
        x = left + place * step
        page.write(x, y + page.px(20), field.key, 14, fill=page.faint)
        box = page.write(x, y + page.px(40), field.value, page.fit(field.value, step - page.px(8), size))
        blocks.ask_key(page, dice, field.noun, field.value, box, "secondary")
    y = _subject(page, words, dice, left, y + page.px(92), width, size)
    y = _body(page, words, dice, left, y, width, size, name, justify=dice.chance(0.4))
    signed = left if dice.chance(0.7) else page.size[0] * 11 // 20
    _close(page, words, dice, signed, y, size, left, words.person(dice))
    furniture.adorn(page, words, dice, head=False, spot=(page.size[0] - page.px(180), page.px(236)))


def official(page: Page, words: Words, dice: Dice) -> None:
    """The sender's name over a rule, the references in a column at the right, the address at the left, dense text."""
    left, width, size = page.px(90), page.size[0] - 2 * page.px(90), dice.choice((15, 16, 17))
    right, column = left + width, left + width * 5 // 8
    sender, top = words.company(dice), page.px(84)
    furniture.logo(page, right - page.px(60), top - page.px(10), 60, dice, sender[0])
    large = page.fit(sender, width * 0.8, 24, cut="bold", face=page.head)
    page.write(left, top, sender, large, cut="bold", face=page.head)
    page.write(left, top + page.px(34), words.department(dice), 16, fill=page.faint)
    page.rule(left, top + page.px(64), right, top + page.px(64), page.accent, 2)
    fields = [Field(key, words.code(dice), noun) for key, noun in dice.sample(_REFERENCES, 3)]
    fields.append(Field("Handled by", words.person(dice), "person handling the matter"))
    fields.append(Field("Date", words.date(dice), "date of the letter"))
    boxes, below = blocks.pairs(page, column, top + page.px(84), right - column, fields, "above", 15, leading=1.5)
    blocks.ask_fields(page, dice, fields, boxes, "secondary")
    name = words.person(dice)
    y = _address(page, words, dice, left, top + page.px(100), size, name)
    y = _subject(page, words, dice, left, max(below, y) + page.px(18), width, size)
    y = _body(page, words, dice, left, y, width, size, name, justify=True)
    _close(page, words, dice, left, y, size, left, words.person(dice))
    furniture.adorn(page, words, dice, spot=(right - page.px(170), y + page.px(80)))


def personal(page: Page, words: Words, dice: Dice) -> None:
    """The sender's address at the top right, the date under it, indented paragraphs."""
    side, size = page.px(104), dice.choice((17, 18, 19))
    width, right = page.size[0] - 2 * side, page.size[0] - side
    name, sender = words.person(dice), words.person(dice)
    street, town = words.street(dice), f"{words.postcode(dice)} {words.town(dice)}"
    phone, date = words.phone(dice), words.date(dice)
    boxes, y = blocks.lines(page, right, page.px(76), (sender, street, town, phone), size, anchor="ra")
    wordings = ("Which phone number stands at the top of the letter?", "What is the sender's phone number?")
    ask_any(page, dice, wordings, phone, [boxes[3]], "periphery", "place")
    wordings = ("In which street does the sender live?", "What is the sender's street and number?")
    ask_any(page, dice, wordings, street, [boxes[1]], "periphery", "key")
    box = page.write(right, y + page.px(14), date, size, anchor="ra")
    wordings = ("What is the date of the letter?", "When was the letter written?")
    ask_any(page, dice, wordings, date, [box], "secondary", "key")
    y = _address(page, words, dice, side, y + page.px(30), size, name)
    y = _subject(page, words, dice, side, y + page.px(26), width, size)
    y = _body(page, words, dice, side, y, width, size, name, indent=30)
    _close(page, words, dice, page.size[0] // 2, y, size, side, sender)
    furniture.ask(page, dice, furniture.footer(page, words, dice))


def fax(page: Page, words: Words, dice: Dice) -> None:
    """A fax: a line of the machine at the top, a ruled block of keys, typewriter type."""
    page.face = page.mono
    left, width, size = page.px(60), page.size[0] - 2 * page.px(60), 16
    right = left + width
    printed = {
        "date": words.date(dice), "time": words.time(dice), "phone number": words.phone(dice),
        "page number": f"P.{dice.integer(10, 480)}",
    }  # fmt: skip
    for place, (kind, text) in zip((0, 30, 48, 85), printed.items(), strict=True):
        box = page.write(left + width * place // 100, page.px(34), text, 14, anchor="ls")
        wordings = (f"What {kind} did the fax machine print?", f"Which {kind} stands in the top line of the fax?")
        ask_any(page, dice, wordings, text, [box], "periphery", "place")
    page.panel(left, page.px(60), right, page.px(112), page.ink)
    page.write(left + page.px(16), page.px(86), "TELEFAX", 32, anchor="lm", fill=page.paper)
    name, sender = words.person(dice), words.person(dice)
    fields = [
        Field("ADDRESSEE", name, "addressee"), Field("SENDER", sender, "sender"),
        Field("MACHINE", words.phone(dice), "number of the receiving machine"),
        Field("DOSSIER", words.code(dice), "dossier"), Field("CONCERNING", words.heading(dice), "matter concerned"),
    ]  # fmt: skip
    boxes, y = blocks.pairs(page, left, page.px(126), width, fields, "grid", size, leading=2.0, share=0.26)
    blocks.ask_fields(page, dice, fields, boxes, "secondary")
    y = _body(page, words, dice, left, y + page.px(22), width, size, name)
    _close(page, words, dice, left, y, size, left, sender)
    code = words.code(dice)
    box = page.write(right, page.size[1] - page.px(30), code, 14, anchor="rs")
    furniture.ask(page, dice, {"footer code": (code, box)})


ARRANGEMENTS = (business, official, personal)
HELD_OUT = (fax,)


def _address(page: Page, words: Words, dice: Dice, x: int, y: int, size: float, name: str) -> int:
    """The address of the one written to, and a question about it: the y below."""
    street, town = words.street(dice), f"{words.postcode(dice)} {words.town(dice)}"
    lines = [name, street, town, *([words.country(dice)] if dice.chance(0.4) else [])]
    boxes, below = blocks.lines(page, x, y, lines, size)
    name_of = ("To whom is the letter addressed?", "Who is the addressee of the letter?")
    street_of = ("To which street is the letter addressed?", "What street and number is the letter sent to?")
    which = dice.integer(0, 1)
    ask_any(page, dice, (name_of, street_of)[which], lines[which], [boxes[which]], "secondary", "key")
    return below


def _subject(page: Page, words: Words, dice: Dice, x: int, y: int, width: int, size: float) -> int:
    prefix = dice.choice(("", "Re: ", "Subject: ", "Concerning: "))
    text = f"{words.heading(dice)}, {words.heading(dice).lower()}" if dice.chance(0.6) else words.heading(dice)
    start = page.length(prefix, size + 1, cut="bold") if prefix else 0
    if prefix:
        page.write(x, y, prefix.strip(), size + 1, cut="bold")
    box = page.write(x + start, y, text, page.fit(text, width - start, size + 1, cut="bold"), cut="bold")
    wordings = ("What is the subject of the letter?", "What does the subject line say?")
    ask_any(page, dice, wordings, text, [box], "secondary", "key")
    return y + page.px((size + 1) * 2.3)


def _body(
    page: Page, words: Words, dice: Dice, x: int, y: int, width: int, size: float, name: str, *,
    justify: bool = False, indent: float = 0,
) -> int:  # fmt: skip
    """A salutation and paragraphs, each with a fact, as many as there is room for: the y below."""
    salutation = dice.choice(_HELD_OUT_SALUTATIONS if words.held_out else _SALUTATIONS)
    page.write(x, y, salutation.format(name.split()[-1]), size)
    y += page.px(size * 2.1)
    bottom = page.size[1] - page.px(250)  # the closing goes below
    for place, known in enumerate(letter_facts(page, words, dice, 10)):
        text = _paragraph(words, dice, known)
        lines = flow.count(page, width, text, size, indent=indent)
        if place >= 2 and y + lines * page.px(size * 1.36) > bottom:
            break
        flowed = flow.paragraph(page, x, y, width, text, size, justify=justify, indent=indent)
        ask_any(page, dice, known.wordings, known.value, flowed.spans[0][1], "target", "sentence")
        y = flowed.below + (0 if indent else page.px(size * 0.65))
    return y


def _paragraph(words: Words, dice: Dice, known: Known) -> str:
    before, after = words.text(dice, dice.integer(0, 2)), words.text(dice, dice.integer(0, 2))
    return f"{before} {known.sentence} {after}".strip()


def _close(page: Page, words: Words, dice: Dice, x: int, y: int, size: float, left: int, name: str) -> None:
    """The closing, a signature and who signs at x, and what is enclosed at the left."""
    y += page.px(8)
    page.write(x, y, dice.choice(_HELD_OUT_CLOSINGS if words.held_out else _CLOSINGS), size)
    furniture.signature(page, x + page.px(6), y + page.px(80), dice.integer(150, 220), dice)
    box = page.write(x, y + page.px(98), name, size)
    page.write(x, y + page.px(98 + size * 1.35), words.job(dice), size - 2, fill=page.faint)
    wordings = ("Who signed the letter?", "What name stands under the signature?")
    ask_any(page, dice, wordings, name, [box], "secondary", "place")
    if y + page.px(190) < page.size[1] - page.px(60):
        text = ", ".join(different(lambda: f"{words.noun(dice)} {words.code(dice)}", dice.integer(1, 2)))
        prefix, row = dice.choice(("Encl.: ", "Enclosures: ", "Enc. ")), y + page.px(158)
        page.write(left, row, prefix.strip(), 14)
        start = left + page.length(prefix, 14)
        box = page.write(start, row, text, page.fit(text, page.size[0] - start - left, 14))
        wordings = ("What is enclosed with the letter?", "Which enclosures are listed?")
        ask_any(page, dice, wordings, text, [box], "secondary", "key")
