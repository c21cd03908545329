"""Rows of the legibility benchmark to a table: means with intervals, by region, against uniform, and chance.

Images are what is drawn for the intervals. The difference to `uniform` is paired, page by page. Chance is the score of
each reading against the answer of another page: what a reading is worth that has nothing to do with the question.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from homunculus.data import REGIONS
from homunculus.errors import DataError
from homunculus.eval.judge import legibility
from homunculus.eval.legibility import FULL, Arm, Row
from homunculus.eval.statistics import Comparison, Interval, compare, interval

BASE = Arm("uniform", "none")


@dataclass(frozen=True)
class Line:
    """One method with one source of relevance on one family."""

    family: str
    measure: str
    allocator: str
    source: str
    pages: int
    score: Interval
    regions: dict[str, Interval | None]  # None where fewer than two pages asked about it
    whole: float | None  # share of answers read without a mistake; None for what is not text
    chance: float | None
    gain: Comparison | None  # over uniform on the same pages; None for uniform itself, or without it


def summarise(rows: Sequence[Row]) -> list[Line]:
    """A line for each family and arm: the whole image first, then by falling score."""
    lines = []
    for family in dict.fromkeys(row["family"] for row in rows):
        arms: dict[Arm, dict[str, Row]] = {}
        for row in rows:
            if row["family"] == family:
                arms.setdefault(Arm(row["allocator"], row["source"]), {})[row["key"]] = row
        own = [_line(arm, pages, arms.get(BASE, {})) for arm, pages in arms.items()]
        lines += sorted(own, key=lambda line: (line.allocator != FULL, -line.score.mean))
    return lines


def _line(arm: Arm, pages: dict[str, Row], base: dict[str, Row]) -> Line:
    keys = sorted(pages, key=_number)
    rows = [pages[key] for key in keys]
    if len(rows) < 2:
        raise DataError("one page gives no interval: measure at least two (--count 2)")
    scores = [row["score"] for row in rows]
    text = rows[0]["measure"] == "legibility"
    shared = [key for key in keys if key in base]
    gain = None
    if arm != BASE and len(shared) > 1:
        gain = compare([pages[key]["score"] for key in shared], [base[key]["score"] for key in shared])
    return Line(
        rows[0]["family"],
        rows[0]["measure"],
        *arm,
        len(rows),
        interval(scores),
        {region: _mean([row["score"] for row in rows if row["region"] == region]) for region in REGIONS},
        sum(score == 1 for score in scores) / len(scores) if text else None,
        _chance(rows) if text else None,
        gain,
    )


def _mean(scores: Sequence[float]) -> Interval | None:
    return interval(scores) if len(scores) > 1 else None


def _chance(rows: Sequence[Row]) -> float:
    """Each reading against the answers of the next page."""
    others = [*rows[1:], rows[0]]
    pairs = zip(rows, others, strict=True)
    return sum(max(legibility(answer, row["read"]) for answer in other["answers"]) for row, other in pairs) / len(rows)


def _number(key: str) -> tuple[str, int]:
    name, _, number = key.rpartition("/")
    return name, int(number)


def to_csv(lines: Sequence[Line]) -> str:
    """The table with every figure to four places, one line for each method, source and family."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spread = [f"{region}{part}" for region in REGIONS for part in ("", "_low", "_high")]
    plain = [field.name for field in fields(Line)][:5]
    gain = ["gain_over_uniform", "gain_low", "gain_high", "gain_p"]
    writer.writerow([*plain, "score", "low", "high", *spread, "read_whole", "chance", *gain])
    for line in lines:
        cells: list[Any] = [*line.score]
        for region in REGIONS:
            cells += line.regions[region] or (None,) * 3
        cells += [line.whole, line.chance, *(line.gain or (None,) * 4)]
        figures = ["" if cell is None else f"{cell:.4f}" for cell in cells]
        writer.writerow([*(getattr(line, name) for name in plain), *figures])
    return out.getvalue()


HEADER = ("method", "relevance", "pages", "score [95 %]", "over uniform [95 %]", *REGIONS, "read whole", "chance")
BRIEF = 5  # columns that fit a terminal


def to_cells(line: Line, places: int = 3) -> list[str]:
    """The cells of a printed line, under `HEADER`.

    >>> line = Line("documents", "legibility", "topk", "true", 9, Interval(0.5, 0.4, 0.6), {}, 0.25, None, None)
    >>> to_cells(line, places=2)
    ['topk', 'true', '9', '0.50 [0.40, 0.60]', '', '', '', '', '25.0 %', '']
    """
    means = [line.regions.get(region) for region in REGIONS]
    return [
        line.allocator,
        "" if line.allocator == FULL else line.source,
        str(line.pages),
        _spread(line.score, f".{places}f"),
        "" if line.gain is None else _spread(Interval(*line.gain[:3]), f"+.{places}f"),
        *("" if mean is None else f"{mean.mean:.{places}f}" for mean in means),
        "" if line.whole is None else f"{100 * line.whole:.1f} %",
        "" if line.chance is None else f"{line.chance:.{places}f}",
    ]


def _spread(around: Interval, form: str) -> str:
    return f"{around.mean:{form}} [{around.low:{form}}, {around.high:{form}}]"


def to_markdown(lines: Sequence[Line]) -> str:
    """The table of one family for a document."""
    rows = [HEADER, ["---"] * len(HEADER), *map(to_cells, lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"
