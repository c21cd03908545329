"""The scorer: any image size, any question length, and nothing but the image and its question decides."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from homunculus.model.config import tiny
from homunculus.model.rotary import turns
from homunculus.model.scorer import Scorer, apart, corners, squares
from homunculus.model.tokenizer import PAD
from tests.model.tiny import NeverWaits, close, noise, questions

REACH = 4  # leaves over which the stem's convolutions look: 2 * 4 + 2 * 8 + 2 * 16 pixels


@pytest.fixture
def scorer():
    torch.manual_seed(2)
    scorer = Scorer(tiny())
    scorer.out.weight.data *= 20  # differences worth looking at
    return scorer


def score(scorer, images, question):
    return scorer(scorer.features(images), question)


@pytest.mark.parametrize("size", [(16, 16), (200, 328), (256, 256), (17, 500), (1023, 64), (7, 40)])
def test_a_leaf_for_about_16_pixels(scorer, size):
    width, height = size
    images = noise(2, width, height)
    found = score(scorer, images, questions("Who?", "When?"))
    assert found.shape == (2, max(1, round(height / 16)), max(1, round(width / 16)))
    assert found.dtype == torch.float32 and found.isfinite().all()


@pytest.mark.parametrize("columns", [84, 75])
def test_images_of_no_whole_leaves_are_scaled(scorer, columns):
    """To the nearest number of whole ones, by area: leaves cover exactly the image."""
    images = noise(2, columns, 48)
    scaled = images.repeat_interleave(80, -1).unflatten(-1, (80, columns)).mean(-1)
    assert scaled.shape == (2, 3, 48, 80)
    assert close(scorer.features(images), scorer.features(scaled), 1e-4)
    assert close(scorer.features(images.mT), scorer.features(scaled.mT), 1e-4)


@pytest.mark.parametrize("size", [(1000, 700), (1000, 710), (333, 247)])
@pytest.mark.parametrize("at", [(0.99, 0.5), (0.5, 0.99), (0.02, 0.03), (0.97, 0.98)])
def test_a_mark_is_found_where_it_is(scorer, size, at):
    """The features that a black dot changes most are those of the leaf it lies in: leaves cover exactly the image."""
    (width, height), (x, y) = size, (int(at[0] * size[0]), int(at[1] * size[1]))
    plain = torch.ones(1, 3, height, width)
    marked = plain.clone()
    marked[..., y - 2 : y + 3, x - 2 : x + 3] = 0.0
    change = (scorer.features(marked) - scorer.features(plain)).abs().sum(-1)[0]
    gh, gw = change.shape
    row, column = divmod(int(change.argmax()), gw)
    assert column - 0.2 <= (x + 0.5) / width * gw <= column + 1.2
    assert row - 0.2 <= (y + 0.5) / height * gh <= row + 1.2


def test_bytes_are_floats_over_255(scorer):
    images = (noise(2, 80, 64) * 255).byte()
    assert close(scorer.features(images), scorer.features(images / 255), 1e-4)
    last = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last in memory, as pools keep them
    assert close(scorer.features(last), scorer.features(images))


def test_other_leaves():
    for leaf in (8, 32):
        scorer = Scorer(replace(tiny(), leaf=leaf))
        assert score(scorer, noise(1, 100, 64), questions("Who?")).shape == (1, 64 // leaf, round(100 / leaf))


def test_rows_are_not_columns(scorer):
    """An image and a question decide; on its side the image scores otherwise, so the axes are told apart."""
    images, question = noise(1, 128, 128), questions("Who?")
    assert not close(score(scorer, images, question), score(scorer, images.mT, question).mT, 1e-2)


@pytest.mark.parametrize("more", [1, 5, 30])
def test_padding_of_the_question_means_nothing(scorer, more):
    features, question = scorer.features(noise()), questions()
    assert close(scorer(features, F.pad(question, (0, more), value=PAD)), scorer(features, question))


def test_nobody_looks_at_padding(scorer):
    features, question = scorer.features(noise()), questions()
    before = scorer(features, question)
    scorer.question.embedding.weight.data[PAD] = 1000.0
    assert close(scorer(features, question), before)


def test_no_question_is_padding_alone(scorer):
    features = scorer.features(noise(1))
    nothing, padding = torch.zeros(1, 0, dtype=torch.int64), torch.full((1, 5), PAD)
    assert scorer(features, padding).isfinite().all()
    assert close(scorer(features, nothing), scorer(features, padding))


def test_batch_mates_mean_nothing(scorer):
    images, question = noise(), questions()
    together = score(scorer, images, question)
    for i in range(3):
        assert close(score(scorer, images[i : i + 1], question[i : i + 1]), together[i : i + 1])


def test_features_serve_every_question(scorer):
    images = noise(1)
    features = scorer.features(images)
    before = features.clone()
    several = scorer(features.expand(3, -1, -1, -1), questions())
    assert torch.equal(features, before)
    for i, text in enumerate(("What is the total?", "Who?", "When was it due?")):
        assert close(score(scorer, images, questions(text))[0], several[i])
    assert not close(several[0], several[1], 1e-3)  # and questions matter


def test_words_and_their_order_matter(scorer):
    features = scorer.features(noise(1))
    a, b, c = (scorer(features, questions(text)) for text in ("left of it", "it of left", "lefs of it"))
    assert not close(a, b, 1e-3) and not close(a, c, 1e-3)


def test_the_stem_moves_with_the_content(scorer):
    """By whole leaves, away from the edges; where a leaf is comes in by `place` and by attention alone."""
    content = noise(1, 160, 160)
    images = [torch.ones(1, 3, 512, 448), torch.ones(1, 3, 512, 448)]
    for image, (x, y) in zip(images, ((8, 7), (11, 12)), strict=True):
        image[..., 16 * y : 16 * y + 160, 16 * x : 16 * x + 160] = content
    place = scorer.place(corners(32, 28, torch.device("cpu")))
    first, second = (scorer.features(image) - place for image in images)
    a, b = (found[0, y - 2 : y + 12, x - 2 : x + 12] for found, (x, y) in ((first, (8, 7)), (second, (11, 12))))
    assert close(a, b, 1e-4) and a.std() > 0.1  # the content and two leaves around it
    white = first[0, 24, 10]  # far from content and edges
    assert close(first[0, 25, 20], white, 1e-4) and not close(first[0, 12, 12], white, 1e-2)


def test_what_is_far_changes_no_feature(scorer):
    images = noise(1, 320, 320)
    changed = images.clone()
    changed[..., :16, :16] = 0.0  # the first leaf
    difference = (scorer.features(changed) - scorer.features(images)).abs().amax(-1)[0]
    assert difference[0, 0] > 1e-3
    assert (difference[REACH + 1 :] == 0).all() and (difference[:, REACH + 1 :] == 0).all()


def test_attention_carries_a_leaf_along_its_row_and_column_and_no_further(scorer):
    """In one block a leaf is seen from its row and, through that, from every column."""
    block, words = scorer.blocks[0], scorer.question(questions("Who?"))
    real = torch.ones(1, 1, 1, words.shape[1], dtype=torch.bool)
    along = turns(torch.arange(6.0)[None, :, None], 8)
    x = torch.randn(1, 6, 6, 16)
    changed = x.clone()
    changed[0, 2, 4] += 3.0
    block.along_column.out.weight.data *= 0  # rows alone
    rows = (block(changed, along, along, words, real) - block(x, along, along, words, real)).abs().amax(-1)[0]
    assert (rows[2] > 1e-5).all() and (rows[[0, 1, 3, 4, 5]] == 0).all()
    torch.nn.init.normal_(block.along_column.out.weight)
    block.along_row.out.weight.data *= 0  # columns alone
    columns = (block(changed, along, along, words, real) - block(x, along, along, words, real)).abs().amax(-1)[0]
    assert (columns[:, 4] > 1e-5).all() and (columns[:, [0, 1, 2, 3, 5]] == 0).all()


@pytest.mark.parametrize("grid", [(4, 6), (5, 7), (1, 1), (3, 2)])
def test_squares_come_apart_again(grid):
    leaves = torch.randn(2, *grid, 3)
    merged = squares(leaves)
    assert merged.shape == (2, -(-grid[0] // 2), -(-grid[1] // 2), 12)
    assert torch.equal(apart(merged, *grid), leaves)
    assert torch.equal(merged[:, 0, 0, :3], leaves[:, 0, 0])
    if min(grid) > 1:
        assert torch.equal(merged[:, 0, 0, 3:], torch.cat((leaves[:, 0, 1], leaves[:, 1, 0], leaves[:, 1, 1]), dim=-1))


def test_corners_are_distances_to_the_edges():
    found = corners(5, 9, torch.device("cpu"))
    assert found.shape == (5, 9, 4)
    mirrored = found.flip(1)[..., [2, 1, 0, 3]]
    assert torch.allclose(mirrored, found) and torch.allclose(found.flip(0)[..., [0, 3, 2, 1]], found)
    assert torch.allclose((2 ** found[1, 3] - 1) * 4, torch.tensor([3.5, 1.5, 5.5, 3.5]))
    wide = corners(5, 100, torch.device("cpu"))
    assert torch.allclose(wide[:, :9, :2], found[..., :2])  # a margin is a margin, however large the image


def test_gradients_reach_everything(scorer):
    found = score(scorer, noise(), questions())
    F.cross_entropy(found.flatten(1), torch.tensor([3, 100, 250])).backward()
    for name, parameter in scorer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        if name != "out.bias":  # which a softmax does not see
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("way", ["autocast", "bfloat16"])
def test_in_bfloat16(scorer, way):
    images, question = noise(2, 200, 328), questions("Who?", "When was it due?")
    expected = score(scorer, images, question)
    if way == "bfloat16":
        scorer = scorer.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        found = score(scorer, images, question)
        features = scorer.features((images * 255).byte())
    assert found.dtype == torch.float32 and found.isfinite().all() and features.dtype == torch.bfloat16
    assert (found - expected).abs().mean() < 0.05 * expected.std()


def test_the_host_never_waits(scorer):
    scorer.to("meta")
    images, question = noise(2, 80, 48).to("meta"), questions("Who?", "When?").to("meta")
    with NeverWaits():
        assert score(scorer, images, question).shape == (2, 3, 5)
