"""What choosing peers promise, against brute force: distances, determinants, shares, errors, evenness."""

from contextlib import nullcontext
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.peers import Seen, get_peer
from homunculus.peers.cdpruner import from_0_to_1, largest_gains, logarithms
from homunculus.peers.divprune import most_unlike
from homunculus.peers.hired import cut, tile_counts
from homunculus.peers.residual import in_rounds
from homunculus.peers.spread import evenly
from homunculus.peers.tokens import fingerprints
from tests.devices import no_sync
from tests.peers.made import alone, cosine, each, made, numbers

# -------------------------------------------------------------------------------------------------- divprune, cdpruner


@given(st.integers(0, 500), st.integers(1, 20))
@settings(max_examples=30)
def test_divprune_always_adds_the_farthest(seed, budget):
    seen = made(2, (5, 4), channels=4, seed=seed)
    features = numbers(seen.features[1])
    distance = np.array([[1 - cosine(a, b) for b in features] for a in features])
    nearest = [min(distance[i, j] for j in range(20) if j != i) for i in range(20)]
    chosen = [int(np.argmax(nearest))]
    while len(chosen) < budget:
        rest = [i for i in range(20) if i not in chosen]
        chosen.append(max(rest, key=lambda i: min(distance[i, j] for j in chosen)))
    assert most_unlike(seen.features, budget)[1].tolist() == chosen
    assert get_peer("divprune")(seen, budget).index[1].tolist() == sorted(chosen)


def test_divprune_is_within_twice_the_best_and_better_than_chance():
    """The bound of greedy max-min holds for a metric: the chord, whose order is that of the cosine."""
    seen = made(1, (4, 3), channels=3)
    vectors = torch.nn.functional.normalize(seen.features[0].double(), dim=1)
    chord = torch.cdist(vectors, vectors).numpy()

    def least(chosen) -> float:
        return min(chord[i, j] for i, j in combinations(chosen, 2))

    best = max(least(chosen) for chosen in combinations(range(12), 4))
    ours = least(get_peer("divprune")(seen, 4).index[0].tolist())
    assert best / 2 <= ours <= best
    large = made(1, (16, 16), channels=8)
    vectors = torch.nn.functional.normalize(large.features[0].double(), dim=1)
    chord = torch.cdist(vectors, vectors).numpy()
    assert least(get_peer("divprune")(large, 20).index[0].tolist()) > 1.2 * max(
        least(get_peer("random")(large, 20, seed=seed).index[0].tolist()) for seed in range(20)
    )


def test_divprune_works_in_blocks(monkeypatch):
    seen = made(2, (9, 7))
    whole = most_unlike(seen.features, 20)
    monkeypatch.setattr("homunculus.peers.divprune.BLOCK", 10)
    assert torch.equal(most_unlike(seen.features, 20), whole)


@given(st.integers(0, 500), st.booleans())
@settings(max_examples=30)
def test_cdpruner_adds_the_largest_determinant(seed, logarithm):
    seen = made(2, (5, 3), channels=20, seed=seed)  # more channels than tokens: full rank
    relevance = from_0_to_1(logarithms(seen.relevance) if logarithm else seen.relevance)
    order = largest_gains(seen.features, relevance, 12)[0].tolist()
    features, r = numbers(seen.features[0]), numbers(relevance[0])
    kernel = np.array([[r[i] * cosine(features[i], features[j]) * r[j] for j in range(15)] for i in range(15)])
    for step in range(12):
        chosen = order[:step]
        gains = {}
        for i in range(15):
            if i not in chosen:
                sign, log = np.linalg.slogdet(kernel[np.ix_([*chosen, i], [*chosen, i])])
                gains[i] = log if sign > 0 else -np.inf
        before = np.linalg.slogdet(kernel[np.ix_(chosen, chosen)])[1] if chosen else 0.0
        best = max(gains.values())
        if best - before < np.log(1e-7):  # nothing left to gain: the least relevant
            break
        assert gains[order[step]] == pytest.approx(best, abs=1e-6)
    assert step > 5
    assert get_peer("cdpruner")(seen, 12, logarithm=logarithm).index[0].tolist() == sorted(order)


def greedily(features: np.ndarray, relevance: np.ndarray, budget: int) -> list[int]:
    """Every time the token with which the determinant is the largest, the kernel made of log relevance from 0 to 1."""
    logs = np.log(relevance)
    r = (logs - logs.min()) / (logs.max() - logs.min())
    kernel = np.array([[a * cosine(x, y) * b for b, y in zip(r, features, strict=True)]
                       for a, x in zip(r, features, strict=True)])  # fmt: skip
    chosen: list[int] = []
    while len(chosen) < budget:
        rest = [i for i in range(len(r)) if i not in chosen]
        chosen.append(max(rest, key=lambda i: np.linalg.det(kernel[np.ix_([*chosen, i], [*chosen, i])])))
    return chosen


def peaked() -> Seen:
    """The softmax of scores: the highest is 1e8 times the median. Of the ten most relevant eight are nearly alike."""
    seen = made(2, (7, 3), channels=24, seed=4)
    order = torch.randperm(21, generator=torch.Generator().manual_seed(0))
    relevance = torch.linspace(0, 2 * np.log(1e8), 21).softmax(0)[order]
    alike = (order > 10) & (order != 14) & (order != 17)
    features = torch.where(alike[:, None], seen.features[:, :1] + 0.2 * seen.features, seen.features)
    return seen._replace(features=features, relevance=relevance.expand(2, -1))


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cdpruner_of_logarithms_is_not_only_the_most_relevant_of_a_peaked_density(dtype, cast):
    """As that of the density is."""
    seen = each(peaked(), lambda value: value.to(dtype))
    relevance = numbers(seen.relevance[0])
    assert relevance.max() / np.median(relevance) == pytest.approx(1e8, rel=0.1)
    with torch.autocast("cpu", torch.bfloat16) if cast else nullcontext():
        index = get_peer("cdpruner")(seen, 8, logarithm=True).index
        bare = get_peer("cdpruner")(seen, 8).index
    for image in range(2):
        assert bare[image].tolist() == sorted(np.argsort(-relevance)[:8].tolist())
        wanted = greedily(numbers(seen.features[image]), relevance, 8)
        assert index[image].tolist() == sorted(wanted)
        assert len({*wanted} - {*np.argsort(-relevance)[:8].tolist()}) >= 3
        assert {14, 17, 20} <= {int((relevance < relevance[i]).sum()) for i in wanted}  # and is still told by it


def test_cdpruner_scales_of_relevance_do_not_matter():
    """A density times anything is the same; to logarithms so is one of scores that are twice as far apart."""
    seen = peaked()
    for logarithm in (False, True):
        index = get_peer("cdpruner")(seen, 8, logarithm=logarithm).index
        for other in (seen.relevance * 1e-9, seen.relevance * 7, seen.relevance.double().square())[: 2 + logarithm]:
            again = get_peer("cdpruner")(seen._replace(relevance=other), 8, logarithm=logarithm)
            assert torch.equal(again.index, index)


def test_cdpruner_takes_no_relevance_for_less_than_the_least_there_is():
    def chosen(seen, budget):
        return get_peer("cdpruner")(seen, budget, logarithm=True).index

    seen = peaked()
    some = seen.relevance > 1e-12
    half = seen.relevance.where(some, seen.relevance[some].min() / 2)
    nothing = seen._replace(relevance=seen.relevance * some)
    assert (~some).sum(1).tolist() == [6, 6] and from_0_to_1(logarithms(nothing.relevance)).isfinite().all()
    both = (chosen(own, 12) for own in (nothing, seen._replace(relevance=half)))
    assert torch.equal(*both)
    beside = nothing._replace(relevance=torch.stack((torch.zeros(21), nothing.relevance[1])))  # of all: all the same
    index = chosen(beside, 12)
    assert torch.equal(index[1], chosen(nothing, 12)[1])
    even = chosen(alone(seen, 0)._replace(relevance=torch.ones(1, 21)), 12)
    assert torch.equal(index[:1], even)
    region = nothing._replace(relevance=some.float())  # which is all of it or none
    assert chosen(region, 15).tolist() == [own.nonzero().flatten().tolist() for own in some]


def test_cdpruner_hears_the_question():
    seen = made(1, (8, 8), channels=64)
    relevance = torch.full((1, 64), 0.01)
    relevance[0, 40:50] = 1.0
    index = get_peer("cdpruner")(seen._replace(relevance=relevance), 10).index[0].tolist()
    assert index == list(range(40, 50))
    same = get_peer("cdpruner")(seen._replace(relevance=relevance * 7 + 3), 10).index[0].tolist()
    assert same == index  # scaled for each image


@pytest.mark.parametrize("logarithm", [False, True])
def test_cdpruner_scales_relevance_for_each_image(logarithm):
    """Scaled by the batch, all of the other one's would count nearly the same, and nothing would be another nothing."""
    seen = made(2, (8, 8), channels=64)
    own = seen.relevance * (seen.relevance > seen.relevance.median())  # half of it is none
    seen = seen._replace(relevance=own * torch.tensor([[1.0], [1e-30]]))
    together = get_peer("cdpruner")(seen, 12, logarithm=logarithm).index
    for image in range(2):
        single = get_peer("cdpruner")(alone(seen, image), 12, logarithm=logarithm)
        assert torch.equal(together[image], single.index[0])


def test_cdpruner_goes_on_by_relevance_when_nothing_is_left_to_say():
    """4 channels have a kernel of rank 4."""
    seen = made(2, (6, 5), channels=4)
    order = largest_gains(seen.features, from_0_to_1(seen.relevance), 30)
    for i in range(2):
        later = order[i, 4:].tolist()
        assert later == sorted(later, key=lambda j: -float(seen.relevance[i, j]))
        assert sorted(order[i].tolist()) == list(range(30))


def test_cdpruner_of_equal_relevance_still_seeks_difference():
    seen = made(1, (4, 4), channels=6)
    seen = seen._replace(relevance=torch.full((1, 16), 0.3), features=seen.features[:, :2].repeat(1, 8, 1))
    assert get_peer("cdpruner")(seen, 2).index[0].tolist() == [0, 1]


# --------------------------------------------------------------------------------------------------------------- hired


@given(st.integers(0, 500), st.integers(1, 35), st.integers(1, 4))
@settings(max_examples=40)
def test_hired_shares_by_early_attention_and_picks_by_late(seed, budget, tiles):
    seen = made(2, (7, 5), seed=seed)
    counts = tile_counts(seen, cut(seen, tiles, "tiles"), budget)
    assert (counts.sum(1) == budget).all()
    early, late = numbers(seen.early[0]), numbers(seen.attention[0])
    tile = np.array([(i // 7) * tiles // 5 * tiles + (i % 7) * tiles // 7 for i in range(35)])
    index = get_peer("hired")(seen, budget, tiles=tiles).index[0].tolist()
    shares = [early[tile == t].sum() / early.sum() * budget for t in range(tiles**2)]
    for t in range(tiles**2):
        members = np.flatnonzero(tile == t).tolist()
        mine = [i for i in index if i in members]
        assert len(mine) == counts[0, t] <= len(members)
        assert sorted(sorted(members, key=lambda i: (-late[i], i))[: len(mine)]) == mine
    if all(share <= (tile == t).sum() for t, share in enumerate(shares)):  # nothing overflows: largest remainder
        assert all(abs(share - count) < 1 for share, count in zip(shares, counts[0].tolist(), strict=True))


def test_hired_cuts_quadrants_not_strips():
    seen = made(1, (8, 8))
    early = torch.zeros(1, 8, 8)
    early[0, 4:, :4] = 1.0  # the lower left
    index = get_peer("hired")(seen._replace(early=early.flatten(1)), 16).index[0]
    assert index.tolist() == torch.arange(64).view(8, 8)[4:, :4].flatten().tolist()
    more = get_peer("hired")(seen._replace(early=early.flatten(1)), 20).index[
        0
    ]  # what is left goes where there is room
    assert set(index.tolist()) < set(more.tolist())


# ------------------------------------------------------------------------------------------------------------ residual


@given(st.integers(0, 500), st.integers(1, 47), st.integers(1, 8))
@settings(max_examples=30)
def test_each_round_adds_what_was_told_worst(seed, budget, rounds):
    seen = made(2, (8, 6), seed=seed)
    chosen, errors = in_rounds(seen.features, seen.grid, budget, rounds)
    features = numbers(seen.features[0])
    sizes = [len(one[0]) for one in chosen]
    assert sum(sizes) == budget and max(sizes) - min(sizes) <= 1 and len(sizes) == min(rounds, budget)
    assert chosen[0][0].tolist() == evenly((8, 6), sizes[0]).tolist()
    wrong = np.full(48, np.inf)
    for number, (new, told) in enumerate(zip(chosen, errors, strict=True)):
        new = new[0].tolist()
        if number:
            assert min(wrong[new]) >= max((wrong[i] for i in range(48) if i not in new), default=0) - 1e-6
        for i in range(48):
            near = min(new, key=lambda j: ((i % 8 - j % 8) ** 2 + (i // 8 - j // 8) ** 2, j))
            wrong[i] = min(wrong[i], ((features[i] - features[near]) ** 2).sum())
        assert np.allclose(numbers(told[0]), wrong, atol=1e-4)
        wrong = numbers(told[0])
    totals = torch.stack(errors).sum(-1)
    assert (totals.diff(dim=0) < 0).all()  # strictly better in every round
    assert get_peer("coarse-then-residual")(seen, budget, rounds=rounds).index[0].tolist() == sorted(
        torch.cat(chosen, 1)[0].tolist()
    )


def test_residual_goes_where_detail_is():
    features = torch.zeros(1, 12, 12, 8)
    features[0, 2:5, 7:10] = torch.randn(3, 3, 8, generator=torch.Generator().manual_seed(0)) * 5
    seen = made(1, (12, 12), channels=8)._replace(features=features.flatten(1, 2))
    index = get_peer("coarse-then-residual")(seen, 24).index[0].tolist()
    detail = {row * 12 + column for row in range(2, 5) for column in range(7, 10)}
    assert detail <= set(index)
    plain = get_peer("uniform")(seen, 24).index[0].tolist()
    assert len(detail & set(plain)) < 4


# ----------------------------------------------------------------------------------------------------------- baselines


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_uniform_is_spread_evenly(columns, rows, data):
    count = data.draw(st.integers(1, columns * rows))
    index = evenly((columns, rows), count).numpy()
    assert len(index) == count and (np.diff(index) > 0).all() and index[0] >= 0 and index[-1] < columns * rows
    lengths = np.bincount(index // columns)
    lengths = lengths[lengths > 0]
    assert lengths.max() - lengths.min() <= 1
    used = np.unique(index // columns)
    margins = np.diff(np.array([-1 - used[0], *used, 2 * rows - 1 - used[-1]]))  # the edges mirror the first and last
    assert np.ptp(np.diff(used)) <= 1 if len(used) > 1 else True
    assert abs(int(margins[0]) - int(margins[-1])) <= 2
    for row in used:
        across = index[index // columns == row] % columns
        assert len(across) == 1 or np.ptp(np.diff(across)) <= 1


def test_uniform_on_a_square_is_a_square():
    for side in (1, 2, 4, 8, 16):
        step = 16 // side
        grid = torch.arange(256).view(16, 16)[step // 2 :: step, step // 2 :: step]
        assert torch.equal(evenly((16, 16), side * side), grid.flatten())


@pytest.mark.parametrize("known", ["pixels", "features"])
def test_random_is_fair_and_follows_seed_and_content(known):
    seen = made(64, (6, 6), channels=3)
    if known == "pixels":
        seen = seen._replace(fingerprint=torch.arange(64))
    times = torch.zeros(36)
    for seed in range(60):
        times += torch.bincount(get_peer("random")(seen, 9, seed=seed).index.flatten(), minlength=36)
    expected = 64 * 60 * 9 / 36
    assert (times - expected).abs().max() < 5 * (expected * 0.75) ** 0.5
    index = get_peer("random")(seen, 9).index
    assert len({tuple(one) for one in index.tolist()}) == 64  # no two images alike
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    turned = each(seen, lambda value: value[order])
    assert torch.equal(get_peer("random")(turned, 9).index, index[order])  # wherever in the batch
    seeds = torch.arange(64)
    own = get_peer("random")(seen, 9, seed=seeds).index
    assert all(torch.equal(own[i : i + 1], get_peer("random")(alone(seen, i), 9, seed=i).index) for i in range(8))
    features = seen.features.clone()
    features[0, 17, 2] += 1e-6  # where nothing else is known, the smallest change of content is another draw
    other = get_peer("random")(seen._replace(features=features), 9).index
    assert torch.equal(other[0], index[0]) == (known == "pixels") and torch.equal(other[1:], index[1:])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 4, 4), (3, 5, 7), (1,)])
def test_a_fingerprint_is_of_every_bit(dtype, shape):
    values = (torch.rand(4, *shape, generator=torch.Generator().manual_seed(3)) * 255).to(dtype)
    own = fingerprints(values)
    assert own.dtype == torch.int64 and len(set(own.tolist())) == 4
    assert torch.equal(torch.cat([fingerprints(one[None]) for one in values]), own)  # alone as in a batch
    assert torch.equal(fingerprints(values[1:]), own[1:]) and torch.equal(fingerprints(values.flip(0)), own.flip(0))
    content = values[0].flatten().view(torch.uint8)
    for place in range(0, len(content), max(1, len(content) // 40)):
        changed = content.clone()
        changed[place] ^= 1 << place % 8
        assert fingerprints(changed[None]).item() != own[0].item()


def test_a_fingerprint_is_of_values_wherever_they_lie():
    images = torch.randint(0, 256, (3, 3, 6, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    own = fingerprints(images)
    assert torch.equal(fingerprints(images.contiguous(memory_format=torch.channels_last)), own)
    assert torch.equal(fingerprints(images[:1].expand(5, -1, -1, -1)), own[:1].expand(5))
    behind = torch.cat((torch.zeros(3, dtype=torch.uint8), images.flatten()))[3:].view_as(images)  # at an odd address
    assert torch.equal(fingerprints(behind), own)
    assert not (fingerprints(images.flip(3)) == own).any() and not (fingerprints(images.flip(1)) == own).any()


@pytest.mark.gpu
def test_a_gpu_finds_the_same_fingerprints():
    images = torch.randint(0, 256, (3, 3, 31, 45), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    there = images.cuda()
    with no_sync():
        own = fingerprints(there)
    assert torch.equal(own.cpu(), fingerprints(images))
