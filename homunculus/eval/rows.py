"""The file of an evaluation: JSON lines, appended as answers come, so that a stopped run goes on where it was.

    settings   what was asked and how, under a mark; before the first answer that has it
    facts      what is known of a question, under its key; once, whatever the number of ways it is asked
    answers    a mark, a key, what was said and how right it is
    spent      how long answers under a mark took to make, and on what
    costs      how fast a way of asking is, and how much memory it takes
    weights    what a model was tuned for

A file that ends in .gz or .xz is read as it is, for tables that are kept (see eval/columns.py); only plain ones are
added to. Several processes write a file each (`rows.jsonl`, `rows.1.jsonl`, ...), and all of them are read.
"""

import glob
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from homunculus.errors import OutputError
from homunculus.eval.columns import FOLLOWS, not_told_of
from homunculus.eval.lines import PACKED, Row, append_rows, read_rows
from homunculus.eval.plans import Plan

FACTS = ("image", "of", "question", "kind", "region", "answers", "boxes", "size")

Kinds = dict[str, type | tuple[type, ...]]

# The least that a line has, by what it tells.
NUMBER = (int, float)
COST: Kinds = {"cost": dict, "per_second": NUMBER, "batches": int, "batch": int, "device": str}
SPENT: Kinds = {"spent": str, "questions": int, "seconds": NUMBER, "device": str}
COLUMNS: Kinds = {"asked": str, "by": list, "exact": list}
ANSWER: Kinds = {"mark": str, "key": str, "exact": NUMBER}
FACT: Kinds = {"key": str, "image": str, "of": int, "question": str, "answers": list, "size": list}
SETTINGS: Kinds = {"mark": str, "weights": str, "family": str, "split": str, "method": str, "relevance": str}
SETTINGS |= {"budget": (int, NoneType), "size": list, "how": dict, "dtype": str}
MODEL: Kinds = {"weights": str}


def own_file(file: Path, process: int) -> Path:
    """Where a process writes: the first into the file itself.

    >>> own_file(Path("rows.jsonl"), 0).name, own_file(Path("rows.jsonl"), 2).name
    ('rows.jsonl', 'rows.2.jsonl')
    """
    return file if process == 0 else file.with_name(f"{file.stem}.{process}{file.suffix}")


def with_parts(files: Iterable[Path]) -> list[Path]:
    """Files with those that other processes wrote beside them, each once."""
    every = [one for file in files for one in (file, *sorted(filter(_is_part, file.parent.glob(_beside(file)))))]
    return list({one.resolve(): one for one in every}.values())


class Kept:
    """The rows of a file, by mark and key, and where more of them go; without a file they are only kept here.

    >>> kept = Kept(None)
    >>> fact = {"image": "scenes/val/0", "of": 1, "question": "How many?", "answers": ["2"]}
    >>> row, = kept.add(Plan("scenes"), "weights", [{"key": "scenes/val/0#0", "said": "2"} | fact])
    >>> kept.rows[row["mark"]]["scenes/val/0#0"]["question"]
    'How many?'
    """

    def __init__(self, file: Path | None, process: int | None = 0, *more: Path) -> None:
        """`process` says whose file is added to, the first's by default; with None all are only read. What stands in
        `more` files is read as if it stood in this one."""
        self.file = None if file is None or process is None else own_file(file, process)
        if self.file is not None and self.file.suffix in PACKED:
            raise OutputError(f"{self.file} is packed and cannot be added to: give --out a name such as rows.jsonl")
        self.settings: dict[str, Row] = {}
        self.facts: dict[tuple[str, Any], Row] = {}  # by key and size: an image of another size is another image
        self.rows: dict[str, dict[str, Row]] = defaultdict(dict)
        self.costs: list[Row] = []
        self.spent: list[Row] = []
        self.models: dict[str, Row] = {}
        self._told: set[Any] = set()  # marks and keys that the own file tells of
        self._timed: set[str] = set()  # lines of costs and of what was spent
        every = with_parts(one for one in (file, *more) if one is not None)
        # What one process asked another may have asked as well, with the facts in the file of whoever came first.
        lines = []
        for one in every:
            own = read_rows(one, is_row, mend=one == self.file)
            if one == self.file:
                self._told = {_name(line) for line in own if not _is_answer(line)}
            lines += own
        for line in sorted(lines, key=_is_answer):
            self._take(line)

    def _take(self, line: Row) -> None:
        if "cost" in line or "spent" in line:
            self._take_time(line)
        elif "key" not in line:
            table, name = (self.settings, "mark") if "mark" in line else (self.models, "weights")
            table[line[name]] = line
        elif "mark" not in line:
            self.facts[line["key"], _size(line)] = line
        else:
            about = self.settings.get(line["mark"])
            fact = None if about is None else self.facts.get((line["key"], _size(about)))
            if fact is None:
                raise not_told_of(line)
            follows = {name: line["exact"] for name in FOLLOWS if "exact" in line}
            self.rows[line["mark"]][line["key"]] = fact | follows | line

    def _take_time(self, line: Row) -> None:
        """Time counts once: a line that is there again is of the same file under another name, packed or copied. Two
        batches that took as long to the sixth digit, on one day, would count once as well, which is no loss."""
        text = json.dumps(line)
        if text not in self._timed:
            self._timed.add(text)
            (self.costs if "cost" in line else self.spent).append(line)

    def add(self, plan: Plan, weights: str, rows: Sequence[Row]) -> list[Row]:
        """The rows with their mark, once they are in the file. A file says itself what its answers are about, whatever
        those of other processes say: one that is lost takes nothing else along."""
        mark = plan.mark(weights)
        lines: list[Row] = [{"mark": mark, "weights": weights} | plan.settings()]
        for row in rows:
            known = {name: row[name] for name in FACTS if name in row}
            lines.append({"key": row["key"]} | known | {"size": list(plan.size)})
            lines.append({"mark": mark} | {name: value for name, value in row.items() if name not in FACTS})
        lines = [line for line in lines if _is_answer(line) or _name(line) not in self._told]
        self._told |= {_name(line) for line in lines if not _is_answer(line)}
        self._write(lines)
        return [self.rows[mark][row["key"]] for row in rows]

    def add_spent(self, plan: Plan, weights: str, questions: int, seconds: float, where: Row) -> None:
        """How long so many answers took, on what."""
        self._write([{"spent": plan.mark(weights), "questions": questions, "seconds": short(seconds)} | where])

    def add_cost(self, cost: Row) -> None:
        """How fast a way of asking was."""
        self._write([cost])

    def add_model(self, weights: str, about: Mapping[str, Any]) -> None:
        """What a model was tuned for; once."""
        told = {"weights": weights, **about}
        if self.models.get(weights) != told:
            self._write([told])

    def _write(self, lines: Sequence[Row]) -> None:
        if self.file is not None:
            append_rows(self.file, lines)
        for line in lines:
            self._take(line)


def is_row(line: Row) -> bool:
    """Whether a line of a file is one of ours, packed or not, by the least that it must have.

    >>> is_row({"mark": "a", "key": "scenes/val/0#0", "exact": 1.0}), is_row({"mark": "a", "key": "scenes/val/0#0"})
    (True, False)
    >>> is_row({"weights": "w", "tuned": None}), is_row({"key": "scenes/val/0", "score": 0.5})
    (True, False)
    """
    if any(name not in line or not isinstance(line[name], kind) for name, kind in _needed(line).items()):
        return False
    if "asked" in line:
        columns = [own for name, own in line.items() if name != "asked"]
        even = all(isinstance(own, list) and len(own) == len(line["by"]) for own in columns)
        return even and all(isinstance(way, int) and way >= 0 for way in line["by"])
    size = line.get("size")  # of settings and facts
    return not isinstance(size, list) or all(isinstance(side, int) for side in size)


def _needed(line: Row) -> Kinds:
    """What a line must have that tells what this one tells."""
    if "cost" in line or "spent" in line:
        return COST if "cost" in line else SPENT
    if "asked" in line:
        return COLUMNS
    if "key" in line:
        return ANSWER if "mark" in line else FACT
    return SETTINGS if "mark" in line else MODEL


def _beside(file: Path) -> str:
    return f"{glob.escape(file.stem)}.*{file.suffix}"


def _is_part(file: Path) -> bool:
    """Whether a file is that of another process: its name ends in a number."""
    return file.stem.rpartition(".")[2].isdigit()


def _is_answer(line: Row) -> bool:
    return "mark" in line and "key" in line


def _name(line: Row) -> Any:
    """What a line that is no answer is known by."""
    return line.get("mark") or (line.get("key"), tuple(line.get("size", ())))


def _size(line: Row) -> tuple[int, ...]:
    return tuple(line["size"])


def short(value: float | None) -> float | None:
    """Six digits, which is more than any measure here means, and half the file.

    >>> short(2 / 3), short(-1.23456789e-9), short(None)
    (0.666667, -1.23457e-09, None)
    """
    return None if value is None else float(f"{value:.6g}")
