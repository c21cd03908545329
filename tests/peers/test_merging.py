"""What merging peers promise, against plain loops over tokens: mass, means, who joins whom."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.peers import get_peer
from homunculus.peers.bipartite import merged, single
from homunculus.peers.prumerge import stands_out
from homunculus.peers.tome import round_sizes
from tests.peers.made import alone, cosine, made, numbers

# -------------------------------------------------------------------------------------------------------- tome and aim


def plain_merging(features, places, keys, sizes, weigh=lambda alike: 1.0):
    """Groups as a list of dictionaries; in each round pairs are sorted and merged one after another."""
    groups = [
        {"values": (features[i], places[i], keys[i]), "first": i, "mass": 1.0, "members": [i]} for i in range(len(keys))
    ]
    for pairs in sizes:
        looking, found = groups[::2], groups[1::2]
        best = []
        for number, group in enumerate(looking):
            likeness = [cosine(group["values"][2], other["values"][2]) for other in found]
            best.append((-max(likeness), number, int(np.argmax(likeness))))
        taken = sorted(best)[:pairs]
        joining: dict[int, list] = {}
        for _, number, partner in taken:
            joining.setdefault(partner, []).append(looking[number])
        staying = [g for number, g in enumerate(looking) if number not in {t[1] for t in taken}]
        for partner, group in enumerate(found):
            newcomers = joining.get(partner, [])
            shares = [group["mass"]]
            shares += [other["mass"] * weigh(cosine(other["values"][2], group["values"][2])) for other in newcomers]
            everyone = [group, *newcomers]
            staying.append(
                {
                    "values": tuple(
                        sum(s * g["values"][v] for s, g in zip(shares, everyone, strict=True)) / sum(shares)
                        for v in range(3)
                    ),
                    "first": min(g["first"] for g in everyone),
                    "mass": sum(g["mass"] for g in everyone),
                    "members": sorted(i for g in everyone for i in g["members"]),
                }
            )
        groups = sorted(staying, key=lambda g: g["first"])
    return groups


def agrees(reduced, groups) -> None:
    assert reduced.index[0].tolist() == [g["first"] for g in groups]
    assert reduced.mass[0].tolist() == [g["mass"] for g in groups]
    assert np.allclose(numbers(reduced.features[0]), [g["values"][0] for g in groups], atol=1e-4)
    assert np.allclose(numbers(reduced.places[0]), [g["values"][1] for g in groups], atol=1e-4)


@given(st.integers(0, 500), st.integers(1, 35), st.integers(1, 6))
@settings(max_examples=25)
def test_tome_is_what_a_loop_merges(seed, budget, rounds):
    seen = made(2, (7, 5), seed=seed)
    reduced = get_peer("tome")(seen, budget, rounds=rounds)
    one = alone(seen, 0)
    sizes = round_sizes(35, budget, rounds)
    groups = plain_merging(*(numbers(v[0]) for v in (one.features, one.places, one.keys)), sizes)
    agrees(reduced, groups)
    for group, feature in zip(groups, numbers(reduced.features[0]), strict=True):  # the mean of its members
        assert np.allclose(feature, numbers(one.features[0])[group["members"]].mean(0), atol=1e-4)


@given(st.integers(0, 500), st.integers(1, 35), st.floats(-0.5, 0.9), st.sampled_from([0.02, 0.1, 1.0]))
@settings(max_examples=25)
def test_soft_tome_is_what_a_loop_merges(seed, budget, threshold, temperature):
    seen = made(1, (7, 5), seed=seed)
    reduced = get_peer("tome-soft")(seen, budget, rounds=3, threshold=threshold, temperature=temperature)
    given_ = (numbers(v[0]) for v in (seen.features, seen.places, seen.keys))
    sizes = round_sizes(35, budget, 3)
    agrees(reduced, plain_merging(*given_, sizes, lambda alike: 1 / (1 + np.exp((threshold - alike) / temperature))))


@given(st.integers(0, 500), st.integers(1, 47))
@settings(max_examples=25)
def test_aim_is_what_a_loop_halves(seed, budget):
    seen = made(1, (8, 6), seed=seed)
    left, sizes = 48, []
    while left > budget:
        sizes.append(left // 2 if left - left // 2 >= budget else left - budget)
        left -= sizes[-1]
    features = numbers(seen.features[0])
    agrees(get_peer("aim")(seen, budget), plain_merging(features, numbers(seen.places[0]), features, sizes))


@pytest.mark.parametrize("name", ["tome", "tome-soft", "aim"])
@pytest.mark.parametrize("budget", [1, 5, 31, 62])
def test_mass_is_conserved(name, budget):
    seen = made(3, (9, 7))
    reduced = get_peer(name)(seen, budget)
    assert (reduced.mass.sum(1) == 63).all()
    assert torch.equal(reduced.mass, reduced.mass.round())
    mean = (reduced.features * reduced.mass[..., None]).sum(1) / 63
    held = torch.allclose(mean, seen.features.mean(1), atol=1e-5)
    assert held == (name != "tome-soft")  # hardly alike tokens are not averaged there
    if name != "tome-soft":
        assert torch.allclose((reduced.places * reduced.mass[..., None]).sum(1) / 63, seen.places.mean(1), atol=1e-4)


def test_mass_is_conserved_in_bfloat16():
    reduced = get_peer("tome")(made(1, (64, 32), channels=4, dtype=torch.bfloat16), 2)
    assert reduced.mass.sum() == 2048 and reduced.features.dtype == torch.bfloat16


def test_the_best_pairs_merge_and_no_other():
    """Of 8 pairs of twins apart by one place, three are nearly the same."""
    generator = torch.Generator().manual_seed(0)
    base = torch.eye(16)[:8].repeat_interleave(2, 0)
    apart = torch.tensor([0.5, 0.01, 0.5, 0.02, 0.5, 0.5, 0.03, 0.5]).repeat_interleave(2)
    keys = base + apart[:, None] * torch.randn(16, 16, generator=generator)
    seen = made(1, (16, 1))._replace(keys=keys[None])
    groups = merged(single(seen, seen.keys), 3)
    assert groups.first[0].tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15]
    assert [i for i, mass in zip(groups.first[0].tolist(), groups.mass[0].tolist(), strict=True) if mass == 2] == [
        2,
        6,
        12,
    ]


def test_softness_lies_between_pruning_and_merging():
    seen = made()
    hard = get_peer("tome")(seen, 9)
    merges = get_peer("tome-soft")(seen, 9, threshold=-10.0)
    assert torch.equal(merges.index, hard.index) and torch.allclose(merges.features, hard.features, atol=1e-5)
    prunes = get_peer("tome-soft")(seen, 9, threshold=10.0)
    distance = (prunes.features[:, :, None] - seen.features[:, None]).abs().amax(-1)
    assert distance.amin(2).max() < 1e-6 and (prunes.mass.sum(1) == 48).all()  # tokens as they were
    middle = get_peer("tome-soft")(seen, 9, threshold=0.5)
    assert torch.cdist(middle.features, seen.features).amin(2).max() > 0.1


def test_softness_can_learn():
    seen = made()
    threshold, temperature = (torch.tensor(value, requires_grad=True) for value in (0.4, 0.2))
    keys = seen.keys.clone().requires_grad_()
    reduced = get_peer("tome-soft")(seen._replace(keys=keys), 20, threshold=threshold, temperature=temperature)
    reduced.features.square().sum().backward()
    assert all(value.grad.isfinite().all() and value.grad.any() for value in (threshold, temperature, keys))


def test_halving_goes_faster_than_equal_rounds():
    assert round_sizes(4096, 273, 12) == [*[319] * 11, 293, 21]
    assert sum(round_sizes(4096, 1, 12)) == 4095
    assert not torch.equal(get_peer("tome")(made(), 9).mass, get_peer("aim")(made(), 9).mass)


# ----------------------------------------------------------------------------------------- visionzip, prumerge+, vscan


def plain_top(values, count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]


@given(st.integers(0, 500), st.integers(1, 48))
@settings(max_examples=30)
def test_visionzip_keeps_the_dominant_and_sums_up_the_others(seed, budget):
    seen = made(2, seed=seed)
    reduced = get_peer("visionzip")(seen, budget)
    features, keys, attention = (numbers(v[1]) for v in (seen.features, seen.keys, seen.attention))
    dominant = plain_top(attention, int(np.floor(budget * 54 / 64 + 0.5)))
    others = [i for i in range(48) if i not in dominant]
    number = budget - len(dominant)
    targets = [others[i * len(others) // number] for i in range(number)]
    joined: dict[int, list] = {target: [] for target in targets}
    for i in others if targets else []:
        if i not in targets:
            joined[max(targets, key=lambda t: cosine(keys[i], keys[t]))].append(i)
    assert reduced.index[1].tolist() == sorted(dominant + targets)
    for i, feature, mass in zip(reduced.index[1].tolist(), numbers(reduced.features[1]), reduced.mass[1], strict=True):
        theirs = joined.get(i, [])
        wanted = (features[i] + features[theirs].mean(0)) / 2 if theirs else features[i]
        assert np.allclose(feature, wanted, atol=1e-5) and mass == 1 + len(theirs)
    assert reduced.mass[1].sum() == (48 if targets else budget)


def test_visionzip_shares_as_told():
    seen = made(1, (16, 16))
    attention = numbers(seen.attention[0])
    for share, number in ((54 / 64, 54), (0.5, 32), (0.0, 0), (1.0, 64)):
        reduced = get_peer("visionzip")(seen, 64, dominant=share)
        assert set(plain_top(attention, number)) <= set(reduced.index[0].tolist())
        assert (reduced.mass == 1).sum() >= number
    assert torch.equal(reduced.features[0], seen.features[0, reduced.index[0]])  # all dominant: nothing is changed


@given(st.integers(0, 500), st.integers(1, 48), st.sampled_from([0, 3, 32]), st.booleans())
@settings(max_examples=30)
def test_prumerge_keeps_a_grid_and_what_stands_out_and_adds_by_attention(seed, budget, neighbours, grid_first):
    seen = made(2, seed=seed)
    reduced = get_peer("prumerge+")(seen, budget, neighbours=neighbours, grid_first=grid_first)
    features, keys, attention = (numbers(v[0]) for v in (seen.features, seen.keys, seen.attention))
    low, high = np.percentile(attention, [25, 75])
    by_attention = sorted(range(48), key=lambda i: (-attention[i], i))
    outliers = [i for i in by_attention if attention[i] > high + 1.5 * (high - low)]
    assert stands_out(seen.attention)[0].nonzero().flatten().tolist() == sorted(outliers)
    chosen = reduced.index[0].tolist()
    grid = get_peer("uniform")(seen, budget // 2).index[0].tolist() if budget > 1 else []
    both = [grid, outliers] if grid_first else [outliers, [i for i in by_attention if i in grid]]
    line = list(dict.fromkeys([*both[0], *both[1], *by_attention]))
    assert set(chosen) == set(line[:budget])
    others = [i for i in range(48) if i not in chosen]
    taken = {i: sorted(others, key=lambda o: -cosine(keys[i], keys[o]))[:neighbours] for i in chosen}
    times = [sum(o in theirs for theirs in taken.values()) for o in range(48)]
    for i, feature, mass in zip(chosen, numbers(reduced.features[0]), reduced.mass[0].tolist(), strict=True):
        assert np.allclose(feature, features[i] + attention[taken[i]] @ features[taken[i]], atol=1e-5)
        assert mass == pytest.approx(1 + sum(1 / times[o] for o in taken[i]), rel=1e-5)


def test_prumerge_keeps_places_for_the_grid_when_more_stands_out_than_there_is_room():
    """As of 4096 tokens, of which some four hundred stand out and 273 are kept."""
    seen = made(1, (16, 16))
    attention = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    attention[:5, :9] += 100  # 45 of 256
    shares = seen._replace(attention=attention.flatten()[None] / attention.sum())
    reduced = get_peer("prumerge+")(shares, 24, grid_first=True)
    most = attention.flatten().argsort(descending=True).tolist()
    assert set(get_peer("prumerge+")(shares, 24).index[0].tolist()) == {*most[:24]}  # and otherwise nothing is left
    assert int(stands_out(attention.flatten()[None]).sum()) == 45
    grid, chosen = get_peer("uniform")(seen, 12).index[0].tolist(), reduced.index[0].tolist()
    on_it = {i for i in grid if i // 16 < 5 and i % 16 < 9}  # points that stand out count once
    first = [i for i in most if i not in grid][:12]
    assert len(on_it) > 1 and set(chosen) == {*grid, *first}
    for share, points in ((0.0, 0), (0.25, 6), (1.0, 24)):
        kept = get_peer("prumerge+")(shares, 24, grid=share, grid_first=True).index[0]
        line = get_peer("uniform")(seen, points).index[0].tolist() if points else []
        assert set(line) <= set(kept.tolist()) and len(kept) == 24


@given(st.integers(0, 500), st.integers(1, 48))
@settings(max_examples=30)
def test_vscan_takes_half_by_all_and_half_by_window(seed, budget):
    seen = made(2, seed=seed)
    reduced = get_peer("vscan")(seen, budget)
    features, keys, attention, early = (numbers(v[1]) for v in (seen.features, seen.keys, seen.attention, seen.early))
    chosen = reduced.index[1].tolist()
    overall = plain_top(attention, -(-budget // 2))
    assert set(overall) <= set(chosen)
    side = min(4, max(1, int((budget // 2) ** 0.5)))
    window = [(i // 8) * side // 6 * side + (i % 8) * side // 8 for i in range(48)]
    local = [i for i in chosen if i not in overall]
    counts = []
    for number in range(side * side):
        free = [i for i in range(48) if window[i] == number and i not in overall]
        mine = [i for i in local if window[i] == number]
        best = sorted(free, key=lambda i: (-early[i], i))[: len(mine)]
        assert sorted(best) == mine  # the most looked at of its window
        counts.append((len(mine), len(free)))
    fullest = max(count for count, _ in counts)
    assert all(count >= min(fullest - 1, free) for count, free in counts)  # as equal as windows allow
    joined: dict[int, list] = {i: [i] for i in chosen}
    for i in range(48):
        if i not in chosen:
            joined[max(chosen, key=lambda c: cosine(keys[i], keys[c]))].append(i)
    for i, feature, mass in zip(chosen, numbers(reduced.features[1]), reduced.mass[1], strict=True):
        assert np.allclose(feature, features[joined[i]].mean(0), atol=1e-5) and mass == len(joined[i])
    assert reduced.mass[1].sum() == 48
