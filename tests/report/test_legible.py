"""Rows of the legibility benchmark in the page: read from its file, weighed by family, or said to be missing."""

import json

import pytest
import typer
from typer.testing import CliRunner

from homunculus.cli.report import report
from homunculus.errors import DataError, OutputError
from homunculus.eval.legibility import Plan, run
from homunculus.report.blocks import Heading, Table, to_markdown
from homunculus.report.legible import legibility_sections, read_legibility
from tests.report.made_up import lines, write

ADVICE = "homunculus bench legibility"


def page(family, index, allocator, source, score, budget=273):
    about = {"key": f"{family}/test-iid/{index}", "print": "p", "budget": budget, "family": family, "region": "target"}
    measure = "ssim" if family == "scenes" else "legibility"
    return about | {"allocator": allocator, "source": source, "kind": "key", "measure": measure, "score": score}


def pages():
    """topk is told half of documents and all of scene text, whatever the number of pages."""
    for family, count, share in (("documents", 6, 0.5), ("scene-text", 2, 1.0), ("scenes", 4, 0.9)):
        for index in range(count):
            yield page(family, index, "full image", "none", 1.0)
            yield page(family, index, "uniform", "none", 0.1)
            yield page(family, index, "topk", "true", share)
            yield page(family, index, "topk", "model-free", share / 5)
            yield page(family, index, "pyramid", "true", 0.9)
    yield page("documents", 0, "atlas", "true", 1.0)
    yield page("documents", 0, "topk", "true", 0.5)  # measured again
    yield page("documents", 0, "topk", "true", 0.0, budget=64)


def table_of(blocks):
    return next(block for block in blocks if isinstance(block, Table))


def test_a_line_for_each_allocator_with_families_equal(tmp_path):
    rows = read_legibility(write(tmp_path / "rows.jsonl", pages()))
    blocks = legibility_sections(rows, 273)
    assert (
        isinstance(blocks[0], Heading) and "273 tokens" in blocks[1].text and "not read on the same" in blocks[-1].text
    )
    shown = {line[0]: line[1:] for line in table_of(blocks).lines}
    assert list(shown) == ["full image", "`pyramid`", "`topk`", "`uniform`", "`atlas`"]
    assert shown["`topk`"] == ["75.0 [75.0, 75.0]", "15.0 [15.0, 15.0]", "–", "8"]  # (50 + 100) / 2, not 62.5
    assert shown["full image"] == ["–", "–", "100.0 [100.0, 100.0]", "8"]
    assert shown["`uniform`"][2].startswith("10.0") and shown["`atlas`"] == ["–", "–", "–", "1"]  # one family only
    assert "documents and scene-text, families counted equally" in blocks[1].text
    other = legibility_sections(rows, 100)
    assert "273 tokens" in other[1].text and "The rest of this page is about 100 tokens" in other[1].text


def test_rows_as_the_benchmark_writes_them(tmp_path):
    """Its own rows, read by a reader that sees nothing."""
    file = tmp_path / "rows.jsonl"
    run(Plan(("scene-text",), ("uniform", "topk"), 2, 64, size=(256, 256)), file, reader=lambda image, boxes: "")
    shown = {line[0]: line[1:] for line in table_of(legibility_sections(read_legibility(file), 64)).lines}
    assert shown["`topk`"] == ["0.0 [0.0, 0.0]", "0.0 [0.0, 0.0]", "–", "2"] and set(shown) == {
        "full image",
        "`uniform`",
        "`topk`",
    }


def test_without_rows_a_sentence_says_so():
    head, text = legibility_sections(None, 273)
    assert head.text == "Legibility" and "--legibility FILE" in text.text and text.text.count(".") == 1


@pytest.mark.parametrize(
    "content",
    ["", "no JSON\n", '{"mark": "m", "method": "topk"}\n', None],
    ids=["empty", "text", "answers", "missing"],
)
def test_a_wrong_file_costs_one_line(tmp_path, content):
    file = tmp_path / "wrong.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=ADVICE) as error:
        read_legibility(file)
    assert "\n" not in str(error.value) and "wrong.jsonl" in str(error.value)


def test_rows_without_text_cost_one_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(page("scenes", 0, "topk", "true", 0.5)) + "\n")
    with pytest.raises(DataError, match="no pages with text"):
        read_legibility(file)


def test_the_option_of_the_command(tmp_path):
    app = typer.Typer()
    app.command()(report)
    answers, read = write(tmp_path / "rows.jsonl", lines(questions=16)), write(tmp_path / "read.jsonl", pages())
    out, notes = tmp_path / "page.html", tmp_path / "page.md"
    common = [str(answers), "--out", str(out), "--markdown", str(notes), "--no-examples"]
    done = CliRunner().invoke(app, [*common, "--legibility", str(read)])
    assert done.exit_code == 0, done.output
    assert "75.0 [75.0, 75.0]" in notes.read_text() and "--legibility read.jsonl" in notes.read_text()
    assert CliRunner().invoke(app, common).exit_code == 0 and "No rows of `homunculus bench" in notes.read_text()
    before = out.read_bytes()
    wrong = CliRunner().invoke(app, [*common, "--legibility", str(answers)])
    assert isinstance(wrong.exception, DataError) and ADVICE in str(wrong.exception) and out.read_bytes() == before
    same = CliRunner().invoke(app, [str(answers), "--out", str(read), "--legibility", str(read), "--no-examples"])
    assert isinstance(same.exception, OutputError) and "would be overwritten" in str(same.exception)
    assert to_markdown([Heading("Legibility")]).strip() in notes.read_text()
