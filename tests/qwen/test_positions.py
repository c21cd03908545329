"""Where cells lie, for the tower and for the language model, and that nothing but their place tells them apart."""

from dataclasses import replace

import pytest
import torch

from homunculus.errors import RelevanceError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.layout import bilinear_taps, patch_positions, token_positions
from tests.qwen.tiny import inputs_for, logits_of, make_model, make_processor, picture, seen_positions

EVERY_LEAF = 12  # of a picture of 4 x 3 leaves


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
    places = patch_positions(session.last_plan.allocations[0].boxes[0], session.layout)
    own_index, own_weight = bilinear_taps(places, (8, 6), visual.num_grid_per_side)
    assert torch.equal(own_index, index) and torch.allclose(own_weight, weight)


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
    places = token_positions(model._homunculus.last_plan.allocations[0].boxes[0], model._homunculus.layout.leaf)
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
    shuffled = Plan((replace(allocation, **fields),), plan.grids, plan.rows)
    with torch.no_grad():
        own, other = (
            encode_cells(model.model.visual, inputs["pixel_values"], p, session.layout).pooler_output
            for p in (plan, shuffled)
        )
    assert torch.allclose(other, own[order], atol=1e-5) and not torch.allclose(other, own, atol=1e-3)


def test_a_shuffled_allocation_gives_the_same_answer(pair):
    """Somebody's allocator returns its cells in any order: they are read in one."""
    from homunculus.allocation import get_allocator, register
    from homunculus.allocation.registry import _REGISTRY
    from homunculus.structures import CELL_FIELDS

    def shuffled(view, budget, *, seed=0, **options):
        """The default's cells in another order."""
        allocation = get_allocator("foveated-pyramid")(view, budget, seed=seed, **options)
        order = torch.randperm(budget, generator=torch.Generator().manual_seed(1))
        return replace(allocation, **{name: getattr(allocation, name)[:, order] for name in CELL_FIELDS})

    model, processor = pair
    answers = []
    register("shuffled-for-a-test", "the default's cells in another order")(shuffled)
    try:
        for name in ("foveated-pyramid", "shuffled-for-a-test"):
            qwen_vl.patch(model, processor, 20, allocator=name)
            inputs = inputs_for(processor, [picture(300, 200)], ["what ?"])
            answers.append(logits_of(model, inputs))
            qwen_vl.unpatch(model)
    finally:
        del _REGISTRY["shuffled-for-a-test"]
    assert torch.equal(*answers)


@pytest.mark.parametrize("images", [1, 2])
def test_compiles(pair, images):
    model, processor = pair
    qwen_vl.patch(model, processor, 20)
    pictures = [picture(300, 200), picture(200, 260, 1)][:images]
    inputs = inputs_for(processor, pictures, ["what ?", "who signed the page ?"][:images])
    expected = logits_of(model, inputs)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        assert torch.allclose(compiled(**inputs).logits, expected, atol=1e-5)
        assert torch.allclose(compiled(**inputs).logits, expected, atol=1e-5)


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


def test_a_region_says_where_to_look(pair):
    model, processor = pair
    for region, where in (((0.0, 0.5, 0.5, 1.0), (128, 384)), ("the top right", (384, 128))):
        qwen_vl.patch(model, processor, 40, region=region)
        inputs = inputs_for(processor, [picture(512, 512)], ["what is at the bottom right ?"])
        logits_of(model, inputs)
        (allocation,) = model.last_allocation
        finest = allocation.levels[0] == allocation.levels.min()
        assert (allocation.centers[0, finest].mean(0) - torch.tensor(where)).abs().max() < 110
        qwen_vl.unpatch(model)
    with pytest.raises(RelevanceError, match="a region is words or"):
        qwen_vl.patch(model, processor, 40, region=(0, 0, 200, 100))
