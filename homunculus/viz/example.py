"""The example page: an invoice drawn here, so that a first look needs no file and no download."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from homunculus.viz.palette import font

SIZE = 1024, 1280
QUESTION = "Which initials are on the stamp at the bottom right?"

INK, GREY, FAINT, ACCENT = (30, 32, 40), (110, 112, 122), (206, 208, 216), (22, 92, 116)
LEFT, RIGHT = 84, SIZE[0] - 84

ITEMS = [
    ("HX-204", "Optical bench, 900 mm", 2, 418.00),
    ("LN-031", "Achromatic lens, f = 150 mm", 6, 57.40),
    ("LN-044", "Achromatic lens, f = 300 mm", 4, 61.25),
    ("MR-117", "Protected silver mirror, 1 inch", 8, 38.90),
    ("FB-009", "Single-mode fibre, 2 m, FC/APC", 5, 29.75),
    ("PD-550", "Amplified photodetector", 1, 362.00),
    ("SH-012", "Mechanical shutter with driver", 1, 248.60),
    ("SV-001", "Alignment on site, half a day", 1, 320.00),
]


@lru_cache(maxsize=1)
def example_page() -> UInt8[Tensor, "3 1280 1024"]:
    """An invoice of 1024 x 1280 pixels, type from 13 to 46 pixels, the same on every machine.

    >>> example_page().shape
    torch.Size([3, 1280, 1024])
    """
    page = Image.new("RGB", SIZE, (253, 252, 249))
    draw = ImageDraw.Draw(page)
    _letterhead(draw)
    _addresses(draw)
    _totals(draw, _table(draw, 474))
    _notes(draw)
    _stamp(page)
    _footer(draw)
    return torch.from_numpy(np.array(page)).permute(2, 0, 1).contiguous()


def _text(
    draw: ImageDraw.ImageDraw, xy: tuple[int, int], text: str, size: int, fill=INK, anchor="la", bold=False
) -> None:
    draw.text(xy, text, fill, font(size), anchor=anchor, stroke_width=1 if bold and size > 20 else 0.4 if bold else 0)


def _letterhead(draw: ImageDraw.ImageDraw) -> None:
    for radius, colour in ((38, ACCENT), (27, (253, 252, 249)), (16, ACCENT), (6, (253, 252, 249))):
        draw.ellipse((LEFT + 38 - radius, 110 - radius, LEFT + 38 + radius, 110 + radius), fill=colour)
    _text(draw, (LEFT + 96, 76), "Fovea Instruments", 42, ACCENT, bold=True)
    _text(draw, (LEFT + 98, 128), "precision optics since 1987", 19, GREY)
    _text(draw, (RIGHT, 78), "INVOICE", 46, INK, anchor="ra", bold=True)
    _text(draw, (RIGHT, 134), "page 1 of 1", 16, GREY, anchor="ra")
    draw.line((LEFT, 178, RIGHT, 178), fill=ACCENT, width=3)


def _addresses(draw: ImageDraw.ImageDraw) -> None:
    _text(draw, (LEFT, 204), "Bill to", 16, GREY)
    for i, line in enumerate(
        ("Institute of Vision Research", "Dr. Ada Marchetti", "14 Retina Lane", "Cambridge CB2 1TN")
    ):
        _text(draw, (LEFT, 230 + 30 * i), line, 23)
    facts = [
        ("Invoice number", "FI-2026-0417"),
        ("Invoice date", "15 November 2026"),
        ("Customer", "C-88213"),
        ("Order", "PO 5521 / M"),
    ]
    for i, (key, value) in enumerate(facts):
        _text(draw, (640, 206 + 36 * i), key, 18, GREY)
        _text(draw, (RIGHT, 204 + 36 * i), value, 21, anchor="ra")
    _text(draw, (LEFT, 384), "Dear Dr. Marchetti, thank you for your order. We deliver as agreed:", 20)
    _text(draw, (LEFT, 412), "goods remain our property until they are paid in full.", 20)


def _table(draw: ImageDraw.ImageDraw, top: int) -> int:
    columns = ((LEFT + 12, "la"), (LEFT + 130, "la"), (650, "ra"), (788, "ra"), (RIGHT - 12, "ra"))
    draw.rectangle((LEFT, top - 10, RIGHT, top + 30), fill=(228, 236, 240))
    for (x, anchor), heading in zip(columns, ("Item", "Description", "Qty", "Price", "Amount"), strict=True):
        _text(draw, (x, top), heading, 19, ACCENT, anchor, bold=True)
    y = top + 48
    for code, name, quantity, price in ITEMS:
        row = code, name, str(quantity), f"{price:,.2f}", f"{quantity * price:,.2f}"
        for (x, anchor), value in zip(columns, row, strict=True):
            _text(draw, (x, y), value, 19, anchor=anchor)
        draw.line((LEFT, y + 30, RIGHT, y + 30), fill=FAINT)
        y += 41
    return y


def _totals(draw: ImageDraw.ImageDraw, y: int) -> None:
    net = sum(quantity * price for _, _, quantity, price in ITEMS)
    for label, value in (("Net", net), ("VAT 20 %", net * 0.2)):
        _text(draw, (788, y + 10), label, 19, GREY, "ra")
        _text(draw, (RIGHT - 12, y + 10), f"{value:,.2f}", 19, anchor="ra")
        y += 34
    draw.line((640, y + 10, RIGHT, y + 10), fill=INK, width=2)
    _text(draw, (788, y + 22), "Total GBP", 25, INK, "ra", bold=True)
    _text(draw, (RIGHT - 12, y + 22), f"{net * 1.2:,.2f}", 25, INK, "ra", bold=True)


def _notes(draw: ImageDraw.ImageDraw) -> None:
    draw.rounded_rectangle((LEFT, 994, 560, 1136), radius=10, outline=FAINT, width=2)
    _text(draw, (LEFT + 18, 1008), "Delivery", 18, ACCENT, bold=True)
    for i, line in enumerate(
        (
            "Parcel 2 of 2 left our stock on 12 November.",
            "Tracking: 7H 402 918 553 GB",
            "Please check the seals before you sign.",
        )
    ):
        _text(draw, (LEFT + 18, 1040 + 29 * i), line, 18)


def _stamp(page: Image.Image) -> None:
    stamp = Image.new("L", (300, 110))
    draw = ImageDraw.Draw(stamp)
    draw.rounded_rectangle((4, 4, 296, 106), radius=16, outline=230, width=5)
    draw.text((150, 40), "CHECKED", 230, font(38), anchor="mm", stroke_width=1)
    draw.text((150, 82), "quality - bench 3 - K.L.", 230, font(19), anchor="mm")
    stamp = stamp.rotate(9, expand=True, resample=Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(0.6))
    page.paste((168, 44, 62), (640, 992), stamp)


def _footer(draw: ImageDraw.ImageDraw) -> None:
    draw.line((LEFT, 1178, RIGHT, 1178), fill=FAINT, width=2)
    _text(draw, (LEFT, 1192), "Fovea Instruments Ltd, 3 Macula Road, Oxford OX1 4AR", 15, GREY)
    _text(draw, (LEFT, 1215), "VAT GB 204 7731 55", 13, GREY)
    _text(draw, (SIZE[0] // 2, 1238), "Payment reference: QX7-2081-K", 16, anchor="ma")
    _text(draw, (RIGHT, 1192), "IBAN GB29 NWBK 6016 1331 9268 19", 15, GREY, "ra")
    _text(draw, (RIGHT, 1215), "due within 30 days", 13, GREY, "ra")
