"""What a reader is shown: phases as long as they say, everything by its weight, the same whenever it is asked."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import homunculus
from homunculus.allocation import get_allocator
from homunculus.train import curriculum
from homunculus.train.curriculum import ALL, READING, SETTLE, WHOLE, Phase, showing

PHASES = {name: phase for name, phase in vars(curriculum).items() if isinstance(phase, Phase)}


@given(st.lists(st.floats(0.05, 5.0), min_size=1, max_size=6), st.integers(1, 400))
def test_phases_come_in_turn_and_last_their_share(shares, steps):
    phases = [Phase(share, {100 + i: 1.0}) for i, share in enumerate(shares)]
    found = [showing(phases, steps, step).budget - 100 for step in range(steps)]
    assert found == sorted(found)
    for i, share in enumerate(shares):
        assert abs(found.count(i) - steps * share / sum(shares)) <= 1 + 1e-6


@given(st.integers(0, 10**6), st.integers(0, 9))
def test_a_step_shows_the_same_whenever_it_is_asked(step, seed):
    assert showing(READING, 10**6 + 1, step, seed) == showing(READING, 10**6 + 1, step, seed)


def test_seeds_differ():
    first, second = ([showing(READING, 500, step, seed) for step in range(500)] for seed in (0, 1))
    assert sum(a != b for a, b in zip(first, second, strict=True)) > 200


@pytest.mark.parametrize("name", PHASES)
def test_everything_comes_by_its_weight(name):
    phase, steps = replace(PHASES[name], readings=0.0, aside=None), 4000
    shown = [showing([phase], steps, step) for step in range(steps)]
    for field, weights in (("budget", phase.budgets), ("allocator", phase.allocators), ("relevance", phase.relevance)):
        counts = Counter(getattr(one, field) for one in shown)
        assert counts.keys() == weights.keys()
        for value, weight in weights.items():
            share = weight / sum(weights.values())
            assert abs(counts[value] / steps - share) <= 5 * (share * (1 - share) / steps) ** 0.5


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_readings_show_the_true_region_and_tell_of_it(share):
    """Nothing but relevance says which text is meant."""
    phase = Phase(1.0, {64: 1.0}, ALL, {"corrupted": 0.5, "predicted": 0.5}, untold=0.4, readings=share, reach=0.7)
    shown = [showing([phase], 2000, step) for step in range(2000)]
    read = [one for one in shown if one.readings]
    assert abs(len(read) / 2000 - share) < 0.05 and (len(read) == 2000 or share < 1)
    assert all((one.relevance, one.untold, one.readings) == ("true", 0.0, 0.7) for one in read)
    assert all(one.relevance != "true" and one.untold == 0.4 for one in shown if not one.readings)


def test_allocators_exist_and_fill_a_batch():
    assert ALL.keys() <= set(homunculus.allocators())
    assert not any(get_allocator(name).batchwide for name in ALL)


def test_it_begins_with_true_regions_and_ends_with_predicted_ones():
    """On few tokens first, last of all as it will be used; and every method has been shown by then."""
    steps = 2000
    shown = [showing(READING, steps, step) for step in range(steps)]
    first, last = shown[: steps // 10], [showing([SETTLE], steps, step) for step in range(steps)]
    assert all(one.relevance == "true" and one.readings and one.budget < 128 for one in first)
    asked = [one.relevance for one in last if not one.readings]
    assert asked.count("predicted") > 0.7 * len(asked) > 0.5 * steps and "true" not in asked
    assert Counter(one.budget for one in last).most_common(1)[0][0] == 273
    assert {one.allocator for one in shown} == ALL.keys()
    assert {one.enlarged for one in first} == {1} and {one.enlarged for one in shown} == {1, 2, 4}


def test_what_stands_aside_comes_in_its_share_of_the_steps():
    """Every leaf between fewer, so that neither is unlearned."""
    shown = [showing([SETTLE], 4000, step) for step in range(4000)]
    whole = [one for one in shown if one.budget == 4096]
    assert abs(len(whole) / 4000 - WHOLE.share) < 0.02
    assert {(one.allocator, one.untold, one.enlarged, one.readings) for one in whole} == {("uniform", 0.4, 1, 0.0)}
    assert all(one.untold <= 0.1 for one in shown if one.budget != 4096)
