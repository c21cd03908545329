"""Overview and crops as ordinary images: what the tower and the language model get is what they would get of those."""

import pytest
import torch

from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.layout import cut_to_leaves, patchify, unpatchify
from homunculus.integrations.qwen_vl.patching import PatchError
from tests.qwen.tiny import inputs_for, picture, seen_positions


@pytest.mark.parametrize("crops", [1, 2])
def test_views_are_ordinary_images(pair, crops):
    model, processor = pair
    stock = model.model.get_image_features
    session = qwen_vl.patch(model, processor, 42, "views", crops=crops)
    inputs = inputs_for(processor, [picture(500, 400)], ["what is at the top left ?"])
    found = []
    replaced = model.model.get_image_features
    model.model.get_image_features = lambda *args, **kwargs: found.append(replaced(*args, **kwargs)) or found[0]
    with torch.no_grad():
        model(**inputs)
    (views,) = session.last_plan.views
    assert views.overview[0] * views.overview[1] + crops * views.crop[0] * views.crop[1] == 42
    image = unpatchify(inputs["pixel_values"], session.last_plan.grids[0], session.layout)
    x0, y0, x1, y1 = (views.boxes[0, 1] * session.layout.leaf).long().tolist()
    crop = patchify(cut_to_leaves(image[:, y0:y1, x0:x1], session.layout), session.layout)
    grid = torch.tensor([[1, views.crop[1] * 2, views.crop[0] * 2]])
    with torch.no_grad():
        alone = stock(crop, grid, return_dict=True).pooler_output[0]
    start = views.overview[0] * views.overview[1]
    assert torch.allclose(found[0].pooler_output[0][start : start + len(alone)], alone, atol=1e-4)


def test_positions_are_those_of_images_in_a_row(pair):
    model, processor = pair
    session = qwen_vl.patch(model, processor, 42, "views")
    inputs = inputs_for(processor, [picture(500, 400)], ["what ?"])
    positions = seen_positions(model, inputs)
    image = inputs["input_ids"][0] == model.config.image_token_id
    (views,) = session.last_plan.views
    own = positions[:, 0, image].float()
    start, first = float(own[0, 0]), views.overview[0] * views.overview[1]
    second = start + max(views.overview)
    assert (own[0, :first] == start).all() and (own[0, first:] == second).all()
    assert own[1, first - 1] == start + views.overview[1] - 1 and own[2, first - 1] == start + views.overview[0] - 1
    assert own[1, -1] == second + views.crop[1] - 1 and own[2, -1] == second + views.crop[0] - 1
    after = positions[:, 0, int(image.nonzero().max()) + 1].float()
    assert (after == second + max(views.crop)).all()


def test_true_positions_on_request(pair):
    model, processor = pair
    session = qwen_vl.patch(model, processor, 42, "views", positions="true")
    inputs = inputs_for(processor, [picture(500, 400)], ["what ?"])
    positions = seen_positions(model, inputs)
    image = inputs["input_ids"][0] == model.config.image_token_id
    (views,) = session.last_plan.views
    first = views.overview[0] * views.overview[1]
    own = positions[:, 0, image] - positions[0, 0, image][0]
    assert own[2, first] == views.boxes[0, 1, 0] and own[1, first] == views.boxes[0, 1, 1]
    qwen_vl.unpatch(model)
    with pytest.raises(PatchError, match="for views also 'stock'"):
        qwen_vl.patch(model, processor, 42, "pre", positions="stock")
