"""Rows of `homunculus eval` as they are kept in the repository: in columns and packed, some four bytes an answer.

    python -m bench.pack rows.jsonl --out bench/results/experiment.jsonl.xz
    python -m bench.pack bench/results/experiment.jsonl.xz --out rows.jsonl  # to go on with them

What is left out says homunculus/eval/columns.py. What other processes wrote beside a file, rows.1.jsonl and so on, goes
in with it. A packed file that is there is replaced if the new one has all its rows; one that is not packed never is, as
it may have more digits. `homunculus report` reads the packed file as it is.
"""

import argparse
import json
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import plainly
from homunculus.cli.output import write_whole
from homunculus.eval.columns import to_columns
from homunculus.eval.lines import Row, read_rows
from homunculus.eval.rows import is_row, with_parts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="files of rows, all of which go into one")
    parser.add_argument("--out", type=Path, required=True, help="a name: .jsonl.xz to pack, a new .jsonl to unpack")
    options = parser.parse_args(arguments)
    if options.out.suffix not in (".xz", ".jsonl"):
        parser.error(f"{options.out} is no name of a file of rows: let it end in .jsonl.xz, or in .jsonl to unpack")
    if options.out.suffix == ".jsonl" and options.out.exists():
        parser.error(f"{options.out} is there already and may hold rows that nobody else has: choose another name")
    if missing := [file for file in options.rows if not file.exists()]:
        parser.error(f"{missing[0]} does not exist: check the path")
    files = with_parts(options.rows)
    lines = [line for file in files for line in _read(file)]
    told = ", ".join(file.name for file in files)
    if not lines:
        parser.error(f"{told}: no rows to write: give a file that `homunculus eval` wrote")
    answers, others = told_of(lines)
    if options.out.exists():
        lost = [one - own for one, own in zip(told_of(_read(options.out)), (answers, others), strict=True)]
        if any(lost):
            counts = f"{len(lost[0])} answers and {len(lost[1])} other rows"
            parser.error(f"{options.out} has {counts} that {told} lacks: give both files, or choose another name")
    packs = options.out.suffix == ".xz"
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (to_columns(lines) if packs else lines))
    write_whole(options.out, lzma.compress(text.encode(), preset=9) if packs else text.encode())
    ways, size = len({mark for mark, _ in answers}), options.out.stat().st_size
    print(f"{len(answers)} answers in {ways} ways from {told}: {size / 1e6:.2f} MB")


def _read(file: Path) -> list[Row]:
    return read_rows(file, is_row, mend=False)


def told_of(lines: Iterable[Row]) -> tuple[set[tuple[Any, Any]], set[str]]:
    """The answers among lines, by way and question, and all other lines.

    >>> told_of([{"mark": "a", "size": [64, 64]}, {"mark": "a", "key": "k", "exact": 1.0}])
    ({('a', 'k')}, {"{'mark': 'a', 'size': [64, 64]}"})
    """
    answers, others = set(), set()
    for line in lines:
        if "mark" in line and "key" in line:
            answers.add((line["mark"], line["key"]))
        else:
            others.add(repr(line))
    return answers, others


if __name__ == "__main__":
    plainly.run(main)
