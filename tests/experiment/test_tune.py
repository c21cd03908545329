"""A reader for each method: it learns from the method's own tokens, the scorer is left alone, all see the same."""

import copy
import time
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from homunculus.errors import ModelError
from homunculus.eval.plans import Plan, method_names, weights_key
from homunculus.eval.rows import Kept
from homunculus.eval.suites import own_budget
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM
from homunculus.peers import compact
from homunculus.report.sheet import Sheet
from homunculus.train import fair, tune
from homunculus.train.fair import known_reader, run_tuned
from homunculus.train.loop import Outcome
from homunculus.train.pool import Pool
from homunculus.train.tune import EACH, OwnTokens, Tuning, tuned

SIDE = 320  # 400 leaves: as many as `variable` may ask for
SMALL = {"size": (SIDE, SIDE), "how": {"longest": 4}}
FEW = Tuning(samples=2 * EACH, batch=EACH)


def plan_of(method):
    return Plan("scenes", method=method, budget=own_budget(method, 64), **SMALL)


@pytest.fixture(scope="module")
def pool():
    with Pool({"scenes": 1.0}, size=(SIDE, SIDE), capacity=4, renewed=0) as pool:
        pool.fill()
        yield pool


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return CompactVLM(tiny()).eval()


@pytest.mark.parametrize("method", method_names())
def test_every_method_teaches_encoder_and_decoder(model, pool, method):
    own = copy.deepcopy(model).train()
    loss = OwnTokens(own, [pool], plan_of(method), EACH)
    value, about = loss(0)
    value.backward()
    assert value.isfinite() and about["samples"] == EACH
    for part in (own.encoder.patch_embedding, own.encoder.blocks, own.decoder.layers):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in part.parameters())
        assert any(p.grad.abs().sum() > 0 for p in part.parameters())
    assert all(parameter.grad is None for parameter in own.scorer.parameters())


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("whole", True),
        ("topk", True),
        *product(("peers/whole", "peers/fastv", "peers/tome", "peers/cdpruner", "peers/random"), (True, False)),
    ],
)
def test_what_is_learnt_from_is_what_is_answered_from(model, pool, method, told):
    """The memory of a step is the one that a reader of that method answers from."""
    from homunculus.peers.reading import read_with
    from homunculus.train.score import predicted

    samples = pool.draw(EACH, 0, EACH)
    with torch.no_grad():
        density = predicted(model, samples)
        plan = plan_of(method)
        plan = plan if told else replace(plan, how=plan.how | {"told": False})
        memory = OwnTokens(model, [pool], plan, EACH).memory(samples, density, 0)
        written = model.decoder.write(memory, samples.question, 4)
        texts = [question.text for question in pool.asked(samples)]
        images = samples.images.repeat_interleave(EACH, 0)
        if not method.startswith("peers/"):
            from homunculus.model.answer import answer

            allocator, budget = plan.cells
            said = [one.text for one in answer(model, images, texts, budget=budget, allocator=allocator, longest=4)]
            assert [model.tokenizer.decode(letters) for letters in written.letters.tolist()] == said
            return
        how = {"longest": 4, "told": told, "relevance": density}  # pairs of tome that are as alike go by its last bits
        read = read_with(model, method.removeprefix("peers/"), images, texts, own_budget(method, 64), **how)
    assert torch.allclose(written.probabilities, read.written.probabilities, rtol=1e-3)
    assert written.letters.equal(read.written.letters)


def test_one_reader_serves_all_that_show_every_leaf(model, pool):
    plans = [replace(plan_of(method), questions=4) for method in ("peers/dyrate", "whole")]
    losses = [OwnTokens(model, [pool], plan, EACH)(0)[0] for plan in plans]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0.0)
    untold = replace(plans[0], how={"told": False})
    assert [len(own) for own in fair.by_reader([*plans, untold]).values()] == [2, 1]
    kept = Kept(None)
    assert run_tuned(model, plans, kept, FEW, images=4)
    (weights,) = kept.models
    assert kept.models[weights]["tuned"]["method"] == "whole"
    assert [len(kept.rows[plan.mark(weights)]) for plan in plans] == [4, 4]
    sheet = Sheet([kept])  # a page has both among those that were tuned
    assert {(way.method, way.arm) for way in sheet.ways} == {("peers/dyrate", "tuned"), ("whole", "tuned")}
    assert not sheet.left_out()


def test_options_of_a_method_are_what_its_reader_learns_from(model, pool):
    samples = pool.draw(EACH, 0, EACH)
    density = torch.rand(EACH, SIDE // 16, SIDE // 16, generator=torch.Generator().manual_seed(0))

    def shown(method, **how):
        plan = replace(plan_of(method), how=how)
        with torch.no_grad():
            return OwnTokens(model, [pool], plan, EACH).memory(samples, density, 0).counts

    assert shown("peers/variable", thresholds=(1e9,), counts=(64, 100)) == (64, 64)
    assert shown("peers/combined")[0] == 100 and shown("peers/combined", merged=0.5, rate=0.1)[0] == 75
    assert min(shown("peers/fastv", shown=90)) == 90 > min(shown("peers/fastv"))


def test_only_the_reader_changes(model, pool):
    before = copy.deepcopy(model.state_dict())
    other, about = tuned(model, plan_of("topk"), [pool], FEW)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    changed = {name.split(".")[0] for name, value in other.state_dict().items() if not value.equal(before[name])}
    assert changed == {"encoder", "decoder"} and not other.training
    assert about["samples"] == FEW.samples and about["equal"] == "samples"
    again, _ = tuned(model, plan_of("topk"), [pool], FEW)
    assert weights_key(again) == weights_key(other)


def test_seconds_decide_the_steps(model, pool, monkeypatch):
    monkeypatch.setattr(tune, "steps_in", lambda *_: 3)
    _, about = tuned(model, plan_of("topk"), [pool], Tuning(batch=EACH, samples=EACH, seconds=0.5))
    assert about["equal"] == "seconds" and about["samples"] == 3 * EACH


def test_steps_are_counted_by_the_clock(model, pool, monkeypatch):
    """Of whole runs: with what beginning and ending take, without the first, in which kernels are chosen."""
    now, runs = [0.0], []

    def fit(learner, loss, settings, *_, **__):
        runs.append((settings.steps, id(learner), id(loss.model)))
        now[0] += (9.0 if len(runs) == 1 else 1.0) + 0.25 * settings.steps
        return Outcome(True, settings.steps, 0.5)

    monkeypatch.setattr(tune, "fit", fit)
    monkeypatch.setattr(tune.time, "monotonic", lambda: now[0])
    learned, about = tuned(model, plan_of("topk"), [pool], Tuning(batch=EACH, samples=EACH, seconds=30.0))
    assert about["seconds"] == 30.0 and about["samples"] == EACH * (30 - 1) / 0.25
    assert len({own for _, own, _ in runs}) == 6 == len(runs) and all(own == other for _, own, other in runs)
    assert id(learned) == runs[-1][1] and id(model) not in {own for _, own, _ in runs}


@pytest.mark.parametrize("late", [0.3, 0.9, 1.0, 5.0, 1000.0])
@pytest.mark.parametrize("run", range(5))
def test_a_moment_in_which_the_machine_is_busy_changes_nothing(run, late):
    runs = []

    def taken(steps):
        runs.append(steps)
        return 0.3 + 0.05 * steps + (late if len(runs) == run + 1 else 0.0)

    assert tune.steps_in(6.0, taken) == 114 and len(runs) == 5


@pytest.mark.parametrize("late", [0.3, 1.0, 1000.0])
@pytest.mark.parametrize("long", [False, True])
def test_a_machine_that_is_busy_for_longer_makes_no_tuning_endless(long, late):
    """Both runs of a kind are late: fewer steps than there was time for, or at most four times as many."""
    steps = tune.steps_in(6.0, lambda steps: 0.05 * steps + (late if (steps > tune.REHEARSED) == long else 0.0))
    assert tune.WARMUP <= steps <= 4 * 120


@pytest.mark.parametrize("each", [0.001, 0.05, 0.3, 3.0])
def test_rehearsals_take_little_more_than_what_they_are_for(each):
    """However dear a step is, and few steps where they are cheap."""
    runs = []

    def taken(steps):
        runs.append(steps)
        return each * steps

    steps = tune.steps_in(6.0, taken)
    assert steps == max(tune.WARMUP, int(6.0 / each + 1e-6)) and sum(runs) <= min(58, steps + 10)


def test_segments_are_cut_before_the_clock_runs(model, pool, monkeypatch):
    """Once for each image, whether its method is tuned for samples or for seconds."""
    cuts, labels, fits, real = [], tune.labels_of, [], tune.fit
    monkeypatch.setattr(tune, "labels_of", lambda *how: cuts.append(1) or labels(*how))

    def fit(*how, **more):
        fits.append(len(cuts))
        return real(*how, **more)

    monkeypatch.setattr(tune, "fit", fit)
    tuned(model, plan_of("atlas"), [pool], Tuning(batch=EACH, samples=EACH, seconds=0.01))
    assert fits == [pool.capacity] * 6 and len(cuts) == pool.capacity
    samples = pool.draw(EACH, 0, EACH)
    own = OwnTokens(model, [pool], plan_of("atlas"), EACH, tune.cut([pool], 16))
    assert own._labels(samples, 0).equal(OwnTokens(model, [pool], plan_of("atlas"), EACH)._labels(samples, 0))


def test_lots_are_drawn_anew_at_every_step_and_nothing_else_is(model, pool):
    samples = pool.draw(EACH, 0, EACH)
    density = torch.rand(EACH, SIDE // 16, SIDE // 16, generator=torch.Generator().manual_seed(0))

    def keys(method, step):
        with torch.no_grad():
            plan = replace(plan_of(method), how={})
            return OwnTokens(model, [pool], plan, EACH).memory(samples, density, step).layers[0][0]

    for method in ("random", "tome", "visionzip", "cdpruner"):
        first, again, later = (keys(f"peers/{method}", step) for step in (0, 0, 1))
        assert torch.equal(first, again) and torch.equal(first, later) == (method != "random")


@pytest.mark.parametrize(("method", "asks"), [("tome", []), ("visionzip", ["late"]), ("hired", ["late", "early"])])
def test_a_reader_pays_for_the_attention_its_peer_asks_for(model, pool, method, asks, monkeypatch):
    blocks, ends = [], {"late": model.encoder.blocks[-1], "early": model.encoder.blocks[0]}
    received = compact.received
    monkeypatch.setattr(compact, "received", lambda block, *rest: blocks.append(block) or received(block, *rest))
    density = torch.rand(EACH, SIDE // 16, SIDE // 16)
    OwnTokens(model, [pool], plan_of(f"peers/{method}"), EACH).memory(pool.draw(EACH, 0, EACH), density, 0)
    assert blocks == [ends[when] for when in asks]


def test_rows_say_whose_they_are_and_are_not_made_again(model, tmp_path, monkeypatch):
    plans = [
        Plan("scenes", questions=4, method=method, budget=64, **SMALL) for method in ("topk", "uniform", "peers/tome")
    ]
    file, lines = tmp_path / "rows.jsonl", []
    assert run_tuned(model, plans, Kept(file), FEW, images=4, say=lines.append)
    kept = Kept(file)
    assert len(kept.models) == 3 and len(lines) == 3
    for plan in plans:
        weights = known_reader(kept, weights_key(model), plan, FEW)
        assert kept.models[weights]["tuned"]["method"] == plan.method
        assert len(kept.rows[plan.mark(weights)]) == 4 and not kept.rows[plan.mark(weights_key(model))]
    other = replace(plans[0], how=plans[0].how | {"seed": 1})
    assert known_reader(kept, weights_key(model), other, FEW) is None
    assert known_reader(kept, "others", plans[0], FEW) is None
    assert known_reader(kept, weights_key(model), plans[0], Tuning(samples=4 * EACH, batch=EACH)) is None
    monkeypatch.setattr(fair, "tuned", None)  # nothing is tuned
    before, ticks = file.read_text(), []
    assert run_tuned(model, plans, Kept(file), FEW, tick=lambda plan, questions: ticks.append(questions))
    assert file.read_text() == before and ticks == [4, 4, 4]
    assert not run_tuned(model, [Plan("scenes", method="v1", **SMALL)], Kept(None), FEW, until=0.0)


def test_a_reader_that_was_being_asked_is_not_tuned_again(model, tmp_path, monkeypatch):
    plans = [Plan("scenes", questions=24, method=method, budget=64, **SMALL) for method in ("topk", "uniform")]
    file = tmp_path / "rows.jsonl"

    def interrupt(plan, questions):
        if questions:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tuned(model, plans, Kept(file), FEW, images=4, tick=interrupt)
    kept = Kept(file)
    (weights,) = kept.models
    some = dict(kept.rows[plans[0].mark(weights)])
    assert 0 < len(some) < 24 and (tmp_path / "rows.reader").is_dir()
    named = []
    real = fair.tuned
    monkeypatch.setattr(fair, "tuned", lambda *how: named.append(how[1].method) or real(*how))
    assert run_tuned(model, plans, Kept(file), FEW, images=4)
    kept = Kept(file)
    assert named == ["uniform"] and len(kept.models) == 2
    rows = kept.rows[plans[0].mark(weights)]
    assert len(rows) == 24 and some.items() <= rows.items()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_no_reader_is_begun_that_would_not_be_finished_in_time(model, monkeypatch):
    """The next may take as long as the longest so far."""
    plans = [Plan("scenes", questions=4, method=method, budget=64, **SMALL) for method in ("topk", "uniform", "v1")]
    named, real, clock, later = [], fair.tuned, time.monotonic, [0.0]

    def slow(*how):
        named.append(how[1].method)
        later[0] += 6e4 if len(named) == 2 else 0.0  # whatever is counted of it as tuning
        return real(*how)

    monkeypatch.setattr(fair, "tuned", slow)
    monkeypatch.setattr(fair, "time", SimpleNamespace(monotonic=lambda: clock() + later[0]))
    kept = Kept(None)
    assert not run_tuned(model, plans, kept, FEW, images=4, until=clock() + 1e5)
    assert named == ["topk", "uniform"] and len(kept.rows) == 2  # what was tuned is asked


def test_what_cannot_be_tuned():
    with pytest.raises(ModelError, match="multiple of 8"):
        Tuning(batch=12)
    for seconds in (0.0, -5.0, float("nan")):
        with pytest.raises(ModelError, match="some seconds above 0"):
            Tuning(seconds=seconds)
    with pytest.raises(ModelError, match="one look"):
        fair.by_reader([Plan("scenes", how={"looks": 3})])


def test_seconds_are_timed_on_a_model_that_does_not_learn_yet(model, pool):
    own = copy.deepcopy(model).requires_grad_(False)
    _, about = tuned(own, plan_of("topk"), [pool], Tuning(batch=EACH, samples=EACH, seconds=0.01))
    assert about["samples"] >= 10 * EACH
