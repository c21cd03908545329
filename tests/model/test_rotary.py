"""Rotary places: only differences matter, every axis matters, and each has channels of its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.model.rotary import AXES, SHORTEST, turns
from tests.model.tiny import NeverWaits, close

HEADS = (8, 10, 12, 14, 16, 22, 32, 64, 128)  # channels: from 4 to 64 pairs, odd counts among them
LEVEL, X, Y, T = range(4)


def scores(query, key, here, there):
    """What attention sees of queries here and keys there."""
    head = query.shape[-1]
    return turns(here, head).rotate(query) @ turns(there, head).rotate(key).mT


def drawn(head, count=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, 2, count, head, generator=generator)
    here, there = torch.rand(2, 1, count, 4, generator=generator) * torch.tensor([6.0, 64.0, 64.0, 100.0])
    return query, key, here, there


def angle_per_pair(places, head):
    where = turns(places, head)
    return torch.atan2(where.sin, where.cos)[0, 0]


@given(
    st.sampled_from(HEADS),
    st.integers(0, 100),
    st.tuples(st.floats(-6, 6), st.floats(-200, 200), st.floats(-200, 200), st.floats(0, 100)),
)
def test_only_differences_of_places_matter(head, seed, shift):
    query, key, here, there = drawn(head, seed=seed)
    moved = torch.tensor(shift, dtype=torch.float32)
    before, after = scores(query, key, here, there), scores(query, key, here + moved, there + moved)
    assert close(after, before, 1e-3)  # float32 places of some hundreds, in radians


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("axis", range(4))
def test_every_axis_matters(head, axis):
    query, key, here, there = drawn(head)
    moved = there.clone()
    moved[..., axis] += 0.5
    assert not close(scores(query, key, here, moved), scores(query, key, here, there), 1e-2)


@pytest.mark.parametrize("head", HEADS)
def test_axes_have_channels_of_their_own_and_use_them_all(head):
    turned = torch.stack([angle_per_pair(torch.eye(4)[axis].expand(1, 1, 4), head)[0] for axis in range(4)])
    assert turned.shape == (4, head // 2)
    assert ((turned != 0).sum(0) == 1).all()  # each pair turns with one axis and no other
    assert (turned != 0).any(1).all()


def test_shares_are_as_stated():
    turned = torch.stack([angle_per_pair(torch.eye(4)[axis].expand(1, 1, 4), 64)[0] for axis in range(4)])
    assert (turned != 0).sum(1).tolist() == [round(axis.share * 32) for axis in AXES] == [4, 10, 10, 8]


@pytest.mark.parametrize("axis", range(4))
def test_wavelengths_run_from_shortest_to_longest(axis):
    """A pair is back where it was after one wavelength, and nowhere near after half of one."""
    turned = angle_per_pair(torch.eye(4)[axis].expand(1, 1, 4), 64)[0]
    speeds = turned[turned != 0]
    waves = 2 * torch.pi / speeds
    assert torch.allclose(waves[[0, -1]], torch.tensor([SHORTEST, AXES[axis].longest]), rtol=1e-5)
    steps = waves[1:] / waves[:-1]
    assert torch.allclose(steps, steps[0].expand_as(steps), rtol=1e-4)  # geometric
    around = torch.zeros(1, len(waves), 4)
    around[0, :, axis] = waves
    index = (turned != 0).nonzero().flatten()
    where = turns(around, 64)
    assert torch.allclose(where.cos[0, 0, range(len(waves)), index], torch.ones(len(waves)), atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_a_turn_changes_no_length_and_no_place_no_turn(head):
    query, _, here, _ = drawn(head)
    turned = turns(here, head).rotate(query)
    assert torch.allclose(turned.norm(dim=-1), query.norm(dim=-1), rtol=1e-5)
    assert torch.equal(turns(torch.zeros(1, 5, 4), head).rotate(query), query)


def test_places_between_leaves_are_told_apart():
    query, key, here, there = drawn(64)
    quarter = torch.tensor([0, 0.25, 0, 0])
    seen = [scores(query, key, here, there + i * quarter) for i in range(4)]
    assert all(not close(a, b, 1e-3) for i, a in enumerate(seen) for b in seen[:i])
    half = turns(torch.tensor([[[0.0, 0.5, 0.0, 0.0]]]), 64)  # twice half a leaf is a leaf
    whole = turns(torch.tensor([[[0.0, 1.0, 0.0, 0.0]]]), 64)
    assert torch.allclose(half.rotate(half.rotate(query)), whole.rotate(query), atol=1e-5)


@given(st.integers(1, 64), st.integers(0, 50))
def test_sequences_have_one_axis(pairs, shift):
    query, key = torch.randn(2, 1, 1, 6, 2 * pairs, generator=torch.Generator().manual_seed(pairs))
    times = torch.arange(6.0)[None, :, None]
    assert close(scores(query, key, times + shift, times + shift), scores(query, key, times, times), 1e-3)
    assert not close(scores(query, key, times + 1, times), scores(query, key, times, times), 1e-2)


def test_wrong_axes_are_refused():
    with pytest.raises(ValueError, match="zip"):
        turns(torch.zeros(1, 3, 2), 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_type_and_is_turned_in_float32(dtype):
    query, _, here, _ = drawn(32)
    here = here + 200  # where bfloat16 could not tell leaves apart
    turned = turns(here, 32).rotate(query.to(dtype))
    assert turned.dtype == dtype
    assert torch.equal(turned, turns(here, 32).rotate(query.to(dtype).float()).to(dtype))


def test_nothing_is_copied_from_the_host():
    with NeverWaits():
        turns(torch.zeros(1, 5, 4, device="meta"), 16).rotate(torch.zeros(1, 2, 5, 16, device="meta"))


def test_frequencies_made_in_inference_mode_can_be_trained_with():
    query, _, here, _ = drawn(16)
    with torch.inference_mode():
        turns(here, 16)
    query.requires_grad_()
    turns(here, 16).rotate(query).sum().backward()
    assert query.grad.abs().sum() > 0
