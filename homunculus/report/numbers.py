"""Numbers for a page: means with their intervals, paired differences in points, and how both are written.

Accuracies are in percent and differences in points of percent, as in docs/predictions.md. Images are what is drawn for
every interval, since questions about one image stand and fall together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from homunculus.eval.statistics import RESAMPLES, Interval, compare, interval

Row = dict[str, Any]

SKETCH = 2000  # draws for an interval that decides nothing
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

    @property
    def counts(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class Found:
    """Rows of one way of asking, by key: whose, what to call it, and on which questions. Empty where nobody asked."""

    method: str
    name: str
    on: str
    rows: dict[str, Row]
    _against: dict[Any, Paired | None] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def label(self) -> str:
        return f"{self.name} on {self.on}"

    @cached_property
    def exact(self) -> Interval | None:
        """Exact answers in percent."""
        return mean_of(list(self.rows.values()), "exact", 100.0)

    def average(self, measure: str) -> float | None:
        """The plain mean of a measure where it is known."""
        known = [row[measure] for row in self.rows.values() if row.get(measure) is not None]
        return sum(known) / len(known) if known else None

    def against(self, other: "Found") -> Paired | None:
        """This minus the other, on the questions both have; None where these are of fewer than two images."""
        if other not in self._against:
            self._against[other] = paired(self.rows, other.rows)
        return self._against[other]

    def where(self, what: str, test: Callable[[Row], bool]) -> "Found":
        """Those of the questions that pass a test."""
        rows = {key: row for key, row in self.rows.items() if test(row)}
        return Found(self.method, self.name, f"{self.on}, {what}", rows)


def mean_of(rows: Sequence[Row], measure: str, scale: float = 1.0, resamples: int = SKETCH) -> Interval | None:
    """A mean with its interval; None where fewer than two images know the measure.

    >>> mean_of([{"exact": 1.0, "image": "a"}, {"exact": 0.0, "image": "b"}], "exact", 100.0).mean
    50.0
    """
    known = [(row[measure], row["image"]) for row in rows if row.get(measure) is not None]
    if len({image for _, image in known}) < 2:
        return None
    values, images = zip(*known, strict=True)
    return Interval(*(scale * value for value in interval(values, images, resamples=resamples)))


def paired(first: dict[str, Row], second: dict[str, Row], resamples: int = RESAMPLES) -> Paired | None:
    """Exact answers of one minus those of the other, in points, on the questions both were asked.

    >>> rows = {key: {"exact": 1.0, "image": key} for key in "abcd"}
    >>> paired(rows, {key: row | {"exact": float(key == "a")} for key, row in rows.items()}).difference
    75.0
    """
    keys = [key for key in first if key in second]
    images = [first[key]["image"] for key in keys]
    if len(set(images)) < 2:
        return None
    a, b = ([own[key]["exact"] for key in keys] for own in (first, second))
    found = compare(a, b, images, resamples=resamples)
    difference, low, high = (100 * value for value in found[:3])
    first_mean, second_mean = (100 * sum(values) / len(values) for values in (a, b))
    return Paired(difference, low, high, found.p, first_mean, second_mean, len(keys))


# ------------------------------------------------------------------------------------------------------ how they look


def number(value: float | None, digits: int = 1) -> str:
    r"""
    >>> number(3.14159), number(-2.0) == "\N{MINUS SIGN}2.0", number(None) == NONE
    ('3.1', True, True)
    """
    return NONE if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 1) -> str:
    r"""
    >>> signed(1.25), signed(-0.04), signed(-3.0) == "\N{MINUS SIGN}3.0"
    ('+1.2', '0.0', True)
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def percent(found: Interval | None) -> str:
    """
    >>> percent(Interval(50.0, 40.0, 60.5))
    '50.0 [40.0, 60.5]'
    """
    return NONE if found is None else f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"


def points(pair: Paired | None) -> str:
    """
    >>> points(Paired(2.0, 0.5, 4.5, 0.1, 52.0, 50.0, 100))
    '+2.0 [+0.5, +4.5]'
    """
    return NONE if pair is None else f"{signed(pair.difference)} [{signed(pair.low)}, {signed(pair.high)}]"


def chance(p: float | None) -> str:
    """A p-value; 10 000 draws tell nothing finer than the last of these.

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
