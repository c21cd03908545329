"""Recipes: what they leave, that they stop and go on, and that neither a kill nor the number of processes shows.

Run by torchrun, this file is also what the processes run. Tolerance between one process and two: 1e-5 of each loss, as
float32 gradients summed over two parts and averaged over two processes differ in their last bits.
"""

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from homunculus.errors import HomunculusError, ModelError
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_model, read_about, save_weights
from homunculus.train import recipe as recipes
from homunculus.train import renderers
from homunculus.train.checkpoint import load
from homunculus.train.curriculum import Phase, showing
from homunculus.train.journal import read_journal
from homunculus.train.loop import Settings
from homunculus.train.parts import own_parts
from homunculus.train.pool import Pool
from homunculus.train.recipe import RECIPES, Recipe, Stage, follow, stage_loss
from tests.test_cli import ENVIRONMENT, ROOT

STEPS = 16
KILLS = 5
RELATIVE = 1e-5
QUICK = Settings(STEPS, rate=2e-3, warmup=3, save_steps=2)
SHOWN = Phase(1.0, {64: 1.0}, {"foveated-pyramid": 1.0, "topk": 1.0}, {"corrupted": 1.0, "predicted": 1.0})
SMALL = Recipe(
    tiny(),
    (
        Stage("score", "score", QUICK, options={"images": 2, "each": 2}),
        Stage("read", "read", QUICK, (SHOWN,), {"tokens": 64 * 8, "each": 2}),
    ),
    families={"scenes": 1.0},
    sizes=((96, 96), (128, 96)),
    capacity=3,
    renewed=1,
    readings=0,
)
SEEING = Stage(
    "see", "pretrain", replace(QUICK, steps=4, save_steps=0), options={"batch": 2, "budget": 32, "lesson": "bands"}
)


def short(recipe: Recipe = SMALL, steps: int = 3) -> Recipe:
    """With a few steps to a stage, saved when it ends."""
    stages = (replace(stage, settings=replace(stage.settings, steps=steps, save_steps=0)) for stage in recipe.stages)
    return replace(recipe, stages=tuple(stages))


def losses(out: Path, *names: str) -> list[float]:
    found = []
    for name in names or ("score", "read"):
        lines = read_journal(out / f"{name}.jsonl")
        assert [line["step"] for line in lines] == list(range(len(lines)))
        found += [line["loss"] for line in lines]
    return found


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder).state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module", autouse=True)
def drawn_once():
    """Records are pure functions of their arguments, and most of what a short run costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renderers, "make", cache(renderers.make))
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("done")
    assert follow(short(), out)
    return out


@pytest.fixture
def no_training(monkeypatch):
    """Nothing may be trained or drawn."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was done already")

    monkeypatch.setattr(recipes, "fit", refuse)
    monkeypatch.setattr(recipes, "Pool", refuse)


# ------------------------------------------------------------------------------------------------------- what it leaves


def test_it_leaves_weights_journals_and_marks(done):
    left = {"weights", "images.key", "score", "score.jsonl", "score.done", "read", "read.jsonl", "read.done"}
    assert {path.name for path in done.iterdir()} == left
    assert read_about(done / "weights")["about"] == {"stage": "read"}
    assert load_model(done / "weights").config == tiny()
    assert len(losses(done)) == 6


def test_weights_are_those_of_the_last_checkpoint_rounded(done):
    last = load(done / "read")
    assert last.meta["finished"]
    assert same({k: v.bfloat16().float() for k, v in last.model.items()}, weights_of(done / "weights"))


def test_the_same_seed_gives_the_same_model(done, tmp_path):
    torch.manual_seed(123)  # whatever was before
    assert follow(short(), tmp_path / "again") and follow(short(), tmp_path / "other", seed=1)
    assert losses(tmp_path / "again") == losses(done) != losses(tmp_path / "other")
    assert same(weights_of(tmp_path / "again" / "weights"), weights_of(done / "weights"))


def test_every_recipe_has_stages_that_can_be_built():
    assert {"small", "tiny"} <= RECIPES.keys()
    for make in RECIPES.values():
        recipe = make()
        names = [stage.name for stage in recipe.stages]
        assert len(set(names)) == len(names) and min(recipe.sizes[0]) >= 512
        pools = [Pool(recipe.families, size=recipe.sizes[0], capacity=1, renewed=0)]
        for stage in recipe.stages:
            loss, trained = recipes.stage_loss(stage, CompactVLM(tiny()), pools, 0)
            assert trained and callable(loss.begin) and [*loss.parts, *loss.fixed]


@pytest.mark.parametrize("name", ["small", "longer", "together"])
def test_kinds_that_are_asked_more_often_exist(name):
    with Pool({"scenes": 1.0}, size=(256, 256), capacity=24, renewed=0) as pool:
        pool.fill()
    asked = {question.kind for own in pool.asked_of for question in own}
    assert RECIPES[name]().kinds and RECIPES[name]().kinds.keys() <= asked


def test_a_kind_that_there_is_not(tmp_path):
    with pytest.raises(ModelError, match="no kind of stage 'dream': choose pretrain, score, read, joint or proxy"):
        follow(replace(SMALL, stages=(Stage("night", "dream", QUICK),)), tmp_path)


# --------------------------------------------------------------------------------------------------- stopping, going on


def test_what_is_done_is_not_done_again(done, no_training):
    assert follow(short(), done)
    assert follow(short(), done, only=["score"])


def test_what_another_recipe_has_done_is_no_reason_to_skip_it(done, no_training):
    """Not even where all its stages have the names of ours."""
    for other, seed in ((short(), 7), (short(steps=4), None)):
        with pytest.raises(ModelError, match=r"of another recipe or seed.*write elsewhere with --out"):
            follow(other, done, seed=seed)
    said = (done / "score.done").read_text()
    (done / "score.done").write_text("")  # as marks were once
    assert follow(short(), done)
    (done / "score.done").write_text(said)


def test_out_of_time_it_stops_and_goes_on(done, tmp_path):
    calls = 0
    while not follow(short(), tmp_path, minutes=0.0):
        calls += 1
        assert calls < 9
    assert calls > 2 and losses(tmp_path) == losses(done)
    assert same(weights_of(tmp_path / "weights"), weights_of(done / "weights"))


def test_stage_by_stage_is_all_at_once(done, tmp_path):
    """The second finds what the first left, by its mark and weights alone."""
    assert follow(short(), tmp_path, only=["score"])
    assert read_about(tmp_path / "weights")["about"] == {"stage": "score"} and not (tmp_path / "read.done").exists()
    assert follow(short(), tmp_path, only=["read"])
    assert losses(tmp_path) == losses(done)
    assert same(weights_of(tmp_path / "weights"), weights_of(done / "weights"))


def test_what_a_stage_adds_follows_from_the_seed(tmp_path):
    """The heads of pre-training, whatever came before in this process."""
    after = replace(SMALL, stages=(*short().stages[:1], SEEING))
    assert follow(after, tmp_path / "whole")
    assert follow(after, tmp_path / "parts", only=["score"]) and follow(after, tmp_path / "parts")
    assert losses(tmp_path / "whole", "score", "see") == losses(tmp_path / "parts", "score", "see")


@pytest.mark.parametrize("moment", ["weights", "mark"])
def test_a_kill_at_the_end_of_a_stage_changes_nothing(done, tmp_path, monkeypatch, moment):
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*((recipes, "save_weights") if moment == "weights" else (recipes, "_as_done")), kill)
        with pytest.raises(Killed):
            follow(short(), tmp_path)
    assert follow(short(), tmp_path)
    assert losses(tmp_path) == losses(done)
    assert same(weights_of(tmp_path / "weights"), weights_of(done / "weights"))


def test_unknown_stages_are_named(tmp_path):
    with pytest.raises(ModelError, match="no stage sleep: choose from score, read"):
        follow(SMALL, tmp_path, only=["sleep"])
    assert not list(tmp_path.iterdir())


def test_it_begins_from_other_weights(done, tmp_path):
    torch.manual_seed(5)
    other = CompactVLM(tiny())
    save_weights(other, tmp_path / "other")
    assert follow(short(), tmp_path / "out", weights=tmp_path / "other", only=["read"])
    found, before = weights_of(tmp_path / "out" / "weights"), weights_of(tmp_path / "other")
    scorer = {name for name in found if name.startswith("scorer")}
    assert all(torch.equal(found[name], before[name]) for name in scorer)
    assert not same(found, before) and losses(tmp_path / "out", "read") != losses(done, "read")
    assert follow(short(), tmp_path / "out", weights=tmp_path / "other", only=["score"])  # and goes on from its own
    after = weights_of(tmp_path / "out" / "weights")
    assert all(torch.equal(after[name], found[name]) == (name not in scorer) for name in found if after[name].dim() > 1)


def test_cells_go_on_saying_where_they_are_as_they_did(tmp_path):
    save_weights(CompactVLM(replace(tiny(), positions="placed")), tmp_path / "other")
    assert short().config.positions != "placed"
    assert follow(short(), tmp_path / "out", weights=tmp_path / "other", only=["read"])
    model = load_model(tmp_path / "out" / "weights")
    assert model.config.positions == "placed" and model.encoder.place_embedding.abs().min() > 0


def test_weights_of_another_model_are_refused(tmp_path):
    save_weights(CompactVLM(replace(tiny(), width=64)), tmp_path / "other")
    with pytest.raises(ModelError, match="of another shape"):
        follow(SMALL, tmp_path / "out", weights=tmp_path / "other")


# ------------------------------------------------------------------------------------------------------------- kill -9


def train(out: Path, begun: Any = None) -> None:
    """In a process of its own: both stages."""
    torch.set_num_threads(1)
    if begun is not None:
        begun.set()
    assert follow(SMALL, out)


def steps_in(out: Path) -> int:
    return sum(len(read_journal(path)) for path in out.glob("*.jsonl"))


def test_kill_nine_at_five_moments_changes_nothing(tmp_path):
    """Once so many steps are told, and a little later: at times in the midst of a step, of a checkpoint, of a start."""
    context = multiprocessing.get_context("forkserver")  # torch is imported once
    context.set_forkserver_preload(["tests.train.test_recipe"])
    moments = random.Random(3)

    def run(out: Path, killed_after: int | None = None) -> int:
        begun = context.Event()
        process = context.Process(target=train, args=(out, begun))
        process.start()
        assert begun.wait(60)
        if killed_after is not None:
            while process.is_alive() and steps_in(out) < killed_after:
                time.sleep(0.002)
            time.sleep(moments.uniform(0.0, 0.06))
            process.kill()
        process.join(120)
        return process.exitcode

    assert run(tmp_path / "unbroken") == 0
    for steps in sorted(moments.sample(range(2 * STEPS - 5), KILLS)):
        assert run(tmp_path / "broken", killed_after=steps) == -signal.SIGKILL, "it was to be killed in the midst"
        assert steps_in(tmp_path / "broken") < 2 * STEPS  # fewer than there were, if killed while it began anew
    assert run(tmp_path / "broken") == 0
    assert len(losses(tmp_path / "broken")) == 2 * STEPS
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    assert same(weights_of(tmp_path / "broken" / "weights"), weights_of(tmp_path / "unbroken" / "weights"))


# ------------------------------------------------------------------------------------------------------- many processes

BOTH = replace(short(SMALL, 6), stages=(SEEING, *short(SMALL, 6).stages), parts=2)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """One process with both parts of each batch."""
    out = tmp_path_factory.mktemp("alone")
    assert follow(BOTH, out)
    return out


def test_two_processes_learn_as_one_with_the_same_global_batch(alone, tmp_path):
    pytest.importorskip("accelerate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command += ["-m", "tests.train.test_recipe", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ("see", "score", "read"):
        assert losses(tmp_path, name) == pytest.approx(losses(alone, name), rel=RELATIVE), name
        ours, theirs = ({line["samples"] for line in read_journal(out / f"{name}.jsonl")} for out in (tmp_path, alone))
        assert ours == theirs
    assert load_model(tmp_path / "weights").config == tiny()


def test_parts_are_other_images():
    """Two parts are not one part twice, and their mean is what is told."""
    pools = [Pool({"scenes": 1.0}, size=(96, 96), capacity=2, renewed=1, part=part, parts=2) for part in (0, 1)]
    torch.manual_seed(0)
    vlm = CompactVLM(tiny())
    single = [recipes.Scoring(vlm, [pool], images=2, each=2) for pool in pools]
    for loss in single:
        loss.begin(0)
    expected = [loss(0) for loss in single]
    both = recipes.InParts(recipes.Scoring(vlm, pools[:1], images=2, each=2), [[pool] for pool in pools])
    both.begin(0)
    value, about = both(0)
    assert expected[0][0] != expected[1][0]
    assert value.item() == pytest.approx((expected[0][0] + expected[1][0]).item() / 2)
    assert about["mass"].item() == pytest.approx((expected[0][1]["mass"] + expected[1][1]["mass"]).item() / 2)
    assert about["samples"] == 8


@pytest.mark.parametrize(
    ("process", "processes", "parts", "own"), [(1, 2, 4, [1, 3]), (2, 4, None, [2]), (0, 1, 3, [0, 1, 2])]
)
def test_processes_share_the_parts(monkeypatch, process, processes, parts, own):
    monkeypatch.setenv("RANK", str(process))
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    assert own_parts(parts) == (own, parts or processes)
    with pytest.raises(HomunculusError, match=r"cannot be shared by \d processes"):
        own_parts(processes * 2 + 1 if processes > 1 else 0)


def test_held_out_questions_are_asked_now_and_then(tmp_path):
    recipe = replace(short(), checked=2, check_every=2)
    assert follow(recipe, tmp_path)
    told = [line["evaluation"] for line in read_journal(tmp_path / "score.jsonl") if "evaluation" in line]
    assert told and all(set(found) == {"scenes: hit"} for found in told)
    told = [line["evaluation"] for line in read_journal(tmp_path / "read.jsonl") if "evaluation" in line]
    assert told and all(set(found) == {"scenes: true", "scenes: predicted"} for found in told)


@pytest.mark.parametrize("name", ["small", "longer", "together"])
def test_full_resolution_is_seen_often_enough(name):
    """Otherwise what reads every leaf is out of distribution."""
    recipe = RECIPES[name]()
    stage = recipe.stages[-1]  # in the end, or it would be unlearned
    steps = stage.settings.steps
    shown = [showing(stage.phases, steps, step).budget for step in range(steps)]
    reading, _ = stage_loss(stage, CompactVLM(tiny()), [], 0)
    assert reading.count(4096) * shown.count(4096) >= 15_000


if __name__ == "__main__":
    assert os.environ["WORLD_SIZE"] == "2"
    assert follow(BOTH, Path(sys.argv[1]))
