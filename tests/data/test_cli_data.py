"""`homunculus data` through its entry point: what it draws, writes, prints and refuses."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import homunculus.cli
from homunculus.data import Question, Record, files
from homunculus.data.preview import REGION_COLOUR, contact_sheet
from tests.test_cli import ENVIRONMENT, ROOT


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    """With the quick family of tests/data/families.py beside the real ones."""
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.data.families", "data", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_preview(tmp_path):
    done = run("preview", "dots", "--split", "test-ood", "--count", "5", "--start", "3", "--size", "64", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == "sheet.png", done.stderr
    with Image.open(tmp_path / "sheet.png") as sheet:
        colours = {colour for _, colour in sheet.getcolors(1 << 24)}
    assert {REGION_COLOUR[region] for region in ("target", "secondary", "periphery")} <= colours


def test_a_sheet_shows_the_box_where_the_answer_is():
    image = np.full((200, 100, 3), 255, np.uint8)
    question = Question(
        "Where is it, in so many words that they do not fit a line?", ("€ 5",), ((20, 40, 60, 80),), "target"
    )
    sheet = np.asarray(contact_sheet([Record("a/train/0", image, question)], "Title"))
    ys, xs = np.nonzero((sheet == REGION_COLOUR["target"]).all(2))
    x0, y0 = 28 + 1, 28 + 26 + 26 + 1  # where the picture begins
    box = ys < y0 + 956  # above the captions
    found = np.array([xs[box].min(), ys[box].min(), xs[box].max() + 1, ys[box].max() + 1]) - (x0, y0, x0, y0)
    assert np.abs(found - np.array([20, 40, 60, 80]) * 4.78).max() <= 5


def test_write_and_read_back(tmp_path):
    arguments = ("write", "dots", "--count", "9", "--out", "out", "--size", "96x64", "--shard", "4", "--workers", "1")
    done = run(*arguments, "--format", "jpeg", "--split", "val", "--clean", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert re.match(r"9 records in \d+\.\d s \(\d+\.\d a second\); out, \d+\.\d MB\n$", done.stdout)
    records = list(files.read(tmp_path / "out"))
    assert [record.key for record in records] == [f"dots/val/{index}" for index in range(9)]
    assert all(record.image.shape == (64, 96, 3) for record in records)
    assert "yes" in {question.answer for question in records[0].questions}  # it was drawn clean


def test_blind(tmp_path):
    done = run("blind", "dots", "--train", "60", "--test", "30", "--size", "64", "--metric", "exact", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["clean"][0] == "30" and rows["clean"][2:] == ["100.0%"] * 4  # who knows the kind knows the answer
    assert float(rows["shade"][2].rstrip("%")) < 10 and rows["all"][0] == "120"
    assert "by exact (95 % of the time within" in done.stdout


def test_speed(tmp_path):
    done = run("speed", "dots", "--count", "5", "--size", "64", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("clean", "as they come", "fully degraded"):
        assert float(re.search(rf"{name} +([\d.]+)", done.stdout)[1]) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preview", "dogs"], "no family 'dogs': choose one of documents, scenes, scene-text"),
        (["preview", "dots", "--split", "test"], "no split 'test': choose one of train, val, test-iid, test-ood"),
        (["preview", "dots", "--count", "0"], "--count of at least 1"),
        (["preview", "dots", "--start", "-1"], "--start from 0"),
        (["preview", "dots", "--out", "a.jpg"], "'a.jpg' is no name for one"),
        (["preview", "dots", "--size", "big"], "cannot read the size 'big': write pixels"),
        (["preview", "dots", "--size", "8"], "at least 64"),
        (["write", "dots", "--count", "5"], "Missing option '--out': see `homunculus data write --help`"),
        (["write", "dots", "--count", "0", "--out", "o"], "give positive numbers"),
        (["write", "dots", "--count", "5", "--out", "file"], "cannot write into file"),
        (["write", "dots", "--count", "5", "--out", "."], ". holds something else"),
        (["write", "dots", "--count", "5", "--out", "o", "--format", "gif"], "choose png (exact) or jpeg"),
        (["write", "dots", "--count", "5", "--out", "o", "--engine", "spark"], "choose local or ray"),
        (["write", "dots", "--count", "5", "--out", "o", "--workers", "0"], "at least one"),
        (["blind", "dogs"], "no family 'dogs'"),
        (["blind", "scenes", "--metric", "vqa"], "choose exact, anls or relaxed"),
        (["blind", "scenes", "--test", "1"], "at least 2"),
        (["speed", "dots", "--count", "0"], "at least 1"),
        (["write", "--nope"], "see `homunculus data write --help`"),
        (["prev"], "see `homunculus data --help`"),
    ],
)
def test_one_line_exit_2_and_nothing_written(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("hello")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["homunculus", "data", *arguments])
    monkeypatch.setitem(homunculus.data.FAMILIES, "dots", "tests.data.families")
    if "dogs" in arguments:
        monkeypatch.delitem(homunculus.data.FAMILIES, "dots")
    with pytest.raises(SystemExit) as done:
        homunculus.cli.main()
    said = capsys.readouterr()
    assert done.value.code == 2 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and message in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_group_without_a_command_shows_its_help(tmp_path):
    done = run(cwd=tmp_path)
    assert done.returncode == 2 and all(name in done.stdout + done.stderr for name in ("preview", "write", "blind"))
