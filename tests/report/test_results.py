"""docs/tables.md is the page of the rows that are kept, and docs/results.md says nothing else."""

import re
from pathlib import Path

import pytest

from homunculus.cli.report import report

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\d+(?:\.\d+)?")
INTERVAL = re.compile(r"[+−]?\d+\.\d \[[^\]]+\]")


def test_the_tables_are_those_of_the_rows(tmp_path):
    """To the words; a last digit may round differently on another machine."""
    kept = ROOT / "bench" / "results"
    pages = tmp_path / "report.html", tmp_path / "tables.md"
    beside = {"legibility": kept / "legibility.jsonl.xz", "training": kept / "ablations.json"}
    report([kept / "experiment.jsonl.xz"], *pages, examples=False, **beside)
    made, published = (_without_examples(file.read_text()) for file in (pages[1], ROOT / "docs" / "tables.md"))
    assert NUMBER.sub("0", made) == NUMBER.sub("0", published)
    numbers = [[float(own) for own in NUMBER.findall(text)] for text in (made, published)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.11, rel=1e-3)


def test_every_figure_of_the_results_stands_in_the_tables():
    results, tables = ((ROOT / "docs" / name).read_text() for name in ("results.md", "tables.md"))
    figures = INTERVAL.findall(results)
    assert len(figures) > 40
    assert not [figure for figure in figures if figure not in tables]


def _without_examples(text: str) -> str:
    """Drawing them takes a model, and a while."""
    before, _, rest = text.partition("## Wins and losses")
    return before + rest[rest.index("## How it was measured") :] if rest else text
