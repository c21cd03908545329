"""`homunculus eval` and what comes of it, end to end on a tiny model: rows, a stop, more rows, readers of their own."""

import json
import lzma
import re
import subprocess
import sys

import pytest
import torch

from homunculus.allocation import registry
from homunculus.cli import main
from homunculus.eval.plans import method_names
from homunculus.eval.rows import Kept
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import save_weights
from tests.report.made_up import rich


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    save_weights(CompactVLM(tiny()), folder, {"stage": "read"})
    return str(folder)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["homunculus", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return command


def test_the_whole_way_from_questions_to_a_page(run, folder, tmp_path):
    """Every method, then readers of their own for two, then the page; the numbers mean nothing."""
    own = ("eval", "--weights", folder, "--workers", "0", "--out", "rows.jsonl")
    code, out, error = run(*own, "--suite", "tiny", "--minutes", "0")
    assert code == 0 and "give the command again" in out, error
    code, out, error = run(*own, "--suite", "tiny", "--no-cost")
    assert code == 0 and "all is asked" in out and "peers/visionzip, 64 tokens" in out, error
    assert re.search(r"\d+ answers took \d+\.\d minutes of CPU, \d+ threads, without drawing; longest ", out)
    timed = ("--suite", "tiny", "--methods", "topk,peers/tome,whole")
    assert run(*own, *timed)[0] == 0
    kept = Kept(tmp_path / "rows.jsonl")
    assert {about["method"] for about in kept.settings.values()} == set(method_names())
    assert {line["cost"]["method"] for line in kept.costs} == {"topk", "peers/tome", "whole", "foveated-pyramid"}
    before = (tmp_path / "rows.jsonl").read_text()
    assert run(*own, *timed)[0] == 0 and (tmp_path / "rows.jsonl").read_text() == before
    small = ("--families", "scenes", "--size", "256", "--budget", "64", "--questions", "4")
    code, out, error = run(*own, *small, "--methods", "topk,peers/tome", "--tune", "64")
    assert code == 0 and '"equal": "samples"' in out, error
    assert {about["tuned"]["method"] for about in Kept(tmp_path / "rows.jsonl").models.values()} == {
        "topk",
        "peers/tome",
    }
    code, out, error = run("report", "rows.jsonl", "--out", "page.html", "--markdown", "page.md", "--no-examples")
    assert code == 0, error
    page = (tmp_path / "page.html").read_text()
    assert "peers/tome" in page and "http" not in page.replace("http://www.w3.org", "")
    assert "| " in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--suite", "grand"), "no suite 'grand'"),
        (("--methods", "topp"), "unknown allocator 'topp'"),
        (("--methods", "peers/tone"), "unknown peer 'tone'"),
        (("--relevance", "clever"), "no relevance 'clever'"),
        (("--families", "pages"), "no family"),
        (("--questions", "1"), "at least 2"),
        (("--out", "nowhere/rows.jsonl"), "does not exist"),
        (("--tune", "64", "--tune-seconds", "3"), "--tune or --tune-seconds"),
        (("--weights", "nowhere"), "nowhere"),
        (("--device", "foo"), "no device 'foo'"),
        (("--out", "rows.jsonl.gz"), "packed and cannot be added to"),
        (("--out", "rows.jsonl.xz"), "packed and cannot be added to"),
        (("--methods", ","), "--methods ',' names nothing: give a name"),
        (("--methods", ""), "--methods '' names nothing"),
        (("--families", ","), "--families ',' names nothing"),
        (("--suite", " , "), "--suite ' , ' names nothing"),
    ],
)
def test_mistakes_cost_one_line(run, words, message):
    code, out, error = run("eval", "--suite", "main", *words)
    assert code == 2 and message in error and error.count("\n") == 1 and not out


@pytest.mark.parametrize("text", ["no JSON\n", "my only copy of notes", '{"mark":"m"}\n'])
def test_rows_of_others_are_refused_and_stay(run, folder, tmp_path, text):
    (tmp_path / "notes.txt").write_text(text)
    code, out, error = run("eval", "--suite", "tiny", "--weights", folder, "--minutes", "0", "--out", "notes.txt")
    assert code == 2 and "notes.txt" in error and error.count("\n") == 1 and not out
    assert (tmp_path / "notes.txt").read_text() == text


def test_a_report_changes_nothing_that_it_reads(run, tmp_path):
    """Not even a line that is cut short: who writes it may not have finished."""
    rich(tmp_path / "rows.jsonl", questions=8)
    text, begun = (tmp_path / "rows.jsonl").read_bytes(), b'{"mark":"m","ke'
    page = {"key": "documents/val/0", "allocator": "topk", "source": "true", "measure": "legibility", "score": 0.5}
    given = {
        "rows.jsonl": text + begun,
        "rows.1.jsonl": text + begun,
        "more.jsonl": text[:-1],
        "packed.jsonl.xz": lzma.compress(text),
        "read.jsonl": json.dumps(page | {"budget": 273}).encode() + b"\n" + begun,
    }
    for name, content in given.items():
        (tmp_path / name).write_bytes(content)
    files = ("rows.jsonl", "more.jsonl", "packed.jsonl.xz")
    code, _, error = run("report", *files, "--legibility", "read.jsonl", "--no-examples", "--out", "page.html")
    assert code == 0, error
    assert {name: (tmp_path / name).read_bytes() for name in given} == given
    assert {path.name for path in tmp_path.iterdir()} == {*given, "page.html"}


def test_rows_are_plain_json(run, folder, tmp_path):
    run("eval", "--weights", folder, "--workers", "0", "--suite", "tiny", "--methods", "topk", "--no-cost")
    for line in (tmp_path / "rows.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=pytest.fail)  # is told of NaN and the like


MINE = """
from homunculus.allocation.grid import uniform
from homunculus.allocation.registry import register

@register("mine", "a grid by another name")
def mine(view, budget, *, seed=0):
    return uniform(view, budget)
"""


def test_a_method_of_ones_own_has_a_row_of_the_table(folder, tmp_path):
    """One command for its rows, which stand beside those of others; in a process of its own, which forgets it after."""
    (tmp_path / "mine.py").write_text(MINE)
    small = ("--families", "scenes", "--size", "256", "--budget", "64", "--questions", "4", "--no-cost")
    words = ("--load", "mine.py", "eval", "--methods", "mine,uniform,topk", "--weights", folder, "--workers", "0")
    subprocess.run([sys.executable, "-m", "homunculus", *words, *small], cwd=tmp_path, check=True, capture_output=True)
    kept = Kept(tmp_path / "rows.jsonl", process=None)
    # A tiny model may say the same of whatever it is shown, but is not equally sure of it.
    found = {
        about["method"]: [(row["key"], row["said"], row["logp"], row["fine"]) for row in kept.rows[mark].values()]
        for mark, about in kept.settings.items()
    }
    assert found.keys() == {"mine", "uniform", "topk"} and len(found["mine"]) == 4
    assert found["mine"] == found["uniform"]
    for one, other in zip(found["mine"], found["topk"], strict=True):
        assert one[0] == other[0] and one[2] != other[2] and one[3] != other[3]


def test_a_method_that_fails_is_told_of_in_one_line(run, folder, monkeypatch, tmp_path):
    """What its author can mend: the line of the file, though it is others that call it and that it calls."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    (tmp_path / "mine.py").write_text(MINE.replace("uniform(view, budget)", "uniform(view, budget.cells)"))
    words = ("--weights", folder, "--workers", "0", "--families", "scenes", "--size", "256", "--budget", "64")
    code, out, error = run("--load", "mine.py", "eval", "--methods", "mine", *words, "--questions", "4")
    assert code == 2 and error.count("\n") == 1 and not out
    assert "mine.py, line 7, in mine: AttributeError: 'int' object has no attribute 'cells'" in error


def test_files_of_one_name_are_told_apart(run, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    (tmp_path / "more").mkdir()
    (tmp_path / "mine.py").write_text(MINE.replace("uniform(view, budget)", "uniform(view, budget.cells)"))
    (tmp_path / "more" / "mine.py").write_text(MINE.replace('"mine"', '"yours"'))
    words = ("--weights", folder, "--workers", "0", "--families", "scenes", "--size", "256", "--budget", "64")
    loaded = ("--load", "mine.py", "--load", "more/mine.py")
    code, _, error = run(*loaded, "eval", "--methods", "mine", *words, "--questions", "4")
    assert code == 2 and error.count("\n") == 1 and f"{tmp_path}/mine.py, line 7, in mine" in error
    assert run(*loaded[2:], "eval", "--methods", "topk", *words, "--questions", "4", "--no-cost")[0] == 2  # is there
    assert run("eval", "--methods", "yours", *words, "--questions", "4", "--no-cost")[0] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "mine.py is no Python file"),
        ("x = 1\ny = 1 / 0\n", "mine.py, line 2: ZeroDivisionError: division by zero"),
        ("x = 1\n\ny = (\n", "mine.py, line 3: SyntaxError"),
        ("import nobody_has_this\n", "mine.py, line 1: ModuleNotFoundError: No module named 'nobody_has_this'"),
        (MINE.replace('"mine"', '"topk"'), "called 'topk' exists already"),
    ],
)
def test_a_method_that_cannot_be_loaded_is_told_of_in_one_line(run, tmp_path, text, message):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    code, out, error = run("--load", "mine.py", "eval", "--methods", "mine")
    assert code == 2 and message in error and error.count("\n") == 1 and not out


def test_methods_are_timed_alone(run, folder, monkeypatch, tmp_path):
    """Beside other processes everything takes longer; who shares a device notes its part of the time."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    own = ("eval", "--weights", folder, "--workers", "0", "--methods", "topk", "--suite", "tiny")
    for process in ("0", "1"):
        monkeypatch.setenv("RANK", process)
        code, out, error = run(*own)
        assert code == 0 and ("without torchrun to time" in out) == (process == "0"), error
    assert not Kept(tmp_path / "rows.jsonl", process=None).costs
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name)
    assert run(*own)[0] == 0
    assert {line["cost"]["method"] for line in Kept(tmp_path / "rows.jsonl", process=None).costs} >= {"topk"}


def test_processes_deal_readers_out_and_each_tunes_as_one_alone_would(run, folder, monkeypatch, tmp_path):
    own = ("eval", "--weights", folder, "--workers", "0", "--methods", "topk,uniform,v1", "--families", "scenes")
    own += ("--size", "256", "--budget", "64", "--questions", "4", "--tune", "64")
    assert run(*own, "--out", "alone.jsonl")[0] == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    for process, count in (("0", 2), ("1", 1)):
        monkeypatch.setenv("RANK", process)
        code, out, error = run(*own)
        assert code == 0 and out.count('"equal": "samples"') == count and "all is asked" in out, error
    one, two = (Kept(tmp_path / name, process=None) for name in ("alone.jsonl", "rows.jsonl"))
    assert len(one.models) == 3 and one.models.keys() == two.models.keys()
    assert {mark: set(rows) for mark, rows in one.rows.items()} == {mark: set(rows) for mark, rows in two.rows.items()}
    code, out, error = run(*own[:-2], "--tune-seconds", "1")
    assert code == 2 and "leave out torchrun" in error
