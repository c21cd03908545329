"""A tiny Qwen3-VL on a budget: equal to stock with every leaf kept, exact in number, and gone again when unpatched."""

import random

import pytest
import torch

from homunculus.errors import AllocatorError, BudgetError, ImageError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.layout import bilinear_taps, patch_positions, token_positions
from homunculus.integrations.qwen_vl.patching import PatchError
from tests.qwen.tiny import LEAF, inputs_for, make_model, make_processor, picture

EVERY_LEAF = 12  # of a picture of 4 x 3 leaves


@pytest.fixture(params=["qwen3", "qwen2.5"])
def family(request):
    return request.param


@pytest.fixture
def pair(family):
    processor = make_processor(family)
    return make_model(processor), processor


def logits_of(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def generated(model, inputs, **how):
    return model.generate(**inputs, max_new_tokens=6, **({"do_sample": False} | how))


# ------------------------------------------------------------------------------------------- every leaf kept


@pytest.mark.parametrize("stage", ["pre", "post", "views"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_leaf_is_the_stock_model(stage, attention, family):
    processor = make_processor(family)
    model = make_model(processor, attention)
    leaf = LEAF[family]
    images = [picture(4 * leaf, 3 * leaf), picture(3 * leaf, 4 * leaf, 1)]
    questions = ["what is it ?", "and this one at the top ?"]
    inputs = inputs_for(processor, images, questions)
    expected, tokens = logits_of(model, inputs), generated(model, inputs)
    beams = generated(model, inputs, num_beams=3)
    qwen_vl.patch(model, processor, EVERY_LEAF, stage)
    again = inputs_for(processor, images, questions)
    assert all(torch.equal(again[name], inputs[name]) for name in inputs)
    found = logits_of(model, again)
    real = inputs["attention_mask"].bool()
    assert torch.allclose(found[real], expected[real], atol=1e-5)
    assert torch.equal(generated(model, again), tokens)
    assert torch.equal(generated(model, again, num_beams=3), beams)


def test_unpatching_gives_everything_back(pair):
    model, processor = pair
    inputs = inputs_for(processor, [picture(200, 150)], ["what ?"])
    expected, before = logits_of(model, inputs), set(vars(model)) | set(vars(model.model))
    size = dict(processor.image_processor.size)
    qwen_vl.patch(model, processor, 16)
    assert inputs_for(processor, [picture(200, 150)], ["what ?"])["input_ids"].shape != inputs["input_ids"].shape
    qwen_vl.unpatch(model)
    assert set(vars(model)) | set(vars(model.model)) == before and dict(processor.image_processor.size) == size
    assert not model.model._forward_pre_hooks and not model.model._forward_hooks
    again = inputs_for(processor, [picture(200, 150)], ["what ?"])
    assert all(torch.equal(again[name], inputs[name]) for name in inputs)
    assert torch.equal(logits_of(model, again), expected)
    with pytest.raises(PatchError, match="not patched"):
        qwen_vl.unpatch(model)


def test_another_model_of_the_class_is_left_alone(pair):
    model, processor = pair
    other = make_model(processor)
    qwen_vl.patch(model, processor, 16)
    assert "get_image_features" not in vars(other.model) and "get_rope_index" not in vars(other.model)
    assert "generate" not in vars(other)


# ------------------------------------------------------------------------------------------------- the budget


def test_exactly_the_budget_for_any_size(pair):
    model, processor = pair
    dice = random.Random(0)
    token = model.config.image_token_id
    qwen_vl.patch(model, processor, 20)
    for _ in range(50):
        size = dice.randint(1, 600), dice.randint(1, 600)
        if max(size) / min(size) > 150:  # beyond 200 the stock processor refuses
            continue
        inputs = inputs_for(processor, [picture(*size)], ["what ?"])
        assert (inputs["input_ids"] == token).sum() == 20
        session = model._homunculus
        logits_of(model, inputs)
        (allocation,) = session.last_plan.allocations
        assert allocation.budget == 20 and allocation.boxes.unique(dim=1).shape[1] == 20


def test_budgets_of_their_own(pair):
    model, processor = pair
    qwen_vl.patch(model, processor, [16, 30])
    inputs = inputs_for(processor, [picture(256, 256), picture(300, 200)], ["compare them"], images_each=2)
    assert (inputs["input_ids"] == model.config.image_token_id).sum() == 46
    assert logits_of(model, inputs).isfinite().all()
    assert model._homunculus.last_plan.counts == [16, 30]


@pytest.mark.parametrize("stage", ["pre", "post", "views"])
def test_a_batch_is_its_members_alone(pair, stage):
    """Different sizes, different lengths of text, left padding."""
    model, processor = pair
    qwen_vl.patch(model, processor, 16, stage)
    images = [picture(256, 256), picture(160, 320, 1), picture(400, 100, 2)]
    questions = ["what ?", "what is written at the top left of the page ?", "who signed in the footer ?"]
    together = generated(model, inputs_for(processor, images, questions))
    logits = logits_of(model, inputs_for(processor, images, questions))
    for i in range(3):
        alone = inputs_for(processor, images[i : i + 1], questions[i : i + 1])
        assert torch.equal(generated(model, alone)[0, -6:], together[i, -6:])
        assert torch.allclose(logits_of(model, alone)[0, -1], logits[i, -1], atol=1e-4)


@pytest.mark.parametrize("stage", ["pre", "post", "views"])
@pytest.mark.parametrize("how", [{}, {"num_beams": 2}])
def test_the_cache_changes_nothing(pair, stage, how):
    model, processor = pair
    qwen_vl.patch(model, processor, 20, stage)
    inputs = inputs_for(processor, [picture(256, 256), picture(256, 200, 1)], ["what ?", "who signed at the top ?"])
    assert torch.equal(generated(model, inputs, **how), generated(model, inputs, use_cache=False, **how))


def test_several_images_in_one_prompt(pair):
    model, processor = pair
    qwen_vl.patch(model, processor, 16)
    inputs = inputs_for(processor, [picture(256, 256), picture(100, 200, 1)], ["which is darker ?"], images_each=2)
    beams = generated(model, inputs, num_beams=2)
    assert beams.shape[1] == inputs["input_ids"].shape[1] + 6
    assert torch.equal(generated(model, inputs), generated(model, inputs, use_cache=False))


def test_text_alone_is_untouched(pair):
    model, processor = pair
    inputs = dict(processor(text=["what is written ?"], return_tensors="pt"))
    expected = generated(model, inputs)
    qwen_vl.patch(model, processor, 16)
    assert torch.equal(generated(model, inputs), expected)
    generated(model, inputs_for(processor, [picture(256, 256)], ["what ?"]))
    assert torch.equal(generated(model, inputs), expected)  # nothing of an image lingers


def test_sampling_and_scores(pair):
    model, processor = pair
    qwen_vl.patch(model, processor, 16)
    inputs = inputs_for(processor, [picture(256, 256)], ["what ?"])
    torch.manual_seed(0)
    out = model.generate(
        **inputs, max_new_tokens=4, do_sample=True, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    assert len(out.scores) == 4 and torch.allclose(out.logits[0], logits_of(model, inputs)[:, -1], atol=1e-5)


def test_training(pair):
    model, processor = pair
    qwen_vl.patch(model.train(), processor, 16)
    inputs = inputs_for(processor, [picture(256, 256)], ["what is written ?"])
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    tower, text = model.model.visual.blocks[0].attn.qkv.weight.grad, model.lm_head.weight.grad
    assert tower.abs().sum() > 0 and text.abs().sum() > 0


# ------------------------------------------------------------------------------------------------- positions


def test_taps_are_those_of_the_library():
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights as stock

    processor = make_processor()
    model = make_model(processor)
    visual = model.model.visual
    inputs = inputs_for(processor, [picture(128, 96)], ["what ?"])
    index, weight = stock(
        inputs["image_grid_thw"], visual.num_grid_per_side, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    qwen_vl.patch(model, processor, EVERY_LEAF)
    logits_of(model, inputs)
    session = model._homunculus
    places = patch_positions(session.last_plan.allocations[0], session.layout)
    own_index, own_weight = bilinear_taps(places, (8, 6), visual.num_grid_per_side)
    assert torch.equal(own_index, index) and torch.allclose(own_weight, weight)


def seen_positions(model, inputs):
    """What the language model's rotary embedding is given, [3, B, T], padding included."""
    seen = []
    hook = model.model.language_model.rotary_emb.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[1] if len(args) > 1 else kwargs["position_ids"]), with_kwargs=True
    )
    logits_of(model, inputs)
    hook.remove()
    return seen[0]


def test_cells_lie_where_they_are_and_text_goes_on_where_it_would(pair):
    model, processor = pair
    stock = inputs_for(processor, [picture(256, 160)], ["what is written ?"])
    plain = seen_positions(model, stock)
    qwen_vl.patch(model, processor, 16)
    inputs = inputs_for(processor, [picture(256, 160)], ["what is written ?"])
    positions = seen_positions(model, inputs)
    image = inputs["input_ids"][0] == model.config.image_token_id
    after = len(image) - int(image.nonzero().max()) - 1
    assert torch.equal(positions[:, 0, -after:].float(), plain[:, 0, -after:].float())
    start = float(positions[0, 0, image][0])
    places = token_positions(model._homunculus.last_plan.allocations[0])
    assert torch.equal(positions[1, 0, image], start + places[:, 0])  # lines
    assert torch.equal(positions[2, 0, image], start + places[:, 1])  # columns
    assert places[:, 1].max() > 5 > places[:, 0].max()  # 8 or 9 columns, 5 or 6 lines: axes swapped would show
    assert (places % 1 > 0).any()


def test_rounded_positions_are_whole(pair):
    model, processor = pair
    qwen_vl.patch(model, processor, 16, positions="rounded")
    positions = seen_positions(model, inputs_for(processor, [picture(256, 160)], ["what is written ?"]))
    assert torch.equal(positions, positions.round())


def test_permuting_the_cells_permutes_the_tokens(pair):
    """The tower knows cells by their place and not by their number."""
    from homunculus.integrations.qwen_vl.features import encode_cells
    from homunculus.integrations.qwen_vl.plan import Plan

    model, processor = pair
    qwen_vl.patch(model, processor, 16)
    inputs = inputs_for(processor, [picture(256, 160)], ["what ?"])
    logits_of(model, inputs)
    session = model._homunculus
    plan = session.last_plan
    order = torch.randperm(16)
    (allocation,) = plan.allocations
    fields = {name: getattr(allocation, name)[:, order] for name in ("boxes", "centers", "levels")}
    from dataclasses import replace

    shuffled = Plan((replace(allocation, **fields),), plan.grids, plan.rows)
    with torch.no_grad():
        own, other = (
            encode_cells(model.model.visual, inputs["pixel_values"], p, session.layout).pooler_output
            for p in (plan, shuffled)
        )
    assert torch.allclose(other, own[order], atol=1e-5) and not torch.allclose(other, own, atol=1e-3)


def test_the_question_moves_the_cells(pair):
    model, processor = pair
    qwen_vl.patch(model, processor, 40)
    centres = {}
    for question in ("what is written at the top left ?", "who signed at the bottom right ?"):
        logits_of(model, inputs_for(processor, [picture(512, 512)], [question]))
        (allocation,) = model._homunculus.last_plan.allocations
        finest = allocation.levels[0] == allocation.levels.min()
        centres[question] = allocation.centers[0, finest].mean(0)
    first, second = centres.values()
    assert (second - first > 50).all()


# ----------------------------------------------------------------------------------------------------- chats


def test_a_chat_asks_its_last_question(pair):
    model, processor = pair
    session = qwen_vl.patch(model, processor, 16)
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is at the top left ?"}]}]
    turns += [{"role": "assistant", "content": "a page"}, {"role": "user", "content": "who signed in the footer ?"}]
    text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    inputs = dict(processor(text=[text], images=[picture(256, 256)], return_tensors="pt"))
    assert session._question(inputs["input_ids"][0]) == "who signed in the footer ?"
    assert torch.equal(generated(model, inputs), generated(model, inputs, use_cache=False))


TURNS = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is at the top left ?"}]},
    {"role": "assistant", "content": "a page"},
    {"role": "user", "content": "who signed in the footer ?"},
]


def asked(processor, turns, image):
    text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return dict(processor(text=[text], images=[image], return_tensors="pt"))


def test_every_turn_looks_anew_unless_it_is_kept(family):
    for keep in (False, True):
        processor = make_processor(family)
        model = make_model(processor)
        qwen_vl.patch(model, processor, 40, keep=keep)
        boxes = []
        for turns in (TURNS[:1], TURNS):
            logits_of(model, asked(processor, turns, picture(400, 400)))
            boxes.append(model.last_allocation[0].boxes)
        assert torch.equal(*boxes) == keep


@pytest.mark.parametrize("stage", ["pre", "post", "views"])
def test_a_kept_chat_on_its_cache_is_the_prompt_in_one(pair, stage):
    """The second turn continues on the first one's keys and values; in one go nothing else may come out."""
    model, processor = pair
    qwen_vl.patch(model, processor, 30, stage, keep=True)
    image = picture(400, 300)
    first = asked(processor, TURNS[:1], image)
    with torch.no_grad():
        cache = model(**first, use_cache=True).past_key_values
    whole = asked(processor, TURNS, image)
    seen = first["input_ids"].shape[1]
    common = int((first["input_ids"] == whole["input_ids"][:, :seen]).long().cumprod(1).sum())
    if common < seen:
        cache.crop(common - seen)  # the turns begin alike, up to here
    again = {name: whole[name] for name in ("input_ids", "attention_mask")}
    continued = model.generate(**again, past_key_values=cache, max_new_tokens=6, do_sample=False)
    assert torch.equal(continued, generated(model, whole))


def test_cells_are_drawn_on_the_image_as_it_was_given(pair):
    from homunculus.viz import overlay

    model, processor = pair
    qwen_vl.patch(model, processor, 30)
    image = picture(333, 222)
    logits_of(model, inputs_for(processor, [image], ["what ?"]))
    cells = qwen_vl.on_image(model.last_allocation[0], image.size)
    assert torch.allclose(cells.boxes[0, :, 2:].amax(0), torch.tensor([333.0, 222.0]))
    assert overlay(image, cells) is not None
    qwen_vl.unpatch(model)
    assert not hasattr(model, "last_allocation")


# ---------------------------------------------------------------------------------------------------- errors


def test_what_cannot_be_is_said(pair):
    model, processor = pair
    with pytest.raises(PatchError, match="Linear is not supported: give one of Qwen3VL"):
        qwen_vl.patch(torch.nn.Linear(1, 1), processor)
    with pytest.raises(PatchError, match="stage is one of pre, post, views, got 'mid'"):
        qwen_vl.patch(model, processor, stage="mid")
    with pytest.raises(BudgetError, match="positive whole number"):
        qwen_vl.patch(model, processor, 0)
    stock = inputs_for(processor, [picture(512, 512)], ["what ?"])
    qwen_vl.patch(model, processor, 16)
    with pytest.raises(PatchError, match="patched already"):
        qwen_vl.patch(model, processor, 16)
    assert logits_of(model, stock).isfinite().all()  # made before the patch: every leaf has its placeholder
    few = inputs_for(processor, [picture(512, 512)], ["what ?"])
    with pytest.raises(ImageError, match="placeholders for 1 images and 2 were given"):
        logits_of(model, few | {"image_grid_thw": few["image_grid_thw"].repeat(2, 1)})


def test_unknown_allocators_are_named(pair):
    model, processor = pair
    qwen_vl.patch(model, processor, 16, allocator="nonsense")
    with pytest.raises(AllocatorError, match="nonsense"):
        logits_of(model, inputs_for(processor, [picture(256, 256)], ["what ?"]))
