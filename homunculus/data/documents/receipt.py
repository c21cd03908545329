"""Receipts: narrow strips of paper on a table, from a shop's till, a restaurant or a card terminal.

Goods and sums are the target, the data of the sale are secondary, the shop's name and address above and the last lines
below are the periphery. The strip is drawn on a white sheet first and the table is painted round it at the end, when
its length is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, furniture
from homunculus.data.documents.blocks import WHITE, Field
from homunculus.data.documents.page import Colour, Page
from homunculus.data.documents.words import DATE_SHAPES, Words, currency, different, money, ordinal
from homunculus.data.fonts import Face

_TABLES: tuple[Colour, ...] = (
    (104, 78, 56), (74, 78, 84), (126, 108, 86), (58, 66, 72), (146, 124, 98), (88, 60, 44), (110, 112, 104),
)  # fmt: skip
_DATA = (
    ("receipt number", ("Receipt", "Receipt no.", "Bon no.", "Rcpt"), "code"),
    ("till number", ("Till", "Register", "Till no."), "till"),
    ("cashier", ("Cashier", "Served by", "Operator"), "first_name"),
    ("store number", ("Store", "Branch", "Store no."), "branch"),
    ("transaction number", ("Trans.", "Transaction", "Trx"), "code"),
    ("loyalty card number", ("Loyalty card", "Club card", "Member"), "card"),
)
_THANKS = ("Thank you for your visit", "Please come again", "Goods returnable within {} days", "Open until {} today")
_HELD_OUT_THANKS = ("Much obliged", "Safe onward journey", "Vouchers lapse after {} nights", "Kiosk shuts at {}")


@dataclass(frozen=True)
class Strip:
    """Where the paper lies and what it is printed in."""

    left: int
    right: int
    face: Face
    size: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


def till(page: Page, words: Words, dice: Dice) -> None:
    """A shop: name and address centred, data of the sale, goods with prices, sums, payment, a barcode."""
    strip = _strip(page, dice, dice.integer(470, 540), page.mono if dice.chance(0.7) else page.face)
    top = page.px(dice.integer(24, 44))
    y = _head(page, words, dice, strip, words.company(dice), top + page.px(26))
    y = _sale(page, words, dice, strip, y, dice.integer(3, 5))
    sign = currency(dice, page.can)
    rows = _count(page, dice, 668)
    y, total = _goods(page, dice, strip, words.products(dice, rows), y)
    saved, paid = dice.integer(10, 4000), total + dice.integer(0, 2000)
    sums = [
        Field(dice.choice(("Discount", "You saved", "Rebate")), money(saved), "discount"),
        Field(dice.choice(("Cash", "Tendered", "Paid cash")), money(paid), "cash paid"),
        Field("Change", money(paid - total), "change given"),
    ]
    y = _total(page, dice, strip, y, money(total, sign))
    boxes, y = blocks.pairs(page, strip.left, y, strip.width, sums, "edges", strip.size, leading=1.5, face=strip.face)
    blocks.ask_fields(page, dice, sums, boxes, "target")
    y = _dashes(page, strip, y + page.px(8)) + page.px(12)
    digits = words.number(dice, dice.choice((12, 14, 16)))
    width = furniture.barcode_width(page, digits)
    _, (_, box) = furniture.barcode(page, round(strip.middle - width / 2), y, digits, 44, 14)
    blocks.ask_place(page, dice, "under the barcode", digits, box, "periphery")
    y = _thanks(page, words, dice, strip, round(box[3]) + page.px(14))
    _table(page, dice, strip, top, y)


def tab(page: Page, words: Words, dice: Dice) -> None:
    """A restaurant: large name, table and server, dishes counted, service and total, a line to fill in for the tip."""
    strip = _strip(page, dice, dice.integer(440, 520), page.face if dice.chance(0.6) else page.mono)
    top = page.px(dice.integer(30, 60))
    y = _head(page, words, dice, strip, words.eatery(dice), top + page.px(30), large=34)
    shape = dice.integer(0, DATE_SHAPES - 1)
    fields = [
        Field(dice.choice(("Table", "Table no.")), words.pattern(dice, "A99"), "table number"),
        Field(dice.choice(("Server", "Your server")), words.person(dice), "server"),
        Field("Date", words.date(dice, shape), "date"),
        Field(dice.choice(("Opened", "Seated")), words.time(dice), "time at which the table was opened"),
        Field(dice.choice(("Check", "Check no.", "Bill")), words.code(dice), "check number"),
    ]
    style: blocks.Pairs = dice.choice(("edges", "side", "colon"))
    boxes, y = blocks.pairs(page, strip.left, y, strip.width, fields, style, strip.size, leading=1.5, face=strip.face)
    blocks.ask_fields(page, dice, fields, boxes, "secondary")
    y = _dashes(page, strip, y + page.px(10)) + page.px(10)
    dishes = different(lambda: words.dish(dice), _count(page, dice, 684))
    y, total = _goods(page, dice, strip, dishes, y)
    service, tax = dice.integer(50, 3000), dice.integer(50, 5000)
    sign = currency(dice, page.can)
    sums = [
        Field(dice.choice(("Subtotal", "Net")), money(total), "subtotal"),
        Field(dice.choice(("Service", "Service charge", "Cover charge")), money(service), "service charge"),
        Field(dice.choice(("Tax", "VAT incl.", "Sales tax")), money(tax), "tax"),
    ]
    boxes, y = blocks.pairs(page, strip.left, y, strip.width, sums, "edges", strip.size, leading=1.5, face=strip.face)
    blocks.ask_fields(page, dice, sums, boxes, "target")
    y = _total(page, dice, strip, y, money(total + service + tax, sign))
    for label in ("Tip", "Signature"):
        page.write(strip.left, y + page.px(16), label, strip.size, face=strip.face, fill=page.faint)
        y += page.px(40)
        page.rule(strip.left + page.px(110), y, strip.right, y, page.faint)
    if dice.chance(0.5):
        furniture.signature(page, strip.left + page.px(140), y, 170, dice)
    y = _thanks(page, words, dice, strip, y + page.px(22))
    _table(page, dice, strip, top, y)


def terminal(page: Page, words: Words, dice: Dice) -> None:
    """A card terminal: the sum in large type between blocks of keys and values, in capitals."""
    strip = _strip(page, dice, dice.integer(430, 500), page.mono)
    top = page.px(dice.integer(40, 110))
    y = _head(page, words, dice, strip, words.company(dice), top + page.px(28), large=24)
    page.write(strip.middle, y, dice.choice(("CARDHOLDER COPY", "CUSTOMER COPY", "MERCHANT COPY", "CARD RECEIPT")), 22,
               cut="bold", anchor="ma", face=strip.face)  # fmt: skip
    y += page.px(46)
    shape = dice.integer(0, DATE_SHAPES - 1)
    fields = [
        Field("TERMINAL ID", words.number(dice, 8), "terminal ID"),
        Field("MERCHANT ID", words.number(dice, 10), "merchant ID"),
        Field("DATE", words.date(dice, shape), "date of the transaction"),
        Field("TIME", words.time(dice), "time of the transaction"),
        Field("BATCH", words.number(dice, 6), "batch number"),
    ]
    boxes, y = blocks.pairs(page, strip.left, y, strip.width, fields, "edges", strip.size, leading=1.5, face=strip.face)
    blocks.ask_fields(page, dice, fields, boxes, "secondary")
    y = _total(page, dice, strip, y + page.px(10), words.amount(dice, currency(dice, page.can)), size=34)
    card = [
        Field("CARD", f"**** **** **** {words.number(dice, 4)}", "card number as printed"),
        Field("AUTH CODE", words.pattern(dice, "9A9*9A"), "authorisation code"),
        Field("AID", words.pattern(dice, "A9999999999999"), "AID"),
        Field("EXPIRES", f"{dice.integer(1, 12):02}/{dice.integer(10, 60)}", "expiry date of the card"),
        Field("REF", words.code(dice), "reference"),
        Field(dice.choice(("GRATUITY", "CASHBACK")), words.amount(dice, high=90), "amount printed last in the list"),
    ]
    boxes, y = blocks.pairs(page, strip.left, y, strip.width, card, "edges", strip.size, leading=1.55, face=strip.face)
    blocks.ask_fields(page, dice, card, boxes, "target")
    y = _dashes(page, strip, y + page.px(12)) + page.px(16)
    y = _thanks(page, words, dice, strip, y)
    _table(page, dice, strip, top, y)


def grid(page: Page, words: Words, dice: Dice) -> None:
    """A filling station: captions over values in two columns, name and total reversed out of bars. Held out."""
    strip = _strip(page, dice, dice.integer(500, 580), page.face)
    top = page.px(dice.integer(24, 150))
    bar = page.px(88)
    page.panel(strip.left - page.px(24), top, strip.right + page.px(24), top + bar, page.ink)
    name = words.company(dice)
    box = page.write(strip.middle, top + bar / 2, name, page.fit(name, strip.width, 28, face=page.head), anchor="mm",
                     fill=WHITE, face=page.head)  # fmt: skip
    blocks.ask_place(page, dice, "in the dark bar at the top", name, box, "periphery")
    y = top + bar + page.px(20)
    fields = [
        Field("Kiosk", words.pattern(dice, "A99"), "kiosk"),
        Field("Pump", words.pattern(dice, "99-A"), "pump"),
        Field("Day", words.date(dice), "day"),
        Field("Clock", words.time(dice), "time by the clock"),
        Field("Attendant", words.person(dice), "name of the attendant"),
        Field("Plate", words.pattern(dice, "AA 999 A"), "number plate"),
        Field("Slip", words.code(dice), "slip number"),
        Field("Fleet", words.code(dice), "fleet code"),
    ]
    column = strip.width / 2
    for place, field in enumerate(fields):
        x, row = strip.left + place % 2 * column, y + place // 2 * page.px(56)
        (box,), _ = blocks.pairs(page, x, row, column - page.px(12), [field], "above", 18)
        blocks.ask_key(page, dice, field.noun, field.value, box, "secondary")
    y += 4 * page.px(56) + page.px(4)
    heads = ("Goods", "Measure", "Cost")
    rows = [(good, words.quantity(dice), words.amount(dice)) for good in words.products(dice, dice.integer(3, 7))]
    boxes, y = blocks.table(page, strip.left, y, strip.width, heads, rows, (4, 2.2, 1.8), "zebra", 16, step=32)
    blocks.ask_cells(page, dice, heads, rows, boxes, 4, "target", name="list of goods")
    y += page.px(18)
    total = words.amount(dice, currency(dice, page.can), 50)
    page.panel(strip.left, y, strip.right, y + page.px(56), page.ink)
    middle = y + page.px(28)
    page.write(strip.left + page.px(14), middle, "To settle", 20, anchor="lm", fill=WHITE)
    box = page.write(strip.right - page.px(14), middle, total, 26, anchor="rm", fill=WHITE)
    blocks.ask_key(page, dice, "sum to settle", total, box, "target", "How much is to be settled?")
    y = _thanks(page, words, dice, strip, y + page.px(76))
    _table(page, dice, strip, top, y)


ARRANGEMENTS = (till, tab, terminal)
HELD_OUT = (grid,)


def _strip(page: Page, dice: Dice, width: int, face: Face) -> Strip:
    """A strip with `width` design pixels of print, somewhere across the page."""
    left = dice.integer(110, int(page.width) - 110 - width) if dice.chance(0.5) else int(page.width - width) // 2
    return Strip(page.px(left), page.px(left + width), face, dice.choice((16, 17, 18)))


def _count(page: Page, dice: Dice, used: int) -> int:
    """How many goods a strip may list where `used` design pixels are taken by other things."""
    most = min(20, int((page.height - used) / 30))
    return dice.integer(max(3, most // 3), most)


def _head(page: Page, words: Words, dice: Dice, strip: Strip, name: str, y: float, large: int = 28) -> int:
    """Name and address of the shop, centred; the y below."""
    name = name.upper() if dice.chance(0.4) else name
    face = page.head if dice.chance(0.5) else strip.face
    size = page.fit(name, strip.width, large, cut="bold", face=face)
    box = page.write(strip.middle, y, name, size, cut="bold", anchor="ma", face=face)
    blocks.ask_key(page, dice, "name at the top of the receipt", name, box, "periphery",
                   "Where was this receipt issued?", "Which business issued this receipt?")  # fmt: skip
    texts = (words.street(dice), f"{words.postcode(dice)} {words.town(dice)}", words.phone(dice))
    boxes, y = blocks.lines(page, strip.middle, y + page.px(large * 1.45), texts, strip.size - 1, anchor="ma",
                            face=strip.face)  # fmt: skip
    blocks.ask_section(page, dice, "street", "the heading of the receipt", texts[0], boxes[0], "periphery")
    blocks.ask_section(page, dice, "telephone number", "the heading of the receipt", texts[2], boxes[2], "periphery")
    return _dashes(page, strip, y + page.px(8)) + page.px(12)


def _sale(page: Page, words: Words, dice: Dice, strip: Strip, y: float, count: int) -> int:
    """When, where and by whom, asked about; the y below."""
    makers = {"code": words.code, "first_name": words.first_name}
    patterns = {"till": "A-99", "branch": "9999", "card": "9999 999 999"}
    fields = [Field("Date", words.date(dice), "date"), Field("Time", words.time(dice), "time")]
    fields += [
        Field(dice.choice(keys), makers[make](dice) if make in makers else words.pattern(dice, patterns[make]), noun)
        for noun, keys, make in dice.sample(_DATA, count - 1)
    ]
    style: blocks.Pairs = dice.choice(("edges", "side", "colon"))
    boxes, y = blocks.pairs(page, strip.left, y, strip.width, fields, style, strip.size, leading=1.45, face=strip.face)
    blocks.ask_fields(page, dice, fields, boxes, "secondary")
    return _dashes(page, strip, y + page.px(8)) + page.px(12)


def _goods(page: Page, dice: Dice, strip: Strip, products: Sequence[str], y: float) -> tuple[int, int]:
    """Goods with their prices, some of them asked about; the y below and the sum in cents."""
    step, total, count = page.px(30), 0, len(products)
    asked = dice.sample(range(count), min(3, count))
    capitals, counted = dice.chance(0.3), dice.chance(0.5)
    for row, product in enumerate(products):
        cents = dice.integer(45, 9999)
        total += cents
        name, price = product.upper() if capitals else product, money(cents)
        at, middle = strip.left, y + row * step + step / 2
        if counted:
            page.write(at, middle, str(dice.integer(1, 19)), strip.size, anchor="lm", face=strip.face)
            at += page.px(44)
        room = strip.right - at - page.px(110)
        named = page.write(at, middle, name, page.fit(name, room, strip.size, face=strip.face), anchor="lm",
                           face=strip.face)  # fmt: skip
        box = page.write(strip.right, middle, price, strip.size, anchor="rm", face=strip.face)
        if row in asked:
            if dice.chance(0.6):
                blocks.ask_key(page, dice, f"price of {product.lower()}", price, box, "target",
                               f"How much was charged for {product}?", f"What did {product} cost?")  # fmt: skip
            else:
                place = f"What is the {ordinal(row)} item on the receipt?"
                page.ask(place, (name, product), [named], "target", "place")
    return round(_dashes(page, strip, y + count * step + page.px(8)) + page.px(8)), total


def _total(page: Page, dice: Dice, strip: Strip, y: float, total: str, size: int = 26) -> int:
    """The total in large type, asked about; the y below."""
    middle = y + page.px(size * 0.9)
    key = dice.choice(("TOTAL", "Total", "AMOUNT", "To pay", "SUM"))
    room = page.fit(total, strip.width * 0.68, size, cut="bold", face=strip.face)
    page.write(strip.left, middle, key, min(room, 24), cut="bold", anchor="lm", face=strip.face)
    box = page.write(strip.right, middle, total, room, cut="bold", anchor="rm", face=strip.face)
    blocks.ask_key(page, dice, "total", total, box, "target", "How much is the total?", "What was paid in total?")
    return round(middle + page.px(size * 0.95))


def _thanks(page: Page, words: Words, dice: Dice, strip: Strip, y: float) -> int:
    """The last lines, centred; the last but one is asked about. The y below."""
    thanks = dice.choice(_HELD_OUT_THANKS if words.held_out else _THANKS)
    texts: Sequence[str] = (
        thanks.format(words.time(dice) if "until" in thanks or "shuts" in thanks else dice.integer(7, 99)),
        dice.choice((words.domain(dice), words.email(dice), f"Wi-Fi: {words.pattern(dice, '******')}")),
    )
    size = min(page.fit(text, strip.width, 16, face=strip.face) for text in texts)
    boxes, y = blocks.lines(page, strip.middle, y, texts, size, anchor="ma", leading=1.6, face=strip.face)
    blocks.ask_place(page, dice, "in the last line of the receipt", texts[1], boxes[1], "periphery")
    return y


def _dashes(page: Page, strip: Strip, y: float) -> int:
    """A broken line across the strip; its y."""
    y, dash = round(y), max(2, page.px(8))
    for left in range(strip.left, strip.right - dash // 2, 2 * dash):
        page.pen.line((left, y, min(left + dash, strip.right), y), page.faint)
    return y


def _table(page: Page, dice: Dice, strip: Strip, top: int, bottom: float) -> None:
    """Paint the table that the strip lies on, with its shadow and torn ends."""
    width, height = page.size
    left, right = strip.left - page.px(24), strip.right + page.px(24)
    bottom = min(round(bottom) + page.px(20), height)
    wood = dice.choice(_TABLES)
    shade = (wood[0] * 3 // 5, wood[1] * 3 // 5, wood[2] * 3 // 5)
    sides = ((0, 0, width, top), (0, bottom, width, height), (0, top, left, bottom), (right, top, width, bottom))
    for x0, y0, x1, y1 in sides:
        if x0 < x1 and y0 < y1:
            page.pen.rectangle((x0, y0, x1 - 1, y1 - 1), wood)
    for _ in range(dice.choice((0, 24, 40))):  # the grain
        y, thick, tone = dice.integer(0, height), page.px(dice.integer(1, 5)), dice.integer(-9, 9)
        colour = (wood[0] + tone, wood[1] + tone, wood[2] + tone)
        for x0, y0, x1, y1 in sides:
            if x0 < x1 and y0 <= y and y + thick < y1:
                page.pen.rectangle((x0, y, x1 - 1, y + thick), colour)
    deep, tooth = page.px(9), max(2, page.px(12))
    page.pen.rectangle((right, top + deep, min(right + deep, width) - 1, min(bottom + deep, height) - 1), shade)
    if bottom < height:
        page.pen.rectangle((left + deep, bottom, right - 1, min(bottom + deep, height) - 1), shade)
    for x in range(left, right, tooth):  # torn edges
        page.pen.polygon([(x, top), (x + tooth // 2, top + tooth // 2), (min(x + tooth, right - 1), top)], wood)
        if bottom < height:
            page.pen.polygon(
                [(x, bottom), (x + tooth // 2, bottom - tooth // 2), (min(x + tooth, right - 1), bottom)], shade
            )
