"""Texts that nobody knows by heart: invented words, names, codes, numbers, dates and sentences, all from dice.

Who has learnt a vocabulary instead of letters fails here: most words are made of random syllables, or are real ones
with a letter changed or with the end of another. The words that only `test-ood` sees are never made, not by accident.
"""

import re
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache

from homunculus.data.dice import Dice
from homunculus.data.documents.vocabulary import HELD_OUT, ORDINARY, Vocabulary
from homunculus.data.documents.words import MONTHS, money

LONGEST_WORD = 14
LOWER, UPPER, DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ONSETS = (
    *("bcdfghjklmnpqrstvwxyz" * 2),
    *_list(
        """bl br ch cl cr dr dw fl fr gh gl gn gr kh kl kn kr ph pl pr qu rh sc sch scr sh sk sl sm sn sp spl spr st str
        sw th thr tr ts tw vl wh wr zw"""
    ),
)
_NUCLEI = (*("aeiou" * 4), *_list("y y ai au ea ee ei eu ia ie io oa oo ou ua ue ui"))
_CODAS = (
    *"bcdfgklmnprstvwxz",
    *_list(
        """ck ct dge ff ft gh ld lf lk ll lm lt mp nd ng nk nt nx pt rb rch rd rk rm rn rst rt sh sk sp ss st tch th
        tt wn xt zz"""
    ),
)
_ENDINGS = _list(
    """able age al ance ant ary ate ation ed el en ence er ery es est et ful ian ible ic ier ify ing ion ish ism ist
    ity ive ize less let ling ly ment ness oid or ory ous ship sion some th tion tude ty ure ward work y"""
)
_PLACES = _list(
    """ac aven berg bo brae by dorf dyke ey grad holm ia ingen koye land lo nes ov pur sk stan stra ton um vik ville
    wych zell"""
)
_KINDS = _list("""Street Road Lane Square Hall Way Park Hill""")
_SMALL = _list("""the a of in and to is was by for on at no with from or as""")
_UNITS = _list("""kg g mm cm m km ml l pcs h min s W kW V Hz GB dpi pt t bar units""")
_TOPS = _list(""".com .org .net .eu .co.uk .de .io .example .info .fr .nz""")
_MARKED = ("Nr.", "No.", "Ref.", "ID", "#", "code", "(mm)", "in %", "I", "II", "2", "B", "per kg", "total", "of day")
# A is a capital, a a small letter, 9 a digit, * a capital or a digit, - one of the signs that part a code.
_CODES = (
    "A9", "99A", "AA-99", "A-9999", "AAA-999", "AA99999", "9999-AA", "A9A-9A9", "***-***", "****-****-****", "AAAA",
    "9-999-99", "aa-99", "a9a9a9", "AA 99 99", "9999 9999", "AAA-aaa-9", "9A9A9A9", "*****", "********", "Aa9-Aa9",
    "aaa_999", "AAA_AAA_9", "#9999", "#a9a9aa", "A#99", "99-99-99-99", "AA-AA-9999", "A.9.99", "99.9.9", "v9.99.9",
    "AA/99/AA", "9/99", "(A9)", "A9+A9", "999:999", "AAA99-99A", "**-****-*", "A-A-A", "99AA-aa",
)  # fmt: skip
_PHONES = (
    "+99 99 999 9999", "099 999 9999", "(099) 9999-999", "0999-999 999", "+99 9999 999999", "999.999.9999",
    "+9 (999) 999-9999", "09999/99999", "ext. 999", "999-9999",
)  # fmt: skip
# In these, w is a word and 9 a digit: every sign of ASCII comes up.
_ODD = (
    "[w]", "{w}", "<w>", '"w"', "'w'", "`w`", "w!", "w?", "~99", "w | w", "w^9", "w = 99", "\\w\\w", "99; 9", "w*",
    "9 & 9", "w & w", "w's", "$w", "%w%", "@w", "w/w", "w_w", "w: 9", "w, w", "(w)", "*w*", "9 + 9 = 9", "9 < 99",
    "99 > 9", "w -> w", "{9, 9}", "[9; 9]", "w || w", "~w", "w@9", "#w", "w (w)", "w...", "9 x 9", "9' 9\"", "!w",
    "w~w", "^w", "w=w", "9=9",
)  # fmt: skip
# Words that may come twice on a page.
COMMON = frozenset(
    word
    for texts in (_SMALL, _UNITS, _TOPS, _MARKED, _KINDS, MONTHS, [month[:3] for month in MONTHS])
    for text in texts
    for word in re.findall("[a-z]{3,}", text.lower())
) | {"www", "https", "ext", "van", "eur", "usd", "chf", "gbp", "sek", "mon", "tue", "thu", "sat", "table", "item"}


@lru_cache(maxsize=1)
def held_out_words() -> frozenset[str]:
    """Every word of `test-ood`, in small letters, names and towns put together."""
    lists = [getattr(HELD_OUT, field.name) for field in fields(Vocabulary)]
    words = {word for texts in lists for text in texts for word in re.findall("[a-z]{3,}", text.lower())}
    for heads, tails in (
        (HELD_OUT.surname_heads, HELD_OUT.surname_tails),
        (HELD_OUT.town_heads, HELD_OUT.town_tails),
    ):
        words |= {(head + tail).lower() for head in heads for tail in tails}
    return frozenset(words)


@lru_cache(maxsize=1)
def real_words() -> tuple[str, ...]:
    """The words of the ordinary splits, in small letters."""
    lists = [getattr(ORDINARY, field.name) for field in fields(Vocabulary) if "tails" not in field.name]
    words = {word for texts in lists for text in texts for word in re.findall("[a-z]{3,}", text.lower())}
    return tuple(sorted(words - held_out_words()))


# Words


def word(dice: Dice) -> str:
    """A word in small letters: of syllables, with a known ending, bent or spliced from real ones, or a real one.

    >>> dice = Dice("words")
    >>> [word(dice) for _ in range(6)]
    ['ndia', 'ruail', 'assigned', 'wreiarei', 'bnider', 'jxbbz']
    """
    while True:
        kind = dice.random()
        if kind < 0.44:
            made = "".join(syllable(dice) for _ in range(dice.weighted((1, 2, 3, 4), (5, 9, 5, 1))))
        elif kind < 0.6:
            made = syllable(dice) + (syllable(dice) if dice.chance(0.4) else "") + dice.choice(_ENDINGS)
        elif kind < 0.74:
            made = bent(dice, dice.choice(real_words()))
        elif kind < 0.86:
            one, two = dice.choice(real_words()), dice.choice(real_words())
            made = one[: (len(one) + 1) // 2] + two[len(two) // 2 :]
        elif kind < 0.89:
            made = dice.letters(LOWER, dice.integer(2, 6))
        else:
            made = dice.choice(real_words())
        if 2 <= len(made) <= LONGEST_WORD and made not in held_out_words():
            return made


def syllable(dice: Dice) -> str:
    """A consonant or several, a vowel or two, and at times consonants again."""
    onset = dice.choice(_ONSETS) if dice.chance(0.88) else ""
    return onset + dice.choice(_NUCLEI) + (dice.choice(_CODAS) if dice.chance(0.45) else "")


def bent(dice: Dice, real: str) -> str:
    """A word with one letter changed, left out, put in, or swapped with the next."""
    at, letter = dice.integer(0, len(real) - 2), dice.choice(LOWER)
    way = dice.integer(0, 3)
    if way == 0:
        return real[:at] + letter + real[at + 1 :]
    if way == 1:
        return real[:at] + real[at + 1 :]
    if way == 2:
        return real[:at] + letter + real[at:]
    return real[:at] + real[at + 1] + real[at] + real[at + 2 :]


def cased(dice: Dice, text: str) -> str:
    """A text in small letters or capitals, with a capital to its first or to every word, seldom all mixed up."""
    way = dice.random()
    if way < 0.28:
        return text
    if way < 0.68:
        return text[:1].upper() + text[1:]
    if way < 0.84:
        return text.upper()
    if way < 0.97:
        return " ".join(part[:1].upper() + part[1:] for part in text.split(" "))
    return "".join(letter.upper() if dice.chance(0.5) else letter for letter in text)


def words(dice: Dice, count: int) -> str:
    """Some words, at times with a small real one between."""
    made = [word(dice) for _ in range(count)]
    if count > 2 and dice.chance(0.5):
        made[dice.integer(1, count - 2)] = dice.choice(_SMALL)
    return " ".join(made)


def compound(dice: Dice) -> str:
    """Words grown together: with a hyphen, a capital inside, an underscore or nothing."""
    one, two = word(dice)[:8], word(dice)[:8]
    both = dice.choice(("{0}-{1}", "{0}{2}", "{3}{2}", "{0}_{1}", "{3}-{2}", "{0}/{1}", "{3}{1}")).format(
        one, two, two.capitalize(), one.capitalize()
    )
    return both.upper() if dice.chance(0.12) else both


def short(dice: Dice) -> str:
    """An abbreviation."""
    made = word(dice)
    consonants = "".join(letter for letter in made if letter not in "aeiou")[:4] or made[:3]
    return dice.choice((f"{made[:4].capitalize()}.", consonants.upper(), f"{made[:3]}.", f"{consonants}.",
                        ".".join(dice.letters(UPPER, dice.integer(2, 4))) + ".", dice.letters(UPPER, 3)))  # fmt: skip


# Names


def person(dice: Dice) -> str:
    first, last, more = word(dice).capitalize(), word(dice).capitalize(), dice.choice(UPPER)
    shape = dice.choice(("{0} {1}", "{0} {1}", "{2}. {1}", "{0} {2}. {1}", "{1}, {0}", "{1}, {2}.", "{2}. {3}. {1}",
                         "Dr {1}", "Ms {0} {1}", "{0} {1}-{4}", "{0} O'{1}", "Mr {1}", "{0} van {1}"))  # fmt: skip
    return shape.format(first, last, more, dice.choice(UPPER), word(dice)[:6].capitalize())


def place(dice: Dice) -> str:
    name = (syllable(dice) + dice.choice(_PLACES)).capitalize()
    shape = dice.choice(
        ("{0}", "{0}", "{2} {0} {1}", "{1} {0}", "{0}-{3}", "{0}, {3}", "{4} {0}", "St {0}", "{0} ({5})")
    )
    return shape.format(name, dice.choice(_KINDS), dice.integer(1, 399), word(dice).capitalize(),
                        dice.letters(DIGITS, 5), dice.letters(UPPER, 2))  # fmt: skip


def address(dice: Dice) -> str:
    """Of a person or a page on the net."""
    host = word(dice) + dice.choice(("", "", f"-{word(dice)}", str(dice.integer(1, 99)))) + dice.choice(_TOPS)
    if dice.chance(0.5):
        return word(dice) + dice.choice(("", f".{word(dice)}", f"_{dice.integer(1, 99)}")) + "@" + host
    return (
        dice.choice(("", "www.", "https://"))
        + host
        + dice.choice(("", "", f"/{word(dice)}", f"/{dice.integer(1, 999)}"))
    )


# Codes and numbers


def filled(dice: Dice, pattern: str) -> str:
    """A pattern of a code with every sign drawn.

    >>> filled(Dice("a code"), "AA-99")
    'MU-93'
    """
    alphabets = {"A": UPPER, "a": LOWER, "9": DIGITS, "*": UPPER + DIGITS}
    made = "".join(dice.choice(alphabets[sign]) if sign in alphabets else sign for sign in pattern)
    return made.replace("-", dice.choice("--/. _:")) if dice.chance(0.5) else made


def code(dice: Dice) -> str:
    return filled(dice, dice.choice(_CODES))


def phone(dice: Dice) -> str:
    return "".join(dice.choice(DIGITS) if sign == "9" else sign for sign in dice.choice(_PHONES))


def number(dice: Dice) -> str:
    """A number as one may write it: whole or not, with a sign before it, in groups or in a row, with a unit."""
    whole = dice.integer(0, 10 ** dice.integer(1, 7) - 1)
    part = dice.letters(DIGITS, dice.integer(1, 3))
    return dice.choice(
        (f"{whole}", f"{whole}", f"{whole:,}", f"{whole:,}.{part}", f"{whole}.{part}", f"{whole},{part}", f"-{whole}",
         f"+{whole}", f"{whole} {dice.choice(_UNITS)}", f"{whole}{dice.choice(_UNITS)}",
         f"{whole % 100}.{part} {dice.choice(_UNITS)}", f"{whole:,}".replace(",", " "), f"{whole:,}".replace(",", "."),
         f"{whole % 1000}%", f"{whole % 100}.{part[0]} %", f"{whole % 100}/{dice.integer(2, 99)}", f"({whole})",
         f"{whole % 50} to {whole % 50 + dice.integer(1, 99)}", f"{whole:07}", f"~{whole}", f"{whole % 10}")
    )  # fmt: skip


def amount(dice: Dice, signs: tuple[str, ...]) -> str:
    """A sum of money with one of the signs that can be written."""
    cents, sign = dice.integer(1, 10 ** dice.integer(3, 7)), dice.choice(signs)
    whole = money(cents)
    return dice.choice((money(cents, sign), f"{sign} {whole}", f"{whole} {sign}", f"{cents // 100},- {sign}"))


def amount_in(signs: tuple[str, ...]) -> Callable[[Dice], str]:
    """A maker of sums with these signs."""
    return lambda dice: amount(dice, signs)


def date(dice: Dice) -> str:
    day, month, year = dice.integer(1, 31), dice.integer(1, 12), dice.integer(1890, 2079)
    name, low = MONTHS[month - 1], year % 100
    return dice.choice(
        (f"{day:02}.{month:02}.{year}", f"{year}-{month:02}-{day:02}", f"{day} {name} {year}", f"{name} {day}, {year}",
         f"{day:02}/{month:02}/{year}", f"{day} {name[:3]} {year}", f"{day:02}-{name[:3].upper()}-{low:02}",
         f"{month}/{day}/{year}", f"{day}.{month}.{year}", f"{day}.{month}.{low:02}", f"{name[:3]} {year}",
         f"{name} {year}", f"{year}/{month:02}/{day:02}", f"{day} {name}", f"{name[:3]}. {day}",
         f"{year}{month:02}{day:02}", f"{day:02} {name[:3].upper()} {year}", f"'{low:02}", f"{year}",
         f"{dice.choice(('Mon', 'Tue', 'Thu', 'Sat'))} {day} {name[:3]}")
    )  # fmt: skip


def time(dice: Dice) -> str:
    hour, minute, half = dice.integer(0, 23), dice.integer(0, 59), dice.choice(("am", "pm", "a.m.", "PM"))
    return dice.choice(
        (f"{hour:02}:{minute:02}", f"{hour}.{minute:02}", f"{hour % 12 + 1}:{minute:02} {half}",
         f"{hour:02}h{minute:02}", f"{hour:02}:{minute:02}:{dice.integer(0, 59):02}", f"{hour % 12 + 1} {half}",
         f"{hour:02}:{minute:02} to {(hour + 2) % 24:02}:00")
    )  # fmt: skip


def odd(dice: Dice) -> str:
    """Something with the rarer signs."""
    return "".join(
        word(dice)[:7] if sign == "w" else str(dice.integer(0, 99)) if sign == "9" else sign
        for sign in dice.choice(_ODD)
    )


# Phrases


def phrase(dice: Dice) -> str:
    return cased(dice, words(dice, dice.weighted((2, 3, 4, 5), (6, 4, 2, 1))))


def sentence(dice: Dice, least: int = 3, most: int = 12) -> str:
    """Invented words with a capital and a stop, at times with a comma."""
    made = words(dice, dice.integer(least, most)).split()
    if len(made) > 5 and dice.chance(0.4):
        made[2] += dice.choice((",", ",", ";", ":"))
    text = " ".join(made)
    return text[:1].upper() + text[1:] + dice.choice("....!?")


def label(dice: Dice) -> str:
    """What a value may be named by."""
    kind = dice.random()
    if kind < 0.42:
        return cased(dice, word(dice))
    if kind < 0.74:
        return cased(dice, words(dice, 2))
    if kind < 0.8:
        return cased(dice, words(dice, 3))
    if kind < 0.86:
        return compound(dice)
    if kind < 0.92:
        return short(dice)
    return f"{cased(dice, word(dice))} {dice.choice(_MARKED)}"


MAKERS: dict[Callable[[Dice], str], float] = {
    lambda dice: cased(dice, word(dice)): 12,
    phrase: 14,
    compound: 4,
    short: 2,
    person: 9,
    place: 6,
    code: 12,
    number: 13,
    date: 7,
    time: 3,
    phone: 3,
    address: 4,
    odd: 7,
    lambda dice: dice.choice(UPPER + LOWER + DIGITS): 2,
    lambda dice: sentence(dice, 3, 8): 6,
}


class Strings:
    """Texts for one page: no word of more than two letters and no text comes twice, whatever its case.

    >>> strings = Strings(Dice("strings"))
    >>> strings.label(20), strings.value(12), strings.value(60)
    ('aspreld breirm', 'L', '6/7/1975')
    """

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.signs: tuple[str, ...] = ("EUR", "USD", "$")
        self.repeated: set[str] = set()  # single letters, when there are no others left
        self._seen: set[str] = set()
        self._makers, self._weights = [*MAKERS, self._amount], [*MAKERS.values(), 5.0]

    def _amount(self, dice: Dice) -> str:
        return amount(dice, self.signs)

    def fresh(self, make: Callable[[Dice], str], longest: int) -> str:
        """What a maker makes, new to the page and of at most so many letters; after some trials, something shorter."""
        for trial in range(12):
            text = make(self.dice)
            if len(text) <= longest and self._take(text):
                return text
            if trial == 5:
                make = code if longest > 4 else number
        for _ in range(60):
            text = self.dice.letters(UPPER + LOWER + DIGITS, max(1, min(longest, 4)))
            if self._take(text):
                return text
        self.repeated.add(text.casefold())
        return text

    def label(self, longest: int = 24) -> str:
        return self.fresh(label, longest)

    def value(self, longest: int = 60) -> str:
        return self.fresh(self.dice.weighted(self._makers, self._weights), longest)

    def _take(self, text: str) -> bool:
        folded = text.casefold()
        found = set(re.findall("[a-z]{3,}", folded)) - COMMON
        if folded in self._seen or not found.isdisjoint(self._seen) or not found.isdisjoint(held_out_words()):
            return False
        self._seen |= found
        self._seen.add(folded)
        return True
