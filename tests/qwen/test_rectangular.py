"""Attention of all images in one call: the same numbers as image by image, and nothing left behind."""

from contextlib import nullcontext

import pytest
import torch

from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl import features
from tests.qwen.tiny import inputs_for, make_model, make_processor, picture


@pytest.mark.parametrize("family", ["qwen3", "qwen2.5"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_rectangle_is_image_by_image(family, attention, monkeypatch):
    processor = make_processor(family)
    model = make_model(processor, attention)
    session = qwen_vl.patch(model, processor, 20)
    inputs = inputs_for(processor, [picture(256, 256), picture(300, 180, 1), picture(150, 400, 2)], ["what ?"] * 3)
    with torch.no_grad():
        model(**inputs)
        encode = (model.model.visual, inputs["pixel_values"], session.last_plan, session.layout)
        together = features.encode_cells(*encode)
        monkeypatch.setattr(features, "rectangular_attention", lambda *_: nullcontext())
        one_by_one = features.encode_cells(*encode)
    assert torch.allclose(together.pooler_output, one_by_one.pooler_output, atol=1e-5)
    for level, expected in zip(
        getattr(together, "deepstack_features", []), getattr(one_by_one, "deepstack_features", []), strict=True
    ):
        assert torch.allclose(level, expected, atol=1e-5)


def test_the_images_are_attended_to_at_once(monkeypatch):
    """As many calls as there are blocks, each with all images."""
    processor = make_processor()
    model = make_model(processor)
    qwen_vl.patch(model, processor, 20)
    inputs = inputs_for(processor, [picture(256, 256), picture(300, 180, 1)], ["what ?"] * 2)
    shapes = []
    real = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda query, *args, **kwargs: shapes.append(tuple(query.shape)) or real(query, *args, **kwargs),
    )
    with torch.no_grad():
        model(**inputs)
    tower = [shape for shape in shapes if shape[-1] == 16 and shape[1] == 2]
    assert tower[: len(model.model.visual.blocks)] == [(2, 2, 80, 16)] * 4
    qwen_vl.unpatch(model)
    assert not any("forward" in vars(block.attn) for block in model.model.visual.blocks)
    assert not any(name.startswith("_homunculus") for name in vars(model.model.visual))


def test_budgets_that_differ_go_one_by_one():
    processor = make_processor()
    model = make_model(processor)
    qwen_vl.patch(model, processor, [16, 20])
    inputs = inputs_for(processor, [picture(256, 256), picture(300, 180, 1)], ["compare"], images_each=2)
    with torch.no_grad():
        assert model(**inputs).logits.isfinite().all()
