"""Letters in other shapes: pixels, boxes and letters move together, questions stay answerable, nothing waits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from homunculus.model.config import tiny
from homunculus.model.tokenizer import PAD
from homunculus.model.vlm import CompactVLM
from homunculus.train import augment
from homunculus.train.augment import (
    CHANCES,
    Style,
    Warp,
    augmented,
    augmented_pages,
    augmented_with_letters,
    chances,
    drawn_style,
    drawn_warp,
    moved_boxes,
    moved_letters,
    redrawn,
)
from homunculus.train.curriculum import Phase
from homunculus.train.pool import Pool
from homunculus.train.pretrain import Pretraining
from homunculus.train.read import Reading, answer_loss
from homunculus.train.samples import Pages, Samples
from homunculus.train.score import Scoring, scorer_loss
from tests.model.tiny import NeverWaits

CPU = torch.device("cpu")
PARTS = ((0, 0), (0, 1), (1, 0), (1, 1))  # seeds and parts of a stream


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Pages and scenes that stay."""
    found = Pool({"documents": 1.0, "scenes": 1.0}, size=(512, 512), capacity=8, renewed=0, readings=16, seed=1)
    found.fill()
    return found


def noise(count: int, size=(40, 24), seed: int = 0) -> Tensor:
    """Images as a pool has them: views of [b, h, w, 3] memory."""
    values = torch.randint(0, 256, (count, size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return values.to(torch.uint8).permute(0, 3, 1, 2)


def plain(count: int) -> Style:
    """Changes nothing."""
    return Style(
        torch.zeros(count, 2), torch.zeros(count), torch.ones(count, 3), torch.zeros(count, 3), torch.ones(count)
    )


def still(count: int) -> Warp:
    """Moves nothing."""
    return Warp(torch.eye(2).repeat(count, 1, 1), torch.zeros(count, 2))


def never(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.bool)


def drawn(count: int, seed: int, size=(200, 160), boxes: Tensor | None = None, colours: Tensor | None = None) -> Warp:
    return drawn_warp(chances(count, seed, 0, CPU), size, never(count) if colours is None else colours, boxes)


# ------------------------------------------------------------------------------------------------------------- identity


def test_what_is_left_out_changes_nothing():
    images = noise(5)
    assert torch.equal(redrawn(images, still(5), plain(5)), images)
    boxes, letters = torch.tensor([[[1.0, 2, 9, 7], [0, 0, 0, 0]]]), torch.tensor([[[[40, 24, 70], [3, 5, PAD]]]])
    moved, kept = moved_boxes(boxes, still(1), (40, 24))
    assert torch.equal(moved, boxes) and kept.all()
    assert torch.equal(moved_letters(letters, still(1), (40, 24)), letters)
    unlucky = torch.full((3, CHANCES), 0.999)  # every share is missed
    warp, style = drawn_warp(unlucky, (40, 24), never(3)), drawn_style(unlucky, never(3))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(warp, still(3), strict=True))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(style, plain(3), strict=True))


def test_images_keep_type_and_memory():
    images = noise(3)
    before = images.clone()
    found = redrawn(images, drawn(3, 0, (40, 24)), drawn_style(chances(3, 0, 0, CPU), never(3)))
    assert found.dtype == torch.uint8 and found.permute(0, 2, 3, 1).is_contiguous() and torch.equal(images, before)
    assert not torch.equal(found, images)


# --------------------------------------------------------------------------------------------------------------- pixels


@given(st.integers(0, 200))
@settings(max_examples=20)
def test_a_warp_is_that_of_another_library(seed):
    """Away from the edges, which Pillow fills otherwise."""
    size = (64, 48)
    warp, images = drawn(1, seed, size), noise(1, size, seed)
    back = torch.linalg.inv(warp.matrix[0].double())
    a, b, c, d = back.flatten().tolist()
    x, y = (-back @ warp.shift[0].double()).tolist()
    picture = Image.fromarray(images[0].permute(1, 2, 0).numpy())
    wanted = picture.transform(size, Image.Transform.AFFINE, (a, b, x, c, d, y), Image.Resampling.BILINEAR)
    wanted = torch.frombuffer(bytearray(wanted.tobytes()), dtype=torch.uint8).view(48, 64, 3).int()
    across, down = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(48) + 0.5, indexing="xy")
    from_x, from_y = a * across + b * down + x, c * across + d * down + y
    inside = (from_x > 1) & (from_x < 63) & (from_y > 1) & (from_y < 47)
    off = (redrawn(images, warp, plain(1))[0].permute(1, 2, 0).int() - wanted).abs().amax(-1)
    assert inside.float().mean() > 0.5
    assert off[inside].max() <= 2


@pytest.mark.parametrize("bolder", [True, False])
def test_strokes_across_and_down_change_apart(bolder):
    image = torch.full((1, 9, 9, 3), 255, dtype=torch.uint8)
    image[:, 4], image[:, :, 4] = 0, 0  # a dark cross
    if not bolder:
        image = 255 - image
    images = image.permute(0, 3, 1, 2)
    weight = 0.4 if bolder else -0.4
    wide = redrawn(images, still(1), plain(1)._replace(weight=torch.tensor([[weight, 0.0]])))[0, 0]
    high = redrawn(images, still(1), plain(1)._replace(weight=torch.tensor([[0.0, weight]])))[0, 0]
    assert torch.equal(wide.T, high)  # the cross is the same on its side
    near, far = (153, 255) if bolder else (102, 0)
    assert wide[1, 3:6].tolist() == [near, 255 - far, near] and wide[1, 2] == far  # the stroke down is wider
    assert wide[3, 1] == far  # that across is not


def test_a_pool_takes_the_least_of_three_where_letters_get_bolder():
    images = noise(2, (30, 20))
    style = plain(2)._replace(weight=torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    found = redrawn(images, still(2), style)[:, :, 1:-1, 1:-1].float()
    around = images.float().unfold(2, 3, 1).unfold(3, 3, 1)
    assert torch.equal(found[0], around[0].amin((-2, -1))) and torch.equal(found[1], around[1].amax((-2, -1)))


def test_values_follow_gain_offset_and_gamma():
    images = noise(2)
    style = plain(2)._replace(
        gain=torch.tensor([[0.5, 0.6, 0.7], [-1.0, -1, -1]]),
        offset=torch.tensor([[0.1, 0.0, 0.3], [1.0, 1, 1]]),
        gamma=torch.tensor([1.4, 1.0]),
        weight=torch.tensor([[1e-9, 0.0], [0.0, 0.0]]),  # turns values about, and changes nothing
    )
    found = redrawn(images, still(2), style)
    value = images[0].double() / 255 * style.gain[0][:, None, None] + style.offset[0][:, None, None]
    assert (found[0] - value.clamp(0, 1) ** 1.4 * 255).abs().max() <= 0.51
    assert torch.equal(found[1], 255 - images[1])


def test_blur_keeps_flat_areas_and_the_mean():
    images = torch.zeros(1, 11, 11, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    images[..., 5, 5] = 200
    found = redrawn(images, still(1), plain(1)._replace(blur=torch.tensor([0.4])))[0, 0].float()
    assert found[5, 5] == 72 and found[5, 4] == found[4, 5] == found[5, 6] == 24  # 200 * 0.6 * 0.6, 200 * 0.2 * 0.6
    assert abs(found.sum() - 200) <= 4
    assert not found[:3].any()


# --------------------------------------------------------------------------------------------------------------- places


@given(st.integers(0, 500))
@settings(max_examples=30)
def test_a_dot_goes_where_its_letter_and_its_box_go(seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = (int(torch.randint(20, side - 20, (), generator=generator)) for side in (200, 160))
    images = torch.zeros(1, 160, 200, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    images[..., y - 2 : y + 2, x - 2 : x + 2] = 255  # its middle is (x, y)
    boxes = torch.tensor([[[x - 2.0, y - 2, x + 2, y + 2]]])
    warp = drawn(1, seed, boxes=boxes)
    ink = redrawn(images, warp, plain(1))[0, 0].double()
    at = torch.arange(200) + 0.5, torch.arange(160) + 0.5
    middle = ((ink.sum(0) * at[0]).sum() / ink.sum(), (ink.sum(1) * at[1]).sum() / ink.sum())
    (letter,) = moved_letters(torch.tensor([[[[x, y, 70]]]]), warp, (200, 160))[0, 0].tolist()
    assert abs(letter[0] - middle[0]) <= 0.7 and abs(letter[1] - middle[1]) <= 0.7 and letter[2] == 70
    (box,), kept = moved_boxes(boxes, warp, (200, 160))[0][0].tolist(), moved_boxes(boxes, warp, (200, 160))[1]
    rows, columns = ink.amax(1).nonzero()[:, 0], ink.amax(0).nonzero()[:, 0]  # the ink reaches half a pixel further
    assert kept.all()
    assert abs(box[0] - columns[0]) <= 1.2 and abs(box[2] - columns[-1] - 1) <= 1.2
    assert abs(box[1] - rows[0]) <= 1.2 and abs(box[3] - rows[-1] - 1) <= 1.2


@given(st.integers(0, 1000))
@settings(max_examples=30)
def test_questions_stay_on_their_images(seed):
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(16, 6, 2, generator=generator) * 150
    boxes = torch.cat((low, low + 1 + torch.rand(16, 6, 2, generator=generator) * 50), -1).clamp(max=160)
    boxes[:, 4:] = 0
    warp = drawn(16, seed, boxes=boxes)
    moved, kept = moved_boxes(boxes, warp, (200, 160))
    assert kept.all() and not moved[:, 4:].any()
    assert (moved >= 0).all() and (moved[..., 2] <= 200).all() and (moved[..., 3] <= 160).all()
    corners = boxes[:, :4, :2] @ warp.matrix.mT + warp.shift[:, None]  # nothing was clipped but by rounding
    assert (corners - moved[:, :4, :2]).max() <= 200 * 0.25 and corners.min() >= -1e-2


def test_warps_are_of_every_kind_and_within_their_bounds():
    warp = drawn(4000, 3)
    a, b, c, d = warp.matrix.flatten(1).unbind(1)
    assert 0.3 < ((a == 1) & (d == 1) & (b == 0) & (c == 0)).float().mean() < 0.36
    assert (a >= 0.75).all() and (a <= 1.14).all() and (d >= 0.82).all() and (d <= 1.14).all()
    assert (b.abs() <= 0.2).all() and (c.abs() <= 0.01).all()
    assert a.min() < 0.82 and a.max() > 1.1 and d.min() < 0.9 and b.max() > 0.15 and b.min() < -0.15
    assert (a * d - b * c > 0).all()  # never mirrored


def test_where_colours_matter_images_are_whole_and_hardly_changed():
    colours = torch.tensor([True, False] * 500)
    chance = chances(1000, 4, 0, CPU)
    warp, style = drawn_warp(chance, (200, 160), colours), drawn_style(chance, colours)
    own = warp.matrix[colours]
    assert not own[:, 0, 1].any() and not own[:, 1, 0].any()
    assert (own[:, 0, 0] >= 0.9).all() and (own.diagonal(dim1=1, dim2=2) < 1 + 1e-6).all()
    whole, _ = moved_boxes(torch.tensor([[[0.0, 0, 200, 160]]]).repeat(1000, 1, 1), warp, (200, 160))
    far = torch.tensor([200.0, 160]) @ own.mT + warp.shift[colours]
    assert (warp.shift[colours] >= -1e-3).all() and (far <= torch.tensor([200.001, 160.001])).all()
    assert all(torch.equal(ours[colours], theirs) for ours, theirs in zip(style, plain(500), strict=True))
    assert not torch.equal(style.gain[~colours], torch.ones(500, 3))
    assert whole[colours][..., 2:].amin() > 0.9 * 160 * 0.9


def test_what_leaves_an_image_is_lost():
    away = Warp(torch.eye(2)[None], torch.tensor([[6.0, 0.0]]))
    boxes = torch.tensor([[[2.0, 1, 6, 3], [0.0, 1, 4, 3], [1, 1, 3, 3]]])  # 2 of 4 columns stay on, all, all
    moved, kept = moved_boxes(boxes, away, (10, 10))
    assert kept.tolist() == [[True, True, True]] and moved[0, 0].tolist() == [8, 1, 10, 3]
    moved, kept = moved_boxes(boxes + torch.tensor([1.0, 0, 1, 0]), away, (10, 10))
    assert kept.tolist() == [[False, True, True]] and moved[0, 0].tolist() == [0, 0, 0, 0]
    letters = torch.tensor([[[[2, 2, 70], [5, 2, 71], [3, 2, PAD], [0, 0, 0]]]])
    assert moved_letters(letters, away, (10, 10)).tolist() == [[[[8, 2, 70], [0, 0, PAD], [9, 2, PAD], [0, 0, 0]]]]


# -------------------------------------------------------------------------------------------------------------- batches


def test_the_same_for_the_same_seed_and_step(pool):
    samples = pool.draw(8, 0, each=2)
    colours = pool.colours(samples)
    one, two = (augmented(samples, 5, 9, colours) for _ in range(2))
    assert torch.equal(one.images, two.images) and torch.equal(one.boxes, two.boxes)
    for seed, step in ((5, 10), (6, 9)):
        assert not torch.equal(augmented(samples, seed, step, colours).images, one.images)
    assert torch.equal(one.question, samples.question) and torch.equal(one.answer, samples.answer)
    moved, letters = augmented_with_letters(samples, pool.letters(samples), 5, 9, colours)
    assert torch.equal(moved.images, one.images) and letters.shape == pool.letters(samples).shape


def test_an_image_does_not_depend_on_those_beside_it():
    images, chance = noise(7), chances(7, 1, 2, CPU)
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(7, 3, 2, generator=generator).repeat(1, 1, 2) * 20 + torch.tensor([0.0, 0, 9, 3])
    warp, style = drawn_warp(chance, (40, 24), never(7), boxes), drawn_style(chance, never(7))
    together = redrawn(images, warp, style)
    places, _ = moved_boxes(boxes, warp, (40, 24))
    for i in range(7):
        one = slice(i, i + 1)
        own = drawn_warp(chance[one], (40, 24), never(1), boxes[one])
        assert torch.equal(redrawn(images[one], own, drawn_style(chance[one], never(1)))[0], together[i])
        assert torch.equal(moved_boxes(boxes[one], own, (40, 24))[0][0], places[i])


def test_a_pool_knows_its_scenes(pool):
    samples = pool.draw(32, 0, each=2)
    names = [pool.plan.record(slot)[0] for slot in samples.slot[::2].tolist()]
    assert pool.colours(samples).tolist() == [name == "scenes" for name in names] and len(set(names)) == 2
    with Pool({"scene-text": 0.5, "scenes": 0.5}, size=(128, 96), capacity=2, renewed=1, seed=3) as other:
        other.fill()
        for _ in range(4):
            other.advance()
        families = [list(other.plan.families).index(other.plan.record(number)[0]) for number in (4, 5)]
        assert other.families.tolist() == families  # record 4 lies in slot 0
    seeds = {
        Pool({"scenes": 1.0}, size=(8, 8), capacity=1, renewed=0, seed=s, part=p, parts=2).own_seed for s, p in PARTS
    }
    assert len(seeds) == len(PARTS)


def test_pages_keep_most_letters_and_things_keep_their_colour(pool):
    pages = pool.pages(16, 0)
    found = augmented_pages(pages, 0, 3)
    assert found.images.dtype == torch.uint8 and found.letters.dtype == torch.int64
    before, after = ((marks[..., 2] != PAD).flatten(1).sum(1) for marks in (pages.letters, found.letters))
    assert (after <= before).all() and after.sum() > 0.9 * before.sum()
    number = pages.letters[..., 2]
    scenes = (number >= augment.FIRST_BYTE + 128).flatten(1).any(1)
    assert scenes.any() and not scenes.all() and torch.equal(after[scenes], before[scenes])


# --------------------------------------------------------------------------------------------------------------- losses


def test_an_empty_answer_counts_for_nothing():
    logits = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    answer = torch.tensor([[3, 4, PAD, PAD], [PAD] * 4, [5, 6, 7, 8]])
    loss, about = answer_loss(logits, answer)
    rest, others = answer_loss(logits[[0, 2]], answer[[0, 2]])
    assert torch.allclose(loss, rest) and all(torch.equal(about[key], others[key]) for key in about)
    loss.backward()
    assert not logits.grad[1].any() and logits.grad[0].any()
    loss, about = answer_loss(logits, torch.full((3, 4), PAD))
    assert loss == 0 and all(value == 0 for value in about.values())


def test_a_question_without_region_pulls_no_scorer():
    scores = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    truth = torch.stack((torch.eye(4), torch.zeros(4, 4)))
    loss, about = scorer_loss(scores, truth)
    loss.backward()
    assert loss.isfinite() and not scores.grad[1].any() and all(value.isfinite() for value in about.values())


def lost(samples: Samples, which: slice) -> Samples:
    answer, boxes = samples.answer.clone(), samples.boxes.clone()
    answer[which], boxes[which] = PAD, 0
    return replace(samples, answer=answer, boxes=boxes)


@pytest.mark.parametrize("which", [slice(0, 0), slice(1, 3), slice(None)])
@pytest.mark.parametrize("relevance", ["true", "corrupted", "predicted"])
def test_lost_questions_leave_losses_and_gradients_finite(pool, monkeypatch, which, relevance):
    torch.manual_seed(0)
    vlm = CompactVLM(tiny())
    phase = Phase(1.0, {64: 1.0}, relevance={relevance: 1.0})
    reading = Reading(vlm, [pool], [phase], 10, tokens=64 * 8, each=4, augment=True)
    monkeypatch.setattr("homunculus.train.read.augmented", lambda samples, *_: lost(samples, which))
    loss, about = reading(0)
    loss.backward()
    gradients = [p.grad for p in vlm.parameters() if p.grad is not None]
    assert loss.isfinite() and gradients and all(gradient.isfinite().all() for gradient in gradients)
    assert all(torch.as_tensor(value).isfinite() for value in about.values())


def test_stages_augment_when_told(pool):
    torch.manual_seed(0)
    vlm = CompactVLM(tiny())
    phase = Phase(1.0, {64: 1.0})
    made = {
        "read": lambda on: Reading(vlm, [pool], [phase], 10, tokens=64 * 8, each=4, augment=on),
        "score": lambda on: Scoring(vlm, [pool], images=2, each=4, augment=on),
        "pretrain": lambda on: Pretraining(vlm, [pool], batch=4, budget=100, augment=on),
    }
    for name, make in made.items():
        losses = []
        for on in (False, True, True):
            torch.manual_seed(1)
            loss, _ = make(on)(2)
            losses.append(loss.item())
        assert losses[1] == losses[2] != losses[0], name
        assert torch.tensor(losses).isfinite().all()


# --------------------------------------------------------------------------------------------------------------- device


def test_nothing_waits_for_the_device(monkeypatch):
    images = torch.zeros(5, 24, 40, 3, dtype=torch.uint8, device="meta").permute(0, 3, 1, 2)
    text, numbers, letters = (torch.zeros(n, dtype=torch.int64, device="meta") for n in ((10, 7), 10, (5, 2, 6, 3)))
    boxes = torch.zeros(10, 9, 4, device="meta")
    samples = Samples(images, text, text, boxes, boxes, numbers, numbers)
    chance, colours = torch.rand(5, CHANCES, device="meta"), torch.zeros(5, dtype=torch.bool, device="meta")
    monkeypatch.setattr(augment, "chances", lambda *_: chance)
    with NeverWaits():
        moved, places = augmented_with_letters(samples, letters, 0, 0, colours)
        pages = augmented_pages(Pages(images, letters), 0, 0)
    assert moved.images.shape == pages.images.shape == images.shape and places.shape == letters.shape


@pytest.mark.gpu
def test_a_gpu_draws_the_same_within_a_level():
    chance = chances(64, 0, 0, torch.device("cuda"))
    images = noise(64, (1024, 1024)).permute(0, 2, 3, 1).cuda().permute(0, 3, 1, 2)
    colours = never(64).cuda()
    warp, style = drawn_warp(chance, (1024, 1024), colours), drawn_style(chance, colours)
    found = redrawn(images, warp, style)
    few = slice(0, 6)
    here = redrawn(images[few].cpu(), Warp(*(v[few].cpu() for v in warp)), Style(*(v[few].cpu() for v in style)))
    off = (found[few].cpu().int() - here.int()).abs()
    assert off.float().mean() < 0.1 and off.max() <= 3
