"""Invoices, quotations, orders and credit notes: a letterhead, two addresses, numbers and dates, a table and its sums.

The table and its sums are the target, the addresses and numbers are secondary, letterhead, foot and stamps are the
periphery. The sums add up.
"""

from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.documents import blocks, furniture
from homunculus.data.documents.blocks import WHITE, Field
from homunculus.data.documents.page import Page
from homunculus.data.documents.words import DATE_SHAPES, Words, currency, money

_TITLES = ("Invoice", "Quotation", "Credit note", "Purchase order", "Sales order", "Repair bill", "Rental invoice")
_HELD_OUT_TITLES = ("Proforma", "Fee note", "Debit memo", "Works order", "Call-off")

# What a question calls a field, how the page may call it, and the maker of its value.
_FIELDS = (
    ("order number", ("Order no.", "Your order", "Order number", "Order ref."), "code"),
    ("customer number", ("Customer no.", "Customer ID", "Client number", "Customer"), "code"),
    ("due date", ("Due date", "Payment due", "Pay by", "Due on"), "date"),
    ("delivery date", ("Delivery date", "Delivered on", "Date of delivery"), "date"),
    ("contact person", ("Contact", "Contact person", "Your contact"), "person"),
    ("project code", ("Project", "Project code", "Job code"), "code"),
    ("department", ("Department", "Dept."), "department"),
    ("sales representative", ("Sales rep.", "Representative", "Sold by"), "person"),
    ("payment reference", ("Payment ref.", "Payment reference", "Reference"), "code"),
    ("shipment number", ("Shipment", "Shipment no.", "Waybill"), "code"),
    ("date of printing", ("Printed on", "Date printed"), "date"),
    ("cost centre", ("Cost centre", "Cost unit"), "code"),
)
_HEADS = (
    ("Description", "Qty", "Unit price", "Amount"),
    ("Item", "Article no.", "Qty", "Price", "Total"),
    ("Article no.", "Description", "Quantity", "Unit price", "Sum"),
    ("Product", "Batch", "Qty", "Rate", "Value"),
)
_ALIGNS = {4: "lrrr", 5: "llrrr"}


@dataclass(frozen=True)
class Address:
    name: str
    street: str
    town: str
    postcode: str
    country: str

    @property
    def first(self) -> tuple[str, str]:
        return self.name, self.street


@dataclass(frozen=True)
class Bill:
    """All that stands on a bill."""

    title: str
    seller: Address
    buyer: Address
    delivery: Address
    fields: tuple[Field, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sums: tuple[Field, ...]
    phone: str
    email: str
    site: str
    account: str
    tax_number: str
    note: str


def classic(page: Page, words: Words, dice: Dice) -> None:
    """A letterhead above, addresses at the left, numbers at the right, the table below them."""
    bill = _bill(page, words, dice, _rows(page, dice, 560))
    left, right, y = page.px(72), page.size[0] - page.px(72), page.px(56)
    mark = page.px(74)
    furniture.logo(page, left if (at_left := dice.chance(0.5)) else right - mark, y, 74, dice, _initials(bill))
    at, anchor = (left + mark + page.px(18), "la") if at_left else (left, "la")
    page.write(at, y, bill.seller.name, page.fit(bill.seller.name, page.px(520), 28, cut="bold", face=page.head),
               cut="bold", face=page.head, anchor=anchor)  # fmt: skip
    small = dice.choice((13, 14))
    street = page.write(at, y + page.px(38), bill.seller.street, small, fill=page.faint)
    contact = page.write(at, y + page.px(58), bill.phone, small, fill=page.faint)
    blocks.ask_section(page, dice, "telephone number", "the letterhead", bill.phone, contact, "periphery")
    blocks.ask_section(page, dice, "street", "the letterhead", bill.seller.street, street, "periphery")
    y += page.px(96)
    page.rule(left, y, right, y, page.accent, dice.choice((1, 2, 4)))
    size = dice.choice((16, 17, 18))
    y += page.px(26)
    page.write(left, y, bill.title, dice.choice((30, 34, 38)), cut="bold", face=page.head, fill=page.accent)
    top = y + page.px(66)
    below = _address(page, dice, left, top, bill.buyer, dice.choice(("Bill to", "Sold to", "Customer")), size)
    shift = page.px(285)
    _address(page, dice, left + shift, top, bill.delivery, dice.choice(("Deliver to", "Ship to", "Delivery address")),
             size, page.px(254))  # fmt: skip
    style: blocks.Pairs = dice.choice(("side", "edges", "colon", "side"))
    width = page.px(330)
    boxes, other = blocks.pairs(page, right - width, y, width, bill.fields, style, size - 1, leading=1.6)
    blocks.ask_fields(page, dice, bill.fields, boxes, "secondary")
    y = max(below, other) + page.px(26)
    y = _body(page, dice, bill, left, y, right - left, size - 1)
    _foot(page, words, dice, bill, y, left, right)


def banner(page: Page, words: Words, dice: Dice) -> None:
    """A coloured band with the title, numbers in a row of captions, and a reversed total."""
    bill = _bill(page, words, dice, _rows(page, dice, 625), fields=5)
    left, right = page.px(60), page.size[0] - page.px(60)
    page.panel(0, 0, page.size[0], page.px(126), page.accent)
    page.write(left, page.px(34), bill.title.upper(), dice.choice((34, 38)), cut="bold", fill=WHITE, face=page.head)
    room = page.px(470)
    name = page.write(right, page.px(34), bill.seller.name, page.fit(bill.seller.name, room, 22), fill=WHITE,
                      anchor="ra")  # fmt: skip
    contact = f"{bill.seller.street}, {bill.seller.town}"
    page.write(right, page.px(66), contact, page.fit(contact, room, 15), fill=WHITE, anchor="ra")
    site = page.write(right, page.px(90), bill.site, page.fit(bill.site, room, 14), fill=WHITE, anchor="ra")
    blocks.ask_place(page, dice, "at the top right, in the largest type there", bill.seller.name, name, "periphery")
    blocks.ask_section(page, dice, "web address", "the coloured band", bill.site, site, "periphery")
    y, step = page.px(154), (right - left) / len(bill.fields)
    size, each = dice.choice((15, 16, 17)), step - page.px(14)
    even = min(page.fit(field.value, each, size, cut="bold") for field in bill.fields)
    for place, field in enumerate(bill.fields):
        (box,), _ = blocks.pairs(page, left + place * step, y, each, [field], "above", even)
        blocks.ask_key(page, dice, field.noun, field.value, box, "secondary")
    y += page.px(64)
    page.rule(left, y, right, y, page.faint)
    y += page.px(20)
    half = (right - left) / 2
    below = _address(page, dice, left, y, bill.buyer, dice.choice(("Billed to", "Customer", "Client")), size)
    _address(page, dice, left + half, y, bill.delivery, dice.choice(("Delivery address", "Delivered to")), size)
    y = _body(page, dice, bill, left, below + page.px(22), right - left, size, reversed_total=True)
    _foot(page, words, dice, bill, y, left, right)


def ledger(page: Page, words: Words, dice: Dice) -> None:
    """Everything in boxes with thin rules, as from an old accounting system, the figures in typewriter."""
    bill = _bill(page, words, dice, _rows(page, dice, 610), fields=6)
    left, right, y = page.px(52), page.size[0] - page.px(52), page.px(48)
    middle = left + (right - left) * 0.52
    size = dice.choice((15, 16))
    page.write(left, y, bill.seller.name, page.fit(bill.seller.name, middle - left - page.px(20), 26, cut="bold"),
               cut="bold")  # fmt: skip
    street = page.write(left, y + page.px(36), bill.seller.street, 14)
    town = page.write(left, y + page.px(56), f"{bill.seller.postcode} {bill.seller.town}", 14)
    blocks.ask_place(page, dice, "below the name of the firm at the top left", bill.seller.street, street, "periphery")
    blocks.ask_section(page, dice, "postcode and town", "the sender's address", f"{bill.seller.postcode} "
                       f"{bill.seller.town}", town, "periphery")  # fmt: skip
    page.write(right, y, bill.title.upper(), 30, cut="bold", anchor="ra", face=page.head)
    top = y + page.px(92)
    boxes, below = blocks.pairs(page, middle, top, right - middle, bill.fields, "grid", size, leading=1.75,
                                face=page.mono, share=0.44)  # fmt: skip
    blocks.ask_fields(page, dice, bill.fields, boxes, "secondary")
    page.panel(left, top, middle - page.px(16), below, edge=page.faint)
    _address(page, dice, left + page.px(14), top + page.px(12), bill.buyer, "Invoice address", size)
    y = _body(page, dice, bill, left, below + page.px(22), right - left, size, ruling="grid")
    _foot(page, words, dice, bill, y, left, right)


def sidebar(page: Page, words: Words, dice: Dice) -> None:
    """A coloured column down the side holds everything but the table and its sums. Held out."""
    bill = _bill(page, words, dice, _rows(page, dice, 430), fields=5)
    bar = page.px(300)
    on_right = dice.chance(0.5)
    start = page.size[0] - bar if on_right else 0
    page.panel(start, 0, start + bar, page.size[1], page.accent)
    x, room = start + page.px(30), bar - page.px(60)
    page.panel(x, page.px(36), x + page.px(76), page.px(112), WHITE)
    furniture.logo(page, x + page.px(6), page.px(42), 64, dice)
    y = page.px(128)
    _, y = page.paragraph(x, y, room, bill.seller.name, 22, cut="bold", fill=WHITE, face=page.head)
    boxes, y = blocks.pairs(page, x, y + page.px(24), room, bill.fields, "above", 17, fill=WHITE, faint=(225, 225, 225))
    blocks.ask_fields(page, dice, bill.fields, boxes, "secondary")
    y += page.px(14)
    for address, caption in ((bill.buyer, "Addressed to"), (bill.delivery, "Goods go to")):
        y = _address(page, dice, x, y, address, caption, 16, room, fill=WHITE) + page.px(18)
    foot = page.size[1] - page.px(40)
    for noun, value, row in (("telephone number", bill.phone, 1), ("web address", bill.site, 0)):
        box = page.write(x, foot - row * page.px(24), value, page.fit(value, room, 14), fill=WHITE, anchor="ls")
        blocks.ask_section(page, dice, noun, "the coloured column", value, box, "periphery")
    left = page.px(44) if on_right else bar + page.px(44)
    right = left + page.size[0] - bar - page.px(88)
    page.write(left, page.px(48), bill.title, 40, face=page.head, fill=page.accent)
    lines, y = page.paragraph(left, page.px(112), right - left, words.text(dice, 2), 15, fill=page.faint)
    blocks.ask_place(page, dice, "in the first line of text under the title", *lines[0], "secondary")
    y = _body(page, dice, bill, left, y + page.px(30), right - left, 15, ruling="open")
    page.paragraph(left, y + page.px(24), right - left, bill.note, 14, cut="italic")
    boxes = blocks.spread(page, left, right, page.size[1] - page.px(40), (bill.account, bill.tax_number))
    blocks.ask_spread(page, dice, "last line beside the coloured column", (bill.account, bill.tax_number), boxes)


ARRANGEMENTS = (classic, banner, ledger)
HELD_OUT = (sidebar,)


def _bill(page: Page, words: Words, dice: Dice, rows: int, fields: int = 0) -> Bill:
    title = dice.choice(_HELD_OUT_TITLES if words.held_out else _TITLES)
    shape, year = dice.integer(0, DATE_SHAPES - 1), dice.integer(1991, 2034)
    sign = currency(dice, page.can)
    others = [field for field in _FIELDS if field[0].split()[0] not in title.lower()]  # an order has one order number
    chosen = dice.sample(others, (fields or dice.integer(5, 7)) - 2)
    makers = {"code": words.code, "person": words.person, "department": words.department}
    numbers = [
        Field(f"{title} no." if dice.chance(0.5) else "Number", words.code(dice), f"{title.lower()} number"),
        Field("Date", words.date(dice, shape, year), f"date of the {title.lower()}"),
        *(
            Field(dice.choice(keys), words.date(dice, shape, year) if make == "date" else makers[make](dice), noun)
            for noun, keys, make in chosen
        ),
    ]
    heads, lines, total = _items(words, dice, rows)
    rate = dice.integer(30, 270)  # tenths of a per cent
    tax = round(total * rate / 1000)
    tax_name = dice.choice(("VAT", "Tax", "Sales tax", "GST"))
    freight = dice.integer(300, 9000)
    sums = (
        Field(dice.choice(("Subtotal", "Net amount", "Goods")), money(total, sign), "amount before tax and freight"),
        Field(f"{tax_name} {rate / 10:.1f}%", money(tax, sign), "amount of tax"),
        Field(dice.choice(("Freight", "Shipping", "Carriage")), money(freight, sign), "cost of shipping"),
        Field(dice.choice(("Total", "Amount due", "Total due", "Grand total")), money(total + tax + freight, sign),
              "total amount"),
    )  # fmt: skip
    one, two, three = (_place(words, dice) for _ in range(3))
    return Bill(
        title, one, two, three, tuple(numbers), heads, lines, sums, words.phone(dice), words.email(dice, one.name),
        words.domain(dice, one.name), words.iban(dice), words.code(dice), _terms(words, dice),
    )  # fmt: skip


def _items(words: Words, dice: Dice, count: int) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], int]:
    """The heads, the rows and the sum in cents of a table of goods."""
    heads = dice.choice(_HEADS)
    rows: list[tuple[str, ...]] = []
    total = 0
    for product in words.products(dice, count):
        quantity, price = dice.integer(1, 96), round(100 * 900 ** dice.random())
        total += quantity * price
        figures = (str(quantity), money(price), money(quantity * price))
        code = words.code(dice)
        if len(heads) == 4:
            rows.append((product, *figures))
        else:
            rows.append((code, product, *figures) if heads[0] == "Article no." else (product, code, *figures))
    return heads, tuple(rows), total


def _terms(words: Words, dice: Dice) -> str:
    """What is said below the sums."""
    return " ".join(
        (
            dice.choice(
                (f"Please quote {words.code(dice)} with your payment.", f"Our terms of {words.date(dice)} apply.",
                 f"Payable within {dice.integer(5, 90)} days without deduction.",
                 f"Queries to {words.person(dice)}, extension {dice.integer(100, 9999)}.")
            ),
            words.rule(dice),
        )
    )  # fmt: skip


def _place(words: Words, dice: Dice) -> Address:
    return Address(words.company(dice), words.street(dice), words.town(dice), words.postcode(dice), words.country(dice))


def _rows(page: Page, dice: Dice, used: int) -> int:
    """How many rows a table may have where `used` design pixels of the page are taken by other things."""
    most = min(20, int((page.height - used) / 36))
    return dice.integer(max(3, most // 3), most)


def _initials(bill: Bill) -> str:
    return "".join(word[0] for word in bill.seller.name.split()[:2])


def _address(
    page: Page, dice: Dice, x: float, y: float, address: Address, caption: str, size: float, width: float = 0,
    fill: tuple[int, int, int] | None = None,
) -> int:  # fmt: skip
    """An address under a caption, asked about by section; the y below it."""
    page.write(x, y, caption, max(13, size - 3), cut="bold", fill=fill or page.accent)
    y += page.px(size * 1.5)
    width = width or page.px(270)
    size = min(page.fit(line, width, size) for line in (*address.first, f"{address.postcode} {address.town}"))
    boxes, below = blocks.lines(page, x, y, (*address.first, address.postcode, address.country), size, fill=fill)
    beside = x + page.length(f"{address.postcode} ", size)
    town = page.write(beside, y + 2 * page.px(size * 1.4), address.town, size, fill=fill)
    noun, value, box = dice.choice(
        (("name", address.name, boxes[0]), ("street", address.street, boxes[1]), ("town", address.town, town),
         ("postcode", address.postcode, boxes[2]), ("country", address.country, boxes[3]))
    )  # fmt: skip
    blocks.ask_section(page, dice, noun, f'the address under "{caption}"', value, box, "secondary")
    return below


def _body(
    page: Page, dice: Dice, bill: Bill, x: float, y: float, width: float, size: float, *,
    ruling: blocks.Ruling | None = None, reversed_total: bool = False,
) -> int:  # fmt: skip
    """The table of goods with its sums, asked about; the y below."""
    drawn: blocks.Ruling = dice.choice(("rules", "zebra", "band", "open", "grid"))
    shares = (5, 1.2, 1.8, 2) if len(bill.heads) == 4 else (3.6, 2.4, 1.2, 1.7, 1.9)
    if bill.heads[0] == "Article no.":
        shares = (2.3, 3.7, 1.4, 1.7, 1.9)
    boxes, y = blocks.table(
        page,
        x,
        y,
        width,
        bill.heads,
        bill.rows,
        shares,
        ruling or drawn,
        size,
        step=34,
        aligns=_ALIGNS[len(bill.heads)],
    )
    by = bill.heads.index("Description") if "Description" in bill.heads else 0
    blocks.ask_cells(page, dice, bill.heads, bill.rows, boxes, min(5, len(bill.rows) + 1), "target", by=by)
    room = page.px(340)
    left, y = x + width - room, y + page.px(12)
    sums, below = blocks.pairs(page, left, y, room - page.px(8), bill.sums[:-1], "edges", size, leading=1.7)
    blocks.ask_fields(page, dice, bill.sums[:-1], sums, "target")
    step = page.px(42)
    total = bill.sums[-1]
    if reversed_total:
        page.panel(left - page.px(10), below, x + width, below + step, page.accent)
    else:
        page.rule(left, below + page.px(2), x + width, below + page.px(2), page.ink, 2)
    fill = WHITE if reversed_total else None
    page.write(left, below + step / 2, total.key, 20, cut="bold", anchor="lm", fill=fill)
    large = page.fit(total.value, room * 0.56, 22, cut="bold")
    box = page.write(x + width - page.px(8), below + step / 2, total.value, large, cut="bold", anchor="rm", fill=fill)
    blocks.ask_key(page, dice, total.noun, total.value, box, "target", "How much is to be paid in all?",
                   "What does everything together come to?")  # fmt: skip
    return below + step


def _foot(page: Page, words: Words, dice: Dice, bill: Bill, y: int, left: int, right: int) -> None:
    """Terms below the sums where there is room, the bank at the foot of the page, and at times marks and a stamp."""
    if dice.chance(0.3):
        furniture.margin_marks(page, dice)
    bottom = page.size[1]
    number = f"{dice.choice(('Page', 'p.', 'Sheet'))} {dice.integer(1, 400)}"
    texts = dice.choice(
        ((bill.account, bill.email, number), (bill.tax_number, bill.site, number), (bill.account, number),
         (bill.email, bill.account, bill.tax_number))
    )  # fmt: skip
    line = bottom - page.px(64)
    if dice.chance(0.7):
        page.rule(left, line, right, line, page.faint)
    boxes = blocks.spread(page, left, right, bottom - page.px(38), texts, dice.choice((13, 14)))
    blocks.ask_spread(page, dice, "footer", texts, boxes)
    room = line - y
    if room > page.px(90):
        note, y = page.paragraph(left, y + page.px(24), page.px(560), bill.note, 14, fill=page.faint)
        blocks.ask_place(page, dice, "in the first line of the note below the table", *note[0], "secondary")
    if dice.chance(0.4) and line - y > page.px(200):
        x = dice.integer(page.px(180), page.size[0] - page.px(180))
        pieces = furniture.stamp(page, x, y + page.px(100), words, dice)
        for name, (text, box) in pieces.items():
            if name != "word":
                blocks.ask_section(page, dice, name, "the stamp", text, box, "periphery")
