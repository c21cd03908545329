"""Names, options and budgets: what cannot be honoured is refused in one line."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch

from homunculus.errors import AllocatorError, BudgetError
from homunculus.peers import Reduced, get_peer, kept, peers, register, registry
from homunculus.peers.reading import all_peers, stage_of
from tests.peers.made import made

PAGE = Path(__file__).parents[2] / "docs" / "peers.md"


@pytest.fixture
def registered(monkeypatch):
    """A registry that forgets."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_names_and_near_names():
    assert list(peers()) == sorted(peers()) and all(peers().values())
    assert get_peer("tome").name == "tome" and get_peer("tome").options() == ["seed", "rounds"]
    for wrong, hint in (("TOME", "choose from aim, "), ("visonzip", "did you mean 'visionzip'?")):
        with pytest.raises(AllocatorError, match="unknown peer") as error:
            get_peer(wrong)
        assert hint in str(error.value)
    with pytest.raises(AllocatorError, match="given by name, got int"):
        get_peer(3)


@pytest.mark.parametrize("budget", [0, -1, 49, 2.0, True, None])
@pytest.mark.parametrize("name", list(peers()))
def test_budgets_that_cannot_be_kept(name, budget):
    with pytest.raises(BudgetError, match="keeps 1 to 48 tokens of these images") as error:
        get_peer(name)(made(), budget)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("tome", {"layers": 3}, "tome has no option 'layers': it takes rounds"),
        ("uniform", {"rounds": 3}, "uniform has no option 'rounds': it takes none"),
        ("tome", {"rounds": 2.5}, "rounds of tome is a whole number, 24 by default, got 2.5"),
        ("tome", {"rounds": 0}, "rounds of merging are 1 or more"),
        ("tome-soft", {"threshold": float("nan")}, "threshold of tome-soft is a finite number"),
        ("tome-soft", {"temperature": 0.0}, "temperature of tome-soft is above 0"),
        ("visionzip", {"dominant": 1.5}, "dominant is a share of the budget"),
        ("prumerge+", {"neighbours": -1}, "prumerge\\+ takes neighbours >= 0"),
        ("prumerge+", {"grid": 2.0}, "a grid from 0 to 1"),
        ("hired", {"tiles": 0}, "tiles of hired are 1 or more a side"),
        ("vscan", {"windows": 0}, "windows of vscan are 1 or more a side"),
        ("coarse-then-residual", {"rounds": 0}, "rounds of coarse-then-residual are 1 or more"),
        ("tome", {"rounds": torch.tensor(3)}, "rounds of tome is a whole number"),
        ("cdpruner", {"logarithm": "yes"}, "logarithm of cdpruner is True or False, False by default, got 'yes'"),
        ("prumerge+", {"grid_first": None}, "grid_first of prumerge\\+ is True or False"),
        ("random", {"seed": 1.5}, "a seed is a 64-bit whole number"),
        ("random", {"seed": torch.zeros(2, dtype=torch.int64)}, "seeds are int64, one for each of 3 images"),
    ],
)
def test_options_that_cannot_be_honoured(name, options, problem):
    with pytest.raises(AllocatorError, match=problem) as error:
        get_peer(name)(made(), 10, **options)
    assert "\n" not in str(error.value)


def test_the_page_has_a_row_for_each():
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    found = {row[0].strip("| `"): (row[2] == "**yes**", row[3].startswith("merges")) for row in rows}
    assert found == {name: (get_peer(name).query, get_peer(name).merges) for name in peers()}


def test_the_page_tells_of_every_kind():
    bullets = [line for line in PAGE.read_text().splitlines() if line.startswith("- `")]
    found = [line.split("`")[1] for line in bullets]
    assert sorted(found) == sorted(set(all_peers()) - set(peers()))


def test_a_question_is_needed_where_one_is_heard():
    seen = made()._replace(relevance=None)
    for method in (get_peer("cdpruner"), get_peer("cdpruner").function):
        with pytest.raises(AllocatorError, match="cdpruner needs to know what is asked"):
            method(seen, 10)
    for name in set(peers()) - {"cdpruner"}:
        assert torch.equal(get_peer(name)(seen, 10).index, get_peer(name)(made(), 10).index)  # the others are deaf


def test_attention_is_needed_where_it_is_asked_for():
    """What a peer says it asks for moves it, and without it refuses; what it does not ask for may be anything."""
    seen, other = made(), made(seed=1)
    asks = {name: tuple(get_peer(name).attention) for name in peers() if get_peer(name).attention}
    both = ("late", "early")
    assert asks == {"hired": both, "prumerge+": ("late",), "visionzip": ("late",), "vscan": both}
    for name, (when, field) in product(peers(), (("late", "attention"), ("early", "early"))):
        found = get_peer(name)(seen, 10)
        without = seen._replace(**{field: torch.zeros(3, 0)})
        moved = get_peer(name)(seen._replace(**{field: getattr(other, field)}), 10)
        if when in asks.get(name, ()):
            assert not torch.equal(found.index, moved.index)
            with pytest.raises(AllocatorError, match=f"{re.escape(name)} needs to know how much tokens are looked at"):
                get_peer(name)(without, 10)
        else:
            for same in (moved, get_peer(name)(without, 10)):
                assert all(torch.equal(one, two) for one, two in zip(found, same, strict=True))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("attention", ["late", ("later",), ("late", "both"), True, False, None])
def test_attention_is_late_or_early(attention):
    with pytest.raises(AllocatorError, match=r"attention of mine is some of \('late', 'early'\) or \(\), got"):
        register("mine", "asks for what there is not", attention=attention)(lambda seen, budget: None)


def test_tokens_that_do_not_fit():
    seen = made()
    with pytest.raises(AllocatorError, match="a grid of 6x6 has 36 tokens, the features have 48"):
        get_peer("tome")(seen._replace(grid=(6, 6)), 10)
    for field in ("places", "keys", "attention", "early", "relevance"):
        with pytest.raises(AllocatorError, match=f"{field} begins with \\[3, 47\\], the features with \\[3, 48\\]"):
            get_peer("uniform")(seen._replace(**{field: getattr(seen, field)[:, 1:]}), 10)
    for wrong in (torch.arange(2), torch.arange(3.0), torch.zeros(3, 48).long()):
        with pytest.raises(AllocatorError, match="fingerprints are int64, one for each of 3 images, got torch"):
            get_peer("uniform")(seen._replace(fingerprint=wrong), 10)


@pytest.mark.usefixtures("registered")
def test_anybody_can_add_one():
    @register("last", "the last tokens", query=False)
    def last(seen, budget, *, seed=0):
        count = seen.features.shape[1]
        return kept(seen, torch.arange(count - budget, count).expand(len(seen.features), -1))

    assert get_peer("last")(made(), 4).index.tolist() == [[44, 45, 46, 47]] * 3
    assert stage_of("last") == "features" and "last" in peers()
    assert get_peer("last").attention == ("late", "early")  # unless it says what it asks for
    with pytest.raises(AllocatorError, match="a peer called 'last' exists already"):
        register("last", "again")(last)


@pytest.mark.usefixtures("registered")
def test_the_budget_is_a_promise():
    register("fewer", "breaks its word")(lambda seen, budget: get_peer("uniform")(seen, budget - 1))
    register("else", "something else")(lambda seen, budget: tuple(get_peer("uniform")(seen, budget)))
    register("longer", "features too long")(
        lambda seen, budget: Reduced(*get_peer("uniform")(seen, budget))._replace(features=seen.features)
    )
    for name, problem in (
        ("fewer", r"fewer returned features \[3, 9, 12\] instead of \[3, 10, 12\]"),
        ("longer", r"longer returned features \[3, 48, 12\]"),
        ("else", "else returned tuple: return Reduced"),
    ):
        with pytest.raises(AllocatorError, match=problem):
            get_peer(name)(made(), 10)
