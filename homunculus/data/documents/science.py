"""What papers and reports state: measured quantities, parameters, references, journals."""

from dataclasses import dataclass

from homunculus.data.dice import Dice
from homunculus.data.documents.equations import number
from homunculus.data.documents.flow import mark
from homunculus.data.documents.formulas import GREEK
from homunculus.data.documents.words import Words

# What is measured, and its unit.
_MEASURED = (
    ("mean diameter", "mm"), ("peak temperature", "K"), ("critical load", "kN"), ("relaxation time", "ms"),
    ("sampling rate", "kHz"), ("contact angle", "degrees"), ("yield", "%"), ("flow rate", "ml/min"),
    ("bulk density", "kg/m3"), ("dose", "mg"), ("path length", "km"), ("response time", "s"), ("field strength", "mT"),
    ("wall thickness", "mm"), ("surface tension", "mN/m"), ("noise level", "dB"), ("power draw", "W"),
    ("activation energy", "kJ/mol"), ("error rate", "%"), ("clearance", "mm"), ("pressure drop", "kPa"),
    ("half-life", "days"),
)  # fmt: skip
_HELD_OUT_MEASURED = (
    ("luminance", "cd/m2"), ("salinity", "g/l"), ("torque", "N m"), ("porosity", "%"), ("turbidity", "NTU"),
    ("soak duration", "min"), ("sag", "mm"), ("albedo", "%"), ("stiffness", "MPa"), ("terminal velocity", "cm/s"),
    ("shear modulus", "GPa"), ("attenuation", "dB/m"),
)  # fmt: skip
_JOURNALS = ("Journal of {} {}", "Annals of {} {}", "{} {} Letters", "Transactions on {} {}", "{} {} Review")
_HELD_OUT_JOURNALS = ("Archiv for {} {}", "Bulletin of {} {}", "Acta {} {}", "Memoirs on {} {}")


@dataclass(frozen=True)
class Fact:
    """A sentence with a marked value, what the value is of, and the answers that count as right."""

    sentence: str
    of: str
    answers: tuple[str, ...]


def measured(words: Words, dice: Dice) -> Fact:
    """A quantity that was measured.

    >>> fact = measured(Words("train"), Dice("a fact"))
    >>> mark(fact.answers[0]) in fact.sentence, fact.answers[0].startswith(fact.answers[1])
    (True, True)
    """
    kind, unit = dice.choice(_HELD_OUT_MEASURED if words.held_out else _MEASURED)
    noun, figure = words.noun(dice), number(dice)
    value = f"{figure} {unit}"
    form = dice.choice((
        "The {} of the {} was found to be {}.", "For the {} of the {} we obtain {} on average.",
        "The {} of the {} amounts to {} in this setting.", "Here the {} of the {} reached {} after correction.",
        "We measured the {} of the {} and found {}.",
    ))  # fmt: skip
    return Fact(form.format(kind, noun, mark(value)), f"{kind} of the {noun}", (value, figure))


def parameter(words: Words, dice: Dice, place: str) -> tuple[Fact, str]:
    """A parameter named by a Greek letter, drawn where `place` stands in the sentence: the fact, and the letter."""
    greek, figure = dice.choice(tuple(GREEK)), number(dice)
    noun = words.noun(dice)
    form = dice.choice((
        "We set {} = {} for every {} below.", "The best fit has {} = {} and keeps the {} fixed.",
        "Throughout this section, {} is fixed at {} unless the {} says otherwise.",
        "With {} = {} the {} converges quickly.", "A value of {} = {} was chosen for the {}.",
    ))  # fmt: skip
    return Fact(form.format(place, mark(figure), noun), f"value of {greek}", (figure,)), greek


def journal(words: Words, dice: Dice) -> str:
    form = dice.choice(_HELD_OUT_JOURNALS if words.held_out else _JOURNALS)
    return form.format(dice.choice(words.vocabulary.adjectives).capitalize(), words.noun(dice).capitalize())


def author(words: Words, dice: Dice) -> str:
    return f"{words.first_name(dice)[0]}. {words.surname(dice)}"


@dataclass(frozen=True)
class Reference:
    """An entry of a list of references, its values marked in the text in this order."""

    text: str
    author: str
    volume: str
    pages: str
    year: str


def reference(words: Words, dice: Dice) -> Reference:
    first, other = author(words, dice), author(words, dice)
    volume, start, year = str(dice.integer(11, 480)), dice.integer(101, 1900), str(dice.integer(1931, 2029))
    pages = f"{start}-{start + dice.integer(4, 38)}"
    title = words.heading(dice)
    text = f"{mark(first)} and {other}. {title}. {journal(words, dice)}, {mark(volume)}:{mark(pages)}, {mark(year)}."
    return Reference(text, first, volume, pages, year)
