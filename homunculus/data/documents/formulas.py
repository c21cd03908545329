"""A small formula setter: fractions, scripts, roots, sums with limits, brackets that grow, Greek letters.

A formula is a function from a `Type` (signs and size) to a `Piece`: ink round a baseline at y = 0, a width, the boxes
of its named parts and what it says in plain ASCII. Combinators build larger formulas from smaller ones and decide the
size of each. The proportions are TeX's: scripts at 0.7, the axis of fractions a quarter of an em above the baseline.
Every coordinate is a whole pixel, every sign is looked up in its font and must be there.

The ordinary signs are STIX and DejaVu; Computer Modern, with TeX's own encoding, is held out with its faces.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from homunculus.data.documents.page import Colour, Page
from homunculus.data.fonts import load_file
from homunculus.data.record import Box
from homunculus.errors import DataError

Corners = tuple[int, int, int, int]

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "zeta": "ζ", "eta": "η", "theta": "θ", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ",
    "chi": "χ", "psi": "ψ", "omega": "ω",
}  # fmt: skip
CAPITALS = {"Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω"}
_SYMBOLS = {"-": "−", "times": "×", "cdot": "·", "pm": "±", "nabla": "∇"}
_TEX_GREEK = dict(
    zip(
        (*GREEK, "partial"),
        "\xae\xaf\xb0\xb1\xb3\xb4\xb5\u2219\xb8\xb9\xba\xbb\xbc\xbd\xbe\xbf\xc1\xc2\xc3!@",
        strict=True,
    )
)
_TEX_CAPITALS = dict(zip(CAPITALS, "\xa1\xa2\xa3\xa4\xa9\xaa\xad", strict=True))
_TEX_SYMBOLS = dict(zip(_SYMBOLS, "\xa1\xa3\xa2\xa7r", strict=True))
_STIX_SIZES = ("STIXGeneral", "STIXSizOneSymReg", "STIXSizTwoSymReg", "STIXSizThreeSymReg", "STIXSizFourSymReg")

Sign = tuple[str, str]  # a font file and a letter in it


@dataclass(frozen=True)
class Signs:
    """Where a family of fonts keeps its signs: letters and digits by file, symbols by name, what grows in its sizes."""

    italic: str
    roman: str
    symbols: dict[str, Sign]
    growing: dict[str, tuple[Sign, ...]]  # from small to large
    large: dict[str, tuple[Sign, float]]  # operators with limits, and their size against the text's


def _named(italic: str, roman: str, symbol: str) -> dict[str, Sign]:
    return (
        {name: (italic, letter) for name, letter in (*GREEK.items(), ("partial", "∂"))}
        | {name: (roman, letter) for name, letter in CAPITALS.items()}
        | {name: (symbol, letter) for name, letter in _SYMBOLS.items()}
    )


STIX = Signs(
    "STIXGeneralItalic", "STIXGeneral", _named("STIXGeneralItalic", "STIXGeneral", "STIXGeneral"),
    {sign: tuple((file, sign) for file in _STIX_SIZES) for sign in "()[]{}√"},
    {"sum": ((_STIX_SIZES[1], "∑"), 1.0), "prod": ((_STIX_SIZES[1], "∏"), 1.0), "int": ((_STIX_SIZES[0], "∫"), 1.7)},
)  # fmt: skip
DEJAVU = Signs(
    "DejaVuSerif-Italic", "DejaVuSerif", _named("DejaVuSerif-Italic", "DejaVuSerif", "DejaVuSans"),
    {sign: (("DejaVuSans", sign),) for sign in "()[]{}√"},
    {"sum": (("DejaVuSans", "∑"), 1.5), "prod": (("DejaVuSans", "∏"), 1.5), "int": (("DejaVuSans", "∫"), 1.7)},
)  # fmt: skip
TEX = Signs(
    "cmmi10", "cmr10",
    {name: ("cmmi10", letter) for name, letter in _TEX_GREEK.items()}
    | {name: ("cmr10", letter) for name, letter in _TEX_CAPITALS.items()}
    | {name: ("cmsy10", letter) for name, letter in _TEX_SYMBOLS.items()},
    {sign: ((first, letters[0]), *(("cmex10", letter) for letter in letters[1:])) for sign, first, letters in (
        ("(", "cmr10", "(\xa1\xb3\xb5\xc3"), (")", "cmr10", ")\xa2\xb4\xb6!"), ("[", "cmr10", "[\xa3h\u2219\""),
        ("]", "cmr10", "]\xa4i\xb8#"), ("{", "cmsy10", "f\xa9n\xbd("), ("}", "cmsy10", "g\xaao\xbe)"),
        ("√", "cmsy10", "ppqrs"))},
    {"sum": (("cmex10", "X"), 1.0), "prod": (("cmex10", "Y"), 1.0), "int": (("cmex10", "Z"), 1.0)},
)  # fmt: skip


@dataclass(frozen=True)
class Type:
    """Signs at a size in pixels."""

    signs: Signs
    size: int

    def script(self) -> "Type":
        return replace(self, size=max(5, round(self.size * 0.7)))

    def em(self, share: float) -> int:
        return round(self.size * share)

    @property
    def axis(self) -> int:
        """How far above the baseline bars and operators are centred."""
        return round(self.size * 0.26)

    @property
    def stroke(self) -> int:
        return max(1, round(self.size / 18))


@dataclass(frozen=True)
class Piece:
    """Set ink: glyphs and bars about a baseline at y = 0, y down, with an advance width and what it says."""

    width: int
    ink: tuple[tuple[int, int, Any], ...]  # x, y, mask
    bars: tuple[Corners, ...]
    box: Corners  # of the ink
    plain: str
    parts: tuple[tuple[str, str, Corners], ...] = ()  # name, what it says, box

    def shifted(self, x: int, y: int) -> "Piece":
        return replace(
            self,
            ink=tuple((x + a, y + b, mask) for a, b, mask in self.ink),
            bars=tuple(_moved(bar, x, y) for bar in self.bars),
            box=_moved(self.box, x, y),
            parts=tuple((name, plain, _moved(box, x, y)) for name, plain, box in self.parts),
        )


Formula = Callable[[Type], Piece]


def _moved(box: Corners, x: int, y: int) -> Corners:
    return box[0] + x, box[1] + y, box[2] + x, box[3] + y


def _joined(pieces: list[Piece], width: int, plain: str, bars: tuple[Corners, ...] = ()) -> Piece:
    """Pieces already in place, as one."""
    boxes = [*bars, *(piece.box for piece in pieces if piece.ink or piece.bars)]
    edges = list(zip(*boxes, strict=True))
    return Piece(
        width,
        tuple(glyph for piece in pieces for glyph in piece.ink),
        (*(bar for piece in pieces for bar in piece.bars), *bars),
        (min(edges[0]), min(edges[1]), max(edges[2]), max(edges[3])),
        plain,
        tuple(part for piece in pieces for part in piece.parts),
    )


@lru_cache(maxsize=16384)
def _sign(file: str, letter: str, size: int, plain: str) -> Piece:
    font = load_file(file, size)
    mask, (x, y) = font.getmask2(letter, "L", anchor="ls")
    ink = mask.getbbox()
    if ink is None or bytes(mask) == bytes(font.getmask("\uffff", "L")):
        raise DataError(f"{file} has no sign for {letter!r} ({plain}): choose another")
    width = max(round(font.getlength(letter)), x + ink[2])  # slanted letters lean out of their advance
    return Piece(width, ((x, y, mask),), (), (x + ink[0], y + ink[1], x + ink[2], y + ink[3]), plain)


def symbol(name: str) -> Formula:
    """A Greek letter, a sign or a relation by its ASCII name."""
    return lambda type_: _sign(*type_.signs.symbols[name], type_.size, name)


def letter(sign: str) -> Formula:
    """An italic letter: a variable."""
    return lambda type_: _sign(type_.signs.italic, sign, type_.size, sign)


def roman(text: str) -> Formula:
    """Upright digits or letters: numbers, names of functions."""

    def set_(type_: Type) -> Piece:
        pieces, x = [], 0
        for sign in text:
            piece = _sign(type_.signs.roman, sign, type_.size, sign)
            pieces.append(piece.shifted(x, 0))
            x += piece.width
        return _joined(pieces, x, text)

    return set_


def row(*formulas: Formula, gap: float = 0.0, sep: str = "") -> Formula:
    """One after another, with a gap in ems between them and `sep` between what they say."""

    def set_(type_: Type) -> Piece:
        pieces, x = [], 0
        for formula in formulas:
            piece = formula(type_).shifted(x, 0)
            pieces.append(piece)
            x += piece.width + type_.em(gap)
        return _joined(pieces, x - type_.em(gap), sep.join(piece.plain for piece in pieces))

    return set_


def times(*formulas: Formula) -> Formula:
    """A product: side by side."""
    return row(*formulas, gap=0.06, sep=" ")


def sum_of(*formulas: Formula) -> Formula:
    """Terms, relations and operators with the room that operators take; they are given among the terms."""
    return row(*formulas, gap=0.24, sep=" ")


def plus() -> Formula:
    return roman("+")


def minus() -> Formula:
    return symbol("-")


def equals() -> Formula:
    return roman("=")


def named(name: str, formula: Formula) -> Formula:
    """The formula, with its box and what it says kept as a part.

    >>> piece = times(named("factor", roman("2.4")), letter("t"))(Type(STIX, 20))
    >>> [(name, plain) for name, plain, _ in piece.parts]
    [('factor', '2.4')]
    """

    def set_(type_: Type) -> Piece:
        piece = formula(type_)
        return replace(piece, parts=(*piece.parts, (name, piece.plain, piece.box)))

    return set_


def scripts(base: Formula, below: Formula | None = None, above: Formula | None = None) -> Formula:
    """A base with a subscript, a superscript or both."""

    def set_(type_: Type) -> Piece:
        root, small = base(type_), type_.script()
        pieces, width, plain = [root], 0, root.plain
        start = root.width + max(0, type_.em(0.03))
        if below is not None:
            low = below(small)
            drop = max(type_.em(0.2), root.box[3] - type_.em(0.05))
            if above is not None:
                drop = max(drop, type_.em(0.28))
            pieces.append(low.shifted(start - type_.em(0.06), drop))
            width, plain = max(width, low.width - type_.em(0.06)), f"{plain}_{_grouped(low.plain)}"
        if above is not None:
            high = above(small)
            rise = max(type_.em(0.38), -root.box[1] - type_.em(0.3))
            rise = max(rise, high.box[3] + type_.em(0.24))
            pieces.append(high.shifted(start + type_.em(0.03), -rise))
            width, plain = max(width, high.width + type_.em(0.03)), f"{plain}^{_grouped(high.plain)}"
        return _joined(pieces, start + width + type_.em(0.05), plain)

    return set_


def fraction(top: Formula, bottom: Formula) -> Formula:
    """One over the other, at full size, with a bar on the axis.

    >>> piece = fraction(letter("x"), sum_of(roman("3.5"), plus(), symbol("alpha")))(Type(STIX, 20))
    >>> piece.plain, piece.width == max(bar[2] for bar in piece.bars) + 1
    ('x/(3.5 + alpha)', True)
    """

    def set_(type_: Type) -> Piece:
        high, low = top(type_), bottom(type_)
        pad, gap = type_.em(0.1), max(2, type_.em(0.2))
        width = max(high.width, low.width) + 2 * pad
        bar_top = -type_.axis - type_.stroke // 2
        bar = (pad // 2, bar_top, width - pad // 2, bar_top + type_.stroke)
        numerator = high.shifted((width - high.width) // 2, bar_top - gap - high.box[3])
        denominator = low.shifted((width - low.width) // 2, bar[3] + gap - low.box[1])
        plain = f"{_grouped(high.plain, '()')}/{_grouped(low.plain, '()')}"
        return _joined([numerator, denominator], width, plain, (bar,))

    return set_


def root(inside: Formula) -> Formula:
    """A square root whose sign grows with what it covers."""

    def set_(type_: Type) -> Piece:
        covered = inside(type_)
        gap = type_.stroke + max(1, type_.em(0.12))
        top, bottom = covered.box[1] - gap, max(covered.box[3], 0) + type_.em(0.06)
        sign = _grown(type_, "√", bottom - top)
        sign = sign.shifted(-min(0, sign.box[0]), top - sign.box[1])
        start = sign.box[2]
        bar = (start - 1, top, start + covered.width + type_.em(0.12), top + type_.stroke)
        body = covered.shifted(start + type_.em(0.04), 0)
        return _joined([sign, body], bar[2] + type_.em(0.05), f"sqrt({covered.plain})", (bar,))

    return set_


def bracket(inside: Formula, ends: str = "()") -> Formula:
    """Brackets as tall as what they hold."""

    def set_(type_: Type) -> Piece:
        held = inside(type_)
        reach = max(-held.box[1] - type_.axis, held.box[3] + type_.axis)  # brackets are centred on the axis
        pieces, x = [], 0
        left, right = (_grown(type_, end, round(1.8 * reach)) for end in ends)
        for piece in (left, held, right):
            lift = 0 if piece is held else -type_.axis - (piece.box[1] + piece.box[3]) // 2
            pieces.append(piece.shifted(x, lift))
            x += piece.width + type_.em(0.02)
        return _joined(pieces, x, f"{ends[0]}{held.plain}{ends[1]}")

    return set_


def _grown(type_: Type, sign: str, height: int) -> Piece:
    """The smallest size of a growing sign at least this tall; the largest is enlarged where none is."""
    for file, drawn in type_.signs.growing[sign]:
        piece = _sign(file, drawn, type_.size, sign)
        tall = piece.box[3] - piece.box[1]
        if tall >= height:
            return piece
    return _sign(file, drawn, -(-type_.size * height // tall), sign)


def large(name: str, below: Formula | None = None, above: Formula | None = None) -> Formula:
    """A large operator: sum and prod with their limits under and over, int with its limits at its right."""

    def set_(type_: Type) -> Piece:
        (file, drawn), share = type_.signs.large[name]
        sign = _sign(file, drawn, round(type_.size * share), name)
        sign = sign.shifted(0, -type_.axis - (sign.box[1] + sign.box[3]) // 2)
        small, plain, gap = type_.script(), name, type_.em(0.14)
        low = below(small) if below is not None else None
        high = above(small) if above is not None else None
        plain += f"_{_grouped(low.plain)}" if low is not None else ""
        plain += f"^{_grouped(high.plain)}" if high is not None else ""
        if name == "int":
            pieces, right = [sign], sign.box[2]
            if low is not None:
                pieces.append(low.shifted(right - type_.em(0.15), sign.box[3] - type_.em(0.1)))
            if high is not None:
                pieces.append(high.shifted(right + type_.em(0.1), sign.box[1] + type_.em(0.1) - high.box[1]))
            return _joined(pieces, max(piece.box[2] for piece in pieces) + type_.em(0.1), plain)
        width = max(piece.width for piece in (sign, low, high) if piece is not None)
        pieces = [sign.shifted((width - sign.width) // 2, 0)]
        if low is not None:
            pieces.append(low.shifted((width - low.width) // 2, sign.box[3] + gap - low.box[1]))
        if high is not None:
            pieces.append(high.shifted((width - high.width) // 2, sign.box[1] - gap - high.box[3]))
        return _joined(pieces, width, plain)

    return set_


def _grouped(plain: str, ends: str = "{}") -> str:
    """What a part says, in brackets where it is more than one word or sign."""
    return plain if plain.isalnum() or plain.replace(".", "").isdigit() else f"{ends[0]}{plain}{ends[1]}"


def draw(page: Page, x: int, y: int, piece: Piece, fill: Colour | None = None) -> dict[str, tuple[str, Box]]:
    """Put a set formula on a page, its baseline from (x, y): its named parts, and the whole of it as ''."""
    ink = page.pen.draw.draw_ink(fill or page.ink)
    for a, b, mask in piece.ink:
        page.pen.draw.draw_bitmap((x + a, y + b), mask, ink)
    for a, b, c, d in piece.bars:
        page.pen.rectangle((x + a, y + b, x + c - 1, y + d - 1), fill=fill or page.ink)
    found: dict[str, tuple[str, Box]] = {"": (piece.plain, _moved(piece.box, x, y))}
    found |= {name: (plain, _moved(box, x, y)) for name, plain, box in piece.parts}
    page.written.extend(found.values())
    return found
