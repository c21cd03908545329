"""Pages of scientific papers: two justified columns, numbered sections and formulas, figures, footnotes, references.

Text and formulas are the target, figures, tables, captions and references are secondary, running heads, footnotes and
page numbers are the periphery. The held-out arrangement is one column with notes in a wide margin.
"""

from homunculus.data.dice import Dice
from homunculus.data.documents import floats, flow, formulas, furniture, science
from homunculus.data.documents.columns import Columns
from homunculus.data.documents.furniture import ask_any
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import Words, different
from homunculus.data.fonts import faces
from homunculus.data.record import Box

_INLINE = "\ue000"
_SECTION = (
    "What {of} is reported in Section {section}?", "In Section {section}, what is the {of}?",
    "What is the {of} according to Section {section}?", "Which {of} does Section {section} give?",
)  # fmt: skip


def first_page(page: Page, words: Words, dice: Dice) -> None:
    """Title, authors and abstract across the page, two columns below them."""
    size = _prepare(page, dice)
    side, width = page.px(dice.integer(66, 84)), page.size[0]
    y = page.px(76)
    for line in page.wrap(_title(words, dice), width - 3 * side, 30, cut="bold", face=page.head):
        page.write(width // 2, y, line, 30, cut="bold", anchor="ma", face=page.head)
        y += page.px(40)
    y = _authors(page, words, dice, width // 2, y + page.px(6)) + page.px(14)
    inner = side + page.px(60)
    page.write(width // 2, y, "Abstract", size, cut="bold", anchor="ma")
    fact = science.measured(words, dice)
    text = f"{words.sentence(dice)} {fact.sentence} {words.text(dice, 3)}"
    flowed = flow.paragraph(page, inner, y + page.px(24), width - 2 * inner, text, size - 1, justify=True)
    page.ask(f"What {fact.of} is stated in the abstract?", fact.answers, flowed.spans[0][1], "target", "section")
    columns = _columns(page, side, size, flowed.below + page.px(22), page.size[1] - page.px(70))
    _footnote(columns, 0, words, dice)
    if dice.chance(0.6):
        columns.tops[1] = floats.add(page, words, dice, columns.lefts[1], columns.tops[1], columns.width)
    _sections(columns, words, dice, 1, 0)
    code = words.pattern(dice, dice.choice(("AAAA:9999.99999", "99.9999/AAA.99999", "9999-9999/99/999999")))
    box = page.write(side, page.size[1] - page.px(30), code, 13, fill=page.faint, anchor="ls")
    wordings = ("Which identifier is printed at the bottom left of the page?", "What code is in the footer?")
    ask_any(page, dice, wordings, code, [box], "periphery", "place")
    if dice.chance(0.4):
        margin = f"{words.pattern(dice, 'AA-99/9999')}  {words.date(dice)}"
        text, box = furniture.sideways(page, page.px(18), page.px(330), margin, 20)
        page.ask("What is printed sideways in the margin?", text, [box], "periphery", "place")
    _page_number(page, dice, "bottom right")


def middle_page(page: Page, words: Words, dice: Dice) -> None:
    """Two columns under a running head, with figures or tables at their tops."""
    size = _prepare(page, dice)
    top, side = page.px(84), page.px(dice.integer(62, 80))
    _running_head(page, words, dice, side)
    columns = _columns(page, side, size, top, page.size[1] - page.px(66))
    where = dice.choice(("left", "right", "both", "across"))
    if where == "across":
        below = floats.add(page, words, dice, side, top, page.size[0] - 2 * side)
        columns.tops[:] = [below, below]
    for place in range(2):
        if where in ("both", ("left", "right")[place]):
            columns.tops[place] = floats.add(page, words, dice, columns.lefts[place], top, columns.width, place)
    columns.y = columns.tops[0]
    if dice.chance(0.7):
        _footnote(columns, dice.integer(0, 1), words, dice)
    _sections(columns, words, dice, dice.integer(2, 9), dice.integer(0, 4))


def last_page(page: Page, words: Words, dice: Dice) -> None:
    """Two columns that end with a list of references."""
    size = _prepare(page, dice)
    top, side = page.px(84), page.px(dice.integer(62, 80))
    _running_head(page, words, dice, side)
    columns = _columns(page, side, size, top, page.size[1] - page.px(66))
    if dice.chance(0.4):
        columns.tops[0] = columns.y = floats.add(page, words, dice, columns.lefts[0], top, columns.width)
    _references(columns, words, dice)
    _sections(columns, words, dice, dice.integer(3, 9), dice.integer(0, 4))


def wide_margin(page: Page, words: Words, dice: Dice) -> None:
    """One column at the left, notes and captions in a wide margin at the right, the page number at the outer edge."""
    size = _prepare(page, dice) + 1
    left, right = page.px(70), page.size[0] - page.px(48)
    gutter = round(page.size[0] * 0.66)
    note_left = gutter + page.px(28)
    page.panel(note_left - page.px(14), page.px(70), note_left - page.px(13), page.size[1] - page.px(70), page.faint)
    title = _title(words, dice)
    y = page.px(70)
    for line in page.wrap(title, gutter - left, 26, face=page.head):
        page.write(left, y, line, 26, face=page.head)
        y += page.px(34)
    columns = Columns(page, (left,), gutter - left, [y + page.px(14)], [page.size[1] - page.px(80)], size,
                      formulas.TEX, leading=1.42, justify=False)  # fmt: skip
    _notes(page, words, dice, note_left, page.px(76), right - note_left)
    top = page.size[1] * 58 // 100
    floats.add(page, words, dice, note_left, top, right - note_left)
    _sections(columns, words, dice, dice.integer(2, 9), dice.integer(0, 4))
    _page_number(page, dice, "top right")
    code = words.code(dice)
    box = page.write(left, page.size[1] - page.px(34), code, 14, fill=page.faint, anchor="ls")
    page.ask("Which code stands at the foot of the page?", code, [box], "periphery", "place")


ARRANGEMENTS = (first_page, middle_page, middle_page, last_page)
HELD_OUT = (wide_margin,)


def _prepare(page: Page, dice: Dice) -> float:
    """Serifs, and the size of the body type."""
    page.face = dice.choice(faces(page.split, "serif"))
    page.head = page.face if dice.chance(0.8) else dice.choice(faces(page.split, "sans"))
    page.accent = dice.choice((page.ink, page.accent))
    return dice.choice((15, 16, 17)) if page.face.name != "DejaVu Serif" else dice.choice((13, 14, 15))


def _columns(page: Page, side: int, size: float, top: int, bottom: int) -> Columns:
    gutter = page.px(28)
    width = (page.size[0] - 2 * side - gutter) // 2
    signs = formulas.TEX if page.split == "test-ood" else {"STIX": formulas.STIX}.get(page.face.name, formulas.DEJAVU)
    return Columns(page, (side, side + width + gutter), width, [top, top], [bottom, bottom], size, signs)


def _title(words: Words, dice: Dice) -> str:
    return dice.choice(("{}: {} revisited", "{} and the {}", "{} under {}", "{} for {}")).format(
        words.heading(dice), words.heading(dice).lower()
    )


def _authors(page: Page, words: Words, dice: Dice, middle: int, y: int) -> int:
    names = different(lambda: words.person(dice), dice.integer(2, 4))
    gap = page.px(26)
    size = 17.0
    total = sum(page.length(name, size) for name in names) + gap * (len(names) - 1)
    x = middle - total / 2
    boxes = []
    for name in names:
        boxes.append(page.write(x, y, name, size))
        x += page.length(name, size) + gap
    places = ("first", "second", "third", "fourth")
    asked = dice.integer(0, len(names) - 1)
    wordings = (f"Who is the {places[asked]} author?", f"What is the name of the {places[asked]} author?")
    ask_any(page, dice, wordings, names[asked], [boxes[asked]], "secondary", "place")
    home = f"{words.department(dice)}, {words.company(dice)}, {words.town(dice)}"
    page.write(
        middle, y + page.px(26), home, page.fit(home, page.size[0] * 0.8, 15, cut="italic"), cut="italic", anchor="ma"
    )
    received, accepted = different(lambda: words.date(dice), 2)
    x = middle - page.length(f"Received {received}; accepted {accepted}", 14) / 2
    dates: list[Box] = []
    for text in ("Received ", received, "; accepted ", accepted):
        dates.append(page.write(x, y + page.px(50), text.rstrip(), 14))
        x += page.length(text, 14)
    if dice.chance(0.5):
        page.ask("When was the paper received?", received, [dates[1]], "secondary", "key")
    else:
        page.ask("On which date was the paper accepted?", accepted, [dates[3]], "secondary", "key")
    return y + page.px(74)


def _sections(columns: Columns, words: Words, dice: Dice, major: int, minor: int) -> None:
    """Sections until the page is full, each with something to ask."""
    numbered, page = dice.integer(1, 70), columns.page
    signs = formulas.Type(columns.signs, page.px(columns.size * 1.05))
    while columns.reserve(6, words, dice):
        name = f"{major}.{minor}" if minor else f"{major}"
        columns.heading(f"{name}  {words.heading(dice)}", columns.size + (2 if not minor else 1))
        fact = science.measured(words, dice)
        text = f"{words.sentence(dice)} {fact.sentence} {words.text(dice, dice.integer(1, 4))}"
        _ask_fact(page, dice, fact, name, columns.text(text))
        if dice.chance(0.75):
            if not columns.display(words, dice, numbered):
                break
            numbered += 1
        if columns.reserve(5, words, dice):
            fact, greek = science.parameter(words, dice, _INLINE)
            drawn = {_INLINE: formulas.symbol(greek)(signs)}
            text = f"{words.sentence(dice)} {fact.sentence} {_cited(dice)} {words.text(dice, dice.integer(1, 4))}"
            _ask_fact(page, dice, fact, name, columns.text(text, 14, drawn))
        major, minor = (major, minor + 1) if dice.chance(0.7) and minor < 7 else (major + 1, 0)


def _cited(dice: Dice) -> str:
    """A sentence that points elsewhere, or none."""
    one, two = dice.integer(1, 40), dice.integer(41, 80)
    return dice.choice(
        ("", "", f"See [{one}] and [{two}] for details.", f"This agrees with [{one}, {two}].", f"Compare [{two}].")
    )


def _ask_fact(page: Page, dice: Dice, fact: science.Fact, section: str, spans: list[flow.Span]) -> None:
    if spans and spans[0][0] == fact.answers[0]:  # on the page, all of it
        text = dice.choice(_SECTION).format(of=fact.of, section=section)
        page.ask(text, fact.answers, spans[0][1], "target", "section")


def _footnote(columns: Columns, place: int, words: Words, dice: Dice) -> None:
    """A note under a short rule at the foot of a column."""
    page, x = columns.page, columns.lefts[place]
    fact = science.measured(words, dice)
    label = dice.integer(1, 9)
    text = f"{label}  {fact.sentence} {words.sentence(dice)}"
    lines = flow.count(page, columns.width, text, 12)
    top = columns.bottoms[place] - lines * page.px(12 * 1.36)
    flowed = flow.paragraph(page, x, top, columns.width, text, 12)
    page.rule(x, top - page.px(8), x + columns.width // 3, top - page.px(8), page.ink)
    columns.bottoms[place] = top - page.px(18)
    wordings = (f"What {fact.of} is given in footnote {label}?", f"According to the footnote, what is the {fact.of}?")
    ask_any(page, dice, wordings, fact.answers, flowed.spans[0][1], "periphery", "place")


def _references(columns: Columns, words: Words, dice: Dice) -> None:
    """A list of references at the end of the last column, questions about two of them."""
    page, x, size = columns.page, columns.lefts[-1], columns.size - 1
    start, count = dice.integer(1, 60), dice.integer(6, 11)
    entries = [science.reference(words, dice) for _ in range(count)]
    indent = page.px(34)
    lines = sum(flow.count(page, columns.width - indent, entry.text, size) for entry in entries)
    y = columns.bottoms[-1] - lines * page.px(size * 1.3) - page.px(40)
    columns.bottoms[-1] = y - page.px(16)
    page.write(x, y, "References", columns.size + 2, cut="bold", face=page.head)
    y += page.px(32)
    spans = []
    for place, entry in enumerate(entries):
        page.write(x, y, f"[{start + place}]", size)
        flowed = flow.paragraph(page, x + indent, y, columns.width - indent, entry.text, size, leading=1.3)
        spans.append(flowed.spans)
        y = flowed.below
    for place in dice.sample(range(count), 3):
        entry, label = entries[place], start + place
        part = dice.integer(0, 3)
        answer = (entry.author, entry.volume, entry.pages, entry.year)[part]
        text = (
            f"Who is the first author of reference [{label}]?", f"Which volume is cited in reference [{label}]?",
            f"Which pages does reference [{label}] cite?", f"In which year did reference [{label}] appear?",
        )[part]  # fmt: skip
        page.ask(text, answer, spans[place][part][1], "secondary", "place")


def _notes(page: Page, words: Words, dice: Dice, x: int, y: int, width: int) -> None:
    """Notes in the margin, each with its sign, and questions about them."""
    bottom = page.size[1] * 52 // 100
    for label in dice.sample("abcdefgh", 3):
        fact = science.measured(words, dice)
        text = f"{label})  {fact.sentence}"
        if y + flow.count(page, width, text, 14, cut="italic") * page.px(14 * 1.36) > bottom:
            break
        flowed = flow.paragraph(page, x, y, width, text, 14, cut="italic")
        page.ask(
            f"What {fact.of} is given in margin note {label})?", fact.answers, flowed.spans[0][1], "periphery", "place"
        )
        y = flowed.below + page.px(22)


def _running_head(page: Page, words: Words, dice: Dice, side: int) -> None:
    """Journal and volume, authors or title at the top, the page number beside them or at the foot."""
    y, width, size = page.px(50), page.size[0], 14
    volume = str(dice.integer(11, 480))
    journal, pair = science.journal(words, dice), f"{science.author(words, dice)} and {science.author(words, dice)}"
    x: float = side
    texts = [f"{journal}, Vol.", volume, f"({dice.integer(1931, 2029)})"]
    boxes = []
    outer = dice.chance(0.5)
    if outer:
        x += page.px(60)
    for text in texts:
        boxes.append(page.write(x, y, text, size, cut="italic", anchor="ls"))
        x += page.length(text + " ", size, cut="italic")
    right = page.write(width - side, y, pair, size, anchor="rs")
    if dice.chance(0.6):
        page.rule(side, y + page.px(8), width - side, y + page.px(8), page.ink)
    wordings = ("Which volume of the journal is named in the running head?", "What volume number is in the header?")
    ask_any(page, dice, wordings, volume, [boxes[1]], "periphery", "place")
    wordings = ("Which authors are named in the running head?", "Whose names stand at the top right of the page?")
    ask_any(page, dice, wordings, pair, [right], "periphery", "place")
    if outer:
        _page_number(page, dice, "top left", side, y)
    else:
        _page_number(page, dice, "bottom")


def _page_number(page: Page, dice: Dice, where: str, side: int = 0, y: int = 0) -> None:
    text, side = str(dice.integer(3, 1890)), side or page.px(66)
    width, foot = page.size[0], page.size[1] - page.px(30)
    x, y, anchor = {
        "top left": (side, y, "ls"), "top right": (width - page.px(48), page.px(44), "rs"),
        "bottom": (width // 2, foot, "ms"), "bottom right": (width - side, foot, "rs"),
    }[where]  # fmt: skip
    box = page.write(x, y, text, 15, anchor=anchor)
    wordings = ("What is the page number?", "Which page is this?", "What number does this page bear?")
    ask_any(page, dice, wordings, text, [box], "periphery", "place")
