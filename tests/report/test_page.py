"""What the page says is what the rows say, twice in the same words, and the same bytes each time."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import typer
from typer.testing import CliRunner

from homunculus.allocation import DEFAULT
from homunculus.cli.report import report
from homunculus.data.dice import Dice
from homunculus.errors import DataError, OutputError
from homunculus.eval.rows import Kept
from homunculus.report.blocks import Box, Heading, Table, to_html, to_markdown
from homunculus.report.charts import Point, front_names, pareto, spread
from homunculus.report.heat import accuracy_map
from homunculus.report.open_questions import NOT_MEASURED, open_questions
from homunculus.report.page import document, to_page
from homunculus.report.predictions import outcomes
from homunculus.report.sheet import Sheet
from tests.report.made_up import ACCURACY, lines, sheet, write

app = typer.Typer()
app.command()(report)


def cells_of(html: str) -> list[list[str]]:
    """The lines of all tables of a page, as read by a parser that is not ours."""

    class Reader(HTMLParser):
        def __init__(self):
            super().__init__()
            self.lines: list[list[str]] = []
            self.inside = False

        def handle_starttag(self, tag, attributes):
            if tag == "tr":
                self.lines.append([])
                self.grouped = ("class", "groups") in attributes
            self.inside = tag in ("td", "th") or (self.inside and tag in ("code", "small", "span", "strong", "br"))
            if tag in ("td", "th"):
                self.lines[-1].append("")
            if tag == "br" and self.inside:
                self.lines[-1][-1] += "\n"

        def handle_endtag(self, tag):
            self.inside = self.inside and tag not in ("td", "th")
            if tag == "tr" and self.grouped:
                self.lines.pop()

        def handle_data(self, data):
            if self.inside:
                self.lines[-1][-1] += data

    reader = Reader()
    reader.feed(html)
    return reader.lines


def test_markdown_and_html_have_the_same_cells(blocks):
    seen = cells_of(to_html(blocks))
    told = [
        [cell.replace("<br>", "\n").replace("`", "").replace("**", "") for cell in line[2:-2].split(" | ")]
        for line in to_markdown(blocks).splitlines()
        if line.startswith("| ") and not set(line) <= set("| -")
    ]
    assert len(seen) > 100 and seen == told


def test_the_page_stands_alone_and_is_the_same_each_time(file, blocks):
    page = to_page(blocks)
    assert to_page(document(Sheet([Kept(file)]))) == page
    outside = re.findall(r"""\b(?:src|href)=(?!["'](?:#|data:))[^\s>]+|@import|url\((?!#)|fetch\(""", page)
    assert not outside
    assert not re.search(r"https?://(?!www\.w3\.org/)", page)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    links = re.findall(r'href="#([^"]+)"', page)
    assert set(links) <= set(names)


def test_every_section_is_there(blocks):
    heads = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    wanted = ["The decision", "Predictions", "Open questions", "Every method", "Budgets", "Cost", "Where on the page"]
    wanted += ["One thing changed at a time", "Unlike training", "Several questions about one image", "Legibility"]
    assert set(wanted) <= set(heads) and heads[-1] == "How it was measured"


def test_it_says_where_the_rules_name_another_default_than_the_package_has(tmp_path):
    def last_line(name, accuracy):
        blocks = document(sheet(tmp_path / f"{name}.jsonl", lines(accuracy, questions=300)))
        return next(block for block in blocks if isinstance(block, Box)).lines[-1]

    alike = last_line("alike", dict.fromkeys(ACCURACY, (90, 90, 90)))
    ahead = last_line("ahead", ACCURACY)  # the package's by ten points
    assert alike.endswith(f"The package's is still `{DEFAULT}`.") and not ahead.endswith(f"`{DEFAULT}`.")
    assert f"by the rules: **`{DEFAULT}`**" in ahead and f"**`{DEFAULT}`**" not in alike


def test_it_says_how_long_answers_took(tmp_path):
    file = write(tmp_path / "rows.jsonl", lines(questions=20))
    assert "| time of answering | not measured |" in to_markdown(document(Sheet([Kept(file)])))
    with file.open("a") as more:
        for seconds in (90, 60):
            spent = {"spent": "a mark", "questions": 700, "seconds": seconds, "device": "Other GPU", "torch": "2.12.0"}
            more.write(json.dumps(spent | {"date": "2026-11-19"}) + "\n")
    text = to_markdown(document(Sheet([Kept(file)])))
    assert re.search(r"time of answering \| 2\.5 min on Other GPU for 1.400 answers, without drawing", text)
    assert "Test GPU and Other GPU" in text and "2026-11-17 to 2026-11-19" in text


def test_it_says_how_families_are_weighed_and_which_p_values_count(blocks):
    text = to_markdown(blocks)
    assert text.count("is the mean of the families, which count equally however many questions each was asked") == 2
    assert "| p, as it is | p, after Holm |" in text and "these three comparisons were fixed beforehand" in text


def test_text_from_rows_is_escaped():
    page = to_html([Table(["a"], [["<script>alert(1)</script>"]])])
    assert "<script>" not in page and unescape(page).count("<script>") == 1


def test_predictions_by_planted_numbers(tmp_path):
    planted = {"log-polar-rings": (80, 80, 80), "topk": (70, 70, 70), "uniform": (40, 40, 40)}
    ours = {"foveated-pyramid": (76, 72, 74)}
    page = sheet(tmp_path / "rows.jsonl", lines(planted | ours), lines(ours, budget=150))
    held = {one.name: one.outcome for one in outcomes(page.arms[0])}
    assert held["P1"] == "held" and held["P6"] == "held" and held["P8"] == "held"
    assert held["P2"] == "did not hold" and held["P5"] == "cannot be told" and held["P9"] == "cannot be told"
    swapped = planted | {"log-polar-rings": (60, 60, 60)}
    again = {one.name: one for one in outcomes(sheet(tmp_path / "other.jsonl", lines(swapped)).arms[0])}
    assert again["P1"].outcome == "did not hold" and again["P6"].claim.missing


def test_open_questions_answer_or_say_not_measured(full, tmp_path):
    zero = next(arm for arm in full.arms if arm.name == "zero-shot")
    said = {one.question: one.sentence for one in open_questions(zero)}
    assert len(said) == 14 and said["Is anisotropy real?"] == NOT_MEASURED
    assert said["Does plain downsampling win anywhere?"].startswith("No")
    assert said["Do semantic boundaries matter?"].startswith("No")
    alone = sheet(tmp_path / "rows.jsonl", lines({"topk": (70, 70, 70)}, questions=8)).arms[0]
    assert {one.sentence for one in open_questions(alone)} == {NOT_MEASURED}
    every = [lines({"foveated-pyramid": (50, 50, 50)}, questions=4, budget=tokens) for tokens in (64, 273, 1024)]
    few = sheet(tmp_path / "few.jsonl", *every).arms[0]  # one image of each family, of which nothing can be paired
    assert {one.sentence for one in open_questions(few)} == {NOT_MEASURED}


def test_accuracy_by_place_counts_every_question(full):
    found = full.arms[0].find("topk")
    parts = accuracy_map(found)
    assert sum(count for _, count in parts.values()) == len(found.rows)
    right = sum(share * count for share, count in parts.values()) / 100
    assert right == pytest.approx(sum(row["exact"] for row in found.rows.values()))


def test_full_resolution_by_its_other_name_is_no_further_method(tmp_path):
    more = {"peers/whole": ACCURACY["whole"]}
    text = to_markdown(document(sheet(tmp_path / "rows.jsonl", lines(questions=20), lines(more, questions=20))))
    assert f"\n{len(ACCURACY)} methods, " in text


def test_what_is_left_out_is_said_by_the_command_too(tmp_path):
    other = (line | {"dtype": "float32", "mark": line["mark"] + "!"} if "mark" in line else line
             for line in lines({"mine": (99,) * 3}, questions=8))  # fmt: skip
    file, out = write(tmp_path / "rows.jsonl", lines(questions=40), other), tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(file), "--out", str(out), "--no-examples"])
    assert done.exit_code == 0 and "left out: 24 answers not in bfloat16, as most are: ask with --dtype" in done.output


def test_the_pareto_front_is_what_nothing_beats():
    dice = Dice("points")
    points = [Point(dice.random(), dice.random(), str(i), "") for i in range(60)]
    best = [p for p in points if not any(o.x <= p.x and o.y >= p.y and o != p for o in points)]
    assert {point.name for point in pareto(points)} == {point.name for point in best}


def test_names_of_a_front_stay_apart():
    front = [
        Point(x, y, f"{method} {x}", method) for x, y, method in ((64, 90.0, "a"), (100, 90.2, "a"), (150, 90.3, "b"))
    ]
    names, places = zip(*front_names(front, 2.0), strict=True)
    assert names == ("a 64", "a 100", "b 150")
    assert all(high - low >= 2.0 - 1e-9 for low, high in pairwise(places)) and abs(sum(places) / 3 - 90.17) < 0.1


def test_labels_are_spread_without_changing_their_order():
    dice = Dice("labels")
    places = [dice.random() for _ in range(12)]
    moved = spread(places, 0.2)
    order = sorted(range(12), key=places.__getitem__)
    gaps = [moved[b] - moved[a] for a, b in pairwise(order)]
    assert min(gaps) >= 0.2 - 1e-9
    assert sum(moved) == pytest.approx(sum(places))  # none drifts away
    assert spread([0.0, 1.0], 0.2) == [0.0, 1.0]


def test_the_command_writes_both_or_says_why_in_one_line(tmp_path):
    run = CliRunner().invoke
    file = write(tmp_path / "rows.jsonl", lines(questions=16))
    out, notes = tmp_path / "report.html", tmp_path / "results.md"
    done = run(app, [str(file), "--out", str(out), "--markdown", str(notes), "--no-examples"])
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("<!doctype html>") and notes.read_text().startswith("# Which way")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for given, error in ((tmp_path / "none.jsonl", DataError), (empty, DataError)):
        said = run(app, [str(given), "--out", str(tmp_path / "new.html")])
        assert isinstance(said.exception, error) and "\n" not in str(said.exception)
    said = run(app, [str(file), "--out", str(tmp_path / "no" / "new.html")])
    assert isinstance(said.exception, OutputError) and not (tmp_path / "new.html").exists()


def test_examples_show_what_only_one_has_right(full):
    from homunculus.model.config import tiny
    from homunculus.model.vlm import CompactVLM
    from homunculus.report.examples import choose, example_sections

    arm = full.arms[0]
    ours, theirs = arm.find("foveated-pyramid", ["scenes"]), arm.find("topk", ["scenes"])
    won, lost = choose(ours, theirs), choose(theirs, ours)
    assert ours.rows[won]["exact"] > theirs.rows[won]["exact"] and ours.rows[lost]["exact"] < theirs.rows[lost]["exact"]
    shown = example_sections(arm, CompactVLM(tiny()).eval(), own_weights=False)
    page = to_html(shown)
    assert page.count("data:image/webp") == 4 * 6 and "other weights" in page
    assert won in page and lost in page
