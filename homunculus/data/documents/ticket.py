"""Tickets and labels: boarding passes and concert tickets printed at home, shipping labels, coupons.

The ticket or the receiver is the target, the stub, the programme or the data of a parcel are secondary, and what stands
above, below and along the edges is the periphery.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, furniture
from homunculus.data.documents.blocks import WHITE, Field
from homunculus.data.documents.page import Colour, Page
from homunculus.data.documents.words import DATE_SHAPES, Words, currency, different
from homunculus.data.record import Region

_SERVICES = ("EXPRESS", "PRIORITY", "ECONOMY", "NEXT DAY", "FREIGHT", "STANDARD", "OVERNIGHT", "REGISTERED")
_HANDLING = ("Fragile: handle with care", "Keep dry", "This side up", "Do not bend", "Do not stack", "Keep frozen")
_VENUES = ("Hall", "Arena", "Theatre", "Opera House", "Ballroom", "Concert Hall", "Stadium", "Playhouse")


def boarding(page: Page, words: Words, dice: Dice) -> None:
    """A boarding pass with a stub, the legs of the journey and notes below it."""
    left, right, top = page.px(48), page.size[0] - page.px(48), page.px(104)
    tear = right - page.px(258)
    _sheet(page, words, dice, left, right, "Boarding pass")
    airline = f"{dice.choice(words.vocabulary.company_heads)} {dice.choice(('Airways', 'Air', 'Airlines', 'Jet'))}"
    bottom = _card(page, left, right, top, 404, airline, tear, dice.chance(0.5))
    group = f"Group {words.pattern(dice, 'A9')}"
    box = page.write(tear + page.px(20), top + page.px(28), group, 22, cut="bold", fill=WHITE, anchor="lm")
    blocks.ask_place(page, dice, "in the coloured bar of the stub", group, box, "secondary")
    x, y = left + page.px(24), top + page.px(74)
    for caption, noun, at in (("From", "departure", 0), ("To", "destination", 330)):
        code, town = words.pattern(dice, "AAA"), words.town(dice)
        page.write(x + page.px(at), y, caption, 13, fill=page.faint)
        big = page.write(x + page.px(at), y + page.px(18), code, 40, cut="bold", face=page.head, fill=page.accent)
        named = page.write(x + page.px(at), y + page.px(72), town, page.fit(town, page.px(250), 18))
        blocks.ask_key(page, dice, f"code of the airport of {noun}", code, big, "target")
        blocks.ask_key(page, dice, f"town of {noun}", town, named, "target")
    middle = y + page.px(42)
    page.rule(x + page.px(170), middle, x + page.px(290), middle, page.accent, 2)
    page.pen.polygon([(x + page.px(290), middle - page.px(8)), (x + page.px(308), middle),
                      (x + page.px(290), middle + page.px(8))], page.accent)  # fmt: skip
    shape, sign = dice.integer(0, DATE_SHAPES - 1), dice.choice(":.m")
    fields = [
        Field("Passenger", words.person(dice), "passenger"),
        Field("Date", words.date(dice, shape), "date of the flight"),
        Field("Flight", words.pattern(dice, "AA 9999"), "flight number"),
        Field("Gate", words.pattern(dice, "A99"), "gate"),
        Field("Boarding", words.time(dice, sign), "boarding time"),
        Field("Seat", words.pattern(dice, "99A"), "seat"),
    ]
    _captions(page, dice, x, y + page.px(112), tear - x - page.px(16), fields, 3, "target")
    digits = words.number(dice, 14)
    _, (_, box) = furniture.barcode(page, x, y + page.px(248), digits, 48, 14)
    _matrix(page, dice, tear - page.px(86), y + page.px(246), 68)
    blocks.ask_place(page, dice, "under the barcode", digits, box, "target")
    stub = [
        Field("Booking", words.pattern(dice, "******"), "booking code"),
        Field("Bag tag", words.number(dice, 8), "bag tag number"),
        Field("Sequence", words.number(dice, 3), "sequence number"),
        Field("Ticket", words.pattern(dice, "999-9999999"), "ticket number"),
    ]
    found, _ = blocks.pairs(page, tear + page.px(20), top + page.px(78), page.px(220), stub, "above", 20, leading=1.75)
    blocks.ask_fields(page, dice, stub, found, "secondary")
    heads = ("Leg", "Departs", "Arrives", "Terminal", "Bags")
    rows = [
        (f"{words.town(dice)} - {words.town(dice)}", words.time(dice, sign), words.time(dice, sign),
         words.pattern(dice, "9A"), f"{dice.integer(5, 60)} kg")
        for _ in range(dice.integer(2, 4))
    ]  # fmt: skip
    y = _heading(page, left, bottom + page.px(26), "Your journey")
    boxes, y = blocks.table(page, left, y, right - left, heads, rows, (4.6, 1.5, 1.5, 1.4, 1.4),
                            dice.choice(_rulings()), 16, aligns="lllll", step=34)  # fmt: skip
    blocks.ask_cells(page, dice, heads, rows, boxes, 3, "secondary")
    _notes(page, words, dice, left, right, y + page.px(22), dice.choice(("Before you travel", "Please note")))


def concert(page: Page, words: Words, dice: Dice) -> None:
    """A ticket for a show with a perforated stub, the programme of the evening below it."""
    left, right, top = page.px(44), page.size[0] - page.px(44), page.px(104)
    tear = right - page.px(240)
    _sheet(page, words, dice, left, right, "Admission ticket")
    bottom = top + page.px(384)
    page.panel(left, top, right, bottom, page.tint, page.accent, 2)
    page.panel(left, top, left + page.px(20), bottom, page.accent)
    _perforate(page, tear, top, bottom)
    x, y = left + page.px(46), top + page.px(20)
    room = tear - x - page.px(20)
    venue = f"{words.town(dice)} {dice.choice(_VENUES)}"
    box = page.write(x, y, venue, page.fit(venue, room, 18), fill=page.accent, cut="bold")
    blocks.ask_key(page, dice, "venue", venue, box, "target", "Where does the event take place?")
    event, artist = words.event(dice), words.person(dice)
    box = page.write(x, y + page.px(32), event, page.fit(event, room, 40, cut="bold", face=page.head), cut="bold",
                     face=page.head)  # fmt: skip
    blocks.ask_key(page, dice, "name of the event", event, box, "target", "Which event is this a ticket for?")
    box = page.write(x, y + page.px(90), artist, 22)
    blocks.ask_place(page, dice, "below the name of the event", artist, box, "target")
    fields = [
        Field("Date", words.date(dice), "date of the event"),
        Field("Doors", words.time(dice), "time at which the doors open"),
        Field("Row", words.pattern(dice, "A9"), "row"),
        Field("Seat", str(dice.integer(1, 480)), "seat number"),
        Field("Block", words.pattern(dice, "9A9"), "block"),
        Field("Price", words.amount(dice, currency(dice, page.can), 8, 400), "price of the ticket"),
    ]
    _captions(page, dice, x, y + page.px(136), room, fields, 3, "target")
    digits = words.number(dice, dice.choice((12, 14)))
    _, (_, box) = furniture.barcode(page, x, y + page.px(268), digits, 46, 14)
    _matrix(page, dice, tear - page.px(96), y + page.px(258), 78)
    blocks.ask_place(page, dice, "under the barcode", digits, box, "target")
    stub = [
        Field("Order", words.code(dice), "order number"),
        Field("Buyer", words.surname(dice), "buyer"),
        Field("Entrance", words.pattern(dice, "A9"), "entrance"),
        Field("Issued", words.date(dice), "date of issue"),
        Field("Outlet", words.town(dice), "outlet"),
    ]
    found, _ = blocks.pairs(page, tear + page.px(22), top + page.px(24), page.px(196), stub, "above", 19, leading=1.9)
    blocks.ask_fields(page, dice, stub, found, "secondary")
    heads = ("Time", "Piece", "Performer")
    times = sorted(f"{dice.integer(17, 23)}:{dice.integer(0, 59):02}" for _ in range(dice.integer(3, 5)))
    pieces = different(lambda: words.heading(dice), len(times))
    rows = [(time, piece, words.person(dice)) for time, piece in zip(times, pieces, strict=True)]
    y = _heading(page, left, bottom + page.px(26), dice.choice(("Programme", "Tonight", "Order of the evening")))
    boxes, y = blocks.table(page, left, y, right - left, heads, rows, (1.2, 4.2, 3), dice.choice(_rulings()), 16,
                            aligns="lll", step=32)  # fmt: skip
    blocks.ask_cells(page, dice, heads, rows, boxes, 3, "secondary", name="programme", by=1)
    _notes(page, words, dice, left, right, y + page.px(20), dice.choice(("Conditions", "House rules")))


def label(page: Page, words: Words, dice: Dice) -> None:
    """A shipping label: sender, service and weight, the receiver in large type, a routing code, barcodes."""
    left, right, top, bottom = page.px(40), page.size[0] - page.px(40), page.px(60), page.size[1] - page.px(60)
    page.panel(left, top, right, bottom, edge=page.ink, width=3)
    code = words.code(dice)
    box = page.write(left, page.px(34), code, 14, anchor="lm", face=page.mono)
    blocks.ask_place(page, dice, "above the frame on the left", code, box, "periphery")
    printed = f"{words.date(dice)}  {words.time(dice)}"
    box = page.write(right, page.px(34), printed, 14, anchor="rm", face=page.mono, fill=page.faint)
    blocks.ask_place(page, dice, "above the frame on the right", printed, box, "periphery")
    texts = (words.domain(dice), words.phone(dice), words.pattern(dice, "A-999999"))
    found = blocks.spread(page, left, right, page.size[1] - page.px(30), texts, 13)
    blocks.ask_spread(page, dice, "last line, below the frame,", texts, found)
    split, pad = left + (right - left) * 0.55, page.px(18)
    y = top + page.px(196)
    page.rule(left, y, right, y, page.ink, 3)
    page.rule(split, top, split, y, page.ink, 3)
    page.write(left + pad, top + page.px(12), dice.choice(("FROM", "Sender", "SHIP FROM")), 14, cut="bold")
    sender = (words.company(dice), words.street(dice), f"{words.postcode(dice)} {words.town(dice)}", words.phone(dice))
    size = min(page.fit(line, split - left - 2 * pad, 18) for line in sender)
    found, _ = blocks.lines(page, left + pad, top + page.px(40), sender, size, leading=1.6)
    for noun, value, at in zip(("name", "street", "postcode and town", "telephone number"), sender, found, strict=True):
        blocks.ask_section(page, dice, noun, "the address of the sender", value, at, "secondary")
    parcel = [
        Field("Weight", f"{dice.integer(2, 400) / 10:.1f} kg", "weight"),
        Field("Ship date", words.date(dice), "ship date"),
        Field("Account", words.number(dice, 9), "account number"),
        Field("Pieces", f"{dice.integer(1, 40)} of {dice.integer(41, 99)}", "number of pieces"),
    ]
    width = right - split - 2 * pad
    found, _ = blocks.pairs(page, split + pad, top + page.px(22), width, parcel, "side", 18, leading=2.1, share=0.42)
    blocks.ask_fields(page, dice, parcel, found, "secondary")
    page.write(left + pad, y + page.px(14), dice.choice(("TO", "SHIP TO", "Deliver to")), 16, cut="bold")
    receiver = (words.person(dice), words.company(dice), words.street(dice), f"{words.postcode(dice)} "
                f"{words.town(dice)}", words.country(dice).upper())  # fmt: skip
    size = min(page.fit(line, right - left - page.px(170), 32, face=page.head) for line in receiver)
    found, y = blocks.lines(page, left + page.px(128), y + page.px(16), receiver, size, leading=1.5, face=page.head)
    for noun, value, at in zip(("name of the person", "company", "street", "postcode and town", "country"), receiver,
                               found, strict=True):  # fmt: skip
        blocks.ask_section(page, dice, noun, "the address of the receiver", value, at, "target")
    y += page.px(14)
    page.rule(left, y, right, y, page.ink, 3)
    service, routing = dice.choice(_SERVICES), words.pattern(dice, "AA9 A99")
    height = page.px(96)
    page.panel(left, y, split, y + height, page.ink)
    page.write((left + split) / 2, y + height / 2, service, page.fit(service, split - left - 2 * pad, 36, cut="bold"),
               cut="bold", fill=WHITE, anchor="mm")  # fmt: skip
    box = page.write((split + right) / 2, y + height / 2, routing, 40, cut="bold", anchor="mm")
    blocks.ask_place(page, dice, f"in large type to the right of {service}", routing, box, "target")
    y += height
    page.rule(left, y, right, y, page.ink, 3)
    digits = words.number(dice, dice.choice((16, 18, 20)))
    across = furniture.barcode_width(page, digits)
    tall = 110 if page.height < 1200 else 190
    _, (_, box) = furniture.barcode(page, round((left + right - across) / 2), y + page.px(20), digits, tall, 20)
    blocks.ask_key(page, dice, "tracking number", digits, box, "target", "Which number stands under the barcode?")
    y = round(box[3]) + page.px(18)
    page.rule(left, y, right, y, page.ink, 3)
    fields = [
        Field("Ref. 1", words.code(dice), "first reference"),
        Field("Ref. 2", words.code(dice), "second reference"),
        Field("Dept.", words.department(dice), "department"),
        Field("Invoice", words.code(dice), "invoice number"),
    ]
    _captions(page, dice, left + pad, y + page.px(14), right - left - 2 * pad, fields, 4, "secondary")
    if bottom - y > page.px(110):
        note = dice.choice(_HANDLING)
        page.write(left + pad, bottom - page.px(16), note, 18, cut="bold", anchor="ls")


def coupons(page: Page, words: Words, dice: Dice) -> None:
    """Three coupons to cut apart, with the same keys on each. Held out."""
    left, right, top = page.px(60), page.size[0] - page.px(60), page.px(92)
    _sheet(page, words, dice, left, right, dice.choice(("Rail voucher", "Day pass", "Cable car", "Ferry coupon")))
    height, sign = (page.size[1] - page.px(92 + 74)) // 3, currency(dice, page.can)
    regions: tuple[Region, ...] = ("target", "secondary", "secondary")
    for place, (name, region) in enumerate(zip(("top", "middle", "bottom"), regions, strict=True)):
        y = top + place * height
        if place:
            for x in range(left, right, page.px(20)):
                page.rule(x, y, x + page.px(10), y, page.faint)
        _coupon(page, words, dice, left, right, y + page.px(16), f"the {name} coupon", sign, region)


def _coupon(
    page: Page, words: Words, dice: Dice, left: int, right: int, y: int, section: str, sign: str, region: Region
) -> None:
    """One coupon with all that is asked about it."""
    band, tall = page.px(190), page.px(232)
    page.panel(left, y, left + band, y + tall, page.accent)
    value = words.amount(dice, sign, 5, 500)
    page.write(left + band / 2, y + page.px(50), dice.choice(("VALUE", "FARE", "WORTH")), 16, fill=WHITE, anchor="mm")
    size = page.fit(value, band - page.px(20), 30)
    box = page.write(left + band / 2, y + page.px(92), value, size, fill=WHITE, anchor="mm")
    blocks.ask_section(page, dice, "value", section, value, box, region)
    serial = words.pattern(dice, "99A99")
    box = page.write(left + band / 2, y + page.px(180), serial, 20, fill=WHITE, anchor="mm", face=page.mono)
    blocks.ask_section(page, dice, "text at the foot of the coloured part", section, serial, box, region)
    fields = [
        Field("Bearer", words.person(dice), "bearer"),
        Field("Good on", words.date(dice), "day on which it is good"),
        Field("Embark", words.town(dice), "place to embark"),
        Field("Alight", words.town(dice), "place to alight"),
        Field("Berth", words.pattern(dice, "A-99"), "berth"),
        Field("Agent", words.surname(dice), "agent"),
    ]
    x = left + band + page.px(26)
    column = (right - x) / 2
    for place, field in enumerate(fields):
        at = x + place % 2 * column, y + page.px(6) + place // 2 * page.px(54)
        (box,), _ = blocks.pairs(page, *at, column - page.px(14), [field], "above", 19)
        blocks.ask_section(page, dice, field.noun, section, field.value, box, region)
    digits = words.number(dice, 12)
    furniture.barcode(page, x, y + page.px(172), digits, 38, 13)
    _matrix(page, dice, round(x + column), y + page.px(170), 62)


ARRANGEMENTS = (boarding, concert, label)
HELD_OUT = (coupons,)


def _rulings() -> tuple[blocks.Ruling, ...]:
    return "rules", "zebra", "band", "open"


def _sheet(page: Page, words: Words, dice: Dice, left: int, right: int, title: str) -> None:
    """What the printed sheet carries above and below the ticket."""
    page.write(left, page.px(64), title, 30, cut="bold", face=page.head, anchor="ls")
    code = words.code(dice)
    box = page.write(right, page.px(64), code, 18, anchor="rs", face=page.mono)
    blocks.ask_place(page, dice, "at the top right, beside the title", code, box, "periphery")
    number = f"{dice.integer(1, 40)} / {dice.integer(41, 99)}"
    texts = dice.choice(
        ((words.domain(dice), number), (words.email(dice), words.phone(dice), number),
         (words.phone(dice), words.code(dice)))
    )  # fmt: skip
    boxes = blocks.spread(page, left, right, page.size[1] - page.px(32), texts, 13)
    blocks.ask_spread(page, dice, "footer", texts, boxes)


def _card(page: Page, left: int, right: int, top: int, height: int, title: str, tear: int, round_: bool) -> int:
    """A ticket with a coloured bar across it; the y below."""
    bottom, bar = top + page.px(height), top + page.px(56)
    page.pen.rounded_rectangle((left, top, right, bottom), page.px(18) if round_ else 0, page.tint, page.accent)
    page.panel(left, top, right, bar, page.accent)
    page.write(left + page.px(24), (top + bar) / 2, title, page.fit(title, page.px(480), 26, cut="bold"), cut="bold",
               fill=WHITE, anchor="lm")  # fmt: skip
    _perforate(page, tear, bar, bottom)
    return bottom


def _perforate(page: Page, x: int, top: int, bottom: int, colour: Colour | None = None) -> None:
    for y in range(top, bottom - page.px(6), page.px(16)):
        page.rule(x, y, x, y + page.px(8), colour or page.faint, 2)


def _captions(
    page: Page, dice: Dice, x: float, y: float, width: float, fields: Sequence[Field], columns: int, region: Region
) -> None:
    """Captions over values in rows of `columns`, in one size, asked about."""
    step, row = width / columns, page.px(62)
    even = min(page.fit(field.value, step - page.px(14), 22, cut="bold") for field in fields)
    for place, field in enumerate(fields):
        at = x + place % columns * step, y + place // columns * row
        (box,), _ = blocks.pairs(page, *at, step - page.px(10), [field], "above", even)
        blocks.ask_key(page, dice, field.noun, field.value, box, region)


def _heading(page: Page, x: float, y: float, text: str) -> int:
    page.write(x, y, text, 22, cut="bold", face=page.head, fill=page.accent)
    return round(y) + page.px(40)


def _notes(page: Page, words: Words, dice: Dice, left: int, right: int, y: int, title: str) -> None:
    """Small print in two columns, as long as there is room."""
    y = _heading(page, left, y, title)
    room, width = max(0, page.size[1] - page.px(64) - y), (right - left - page.px(30)) / 2
    text = " ".join(words.rule(dice) for _ in range(dice.integer(10, 24)))
    lines = page.wrap(text, width, 14)
    rows = min(room // page.px(14 * 1.45), (len(lines) + 1) // 2)
    for column, side in enumerate(("left", "right")):
        part = lines[column * rows : (column + 1) * rows]
        x = left + column * (width + page.px(30))
        boxes, _ = blocks.lines(page, x, y, part, 14, leading=1.45, fill=page.faint)
        if part:
            where = f'in the first line of the {side} column under "{title}"'
            blocks.ask_place(page, dice, where, part[0], boxes[0], "periphery")


def _matrix(page: Page, dice: Dice, x: int, y: int, size: int) -> None:
    """A square of dots like a two-dimensional code, with its three corner marks; it codes nothing."""
    dots = (dice.array(23 * 23).reshape(23, 23) < 0.5).astype(np.uint8) * 255
    mark = np.full((8, 8), 255, np.uint8)
    mark[:7, :7] = 0
    mark[1:6, 1:6] = 255
    mark[2:5, 2:5] = 0
    dots[:8, :8], dots[:8, -8:], dots[-8:, :8] = mark, mark[:, ::-1], mark[::-1]
    side = page.px(size)
    page.image.paste(Image.fromarray(dots).resize((side, side), Image.Resampling.NEAREST), (x, y))
