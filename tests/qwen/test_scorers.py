"""Relevance that the model gives itself: one row of its own attention, or likeness of tokens and words."""

import pytest
import torch

from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl import scorers
from tests.qwen.tiny import inputs_for, make_model, make_processor, picture


def patched(family, attention="sdpa", **how):
    processor = make_processor(family)
    model = make_model(processor, attention)
    return model, processor, qwen_vl.patch(model, processor, **how)


@pytest.mark.parametrize("name", scorers.NAMES)
@pytest.mark.parametrize("stage", ["pre", "post"])
def test_the_model_chooses_its_cells(family, name, stage):
    model, processor, session = patched(family, budget=40, stage=stage, relevance=name)
    inputs = inputs_for(processor, [picture(400, 400), picture(300, 500, 1)], ["what ?", "who signed in the page ?"])
    out = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert torch.equal(out, model.generate(**inputs, max_new_tokens=3, do_sample=False, use_cache=False))
    assert session.last_plan.counts == [40, 40]
    before = session.last_maps
    for asked, same in (("what ?", True), ("assistant system", False)):  # the question matters, and nothing else
        model(**inputs_for(processor, [picture(400, 400), picture(300, 500, 1)], [asked, "who signed in the page ?"]))
        assert torch.allclose(session.last_maps[0], before[0], atol=1e-6) == same
        assert torch.allclose(session.last_maps[1], before[1], atol=1e-6)


def test_a_mixture_may_ask_the_model(family):
    model, processor, session = patched(family, budget=30, relevance=[("coarse-pass", 0.7), ("detail", 0.3)])
    model(**inputs_for(processor, [picture(300, 300)], ["what ?"]))
    assert session.last_plan.counts == [30]


def test_the_row_is_what_attention_computes(family):
    """Against the weights that eager attention returns: the last token's, over the visual keys, mean over heads."""
    model, processor, session = patched(family, "eager", budget=24, relevance="coarse-pass")
    inputs = inputs_for(
        processor, [picture(300, 300), picture(200, 300, 1)], ["what ?", "who signed the page at all ?"]
    )
    view = scorers.first_view(session.read(inputs), session.layout, scorers.Coarse(16))
    with torch.no_grad():
        output = scorers.encode_cells(model.model.visual, inputs["pixel_values"], view.plan, session.layout)
        found = scorers.last_token_looks(model.model, output, view, layer=2)
    seen = {}
    attention = model.model.language_model.layers[2].self_attn
    hook = attention.register_forward_hook(lambda module, args, result: seen.update(weights=result[1]))
    original, scorers.attention_row = scorers.attention_row, _never_stop
    try:
        with torch.no_grad(), pytest.raises(_Done):
            scorers.last_token_looks(model.model, output, view, layer=3)
    finally:
        scorers.attention_row = original
        hook.remove()
    visual = view.prompts.ids == model.config.image_token_id
    row = seen["weights"][:, :, -1].masked_fill(~visual[:, None], 0.0)
    expected = (row / row.sum(2, keepdim=True)).mean(1)[visual].split(view.plan.counts)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))


class _Done(Exception):
    pass


def _never_stop(*_):
    raise _Done


def test_attention_is_never_asked_for_its_weights(family, monkeypatch):
    """SDPA stays on: no layer is run with output_attentions, and the eager path is never taken."""
    import sys

    model, processor, _ = patched(family, budget=24, relevance="coarse-pass")
    for module in (model.model.language_model.layers[0].self_attn, model.model.visual.blocks[0].attn):
        namespace = sys.modules[type(module).__module__]
        monkeypatch.setattr(namespace, "eager_attention_forward", _never_stop)
    out = model(**inputs_for(processor, [picture(300, 300)], ["what ?"]))
    assert out.attentions is None and model.config._attn_implementation == "sdpa"
    assert not getattr(model.config, "output_attentions", False)


def test_maps_spread_what_cells_have(family):
    _, processor, session = patched(family, budget=24)
    inputs = inputs_for(processor, [picture(300, 200)], ["what ?"])
    view = scorers.first_view(session.read(inputs), session.layout, scorers.Coarse(12))
    values, (columns, lines) = torch.rand(12), view.plan.grids[0]
    density = scorers.spread(values, view.shares[0], view.plan.grids[0])
    assert density.shape == (lines, columns) and torch.allclose(density.sum(), values.double().sum())


def test_no_hook_is_left_behind(family):
    model, processor, _ = patched(family, budget=24, relevance="coarse-pass")
    model(**inputs_for(processor, [picture(300, 300)], ["what ?"]))
    assert not any(layer.self_attn._forward_pre_hooks for layer in model.model.language_model.layers)
    assert not any(block._forward_pre_hooks for block in model.model.visual.blocks)
