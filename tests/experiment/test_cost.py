"""What an answer costs: what is timed, and that it is known afterwards."""

import signal
from threading import Thread

import pytest
import torch

from homunculus.data import Question
from homunculus.errors import DataError
from homunculus.eval import cost
from homunculus.eval.cost import BATCH, Timing, add_costs, batches_of, can_be_timed, time_in_turn
from homunculus.eval.drawing import Asked
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.rows import Kept
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM

SMALL = {"size": (256, 256), "how": {"longest": 2}}
METHODS = ("topk", "token-bank", "peers/tome", "peers/variable", "peers/combined", "peers/whole", "whole")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return CompactVLM(tiny()).eval().requires_grad_(False)


def test_every_kind_of_method_is_timed_once(model, tmp_path):
    budget = {"topk": 32, "token-bank": 32, "peers/tome": 32}
    plans = [Plan("scenes", method=name, budget=budget.get(name), **SMALL) for name in METHODS]
    told = Plan("scenes", relevance="hit-50", budget=32, **SMALL)
    kept, ticks = Kept(tmp_path / "rows.jsonl"), []
    assert add_costs(model, [*plans, told], kept, batches=2, warm=0, tick=ticks.append)
    assert sum(ticks) == pytest.approx(8) and [line["cost"]["method"] for line in kept.costs] == list(METHODS)
    for line in kept.costs:
        assert line["per_second"] > 0 and line["p50"] > 0 and line["p99"] is None and line["batch"] == BATCH
        assert line["peak_mib"] is None and line["model_mib"] > 0 and line["cost"]["weights"] == weights_key(model)
    waste = {line["cost"]["method"]: line["waste"] for line in kept.costs}
    assert waste["topk"] == waste["whole"] == 0 and 0 < waste["token-bank"] < 1
    again = Kept(tmp_path / "rows.jsonl")
    assert add_costs(model, plans, again, batches=2) and len(again.costs) == len(METHODS)


def test_with_recorded_steps_a_cost_is_another(model, monkeypatch):
    """On a CPU the steps are taken as they are, in the tensors of a recording."""
    plan, kept, writers = Plan("scenes", budget=32, **SMALL), Kept(None), []
    real = cost.said_once
    monkeypatch.setattr(cost, "said_once", lambda *how: writers.append(how[0].decoder.writer) or real(*how))
    for graphs in (False, True, True):
        assert add_costs(model, [plan], kept, batches=2, warm=0, graphs=graphs)
    assert [line["graphs"] for line in kept.costs] == [False, True]  # the second time it was known
    assert [bool(writer) for writer in writers] == [False] * 2 + [True] * (len(writers) - 2) and len(writers) > 4
    assert model.decoder.writer is None


def test_time_that_is_over_times_nothing(model):
    kept = Kept(None)
    assert not add_costs(model, [Plan("scenes", **SMALL)], kept, until=0.0) and not kept.costs


class Clock:
    """A clock that only answers move: by as many seconds as it is told for a method."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.said, self.read = 0.0, [], []
        self.seconds = seconds
        monkeypatch.setattr(cost, "said_once", self.said_once)
        monkeypatch.setattr(cost.time, "perf_counter", lambda: self.now)

    def said_once(self, _model, plan, _images, asked):
        self.said.append(plan.method)
        self.read.append([one.key for one in asked])
        self.now += self.seconds(plan.method, len(self.said))
        return 0.25


def some(family, questions):
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    return [Asked(f"{family}/val/{i}#0", 1, "Who?", image, Question("Who?", ("me",))) for i in range(questions)]


def timing(model, method="topk", questions=BATCH):
    return Timing(model, Plan("scenes", method=method, **SMALL), batches_of(some("scenes", questions), "cpu"))


def test_percentiles_and_rates_by_hand(model, monkeypatch):
    """Batches that take 1, 2, ... seconds."""

    def line(**how):
        Clock(monkeypatch, lambda _, number: number)
        time_in_turn([one := timing(model)], warm=0, **how)
        return one.row("weights", False)

    five = line(batches=5, seconds=1e9)
    assert (five["p50"], five["p99"], five["batches"], five["waste"]) == (3.0, None, 5, 0.25)
    assert five["per_second"] == pytest.approx(8 * 5 / 15, rel=1e-5)
    assert line(batches=50, seconds=2.5)["batches"] == 2
    assert 99 < line(batches=100, seconds=1e9)["p99"] <= 100.5
    with pytest.raises(DataError, match="at least 8"):
        timing(model, questions=3)


def test_methods_take_turns_so_that_a_slow_hour_is_everybodys(model, monkeypatch):
    """A host that is three times as slow for half of the time: one after another, the second method would look slower;
    in turns both are, by the same."""
    clock = Clock(monkeypatch, lambda _, number: 1.0 if number <= 40 else 3.0)
    own = [timing(model, name, 2 * BATCH) for name in ("topk", "uniform")]
    time_in_turn(own, batches=40, seconds=1e9, warm=0)
    assert clock.said[:8] == ["topk", "topk", "uniform", "uniform"] * 2  # every batch once, then the other's
    assert clock.said.count("topk") == clock.said.count("uniform") == 40
    rows = [one.row("weights", False) for one in own]
    assert rows[0]["per_second"] == rows[1]["per_second"] == pytest.approx(8 / 2)


def test_every_batch_has_of_everything_and_has_its_turn(model, monkeypatch):
    """Questions come family by family, and answers of one family may be longer than those of another."""
    families = ("documents", "scenes", "scene-text")
    asked = [one for family in families for one in some(family, 16)]
    clock, inputs = Clock(monkeypatch, lambda *_: 1.0), batches_of(asked, "cpu")
    batches = [[one.key for one in own] for _, own in inputs]
    assert len(batches) == 6 and sorted(key for own in batches for key in own) == sorted(one.key for one in asked)
    for own in batches:
        assert {key.partition("/")[0] for key in own} == set(families)
    time_in_turn([Timing(model, Plan("scenes", **SMALL), inputs)], batches=15, seconds=1e9, warm=0)
    assert clock.read == [*batches, *batches, *batches[:3]]


def test_what_is_slow_has_its_seconds_and_others_go_on(model, monkeypatch):
    Clock(monkeypatch, lambda method, _: 10.0 if method == "uniform" else 1.0)
    own, ticks = [timing(model, name) for name in ("uniform", "topk")], []
    time_in_turn(own, batches=8, seconds=25.0, warm=0, tick=ticks.append)
    assert [len(one.taken) for one in own] == [3, 8] and sum(ticks) == pytest.approx(2)


def test_what_was_timed_is_kept_when_the_time_is_over(model, monkeypatch, tmp_path):
    """And what was not timed, or not as long as it should be, is timed by the next call; what was is not."""
    plans = [Plan("scenes", method=name, budget=32, **SMALL) for name in ("topk", "uniform", "random")]
    clock, kept = Clock(monkeypatch, lambda *_: 1.0), Kept(tmp_path / "rows.jsonl")
    monkeypatch.setattr(cost.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(cost, "IMAGES", 2 * BATCH)
    assert not add_costs(model, plans, kept, until=4.0, batches=9, warm=0)
    assert [(line["cost"]["method"], line["batches"]) for line in kept.costs] == [("topk", 2), ("uniform", 2)]
    again = Kept(tmp_path / "rows.jsonl")
    assert add_costs(model, plans, again, batches=2, warm=0)
    assert [line["cost"]["method"] for line in again.costs] == ["topk", "uniform", "random"]
    assert add_costs(model, plans, again, batches=3, seconds=2.0, warm=0)  # two seconds were had, of a second each
    assert len(again.costs) == 3
    assert add_costs(model, plans, again, batches=3, warm=0)
    assert [(line["cost"]["method"], line["batches"]) for line in again.costs[3:]] == [
        (name, 3) for name in ("topk", "uniform", "random")
    ]

    def interrupted(*_):
        clock.now += 1.0
        if clock.now > 40:
            raise KeyboardInterrupt
        return 0.0

    monkeypatch.setattr(cost, "said_once", interrupted)
    clock.now, other = 30.0, Kept(None)
    with pytest.raises(KeyboardInterrupt):
        add_costs(model, plans, other, warm=0)
    assert [line["batches"] for line in other.costs] == [4, 4, 2]


NAMES = ("topk", "uniform", "random")


def plans_of_three():
    return [Plan("scenes", method=name, budget=32, **SMALL) for name in NAMES]


@pytest.mark.parametrize(("graphs", "answers"), [(False, 0), (False, 2), (False, 3), (True, 1), (True, 2)])
def test_what_does_not_fit_into_memory_is_dropped_and_others_go_on(model, monkeypatch, tmp_path, graphs, answers):
    """Whether in a batch that is not counted, in one that is recorded or in one that is timed."""
    fails = {"uniform"}

    def seconds(method, _):
        if method in fails and clock.said.count(method) > answers:
            raise torch.OutOfMemoryError
        return 1.0

    clock, kept, lines = Clock(monkeypatch, seconds), Kept(tmp_path / "rows.jsonl"), []
    monkeypatch.setattr(cost, "IMAGES", BATCH)
    how = {"batches": 5, "warm": 1, "graphs": graphs}
    assert add_costs(model, plans_of_three(), kept, say=lines.append, **how)  # giving it again would change nothing
    assert clock.said.count("uniform") == answers + 1
    assert [(line["cost"]["method"], line["batches"]) for line in kept.costs] == [("topk", 5), ("random", 5)]
    (line,) = lines
    assert line.startswith("uniform, 32 tokens does not fit into memory") and line.endswith("--methods uniform")
    fails.clear()
    again = Kept(tmp_path / "rows.jsonl")
    assert add_costs(model, plans_of_three(), again, say=lines.append, **how) and len(lines) == 1
    assert [line["cost"]["method"] for line in again.costs] == ["topk", "random", "uniform"]


def test_what_is_timed_is_written_before_the_others_are(model, monkeypatch, tmp_path):
    file, there = tmp_path / "rows.jsonl", []

    def seconds(method, _):
        there.append((method, [line["cost"]["method"] for line in Kept(file, None).costs]))
        return 10.0 if method == "uniform" else 1.0

    Clock(monkeypatch, seconds)
    monkeypatch.setattr(cost, "IMAGES", BATCH)
    assert add_costs(model, plans_of_three(), Kept(file), batches=9, seconds=25.0, warm=0)
    assert there[-1] == ("random", ["uniform", "topk"]) and ("topk", ["uniform"]) in there


def test_who_is_told_to_end_keeps_what_was_timed(model, monkeypatch, tmp_path):
    """SIGTERM is no more sudden than Ctrl-C while something is timed, and as sudden as ever after it."""

    def seconds(*_):
        if len(clock.said) == 7:
            signal.raise_signal(signal.SIGTERM)
        return 1.0

    class Impatient(Kept):
        def add_cost(self, line):
            signal.raise_signal(signal.SIGTERM)  # again, while what was timed is written
            super().add_cost(line)

    clock, before = Clock(monkeypatch, seconds), signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(cost, "IMAGES", BATCH)
    try:
        with pytest.raises(SystemExit) as left:
            add_costs(model, plans_of_three(), Impatient(tmp_path / "rows.jsonl"), batches=9, warm=0)
        assert left.value.code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [line["batches"] for line in Kept(tmp_path / "rows.jsonl").costs] == [2, 2, 2]


def test_a_thread_times_as_well(model, monkeypatch):
    """Only the main thread may say what a signal does."""
    Clock(monkeypatch, lambda *_: 1.0)
    monkeypatch.setattr(cost, "IMAGES", BATCH)
    kept = Kept(None)
    thread = Thread(target=add_costs, args=(model, plans_of_three(), kept), kwargs={"batches": 2, "warm": 0})
    thread.start()
    thread.join()
    assert len(kept.costs) == 3


@pytest.mark.parametrize(
    ("method", "relevance", "told", "scored"),
    [
        ("topk", "predicted", True, 2),
        ("whole", "predicted", True, 2),
        ("peers/tome", "predicted", True, 2),
        ("peers/whole", "predicted", True, 2),
        ("peers/tome", "predicted", False, 0),
        ("peers/cdpruner", "predicted", False, 2),
        ("peers/tome", "pixels", True, 0),
        ("token-bank", "pixels", True, 0),
    ],
)
def test_what_is_told_is_paid_for(model, method, relevance, told, scored):
    """The scorer is run for every batch that needs it, and every leaf is encoded for every question."""
    how = SMALL["how"] | ({} if told else {"told": False})
    budget = None if "whole" in method else 32
    plan = Plan("scenes", method=method, budget=budget, relevance=relevance, **SMALL | {"how": how})
    images = torch.randint(0, 256, (BATCH, 3, 256, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    asked = [Asked(str(i), 1, "Who?", image, Question("Who?", ("me",))) for i, image in enumerate(images)]
    calls, encoded = [], []
    hooks = [
        model.scorer.register_forward_hook(lambda *_: calls.append(1)),
        model.encoder.register_forward_pre_hook(lambda _, given: encoded.append(given[0].shape[:2])),
    ]
    try:
        time_in_turn([Timing(model, plan, batches_of(asked, "cpu"))], batches=2, warm=0)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(calls) == scored
    if method.startswith("peers/"):
        assert encoded == [(BATCH, 256)] * 2


@pytest.mark.parametrize(
    ("words", "timed"),
    [("predicted", True), ("pixels", True), ("0.5 detail + 0.5 saliency", True), ("true", False), ("moved-2", False)],
)
def test_only_relevance_that_is_made_is_timed(words, timed):
    assert can_be_timed(Plan("scenes", relevance=words)) is timed
