"""Several questions about one image: looking anew, keeping the cells, going on from the cache; drawing it all."""

import pytest
import torch

from homunculus.errors import CacheError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.remembered import fingerprints
from tests.qwen.tiny import generated, inputs_for, logits_of, make_model, make_processor, picture


def test_a_chat_asks_its_last_question(pair):
    model, processor = pair
    session = qwen_vl.patch(model, processor, 16)
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is at the top left ?"}]}]
    turns += [{"role": "assistant", "content": "a page"}, {"role": "user", "content": "who signed in the footer ?"}]
    text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    inputs = dict(processor(text=[text], images=[picture(256, 256)], return_tensors="pt"))
    assert session._question(inputs["input_ids"][0].tolist()) == "who signed in the footer ?"
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


def test_cells_serve_the_questions_to_expect(pair):
    """A union: as fine at the second question's place as at the first one's."""
    model, processor = pair
    fine = {}
    for expect in ((), ["who signed at the bottom right ?"]):
        qwen_vl.patch(model, processor, 40, relevance="uniform", expect=expect, keep=True)
        logits_of(model, inputs_for(processor, [picture(512, 512)], ["what is written at the top left ?"]))
        (allocation,) = model.last_allocation
        at = [torch.tensor([x, x]) for x in (512 / 6, 512 * 5 / 6)]
        area = (allocation.boxes[0, :, 2:] - allocation.boxes[0, :, :2]).prod(1)
        inside = [((allocation.boxes[0, :, :2] <= p) & (p < allocation.boxes[0, :, 2:])).all(1) for p in at]
        fine[bool(expect)] = [float(area[own].min()) for own in inside]
        qwen_vl.unpatch(model)
    assert fine[False][1] > fine[False][0]
    assert fine[True][1] == fine[True][0] < fine[False][1]


@pytest.mark.parametrize("name", ["coarse-pass", "text-similarity"])
def test_expected_questions_are_asked_of_the_model_too(family, name):
    """The mean of what each question finds, as if each had been the prompt's own."""
    processor = make_processor(family)
    model = make_model(processor)
    images, maps = [picture(300, 300), picture(200, 300, 1)], []
    second = "who signed the page ?"
    as_written = f" {second}" if name == "coarse-pass" else second  # after the image, and as a question of its own
    for own, expect in (("what ?", [as_written]), ("what ?", []), (second, [])):
        session = qwen_vl.patch(model, processor, 24, relevance=name, expect=expect)
        logits_of(model, inputs_for(processor, images, [own, own]))
        maps.append(session.last_maps)
        qwen_vl.unpatch(model)
    for union, *each in zip(*maps, strict=True):
        assert torch.allclose(union, torch.stack(each).mean(0), atol=1e-6)
        assert not torch.allclose(union, each[0], atol=1e-6)


def test_a_callable_is_asked_every_expected_question(pair):
    model, processor = pair
    heard = []

    def scorer(images, queries):
        heard.append(list(queries))
        return images.mean(1) + 0.1

    qwen_vl.patch(model, processor, 20, relevance=scorer, expect=["second ?", "third ?"])
    logits_of(model, inputs_for(processor, [picture(300, 200), picture(300, 200, 1)], ["first ?", "other ?"]))
    assert heard == [["first ?", "other ?"], ["second ?"] * 2, ["third ?"] * 2]


def test_features_are_made_once_for_an_image(pair):
    """Stage post, and a chat: the tower runs for new images only, and every question is pooled anew."""
    model, processor = pair
    seen, visual = [], model.model.visual
    hook = visual.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    asked_of = [("what is at the top left ?", [0, 1]), ("who signed in the footer ?", [1, 2]), ("what ?", [0, 1])]
    answers = {}
    for cache_bytes in (0, 10**6):
        qwen_vl.patch(model, processor, 20, "post", cache_bytes=cache_bytes)
        seen.clear()
        answers[cache_bytes] = []
        for question, numbers in asked_of:
            images = [picture(300, 200, number) for number in numbers]
            answers[cache_bytes].append(logits_of(model, inputs_for(processor, images, [question] * 2)))
        rows = seen[0] // 2
        assert seen == ([2 * rows] * 3 if cache_bytes == 0 else [2 * rows, rows])
        qwen_vl.unpatch(model)
    hook.remove()
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*answers.values(), strict=True))


def test_features_that_are_trained_are_not_remembered(pair):
    model, processor = pair
    session = qwen_vl.patch(model, processor, 20, "post", cache_bytes=10**6)
    inputs = inputs_for(processor, [picture(300, 200)], ["what ?"])
    for _ in range(2):
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        assert model.model.visual.patch_embed.proj.weight.grad.abs().sum() > 0
    assert session._whole._held.get(session._keys[0]) is None
    with pytest.raises(CacheError, match="max_bytes must be"):
        qwen_vl.patch(make_model(processor), processor, 20, "post", cache_bytes=-1)


def test_fingerprints_tell_images_apart():
    image = torch.rand(8, 12)
    changed, swapped = image.clone(), image[[1, 0, 2, 3, 4, 5, 6, 7]]
    changed[7, 11] += 2**-20
    for dtype in (torch.float32, torch.bfloat16):
        others = [image.to(dtype), (image + 0.5).to(dtype), swapped.to(dtype), torch.zeros_like(image, dtype=dtype)]
        assert len(set(fingerprints(others))) == 4
    assert len(set(fingerprints([image, changed, swapped, image.clone()]))) == 3
