"""Rows of `bench.ablations` in the page: a table for each part, or said to be missing."""

import json

import pytest
import typer
from typer.testing import CliRunner

from homunculus.cli.report import report
from homunculus.errors import DataError, OutputError
from homunculus.report.blocks import Heading, Table
from homunculus.report.trained import TITLES, read_training, training_sections
from tests.report.made_up import lines, write

WHERE = {"device": "Some GPU", "torch": "2.11.0", "python": "3.12.3", "date": "2026-11-16"}


def trained():
    yield {"variant": "soft sight", "part": "gap", "steps": 400, "seconds": 40.4, "all: soft": 0.9, "all: lost": 0.125}
    yield {"variant": "hard sight", "part": "gap", "steps": 400, "seconds": 39.6, "all: soft": 0.5, "all: lost": -0.25}
    yield {"variant": "log-polar", "part": "positions", "steps": 9, "seconds": 1.0, "scenes: true": float("nan")}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ablations.json"
    path.write_text(json.dumps([row | WHERE for row in trained()]))
    return path


def test_a_table_for_each_part_in_the_order_of_the_parts(file):
    blocks = training_sections(read_training(file))
    heads = [block.text for block in blocks if isinstance(block, Heading)]
    assert heads == ["Trained differently", TITLES["positions"], TITLES["gap"]]
    assert "Some GPU, torch 2.11.0, 2026-11-16" in blocks[1].text and "one seed" in blocks[1].text
    positions, gap = (block for block in blocks if isinstance(block, Table))
    assert positions.lines == [["log-polar", "9", "1", "–"]]
    assert gap.head == ["", "steps", "seconds", "all: soft", "all: lost"]
    assert gap.lines == [["soft sight", "400", "40", "90.0", "+12.5"], ["hard sight", "400", "40", "50.0", "-25.0"]]


def test_without_rows_a_sentence_says_so():
    head, text = training_sections(None)
    assert head.text == "Trained differently" and "--training FILE" in text.text


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "no JSON",
        '{"mark": "m"}',
        '[{"mark": "m"}]',
        '[{"variant": 1, "part": 2, "steps": null, "seconds": "x"}]',
        None,
    ],
)
def test_what_is_no_file_of_it_is_refused(tmp_path, content):
    file = tmp_path / "other.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=r"bench\.ablations"):
        read_training(file)


def test_the_command_shows_it(tmp_path, file):
    app = typer.Typer()
    app.command()(report)
    answers, out, notes = write(tmp_path / "rows.jsonl", lines(questions=16)), tmp_path / "a.html", tmp_path / "a.md"
    common = [str(answers), "--markdown", str(notes), "--no-examples"]
    done = CliRunner().invoke(app, [*common, "--out", str(out), "--training", str(file)])
    assert done.exit_code == 0, done.output
    assert "| soft sight | 400 | 40 | 90.0 | +12.5 |" in notes.read_text()
    assert "--training ablations.json" in notes.read_text() and TITLES["gap"] in out.read_text()
    same = CliRunner().invoke(app, [*common, "--out", str(file), "--training", str(file)])
    assert isinstance(same.exception, OutputError) and "would be overwritten" in str(same.exception)
