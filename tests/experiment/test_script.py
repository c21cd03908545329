"""runs/experiment.sh: suites one after the other by two processes, timed by one, and nothing is asked twice."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from homunculus.eval.rows import Kept
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import save_weights

SCRIPT = Path(__file__).parents[2] / "runs" / "experiment.sh"


def test_the_script_asks_by_two_times_by_one_and_goes_on(tmp_path):
    torch.manual_seed(0)
    save_weights(CompactVLM(tiny()), tmp_path / "weights", {"stage": "read"})
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    settings = {"KEPT": "", "SUITES": "main", "TIMED": "main:0", "PROCESSES": "2", "WORKERS": "0", "PATH": path}
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
