"""Relaxed choices: sums that hold, gradients that are right, and the exact choice of `topk-coverage` they stand for."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import homunculus
from homunculus.allocation.relaxed import (
    cosine,
    coverage_penalty,
    dead_bin_loss,
    exponential,
    gumbel_noise,
    hard_topk_mask,
    linear,
    relaxed_topk,
    straight_through,
    threshold,
)
from homunculus.allocation.topk_coverage import TopKCoverage, best_of_groups, raised_by_coverage
from homunculus.errors import AllocatorError, BudgetError
from tests.strategies import densities


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64)


# -------------------------------------------------------------------------------------------------------- relaxed top-k


@given(st.integers(1, 60), st.data(), st.sampled_from([1e-3, 0.1, 1.0, 10.0]), st.sampled_from([1.0, 1e-6, 300.0]))
def test_probabilities_sum_to_k_and_follow_the_scores(n, data, temperature, scale):
    k = data.draw(st.integers(0, n))
    scores = rand(3, n) * scale
    p = relaxed_topk(scores, k, temperature)
    assert (p >= 0).all() and (p <= 1).all()
    assert torch.allclose(p.sum(1), torch.full((3,), float(k)).double(), atol=1e-9)
    order = scores.argsort(1)
    assert (p.gather(1, order).diff(dim=1) >= 0).all()


def test_two_candidates_have_a_closed_form():
    scores = torch.tensor([[0.3, -1.1]], dtype=torch.float64)
    expected = torch.sigmoid((scores - scores.mean()) / 0.4)  # p1 + p2 = 1 puts the threshold in the middle
    assert torch.allclose(relaxed_topk(scores, 1, 0.4), expected, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3.7, 6])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_gradients_reach_scores_and_k(k, temperature):
    scores = torch.randn(2, 7, dtype=torch.float64, requires_grad=True)
    wanted = torch.full((2, 1), float(k), dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda s, w: relaxed_topk(s, w, temperature), (scores, wanted))
    p = relaxed_topk(scores, wanted, temperature)
    (to_k,) = torch.autograd.grad(p.sum(), wanted)
    assert torch.allclose(to_k, torch.ones_like(to_k))  # one more token is one more token, wherever it goes


def test_weighted_threshold_gradient():
    scores = torch.randn(2, 7, dtype=torch.float64, requires_grad=True)
    total = torch.full((2, 1), 5.0, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([3.0, 1.0, 0.0, 3.0, 3.0, 1.0, 3.0], dtype=torch.float64)
    t = threshold(scores, total, 0.5, weights)
    assert torch.allclose((weights * torch.sigmoid((scores - t) / 0.5)).sum(1, keepdim=True), total)
    assert gradcheck(lambda s, w: threshold(s, w, 0.5, weights), (scores, total))


@pytest.mark.parametrize("temperature", [1e-4, 1e-2])
def test_cold_means_hard_and_no_gradient_explodes(temperature):
    scores = rand(2, 6, 8) * 50
    scores.requires_grad_()
    for k in (1, 17, 48):
        p = relaxed_topk(scores.flatten(1), k, temperature).unflatten(1, (6, 8))
        assert torch.equal(p > 0.5, hard_topk_mask(scores, k))
        (gradient,) = torch.autograd.grad((p * rand(2, 6, 8)).sum(), scores)
        assert gradient.isfinite().all() and gradient.abs().max() <= 1 / temperature


def test_float32_sums_too():
    p = relaxed_topk(torch.randn(4, 4096), 273, 0.1)
    assert p.dtype == torch.float32 and torch.allclose(p.sum(1), torch.full((4,), 273.0), rtol=1e-5)


def test_gumbel_noise_samples_in_proportion():
    log_weights = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log().expand(8_000, 3)
    generator = torch.Generator().manual_seed(0)
    first = relaxed_topk(log_weights, 1, 1e-3, noise=1.0, generator=generator).argmax(1)
    shares = torch.bincount(first, minlength=3) / 8_000
    assert torch.allclose(shares, torch.tensor([0.125, 0.25, 0.625]), atol=0.02)
    assert gumbel_noise(torch.zeros(100_000).double(), generator).mean() == pytest.approx(0.5772, abs=0.02)


def test_what_cannot_be_chosen():
    with pytest.raises(BudgetError, match="cannot choose 5 of 4"):
        relaxed_topk(torch.zeros(1, 4), 5, 1.0)
    with pytest.raises(AllocatorError, match="temperature must be above 0"):
        relaxed_topk(torch.zeros(1, 4), 2, 0.0)


@given(densities((2, 7, 9)), st.integers(1, 63))
def test_hard_mask_is_topk(density, k):
    allocation = homunculus.allocate(density, k, "topk")
    column, row = (allocation.centers[..., i].long() // 16 for i in (0, 1))
    expected = torch.zeros(2, 63, dtype=torch.bool).scatter(1, row * 9 + column, True)
    assert torch.equal(hard_topk_mask(density, k).flatten(1), expected)
    each = hard_topk_mask(density, torch.tensor([[k], [1]]))
    assert torch.equal(each[0], hard_topk_mask(density, k)[0]) and each[1].sum() == 1


def test_straight_through_is_hard_forwards_and_soft_backwards():
    scores = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    p = relaxed_topk(scores.flatten(1), 5, 0.5).unflatten(1, (4, 4))
    through = straight_through(p, hard_topk_mask(scores, 5))
    assert torch.equal(through.detach(), hard_topk_mask(scores, 5).double())
    reward = rand(1, 4, 4)
    soft, hard = (torch.autograd.grad((x * reward).sum(), scores, retain_graph=True)[0] for x in (p, through))
    assert torch.equal(soft, hard) and soft.abs().max() > 0


# ----------------------------------------------------------------------------------------------------- coverage penalty


def penalty_by_hand(p: torch.Tensor, cells: int) -> float:
    gh, gw = p.shape
    columns, rows = min(cells, gw), min(cells, gh)
    empty = [[1.0] * columns for _ in range(rows)]
    for y in range(gh):
        for x in range(gw):
            empty[y * rows // gh][x * columns // gw] *= 1 - p[y, x].item()
    return sum(map(sum, empty)) / (columns * rows)


@pytest.mark.parametrize("grid", [(16, 16), (17, 23), (5, 60), (3, 2), (1, 1)])
def test_penalty_is_the_share_of_empty_regions(grid):
    p = rand(2, grid[1], grid[0]) ** 3
    p[1] = (p[1] > 0.5).double()
    found = coverage_penalty(p)
    assert found.tolist() == pytest.approx([penalty_by_hand(own, 8) for own in p], abs=1e-11)


def test_penalty_gradient():
    p = (rand(1, 6, 5) * 0.9).requires_grad_()
    assert gradcheck(lambda p: coverage_penalty(p, cells=3), p)


def test_penalty_gradient_stays_finite_at_certainty():
    p = torch.zeros(1, 8, 8, dtype=torch.float64)
    p[0, :4], p[0, 0] = 1e-30, 1.0
    p.requires_grad_()
    penalty = coverage_penalty(p, cells=2)
    assert penalty.item() == pytest.approx(0.5)  # the lower half is empty
    (gradient,) = torch.autograd.grad(penalty.sum(), p)
    assert gradient.isfinite().all() and (gradient[0, 4:] == -0.25).all() and (gradient[0, :4].abs() < 1e-9).all()


# ------------------------------------------------------------------------------------------------------------ dead bins


def logits_of(bins: torch.Tensor, leaves: torch.Tensor) -> torch.Tensor:
    return -((bins[:, None] - leaves) ** 2)[None] * 8


def test_a_dead_bin_is_noticed_where_the_naive_loss_is_blind():
    leaves = torch.linspace(0, 1, 11, dtype=torch.float64)
    relevance = torch.softmax(-6 * leaves, 0)[None]
    bins = torch.tensor([0.1, 0.3, 4.0], dtype=torch.float64, requires_grad=True)
    naive = logits_of(bins, leaves).softmax(2).sum(2)  # every bin "uses" exactly 1
    assert torch.allclose(naive, torch.ones_like(naive))
    assert torch.autograd.grad(naive.sum(), bins)[0].abs().max() < 1e-12

    loss = dead_bin_loss(logits_of(bins, leaves), relevance).sum()
    (gradient,) = torch.autograd.grad(loss, bins)
    assert loss > 1 and gradient[2] > 0  # descending moves the dead bin left, to where the relevance is
    moved = torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64)
    assert dead_bin_loss(logits_of(moved, leaves), relevance).item() == 0


def test_dead_bin_loss_is_a_shortfall_of_usage():
    logits, relevance = torch.randn(2, 5, 9, dtype=torch.float64) * 4, torch.rand(2, 9).double()
    relevance = relevance / relevance.sum(1, keepdim=True)
    usage = (logits.softmax(1) * relevance[:, None]).sum(2)
    assert torch.allclose(usage.sum(1), torch.ones(2).double())
    expected = (torch.log(0.9 / 5 / usage)).clamp(min=0).mean(1)
    assert torch.allclose(dead_bin_loss(logits, relevance, share=0.9), expected)
    assert gradcheck(lambda x: dead_bin_loss(x, relevance, share=0.9), logits.requires_grad_())


def test_however_dead_there_is_a_gradient():
    bins = torch.tensor([0.5, 100.0], dtype=torch.float64, requires_grad=True)
    leaves = torch.linspace(0, 1, 5, dtype=torch.float64)
    relevance = torch.tensor([[1.0, 0, 0, 0, 0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(dead_bin_loss(logits_of(bins, leaves), relevance).sum(), bins)
    assert gradient.isfinite().all() and gradient[1] > 1


# ------------------------------------------------------------------------------------------------------------ schedules


@pytest.mark.parametrize("schedule", [linear, exponential, cosine])
def test_schedules_fall_from_start_to_end(schedule):
    values = [schedule(step, 40, 2.0, 0.05) for step in range(41)]
    assert values[0] == pytest.approx(2.0) and values[-1] == pytest.approx(0.05)
    assert all(a > b for a, b in pairwise(values))
    assert schedule(99, 40, 2.0, 0.05) == values[-1] and schedule(-3, 40, 2.0, 0.05) == values[0]
    middle = {linear: 1.025, exponential: 0.1**0.5, cosine: 1.025}[schedule]
    assert values[20] == pytest.approx(middle)


# -------------------------------------------------------------------------------------------------------- topk-coverage


def objective(leaves: tuple[int, ...], relevance: list[float], region: list[int], weight: float) -> float:
    return sum(relevance[i] for i in leaves) + weight * len({region[i] for i in leaves}) / len(set(region))


@pytest.mark.parametrize("kind", ["random", "integers", "sparse", "zero"])
@pytest.mark.parametrize(("grid", "cells"), [((4, 3), 2), ((5, 3), 3), ((2, 6), 8), ((13, 1), 4)])
@pytest.mark.parametrize("weight", [0.1, 0.7])
def test_the_choice_is_the_best_of_all(kind, grid, cells, weight):
    gw, gh = grid
    density = {"random": rand(gh, gw), "integers": (rand(gh, gw) * 3).floor(), "zero": torch.zeros(gh, gw)}
    density["sparse"] = density["random"] * (density["random"] > 0.8)
    columns, rows = min(cells, gw), min(cells, gh)
    region = [y * rows // gh * columns + x * columns // gw for y in range(gh) for x in range(gw)]
    for budget in (1, 2, 4, 6):
        allocation = homunculus.allocate(density[kind], budget, "topk-coverage", weight=weight, cells=cells)
        relevance = homunculus.density.normalise(density[kind][None].double())[0].flatten().tolist()
        chosen = tuple(int(y) // 16 * gw + int(x) // 16 for x, y in allocation.centers[0].tolist())
        best = max(objective(leaves, relevance, region, weight) for leaves in combinations(range(gw * gh), budget))
        assert objective(chosen, relevance, region, weight) == pytest.approx(best, abs=1e-12)


@given(densities((2, 17, 23)), st.integers(1, 17 * 23))
def test_without_weight_it_is_topk(density, budget):
    plain = homunculus.allocate(density, budget, "topk")
    assert torch.equal(homunculus.allocate(density, budget, "topk-coverage", weight=0.0).boxes, plain.boxes)


def test_weight_buys_regions():
    density = torch.zeros(64, 64)
    density[:16, :16] = torch.rand(16, 16) + 0.5
    occupied = []
    for weight in (0.0, 0.3, 1.0):
        centers = homunculus.allocate(density, 200, "topk-coverage", weight=weight).centers[0]
        occupied.append(len({(int(x) // 128, int(y) // 128) for x, y in centers.tolist()}))
    assert occupied[0] == 4 < occupied[1] <= occupied[2] == 64


def test_refusals_of_topk_coverage():
    for options in ({"weight": -1.0}, {"cells": 0}):
        with pytest.raises(AllocatorError, match="need weight of at least 0 and a whole number of cells"):
            homunculus.allocate(torch.ones(8, 8), 10, "topk-coverage", **options)


@given(densities((2, 5, 6)), st.integers(0, 2**31))
def test_best_of_groups_against_a_loop(density, seed):
    group = torch.randint(0, 7, (2, 30), generator=torch.Generator().manual_seed(seed))
    best = best_of_groups(density, group, 7).flatten(1)
    for image in range(2):
        for own in group[image].unique().tolist():
            inside = group[image] == own
            chosen = best[image] & inside
            assert chosen.sum() == 1
            assert density[image].flatten()[chosen] == density[image].flatten()[inside].max()


def test_evaluation_mode_is_the_allocator():
    scores = torch.randn(2, 12, 20)
    chosen, penalty = TopKCoverage(30).eval()(scores)
    density = scores.double().flatten(1).softmax(1).unflatten(1, (12, 20))
    allocation = homunculus.allocate(density, 30, "topk-coverage")
    leaves = (allocation.centers[..., 1] // 16 * 20 + allocation.centers[..., 0] // 16).long()
    assert torch.equal(chosen.flatten(1).bool(), torch.zeros(2, 240).bool().scatter(1, leaves, True))
    assert torch.allclose(penalty, 0.1 * coverage_penalty(chosen))


def test_training_with_the_penalty_occupies_more_regions():
    """A blob of value and nothing else: without the penalty tokens cluster, with it they do not."""
    x = torch.arange(32.0) - 10
    value = torch.exp(-(x**2 + x[:, None] ** 2) / 32)[None]
    value = value / value.sum()
    regions, reached = {}, {}
    for weight in (0.0, 0.1):
        model = TopKCoverage(budget=256, weight=weight, temperature=0.5)
        scores = (torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(0)) * 0.1).requires_grad_()
        optimiser = torch.optim.Adam([scores], lr=0.2)
        for step in range(80):
            model.temperature = exponential(step, 80, 1.0, 0.2)
            p, penalty = model(scores)
            optimiser.zero_grad()
            (penalty.sum() - (p * value).sum()).backward()
            optimiser.step()
        chosen = hard_topk_mask(scores.detach(), 256)
        regions[weight] = 64 * (1 - coverage_penalty(chosen.double()).item())
        reached[weight] = (chosen * value).sum().item() + 0.1 * regions[weight] / 64
    best = hard_topk_mask(raised_by_coverage(value.double()), 256)
    optimum = (best * value).sum().item() + 0.1 * (1 - coverage_penalty(best.double()).item())
    assert regions[0.0] < 40 and regions[0.1] > regions[0.0] + 15
    assert reached[0.0] < reached[0.1] <= optimum + 1e-6 and reached[0.1] > 0.98 * optimum
