"""Rotary places: only differences matter, every axis matters, and each has channels of its own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import homunculus
from homunculus.model.decoder import text_turns
from homunculus.model.encoder import cells_of
from homunculus.model.rotary import AXES, POSITIONS, SHORTEST, gaze_of, log_polar, turns
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


# ----------------------------------------------------------------------------------------------------- where cells are

WAYS = list(POSITIONS)


def cells(seed=0, count=9, least=1.0):
    """Cells that lie at least so many leaves from their gaze, which is given too."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(2, 4 * count, 4, generator=generator) * torch.tensor([4.0, 40.0, 40.0, 0.0]) + 1
    places[..., 0] = places[..., 0].round()
    places[..., 3] = 0
    apart = (places[..., 1:3] - gaze_of(places)).norm(dim=-1).amin(1)
    return places if (apart >= least).all() else cells(seed + 1000, count, least)


def about_gaze(places, change):
    """The same cells, their vectors from the gaze changed."""
    gaze = gaze_of(places)
    return torch.cat((places[..., :1], gaze + change(places[..., 1:3] - gaze), places[..., 3:]), dim=-1)


def seen(name, query, key, here, there):
    head = query.shape[-1]
    return POSITIONS[name](here, head).rotate(query) @ POSITIONS[name](there, head).rotate(key).mT


def queries(head, count=36, seed=0):
    return torch.randn(2, 2, 2, count, head, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("head", HEADS)
def test_level_x_y_is_what_it_was_before_there_were_others(head):
    """To the last bit, by the formula written out: the weights we ship were trained on it."""
    places, pairs = cells(), head // 2
    counts = [max(1, round(share * pairs)) for share in (1 / 8, 5 / 16, 5 / 16, 1 / 4)]
    counts[1] += pairs - sum(counts)
    angles = []
    for axis, (count, longest) in enumerate(zip(counts, (16.0, 1024.0, 1024.0, 1024.0), strict=True)):
        waves = torch.linspace(2.0, math.log2(longest), count, dtype=torch.float64).exp2()
        angles.append(places[..., axis : axis + 1] * (2 * torch.pi / waves).float())
    whole = torch.cat(angles, dim=-1)
    where = POSITIONS["level-x-y"](places, head)
    assert torch.equal(where.cos[:, 0], whole.cos()) and torch.equal(where.sin[:, 0], whole.sin())


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("head", HEADS)
def test_text_is_turned_alike_in_all_ways(name, head):
    """Its channels are the last ones, and what is seen lies at its t = 0."""
    times = torch.arange(7)[None]
    text, where = text_turns(times, head), POSITIONS[name](cells(), head)
    own = text.sin[0, 0, 1] != 0
    at = POSITIONS[name](torch.cat((cells()[:1, :7, :3], times[..., None].float()), dim=-1), head)
    assert own.any() and torch.equal(at.cos[..., own], text.cos[..., own])
    assert (where.cos[..., own] == 1).all() and (where.sin[..., own] == 0).all()
    assert (where.sin[..., ~own] != 0).any((0, 1, 2)).all()  # no channel of what is seen lies idle
    assert where.cos.shape == (2, 1, 36, head // 2)


@pytest.mark.parametrize("head", [8, 22, 64])
def test_x_y_know_no_level_and_only_differences(head):
    query, key = queries(head)
    here, there = cells(1), cells(2)
    before = seen("embedded-level", query, key, here, there)
    other = here.clone()
    other[..., 0] += 3
    assert torch.equal(seen("embedded-level", query, key, other, there), before)
    moved = torch.tensor([0.0, 31.0, -7.5, 0.0])
    assert close(seen("embedded-level", query, key, here + moved, there + moved), before, 1e-3)
    for axis in (1, 2):
        assert not close(seen("embedded-level", query, key, here + torch.eye(4)[axis], there), before, 1e-2)


@pytest.mark.parametrize("head", [8, 22, 64])
def test_log_polar_goes_with_the_gaze(head):
    """Where the cells lie on the image says nothing: moved together they are turned as before, text or not."""
    places = cells()
    moved = places + torch.tensor([0.0, 25.0, 50.0, 0.0])
    for ours, theirs in zip(*(POSITIONS["log-polar"](each, head) for each in (places, moved)), strict=True):
        assert close(ours, theirs, 1e-3)


@given(st.integers(0, 50), st.floats(0.5, 3.0))
def test_scale_about_the_gaze_changes_no_angle_and_shifts_all_distances_alike(seed, scale):
    places = cells(seed)
    larger = about_gaze(places, lambda away: scale * away)
    before, after = log_polar(places), log_polar(larger)
    assert close(gaze_of(larger), gaze_of(places), 1e-4)
    turned = (after - before)[..., 1].abs()
    assert torch.minimum(turned, math.tau - turned).max() < 1e-3
    assert close(after[..., 0] - before[..., 0], torch.full((2, 36), math.log2(scale)), 1e-3)
    query, key = queries(32, seed=seed)  # so two cells see each other as before
    assert close(seen("log-polar", query, key, larger, larger), seen("log-polar", query, key, places, places), 0.02)


@given(st.integers(0, 50), st.floats(-math.pi, math.pi))
def test_turning_about_the_gaze_changes_nothing_between_cells(seed, angle):
    cos, sin = math.cos(angle), math.sin(angle)
    spin = torch.tensor([[cos, sin], [-sin, cos]])  # clockwise, as y is down
    places = cells(seed)
    spun = about_gaze(places, lambda away: away @ spin)
    turned = (log_polar(spun) - log_polar(places))[..., 1] - angle
    assert (turned.cos() > 1 - 1e-5).all()
    query, key = queries(32, seed=seed)
    assert close(seen("log-polar", query, key, spun, spun), seen("log-polar", query, key, places, places), 0.02)


def test_angles_are_seamless():
    """Left of the gaze, where theta jumps from pi to -pi, nothing of what is made of it does."""
    ring = torch.arange(360) * math.tau / 360 + math.tau / 720
    places = torch.stack((0 * ring, 20 + 5 * ring.cos(), 20 + 5 * ring.sin(), 0 * ring), dim=-1)[None]
    theta = log_polar(places)[0, :, 1]
    assert theta.diff().abs().max() > 6
    where = POSITIONS["log-polar"](places, 64)
    for part in where:
        steps = (part - part.roll(1, dims=2)).abs().amax((0, 1, 3))
        assert steps.max() < 12.5 * math.tau / 360  # twelve times around, at most


def test_distance_and_angle_have_channels_of_their_own():
    places = cells()
    before = POSITIONS["log-polar"](places, 64)
    farther = POSITIONS["log-polar"](about_gaze(places, lambda away: 1.3 * away), 64)
    changed = ((farther.cos - before.cos).abs() > 0.01).any((0, 1, 2))
    assert changed.tolist() == [True] * changed.sum() + [False] * (32 - changed.sum()) and changed.sum() >= 8
    spun = POSITIONS["log-polar"](about_gaze(places, lambda away: away.flip(-1) * torch.tensor([-1.0, 1.0])), 64)
    turned = ((spun.cos - before.cos).abs() > 0.01).any((0, 1, 2))
    assert not (turned & changed).any() and turned.sum() >= 8  # a quarter turn; every fourth is back


def test_cells_at_the_gaze_have_a_place():
    places = torch.full((1, 1, 4), 7.0)
    found = log_polar(places)
    assert found[0, 0, :2].tolist() == [-1.0, 0.0] and found.isfinite().all()
    near = log_polar(torch.tensor([[[0.0, 8.75, 9.0, 0.0], [0.0, 9.25, 9.0, 0.0]]]))
    assert near[0, :, 0].tolist() == [-1.0, -1.0]  # a quarter of a leaf away is no nearer than half a leaf


@pytest.mark.parametrize("at", [(500.0, 500.0), (200.0, 700.0), (900.0, 400.0), (50.0, 50.0)])
@pytest.mark.parametrize("budget", [96, 273])
def test_the_gaze_is_where_one_looks(at, budget):
    """A fixation on an even page: the cells tell of it to within a leaf."""
    allocation = homunculus.allocate(torch.ones(64, 64), budget, image_size=(1024, 1024), fixation=at)
    found = gaze_of(cells_of(allocation).places)[0, 0] * 16
    assert (found - torch.tensor(at)).norm() < 16


def test_the_gaze_of_even_cells_is_their_middle_and_padding_has_none():
    even = cells_of(homunculus.allocate(torch.ones(32, 32), 64, "uniform")).places
    assert torch.allclose(gaze_of(even), torch.tensor([16.0, 16.0]), atol=1e-4)
    places = cells()
    padded = torch.cat((places, torch.zeros(2, 5, 4)), dim=1)
    assert torch.equal(gaze_of(padded), gaze_of(places)) and gaze_of(torch.zeros(1, 3, 4)).isfinite().all()


@pytest.mark.parametrize("name", WAYS)
def test_no_way_copies_from_the_host(name):
    with NeverWaits():
        POSITIONS[name](torch.zeros(1, 5, 4, device="meta"), 16).rotate(torch.zeros(1, 2, 5, 16, device="meta"))
