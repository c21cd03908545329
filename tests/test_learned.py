"""Allocators with parameters: strata that a query chooses, bins that move. Each trains only if gradients are right."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import homunculus
from homunculus.allocation import allocate_view
from homunculus.allocation.adaptive import GridPredictor, expected_tokens, grid_prior, possible_grids
from homunculus.allocation.bins import LearnedBins, bin_positions
from homunculus.allocation.relaxed import dead_bin_loss
from homunculus.allocation.stratified import Strata
from homunculus.density import fold_sum, normalise, with_floor
from homunculus.errors import AllocatorError, QueryError
from homunculus.structures import View
from tests.strategies import densities


def view_of(density: torch.Tensor, **fields: object) -> View:
    return View(density, (density.shape[2] * 16, density.shape[1] * 16), **fields)


def always(*grids: tuple[int, int]):
    """A predictor that is certain: (columns, rows) for each image."""

    def predictor(query: object, log_aspect: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(log_aspect), 8, 8)
        for image, (columns, rows) in enumerate(grids):
            logits[image, columns - 1, rows - 1] = 9.0
        return logits

    return predictor


# --------------------------------------------------------------------------------------------------------------- strata


@given(st.integers(1, 30), st.integers(1, 30), st.data())
def test_strata_of_each_image(gw, gh, data):
    pairs = [(data.draw(st.integers(1, min(8, gw))), data.draw(st.integers(1, min(8, gh)))) for _ in range(3)]
    x = data.draw(densities((3, gh, gw)))
    columns, rows = torch.tensor(pairs).unbind(1)
    strata = Strata.each((gw, gh), columns, rows, most=(8, 8))
    region, capacity, sums = strata.of_leaves.unflatten(1, (gh, gw)), strata.capacity, strata.sums(x)
    for image, (across, down) in enumerate(pairs):
        expected = [[y * down // gh * 8 + i * across // gw for i in range(gw)] for y in range(gh)]
        assert region[image].tolist() == expected
        assert (sums[image][capacity[image] == 0] == 0).all()
        for own in region[image].unique().tolist():
            inside = region[image] == own
            block = x[image, inside.any(1)][:, inside.any(0)]
            assert capacity[image, own] == block.numel()
            assert sums[image, own] == fold_sum(fold_sum(block, 1), 0).item()  # to the last bit


@given(densities((4, 19, 26)), st.data())
def test_a_batch_of_grids_is_stratified_one_by_one(density, data):
    pairs = [(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))) for _ in range(4)]
    budget = data.draw(st.integers(64, 19 * 26))
    together = homunculus.allocate(density, budget, "adaptive-stratified", predictor=always(*pairs))
    for image, pair in enumerate(pairs):
        alone = homunculus.allocate(density[image], budget, "stratified", strata=pair)
        assert torch.equal(together.boxes[image], alone.boxes[0])
        assert torch.equal(together.scores[image], alone.scores[0])


# ---------------------------------------------------------------------------------------------------- choosing the grid


def chosen(logits: torch.Tensor) -> list[tuple[int, int]]:
    return [(best // 8 + 1, best % 8 + 1) for best in logits.flatten(1).argmax(1).tolist()]


def test_the_prior_follows_the_shape():
    grids = {1: (4, 4), 2: (6, 3), 1 / 2: (3, 6), 4: (8, 2), 1 / 4: (2, 8), 8: (8, 1)}
    assert chosen(grid_prior(torch.tensor([math.log(aspect) for aspect in grids]))) == list(grids.values())
    density = torch.rand(2, 20, 40)
    wide = homunculus.allocate(density, 100, "adaptive-stratified")
    assert torch.equal(wide.boxes, homunculus.allocate(density, 100, "stratified", strata=(6, 3)).boxes)
    squeezed = homunculus.allocate(
        density, 100, "adaptive-stratified", image_size=(320, 320)
    )  # the image's, not the grid's
    assert torch.equal(squeezed.boxes, homunculus.allocate(density, 100, "stratified", image_size=(320, 320)).boxes)


@pytest.mark.parametrize(("grid", "budget"), [((20, 40), 5), ((2, 50), 90), ((50, 1), 7), ((16, 16), 1)])
def test_only_grids_the_budget_can_serve(grid, budget):
    possible = possible_grids(grid, budget)
    for columns in range(1, 9):
        for rows in range(1, 9):
            fits = columns * rows <= budget and columns <= grid[0] and rows <= grid[1]
            assert bool(possible[columns - 1, rows - 1]) == fits
    density = torch.rand(1, grid[1], grid[0])
    allocation = homunculus.allocate(density, budget, "adaptive-stratified", predictor=always((8, 8)))
    assert allocation.boxes[0].unique(dim=0).shape[0] == budget  # whatever the predictor would rather have


def test_what_a_predictor_is_asked():
    seen = []

    def predictor(query: object, log_aspect: torch.Tensor) -> torch.Tensor:
        seen.append((query, log_aspect.tolist()))
        return grid_prior(log_aspect)

    density = torch.rand(2, 16, 32, dtype=torch.float64)
    embeddings = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    for query in (None, [None, None], embeddings, torch.stack(embeddings), ["what?", "where?"], ["what?", None]):
        allocate_view(view_of(density, query=query), 40, "adaptive-stratified", predictor=predictor)
    queries = [query for query, _ in seen]
    assert queries[:2] == [None, None] and queries[4:] == [["what?", "where?"], ["what?", None]]
    assert all(torch.equal(query, torch.stack(embeddings)) for query in queries[2:4])
    assert seen[0][1] == [math.log(2)] * 2
    plain = allocate_view(view_of(density), 40, "adaptive-stratified")
    asked = allocate_view(view_of(density, query=["what?", "where?"]), 40, "adaptive-stratified")
    assert torch.equal(plain.boxes, asked.boxes)  # nobody to read it


def test_untrained_predictor_is_the_prior():
    aspect = torch.randn(5)
    prior = grid_prior(aspect)
    assert torch.equal(GridPredictor(dimension=3)(torch.randn(5, 3), aspect), prior)
    assert torch.equal(GridPredictor(dimension=3)(None, aspect), prior)
    assert torch.equal(GridPredictor()(None, aspect), prior)


def test_refusals():
    view = view_of(torch.ones(2, 16, 16, dtype=torch.float64), query=["what?", "where?"])
    with pytest.raises(QueryError, match="one embedding of 3 numbers for each of 2 images, got texts: embed"):
        allocate_view(view, 40, "adaptive-stratified", predictor=GridPredictor(3))
    view = view_of(torch.ones(2, 16, 16, dtype=torch.float64), query=torch.ones(2, 4))
    with pytest.raises(QueryError, match=r"got \[2, 4\]"):
        allocate_view(view, 40, "adaptive-stratified", predictor=GridPredictor(3))
    with pytest.raises(AllocatorError, match=r"the predictor returned \[2, 64\]"):
        allocate_view(view, 40, "adaptive-stratified", predictor=lambda query, aspect: torch.zeros(2, 64))


# ------------------------------------------------------------------------------------------------- the mixture of grids


@pytest.mark.parametrize("grid", [(16, 16), (19, 11), (5, 30)])
def test_expected_tokens_of_one_grid_against_a_loop(grid):
    gw, gh = grid
    relevance = normalise(torch.rand(1, gh, gw, dtype=torch.float64) ** 3)
    for columns, rows in ((1, 1), (2, 3), (5, 8)):
        logits = torch.full((1, 8, 8), -1e9)
        logits[0, columns - 1, rows - 1] = 0.0
        found = expected_tokens(relevance, logits, 45)[0]
        floored = with_floor(relevance)[0]
        for y in range(gh):
            for x in range(gw):
                own = [
                    floored[j, i].item()
                    for j in range(gh)
                    for i in range(gw)
                    if (j * rows // gh, i * columns // gw) == (y * rows // gh, x * columns // gw)
                ]
                here = floored[y, x].item()
                assert found[y, x].item() == pytest.approx(min(1.0, here / sum(own) + (45 - columns * rows) * here))


@given(densities((2, 13, 10)), st.integers(1, 130))
def test_expected_tokens_never_exceed_leaf_or_budget(density, budget):
    tokens = expected_tokens(normalise(density), torch.randn(2, 8, 8), budget)
    assert (tokens >= 0).all() and (tokens <= 1 + 1e-12).all()
    assert (tokens.sum((1, 2)) <= budget + 1e-9).all()


def test_expected_tokens_gradient():
    logits = torch.randn(1, 8, 8, dtype=torch.float64, requires_grad=True)
    density = (torch.rand(1, 4, 5, dtype=torch.float64) + 0.3).requires_grad_()
    assert gradcheck(lambda logits, density: expected_tokens(normalise(density), logits, 9), (logits, density))


def test_the_grid_learns_coarse_and_dense_targets():
    """Question 0 asks for a cluster and one leaf in every quadrant, question 1 for one leaf in each of 8x8 regions.

    The more strata, the fewer tokens are left for the cluster; the fewer, the more of the 64 leaves go unseen.
    """
    density = torch.zeros(16, 16, dtype=torch.float64)
    density[1::2, 1::2] = 1e-5  # one leaf in every region
    density[:8, :8] = 1 / 64  # the cluster
    others = [4, 12, 12], [12, 4, 12]  # rows and columns of one leaf in each other quadrant
    density[others] = 2e-3
    coarse, dense = torch.zeros(2, 16, 16, dtype=torch.float64)
    coarse[:8, :8], coarse[others], dense[1::2, 1::2] = 1, 3, 1
    targets = torch.stack((coarse, dense))
    targets = targets / targets.sum((1, 2), keepdim=True)
    relevance = normalise(density[None]).expand(2, -1, -1)

    def missed(logits: torch.Tensor) -> torch.Tensor:
        return 1 - (expected_tokens(relevance, logits, 67, floor=1e-3) * targets).sum((1, 2))

    certain = torch.full((64, 64), -1e9).fill_diagonal_(0.0).unflatten(1, (8, 8))
    costs = torch.stack([missed(own.expand(2, -1, -1)) for own in certain], dim=1)
    assert chosen(-costs.unflatten(1, (8, 8))) == [(2, 2), (8, 8)]  # by trying all of them

    predictor, questions = GridPredictor(dimension=2), torch.eye(2)
    assert chosen(predictor(questions, torch.zeros(2))) == [(4, 4), (4, 4)]
    optimiser = torch.optim.Adam(predictor.parameters(), lr=0.03)
    for _ in range(150):
        optimiser.zero_grad()
        missed(predictor(questions, torch.zeros(2))).sum().backward()
        optimiser.step()
    assert chosen(predictor(questions, torch.zeros(2))) == [(2, 2), (8, 8)]
    view = view_of(relevance, query=list(questions))
    allocation = allocate_view(view, 67, "adaptive-stratified", predictor=predictor)
    for image, strata in enumerate((2, 8)):
        fixed = homunculus.allocate(density, 67, "stratified", strata=strata)
        assert torch.equal(allocation.boxes[image], fixed.boxes[0])


# --------------------------------------------------------------------------------------------------------- learned bins

CENTRE = torch.tensor([[128.0, 128.0]], dtype=torch.float64)


def test_bins_move_to_where_the_information_is():
    """Only 5x5 leaves of 16x16 vary from image to image. The loss is the error of the best linear reconstruction."""
    view = view_of(torch.ones(1, 16, 16, dtype=torch.float64))
    square = torch.zeros(16, 16, dtype=torch.bool)
    square[1:6, 10:15] = True
    bins = LearnedBins(24)

    def distance() -> float:
        """From a bin to the informative square, in leaves, on average."""
        positions = bin_positions(CENTRE, bins.centres.detach(), (256, 256))[0]
        outside = (positions - torch.tensor([12.5 * 16, 3.5 * 16])).abs() - 2.5 * 16
        return outside.clamp(min=0).norm(dim=1).mean().item() / 16

    def unexplained(weights: torch.Tensor, noise: float = 0.01) -> torch.Tensor:
        """The share of variance left by linear regression of the leaves on the bins' tokens, which are a bit noisy."""
        weights = weights[:, square.flatten()]
        tokens = weights @ weights.mT + noise * torch.eye(len(weights)).double()
        return 1 - (weights * torch.linalg.solve(tokens, weights)).sum() / 25

    before, lost = distance(), unexplained(bins.soft(view)[0]).item()
    optimiser = torch.optim.Adam(bins.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        unexplained(bins.soft(view)[0]).backward()
        optimiser.step()
    assert before > 4 and distance() < before / 10
    assert lost > 0.9 and unexplained(bins.soft(view)[0]) < 0.2
    centers = allocate_view(view, 24, "pseudo-log-polar", bins=bins).centers[0]
    assert ((centers - torch.tensor([200.0, 56.0])).abs() < 40).all(1).sum() >= 22  # of the 25 leaves there


def test_the_loss_revives_a_dead_bin():
    """Relevance on the left only, one bin far on the right: nothing but the dead-bin loss calls it back."""
    density = torch.zeros(1, 16, 16, dtype=torch.float64)
    density[:, :, :8] = 1
    view = view_of(density, fixations=torch.tensor([[[128.0, 128.0, 1.0]]]).double())
    relevance = view.relevance.flatten(1)
    bins = LearnedBins(9)
    with torch.no_grad():
        bins.centres[:8] = torch.tensor([(x / 8 - 0.45, y / 4 - 0.4) for x in range(2) for y in range(4)])
        bins.centres[8] = torch.tensor([0.45, 0.1])
        bins.log_reach.fill_(math.log(0.08))

    def usage() -> float:
        return (bins.logits(view).softmax(1) * relevance[:, None]).sum(2)[0, 8].item()

    assert usage() < 1e-3 / 9
    optimiser = torch.optim.Adam([bins.centres], lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        dead_bin_loss(bins.logits(view), relevance, share=0.5).sum().backward()
        optimiser.step()
    assert usage() > 0.45 / 9
    assert bin_positions(CENTRE, bins.centres.detach(), (256, 256))[0, 8, 0] < 190  # it began at 243
