"""Several questions about one image: looking anew, keeping the cells, going on from the cache; drawing it all."""

import pytest
import torch

from homunculus.integrations import qwen_vl
from tests.qwen.tiny import generated, inputs_for, logits_of, make_model, make_processor, picture


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
