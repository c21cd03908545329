"""Rows as they are kept in a repository: all answers to a question on one line, column by column.

    {"asked": key, "by": [0, 1, 5], "exact": [1, 1, 0], "said": [null, null, "A-7"], "confidence": [0.98, 0.97, 0.41]}

`by` numbers the ways of asking in the order in which the file describes them, all of them before the first such line.
What most of them share stands side by side then, and a packer makes little of it. Left out is what no table reads (the
logarithm of what `confidence` says) and what follows from the rest: what was said, where it is the first of the answers
that count, and ANLS and VQA accuracy where both judge as `exact` does. Numbers have three digits.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from homunculus.errors import DataError

Line = dict[str, Any]

DIGITS = 3
FOLLOWS = ("anls", "vqa")  # are what `exact` is, where nothing else is said
UNREAD = ("mark", "key", "logp")


def to_columns(lines: Iterable[Line]) -> Iterator[Line]:
    """All lines but answers as they are, each once, then the answers, a line for each question.

    >>> ways, fact = [{"mark": "a"}, {"mark": "b"}], {"key": "k", "answers": ["7"]}
    >>> right = {"mark": "b", "key": "k", "said": "7", "exact": 1.0, "anls": 1.0, "logp": -0.1, "mass": 0.12345}
    >>> list(to_columns([*ways, fact, right, right | {"mark": "a"}]))[-1]
    {'asked': 'k', 'by': [0, 1], 'exact': [1, 1], 'mass': [0.123, 0.123]}
    """
    answers: dict[str, dict[str, Line]] = defaultdict(dict)  # by key and mark: of several the last
    others: dict[str, Line] = {}
    for line in lines:
        if "mark" in line and "key" in line:
            answers[line["key"]][line["mark"]] = line
        else:
            others[repr(line)] = line
    yield from others.values()
    ways, expected = _ways(others.values()), _expected(others.values())
    for key in sorted(answers):
        if untold := [row for mark, row in answers[key].items() if mark not in ways]:
            raise not_told_of(untold[0])
        rows = sorted(answers[key].values(), key=lambda row: ways[row["mark"]])
        short = [_without_what_follows(row, expected.get(key)) for row in rows]
        names = dict.fromkeys(name for row in short for name in row)
        yield {"asked": key, "by": [ways[row["mark"]] for row in rows]} | {
            name: [row.get(name) for row in short] for name in names
        }


def from_columns(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines that were put into columns; all others as they are, also those that were written behind them.

    >>> column = {"asked": "k", "by": [1], "exact": [1], "said": [None]}
    >>> list(from_columns([{"mark": "a"}, {"mark": "b"}, {"key": "k", "answers": ["7"]}, column]))[-1]
    {'mark': 'b', 'key': 'k', 'said': '7', 'exact': 1}
    """
    lines = list(lines)
    first = next((place for place, line in enumerate(lines) if "asked" in line), len(lines))
    marks, expected = list(_ways(lines[:first])), _expected(lines[:first])
    more = False  # ways that were described behind columns, which do not count them
    for line in lines[first:]:
        if more and "asked" in line:
            raise ValueError("packed files one behind the other, whose ways nobody can tell apart")
        more = more or ("mark" in line and "key" not in line)
    for line in lines:
        if "asked" not in line:
            yield line
            continue
        key, columns = line["asked"], {name: own for name, own in line.items() if name not in ("asked", "by")}
        said = {"said": expected[key]} if key in expected else {}
        for place, way in enumerate(line["by"]):
            known = {name: own[place] for name, own in columns.items() if own[place] is not None}
            yield {"mark": marks[way], "key": key} | said | known


def not_told_of(answer: Line) -> DataError:
    """What is wrong where no line says how an answer was asked for, or what the question was."""
    return DataError(
        f"answers to {answer['key']} are marked {answer['mark']}, and no file says what was asked or how: give all "
        "files that `homunculus eval` wrote, rows.1.jsonl and the others beside rows.jsonl"
    )


def _ways(lines: Iterable[Line]) -> dict[str, int]:
    """The number of each way of asking."""
    marks = dict.fromkeys(line["mark"] for line in lines if "mark" in line and "key" not in line)
    return {mark: number for number, mark in enumerate(marks)}


def _expected(lines: Iterable[Line]) -> dict[str, str]:
    """The first of the answers that count, for each question; where sizes ask different ones, none."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if "key" in line and "mark" not in line and line.get("answers"):
            found[line["key"]].add(line["answers"][0])
    return {key: next(iter(own)) for key, own in found.items() if len(own) == 1}


def _without_what_follows(row: Line, expected: str | None) -> Line:
    """What has to be kept of an answer."""
    follows = {name for name in FOLLOWS if row.get(name) == row.get("exact")}
    follows |= {"said"} if expected is not None and row.get("said") == expected else set()
    return {name: _short(value) for name, value in row.items() if name not in follows and name not in UNREAD}


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if not isinstance(value, float):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
