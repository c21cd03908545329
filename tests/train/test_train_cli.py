"""`homunculus train`: what it refuses, what it leaves and says, and that the same command goes on."""

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from homunculus.cli import main
from homunculus.data.fonts import _folder
from homunculus.model.weights import load_model
from homunculus.train import recipe, renderers
from tests.test_cli import ENVIRONMENT
from tests.train.test_recipe import SMALL, losses, short

CUT = replace(short(SMALL, 2), sizes=((96, 96),), capacity=2)


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """The command with a recipe cut short, in this process: exit code, what it printed, what it complained of."""
    monkeypatch.setitem(recipe.RECIPES, "tiny", lambda: CUT)
    monkeypatch.setattr(renderers, "make", cache(renderers.make))
    monkeypatch.chdir(tmp_path)

    def call(*arguments) -> tuple[int, str, str]:
        given = ["homunculus", "train", "--device", "cpu", "--workers", "0", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return call


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_trains_and_says_where(train, tmp_path):
    code, said, told = train("--preset", "tiny", "--out", "model")
    assert code == 0 and said == f"done: weights in {Path('model/weights')}\n"
    assert "score: " in told and "parameters learn" in told
    left = {"weights", "curves.png", "images.key"} | {
        name + end for name in ("score", "read") for end in ("", ".jsonl", ".done")
    }
    assert files(tmp_path / "model") == left
    assert load_model(tmp_path / "model" / "weights").config == CUT.config
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "model" / "weights").iterdir()}
    assert train("--preset", "tiny", "--out", "model")[:2] == (0, said)  # nothing left to do
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "model" / "weights").iterdir()} == before


def test_it_stops_in_time_and_the_same_command_goes_on(train, tmp_path):
    assert train("--preset", "tiny", "--out", "whole")[0] == 0
    said = []
    while not said or said[-1].startswith("stopped"):
        code, out, _ = train("--preset", "tiny", "--out", "parts", "--minutes", 0)
        assert code == 0 and len(said) < 9
        said.append(out)
    assert len(said) > 2 and said[0] == "stopped in time: give the same command again (parts)\n"
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_stages_seeds_and_weights(train, tmp_path):
    assert train("--preset", "tiny", "--out", "one", "--stage", "score")[0] == 0
    assert {"score.done", "curves.png"} <= files(tmp_path / "one") and "read.done" not in files(tmp_path / "one")
    assert train("--preset", "tiny", "--out", "two", "--stage", "score", "--seed", 1)[0] == 0
    assert losses(tmp_path / "one", "score") != losses(tmp_path / "two", "score")
    again = ("--preset", "tiny", "--out", "three", "--stage", "read", "--weights", tmp_path / "two" / "weights")
    assert train(*again)[0] == 0
    ours, theirs = (load_model(tmp_path / name / "weights").scorer.state_dict() for name in ("three", "two"))
    assert all(value.equal(theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--preset", "huge"), "no recipe 'huge': choose one of small, longer, together, tiny"),
        (("--preset", "tiny", "--stage", "sleep"), "no stage sleep: choose from score, read"),
        (("--preset", "tiny", "--weights", "nowhere"), "nowhere has no model.json"),
        (("--preset", "tiny", "--device", "potato"), "no device 'potato': give cpu, cuda or cuda:1"),
    ],
)
def test_what_it_refuses_is_one_line_and_leaves_nothing(train, tmp_path, arguments, said):
    code, out, told = train("--out", "model", *arguments)
    assert code != 0 and out == "" and said in told and told.count("\n") == 1
    assert not (tmp_path / "model").exists() or not files(tmp_path / "model")


def test_a_file_is_no_place_for_a_model(train, tmp_path):
    (tmp_path / "page.png").write_bytes(b"a page")
    code, _, told = train("--preset", "tiny", "--out", "page.png")
    assert code == 2 and "choose another --out" in told and told.count("\n") == 1
    assert (tmp_path / "page.png").read_bytes() == b"a page"


def test_a_run_keeps_its_typefaces(train, tmp_path, monkeypatch):
    """Regular and bold of one family, taken from matplotlib's own; without them the run does not go on."""
    folder = tmp_path / "faces"
    folder.mkdir()
    for cut, file in (("regular", "DejaVuSerif"), ("bold", "DejaVuSerif-Bold")):
        (folder / f"Other-{cut}.ttf").write_bytes((_folder() / f"{file}.ttf").read_bytes())
    begin = ("--preset", "drilled", "--out", "model", "--stage", "score")
    families, asked = {"drills": 1.0}, []
    drilled = replace(CUT, families=families, sizes=((512, 512),))
    monkeypatch.setitem(recipe.RECIPES, "drilled", lambda: drilled)
    make = renderers.make

    def spied(*arguments, **options):
        asked.append(options["faces"])
        return make(*arguments, **options)

    monkeypatch.setattr(renderers, "make", spied)
    assert train(*begin, "--minutes", 0, "--faces", folder)[0] == 0
    assert set(asked) == {str(folder)}  # every page was drawn with them
    for other in ((), ("--faces", tmp_path / "others")):
        (tmp_path / "others").mkdir(exist_ok=True)
        (tmp_path / "others" / "Other-regular.ttf").write_bytes((folder / "Other-bold.ttf").read_bytes())
        code, _, told = train(*begin, *other)
        assert code != 0 and "was begun with other questions or typefaces" in told and told.count("\n") == 1
    assert train(*begin, "--faces", folder)[1].startswith("done")
    families["scenes"] = 1.0
    assert "was begun with other questions" in train("--preset", "drilled", "--out", "model", "--faces", folder)[2]


def test_typefaces_that_nothing_is_set_in_are_refused(train, tmp_path):
    code, _, told = train("--preset", "tiny", "--out", "model", "--faces", tmp_path)
    assert code != 0 and "only drills are set in other typefaces, and this recipe has none" in told
    assert not files(tmp_path / "model")


@pytest.mark.parametrize("preset", ["longer", "together"])
def test_recipes_that_go_on_want_weights(train, tmp_path, preset):
    code, _, told = train("--preset", preset, "--out", "model")
    assert code != 0 and "goes on from weights: give a folder of them with --weights" in told and told.count("\n") == 1
    assert not files(tmp_path / "model")


def test_each_recipe_sees_images_of_its_own():
    assert len({made().seed for made in (recipe.speedrun, recipe.longer, recipe.together)}) == 3


def test_without_a_place_to_write_it_does_not_begin(train):
    code, _, told = train("--preset", "tiny")
    assert code == 2 and "--out" in told


def test_only_the_first_process_tells(train, monkeypatch, tmp_path):
    assert train("--preset", "tiny", "--out", "model")[0] == 0
    (tmp_path / "model" / "curves.png").unlink()
    monkeypatch.setenv("RANK", "1")
    assert train("--preset", "tiny", "--out", "model")[:2] == (0, "")
    assert "curves.png" not in files(tmp_path / "model")


def test_help_says_what_there_is(tmp_path):
    command = [sys.executable, "-m", "homunculus", "train", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT | {"COLUMNS": "200"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in ("--preset", "--out", "--minutes", "--weights", "--stage", "--seed"))
