"""Rows of `homunculus eval` as they are kept in the repository: packed, a third of what gzip makes of them.

    python -m bench.pack rows.jsonl --out bench/results/experiment.jsonl.xz
    python -m bench.pack bench/results/experiment.jsonl.xz --out rows.jsonl  # to go on with them

Left out is what no table reads (the logarithm of what `confidence` says) and what follows from the rest (ANLS and VQA
accuracy of an answer that both judge as `exact` does); numbers have three digits. Answers to one question stand side by
side, since most of them are alike. `homunculus report` reads the file as it is.
"""

import argparse
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from homunculus.cli.output import write_whole
from homunculus.errors import HomunculusError
from homunculus.eval.lines import read_rows
from homunculus.eval.rows import FOLLOWS, Row

DIGITS = 3


def packed(lines: Iterable[Row]) -> Iterator[Row]:
    """Settings, facts, costs and weights as they are, then the answers, by question.

    >>> row = {"mark": "m", "key": "k", "exact": 1.0, "anls": 1.0, "vqa": 0.6, "logp": -0.1, "mass": 0.12345}
    >>> list(packed([row, {"mark": "m"}]))
    [{'mark': 'm'}, {'mark': 'm', 'key': 'k', 'exact': 1, 'vqa': 0.6, 'mass': 0.123}]
    """
    answers = []
    for line in lines:
        if "mark" in line and "key" in line:
            answers.append(line)
        else:
            yield line
    for line in sorted(answers, key=lambda one: (one["key"], one["mark"])):
        follows = {name for name in FOLLOWS if line.get(name) == line.get("exact")} | {"logp"}
        yield {name: _short(value) for name, value in line.items() if name not in follows}


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if not isinstance(value, float):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="files of rows, all of which go into one")
    parser.add_argument("--out", type=Path, required=True, help="a new name: .jsonl.xz to pack, .jsonl to unpack")
    options = parser.parse_args(arguments)
    if options.out.suffix not in (".xz", ".jsonl"):
        parser.error(f"{options.out} is no name of a file of rows: let it end in .jsonl.xz, or in .jsonl to unpack")
    if options.out in options.rows or (options.out.suffix == ".jsonl" and options.out.exists()):
        parser.error(f"{options.out} is there already and may hold rows that nobody else has: choose another name")
    if missing := [file for file in options.rows if not file.exists()]:
        parser.error(f"{missing[0]} does not exist: check the path")
    lines = [line for file in options.rows for line in read_rows(file, mend=False)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in packed(lines)).encode()
    if options.out.suffix == ".xz":
        text = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    write_whole(options.out, text)
    print(f"{len(lines)} lines, {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except HomunculusError as error:
        raise SystemExit(f"Error: {error}") from None
