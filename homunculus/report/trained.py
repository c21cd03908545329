"""What was trained differently: the rows of `python -m bench.ablations`, a table for each thing that was changed.

These models learned for a few minutes each, from nothing or from the shipped weights, so their shares compare with each
other and with nothing else on the page.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from homunculus.errors import DataError
from homunculus.report.blocks import Block, Heading, Table, Text
from homunculus.report.numbers import NONE, Row, listed

TITLE = "Trained differently"
NUMBER = (int, float)
NEEDED: dict[str, Any] = {"variant": str, "part": str, "steps": int, "seconds": NUMBER}
PLACE = ("device", "torch", "date")  # of a row that says where it is from
TITLES = {
    "reader": "What a reader learns before it reads",
    "scorer": "What a scorer learns beside regions",
    "positions": "How cells say where they are",
    "coverage": "A scorer that pays for regions left empty, by how much",
    "gap": "Learning on what a relaxed tree shows, or on what the hard one does; asked both ways",
}
SHORTFALL = "lost"  # a difference of two shares


def read_training(file: Path) -> list[Row]:
    """The rows of a file."""
    advice = "give the ablations.json that `python -m bench.ablations --out FOLDER` writes into its folder"
    if not file.is_file():
        raise DataError(f"{file} is not there: {advice}")
    try:
        rows = json.loads(file.read_bytes())
    except (OSError, ValueError):
        rows = None
    if not isinstance(rows, list) or not rows or not all(map(_is_row, rows)):
        raise DataError(f"{file} holds no rows of such a training: {advice}")
    return rows


def _is_row(row: Any) -> bool:
    """
    >>> row = {"variant": "bands", "part": "reader", "steps": 9, "seconds": 1.5, "scenes: true": 0.5}
    >>> _is_row({"mark": "m"}), _is_row(row | {"seconds": None}), _is_row(row | {"device": "GPU"}), _is_row(row)
    (False, False, False, True)
    """
    known = isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in NEEDED.items())
    placed = known and ("device" not in row or all(isinstance(row.get(name), str) for name in PLACE))
    return placed and all(isinstance(row[name], NUMBER) for name in _measured(row))


def _measured(row: Row) -> list[str]:
    return [name for name in row if ":" in name]


def training_sections(rows: Sequence[Row] | None) -> list[Block]:
    """A table for each part, or a sentence that there is none."""
    if rows is None:
        text = "No rows of `python -m bench.ablations` were given (`--training FILE`), so nothing is said of it."
        return [Heading(TITLE), Text(text)]
    places = dict.fromkeys(f"{row['device']}, torch {row['torch']}, {row['date']}" for row in rows if "device" in row)
    lead = (
        "Models that learned for a few minutes each, with one seed, and differ in one thing; right answers, or peaks "
        "of relevance in the true region, in percent of the same held-out questions."
    )
    blocks: list[Block] = [Heading(TITLE), Text(lead + (f" On {listed(list(places))}." if places else ""))]
    order = [*(part for part in TITLES if any(row["part"] == part for row in rows))]
    order += sorted({row["part"] for row in rows} - set(order))
    for part in order:
        own = [row for row in rows if row["part"] == part]
        blocks += [Heading(TITLES.get(part, part), 3), training_table(own)]
    return blocks


def training_table(rows: Sequence[Row]) -> Table:
    """A line for each variant, in the order they were trained.

    >>> training_table([{"variant": "bands", "part": "reader", "steps": 9, "seconds": 1.5, "scenes: true": 0.5}]).lines
    [['bands', '9', '2', '50.0']]
    """
    names = list(dict.fromkeys(name for row in rows for name in _measured(row)))
    lines = [
        [row["variant"], str(row["steps"]), f"{row['seconds']:.0f}", *(_share(row.get(name), name) for name in names)]
        for row in rows
    ]
    return Table(["", "steps", "seconds", *names], lines)


def _share(value: float | None, name: str) -> str:
    """
    >>> _share(0.5, "scenes: true"), _share(-0.01, "all: lost"), _share(float("nan"), "topk: all") == NONE
    ('50.0', '-1.0', True)
    """
    if value is None or value != value:
        return NONE
    return f"{100 * value:+.1f}" if name.endswith(SHORTFALL) else f"{100 * value:.1f}"
