"""Forms that somebody has filled in: boxes with captions, ruled lines, comb fields, ticked boxes, a signature.

The first section is the target, the others are secondary; the form's number, the foot, the margin and the corner for
the office are the periphery.
"""

from collections.abc import Sequence

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, filling, furniture
from homunculus.data.documents.blocks import WHITE, Field
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import DATE_SHAPES, Words
from homunculus.data.record import Box, Region

_TITLES = (
    "Application for a parking permit", "Registration of a new patient", "Request for annual leave", "Absence notice",
    "Change of address", "Membership application", "Report of an accident", "Request for a refund", "Loan of equipment",
    "Application for a grant", "Travel expense claim", "Enrolment in a course", "Visitor registration",
    "Claim for damages",
)  # fmt: skip
_HELD_OUT_TITLES = (
    "Declaration of goods",
    "Mooring licence",
    "Adoption enquiry",
    "Tender of interest",
    "Rental of an allotment",
    "Nomination of a trustee",
)
# What a question calls a field, the caption, the maker of its value, and how many of six columns it needs.
_PERSON = (
    ("surname", "Surname", "surname", 3),
    ("first name", "First name", "first_name", 3),
    ("date of birth", "Date of birth", "birth", 2),
    ("place of birth", "Place of birth", "town", 2),
    ("country of birth", "Country of birth", "country", 2),
    ("street", "Street and number", "street", 4),
    ("postcode", "Postcode", "postcode", 2),
    ("town of residence", "Town of residence", "town", 3),
    ("telephone number", "Telephone", "phone", 3),
    ("passport number", "Passport no.", "code", 2),
    ("e-mail address", "E-mail", "email", 6),
    ("occupation", "Occupation", "job", 2),
    ("licence number", "Licence no.", "code", 2),
    ("insurance number", "Insurance no.", "code", 2),
)
_MATTER = (
    ("employer", "Employer", "company", 4),
    ("department", "Department", "department", 2),
    ("supervisor", "Supervisor", "person", 3),
    ("starting date", "Starting on", "date", 2),
    ("end date", "Ending on", "date", 2),
    ("bank account", "Bank account", "iban", 4),
    ("amount claimed", "Amount claimed", "amount", 2),
    ("reference number", "Reference no.", "code", 2),
    ("vehicle registration", "Vehicle reg.", "plate", 2),
    ("doctor", "Family doctor", "person", 3),
    ("witness", "Witness", "person", 3),
    ("site code", "Site code", "code", 2),
    ("appointment time", "Appointment at", "time", 2),
    ("item concerned", "Item concerned", "product", 3),
)
_SECTIONS = ("Applicant", "Personal details", "Your details", "About you")
_MATTERS = ("Details of the request", "Your request", "Further details", "Employment and payment")


def boxes(page: Page, words: Words, dice: Dice) -> None:
    """Rows of boxes with small captions, sections under bars of colour, options to tick, a corner for the office."""
    hand, left, right = filling.hand_of(page, dice), page.px(56), page.size[0] - page.px(56)
    y = _title(page, words, dice, left, right)
    shape = dice.integer(0, DATE_SHAPES - 1)
    names = dice.choice(_SECTIONS), dice.choice(_MATTERS)
    rows = 4 if page.height < 1200 else 6
    plans: tuple[tuple[Sequence, Region], ...] = ((_PERSON, "target"), (_MATTER, "secondary"))
    for number, ((pool, region), name) in enumerate(zip(plans, names, strict=True), 1):
        y = _bar(page, left, right, y, f"{number}  {name}")
        for row in _fill_rows(pool, dice, rows if region == "target" else rows - 1):
            x, height = float(left), page.px(54)
            for field, columns in _values(row, words, dice, shape):
                width = (right - left) * columns / sum(item[3] for item in row)
                page.panel(x, y, x + width, y + height, edge=page.faint)
                page.write(x + page.px(7), y + page.px(5), field.key, 12, fill=page.faint)
                box = filling.enter(page, hand, x + page.px(12), y + page.px(47), field.value, width - page.px(22))
                _ask(page, dice, field, box, region, name)
                x += width
            y += height
        y += page.px(16)
    y = _bar(page, left, right, y, f"3  {dice.choice(('Please tick', 'Options', 'Choose one in each row'))}")
    y = filling.options_to_tick(page, words, dice, hand, left, right, y + page.px(8))
    y = filling.remarks(page, words, dice, hand, left, right, y + page.px(8))
    filling.office_corner(page, words, dice, right - page.px(330), y + page.px(10), page.px(330))
    filling.sign(page, words, dice, hand, left, y + page.px(70), shape)
    _foot(page, words, dice, left, right)


def lined(page: Page, words: Words, dice: Dice) -> None:
    """Labels with ruled lines after them, filled in by hand, two columns of options, a signature."""
    hand, left, right = filling.hand_of(page, dice), page.px(76), page.size[0] - page.px(76)
    y = _title(page, words, dice, left, right, centred=True)
    shape = dice.integer(0, DATE_SHAPES - 1)
    intro, y = page.paragraph(left, y, right - left, words.text(dice, 2), 15, leading=1.35, fill=page.faint)
    blocks.ask_place(page, dice, "in the first line under the title", *intro[0], "periphery")
    y += page.px(18)
    step = page.px(dice.choice((42, 44, 46)))
    sections: tuple[tuple[Sequence, Region, str], ...] = (
        (_PERSON, "target", dice.choice(_SECTIONS)),
        (_MATTER, "secondary", dice.choice(_MATTERS)),
    )
    for pool, region, name in sections:
        page.write(left, y, name, 20, cut="bold", face=page.head, fill=page.accent)
        y += page.px(34)
        for row in _fill_rows(pool, dice, 4 if region == "target" else 3, wide=True):
            x = float(left)
            for field, columns in _values(row, words, dice, shape):
                width = (right - left) * columns / sum(item[3] for item in row)
                label = f"{field.key}:"
                size = page.fit(label, width * 0.48, 16)
                page.write(x, y + page.px(27), label, size, anchor="ls")
                start = x + page.length(label, size) + page.px(8)
                page.rule(start, y + page.px(32), x + width - page.px(16), y + page.px(32), page.faint)
                box = filling.enter(page, hand, start + page.px(8), y + page.px(28), field.value, x + width - start
                             - page.px(26))  # fmt: skip
                _ask(page, dice, field, box, region, name)
                x += width
            y += step
        y += page.px(14)
    y = filling.options_to_tick(page, words, dice, hand, left, right, y)
    y = filling.remarks(page, words, dice, hand, left, right, y + page.px(8))
    filling.sign(page, words, dice, hand, left, y + page.px(64), shape)
    _foot(page, words, dice, left, right)


def combs(page: Page, words: Words, dice: Dice) -> None:
    """A letter to a cell, in capitals, as forms that a machine reads; a number and a barcode at the top."""
    hand, left, right = filling.hand_of(page, dice, upright=True), page.px(60), page.size[0] - page.px(60)
    y = _title(page, words, dice, left, right)
    plain = {"surname", "first_name", "town", "country", "job"}
    person = [item for item in _PERSON if item[2] in plain]
    pools: tuple[tuple[Sequence, Region, str], ...] = (
        ([*dice.sample(person, 4), ("insurance number", "Insurance number", "digits", 0),
          ("date of birth", "Date of birth (DDMMYYYY)", "day", 0)], "target", dice.choice(_SECTIONS)),
        ([("account number", "Account number", "digits", 0), ("policy number", "Policy number", "mixed", 0),
          ("witness's surname", "Surname of the witness", "surname", 0)], "secondary", dice.choice(_MATTERS)),
    )  # fmt: skip
    for pool, region, name in pools:
        y = _bar(page, left, right, y, name) + page.px(10)
        for noun, caption, make, _ in dice.shuffled(pool):
            value = {
                "digits": lambda: words.number(dice, 10),
                "mixed": lambda: words.pattern(dice, "AA9*9*99A"),
                "day": lambda: f"{dice.integer(1, 28):02}{dice.integer(1, 12):02}{dice.integer(1930, 2009)}",
            }.get(make, lambda make=make: getattr(words, make)(dice).upper())()
            page.write(left, y + page.px(20), caption, page.fit(caption, page.px(230), 16), anchor="lm")
            box = filling.comb(page, hand, left + page.px(240), y, value, max(len(value), dice.integer(12, 18)))
            _ask(page, dice, Field(caption, value, noun), box, region, name)
            y += page.px(50)
        y += page.px(12)
    y = filling.options_to_tick(page, words, dice, hand, left, right, y)
    y = filling.remarks(page, words, dice, hand, left, right, y + page.px(8))
    filling.office_corner(page, words, dice, right - page.px(330), y + page.px(8), page.px(330))
    filling.sign(page, words, dice, hand, left, y + page.px(66), dice.integer(0, DATE_SHAPES - 1))
    _foot(page, words, dice, left, right)


def questionnaire(page: Page, words: Words, dice: Dice) -> None:
    """Numbered questions at the left and answers in a tinted column at the right, ticks in a strip below. Held out."""
    hand, left, right = filling.hand_of(page, dice), page.px(48), page.size[0] - page.px(48)
    page.panel(0, 0, page.px(18), page.size[1], page.accent)
    title = dice.choice(_HELD_OUT_TITLES)
    page.write(left, page.px(44), title, page.fit(title, page.px(620), 36, face=page.head), face=page.head)
    code = words.code(dice)
    box = page.write(right, page.px(50), code, 18, anchor="ra", face=page.mono)
    blocks.ask_place(page, dice, "at the top right", code, box, "periphery")
    split, y, step = left + (right - left) * 0.5, page.px(112), page.px(48)
    shape = dice.integer(0, DATE_SHAPES - 1)
    chosen = dice.sample(_PERSON, 7) + dice.sample(_MATTER, 5)
    page.panel(split, y, right, y + step * len(chosen), page.tint)
    for number, item in enumerate(chosen, 1):
        region: Region = "target" if item in _PERSON else "secondary"
        ((field, _),) = _values([item], words, dice, shape)
        asked = f"{number}. {dice.choice(('State the', 'What is the', 'Give the', 'Enter the'))} {field.noun}"
        page.rule(left, y + step, right, y + step, page.faint)
        page.write(left, y + page.px(33), asked, page.fit(asked, split - left - page.px(14), 17), anchor="ls")
        box = filling.enter(page, hand, split + page.px(14), y + page.px(33), field.value, right - split - page.px(28))
        if dice.chance(0.4):
            page.ask(f"What was answered to question {number}?", field.value, [box], region, "place")
        else:
            blocks.ask_key(page, dice, field.noun, field.value, box, region)
        y += step
    y = filling.options_to_tick(page, words, dice, hand, left, right, y + page.px(18))
    y = filling.remarks(page, words, dice, hand, left, right, y + page.px(8))
    filling.sign(page, words, dice, hand, left, y + page.px(70), shape)
    _foot(page, words, dice, left, right)


ARRANGEMENTS = (boxes, lined, combs)
HELD_OUT = (questionnaire,)


def _ask(page: Page, dice: Dice, field: Field, box: Box, region: Region, section: str) -> None:
    if dice.chance(0.3):
        blocks.ask_section(page, dice, field.noun, f'the section "{section}"', field.value, box, region)
    else:
        blocks.ask_key(page, dice, field.noun, field.value, box, region)


def _fill_rows(pool: Sequence, dice: Dice, rows: int, wide: bool = False) -> list[list]:
    """Fields of a pool, each once, set in rows of two or three (of one or two if `wide`)."""
    left, plan = dice.shuffled(pool), []
    for _ in range(rows):
        row: list = []
        while left and sum(item[3] for item in row) + left[0][3] <= 6 and len(row) < (2 if wide else 3):
            row.append(left.pop(0))
        plan.append(row)
    return plan


def _values(row: Sequence, words: Words, dice: Dice, shape: int) -> list[tuple[Field, int]]:
    """The fields of a row filled in, each with its share of the row."""
    special = {
        "birth": lambda: words.date(dice, shape, dice.integer(1930, 2009)),
        "date": lambda: words.date(dice, shape),
        "amount": lambda: words.amount(dice, low=20),
        "plate": lambda: words.pattern(dice, "AA-99 AAA"),
    }
    return [
        (Field(caption, special[make]() if make in special else getattr(words, make)(dice), noun), columns)
        for noun, caption, make, columns in row
    ]


def _title(page: Page, words: Words, dice: Dice, left: int, right: int, centred: bool = False) -> int:
    """Name and number of the form and of who issues it; the y below."""
    title, issuer, code = dice.choice(_TITLES), words.company(dice), words.code(dice)
    number = f"{dice.choice(('Form', 'Form no.', 'Ref.'))} "
    small = dice.choice((13, 14))
    boxes_ = (
        page.write(left, page.px(36), issuer, page.fit(issuer, page.px(480), 16)),
        page.write(right, page.px(36), code, small, anchor="ra"),
    )
    page.write(right - page.length(code, small), page.px(36), number, small, anchor="ra", fill=page.faint)
    blocks.ask_key(page, dice, "form number", code, boxes_[1], "periphery", "Which number does the form carry?",
                   "What is the number of the form, at the top right?")  # fmt: skip
    blocks.ask_place(page, dice, "at the top left", issuer, boxes_[0], "periphery")
    size = page.fit(title, right - left, dice.choice((30, 34)), cut="bold", face=page.head)
    at, anchor = ((left + right) / 2, "ma") if centred else (left, "la")
    page.write(at, page.px(66), title, size, cut="bold", anchor=anchor, face=page.head)
    return page.px(124)


def _bar(page: Page, left: int, right: int, y: int, text: str) -> int:
    """The heading of a section; the y below."""
    height = page.px(30)
    page.panel(left, y, right, y + height, page.accent)
    page.write(left + page.px(10), y + height / 2, text, 17, cut="bold", fill=WHITE, anchor="lm")
    return y + height


def _foot(page: Page, words: Words, dice: Dice, left: int, right: int) -> None:
    if dice.chance(0.3):
        furniture.margin_marks(page, dice)
    texts = dice.choice(
        ((words.code(dice), f"Page {dice.integer(1, 90)} of {dice.integer(91, 240)}"),
         (words.domain(dice), f"{dice.integer(1, 90)}/{dice.integer(91, 240)}", words.code(dice)),
         (words.phone(dice), words.email(dice), f"Rev. {words.date(dice)}"))
    )  # fmt: skip
    found = blocks.spread(page, left, right, page.size[1] - page.px(30), texts, 13)
    blocks.ask_spread(page, dice, "footer", texts, found)
