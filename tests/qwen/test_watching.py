"""What a tower tells of itself: keys, how much leaves are looked at, and nothing that nobody asks for."""

import sys

import pytest
import torch

from homunculus.integrations.qwen_vl.watching import received, watched
from homunculus.peers import get_peer, kept, peers, register
from homunculus.peers import registry as peer_registry
from homunculus.peers.tokens import BOTH
from tests.qwen.test_peers import QUESTIONS, on_post
from tests.qwen.tiny import LEAF, inputs_for, logits_of, make_model, make_processor, picture


def in_reading_order(values, columns, lines, side):
    """Of one image, whose leaves the tower has window by window; by a loop over the windows."""
    order = [
        line * columns + column
        for top in range(0, lines, side)
        for left in range(0, columns, side)
        for line in range(top, min(top + side, lines))
        for column in range(left, min(left + side, columns))
    ]
    found = torch.empty_like(values)
    for value, leaf in zip(values, order, strict=True):
        found[leaf] = value
    return found


def test_attention_and_keys_are_those_of_the_tower(family, monkeypatch):
    """Against the tables that eager attention makes, and what the layer that makes keys gives out."""
    processor = make_processor(family)
    model = make_model(processor, "eager")
    visual, leaf = model.model.visual, LEAF[family]
    grids = [(5, 3), (4, 7)]
    inputs = inputs_for(processor, [picture(c * leaf, r * leaf, c) for c, r in grids], QUESTIONS[:2])
    library = sys.modules[type(visual.blocks[0].attn).__module__]
    stock, tables, made = library.eager_attention_forward, {}, {}

    def noting(module, *args, **kwargs):
        output, weights = stock(module, *args, **kwargs)
        tables.setdefault(module, []).append(weights[0])
        return output, weights

    monkeypatch.setattr(library, "eager_attention_forward", noting)
    early, late = (0, 3) if family == "qwen3" else (1, 3)  # the first and the last with full attention
    hook = visual.blocks[late].attn.qkv.register_forward_hook(lambda module, args, output: made.update(qkv=output))
    with torch.no_grad(), watched(visual, inputs["image_grid_thw"], [15, 28], attention=BOTH) as seen:
        visual(inputs["pixel_values"], inputs["image_grid_thw"])
    hook.remove()
    looks = seen.of_images([15, 28])
    keys = made["qkv"][:, 32:64].split([60, 112])
    for image, (columns, lines) in enumerate(grids):
        side = 2 if family == "qwen2.5" else max(columns, lines)  # leaves to a window
        for own, block in ((looks[image].early, early), (looks[image].late, late)):
            table = tables[visual.blocks[block].attn][image]  # [heads, patches, patches]
            wanted = in_reading_order(table.mean((0, 1)).view(-1, 4).sum(1), columns, lines, side)
            assert torch.allclose(own, wanted, atol=1e-6) and own.sum() == pytest.approx(1)
        wanted = in_reading_order(keys[image].view(-1, 4, 32).mean(1), columns, lines, side)
        assert torch.allclose(looks[image].keys, wanted, atol=1e-6)


def test_attention_is_the_same_in_parts_of_any_size(monkeypatch):
    query, key = torch.randn(2, 50, 3, 8, generator=torch.Generator().manual_seed(0))
    whole = received(query, key, 0.3)
    monkeypatch.setattr("homunculus.integrations.qwen_vl.watching.ROWS", 7)
    assert torch.allclose(received(query, key, 0.3), whole, atol=1e-6)


@pytest.mark.parametrize("name", peers())
def test_attention_is_not_paid_for_unless_a_peer_asks(pair, name, monkeypatch):
    """Blocks that are computed once more: the late one for keys, and as often as somebody asks for attention."""
    model, processor = pair
    asked, again = [], []

    def noting(*args):
        asked.append(1)
        return received(*args)

    monkeypatch.setattr("homunculus.integrations.qwen_vl.watching.received", noting)
    on_post(pair, 16, name, **{"relevance": "detail"} if get_peer(name).query else {})  # for which no tower runs
    for number, block in enumerate(model.model.visual.blocks):
        block.attn.qkv.register_forward_hook(lambda *_, own=number: again.append(own))
    logits_of(model, inputs_for(processor, [picture(256, 256)], ["what ?"]))
    tables = {"visionzip": 1, "prumerge+": 1, "hired": 2, "vscan": 2}.get(name, 0)
    assert len(asked) == tables
    early, late = min(full_blocks(model)), max(full_blocks(model))
    assert [again.count(number) for number in (early, late)] == [1 + (tables == 2), 2]
    assert not any(block.attn._forward_pre_hooks for block in model.model.visual.blocks)


def full_blocks(model):
    visual = model.model.visual
    return getattr(visual, "fullatt_block_indexes", range(len(visual.blocks)))


def test_only_what_is_asked_for_is_noted(pair):
    model, processor = pair
    inputs = inputs_for(processor, [picture(256, 256), picture(300, 200, 1)], QUESTIONS[:2])
    grids = inputs["image_grid_thw"]
    leaves = (grids.prod(1) // 4).tolist()
    found = {}
    for asked in (BOTH, ("late",), ("early",), ()):
        with torch.no_grad(), watched(model.model.visual, grids, leaves, attention=asked) as seen:
            model.model.visual(inputs["pixel_values"], grids)
        found[asked] = seen.of_images(leaves)
    for asked, looks in found.items():
        for own, whole in zip(looks, found[BOTH], strict=True):
            assert torch.equal(own.keys, whole.keys)
            for when in BOTH:
                ours, theirs = getattr(own, when), getattr(whole, when)
                assert torch.equal(ours, theirs) if when in asked else ours.shape == (0,)


def test_anybody_can_add_a_peer_that_works_here(pair, monkeypatch):
    monkeypatch.setattr(peer_registry, "_REGISTRY", dict(peer_registry._REGISTRY))

    @register("most-early", "by early attention", attention=("early",))
    def most_early(seen, budget, *, seed=0):
        assert seen.attention.shape[1] == 0
        return kept(seen, seen.early.topk(budget).indices)

    model, processor = pair
    on_post(pair, 16, "most-early")
    assert logits_of(model, inputs_for(processor, [picture(256, 256)], ["what ?"])).isfinite().all()
    assert len(model.last_allocation[0].boxes[0]) == 16
