"""SAM 2 as segments: the pure parts on made-up masks, and the whole through a tiny model with random weights."""

import copy
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import homunculus
from homunculus.errors import AllocatorError, HomunculusError
from homunculus.integrations.sam2 import MEAN, STD, Sam2Segments, best_of_each, paint, point_grid, prepare
from tests.test_budget import assert_exact

SIDE, MASK = 128, 32  # of the tiny model's input and masks


@st.composite
def mask_sets(draw):
    """Up to 12 rectangles on 8 x 8 pixels, many of them alike, with scores that tie."""
    corners = st.tuples(*[st.integers(0, 5)] * 2, *[st.integers(1, 4)] * 2)
    rectangles = draw(st.lists(corners, min_size=1, max_size=12))
    masks = torch.zeros(len(rectangles), 8, 8, dtype=torch.bool)
    for mask, (x, y, w, h) in zip(masks, rectangles, strict=True):
        mask[y : y + h, x : x + w] = True
    scores = draw(st.lists(st.sampled_from([0.5, 0.8, 0.9]), min_size=len(masks), max_size=len(masks)))
    return masks, torch.tensor(scores)


def iou(a: torch.Tensor, b: torch.Tensor) -> float:
    return int((a & b).sum()) / int((a | b).sum())


@given(mask_sets(), st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]))
def test_suppression_keeps_the_best_of_each(drawn, overlap):
    masks, scores = drawn
    kept = best_of_each(masks, scores, overlap).tolist()
    assert kept == sorted(kept, key=lambda i: (-scores[i], i))
    for i in range(len(masks)):
        better = [k for k in kept if (-scores[k], k) < (-scores[i], i)]
        repeats = any(iou(masks[i], masks[k]) > overlap for k in better)
        assert repeats == (i not in kept)


@given(mask_sets())
def test_the_smallest_mask_shows(drawn):
    masks, _ = drawn
    labels = paint(masks)
    areas = masks.flatten(1).sum(1)
    by_number = sorted(range(len(masks)), key=lambda i: -areas[i])
    for y in range(8):
        for x in range(8):
            over = [i for i in range(len(masks)) if masks[i, y, x]]
            number = int(labels[y, x])
            assert (number == 0) == (not over)
            if over:
                top = by_number[number - 1]
                assert top in over and areas[top] == min(areas[i] for i in over)


def test_no_masks_is_background():
    nothing = torch.zeros(0, 5, 7, dtype=torch.bool)
    assert best_of_each(nothing, torch.zeros(0)).tolist() == []
    assert paint(nothing).tolist() == [[0] * 7] * 5


def test_pixels_are_standardised():
    colour = torch.tensor([0.2, 0.5, 0.9])
    expected = (colour - torch.tensor(MEAN)) / torch.tensor(STD)
    flat = colour[None, :, None, None].expand(1, 3, 40, 100)
    assert torch.allclose(prepare(flat, 64), expected[:, None, None].expand(1, 3, 64, 64), atol=1e-6)
    assert torch.allclose(prepare((flat * 255).round().byte(), 64), prepare(flat, 64), atol=0.01)


def test_points_are_centred():
    points = point_grid(4, 64) + 0.5
    assert points.unique(dim=0).shape == (16, 2)
    assert torch.equal(points.amin(0), torch.tensor([8.0, 8.0])) and torch.equal(64 - points.amax(0), points.amin(0))
    assert points[1].tolist() == [24.0, 8.0]  # x first


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(AllocatorError, match=r"pip install 'homunculus\[hf\]'"):
        Sam2Segments("facebook/sam2.1-hiera-tiny")


# -------------------------------------------------------------------------------------------- a model of random weights


@pytest.fixture(scope="module")
def parts():
    """The configuration of a SAM 2 of 77 000 weights, large enough in value to answer differently at every point."""
    transformers = pytest.importorskip("transformers", minversion="5.17")
    backbone = transformers.Sam2HieraDetConfig(
        hidden_size=8,
        image_size=[SIDE, SIDE],
        blocks_per_stage=[1, 1, 1, 1],
        embed_dim_per_stage=[8, 16, 32, 64],
        num_attention_heads_per_stage=[1, 1, 1, 1],
        window_size_per_stage=[4, 4, 4, 4],
        window_positional_embedding_background_size=[4, 4],
        global_attention_blocks=[],
        initializer_range=0.5,
    )
    return {
        "vision_config": transformers.Sam2VisionConfig(
            backbone_config=backbone,
            backbone_channel_list=[64, 32, 16, 8],
            backbone_feature_sizes=[[side, side] for side in (SIDE // 4, SIDE // 8, SIDE // 16)],
            fpn_hidden_size=16,
            initializer_range=0.5,
        ),
        "prompt_encoder_config": transformers.Sam2PromptEncoderConfig(hidden_size=16, image_size=SIDE, patch_size=16),
        "mask_decoder_config": transformers.Sam2MaskDecoderConfig(
            hidden_size=16, mlp_dim=32, num_attention_heads=2, iou_head_hidden_dim=16
        ),
        "initializer_range": 0.5,
    }


@pytest.fixture(scope="module")
def checkpoint(parts, tmp_path_factory):
    from transformers import Sam2Config, Sam2Model

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("sam2") / "tiny"
    Sam2Model(Sam2Config(**copy.deepcopy(parts))).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def segments(checkpoint):
    return Sam2Segments(checkpoint, points=4, at_once=5, min_score=0.0, min_stability=0.0)


def test_labels_of_a_batch(segments):
    images = torch.randint(0, 256, (2, 3, 90, 150), dtype=torch.uint8)
    labels = segments(images)
    assert labels.shape == (2, MASK, MASK) and labels.dtype == torch.int64
    assert labels.min() >= 0 and 1 < labels.max() <= 4 * 4 * 3
    assert not torch.equal(labels[0], labels[1])
    assert torch.equal(segments(images), labels)
    assert torch.equal(segments(images[1:])[0], labels[1])


def test_points_are_asked_in_any_portions(checkpoint, segments):
    image = torch.rand(1, 3, 64, 64)
    options = {"points": 4, "min_score": 0.0, "min_stability": 0.0}
    whole = Sam2Segments(checkpoint, at_once=64, **options)(image)
    assert (segments(image) != whole).double().mean() < 0.02  # rounding inside the model may turn a pixel or two


def test_doubtful_masks_are_dropped(checkpoint):
    image = torch.rand(1, 3, 64, 64)
    for doubt in ({"min_score": 1.1}, {"min_stability": 1.1, "min_score": 0.0}):
        assert (Sam2Segments(checkpoint, points=2, **doubt)(image) == 0).all()


def test_half_precision(checkpoint):
    options = {"points": 2, "min_score": 0.0, "min_stability": 0.0}
    half = Sam2Segments(checkpoint, dtype=torch.bfloat16, **options)
    assert half.model.dtype == torch.bfloat16
    assert half(torch.rand(1, 3, 64, 64)).shape == (1, MASK, MASK)


@pytest.mark.parametrize("budget", [1, 64, 273])
def test_atlas_on_sam2(segments, budget):
    images = torch.rand(2, 3, 120, 200)
    tokens = homunculus.foveate(images, budget=budget, allocator="atlas", segments=segments)
    assert_exact(tokens.allocation, budget)
    assert (homunculus.coverage(tokens.allocation).union > 1 - 1e-9).all()


def test_a_checkpoint_that_is_none(checkpoint, tmp_path):
    with pytest.raises(HomunculusError, match=r"cannot load SAM 2 from '.*nothing here'.*: name a SAM 2") as e:
        Sam2Segments(tmp_path / "nothing here")
    assert "\n" not in str(e.value)
    with pytest.raises(HomunculusError, match="cannot load SAM 2"):
        Sam2Segments(tmp_path)  # a folder without weights
    with pytest.raises(HomunculusError, match="points=0"):
        Sam2Segments(checkpoint, points=0)


def test_a_checkpoint_of_another_model(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    weights = load_file(checkpoint / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("mask_decoder.")}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HomunculusError, match=r"lacks \d+ of the weights of SAM 2"):
        Sam2Segments(tmp_path)


def test_published_checkpoints_are_of_the_video_model(parts, tmp_path):
    """They hold more than the image model needs, under the same names."""
    from transformers import Sam2VideoConfig, Sam2VideoModel

    small = {
        "memory_attention_hidden_size": 16,
        "memory_attention_num_layers": 1,
        "memory_attention_feed_forward_hidden_size": 16,
        "memory_attention_rope_feat_sizes": [SIDE // 16] * 2,
        "memory_encoder_hidden_size": 16,
        "memory_encoder_output_channels": 8,
        "mask_downsampler_embed_dim": 16,
        "memory_fuser_embed_dim": 16,
        "memory_fuser_intermediate_dim": 16,
    }
    Sam2VideoModel(Sam2VideoConfig(**copy.deepcopy(parts), image_size=SIDE, **small)).save_pretrained(tmp_path)
    labels = Sam2Segments(tmp_path, points=2, min_score=0.0, min_stability=0.0)(torch.rand(1, 3, 50, 70))
    assert labels.shape == (1, MASK, MASK) and labels.max() > 0
