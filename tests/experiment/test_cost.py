"""What an answer costs: what is timed, and that it is known afterwards."""

import pytest
import torch

from homunculus.data import Question
from homunculus.errors import DataError
from homunculus.eval import cost
from homunculus.eval.cost import BATCH, add_costs, can_be_timed, measure
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
    assert add_costs(model, [*plans, told], kept, batches=2, warm=0, tick=lambda: ticks.append(1))
    assert len(ticks) == 8 and [line["cost"]["method"] for line in kept.costs] == list(METHODS)
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


def test_percentiles_and_rates_by_hand(model, monkeypatch):
    """Batches that take 1, 2, ... seconds of a clock that only they move."""
    now = [0.0]

    def said_once(*_):
        now[0] += len(taken) + 1
        taken.append(1)
        return 0.25

    taken: list[int] = []
    monkeypatch.setattr(cost, "said_once", said_once)
    monkeypatch.setattr(cost.time, "perf_counter", lambda: now[0])
    plan = Plan("scenes", **SMALL)
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    asked = [Asked(str(i), 1, "Who?", image, Question("Who?", ("me",))) for i in range(BATCH)]
    line = measure(model, plan, asked, batches=5, seconds=1e9, warm=0)
    assert (line["p50"], line["p99"], line["batches"], line["waste"]) == (3.0, None, 5, 0.25)
    assert line["per_second"] == pytest.approx(8 * 5 / 15, rel=1e-5)
    taken.clear()
    assert measure(model, plan, asked, batches=50, seconds=2.5, warm=0)["batches"] == 2
    taken.clear()
    assert 99 < measure(model, plan, asked, batches=100, seconds=1e9, warm=0)["p99"] <= 100.5
    with pytest.raises(DataError, match="at least 8"):
        measure(model, plan, asked[:3])


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
        measure(model, plan, asked, batches=2, warm=0)
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
