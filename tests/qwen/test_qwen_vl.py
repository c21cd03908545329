"""A tiny Qwen3-VL on a budget: equal to stock with every leaf kept, exact in number, and gone again when unpatched."""

import random

import pytest
import torch

from homunculus.errors import AllocatorError, BudgetError, ImageError, RelevanceError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.patching import PatchError
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

EVERY_LEAF = 12  # of a picture of 4 x 3 leaves


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


# ------------------------------------------------------------------------------------------------ other models


def test_half_precision(pair):
    """Positions stay exact: bfloat16 would make 300.25 of them 300."""
    model, processor = pair
    qwen_vl.patch(model.bfloat16(), processor, 30)
    inputs = inputs_for(processor, [picture(400, 300)], ["what is written ?"])
    inputs["pixel_values"] = inputs["pixel_values"].bfloat16()
    assert seen_positions(model, inputs).dtype == torch.float32
    assert logits_of(model, inputs).dtype == torch.bfloat16
    assert torch.equal(generated(model, inputs), generated(model, inputs, use_cache=False))


def test_mixture_of_experts():
    processor = make_processor()
    model = make_moe_model(processor)
    inputs = inputs_for(processor, [picture(128, 96)], ["what ?"])
    expected = logits_of(model, inputs)
    qwen_vl.patch(model, processor, EVERY_LEAF)
    assert torch.allclose(logits_of(model, inputs), expected, atol=1e-5)
    qwen_vl.unpatch(model)
    qwen_vl.patch(model, processor, 20)
    few = inputs_for(processor, [picture(300, 300)], ["what ?"])
    assert torch.equal(generated(model, few), generated(model, few, use_cache=False))


def test_videos_are_refused_beside_images_and_pass_alone(pair):
    model, processor = pair
    frames = torch.randn(16, 3 * 2 * model.config.vision_config.patch_size**2)
    grid = torch.tensor([[1, 4, 4]])
    with torch.no_grad():
        expected = model.model.get_video_features(frames, grid, return_dict=True).pooler_output
    qwen_vl.patch(model, processor, 20)
    with torch.no_grad():
        found = model.model.get_video_features(frames, grid, return_dict=True).pooler_output
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    inputs = inputs_for(processor, [picture(300, 300)], ["what ?"])
    with pytest.raises(PatchError, match="images and videos in one call"):
        logits_of(model, inputs | {"pixel_values_videos": frames, "video_grid_thw": grid})


# ---------------------------------------------------------------------------------------------------- errors


def test_what_cannot_be_is_said(pair):
    model, processor = pair
    with pytest.raises(PatchError, match="Linear is not supported: give one of Qwen3VL"):
        qwen_vl.patch(torch.nn.Linear(1, 1), processor)
    with pytest.raises(PatchError, match="stage is one of pre, post, views, got 'mid'"):
        qwen_vl.patch(model, processor, stage="mid")
    for budget in (0, 2.5, "many", [16, 0]):
        with pytest.raises(BudgetError, match="positive whole number"):
            qwen_vl.patch(model, processor, budget)
    other = make_processor("qwen3" if model.config.vision_config.patch_size == 14 else "qwen2.5")
    with pytest.raises(PatchError, match="give the processor of this very model"):
        qwen_vl.patch(model, other, 16)
    with pytest.raises(PatchError, match="in a way we do not know"):
        qwen_vl.patch(model, processor.tokenizer, 16)
    assert "get_image_features" not in vars(model.model)  # nothing half-patched
    stock = inputs_for(processor, [picture(512, 512)], ["what ?"])
    qwen_vl.patch(model, processor, 16)
    with pytest.raises(PatchError, match="patched already"):
        qwen_vl.patch(model, processor, 16)
    assert logits_of(model, stock).isfinite().all()  # made before the patch: every leaf has its placeholder
    few = inputs_for(processor, [picture(512, 512)], ["what ?"])
    with pytest.raises(ImageError, match="placeholders for 1 images and 2 were given"):
        logits_of(model, few | {"image_grid_thw": few["image_grid_thw"].repeat(2, 1)})


def test_unknown_allocators_and_sources_are_named_at_once(pair):
    model, processor = pair
    with pytest.raises(AllocatorError, match="unknown allocator 'nonsense': choose from"):
        qwen_vl.patch(model, processor, 16, allocator="nonsense")
    with pytest.raises(RelevanceError, match=r"unknown relevance source 'coarse_pass': choose from .*, coarse-pass$"):
        qwen_vl.patch(model, processor, 16, relevance="coarse_pass")
    assert "get_image_features" not in vars(model.model)


def test_padding_without_a_mask_is_found_by_generate(pair):
    """generate makes a mask from padding tokens where none is given: positions are counted without them."""
    model, processor = pair
    qwen_vl.patch(model, processor, 20)
    inputs = inputs_for(processor, [picture(256, 160), picture(256, 160, 1)], ["what ?", "who signed in the footer ?"])
    seen = []
    hook = model.model.language_model.rotary_emb.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[1] if len(args) > 1 else kwargs["position_ids"]), with_kwargs=True
    )
    expected = generated(model, inputs)
    steps = len(seen)
    real = inputs.pop("attention_mask").bool()
    assert torch.equal(generated(model, inputs), expected)
    hook.remove()
    assert torch.equal(seen[0][:, real], seen[steps][:, real]) and not real.all()
