"""Rows of answers to a table: means with 95 % intervals, for all questions, by kind, by region and by type of answer.

Images are what is drawn for the intervals, since questions about one image stand and fall together.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homunculus.eval.rows import Row
from homunculus.eval.statistics import Interval, interval

MEASURES = ("exact", "anls", "vqa", "confidence", "hit", "mass", "r2")
NAMES = {"confidence": "sure"}  # for a narrow table
VALUES = ("code", "date", "amount")

_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
# Tried in this order.
_TYPES = {
    "date": rf"\d{{1,2}}[./]\d{{1,2}}[./]\d{{4}}|\d{{4}}-\d\d-\d\d|\d{{1,2}} {_MONTH} \d{{4}}"
    rf"|{_MONTH} \d{{1,2}}, \d{{4}}|\d\d-[A-Z]{{3}}-\d\d",
    "amount": r"[$€£]?\d[\d,]*\.\d\d(?: [A-Z]{3})?",
    "number": r"-?\d{1,4}(?:,\d{3})*(?:\.\d+)?(?: ?%| [a-z]+)?",
    "code": r"(?=.*\d)[A-Z\d][A-Z\d /.()+-]{2,}|[+(]\d[\d ()/-]+",
}


@dataclass(frozen=True)
class Line:
    """Some of the questions: which, how many of how many images, and the mean of each measure, None where none is."""

    group: str
    name: str
    questions: int
    images: int
    means: dict[str, Interval | None]


def answer_type(text: str) -> str:
    """What an answer is by its shape: a date; an amount, with two decimals (as times such as 9.30 have); a number of up
    to four digits, or with separators, with or without a unit; a code, of capitals and digits with at least one digit
    (telephone and account numbers are); or else words.

    >>> [answer_type(text) for text in ("21-APR-35", "1,556.35 EUR", "86", "5.6 %", "CG 265 F", "7389396", "Data")]
    ['date', 'amount', 'number', 'number', 'code', 'code', 'words']
    """
    return next((name for name, shape in _TYPES.items() if re.fullmatch(shape, text.strip())), "words")


def summarise(rows: Sequence[Row]) -> list[Line]:
    """Lines for all questions, by kind, region and type of answer, and for values (codes, dates and amounts) by key."""
    groups: dict[str, Callable[[Row], str | None]] = {
        "all": lambda row: "",
        "kind": lambda row: row["kind"],
        "region": lambda row: row["region"],
        "answer": lambda row: answer_type(row["answers"][0]),
        "by key": lambda row: "values" if row["kind"] == "key" and answer_type(row["answers"][0]) in VALUES else None,
    }
    lines: list[Line] = []
    for group, name_of in groups.items():
        named = [(name_of(row), row) for row in rows]
        names = sorted({name for name, _ in named if name is not None})
        lines += [_line(group, name, [row for own, row in named if own == name]) for name in names]
    return lines


def _line(group: str, name: str, rows: Sequence[Row]) -> Line:
    return Line(group, name, len(rows), len({row["image"] for row in rows}), {m: _mean(rows, m) for m in MEASURES})


def _mean(rows: Sequence[Row], measure: str) -> Interval | None:
    known = [(row[measure], row["image"]) for row in rows if row[measure] is not None]
    if len({image for _, image in known}) < 2:
        return None
    values, images = zip(*known, strict=True)
    return interval(values, images)


HEADER = ("questions", "n", "exact, % [95 %]", *(NAMES.get(measure, measure) for measure in MEASURES[1:]))


def to_cells(line: Line) -> list[str]:
    """The cells of a printed line, under `HEADER`.

    >>> to_cells(Line("kind", "key", 9, 3, {"exact": Interval(0.5, 0.4, 0.6)}))[:4]
    ['kind: key', '9', '50.0 [40.0, 60.0]', '']
    """
    exact = line.means.get("exact")
    share = "" if exact is None else f"{100 * exact.mean:.1f} [{100 * exact.low:.1f}, {100 * exact.high:.1f}]"
    others = [line.means.get(measure) for measure in MEASURES[1:]]
    return [
        f"{line.group}: {line.name}".removesuffix(": "),
        str(line.questions),
        share,
        *("" if mean is None else f"{mean.mean:.3f}" for mean in others),
    ]


def to_markdown(lines: Sequence[Line]) -> str:
    """The table for a document."""
    rows = [HEADER, ["---"] * len(HEADER), *map(to_cells, lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"
