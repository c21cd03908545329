"""The table at the head of the README, from the rows that are kept in the repository.

    python -m bench.headline bench/results/experiment.jsonl.xz                      to look at
    python -m bench.headline bench/results/experiment.jsonl.xz --write README.md    between the marks of a file

Its lines were chosen before there were any rows: the default, what docs/predictions.md compares it with, a reducer of
each kind and full resolution. The best of all others has a line as well, whatever it is.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from homunculus.allocation import DEFAULT
from homunculus.cli.output import write_whole
from homunculus.errors import DataError, HomunculusError
from homunculus.eval.rows import Kept
from homunculus.report.numbers import NONE, number, percent
from homunculus.report.sheet import SHORT, WHOLE, Arm, Sheet
from homunculus.report.tables import asked_families, full_resolution, ranked, retained

OURS = (DEFAULT, "pyramid", "log-polar-rings", "topk", "uniform")
LINES = (*OURS, "peers/visionzip", "peers/tome", "peers/fastv", WHOLE)
BEGIN, END = "<!-- headline: python -m bench.headline -->", "<!-- end of headline -->"


def headline(sheet: Sheet) -> str:
    """Exact answers by family, in Markdown, the best mean first; readers of the first arm there is, which heads it."""
    arm = sheet.arms[0]
    families = asked_families(arm)
    there = [name for name in ranked(arm) if arm.find(name, families)]
    best = next((name for name in there if name not in LINES), None)
    others = [other for other in sheet.arms if other != arm]
    head = [SHORT[arm.name], "tokens", *families, "together", *(f"together, {SHORT[other.name]}" for other in others)]
    head += ["of full resolution", "questions/s"]
    lines = [line(arm, name, families, others) for name in there if name in LINES or name == best]
    ruled = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in ruled)


def line(arm: Arm, name: str, families: Sequence[str], others: Sequence[Arm]) -> list[str]:
    own, cost = arm.find(name, families), arm.cost(name) or {}
    share = retained(own, full_resolution(arm).find(WHOLE, families))
    return [
        f"`{name}`",
        number(own.average("tokens"), 0),
        *(percent(arm.find(name, [family]).exact) for family in families),
        percent(own.exact),
        *(percent(other.find(name, families).exact) for other in others),
        NONE if share is None else f"{percent(share)} %",
        number(cost.get("per_second"), 0),
    ]


def between(text: str, table: str) -> str:
    """A text with the table in place of what stands between its marks.

    >>> print(between(f"a\\n{BEGIN}old{END}\\nb", "new"))
    a
    <!-- headline: python -m bench.headline -->
    new
    <!-- end of headline -->
    b
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"there is no place for the table: put {BEGIN} and {END} where it is to stand")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="files of rows, packed or not")
    parser.add_argument("--write", type=Path, help="a file with marks, to put the table into")
    options = parser.parse_args(arguments)
    try:
        table = headline(Sheet([Kept(options.rows[0], None, *options.rows[1:])]))
        if options.write is None:
            print(table)
        else:
            text = between(options.write.read_text(encoding="utf-8"), table)
            write_whole(options.write, text.encode())
    except (HomunculusError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
