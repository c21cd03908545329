"""The command line through its real entry points: what it writes, what it prints, how it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import homunculus
from homunculus.cli import main, parse_fixation
from homunculus.errors import FixationError

SCRIPT = Path(sys.executable).with_name("homunculus")
ROOT = Path(homunculus.__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}  # so that it also runs where the package is not installed


def run(*arguments: str | Path, cwd: Path, entry: str = "module") -> subprocess.CompletedProcess:
    command = [str(SCRIPT)] if entry == "script" else [sys.executable, "-m", "homunculus"]
    command += map(str, arguments)
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


@pytest.fixture
def photo(tmp_path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)).save(path)
    return path


def test_look_without_an_image_draws_the_example(tmp_path):
    if not SCRIPT.exists():
        pytest.skip("homunculus is not installed beside this Python")
    done = run("look", cwd=tmp_path, entry="script")
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["look.png"]
    with Image.open(tmp_path / "look.png") as picture:
        assert picture.format == "PNG" and picture.width > 1800
    for word in ("273 by foveated-pyramid", "100.0%", "near the gaze", " of 16 px", "ms", "look.png"):
        assert word in done.stdout


def test_look_reports_json(photo, tmp_path):
    done = run("look", photo, "What is at the top left?", "--json", "--budget", "100", "--out", "a.png", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["tokens"] == 100 == len(report["cells"])
    assert report["coverage"] == 1.0 and report["image_size"] == [320, 240]
    assert sum(report["tokens_per_level"].values()) + report["context_tokens"] == 100
    assert 0 < report["attention_share"] <= 1 and report["out"] == "a.png"
    expected = homunculus.foveate(photo, "What is at the top left?", budget=100).allocation
    near = (expected.centers[0] - torch.tensor([320 / 6, 40.0])).square().sum(1).sqrt() <= 0.2 * 320
    assert report["attention_share"] == pytest.approx(near.double().mean().item())
    for name, field in {"level": expected.levels, "score": expected.scores, "context": expected.is_context}.items():
        assert [cell[name] for cell in report["cells"]] == field[0].tolist()
    assert torch.allclose(torch.tensor([cell["box"] for cell in report["cells"]]), expected.boxes[0])
    assert report["fixations"] == [[pytest.approx(320 / 6), pytest.approx(240 / 6)]]


def test_fixations_by_option(photo, tmp_path):
    arguments = ("look", photo, "--fixation", "50%,30%", "--fixation", "10,20", "--allocator", "topk", "--json")
    report = json.loads(run(*arguments, cwd=tmp_path).stdout)
    assert report["fixations"] == [[160.0, 72.0], [10.0, 20.0]] and report["allocator"] == "topk"


def test_what_had_no_effect_is_said(photo, tmp_path):
    assert "none: the question names no place" in run("look", photo, "What is the total?", cwd=tmp_path).stdout
    done = run("look", photo, "--fixation", "5,5", "--allocator", "stratified", cwd=tmp_path)
    assert "5, 5 (not used by stratified)" in done.stdout


def test_example_page_to_try_things_on(tmp_path):
    assert run("example", cwd=tmp_path).returncode == 0
    done = run("look", "page.png", "in the footer", "--out", "[red]x.png", cwd=tmp_path)
    assert done.returncode == 0 and "[red]x.png" in done.stdout and (tmp_path / "[red]x.png").exists()


def test_version(tmp_path):
    assert run("--version", cwd=tmp_path).stdout.strip() == homunculus.__version__


def test_gallery_shows_every_allocator(photo, tmp_path):
    done = run("gallery", photo, "--budget", "64", "--out", "all.png", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "all.png").exists()
    assert all(name in done.stdout for name in homunculus.allocators())
    few = run("gallery", photo, "--budget", "3", "--out", "few.png", cwd=tmp_path)
    assert few.returncode == 0 and "not drawn: foveated-pyramid needs a budget of at least 16" in " ".join(
        few.stdout.split()
    )


def test_the_gallery_does_without_a_missing_library(photo, tmp_path, monkeypatch, capsys):
    for name in ("skimage.measure", "skimage.segmentation"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["homunculus", "gallery", str(photo), "--out", str(tmp_path / "all.png")])
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    assert (tmp_path / "all.png").exists()
    assert "not drawn: segments are found with scikit-image" in " ".join(capsys.readouterr().out.split())


def test_parse_fixation():
    assert parse_fixation(" 12.5 , 50% ", (100, 80)) == (12.5, 40.0)
    for text in ("12", "a,b", "1,2,3", "%,%", ""):
        with pytest.raises(FixationError, match="write X,Y"):
            parse_fixation(text, (100, 80))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["look", "none.png"], "none.png does not exist"),
        (["look", "."], "is a directory"),
        (["look", "text.png"], "not an image"),
        (["look", "empty.png"], "is empty"),
        (["look", "photo.png", "--budget", "0"], "positive whole number"),
        (["look", "photo.png", "--budget", "-3"], "positive whole number"),
        (["look", "photo.png", "--budget", "many"], "--budget"),
        (["look", "photo.png", "--budget", "9"], "at least 16"),
        (["look", "photo.png", "--allocator", "unifrom"], "did you mean 'uniform'"),
        (["look", "photo.png", "--fixation", "400,10"], "outside the image"),
        (["look", "photo.png", "--fixation", "here"], "write X,Y"),
        (["look", "photo.png", "--out", "a.jpg"], "'a.jpg' is no name for one"),
        (["look", "photo.png", "--out", ".png"], "'.png' is no name for one"),
        (["look", "photo.png", "--out", "/proc/a.png"], "cannot write"),
        (["look", "photo.png", "--out", "x" * 300 + ".png"], "cannot write"),
        (["look", "photo.png", "--seed", "9" * 30, "--allocator", "random"], "64-bit"),
        (["look", "What is at the top left?"], "the image comes first"),
        (["look", "photo.png", "--out", "no/a.png"], "no does not exist"),
        (["look", "photo.png", "--out", "folder.png"], "is a directory"),
        (["look", "photo.png", "--out", "photo.png"], "would be overwritten"),
        (["gallery", "none.png"], "does not exist"),
        (["gallery", "photo.png", "--budget", "0"], "positive whole number"),
        (["look", "--nope"], "see `homunculus look --help`"),
        (["glance"], "No such command"),
    ],
)
def test_one_line_exit_2_and_nothing_written(arguments, message, photo, tmp_path):
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    before = sorted(p.name for p in tmp_path.iterdir()), photo.read_bytes()
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    assert message in done.stderr
    assert (sorted(p.name for p in tmp_path.iterdir()), photo.read_bytes()) == before


def test_no_arguments_show_the_help(tmp_path):
    done = run(cwd=tmp_path)
    assert done.returncode == 2 and "look" in done.stdout + done.stderr and "gallery" in done.stdout + done.stderr
    assert run("--help", cwd=tmp_path).returncode == 0


LIMITED = """
import resource, sys
from homunculus.cli import main
sys.argv = ["homunculus", "look", "large.png", "What is at the bottom?", "--json", "--out", "out.png"]
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@pytest.mark.parametrize("size", [(8192, 8192), (16000, 4000), (8000, 8001)])
def test_large_images_stay_under_two_gigabytes(size, tmp_path):
    tile = Image.fromarray(np.random.default_rng(0).integers(0, 256, (250, 250, 3), dtype=np.uint8))
    large = Image.new("RGB", size, "white")
    large.paste(tile, (100, 90))
    large.save(tmp_path / "large.png", compress_level=1)
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report, megabytes = json.loads(done.stdout), int(done.stderr.split()[-1])
    assert len(report["cells"]) == 273 and report["coverage"] == 1.0
    assert megabytes < 2000, f"{megabytes} MiB"
