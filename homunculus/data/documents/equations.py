"""Random equations as papers number them, each with questions about its parts: `@` in a question is its number."""

from collections.abc import Callable
from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.documents.formulas import (
    CAPITALS,
    GREEK,
    Formula,
    bracket,
    equals,
    fraction,
    large,
    letter,
    minus,
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

_GREEK = tuple(name for name in GREEK if name != "pi")
_VARIABLES = "xyzuvwtrsqpm"
_INDICES = "ijklmnabcdhpqrs"
_FUNCTIONS = "fghFGHPQRSTUVW"


@dataclass(frozen=True)
class Equation:
    """A formula with named parts, and the ways to ask for each of them."""

    formula: Formula
    asked: dict[str, tuple[str, ...]]


def equation(dice: Dice) -> Equation:
    """One of many kinds, with constants that cannot be guessed.

    >>> "right" in equation(Dice("an equation")).asked
    True
    """
    return dice.choice(_KINDS)(dice)


def number(dice: Dice) -> str:
    """A constant of two to four digits."""
    return dice.choice((
        f"{dice.integer(11, 999) / 100:.2f}", f"{dice.integer(11, 999) / 10:.1f}", f"{dice.integer(12, 989)}",
        f"0.{dice.integer(101, 999)}", f"{dice.integer(101, 9899) / 100:.2f}",
    ))  # fmt: skip


def _whole(left: Formula, right: Formula, **asked: tuple[str, ...]) -> Equation:
    """left = right, and by the names of its parts the ways to ask for them."""
    wordings = (
        "What is the right-hand side of equation @?",
        "What stands to the right of the equals sign in equation @?",
        "Write out the right-hand side of @.",
    )
    return Equation(sum_of(left, equals(), named("right", right)), {**asked, "right": wordings})


def _sign(dice: Dice) -> Formula:
    return dice.choice((plus, minus))()


def _function(dice: Dice) -> tuple[Formula, str]:
    """f(x), and the name of its variable."""
    variable = dice.choice(_VARIABLES)
    return row(letter(dice.choice(_FUNCTIONS)), bracket(letter(variable))), variable


def _polynomial(dice: Dice) -> Equation:
    left, v = _function(dice)
    right = sum_of(
        times(named("square", roman(number(dice))), scripts(letter(v), above=roman("2"))),
        plus(),
        times(named("linear", roman(number(dice))), letter(v)),
        plus(),
        named("constant", roman(number(dice))),
    )
    return _whole(
        left,
        right,
        square=(
            f"Which constant multiplies {v} squared in equation @?",
            f"What is the coefficient of {v}^2 in @?",
            f"In equation @, which number stands before {v} squared?",
        ),
        linear=(
            f"Which constant multiplies {v} to the first power in equation @?",
            "What is the coefficient of the linear term in equation @?",
        ),
        constant=(
            "What is the constant term of equation @?",
            "Which number stands alone at the end of @?",
        ),
    )


def _sum(dice: Dice) -> Equation:
    index = dice.choice(_INDICES)
    v = dice.choice([variable for variable in _VARIABLES if variable != index])
    greek = dice.choice(_GREEK)
    low, high = str(dice.integer(0, 60)), str(dice.integer(61, 999))
    operator = dice.choice(("sum", "sum", "prod"))
    said = {"sum": "sum", "prod": "product"}[operator]
    over = large(
        operator, sum_of(named("index", letter(index)), equals(), named("low", roman(low))), named("high", roman(high))
    )
    term = times(scripts(named("greek", symbol(greek)), letter(index)), scripts(letter(v), letter(index), roman("2")))
    left = scripts(letter(dice.choice(_FUNCTIONS)), roman(str(dice.integer(0, 9))))
    done = {"sum": "summed", "prod": "multiplied"}[operator]
    return _whole(
        left,
        row(over, row(roman(number(dice)), symbol("cdot"), term, gap=0.12, sep=" "), gap=0.12, sep=" "),
        index=(
            f"Which letter is {done} over in equation @?",
            f"What is the index of the {said} in @?",
        ),
        high=(
            f"At which number does the {said} in equation @ end?",
            f"What is the upper limit of the {said} in @?",
        ),
        low=(
            f"At which number does the {said} in equation @ start?",
            f"What is the lower limit of the {said} in @?",
        ),
        greek=(f"Which Greek letter is in the {said} of equation @?",),
    )


def _quotient(dice: Dice) -> Equation:
    u, v = dice.sample(_VARIABLES, 2)
    top = sum_of(times(roman(number(dice)), letter(u)), _sign(dice), roman(number(dice)))
    under = sum_of(scripts(letter(v), above=roman("2")), plus(), named("root", roman(number(dice))))
    return _whole(
        symbol(dice.choice(_GREEK)),
        fraction(named("top", top), root(under)),
        root=(
            "Which number is added under the root in equation @?",
            "What constant stands under the root sign of @?",
        ),
        top=(
            "What is the numerator in equation @?",
            "What stands above the fraction bar of equation @?",
        ),
    )


def _integral(dice: Dice) -> Equation:
    v = dice.choice("tsxuvr")
    low, high = f"{dice.integer(1, 99) / 10}", f"{dice.integer(101, 999) / 10}"
    power = row(minus(), times(named("rate", roman(number(dice))), letter(v)))
    inside = times(scripts(letter("e"), above=power), letter(dice.choice(_FUNCTIONS)), bracket(letter(v)))
    over = large("int", named("low", roman(low)), named("high", roman(high)))
    return _whole(
        scripts(letter("I"), roman(str(dice.integer(1, 9)))),
        row(over, inside, row(letter("d"), letter(v)), gap=0.12, sep=" "),
        high=(
            "What is the upper limit of the integral in equation @?",
            "Up to which value is @ integrated?",
        ),
        low=(
            "What is the lower limit of the integral in equation @?",
            "From which value on is @ integrated?",
        ),
        rate=(
            f"Which number multiplies {v} in the exponent of equation @?",
            "Which constant is in the exponent of @?",
        ),
    )


def _diffusion(dice: Dice) -> Equation:
    u = dice.choice("uvwpTc")
    right = sum_of(
        times(named("spread", roman(number(dice))), scripts(symbol("nabla"), above=roman("2")), letter(u)),
        minus(),
        times(named("decay", roman(number(dice))), letter(u)),
    )
    left = fraction(row(symbol("partial"), letter(u), sep=" "), row(symbol("partial"), letter("t"), sep=" "))
    return _whole(
        left,
        right,
        spread=(
            "Which number stands before the nabla in equation @?",
            "What multiplies the Laplacian in equation @?",
        ),
        decay=(
            f"Which number is subtracted as a multiple of {u} in equation @?",
            f"Which number stands before the last {u} of equation @?",
        ),
    )


def _decay(dice: Dice) -> Equation:
    left, v = _function(dice)
    inside = row(minus(), fraction(letter(v), named("scale", roman(number(dice)))))
    right = times(named("front", roman(number(dice))), row(roman("exp"), bracket(inside)))
    return _whole(
        left,
        right,
        front=(
            "Which constant stands before exp in equation @?",
            "What is the prefactor in equation @?",
        ),
        scale=(
            f"By which number is {v} divided in equation @?",
            "What is the denominator in the exponent of @?",
        ),
    )


def _power(dice: Dice) -> Equation:
    u, v = dice.sample("NMLKRSDEAB", 2)
    power = (
        row(minus(), named("power", roman(number(dice)))) if dice.chance(0.5) else named("power", roman(number(dice)))
    )
    right = times(named("front", roman(number(dice))), scripts(symbol(dice.choice(_GREEK)), letter("c")),
                  scripts(letter(v), above=power))  # fmt: skip
    return _whole(
        letter(u),
        right,
        power=(
            f"Which number is in the exponent of {v} in equation @?",
            "What number is raised in equation @?",
        ),
        front=(
            "Which constant stands first on the right of equation @?",
            "What is the prefactor in equation @?",
        ),
    )


def _nested(dice: Dice) -> Equation:
    one, two = dice.sample(_GREEK, 2)
    inside = sum_of(
        named("start", roman(number(dice))),
        _sign(dice),
        fraction(symbol(one), times(named("under", roman(number(dice))), symbol(two))),
    )
    right = times(
        root(fraction(named("over", roman(number(dice))), letter(dice.choice("gkhm")))),
        bracket(inside, dice.choice(("[]", "{}", "()"))),
    )
    return _whole(
        scripts(symbol(dice.choice(tuple(CAPITALS))), letter(dice.choice("abcdhjks"))),
        right,
        over=(
            "Which number stands under the root in equation @?",
            "What is the numerator under the root sign of @?",
        ),
        start=("Which number comes first inside the brackets of equation @?",),
        under=(f"Which number multiplies {two} in equation @?",),
    )


def _constant(dice: Dice) -> Equation:
    mean, error = named("mean", roman(number(dice))), named("error", roman(f"0.{dice.integer(11, 99)}"))
    power = row(minus(), named("power", roman(str(dice.integer(11, 39)))))
    scale = scripts(roman("10"), above=power)
    return _whole(
        scripts(symbol(dice.choice(_GREEK)), roman(str(dice.integer(0, 9)))),
        sum_of(bracket(sum_of(mean, symbol("pm"), error)), symbol("times"), scale),
        mean=("Which value stands before the plus-minus sign in equation @?", "What mean does equation @ give?"),
        error=("Which uncertainty is given in equation @?", "What follows the plus-minus sign in equation @?"),
        power=("Which number stands after the minus sign in the power of ten in equation @?",),
    )


_KINDS: tuple[Callable[[Dice], Equation], ...] = (
    _polynomial, _sum, _sum, _quotient, _integral, _diffusion, _decay, _power, _nested, _constant,
)  # fmt: skip
