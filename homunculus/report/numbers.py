"""Numbers for a page: means with their intervals, paired differences in points, and how both are written.

Accuracies are in percent and differences in points of percent, as in docs/predictions.md. Images are what is drawn for
every interval, since questions about one image stand and fall together. Whatever is said of several families together
is the mean of what is said of each: they count equally, however many questions each was asked, and images are drawn
within each. Where a family has a single image there is no interval, and nothing is said.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from homunculus.data import FAMILIES
from homunculus.errors import DataError
from homunculus.eval.clusters import group_by_stratum
from homunculus.eval.statistics import Interval, compare, interval, proportion, ratio, unseen

Row = dict[str, Any]

MARGIN = 1.0  # points: what surely loses less than this is as good
NONE = "–"  # where there is no number


class Paired(NamedTuple):
    """One method against another on the questions both were asked: points, interval, p-value, and the two means."""

    difference: float
    low: float
    high: float
    p: float
    first: float
    second: float
    questions: int
    fewest: int  # questions of a family

    @property
    def sign(self) -> int:
        """1 or -1 where the interval excludes 0, else 0."""
        return (self.low > 0) - (self.high < 0)

    @property
    def counts(self) -> bool:
        """Whether the interval excludes 0."""
        return self.sign != 0


@dataclass(frozen=True, eq=False)
class Found:
    """Rows of one way of asking, by key: whose, what to call it, and on which questions. Empty where nobody asked."""

    method: str
    name: str
    on: str
    rows: dict[str, Row]
    _against: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def label(self) -> str:
        return f"{self.name} on {self.on}"

    @cached_property
    def exact(self) -> Interval | None:
        """Exact answers in percent."""
        return mean_of(list(self.rows.values()), "exact", 100.0, proportion)

    def average(self, measure: str) -> float | None:
        """The mean of a measure where it is known: of families that count equally."""
        return average_of(self.rows.values(), measure)

    def against(self, other: "Found") -> Paired | None:
        """This minus the other, on the questions both have; None where these are of fewer than two images."""
        if other not in self._against:
            self._against[other] = paired(self.rows, other.rows)
        return self._against[other]

    def share_of(self, other: "Found") -> Interval | None:
        """How much of the other's exact answers this one has, in percent; None where that cannot be told."""
        asked = "share", other
        if asked not in self._against:
            self._against[asked] = share(self.rows, other.rows)
        return self._against[asked]

    @cached_property
    def apart(self) -> "dict[str, Found]":
        """Each family by itself, ours first."""
        families: dict[str, dict[str, Row]] = {name: {} for name in FAMILIES}
        for key, row in self.rows.items():
            families.setdefault(family_of(row["image"]), {})[key] = row
        families = {name: rows for name, rows in families.items() if rows}
        return {name: Found(self.method, self.name, name, rows) for name, rows in families.items()}

    def where(self, what: str, test: Callable[[Row], bool]) -> "Found":
        """Those of the questions that pass a test."""
        rows = {key: row for key, row in self.rows.items() if test(row)}
        return Found(self.method, self.name, f"{self.on}, {what}", rows)


@lru_cache(maxsize=1 << 16)
def family_of(image: str) -> str:
    """Whose image it is.

    >>> family_of("scene-text/test-iid/12")
    'scene-text'
    """
    return image.rsplit("/", 2)[0] if image.count("/") > 1 else ""


def families_of(images: Iterable[str]) -> list[str] | None:
    """The family of each image; None where a family has fewer than two images, or there is none.

    >>> families_of(["scenes/val/0", "scenes/val/1"]), families_of(["scenes/val/0", "scenes/val/0"])
    (['scenes', 'scenes'], None)
    """
    images = list(images)
    found = defaultdict(set)
    for image in images:
        found[family_of(image)].add(image)
    return [family_of(image) for image in images] if found and min(map(len, found.values())) > 1 else None


def average_of(rows: Iterable[Row], measure: str) -> float | None:
    """The mean over families of the mean of each, where a measure is known.

    >>> rows = [{"image": f"{name}/val/0", "tokens": n} for name, n in (("a", 10), ("a", 20), ("a", 30), ("b", 40))]
    >>> average_of(rows, "tokens"), average_of(rows, "covered")
    (30.0, None)
    """
    known = defaultdict(list)
    for row in rows:
        if row.get(measure) is not None:
            known[family_of(row["image"])].append(row[measure])
    return sum(sum(own) / len(own) for own in known.values()) / len(known) if known else None


def mean_of(
    rows: Sequence[Row], measure: str, scale: float = 1.0, around: Callable[..., Interval] = interval
) -> Interval | None:
    """A mean with its interval; None where fewer than two images of a family know the measure.

    >>> mean_of([{"exact": 1.0, "image": "a"}, {"exact": 0.0, "image": "b"}], "exact", 100.0).mean
    50.0
    """
    known = [(row[measure], row["image"]) for row in rows if row.get(measure) is not None]
    families = families_of(image for _, image in known)
    if families is None:
        return None
    values, images = zip(*known, strict=True)
    return Interval(*(scale * value for value in around(values, images, strata=families)))


def paired(first: dict[str, Row], second: dict[str, Row]) -> Paired | None:
    """Exact answers of one minus those of the other, in points, on the questions both were asked.

    >>> rows = {key: {"exact": 1.0, "image": key} for key in "abcd"}
    >>> paired(rows, {key: row | {"exact": float(key == "a")} for key, row in rows.items()}).difference
    75.0
    """
    images, a, b = _both(first, second)
    families = families_of(images)
    if families is None:
        return None
    found, parts = compare(a, b, images, strata=families), [group_by_stratum(own, images, families) for own in (a, b)]
    if found.low == found.high:  # nothing can be drawn that differs, and something may still be there
        reach = unseen(parts[0])
        found = found._replace(low=max(-1.0, found.low - reach), high=min(1.0, found.high + reach))
    # so that 5 of 500 are 1 point to rules and readers, in whatever order they were added up
    difference, low, high = (round(100 * value, 9) for value in found[:3])
    one, other = (100 * sum(part.mean for part in own) / len(own) for own in parts)
    return Paired(difference, low, high, found.p, one, other, len(images), min(Counter(families).values()))


def disagreeing(first: Found, second: Found) -> list[tuple[str, Paired]]:
    """The difference on each family, where these do not all say the same: a mean of them hides that."""
    both = [name for name in first.apart if name in second.apart]
    known = [(name, pair) for name in both if (pair := first.apart[name].against(second.apart[name])) is not None]
    return known if len({pair.sign for _, pair in known}) > 1 else []


def share(first: dict[str, Row], second: dict[str, Row]) -> Interval | None:
    """Exact answers of one over those of the other, in percent, on the questions both were asked: the same images are
    drawn for both. Of several families together it is the ratio of their means.

    >>> rows = {key: {"exact": 1.0, "image": key} for key in "abcd"}
    >>> share({key: row | {"exact": float(key < "d")} for key, row in rows.items()}, rows).mean
    75.0
    """
    images, a, b = _both(first, second)
    families = families_of(images)
    if families is None:
        return None
    try:
        found = ratio(a, b, images, strata=families)
    except DataError:  # the other has too few right, or none
        return None
    if found.low == found.high and first is not second:  # as in `paired`; what is the same is the same for sure
        parts = [group_by_stratum(own, images, families) for own in (a, b)]
        reach = unseen(parts[0]) * len(parts[1]) / sum(part.mean for part in parts[1])
        found = Interval(found.mean, max(0.0, found.low - reach), found.high + reach)
    return Interval(*(100 * value for value in found))


def _both(first: dict[str, Row], second: dict[str, Row]) -> tuple[list[str], list[float], list[float]]:
    """The images of questions that both have, and whether each is exact. An image of another size may be another image,
    and its questions others under the same keys: those are no pairs."""
    asked = [(row, second[key]) for key, row in first.items() if key in second]
    pairs = [
        (a, b) for a, b in asked if a.get("question") == b.get("question") and a.get("answers") == b.get("answers")
    ]
    return [a["image"] for a, _ in pairs], [a["exact"] for a, _ in pairs], [b["exact"] for _, b in pairs]


# ------------------------------------------------------------------------------------------------------ how they look


def rounded(value: float, digits: int = 1) -> float:
    """Half a digit goes away from zero, whatever order the value was added up in: in every table it is the same.

    >>> rounded(91.15), rounded(91.15 - 1e-13), rounded(-0.95), rounded(0.0)
    (91.2, 91.2, -1.0, 0.0)
    """
    return round(value + math.copysign(1e-9, value), digits)


def number(value: float | None, digits: int = 1) -> str:
    r"""
    >>> number(3.14159), number(-2.0) == "\N{MINUS SIGN}2.0", number(None) == NONE
    ('3.1', True, True)
    """
    return NONE if value is None else f"{rounded(value, digits):.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 1) -> str:
    r"""
    >>> signed(1.25), signed(-0.04), signed(-3.0) == "\N{MINUS SIGN}3.0"
    ('+1.3', '0.0', True)
    """
    text = f"{rounded(value, digits):+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def percent(found: Interval | None) -> str:
    """
    >>> percent(Interval(50.0, 40.0, 60.5))
    '50.0 [40.0, 60.5]'
    """
    return NONE if found is None else f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def counted(pair: Paired) -> str:
    """How many questions a difference is about; never parted at the end of a line."""
    return f"n = {pair.questions}".replace(" ", "\N{NO-BREAK SPACE}")


def points(pair: Paired | None) -> str:
    """A bound that rounds to 0 although the interval excludes 0 has more digits, and so has a lower one that rounds to
    the loss that is no longer as good.

    >>> points(Paired(2.0, 0.5, 4.5, 0.1, 52.0, 50.0, 9, 9)), points(Paired(0.4, 0.02, 0.8, 0.05, 52.0, 50.0, 9, 9))
    ('+2.0 [+0.5, +4.5]', '+0.4 [+0.02, +0.8]')
    >>> points(Paired(0.0, -0.97, 0.96, 1.0, 50.0, 50.0, 9, 9)) == f"0.0 [{signed(-0.97, 2)}, +1.0]"
    True
    """
    if pair is None:
        return NONE
    zero = (0.0,) if pair.counts else ()
    low, high = signed(pair.low, _digits(pair.low, *zero, -MARGIN)), signed(pair.high, _digits(pair.high, *zero))
    return f"{signed(pair.difference)} [{low}, {high}]"


def _digits(value: float, *limits: float, most: int = 3) -> int:
    """How many digits tell a number from limits; one that is a limit is told by being it.

    >>> _digits(0.3, 0.0), _digits(0.04, 0.0), _digits(-0.00001, 0.0), _digits(0.04), _digits(-0.951, 0.0, -1.0)
    (1, 2, 3, 1, 2)
    >>> _digits(-1.0, 0.0, -1.0), _digits(-0.9999, 0.0, -1.0)
    (1, 3)
    """
    if value in limits:
        return 1
    told = (digits for digits in range(1, most) if rounded(value, digits) not in limits)
    return next(told, most)


def chance(p: float | None) -> str:
    """A p-value.

    >>> chance(0.0321), chance(0.00009), chance(None) == NONE
    ('0.032', '< 0.001', True)
    """
    return NONE if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
