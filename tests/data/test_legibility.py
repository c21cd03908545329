"""The legibility benchmark without Tesseract: its metric, its arms, going on after a stop, and its table."""

import csv
import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from homunculus.cli import bench
from homunculus.data import REGIONS
from homunculus.data.record import Question, Record
from homunculus.errors import AllocatorError, DataError, HomunculusError, OutputError
from homunculus.eval import judge
from homunculus.eval import legibility as benchmark
from homunculus.eval.judge import legibility, plain
from homunculus.eval.legibility import FULL, Arm, Plan, is_row, look, run
from homunculus.eval.legibility_figure import draw
from homunculus.eval.legibility_table import summarise, to_cells, to_csv, to_markdown
from homunculus.eval.lines import read_rows
from homunculus.eval.statistics import interval

texts = st.text(max_size=20)
answers = st.text(min_size=1, max_size=12).filter(plain)
latin = st.text("abcdefgXYZ 0123-.", max_size=20)


# The metric


@given(answer=answers, read=texts)
def test_legibility_lies_between_0_and_1_and_is_1_only_for_what_is_contained(answer, read):
    score = legibility(answer, read)
    assert 0 <= score <= 1
    assert (score == 1) == (plain(answer) in plain(read))


@given(answer=st.text("abcdefgXYZ0123-.", min_size=1, max_size=12), before=latin, after=latin)
def test_what_is_read_round_an_answer_never_lowers_its_score(answer, before, after):
    assert legibility(answer, f"{before} {answer} {after}") == 1
    assert legibility(answer, f"{before} {answer[1:]}{after}") >= 1 - 1 / len(answer)


@given(answer=latin.filter(str.strip), read=latin)
def test_case_and_white_space_do_not_count(answer, read):
    score = legibility(answer, read)
    assert score == legibility(answer.upper(), read.lower()) == legibility(answer.lower(), read.upper())
    assert score == legibility(answer.replace(" ", "  "), f" {read}\n")


@given(answer=latin.filter(str.strip), read=latin)
def test_legibility_is_the_best_window_by_brute_force(answer, read):
    wanted, seen = plain(answer), plain(read[:10])
    windows = {seen[i:j] for i in range(len(seen) + 1) for j in range(i, len(seen) + 1)}
    best = min(levenshtein(wanted, window) for window in windows)
    assert legibility(wanted, seen) == pytest.approx(1 - best / len(wanted))


def levenshtein(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            swap = table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
            table[i, j] = min(swap, table[i - 1, j] + 1, table[i, j - 1] + 1)
    return table[-1, -1]


def test_an_empty_or_foreign_reading_is_worth_nothing():
    assert legibility("INV-2041", "") == 0
    assert legibility("INV-2041", "~~ == ||") == 0
    assert legibility("14 March 2031", "wxyz") == 0
    with pytest.raises(DataError, match="empty answer"):
        legibility(" ", "x")


def test_how_a_box_is_cut_depends_on_the_box():
    page = Image.new("RGB", (1000, 800), "white")
    for height in (12, 24, 60):
        cut = judge.cut_out(page, (300, 300, 300 + 6 * height, 300 + height), height)
        letters = (cut.height - 2 * judge.FRAME) / (1 + 2 * judge.MARGIN)
        assert letters == pytest.approx(judge.LETTER, abs=3)
    assert judge.line_heights((0, 0, 300, 30)) == [30]
    assert judge.line_heights((0, 0, 900, 200)) == [200]
    assert judge.line_heights((0, 0, 300, 200)) == [200, judge.SMALL_LETTER]


# The run


def fake_make(family, split, index, size):
    """A page of stripes with a place of fine detail, in a region that changes from page to page."""
    width, height = size
    image = np.full((height, width, 3), 240, np.uint8)
    left, top = 40 + 60 * (index % 3), 30 + 50 * (index % 4)
    image[top : top + 24, left : left + 64 : 4] = 20
    image[top : top + 24, left + 1 : left + 64 : 4] = 20
    image[:, ::50] = 100
    region = REGIONS[index % 3]
    question = Question(f"What is {index}?", (f"code {index:03}",), ((left, top, left + 64, top + 24),), region, "key")
    return Record(f"{family}/{split}/{index}", image, question)


def stripes_read(image, boxes):
    """A reader that sees fine stripes: the answer if contrast came through, rubbish if not."""
    (x0, y0, x1, y1) = boxes[0]
    grey = np.asarray(image.convert("L"), np.float64)[y0:y1, x0:x1]
    return f"it is CODE {stripes_read.pages:03}" if grey.std() > 60 else "~"


@pytest.fixture
def pages(monkeypatch):
    """Small fake pages, and a list of those that were made."""
    made = []

    def note(family, split, index, size):
        made.append(index)
        stripes_read.pages = index
        return fake_make(family, split, index, size)

    monkeypatch.setattr(benchmark, "make", note)
    return made


SMALL = Plan(("documents",), ("uniform", "topk", "foveated-pyramid"), count=6, budget=64, size=(512, 512))


def test_the_true_region_is_read_and_a_coarse_grid_is_not(pages, tmp_path):
    rows = run(SMALL, tmp_path / "rows.jsonl", reader=stripes_read)
    by_arm = {(line.allocator, line.source): line for line in summarise(rows)}
    assert by_arm[FULL, "none"].score.mean == 1
    assert by_arm["topk", "true"].score.mean == 1
    assert by_arm["foveated-pyramid", "true"].score.mean == 1
    assert by_arm["uniform", "none"].score.mean == 0
    assert by_arm["topk", "true"].gain.difference == 1
    assert by_arm["uniform", "none"].gain is None
    assert all(line.pages == 6 for line in by_arm.values())


def test_every_method_listens_to_what_it_can():
    arms = Plan().arms(0)
    assert len(arms) == len(set(arms))
    assert arms[0] == Arm(FULL, "none")
    assert Arm("uniform", "none") in arms and Arm("random", "none") in arms
    assert {Arm("topk", "true"), Arm("topk", "model-free")} <= set(arms)
    assert not {arm for arm in arms if arm.allocator == "token-bank"}


def test_other_methods_may_have_fewer_pages(pages, tmp_path):
    plan = Plan(("documents",), ("uniform",), 4, 64, others=2, size=(256, 256))
    assert plan.arms(1)[:2] == plan.arms(2) == [Arm(FULL, "none"), Arm("uniform", "none")]
    assert set(plan.arms(1)) == set(Plan().arms(0))
    lines = summarise(run(plan, tmp_path / "rows.jsonl", reader=stripes_read))
    assert {line.allocator: line.pages for line in lines}.items() >= {"uniform": 4, FULL: 4, "vortex": 2}.items()


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(AllocatorError, match="whole batch"):
        Plan(allocators=("token-bank",))
    with pytest.raises(AllocatorError, match="did you mean 'topk'"):
        Plan(allocators=("top-k",))
    with pytest.raises(DataError, match="no family 'poems'"):
        Plan(families=("poems",))
    with pytest.raises(DataError, match="at least 1"):
        Plan(count=0)


def test_a_look_keeps_the_size_and_the_question_moves_it(pages):
    record = fake_make("documents", "test-iid", 0, (320, 240))
    for arm in SMALL.arms(0):
        assert look(record.image, record.question, arm, 64).size == (320, 240)
    full = look(record.image, record.question, Arm(FULL, "none"), 64)
    assert full.tobytes() == record.image.tobytes()
    top, bottom = (
        look(record.image, Question(f"What is in the {place}?", ("x",)), Arm("foveated-pyramid", "model-free"), 64)
        for place in ("header", "footer")
    )
    assert top.tobytes() != bottom.tobytes()


def test_random_cells_differ_from_page_to_page(pages):
    record = fake_make("documents", "test-iid", 0, (320, 320))
    first, again, other = (look(record.image, record.question, Arm("random", "none"), 64, seed) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_a_stopped_run_goes_on_without_loss_or_duplicates(pages, tmp_path):
    file, whole = tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    expected = run(SMALL, whole, reader=stripes_read)

    class Stop(Exception):
        pass

    ticks = []

    def stop_after_two():
        ticks.append(1)
        if len(ticks) == 2:
            raise Stop

    with pytest.raises(Stop):
        run(SMALL, file, reader=stripes_read, tick=stop_after_two)
    with file.open("a") as torn:
        torn.write('{"key": "documents/test-iid/2", "sco')  # killed in the middle of a line
    read = []

    def counting(image, boxes):
        read.append(1)
        return stripes_read(image, boxes)

    rows = run(SMALL, file, reader=counting)
    assert len(read) == 4 * len(SMALL.arms(0))  # two of six pages were done
    key = json.dumps
    assert sorted(rows, key=key) == sorted(expected, key=key)
    assert sorted(read_rows(file, is_row), key=key) == sorted(read_rows(whole, is_row), key=key)
    assert run(SMALL, file, reader=lambda image, boxes: pytest.fail("read again")) == rows


def test_more_pages_and_methods_are_added_to_what_is_there(pages, tmp_path):
    file = tmp_path / "rows.jsonl"
    few = Plan(SMALL.families, ("uniform",), 3, 64, size=SMALL.size)
    assert len(run(few, file, reader=stripes_read)) == 3 * 2
    assert len(run(SMALL, file, reader=stripes_read)) == 6 * 6
    assert len(run(few, file, reader=lambda image, boxes: pytest.fail("read again"))) == 3 * 2
    other_budget = Plan(SMALL.families, ("uniform",), 3, 100, size=SMALL.size)
    assert {row["budget"] for row in run(other_budget, file, reader=stripes_read)} == {100}


def test_rows_of_pages_that_have_changed_do_not_count(pages, tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    few = Plan(SMALL.families, ("uniform",), 3, 64, size=SMALL.size)
    before = run(few, file, reader=stripes_read)

    def darker(family, split, index, size):
        record = fake_make(family, split, index, size)
        return Record(record.key, record.image // 2, record.question)

    monkeypatch.setattr(benchmark, "make", darker)
    after = run(few, file, reader=stripes_read)
    assert len(after) == len(before)
    assert not {row["print"] for row in after} & {row["print"] for row in before}


def test_the_first_question_about_a_small_place_is_asked():
    record = fake_make("scenes", "test-iid", 0, (320, 320))
    nowhere, everywhere = Question("Why?", ("so",)), Question("Is it?", ("no",), ((0, 0, 320, 320),), "target")
    many = Record("k", record.image, everywhere, (nowhere, record.question))
    assert benchmark.asked(many) is record.question
    with pytest.raises(DataError, match="no question about a small place"):
        benchmark.asked(Record("k", record.image, everywhere, (nowhere,)))


@pytest.mark.parametrize("text", ["not json\n", '{"name":"a"}\n{"precious ha', '{"key":"a"}\n'])
def test_a_file_that_is_no_log_is_refused_and_stays(tmp_path, text):
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(HomunculusError, match=r"move it away|line 1 is no row of ours: give a file"):
        run(SMALL, file, reader=stripes_read)
    assert file.read_text() == text


def test_scenes_are_measured_without_a_reader(pages, tmp_path):
    plan = Plan(("scenes",), ("uniform", "topk"), 4, 64, size=(320, 320))
    rows = run(plan, tmp_path / "rows.jsonl", reader=lambda image, boxes: pytest.fail("no text in a scene"))
    lines = {(line.allocator, line.source): line for line in summarise(rows)}
    assert {line.measure for line in lines.values()} == {"ssim"}
    assert lines[FULL, "none"].score.mean == 1
    assert lines["topk", "true"].score.mean > lines["uniform", "none"].score.mean
    assert lines["topk", "true"].whole is None and lines["topk", "true"].chance is None


def test_two_processes_measure_what_one_does(tmp_path):
    plan = Plan(("scenes",), ("uniform",), 3, 64, size=(256, 256))
    alone, together = (run(plan, tmp_path / f"{n}.jsonl", workers=n) for n in (1, 2))
    assert sorted(alone, key=json.dumps) == sorted(together, key=json.dumps)


# The table


def row(key, allocator, source, score, region="target", read="", answers=("abc",)):
    names = {"key": f"documents/test-iid/{key}", "allocator": allocator, "source": source, "score": score}
    fixed = {"family": "documents", "measure": "legibility", "budget": 273, "kind": "key", "print": "x"}
    return names | fixed | {"region": region, "read": read, "answers": list(answers)}


def hand_made():
    scores = [1.0, 0.5, 0.0, 1.0]
    regions = ["target", "target", "secondary", "periphery"]
    pages = range(4)
    return [
        *(row(i, "uniform", "none", 0.25, regions[i], "abc") for i in pages),
        *(row(i, "topk", "true", scores[i], regions[i], "abd") for i in pages),
        *(row(i, FULL, "none", 1.0, regions[i], "abc") for i in pages),
    ]


def test_the_numbers_of_the_table_are_those_of_the_rows():
    lines = summarise(hand_made())
    assert [line.allocator for line in lines] == [FULL, "topk", "uniform"]
    topk = lines[1]
    assert topk.score == interval([1.0, 0.5, 0.0, 1.0])
    assert topk.score.mean == 0.625 and topk.pages == 4 and topk.whole == 0.5
    assert topk.regions["target"].mean == 0.75
    assert topk.regions["secondary"] is None  # one page: no interval
    assert topk.gain.difference == pytest.approx(0.375)
    assert topk.chance == pytest.approx(2 / 3)  # abd read where abc was meant
    assert lines[2].chance == 1


def test_gains_are_paired_by_page_whatever_the_order():
    rows = hand_made()
    assert summarise(rows[::-1])[1].gain == summarise(rows)[1].gain
    fewer = [line for line in summarise(rows[:-4][1:]) if line.allocator == "topk"]
    assert fewer[0].pages == 4 and fewer[0].gain.difference == pytest.approx(0.5 - 0.25)  # three shared pages


def test_one_page_is_too_few():
    with pytest.raises(DataError, match="at least two"):
        summarise(hand_made()[:1])


def test_csv_and_markdown_hold_the_table():
    lines = summarise(hand_made())
    rows = list(csv.DictReader(to_csv(lines).splitlines()))
    assert [line["allocator"] for line in rows] == [FULL, "topk", "uniform"]
    assert rows[1]["score"] == "0.6250" and rows[1]["gain_over_uniform"] == "0.3750" and rows[2]["gain_p"] == ""
    assert rows[1]["secondary"] == ""
    assert to_markdown(lines).count("\n") == 5
    assert to_cells(lines[2])[:3] == ["uniform", "none", "4"]


def test_the_picture_is_drawn():
    assert draw(summarise(hand_made()), 273).startswith(b"\x89PNG")


# The command


def test_the_command_writes_everything_and_goes_on(pages, tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "versions", lambda: "a reader")
    monkeypatch.setattr(benchmark, "run", partial(run, reader=stripes_read))
    options = [
        "legibility",
        "--families",
        "documents",
        "--allocators",
        "uniform,topk",
        "--count",
        "3",
        "--budget",
        "64",
    ]
    options += ["--workers", "1", "--out", str(tmp_path / "results")]
    for _ in range(2):
        result = CliRunner().invoke(bench.app, options, catch_exceptions=False)
        assert result.exit_code == 0
        assert "topk" in result.stdout
        assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
            "plot.png",
            "rows.jsonl",
            "table.csv",
            "table.md",
        ]
        assert len(read_rows(tmp_path / "results" / "rows.jsonl", is_row)) == 3 * 4


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "versions", lambda: "a reader")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="choose another --out"):
        CliRunner().invoke(bench.app, ["legibility", "--out", str(tmp_path / "file" / "x")], catch_exceptions=False)
    with pytest.raises(OutputError, match="cannot write"):
        bench.write_whole(tmp_path / "missing" / "x.csv", b"")
