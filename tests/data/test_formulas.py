"""Formulas are set as formulas: fractions, scripts, roots, sums and brackets stand where they should, and say so."""

import re

import pytest

from homunculus.data.dice import Dice
from homunculus.data.documents import equations, formulas
from homunculus.data.documents.formulas import (
    DEJAVU,
    STIX,
    TEX,
    Type,
    bracket,
    fraction,
    large,
    named,
    plus,
    roman,
    root,
    row,
    scripts,
    sum_of,
    symbol,
    times,
)  # fmt: skip
from homunculus.data.documents.formulas import letter as italic
from homunculus.errors import DataError
from tests.data.sheets import blank, inked, inside

SIGNS = pytest.mark.parametrize("signs", [STIX, DEJAVU, TEX], ids=["stix", "dejavu", "tex"])


@SIGNS
@pytest.mark.parametrize("size", [10, 16, 20, 24, 40])
def test_a_fraction_has_its_numerator_over_its_bar_over_its_denominator(signs, size):
    piece = fraction(named("top", italic("y")), named("bottom", sum_of(italic("x"), plus(), roman("7.31"))))(
        Type(signs, size)
    )
    boxes = {name: box for name, _, box in piece.parts}
    (bar,) = piece.bars
    assert boxes["top"][3] < bar[1] < bar[3] < boxes["bottom"][1]
    assert bar[0] <= min(boxes["top"][0], boxes["bottom"][0]) and bar[2] >= max(boxes["top"][2], boxes["bottom"][2])
    middles = [(box[0] + box[2]) / 2 for box in (*boxes.values(), bar)]
    assert max(middles) - min(middles) <= size / 6


@SIGNS
@pytest.mark.parametrize("base", ["x", "f", "M"])
def test_a_superscript_is_higher_and_smaller_than_its_base(signs, base):
    type_ = Type(signs, 24)
    piece = scripts(named("base", italic(base)), named("low", roman("2")), named("high", roman("2")))(type_)
    boxes = {name: box for name, _, box in piece.parts}
    full = roman("2")(type_).box
    for name in ("low", "high"):
        assert boxes[name][3] - boxes[name][1] < full[3] - full[1]
        assert boxes[name][0] >= boxes["base"][2] - 3  # a subscript tucks in under a slanted letter
    assert boxes["high"][1] < boxes["base"][1] and boxes["high"][3] < 0
    assert boxes["low"][3] > max(0, full[3]) and boxes["low"][1] > boxes["high"][3]
    assert piece.plain == f"{base}_2^2"


@SIGNS
def test_widths_add_up_and_parts_stand_one_after_another(signs):
    type_ = Type(signs, 20)
    parts = [roman("3.7"), italic("x"), symbol("alpha")]
    assert row(*parts)(type_).width == sum(part(type_).width for part in parts)
    gap = type_.em(0.24)
    assert sum_of(*parts)(type_).width == sum(part(type_).width for part in parts) + 2 * gap
    piece = row(*(named(str(place), part) for place, part in enumerate(parts)))(type_)
    starts = [box[0] for _, _, box in piece.parts]
    assert starts == sorted(starts) and len(set(starts)) == 3


@SIGNS
def test_a_root_covers_what_is_under_it(signs):
    piece = root(named("in", fraction(roman("86"), italic("g"))))(Type(signs, 20))
    box = piece.parts[0][2]
    bar = piece.bars[-1]
    assert bar[3] <= box[1] and bar[0] <= box[0] and bar[2] >= box[2]
    assert piece.box[3] >= box[3] - 1 and piece.plain == "sqrt(86/g)"


@SIGNS
def test_brackets_grow_with_what_they_hold(signs):
    type_ = Type(signs, 20)
    low, tall = (
        bracket(named("in", italic("x")))(type_),
        bracket(named("in", fraction(italic("x"), italic("y"))))(type_),
    )
    height = [piece.box[3] - piece.box[1] for piece in (low, tall)]
    assert height[1] > 1.4 * height[0]
    held = tall.parts[0][2]
    assert height[1] >= 0.85 * (held[3] - held[1])
    assert low.plain == "(x)" and tall.plain == "(x/y)"


@SIGNS
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_limits_stand_over_and_under_a_large_operator(signs, name):
    low = sum_of(named("index", italic("i")), roman("="), named("low", roman("3")))
    piece = large(name, low, named("high", roman("47")))(Type(signs, 20))
    boxes = {part: box for part, _, box in piece.parts}
    sign = piece.ink[0]
    top, bottom = sign[1] + sign[2].getbbox()[1], sign[1] + sign[2].getbbox()[3]
    assert boxes["high"][3] <= top < bottom <= boxes["low"][1]
    assert piece.plain == f"{name}_{{i = 3}}^47"


@SIGNS
def test_every_sign_exists(signs):
    type_ = Type(signs, 20)
    for name in signs.symbols:
        assert symbol(name)(type_).plain == name
    for name in ("sum", "prod", "int"):
        assert (
            large(name)(type_).box[3] - large(name)(type_).box[1] > roman("1")(type_).box[3] - roman("1")(type_).box[1]
        )
    for variants in signs.growing.values():
        for file, sign in variants:
            assert formulas._sign(file, sign, 20, sign).width > 0


def test_a_sign_that_a_font_lacks_is_an_error():
    with pytest.raises(DataError, match="has no sign"):
        formulas._sign("cmmi10", "Ж", 20, "zhe")


@pytest.mark.parametrize("split", ["train", "test-ood"])
def test_the_box_of_a_drawn_formula_is_its_ink_and_holds_its_parts(split):
    signs = TEX if split == "test-ood" else STIX
    for place in range(60):
        found = equations.equation(Dice("equation", place))
        piece = found.formula(Type(signs, 20))
        page = blank(split=split)
        parts = formulas.draw(page, 40, 200, piece)
        whole = parts.pop("")[1]
        assert inked(page) == whole
        assert set(found.asked) <= set(parts)
        assert all(inside(box, whole) for _, box in parts.values())
        assert all(plain.isascii() for plain, _ in parts.values())
        assert all("@" in wording for wordings in found.asked.values() for wording in wordings)
        assert whole[2] <= 40 + piece.width + 2


def test_a_right_hand_side_says_all_its_constants():
    found = equations._polynomial(Dice("polynomial"))
    parts = {name: plain for name, plain, _ in found.formula(Type(STIX, 20)).parts}
    assert re.fullmatch(
        rf"{re.escape(parts['square'])} \w\^2 \+ {re.escape(parts['linear'])} \w \+ {re.escape(parts['constant'])}",
        parts["right"],
    )


def test_a_product_is_not_a_sum():
    type_ = Type(STIX, 20)
    one = times(roman("2"), italic("x"))(type_)
    assert one.plain == "2 x" and one.width < sum_of(roman("2"), italic("x"))(type_).width
