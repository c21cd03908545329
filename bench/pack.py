"""Rows of `homunculus eval` as they are kept in the repository: in columns and packed, some four bytes an answer.

    python -m bench.pack rows.jsonl --out bench/results/experiment.jsonl.xz
    python -m bench.pack bench/results/experiment.jsonl.xz --out rows.jsonl  # to go on with them

What is left out says homunculus/eval/columns.py. What other processes wrote beside a file, rows.1.jsonl and so on, goes
in with it. `homunculus report` reads the packed file as it is.
"""

import argparse
import json
import lzma
from collections.abc import Sequence
from pathlib import Path

from bench import plainly
from homunculus.cli.output import write_whole
from homunculus.eval.columns import to_columns
from homunculus.eval.lines import read_rows
from homunculus.eval.rows import with_parts


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
    files = with_parts(options.rows)
    lines = [line for file in files for line in read_rows(file, mend=False)]
    packs = options.out.suffix == ".xz"
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (to_columns(lines) if packs else lines))
    write_whole(options.out, lzma.compress(text.encode(), preset=9) if packs else text.encode())
    answers = {(line["mark"], line["key"]) for line in lines if "mark" in line and "key" in line}
    ways, size = len({mark for mark, _ in answers}), options.out.stat().st_size
    print(f"{len(answers)} answers in {ways} ways from {', '.join(file.name for file in files)}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    plainly.run(main)
