"""One image asked many times, and its tokens coarse to fine."""

import itertools

import pytest
import torch

import homunculus
from homunculus.allocation.hierarchical import HierarchicalAllocator, foveated_density
from homunculus.cache import TokenCache
from homunculus.errors import AllocatorError, BudgetError, FixationError, ImageError
from homunculus.fixation import Observer, progressive
from homunculus.viz.example import QUESTION, example_page
from tests.test_foveate import FIELDS, picture

# ----------------------------------------------------------------------------------------------------- one image, often


def scorer(images, queries):
    """Knows where each question's first letter is."""
    maps = torch.ones(len(queries), 6, 6)
    for i, query in enumerate(queries):
        maps[i, ord((query or "?")[0].lower()) % 6, 2] = 20.0
    return maps


@pytest.mark.parametrize("relevance", [None, "pixels", "detail", [("detail", 0.5), (scorer, 0.5)], scorer])
def test_an_observer_sees_what_foveate_sees(relevance):
    image = picture(300, 200)
    observer, cached = (Observer(image, 100, relevance=relevance, cache=cache) for cache in (None, TokenCache()))
    for query in ("What is at the top?", "Who signed at the bottom right?", "How many?", None):
        expected = homunculus.foveate(image, query, 100, relevance=relevance)
        for seen in (observer.look(query), cached.look(query)):
            assert torch.equal(seen.patches, expected.patches)
            assert all(torch.equal(getattr(seen.allocation, f), getattr(expected.allocation, f)) for f in FIELDS)
    explicit = homunculus.foveate(image, "top right", 100, relevance=relevance, fixation=(20, 30))
    assert torch.equal(observer.look("top right", fixation=(20, 30)).patches, explicit.patches)
    assert cached.cache.stats.hits > 0


def test_an_observer_works_once(monkeypatch):
    calls = []
    original = homunculus.fixation.relevance_of
    monkeypatch.setattr(homunculus.fixation, "relevance_of", lambda *a, **k: calls.append(a) or original(*a, **k))
    observer = Observer(picture(300, 200), 100, relevance="pixels")
    assert repr(observer) == "Observer(1 images of 300x200, 100 tokens)"
    for query in ("top", "left", None):
        observer.look(query)
    assert len(calls) == 1
    asking = Observer(picture(300, 200), 100, relevance={scorer: 1.0})
    for query in ("top", "left", "top"):
        asking.look(query)
    assert [a[2] for a in calls[1:]] == [["top"], ["left"], ["top"]]


def test_an_observer_of_a_batch():
    images = [picture(300, 200, seed) for seed in range(3)]
    observer = Observer(images, 64, cache=TokenCache())
    queries = ["top left", None, "footer"]
    assert torch.equal(observer.look(queries).patches, homunculus.foveate(images, queries, 64).patches)
    with pytest.raises(ImageError, match="one size"):
        Observer([picture(30, 20), picture(20, 30)])
    with pytest.raises(ImageError, match="less extreme shape"):
        Observer(images, grid=(10**4, 10**4))


def test_follow_ups_and_fixations_reuse_most_cells():
    """On the example page less than 60 % of the cells are sampled, of three fixations and of four questions."""
    page = example_page()
    cache = TokenCache()
    for glance in Observer(page, relevance="pixels", cache=cache).fixate(QUESTION, 3):
        assert glance.tokens.patches.shape == (1, 273, 3, 16, 16)
    assert cache.stats.hits + cache.stats.misses == 3 * 273 and cache.stats.hit_rate > 0.4
    cache = TokenCache()
    observer = Observer(page, relevance="pixels", cache=cache)
    follow_ups = ("What is the total?", "Who is it billed to, at the top left?", "What is in the footer?")
    for question in (QUESTION, *follow_ups):
        observer.look(question)
    assert cache.stats.hits + cache.stats.misses == 4 * 273 and cache.stats.hit_rate > 0.4


# ---------------------------------------------------------------------------------------------------- coarse to fine


def refines(fine: torch.Tensor, coarse: torch.Tensor) -> bool:
    inside = (fine[:, None, :2] >= coarse[None, :, :2]) & (fine[:, None, 2:] <= coarse[None, :, 2:])
    return bool(inside.all(-1).any(1).all())


@pytest.mark.parametrize("size", [(300, 200), (1024, 1024), (30, 900), (1, 1)])
@pytest.mark.parametrize("allocator", ["foveated-pyramid", "detail-tree"])
def test_each_set_refines_the_one_before(size, allocator):
    image, cache = picture(*size), TokenCache()
    budgets = (16, 64, 150, 273)
    sets = list(progressive(image, "What is at the top left?", budgets, allocator=allocator, cache=cache))
    assert [tokens.patches.shape for tokens in sets] == [(1, n, 3, 16, 16) for n in budgets]
    for coarse, fine in itertools.pairwise(sets):
        cells = [t.allocation.boxes[0][~t.allocation.is_context[0]] for t in (fine, coarse)]
        assert refines(*cells)
        assert homunculus.coverage(fine.allocation).union.item() == pytest.approx(1)
    for tokens in sets:
        assert torch.equal(tokens.patches, homunculus.sample(image[None], tokens.allocation))
    assert cache.stats.hits > 0


def test_progressive_sets_are_nested_budgets():
    image = picture(512, 384)
    sets = list(progressive(image, "top left", (32, 100), e0=2.0))
    gw, gh = sets[0].allocation.grids[0]
    observer = Observer(image, 100, grid=(gw, gh))
    tree = HierarchicalAllocator(lambda view: foveated_density(view, e0=2.0))
    for tokens, nested in zip(sets, tree.nested(observer.view("top left"), (32, 100)), strict=True):
        assert torch.equal(tokens.allocation.boxes, nested.boxes)


def test_the_next_set_is_made_when_it_is_asked_for(monkeypatch):
    made = []
    original = Observer.allocate
    monkeypatch.setattr(Observer, "allocate", lambda *a, **k: made.append(a[2]) or original(*a, **k))
    sets = progressive(picture(256, 256), budgets=(32, 64, 128))
    assert made == []
    next(sets)
    assert made == [32]
    next(sets)
    assert made == [32, 64]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"budgets": ()}, BudgetError, "must grow"),
        ({"budgets": (64, 64)}, BudgetError, "must grow"),
        ({"budgets": (0, 64)}, BudgetError, "positive"),
        ({"budgets": (8, 64)}, BudgetError, "16"),
        ({"allocator": "topk"}, AllocatorError, "topk has no nested budgets"),
    ],
)
def test_what_cannot_be_loaded_progressively(arguments, error, message):
    with pytest.raises(error, match=message):
        progressive(picture(64, 64), **arguments)


@pytest.mark.parametrize("name", ["log-polar-rings", "v1", "vortex", "log-polar-bins", "pseudo-log-polar"])
def test_a_single_gaze_looks_at_its_newest_fixation(name):
    glances = list(homunculus.fixate(picture(300, 200), n=3, budget=32, allocator=name, enough=None))
    for k, glance in enumerate(glances):
        assert glance.fixations.shape == (1, k + 1, 3)
        assert torch.equal(glance.allocation.gaze[0], glance.fixations[0, k, :2].float())
    with pytest.raises(FixationError, match=f"{name} has a single gaze and no tree over several: use combine='concat'"):
        homunculus.saccades(picture(300, 200), n=3, budget=32, allocator=name)
    tokens = homunculus.saccades(picture(300, 200), n=3, budget=32, allocator=name, combine="concat")
    assert tokens.allocation.budget == 96


def test_a_batch_with_one_budget_is_observed_image_by_image():
    with pytest.raises(AllocatorError, match="token-bank gives every image a count of its own: observe one image"):
        homunculus.saccades(torch.rand(2, 3, 64, 64), n=2, budget=16, allocator="token-bank")
    assert homunculus.saccades(torch.rand(3, 64, 64), n=2, budget=16, allocator="token-bank").allocation.budget == 16
