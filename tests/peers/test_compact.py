"""The compact model as reducers see it: its own features, attention by a plain loop, and answers from what is left."""

import copy
import math

import pytest
import torch

from homunculus.model.config import tiny
from homunculus.model.encoder import cells_of
from homunculus.model.rotary import turns
from homunculus.model.vlm import CompactVLM, look
from homunculus.peers import peers
from homunculus.peers.compact import on_grid, received, seen_whole
from homunculus.peers.layers import LAYER_PEERS
from homunculus.peers.tokens import BOTH, fingerprints
from tests.model.tiny import close, questions
from tests.peers.made import remembered

ASKED = ("What is the total?", "Who?")


@pytest.fixture(scope="module")
def model() -> CompactVLM:
    torch.manual_seed(2)
    return CompactVLM(tiny()).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return (torch.rand(2, 3, 96, 160, generator=torch.Generator().manual_seed(1)) * 255).to(torch.uint8)


def test_every_leaf_is_encoded_in_reading_order(model, images):
    seen = seen_whole(model, images)
    assert seen.grid == (10, 6) and seen.features.shape == (2, 60, 32) and seen.keys.shape == (2, 60, 32)
    across, down = seen.places[0, :, 1], seen.places[0, :, 2]
    assert across[:10].tolist() == [i + 0.5 for i in range(10)] and down[::10].tolist() == [i + 0.5 for i in range(6)]
    assert (seen.places[..., 0] == 0).all()
    tokens = look(images, torch.ones(2, 6, 10), 60, "uniform")
    cells = cells_of(tokens.allocation)
    wanted = model.encoder(tokens.patches, cells._replace(weights=torch.full_like(cells.weights, torch.nan)))
    assert torch.equal(seen.features, wanted)
    assert seen.relevance is None and torch.equal(seen.fingerprint, fingerprints(images))


@pytest.mark.parametrize("asked", [(), ("late",), ("early",), BOTH, {"early", "late"}])
def test_attention_that_nobody_asks_for_is_not_paid_for(model, images, asked, monkeypatch):
    whole, blocks = seen_whole(model, images), []

    def noting(block, *rest):
        blocks.append(block)
        return received(block, *rest)

    monkeypatch.setattr("homunculus.peers.compact.received", noting)
    seen = seen_whole(model, images, attention=asked)
    ends = {"late": model.encoder.blocks[-1], "early": model.encoder.blocks[0]}
    assert len(blocks) == len(asked) and all(ends[when] in blocks for when in asked)
    for when, ours, theirs in (("late", seen.attention, whole.attention), ("early", seen.early, whole.early)):
        assert torch.equal(ours, theirs) if when in asked else ours.shape == (2, 0)
    assert torch.equal(seen.features, whole.features) and torch.equal(seen.keys, whole.keys)


def test_leaves_are_told_a_density(model, images):
    """As cells are: the features are those of every leaf as a cell, of a density on any grid."""
    for grid in ((6, 10), (3, 4)):
        density = torch.rand(2, *grid, generator=torch.Generator().manual_seed(3)) ** 6
        tokens = look(images, density, 60, "uniform")
        cells = cells_of(tokens.allocation)
        assert torch.equal(seen_whole(model, images, density=density).features, model.encoder(tokens.patches, cells))
        assert cells.weights.std() > 1


@pytest.mark.parametrize("size", [(100, 70), (330, 48), (16, 16), (9, 200), (171, 173)])
def test_images_of_any_size_have_one_token_to_a_leaf(model, size):
    width, height = size
    seen = seen_whole(model, images := torch.rand(1, 3, height, width))
    columns, rows = max(1, round(width / 16)), max(1, round(height / 16))
    assert seen.grid == (columns, rows) and (seen.places[..., 0] == 0).all()
    across, down = torch.meshgrid(torch.arange(columns) + 0.5, torch.arange(rows) + 0.5, indexing="xy")
    assert torch.allclose(seen.places[0, :, 1], across.flatten(), atol=1e-4)
    assert torch.allclose(seen.places[0, :, 2], down.flatten(), atol=1e-4)
    relevance = on_grid(model.relevance(images, questions(ASKED[0])), seen.grid)
    assert relevance.sum().item() == pytest.approx(1, rel=1e-4) and seen.features.isfinite().all()


def test_keys_are_of_the_last_block_and_attention_of_the_last_and_the_first(model, images):
    """What goes into these two, through their weights by hand: norms, heads, turns and all."""
    model, generator, into = copy.deepcopy(model), torch.Generator().manual_seed(5), []
    first, last = model.encoder.blocks
    for block in (first, last):  # norms that matter, and looks that differ
        for norm in (block.norm, block.attention.query_norm, block.attention.keys_values.norm):
            norm.weight.data = 0.5 + 2 * torch.rand(norm.weight.shape, generator=generator)
        block.register_forward_pre_hook(lambda _, given: into.append(given[0]))
    seen = seen_whole(model, images)
    where = turns(seen.places, 16)

    def normal(x, norm):
        return x / (x.square().mean(-1, keepdim=True) + 1e-7).sqrt() * norm.weight

    for block, x, found in ((first, into[0], seen.early), (last, into[1], seen.attention)):
        attention = block.attention
        for image in range(2):
            cos, sin = where.cos[image, 0], where.sin[image, 0]
            flat, keys, looked = normal(x[image], block.norm), [], torch.zeros(60)
            for head in range(2):
                own = slice(16 * head, 16 * head + 16)  # weights of values lie behind those of all keys
                query = normal(flat @ attention.query.weight[own].T, attention.query_norm)
                key = normal(flat @ attention.keys_values.linear.weight[own].T, attention.keys_values.norm)
                (a, b), (c, d) = query.chunk(2, -1), key.chunk(2, -1)
                turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
                scores = turned @ torch.cat((c * cos - d * sin, c * sin + d * cos), -1).T / math.sqrt(16)
                looked += scores.softmax(-1).sum(0)
                keys.append(key)
            assert close(found[image], looked / 120, 1e-6)
            assert close(seen.keys[image], torch.cat(keys, -1), 1e-5) == (block is last)
    assert (seen.attention - seen.early).abs().max() > 1e-3


def test_attention_is_what_all_tokens_give(model, images, monkeypatch):
    """By a loop over heads, whole tables at once; and in parts of any size."""
    seen = seen_whole(model, images)
    for values in (seen.attention, seen.early):
        assert (values > 0).all() and close(values.sum(1), torch.ones(2), 1e-5)
    block, x = model.encoder.blocks[0], torch.randn(2, 60, 32, generator=torch.Generator().manual_seed(3))
    where = turns(seen.places, 16)
    normed = block.norm(x)
    query, key = block.attention.queries(normed, where), block.attention.keys_values(normed, where)[0]
    wanted = torch.zeros(2, 60)
    for image in range(2):
        for head in range(2):
            wanted[image] += (query[image, head] @ key[image, head].T / math.sqrt(16)).softmax(-1).mean(0) / 2
    assert close(received(block, x, where), wanted, 1e-6)
    monkeypatch.setattr("homunculus.peers.compact.ROWS", 7)
    assert close(received(block, x, where), wanted, 1e-6)


@pytest.mark.parametrize("peer", [*peers(), *LAYER_PEERS])
def test_every_peer_leaves_something_to_answer_from(model, images, peer):
    question = questions(*ASKED)
    seen = seen_whole(model, images)
    seen = seen._replace(relevance=on_grid(model.relevance(images, question), seen.grid))
    budget = 40 if peer in LAYER_PEERS else 12
    memory = remembered(model, seen, peer, budget, question)
    assert memory.counts == ((60, 20) if peer in LAYER_PEERS else (12, 12))
    assert model.decoder.write(memory, question, longest=5).letters.shape[0] == 2


def test_all_tokens_are_the_whole_image(model, images):
    """Keeping everything is full resolution, whichever peer does it."""
    seen, question = seen_whole(model, images), questions(*ASKED)
    seen = seen._replace(relevance=on_grid(model.relevance(images, question), seen.grid))
    whole = model.decoder.remember(
        seen.features, cells_of(look(images, torch.ones(2, 6, 10), 60, "uniform").allocation)
    )
    for peer in ("tome", "cdpruner", "fastv"):
        memory = remembered(model, seen, peer, 60, question)
        for ours, theirs in zip(memory.layers, whole.layers, strict=True):
            assert all(close(a, b, 1e-5) for a, b in zip(ours, theirs, strict=True))


def test_no_hook_stays(model, images):
    seen_whole(model, images)
    assert not any(block._forward_pre_hooks for block in model.encoder.blocks)


def test_attention_is_compared_in_full_precision_inside_autocast(model):
    """Queries and keys are what the model has; how alike they are is not rounded once more."""
    block, x = model.encoder.blocks[-1], torch.randn(1, 300, 32, generator=torch.Generator().manual_seed(3))
    where = turns(torch.rand(1, 300, 4, generator=torch.Generator().manual_seed(4)) * 20, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = received(block, x, where)
        normed = block.norm(x)
        query, key = block.attention.queries(normed, where), block.attention.keys_values(normed, where)[0]
    by_hand = (query.double() @ key.double().mT / 4).softmax(-1).mean(1).mean(1)
    assert query.dtype == torch.bfloat16 and found.dtype == torch.float32
    assert (found - by_hand).abs().max() < 1e-7
