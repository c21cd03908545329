"""The table of docs/experiment.md is what the rows beside it say."""

from pathlib import Path

from homunculus.allocation import allocators
from homunculus.eval.rows import Kept
from homunculus.report.numbers import number, percent, points
from homunculus.report.sheet import THREE, Sheet

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_rows():
    (arm,) = Sheet([Kept(ROOT / "bench" / "results" / "first_look.jsonl.xz", None)]).arms
    text = (ROOT / "docs" / "experiment.md").read_text().partition("## A first look")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "| `" in line]
    assert {line[0].strip("`") for line in lines} == set(allocators()) and arm.name == "zero-shot"
    for name, *cells in lines:
        own = arm.find(name.strip("`"))
        pair = None if own.method == "topk" else own.against(arm.find("topk"))
        each = [number(100 * (arm.find(own.method, [family]).average("exact") or 0.0)) for family in THREE]
        assert cells == [*each, percent(own.exact), points(pair)], name
