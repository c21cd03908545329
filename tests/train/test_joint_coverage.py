"""Paying for regions left empty in the joint stages: what it counts, what it teaches, and that without it nothing
changes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.train.joint import empty_share
from homunculus.train.pool import Pool
from tests.model.tiny import NeverWaits
from tests.train.test_joint import SHOWN, model, stage


@pytest.fixture(scope="module")
def scenes() -> Pool:
    """Two images that stay, of four leaves to a region: with one to each, as many as there are tokens are seen."""
    found = Pool({"scenes": 1.0}, size=(256, 256), capacity=2, renewed=0)
    found.fill()
    return found


def regions_seen(scores: torch.Tensor, budget: int) -> float:
    """The share of 8 x 8 regions with one of the best leaves, counted one by one."""
    (gh, gw), found = scores.shape[1:], []
    for own in scores:
        best = own.flatten().argsort(descending=True)[:budget].tolist()
        found.append(len({(i // gw * 8 // gh, i % gw * 8 // gw) for i in best}) / 64)
    return sum(found) / len(found)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sampled_from([16, 64, 128]))
def test_a_cold_top_k_leaves_empty_what_counting_finds(seed, budget):
    scores = 4 * torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(seed))
    assert 1 - empty_share(scores, budget, 1e-4).item() == pytest.approx(regions_seen(scores, budget), abs=2e-3)


def test_descending_it_spreads_the_best_leaves():
    """From one corner over the image, by the hard count."""
    across = torch.arange(16.0)
    scores = (-(across[:, None] + across) / 4).expand(2, -1, -1).clone().requires_grad_()
    before = regions_seen(scores.detach(), 64)
    for _ in range(100):
        (gradient,) = torch.autograd.grad(empty_share(scores, 64, 1.0), scores)
        scores = (scores - 300 * gradient).detach().requires_grad_()
    assert regions_seen(scores.detach(), 64) > before + 0.2


def test_more_tokens_than_leaves_leave_nothing_empty():
    assert empty_share(torch.randn(2, 8, 8), 100, 0.5).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("frozen", ["reader", "nothing"])
def test_without_weight_coverage_is_not_there(scenes, frozen):
    """The loss and every gradient are those of a stage that has never heard of it."""
    found = []
    for options in ({}, {"coverage": 0.0}):
        vlm = model()
        loss, about = stage(vlm, scenes, frozen=frozen, **options)(3)
        loss.backward()
        found.append((loss, {name: p.grad for name, p in vlm.named_parameters() if p.grad is not None}))
        assert "empty" not in about
    assert torch.equal(found[0][0], found[1][0]) and found[0][1].keys() == found[1][1].keys()
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())


def test_coverage_is_added_by_its_weight_and_reaches_the_scorer_alone(scenes):
    losses, gradients = [], []
    for weight in (0.0, 0.1, 1.0):
        vlm = model()
        loss, about = stage(vlm, scenes, replace(SHOWN, budgets={16: 1.0}), coverage=weight, supervised=0.0)(5)
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: p.grad for name, p in vlm.named_parameters() if p.grad is not None})
    assert about["empty"] > 0.7  # sixteen leaves, 64 regions
    for weight, loss, own in zip((0.1, 1.0), losses[1:], gradients[1:], strict=True):
        assert loss == pytest.approx(losses[0] + weight * about["empty"].item(), rel=1e-5)
        for name, value in own.items():
            assert torch.equal(value, gradients[0][name]) != name.startswith("scorer") or value.dim() < 2, name
    ratio = [
        (gradients[2][name] - gradients[0][name]).norm() / (gradients[1][name] - gradients[0][name]).norm()
        for name, value in gradients[0].items()
        if name.startswith("scorer") and value.dim() > 1
    ]
    assert len(ratio) > 10 and torch.stack(ratio).median().item() == pytest.approx(10, rel=0.05)


def test_coverage_waits_for_no_device():
    scores = torch.zeros(2, 16, 16, device="meta", requires_grad=True)
    with NeverWaits():
        empty_share(scores, 64, 0.5).backward()
    assert scores.grad is not None
