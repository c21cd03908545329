"""Published reducers act on every level of a tower's features alike: what one drops all drop, and means are equal."""

import pytest
import torch

from homunculus.integrations.qwen_vl.reducing import leaf_places, reduce_levels
from homunculus.integrations.qwen_vl.watching import Looks
from homunculus.peers import Seen, get_peer, peers

MERGING = [name for name in peers() if get_peer(name).merges]


def random_levels(seed=0, images=2, leaves=30, widths=(12, 30, 7)):
    draw = torch.Generator().manual_seed(seed)
    levels = [torch.randn(images, leaves, width, generator=draw) for width in widths]
    attention = torch.rand(2, images, leaves, generator=draw)
    return levels, Looks(torch.randn(images, leaves, 9, generator=draw), *attention)


@pytest.mark.parametrize("name", MERGING)
@pytest.mark.parametrize("size", [1.0, 1e6])
def test_every_level_is_merged_by_the_weights_of_the_first(name, size):
    """One level is the identity, so what it becomes says how each token is made up; however large the others are."""
    levels, looks = random_levels()
    levels[1] = torch.eye(30).expand(2, -1, -1) * size
    levels[2] = levels[2] * size
    left, reduced = reduce_levels(get_peer(name), levels, looks, None, (6, 5), 8, {})
    weights = left[1] / size
    assert (weights >= 0).all() and (weights > 0).sum() > 16
    total = torch.ones(2, 8)
    if name == "prumerge+":  # adds to a token, by shares of attention, all of the 22 that are given up
        total += 1 - (looks.late / looks.late.sum(1, keepdim=True)).gather(1, reduced.index).sum(1, keepdim=True)
    assert torch.allclose(weights.sum(2), total)
    for before, after in zip(levels, left, strict=True):
        assert torch.allclose(after, weights @ before, atol=2e-6 * float(before.abs().max()))
    alone = get_peer(name)(
        Seen(levels[0], leaf_places((6, 5), torch.device("cpu")).expand(2, -1, -1), (6, 5), *looks), 8
    )
    assert torch.equal(reduced.index, alone.index) and torch.equal(reduced.mass, alone.mass)
    assert torch.allclose(left[0], alone.features, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in peers() if name not in MERGING])
def test_every_level_is_dropped_alike(name):
    levels, looks = random_levels()
    relevance = torch.rand(2, 30, generator=torch.Generator().manual_seed(1))
    left, reduced = reduce_levels(get_peer(name), levels, looks, relevance, (6, 5), 8, {})
    for before, after in zip(levels, left, strict=True):
        assert all(torch.equal(after[image], before[image, reduced.index[image]]) for image in range(2))
