"""Suites: what is asked together, of whom, and that every way of it can be asked."""

import pytest
import torch

from homunculus.allocation import DEFAULT
from homunculus.eval.plans import method_names, own_budget
from homunculus.eval.rows import Kept
from homunculus.eval.running import run
from homunculus.eval.suites import ARMS, BUDGETS, LARGE, SUITES, Scope, plans_of, until_sure
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM, look
from homunculus.peers.reading import read_with


@pytest.mark.parametrize("name", SUITES)
def test_suites_ask_every_family_alike(name):
    plans = plans_of([name], Scope())
    families = {
        family: {plan.mark("") for plan in plans if plan.family == family} for family in ("scenes", "scene-text")
    }
    assert len(families["scenes"]) == len(families["scene-text"]) > 1
    some = plans_of([name], Scope(methods=("topk",)))
    assert {plan.method for plan in some} <= {"topk", "foveated-pyramid", "whole"}


def test_suites_repeat_nothing_and_ask_the_most():
    everything = plans_of(list(SUITES)[:-1], Scope())
    assert len({plan.mark("") for plan in everything}) == len(everything)
    most = {}
    for name in list(SUITES)[:-1]:
        for plan in SUITES[name](Scope()):
            most[plan.mark("")] = max(plan.questions, most.get(plan.mark(""), 0))
    assert {plan.mark(""): plan.questions for plan in everything} == most
    default = [
        plan.relevance for plan in plans_of(["forgiving"], Scope(families=("scenes",))) if plan.method == DEFAULT
    ]
    assert sorted(default) == sorted(
        ["true", *(f"hit-{rate}" for rate in (90, 70, 50, 30)), *(f"moved-{leaves}" for leaves in (1, 2, 4, 8))]
    )


def test_the_main_table_has_every_method_at_the_budget():
    plans = plans_of(["main"], Scope())
    every = set(method_names()) - {"peers/whole"}  # which is whole
    assert {plan.method for plan in plans} == every and {plan.budget for plan in plans} == {273, None}
    assert all(plan.questions == 2000 for plan in plans) and len(plans) == 3 * len(every)
    assert {plan.method for plan in plans if plan.budget is None} == {
        "whole",
        "peers/fastv",
        "peers/pyramiddrop",
        "peers/sparsevlm",
        "peers/dyrate",
        "peers/variable",
        "peers/combined",
    }


@pytest.mark.parametrize(("method", "options"), ARMS, ids=str)
def test_an_arm_of_the_ablations_has_options_that_its_method_takes(method, options):
    images = torch.rand(1, 3, 1024, 1024, generator=torch.Generator().manual_seed(0))
    density = torch.rand(1, 64, 64, generator=torch.Generator().manual_seed(1)) ** 8
    if method.startswith("peers/"):
        budget = own_budget(method, 20)
        read = read_with(CompactVLM(tiny()), method[6:], images[..., :96, :96], ["Who?"], budget, longest=2, **options)
        assert read.written.letters.shape == (1, 2)
    else:
        assert look(images, density, 273, method, **options).allocation.budget == 273


def test_large_images_and_those_unlike_training_are_what_they_say():
    assert {plan.size for plan in plans_of(["large"], Scope())} == {LARGE}
    unlike = plans_of(["unlike"], Scope())
    assert {plan.split for plan in unlike} == {"test-ood"} and DEFAULT in {plan.method for plan in unlike}


@pytest.mark.parametrize("method", [DEFAULT, "log-polar-rings"])
def test_every_way_of_looking_again_can_be_asked(method):
    """Also by a method that sees one gaze at a time, whose looks no tree can hold."""
    torch.manual_seed(0)
    model, kept = CompactVLM(tiny()).eval(), Kept(None)
    scope = Scope(families=("scenes",), few=4, budget=40, size=(256, 256), longest=2, methods=(method,))
    plans = plans_of(["looks"], scope)
    assert {str(how) for how in until_sure(method)} <= {
        str({name: value for name, value in plan.how.items() if name != "longest"}) for plan in plans
    }
    assert run(model, plans, kept)
    assert [len(rows) for rows in kept.rows.values()] == [4] * len(plans)


def test_turns_can_be_asked_of_every_method():
    """Of those whose cells cannot be kept for another question, without that."""
    for method, ways in (("topk", 3), ("peers/tome", 2), ("token-bank", 2), ("frequency", 2), ("whole", 3)):
        assert len(plans_of(["turns"], Scope(methods=(method,), families=("scenes",)))) == ways


def test_a_method_in_layers_is_swept_by_what_its_layers_are_shown():
    """A mean below what the first layer is shown cannot be kept: every budget is the fewest tokens of a layer."""
    plans = plans_of(["budgets"], Scope(methods=("peers/fastv",), families=("scenes",)))
    swept = [(plan.budget, plan.how["shown"]) for plan in plans if plan.method == "peers/fastv"]
    assert sorted(swept) == sorted((None, tokens) for tokens in {*BUDGETS, 273})
    torch.manual_seed(0)
    model, kept = CompactVLM(tiny()).eval(), Kept(None)
    few = Scope(methods=("peers/fastv",), families=("scenes",), questions=2, budget=40, size=(256, 256), longest=2)
    assert run(model, [plan for plan in plans_of(["budgets"], few) if plan.how.get("shown", 0) <= 64], kept)
    tokens = {tuple(row["tokens"] for row in rows.values()) for rows in kept.rows.values()}
    assert len(tokens) == len(kept.rows)
