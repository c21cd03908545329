"""Reducers as an evaluation asks them: every leaf encoded once for all of them, told what is relevant or not."""

from dataclasses import replace

import pytest
import torch

from homunculus.errors import DataError
from homunculus.eval import answers
from homunculus.eval.answers import Chunk, answered
from homunculus.eval.plans import Plan
from homunculus.eval.running import attention_for, together
from homunculus.peers.reading import read_with
from tests.experiment.conftest import SMALL


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("method", ["peers/tome", "peers/cdpruner", "peers/fastv", "peers/dyrate", "peers/whole"])
def test_peers_share_an_encoding_and_say_the_same(model, asked, method, told):
    how = SMALL["how"] | {"told": told}
    budget = 40 if method[6:] in ("tome", "cdpruner") else None
    plan = Plan("scenes", method=method, budget=budget, **SMALL | {"how": how})
    chunk = Chunk(model, asked, plan.size)
    rows = answered(model, plan, chunk, [1, 5, 6, 11])
    for row, place in zip(rows, [1, 5, 6, 11], strict=True):
        one, density = asked[place], chunk.density(plan)[place][None]  # ties of merging would go by its last bits
        how = {"longest": 4, "told": told, "relevance": density}
        read = read_with(model, plan.peer, one.image[None], [one.question.text], plan.budget, **how)
        assert row["key"] == one.key and row["said"] == model.tokenizer.decode(read.written.letters[0].tolist())
        logp = read.written.probabilities.double().log().sum().item()
        assert row["logp"] == pytest.approx(logp, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_drawn_does_not_depend_on_who_is_beside(model, asked, dtype):
    plan = Plan("scenes", method="peers/random", budget=40, dtype=dtype, **SMALL)
    beside = answered(model, plan, Chunk(model, asked, plan.size), range(len(asked)))
    for place in (1, 6, 11):
        (alone,) = answered(model, plan, Chunk(model, asked[place : place + 1], plan.size), [0])
        assert alone["said"] == beside[place]["said"]
        assert alone["logp"] == pytest.approx(beside[place]["logp"], rel=1e-3 if dtype == "float32" else 2e-2)


def test_few_encodings_are_held(model, asked):
    chunk = Chunk(model, asked, (256, 256))
    plans = [Plan("scenes", method="peers/tome", budget=40, relevance=own, **SMALL) for own in ("true", "moved-4")]
    plans.append(replace(plans[0], how=SMALL["how"] | {"told": False}))
    first = [chunk.seen([3, 9], plan) for plan in plans]
    assert len(chunk._seen) == answers.HELD == 2
    again = [chunk.seen([3, 9], plan) for plan in plans]
    for (one, which), (other, same) in zip(first, again, strict=True):
        assert which == same and torch.equal(one.features, other.features)
    assert [which for _, which in first] == [None, None, [0, 1]]
    assert not torch.equal(first[0][0].features, first[1][0].features)


def test_that_a_peer_is_told_goes_without_saying():
    plain, said, silent = (
        Plan("scenes", method="peers/tome", how=own) for own in ({}, {"told": True}, {"told": False})
    )
    assert plain.mark("") == said.mark("") != silent.mark("") and (said.told, silent.told) == (True, False)
    for wrong, problem in (({"method": "topk"}, "topk does not reduce leaves"), ({}, "True or False: got 0")):
        with pytest.raises(DataError, match=problem):
            Plan("scenes", **{"method": "peers/tome", "how": {"told": 0}} | wrong)
    with pytest.raises(DataError, match="peers/variable does not reduce leaves"):
        Plan("scenes", method="peers/variable", budget=None, how={"told": False})


def test_what_reducers_begin_with_is_full_resolution(model, asked):
    """Told what is relevant, every leaf by way of the peers is every leaf by way of the allocators."""
    plans = [Plan("scenes", method=method, budget=None, **SMALL) for method in ("whole", "peers/whole")]
    chunk = Chunk(model, asked, (256, 256))
    cells, leaves = (answered(model, plan, chunk, range(6)) for plan in plans)
    for one, other in zip(cells, leaves, strict=True):
        assert one["said"] == other["said"] and one["logp"] == pytest.approx(other["logp"], rel=1e-3)
        assert (one["tokens"], one["hit"]) == (other["tokens"], other["hit"])
    silent = answered(model, replace(plans[1], how=plans[1].how | {"told": False}), chunk, range(6))
    assert any(one["logp"] != pytest.approx(other["logp"], rel=1e-3) for one, other in zip(leaves, silent, strict=True))


@pytest.mark.parametrize(("method", "asks"), [("divprune", ()), ("visionzip", ("late",)), ("hired", ("late", "early"))])
def test_how_much_leaves_are_looked_at_is_found_out_only_for_those_who_ask(model, asked, method, asks):
    plan = Plan("scenes", method=f"peers/{method}", budget=24, **SMALL)
    wanted = attention_for(plan)
    assert wanted == asks
    chunk = Chunk(model, asked, (256, 256), attention=wanted)
    rows = answered(model, plan, chunk, range(6))
    (seen,) = chunk._seen.values()
    assert [own.shape[1] for own in (seen.attention, seen.early)] == [256 * (own in asks) for own in ("late", "early")]
    assert [row["said"] for row in rows] == [
        row["said"] for row in answered(model, plan, Chunk(model, asked, (256, 256)), range(6))
    ]


def test_reducers_are_asked_together_by_what_they_hold():
    """What is kept of features that are there already, unless all of them are read."""
    device = torch.device("cpu")
    many = {name: together(Plan("scenes", method=f"peers/{name}", budget=None), device) for name in ("whole", "dyrate")}
    assert many == {"whole": 4, "dyrate": 4}
    assert together(Plan("scenes", method="peers/tome", budget=273), device) == 16
    assert together(Plan("scenes", method="peers/tome", budget=4096), device) == 4
    assert together(Plan("scenes", method="peers/combined", budget=None), device) == 16
