"""What stands on a page: names, addresses, goods, sentences, and values that nobody can guess.

Every maker takes a `Dice`. The words come from the split's vocabulary; codes, dates, amounts and the like come from
sets so large that one who does not see the page is right once in hundreds of times at best.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from homunculus.data.dice import Dice
from homunculus.data.documents.vocabulary import HELD_OUT, ORDINARY, Vocabulary
from homunculus.data.record import Split

T = TypeVar("T")

_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"  # no I, O, Q: they read as digits
_DIGITS = "0123456789"
# A is a letter, 9 a digit, * either.
_CODES = (
    "AA-99999", "AAA-9999", "A99999", "9999-AA-99", "AA9999A", "99/99999", "A-9999/99", "AAA.999.999", "99-9999-9",
    "AAAA-99", "9999 9999", "A9A 9A9A", "***-***", "AA 99 99 99", "9999999", "A*9*9*9", "99A-999A", "AA/9999/AA",
    "9-99-9999", "AAA99-99", "*****-**", "9999.99.A", "AA999", "A/99-999",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
DATE_SHAPES = 9
_RULES = (
    "Please keep the {one} until the {two} has been {done}.", "The {one} may not be {done} without a {two}.",
    "Every {kind} {one} must be {done} within {days} days.", "Nothing is {done} in the last {days} minutes.",
    "Quote {code} in all letters about the {one}.", "A {kind} {one} cannot be {done} or exchanged for a {two}.",
    "If the {one} is {done}, show this page at the {two}.", "Bring the {kind} {one} and a copy of the {two}.",
    "The {two} is liable for a {done} {one} only under rule {code}.",
)  # fmt: skip
_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])(?!uni|use|usu)")  # where a is an
_ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth",
)  # fmt: skip


class Words:
    """The words of a split and makers of values.

    >>> words, dice = Words("train"), Dice("words")
    >>> words.code(dice), words.date(dice), words.person(dice), words.amount(dice, "EUR")
    ('KJ4K0K3', '5.7.2022', 'Leo Duncombe', '1.40 EUR')
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self.held_out = split == "test-ood"
        self.vocabulary: Vocabulary = HELD_OUT if self.held_out else ORDINARY

    # People and places

    def first_name(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.first_names)

    def surname(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.surname_heads) + dice.choice(self.vocabulary.surname_tails)

    def person(self, dice: Dice) -> str:
        """A name, in full or with initials."""
        first, last = self.first_name(dice), self.surname(dice)
        shape = dice.integer(0, 5)
        if shape == 0:
            return f"{first[0]}. {dice.choice(_LETTERS)}. {last}"
        return f"{first} {dice.choice(_LETTERS)}. {last}" if shape == 1 else f"{first} {last}"

    def town(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.town_heads) + dice.choice(self.vocabulary.town_tails)

    def street(self, dice: Dice) -> str:
        """A street and a number in it."""
        name = self.surname(dice) if dice.chance(0.4) else self.town(dice)
        return f"{dice.integer(1, 399)} {name} {dice.choice(self.vocabulary.roads)}"

    def country(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.countries)

    def postcode(self, dice: Dice) -> str:
        return self.pattern(dice, dice.choice(("99999", "AA9 9AA", "9999 AA", "99-999", "A99 9AA", "AA99 9AA")))

    # Firms and goods

    def company(self, dice: Dice) -> str:
        """A firm with its trade, mostly with its form."""
        head = dice.choice(self.vocabulary.company_heads) if dice.chance(0.6) else self.surname(dice)
        name = f"{head} {dice.choice(self.vocabulary.company_trades)}"
        return f"{name} {dice.choice(self.vocabulary.company_forms)}" if dice.chance(0.7) else name

    def product(self, dice: Dice) -> str:
        """Goods: a finish and a thing, a make and a thing, or all three."""
        make, thing = dice.choice(self.vocabulary.makes), dice.choice(self.vocabulary.things)
        finish = dice.choice(self.vocabulary.finishes)
        return dice.choice((f"{finish.capitalize()} {thing}", f"{make} {thing}", f"{thing.capitalize()}, {finish}"))

    def products(self, dice: Dice, count: int) -> list[str]:
        return different(lambda: self.product(dice), count)

    def dish(self, dice: Dice) -> str:
        return f"{dice.choice(self.vocabulary.dishes)} with {dice.choice(self.vocabulary.sides)}"

    def eatery(self, dice: Dice) -> str:
        head = dice.choice(self.vocabulary.company_heads) if dice.chance(0.5) else self.first_name(dice)
        return f"{head} {dice.choice(self.vocabulary.eateries)}"

    def department(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.departments)

    def job(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.jobs).capitalize()

    def event(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.events)

    # Text

    def noun(self, dice: Dice) -> str:
        return dice.choice(self.vocabulary.nouns)

    def heading(self, dice: Dice) -> str:
        """Two to four words that name a section."""
        adjective, verb = dice.choice(self.vocabulary.adjectives), dice.choice(self.vocabulary.verbs)
        one, two = different(lambda: self.noun(dice), 2)
        return dice.choice(
            (f"{adjective} {one} and {two}", f"{one} {two}", f"{adjective} {one}", f"the {verb} {one}",
             f"{one} of the {two}", f"{adjective} {one} {two}", f"on the {adjective} {one}")
        ).capitalize()  # fmt: skip

    def sentence(self, dice: Dice) -> str:
        """A plain sentence of 6 to 20 words."""
        return dice.choice(_SENTENCES)(self, dice)

    def rule(self, dice: Dice) -> str:
        """A sentence as in conditions and instructions."""
        rule = dice.choice(_RULES).format(
            one=self.noun(dice), two=self.noun(dice), done=dice.choice(self.vocabulary.verbs),
            kind=dice.choice(self.vocabulary.adjectives), days=dice.integer(2, 90), code=self.code(dice),
        )  # fmt: skip
        return _BEFORE_VOWEL.sub(r"\1n ", rule)

    def text(self, dice: Dice, sentences: int) -> str:
        return " ".join(self.sentence(dice) for _ in range(sentences))

    # Values

    def pattern(self, dice: Dice, pattern: str) -> str:
        """A pattern filled in: A is a letter, 9 a digit, * either."""
        alphabets = {"A": _LETTERS, "9": _DIGITS, "*": _LETTERS + _DIGITS}
        return "".join(dice.choice(alphabets[sign]) if sign in alphabets else sign for sign in pattern)

    def code(self, dice: Dice) -> str:
        return self.pattern(dice, dice.choice(_CODES))

    def number(self, dice: Dice, digits: int) -> str:
        return dice.choice(_DIGITS[1:]) + dice.letters(_DIGITS, digits - 1)

    def date(self, dice: Dice, shape: int | None = None, year: int = 0) -> str:
        """A day of a year from 1990 to 2035, or of the year given, in one of `DATE_SHAPES` formats."""
        day, month, year = dice.integer(1, 28), dice.integer(1, 12), year or dice.integer(1990, 2035)
        name = MONTHS[month - 1]
        shape = dice.integer(0, DATE_SHAPES - 1) if shape is None else shape
        return (
            f"{day:02}.{month:02}.{year}", f"{year}-{month:02}-{day:02}", f"{day} {name} {year}",
            f"{name} {day}, {year}", f"{day:02}/{month:02}/{year}", f"{day} {name[:3]} {year}",
            f"{day:02}-{name[:3].upper()}-{year % 100:02}", f"{month}/{day}/{year}", f"{day}.{month}.{year}",
        )[shape]  # fmt: skip

    def time(self, dice: Dice, sign: str = "") -> str:
        """A time of day with a sign between hour and minute, or as one has it before and after noon."""
        hour, minute = dice.integer(0, 23), dice.integer(0, 59)
        sign = sign or dice.choice((":", ".", "m", ":"))
        if sign == "m":
            return f"{hour % 12 or 12}:{minute:02} {'am' if hour < 12 else 'pm'}"
        return f"{hour:02}{sign}{minute:02}"

    def amount(self, dice: Dice, currency: str = "", low: float = 1, high: float = 9999) -> str:
        """A sum of money, more often small than large."""
        return money(round(100 * low * (high / low) ** dice.random()), currency)

    def phone(self, dice: Dice) -> str:
        return self.pattern(
            dice, dice.choice(("+99 99 999 9999", "099 999 9999", "(099) 9999-999", "0999-999 999", "+99 9999 999999"))
        )

    def domain(self, dice: Dice, company: str = "") -> str:
        """A web address, of a firm if one is given."""
        head, trade = (company or self.company(dice)).split()[:2]
        name = f"{head}{dice.choice(('', '-'))}{trade}".lower()
        return name + dice.choice((".com", ".org", ".net", ".eu", ".co.uk", ".de", ".io", ".example"))

    def email(self, dice: Dice, company: str = "") -> str:
        return f"{dice.choice((self.first_name, self.surname))(dice).lower()}@{self.domain(dice, company)}"

    def iban(self, dice: Dice) -> str:
        """An account number in groups of four."""
        return self.pattern(
            dice, dice.choice(("AA99 9999 9999 9999", "AA99 AAAA 9999 9999 99", "AA99 9999 9999 9999 99"))
        )

    def percentage(self, dice: Dice) -> str:
        return f"{dice.integer(1, 999) / 10:.1f}{dice.choice(('%', ' %'))}"

    def quantity(self, dice: Dice) -> str:
        """A number with a unit."""
        unit = dice.choice(("kg", "pcs", "m", "litres", "boxes", "sheets", "g", "km", "hours", "units", "mm", "packs"))
        return f"{dice.integer(2, 999)} {unit}"


def money(cents: int, currency: str = "") -> str:
    """A sum in cents with its currency: a sign stands before, a code of letters after.

    >>> money(123456, "EUR"), money(5, "$"), money(99)
    ('1,234.56 EUR', '$0.05', '0.99')
    """
    sum_ = f"{cents // 100:,}.{cents % 100:02}"
    if not currency:
        return sum_
    return f"{sum_} {currency}" if currency.isalpha() else f"{currency}{sum_}"


def currency(dice: Dice, can: Callable[[str], bool]) -> str:
    """A currency that the page can write."""
    return dice.choice([sign for sign in ("EUR", "USD", "GBP", "CHF", "SEK", "$", "€", "£", "CAD", "NOK") if can(sign)])


def ordinal(place: int) -> str:
    """The name of a place counted from 0, of the first twenty."""
    return _ORDINALS[place]


def different(make: Callable[[], T], count: int) -> list[T]:
    """`count` things no two of which are equal."""
    found: list[T] = []
    while len(found) < count:
        thing = make()
        if thing not in found:
            found.append(thing)
    return found


def _plain(words: Words, dice: Dice) -> str:
    return f"The {_thing(words, dice)} {_was(words, dice)}{_ending(words, dice)}."


def _joined(words: Words, dice: Dice) -> str:
    joint = dice.choice(("and", "but", "while", "although", "because", "so that", "after", "before", "as soon as"))
    return f"The {_thing(words, dice)} {_was(words, dice)}, {joint} the {_thing(words, dice)} {_was(words, dice)}."


def _opened(words: Words, dice: Dice) -> str:
    opening = dice.choice(
        ("In the meantime", "According to the {}", "Since the last {}", "Despite the {}", "For this reason",
         "As agreed", "At the {}", "Without the {}", "Apart from the {}", "On the other hand",
         "In addition", "As to the {}")
    ).format(words.noun(dice))  # fmt: skip
    return f"{opening}, the {_thing(words, dice)} {_was(words, dice)}{_ending(words, dice)}."


def _acting(words: Words, dice: Dice) -> str:
    who = dice.choice(("We have", "They have", "The others have", "", ""))
    if not who:
        who = f"The {words.job(dice).lower()} has" if dice.chance(0.6) else f"{words.person(dice)} has"
    return f"{who} {dice.choice(words.vocabulary.verbs)} the {_thing(words, dice)}{_ending(words, dice)}."


def _counting(words: Words, dice: Dice) -> str:
    return (
        f"About {dice.integer(3, 980)} {dice.choice(('of the', 'out of every thousand'))} {words.noun(dice)} "
        f"{dice.choice(('entries', 'cases', 'samples', 'visits', 'pages'))} {dice.choice(('were', 'had been'))} "
        f"{dice.choice(words.vocabulary.verbs)}{_ending(words, dice)}."
    )


def _thing(words: Words, dice: Dice) -> str:
    noun = words.noun(dice)
    return f"{dice.choice(words.vocabulary.adjectives)} {noun}" if dice.chance(0.6) else noun


def _was(words: Words, dice: Dice) -> str:
    helper = dice.choice(("was", "has been", "will be", "can be", "had to be", "is being", "was never", "is still"))
    return f"{helper} {dice.choice(words.vocabulary.verbs)}"


def _ending(words: Words, dice: Dice) -> str:
    """Where, when or why; empty at times."""
    ending = dice.choice(
        ("", "", " without delay", " in {town}", " by the {noun}", " near the {noun}", " for the {noun}",
         " under the {noun}", " on {days} {month}", " within {days} days")
    )  # fmt: skip
    return ending.format(
        town=words.town(dice), noun=words.noun(dice), days=dice.integer(2, 28), month=dice.choice(MONTHS)
    )


_SENTENCES: Sequence[Callable[[Words, Dice], str]] = (_plain, _plain, _joined, _opened, _acting, _counting)
