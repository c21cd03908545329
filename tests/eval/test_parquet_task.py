"""lmms-eval runs a task on the files that `homunculus data write` wrote, offline, and scores it as we do."""

import json
import os
import subprocess
import sys

import pytest

from homunculus.data import files
from homunculus.eval import score
from tests.eval.local import save_pair
from tests.test_cli import ENVIRONMENT, ROOT

TASK, COUNT = "written_rows", 4
YAML = """
task: written_rows
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: "{parquet}"}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function written_rows.visual
doc_to_text: question
doc_to_target: !function written_rows.target
process_results: !function written_rows.judge
generation_kwargs: {{"max_new_tokens": 6, "temperature": 0}}
metric_list: [{{metric: anls, aggregation: mean, higher_is_better: true}}]
metadata: [{{version: 1.0}}]
"""
FUNCTIONS = """
from homunculus.eval import score

def visual(doc):
    return [doc["image"].convert("RGB")]

def target(doc):
    return doc["answers"][0]

def judge(doc, results):
    return {"anls": score("anls", results[0], doc["answers"])}
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Through the command line, in a process of its own."""
    out = tmp_path_factory.mktemp("written") / "out"
    command = [sys.executable, "-m", "homunculus", "data", "write", "scenes", "--split", "test-iid", "--size", "128"]
    command += ["--count", str(COUNT), "--shard", "3", "--workers", "1", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


def test_a_local_task_reads_what_was_written(written, tmp_path):
    save_pair(tmp_path / "checkpoint")
    task = tmp_path / "task"
    task.mkdir()
    (task / f"{TASK}.yaml").write_text(YAML.format(parquet=written / "*.parquet"))
    (task / f"{TASK}.py").write_text(FUNCTIONS)
    command = ["--model", "homunculus_qwen_vl", "--model_args", f"pretrained={tmp_path / 'checkpoint'},budget=16"]
    command += ["--tasks", TASK, "--include_path", str(task), "--batch_size", "2", "--device", "cpu"]
    command += ["--log_samples", "--output_path", str(tmp_path / "out")]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "lmms_eval", *command],
        env=os.environ | offline,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (samples,) = tmp_path.glob(f"out/*/*_samples_{TASK}.jsonl")
    (results,) = tmp_path.glob("out/*/*_results.json")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    records = list(files.read(written))
    assert [row["doc_id"] for row in rows] == list(range(COUNT)) and len(records) == COUNT
    assert [row["target"] for row in rows] == [record.question.answer for record in records]
    assert [row["input"] for row in rows] == [record.question.text for record in records]
    expected = [score("anls", row["filtered_resps"], r.question.answers) for row, r in zip(rows, records, strict=True)]
    found = json.loads(results.read_text())["results"][TASK]["anls,none"]
    assert found == pytest.approx(sum(expected) / COUNT)
