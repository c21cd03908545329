"""runs/experiment.sh: suites one after the other by two processes, timed by one, and nothing is asked twice."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.pack import main as pack
from homunculus.eval.rows import Kept
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import save_weights
from tests.report.made_up import rich

SCRIPT = Path(__file__).parents[2] / "runs" / "experiment.sh"
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


def test_the_script_asks_by_two_times_by_one_and_goes_on(tmp_path):
    torch.manual_seed(0)
    save_weights(CompactVLM(tiny()), tmp_path / "weights", {"stage": "read"})
    settings = {"KEPT": "", "SUITES": "main", "TIMED": "main:0", "PROCESSES": "2", "WORKERS": "0", "PATH": PATH}
    words = ("--weights", str(tmp_path / "weights"), "--methods", "topk,peers/tome", "--families", "scenes")
    words += ("--size", "256", "--budget", "64", "--questions", "16")
    rows = tmp_path / "rows" / "all.jsonl"

    def called(*last, **more):
        environment = {**os.environ, **settings, **more}
        command = ["sh", str(SCRIPT), str(rows), *words, *last]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert "give the command" in called(MINUTES="0")
    assert "all is asked" in called()
    kept = Kept(rows, process=None)
    assert rows.with_name("all.1.jsonl").stat().st_size > 0
    assert [len(own) for own in kept.rows.values()] == [16, 16]
    assert {line["cost"]["method"] for line in kept.costs} == {"topk", "peers/tome"}
    before = [file.read_text() for file in sorted(rows.parent.iterdir())]
    packed = tmp_path / "kept.jsonl.xz"
    called(PACK=str(packed))
    assert {mark: set(own) for mark, own in Kept(packed, None).rows.items()} == {
        mark: set(own) for mark, own in kept.rows.items()
    }
    assert [file.read_text() for file in sorted(rows.parent.iterdir())] == before
    assert called("--tune", "64").count("all is asked") == 2  # a reader for each process
    tuned = Kept(rows, process=None)
    assert sorted(about["tuned"]["method"] for about in tuned.models.values()) == ["peers/tome", "topk"]
    assert [len(own) for own in tuned.rows.values()] == [16] * 4 and len(tuned.costs) == 2
    assert {path.name for path in rows.parent.iterdir()} == {"all.jsonl", "all.1.jsonl"}


def test_the_script_goes_on_with_what_is_kept(tmp_path):
    """What is packed is unpacked where there are no rows yet, and what was packed once is packed over."""
    kept, rows = tmp_path / "kept.jsonl.xz", tmp_path / "out" / "rows.jsonl"
    pack([str(rich(tmp_path / "plain.jsonl", questions=8)), "--out", str(kept)])
    before = kept.read_bytes()

    def called():
        environment = os.environ | {"PATH": PATH, "KEPT": str(kept), "PACK": str(kept), "MINUTES": "0"}
        return subprocess.run(["sh", str(SCRIPT), str(rows)], env=environment, capture_output=True, text=True)

    done = called()
    assert done.returncode == 0 and "no time for main" in done.stdout, done.stderr
    assert Kept(rows, None).rows == Kept(kept, None).rows and kept.read_bytes() == before
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-3]))
    done = called()  # rows that are there are not unpacked again, nor is more packed over than they have
    assert done.returncode != 0 and "3 answers and 0 other rows that rows.jsonl lacks" in done.stderr
    assert kept.read_bytes() == before


REST = "budgets,forgiving,ablations,turns,looks,large,unlike"
ALL = [("several", "main", "--no-cost"), ("several", REST, "--no-cost")]
ALL += [("one", "main", "--cost-seconds 8"), ("one", "budgets", "--cost-seconds 3")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ALL),
        ("--graphs", ALL),
        ("--tune 6400", [("several", "main,fewer", "--no-cost")]),
        ("--tune-seconds 20", [("one", "main,fewer", "--no-cost")]),
    ],
)
def test_seconds_are_counted_by_one_process(tmp_path, words, expected):
    """With a stand-in for python, which notes how it is called."""
    stand_in, calls = tmp_path / "python", tmp_path / "calls"
    stand_in.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\necho "$@" >> {calls}\n')
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{PATH}", "KEPT": ""}
    subprocess.run(["sh", str(SCRIPT), str(tmp_path / "rows.jsonl"), *words.split()], env=environment, check=True)
    found = []
    for line in calls.read_text().splitlines():
        how, _, rest = line.partition("-m homunculus eval --suite ")
        suite, _, rest = rest.partition(" ")
        cost = re.search(r"--minutes [78]\.\d (--no-cost|--cost-seconds \d)", rest)
        found.append(("several" if "torch.distributed.run" in how else "one", suite, cost and cost[1]))
        assert line.endswith(words)
    assert found == expected
