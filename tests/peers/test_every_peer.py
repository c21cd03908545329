"""What holds for every peer: exact counts, order, the same alone as in a batch, any grid, any precision, no waiting."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.peers import Reduced, Seen, get_peer, peers
from tests.devices import no_sync
from tests.model.tiny import NeverWaits
from tests.peers.made import alone, each, made

NAMES = list(peers())
MERGE = [name for name in NAMES if get_peer(name).merges]
ADDS = ["prumerge+"]  # to a token, by attention, which sums to 1
every = pytest.mark.parametrize("name", NAMES)


def is_right(name: str, seen: Seen, budget: int, reduced: Reduced) -> None:
    batch, count, channels = seen.features.shape
    assert reduced.features.shape == (batch, budget, channels) and reduced.features.dtype == seen.features.dtype
    assert reduced.places.shape == (batch, budget, 4) and reduced.places.dtype == seen.places.dtype
    assert reduced.index.shape == reduced.mass.shape == (batch, budget)
    assert reduced.index.dtype == torch.int64 and reduced.mass.dtype == torch.float32
    assert (reduced.index.diff(dim=1) > 0).all()  # distinct, in reading order
    assert (reduced.index >= 0).all() and (reduced.index < count).all()
    assert reduced.features.isfinite().all() and reduced.places.isfinite().all()
    assert (reduced.mass >= 1).all() and (reduced.mass.sum(1) <= count * (1 + 1e-5)).all()
    for values, given_ in ((reduced.features, seen.features), (reduced.places, seen.places)):  # means never leave them
        slack = 2e-2 if values.dtype == torch.bfloat16 else 1e-5
        beyond = slack + given_.float().abs().amax(1, keepdim=True) * (name in ADDS and given_ is seen.features)
        assert (values.float() <= given_.float().amax(1, keepdim=True) + beyond).all()
        assert (values.float() >= given_.float().amin(1, keepdim=True) - beyond).all()


def test_the_list_is_that_of_the_issue():
    after = "aim cdpruner coarse-then-residual divprune hired prumerge+ random tome tome-soft uniform visionzip vscan"
    assert after.split() == NAMES
    assert [name for name in NAMES if get_peer(name).query] == ["cdpruner"]
    assert MERGE == ["aim", "prumerge+", "tome", "tome-soft", "visionzip", "vscan"]


@every
@pytest.mark.parametrize("grid", [(8, 6), (7, 5), (1, 9), (13, 1), (2, 1)])
def test_exactly_the_budget_on_any_grid(name, grid):
    seen = made(2, grid)
    for budget in range(1, grid[0] * grid[1] + 1):
        is_right(name, seen, budget, get_peer(name)(seen, budget))


@every
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=20)
def test_exactly_the_budget_of_anything(name, columns, rows, share, seed):
    seen = made(2, (columns, rows), channels=3, seed=seed)
    seen = seen._replace(features=seen.features.round(), attention=seen.attention.mul(20).round() / 20)  # many ties
    budget = max(1, round(share * columns * rows))
    is_right(name, seen, budget, get_peer(name)(seen, budget))


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_precision(name, dtype):
    seen = made(dtype=dtype)
    reduced = get_peer(name)(seen, 11)
    is_right(name, seen, 11, reduced)
    wide = each(seen, lambda value: value.float())
    expected = get_peer(name)(wide, 11)
    if name != "random" or dtype != torch.float64:  # float64 has bits that float32 has not
        assert torch.equal(reduced.index, expected.index)
        assert torch.allclose(reduced.features.float(), expected.features, atol=1e-2)


@every
@pytest.mark.parametrize("device", ["cpu", "autocast"])
def test_the_same_alone_as_in_a_batch(name, device):
    seen = made(4, (9, 7))
    cast = torch.autocast("cpu", torch.bfloat16) if device == "autocast" else nullcontext()
    with cast:
        together = get_peer(name)(seen, 17)
        singles = [get_peer(name)(alone(seen, i), 17) for i in range(4)]
    for i, single in enumerate(singles):
        assert torch.equal(single.index[0], together.index[i])
        assert torch.equal(single.mass[0], together.mass[i])
        assert torch.allclose(single.features[0], together.features[i], atol=1e-6)
        assert torch.allclose(single.places[0], together.places[i], atol=1e-6)
    plain = get_peer(name)(seen, 17)
    assert torch.equal(plain.index, together.index) and torch.equal(plain.features, together.features)


@every
def test_batch_mates_do_not_matter(name):
    """Whatever else is in the batch, however large its numbers."""
    seen, other = made(2, seed=1), made(2, seed=2)
    mixed = Seen(
        *(
            torch.cat((value[:1], theirs[1:] * 1000)) if isinstance(value, torch.Tensor) else value
            for value, theirs in zip(seen, other, strict=True)
        )
    )
    one, two = get_peer(name)(seen, 9), get_peer(name)(mixed, 9)
    assert torch.equal(one.index[0], two.index[0]) and torch.allclose(one.features[0], two.features[0], atol=1e-6)


@every
def test_the_same_every_time_and_nothing_is_written_over(name):
    seen = made()
    before = [value.clone() for value in seen if isinstance(value, torch.Tensor)]
    one, two = (get_peer(name)(seen, 13, seed=5) for _ in range(2))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(one, two, strict=True))
    after = [value for value in seen if isinstance(value, torch.Tensor)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(before, after, strict=True))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_budget_for_all_changes_nothing(name, dtype):
    seen = made(2, (7, 5), dtype=dtype)
    for method in (get_peer(name), get_peer(name).function):  # by name, and by itself
        reduced = method(seen, 35)
        assert torch.equal(reduced.features, seen.features) and torch.equal(reduced.places, seen.places)
        assert torch.equal(reduced.index, torch.arange(35).expand(2, -1)) and (reduced.mass == 1).all()


@every
@pytest.mark.parametrize("budget", [1, 2, 10, 47])
def test_images_with_nothing_in_them(name, budget):
    """Constant or zero features and keys, nothing looked at, nothing relevant."""
    flat = made()
    for value in (0.0, 1.0):
        nothing = torch.zeros_like(flat.attention)
        features, keys = torch.full_like(flat.features, value), torch.full_like(flat.keys, value)
        seen = Seen(features, flat.places, flat.grid, keys, nothing, nothing, nothing)
        reduced = get_peer(name)(seen, budget)
        is_right(name, seen, budget, reduced)
        assert torch.allclose(reduced.features, features[:, :budget], atol=1e-6)
        assert (reduced.index == reduced.index[0]).all()  # equal images, equal choices


@pytest.mark.parametrize("name", ["divprune", "cdpruner"])
def test_of_equal_tokens_the_first_are_kept(name):
    """Equal in whatever block of a product they fall: many channels, an odd number of tokens."""
    one = made(1, (1, 1), channels=67)
    seen = each(one, lambda value: value.repeat(2, 129, *[1] * (value.ndim - 2)))._replace(grid=(129, 1))
    assert get_peer(name)(seen, 9).index.tolist() == [list(range(9))] * 2


@every
def test_gradients_reach_the_features(name):
    seen = made()
    features = seen.features.clone().requires_grad_()
    reduced = get_peer(name)(seen._replace(features=features), 9)
    reduced.features.square().sum().backward()
    assert features.grad is not None and features.grad.isfinite().all()
    reached = (features.grad != 0).any(-1)
    assert reached.gather(1, reduced.index).all()
    if get_peer(name).merges:
        assert (reached.sum(1) > 9).all()  # those given up as well
    else:
        assert (reached.sum(1) == 9).all()


@every
def test_nothing_waits_for_the_device(name):
    seen = each(made(), lambda value: value.to("meta"))
    with NeverWaits():
        reduced = get_peer(name)(seen, 10)
    assert reduced.features.shape == (3, 10, 12) and reduced.features.device.type == "meta"


@every
def test_the_seed_matters_only_to_chance(name):
    seen = made()
    one, two = (get_peer(name)(seen, 10, seed=seed).index for seed in (0, 1))
    assert torch.equal(one, two) == (name != "random")


@pytest.mark.gpu
@every
def test_a_gpu_keeps_the_same(name):
    seen = made(2, (16, 16), channels=32)
    seen = seen._replace(
        attention=seen.attention.mul(200).round() / 200, early=seen.early.mul(200).round() / 200
    )  # ties
    there = each(seen, lambda value: value.cuda())
    here, reduced = get_peer(name)(seen, 37), get_peer(name)(there, 37)
    with no_sync(), torch.autocast("cuda", torch.bfloat16):
        again = get_peer(name)(there, 37)
    assert all(torch.equal(one, two) for one, two in zip(reduced, again, strict=True))
    assert torch.equal(reduced.index.cpu(), here.index)
    assert torch.allclose(reduced.features.cpu(), here.features, atol=1e-5)
