"""Published reducers at stage `post`: exact counts, own places, every level alike, and nothing that a batch changes."""

import pytest
import torch

from homunculus.errors import AllocatorError, BudgetError, ImageError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.reducing import as_allocation, reduce_levels
from homunculus.integrations.qwen_vl.rope import places
from homunculus.integrations.qwen_vl.watching import Looks, watched
from homunculus.peers import Seen, get_peer, peers
from homunculus.peers.tokens import BOTH
from tests.qwen.tiny import (
    LEAF,
    generated,
    inputs_for,
    logits_of,
    make_model,
    make_moe_model,
    make_processor,
    picture,
    seen_positions,
)

QUESTIONS = ["what ?", "what is written at the top left of the page ?", "who signed in the footer ?"]


def relevance_for(name: str) -> dict:
    return {"relevance": "coarse-pass"} if get_peer(name).query else {}


def on_post(pair, budget, name, **how):
    model, processor = pair
    return qwen_vl.patch(model, processor, budget, "post", peer=name, **relevance_for(name) | how)


# ------------------------------------------------------------------------------------------- every one of them


def test_lots_are_drawn_by_pixels_and_not_by_what_the_tower_makes_of_them(pair):
    """On a device the last bits of features are another batch's other sums, here those of weights that were touched."""
    (model, processor), drawn = pair, []
    on_post(pair, 16, "random")
    for scale in (1, 1 + 1e-6):
        for weight in model.model.visual.parameters():
            weight.data.mul_(scale)
        logits_of(model, inputs_for(processor, [picture(256, 256), picture(256, 256, 1)], QUESTIONS[:2]))
        drawn.append(torch.cat([cells.boxes for cells in model.last_allocation]))
    assert torch.equal(*drawn) and not torch.equal(drawn[0][0], drawn[0][1])


@pytest.mark.parametrize("name", peers())
def test_every_peer_is_exact_and_alone_as_in_a_batch(pair, name):
    """Three sizes, two of one, texts of several lengths, left padding."""
    model, processor = pair
    on_post(pair, 16, name)
    images = [picture(256, 256), picture(160, 320, 1), picture(256, 256, 2)]
    inputs = inputs_for(processor, images, QUESTIONS)
    assert ((inputs["input_ids"] == model.config.image_token_id).sum(1) == 16).all()
    short = {"max_new_tokens": 3, "do_sample": False}
    together, logits = model.generate(**inputs, **short), logits_of(model, inputs)
    assert torch.equal(model.generate(**inputs, use_cache=False, **short), together)
    boxes = [allocation.boxes for allocation in model.last_allocation]
    assert [own.shape for own in boxes] == [(1, 16, 4)] * 3
    for i in range(3):
        alone = inputs_for(processor, images[i : i + 1], QUESTIONS[i : i + 1])
        found = logits_of(model, alone)[0, -1]
        assert torch.allclose(found, logits[i, -1], atol=1e-4) and found.argmax() == together[i, -3]
        assert torch.equal(model.last_allocation[0].boxes, boxes[i])


@pytest.mark.parametrize("name", ["tome", "aim", "visionzip", "cdpruner"])
def test_all_features_are_the_stock_model(pair, family, name):
    model, processor = pair
    leaf = LEAF[family]
    images = [picture(4 * leaf, 3 * leaf), picture(3 * leaf, 4 * leaf, 1)]
    inputs = inputs_for(processor, images, QUESTIONS[:2])
    expected = logits_of(model, inputs), generated(model, inputs), generated(model, inputs, num_beams=3)
    on_post(pair, 12, name)
    again = inputs_for(processor, images, QUESTIONS[:2])
    assert all(torch.equal(again[part], inputs[part]) for part in inputs)
    found = logits_of(model, again), generated(model, again), generated(model, again, num_beams=3)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_several_images_beams_and_budgets_of_their_own(pair):
    model, processor = pair
    on_post(pair, [16, 30], "tome")
    inputs = inputs_for(processor, [picture(256, 256), picture(300, 200, 1)], ["compare them"], images_each=2)
    assert (inputs["input_ids"] == model.config.image_token_id).sum() == 46
    for how in ({}, {"num_beams": 2}):
        assert torch.equal(generated(model, inputs, **how), generated(model, inputs, use_cache=False, **how))
    assert model._homunculus.last_plan.counts == [16, 30] and model._homunculus._reduced is None


def test_experts_half_precision_and_compiling(family):
    processor = make_processor(family)
    models = [make_model(processor).bfloat16(), *([make_moe_model(processor)] if family == "qwen3" else [])]
    for model in models:
        qwen_vl.patch(model, processor, 20, "post", peer="visionzip")
        inputs = inputs_for(processor, [picture(300, 200)], ["what ?"])
        assert torch.equal(generated(model, inputs), generated(model, inputs, use_cache=False))
    compiled = torch.compile(models[0], backend="eager")
    with torch.no_grad():
        assert torch.allclose(compiled(**inputs).logits, logits_of(models[0], inputs), atol=1e-2)


def test_the_tower_learns_through_what_is_left(pair):
    model, processor = pair
    on_post(pair, 16, "tome", cache_bytes=10**6)
    model.train()
    inputs = inputs_for(processor, [picture(256, 256)], ["what is written ?"])
    for _ in range(2):  # nothing of the first step's graph is kept
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        assert model.model.visual.patch_embed.proj.weight.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------- places and levels


def stock_levels(model, inputs):
    """The tower's last features and those of DeepStack, image by image."""
    with torch.no_grad():
        output = model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True)
    counts = [len(own) for own in output.pooler_output]
    deeper = getattr(output, "deepstack_features", None) or []
    deeper = [level.split(counts) if isinstance(level, torch.Tensor) else level for level in deeper]
    return [output.pooler_output, *deeper]


@pytest.mark.parametrize("name", ["divprune", "uniform", "visionzip"])
def test_tokens_stay_at_their_own_places_and_text_goes_on_where_it_would(pair, family, name):
    """What the language model is given, level by level, against the stock tower and the peer called by hand."""
    model, processor = pair
    leaf = LEAF[family]
    stock = inputs_for(processor, [picture(8 * leaf, 5 * leaf)], ["what is written ?"])
    plain, levels = seen_positions(model, stock), stock_levels(model, stock)
    with torch.no_grad(), watched(model.model.visual, stock["image_grid_thw"], [40], attention=BOTH) as looks:
        model.model.visual(stock["pixel_values"], stock["image_grid_thw"])
    keys, late, early = (own[None] for own in looks.of_images([40])[0])
    seen = Seen(levels[0][0][None], torch.zeros(1, 40, 1), (8, 5), keys, late, early)
    by_hand = get_peer(name)(seen, 16)

    on_post(pair, 16, name)
    inputs = inputs_for(processor, [picture(8 * leaf, 5 * leaf)], ["what is written ?"])
    given = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs), with_kwargs=True
    )
    positions = seen_positions(model, inputs)
    hook.remove()
    image = inputs["input_ids"][0] == model.config.image_token_id
    after = len(image) - int(image.nonzero().max()) - 1
    assert torch.equal(positions[:, 0, -after:].float(), plain[:, 0, -after:].float())
    start, index = float(positions[0, 0, image][0]), by_hand.index[0]
    assert torch.equal(positions[1, 0, image], start + index // 8)
    assert torch.equal(positions[2, 0, image], start + index % 8)
    assert torch.allclose(given[0]["inputs_embeds"][0, image], by_hand.features[0], atol=1e-5)
    for level, own in zip(levels[1:], given[0].get("deepstack_visual_embeds") or [], strict=True):
        if not get_peer(name).merges:
            assert torch.equal(own, level[0][index])
        assert own.shape == (16, 48)


def test_what_merges_as_equals_lies_at_the_mean_rounded(pair):
    """Tokens come in groups that are one and the same: the mean of their places is known."""
    from homunculus.integrations.qwen_vl.layout import Layout
    from homunculus.integrations.qwen_vl.plan import Plan

    groups = torch.tensor([0, 0, 1, 1, 1, 1, 2, 2])  # of 4 x 2 leaves
    features = torch.eye(3)[groups][None]
    looks = Looks(features, *torch.zeros(2, 1, 0))
    left, reduced = reduce_levels(get_peer("aim"), [features], looks, None, (4, 2), 3, {})
    assert torch.allclose(left[0][0], torch.eye(3))
    allocation = as_allocation(reduced, (4, 2), Layout(14))
    assert torch.allclose(allocation.scores[0], torch.tensor([2, 4, 2]) / 8)
    plan = Plan((allocation,), ((4, 2),), ((0,),))
    true = [[0, 0.5], [0.5, 1.5], [1, 2.5]]  # leaves 2 to 5 are (0, 2), (0, 3), (1, 0) and (1, 1)
    assert places(plan, "true")[:, 1:].tolist() == true
    assert places(plan, "rounded")[:, 1:].tolist() == [[0, 0], [0, 2], [1, 2]]  # halves to the even

    model, processor = pair
    for how, whole in (({}, True), ({"positions": "true"}, False)):
        on_post(pair, 16, "tome", **how)
        positions = seen_positions(model, inputs_for(processor, [picture(256, 160)], ["what ?"]))
        assert torch.equal(positions, positions.round()) == whole
        qwen_vl.unpatch(model)


# ------------------------------------------------------------------------------------- questions and chats


def test_a_region_draws_the_tokens_of_a_peer_that_hears(pair):
    model, processor = pair
    on_post(pair, 16, "cdpruner", relevance=None, region=(0.0, 0.5, 0.5, 1.0))
    logits_of(model, inputs_for(processor, [picture(512, 512)], ["what is at the top right ?"]))
    centres = model.last_allocation[0].centers[0]
    inside = (centres[:, 0] < 256) & (centres[:, 1] > 256)
    assert inside.sum() >= 15


def test_the_question_and_nothing_else_moves_what_is_left(pair):
    """A blind peer keeps the same for every question; one that hears does so only if it is told to keep."""
    model, processor = pair
    asked = ["what ?", "assistant system"]
    for name, how, same in (("visionzip", {}, True), ("cdpruner", {}, False), ("cdpruner", {"keep": True}, True)):
        on_post(pair, 16, name, **how)
        boxes = []
        for question in asked:
            logits_of(model, inputs_for(processor, [picture(400, 400)], [question]))
            boxes.append(model.last_allocation[0].boxes)
        assert torch.equal(*boxes) == same
        qwen_vl.unpatch(model)


@pytest.mark.parametrize("name", ["visionzip", "cdpruner"])
def test_the_tower_runs_once_for_an_image_that_is_remembered(pair, name):
    """Keys and attention are remembered with the features."""
    model, processor = pair
    seen, answers = [], []
    hook = model.model.visual.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    for cache_bytes in (0, 10**7):
        on_post(pair, 16, name, relevance="detail" if name == "cdpruner" else None, cache_bytes=cache_bytes)
        seen.clear()
        for numbers in ([0, 1], [1, 2], [0, 1]):
            images = [picture(300, 200, number) for number in numbers]
            answers.append(logits_of(model, inputs_for(processor, images, ["what ?"] * 2)))
        rows = seen[0] // 2
        assert seen == ([2 * rows] * 3 if cache_bytes == 0 else [2 * rows, rows])
        qwen_vl.unpatch(model)
    hook.remove()
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(answers[:3], answers[3:], strict=True))


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"peer": "tome", "stage": "pre"}, "tome reduces features of the whole image: give stage='post', got 'pre'"),
        ({"peer": "tome", "stage": "views"}, "give stage='post', got 'views'"),
        (
            {"peer": "fastv"},
            "fastv acts in layers of our own language model and cannot reduce another's features: choose",
        ),
        ({"peer": "dyrate"}, "dyrate acts while our own language model writes and cannot"),
        ({"peer": "variable"}, "variable counts cells for each image of our own model and cannot"),
        ({"peer": "combined"}, "combined acts in several parts of our own model and cannot"),
        ({"peer": "whole"}, "whole reads all tokens and cannot"),
        ({"peer": "nobody"}, f"unknown peer 'nobody': choose from {', '.join(peers())}"),  # and none that is refused
        ({"peer": ["tome"]}, "a peer is given by name, got list"),
        ({"peer": "prumerge"}, "unknown peer 'prumerge': did you mean 'prumerge+'?"),
        ({"peer": "tome", "allocator": "topk"}, "tome and topk both choose what is left: give a peer or an allocator"),
        ({"peer": "cdpruner"}, "cdpruner needs to know what is asked: give relevance, such as 'coarse-pass'"),
        ({"peer": "tome", "relevance": "detail"}, "tome is blind to the question: leave out relevance, region and"),
        ({"peer": "tome", "expect": ["what ?"]}, "tome is blind to the question"),
        ({"peer": "tome", "fixation": (1, 1)}, "tome has no fovea: leave out fixation and words for region"),
        ({"peer": "cdpruner", "relevance": "detail", "region": "the footer"}, "cdpruner has no fovea"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(pair, how, message):
    model, processor = pair
    with pytest.raises(AllocatorError) as refused:
        qwen_vl.patch(model, processor, 16, **{"stage": "post"} | how)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert not hasattr(model, "_homunculus") and "generate" not in vars(model)


def test_options_and_counts_are_checked(pair, family):
    model, processor = pair
    leaf = LEAF[family]
    on_post(pair, 16, "visionzip", crops=2)
    inputs = inputs_for(processor, [picture(256, 256)], ["what ?"])
    with pytest.raises(AllocatorError, match="visionzip has no option 'crops': it takes dominant"):
        logits_of(model, inputs)
    qwen_vl.unpatch(model)
    with pytest.raises(BudgetError, match="positive whole number"):
        on_post(pair, 0, "tome")
    on_post(pair, 30, "tome")
    many = inputs_for(processor, [picture(256, 256)], ["what ?"])
    qwen_vl.unpatch(model)
    few = inputs_for(processor, [picture(4 * leaf, 3 * leaf)], ["what ?"])
    on_post(pair, 12, "tome")
    with pytest.raises(ImageError, match="30 placeholders for an image of 4x3 cells"):
        logits_of(model, many | {part: few[part] for part in ("pixel_values", "image_grid_thw")})
    assert logits_of(model, few).isfinite().all()  # the session goes on
