"""What an independent reader makes of the tokens: the rows of `homunculus bench legibility`, a line for each allocator.

Tesseract reads the place of the answer in what a method shows of a page; the score is the share of the answer that
comes back. Only families with text are read. A page counts once for each method and source of relevance, as it was
measured last.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from homunculus.errors import DataError, OutputError
from homunculus.eval.legibility import FULL
from homunculus.eval.lines import read_rows
from homunculus.report.blocks import Block, Heading, Table, Text
from homunculus.report.numbers import Row, average_of, family_of, listed, mean_of, percent

NEEDED = ("key", "allocator", "source", "measure", "score", "budget")
TITLE = "Legibility"
HEADS = {"true": "true region", "model-free": "model-free", "none": "no relevance"}  # the sources of the benchmark

Measured = dict[tuple[str, str], list[Row]]  # by allocator and source


def read_legibility(file: Path) -> list[Row]:
    """The rows of pages with text."""
    advice = "give the rows.jsonl that `homunculus bench legibility --out FOLDER` writes into its folder"
    if not file.is_file():
        raise DataError(f"{file} is not there: {advice}")
    try:
        rows = read_rows(file, _is_row, mend=False)
    except (OutputError, DataError):
        rows = []
    if not rows:
        raise DataError(f"{file} holds no rows of legibility: {advice}")
    text = [row for row in rows if row["measure"] == "legibility"]
    if not text:
        raise DataError(f"{file} has no pages with text: run `homunculus bench legibility` on documents or scene-text")
    return text


def _is_row(row: Row) -> bool:
    """
    >>> _is_row({"cost": {}}), _is_row(dict.fromkeys(NEEDED, "") | {"score": 0.5})
    (False, True)
    """
    return all(name in row for name in NEEDED) and isinstance(row["score"], (int, float))


def legibility_sections(rows: Sequence[Row] | None, budget: int) -> list[Block]:
    """A small table by allocator, or a sentence that there is none. The budget is that of the page if it was measured,
    and else the one most rows have."""
    if rows is None:
        text = "No rows of `homunculus bench legibility` were given (`--legibility FILE`), so nothing is said of it."
        return [Heading(TITLE), Text(text)]
    budgets = Counter(row["budget"] for row in rows)
    tokens = budget if budget in budgets else budgets.most_common(1)[0][0]
    own = measured([row for row in rows if row["budget"] == tokens])
    families = sorted({family_of(row["image"]) for found in own.values() for row in found})
    equally = ", families counted equally" if len(families) > 1 else ""
    lead = (
        f"How much of the answer Tesseract, which knows nothing of us, reads in what {tokens} tokens show of a page: "
        f"the share of its letters in percent, on {listed(families)}{equally}. The reader is told where the answer "
        "stands; the method is told by the true region, or by pixels alone (model-free), or looks at nothing. "
        f"{FULL.capitalize()} is the ceiling."
    )
    if tokens != budget:
        lead += f" The rest of this page is about {budget} tokens."
    note = "Methods of unequal pages were not read on the same ones: compare those of equal pages."
    uneven = len({len(found) for found in own.values()}) > 1
    return [Heading(TITLE), Text(lead), legibility_table(own, families), *([Text(note, "note")] if uneven else [])]


def measured(rows: Sequence[Row]) -> Measured:
    """Rows by allocator and source, each page once; a page is an image of its own.

    >>> page = {"key": "documents/val/0", "allocator": "topk", "source": "true"}
    >>> [row["score"] for row in measured([page | {"score": 0.0}, page | {"score": 1.0}])["topk", "true"]]
    [1.0]
    """
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["allocator"], row["source"]), {})[row["key"]] = row | {"image": row["key"]}
    return {arm: list(pages.values()) for arm, pages in found.items()}


def legibility_table(own: Measured, families: Sequence[str]) -> Table:
    """The whole image first, then by what is read with the true region, then those that look at nothing."""

    def whole(name: str, source: str) -> list[Row]:
        pages = own.get((name, source), [])
        return pages if {family_of(row["image"]) for row in pages} == set(families) else []

    def place(name: str) -> tuple[bool, bool, float, str]:
        told, blind = (average_of(whole(name, source), "score") for source in ("true", "none"))
        return name != FULL, told is None, -(told if told is not None else blind or 0.0), name

    lines = []
    for name in sorted({name for name, _ in own}, key=place):
        counts = sorted({len(own[name, source]) for source in HEADS if (name, source) in own}, reverse=True)
        cells = [percent(mean_of(whole(name, source), "score", 100.0)) for source in HEADS]
        title = name if name == FULL else f"`{name}`"
        lines.append([title, *cells, " or ".join(map(str, counts))])
    return Table(["method", *(f"{head}, %" for head in HEADS.values()), "pages"], lines)
