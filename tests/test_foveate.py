"""The pipeline from end to end: what users call and what they get."""

import numpy as np
import pytest
import torch
from PIL import Image

import homunculus
from homunculus.allocation import get_allocator
from homunculus.errors import DensityError, FixationError, HomunculusError, ImageError
from homunculus.foveate import make_view
from homunculus.kernels.reference import sample_boxes
from homunculus.structures import rectangular

FIELDS = ("boxes", "centers", "levels", "eccentricity", "scores", "is_context", "angle")


def picture(width: int, height: int, seed: int = 0) -> torch.Tensor:
    """Noise of varying strength: something to look at everywhere, more of it in places."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(3, height, width, generator=generator)
    strength = torch.nn.functional.interpolate(
        torch.rand(1, 1, 5, 5, generator=generator), (height, width), mode="bilinear"
    )[0]
    return (255 * (0.5 + (noise - 0.5) * strength)).round().to(torch.uint8)


def test_the_three_line_example():
    tokens = homunculus.foveate(picture(640, 480), "What is written at the top left?")
    assert tokens.patches.shape == (1, 273, 3, 16, 16) and tokens.patches.dtype == torch.float32
    assert tokens.patches.min() >= 0 and tokens.patches.max() <= 1
    allocation = tokens.allocation
    assert allocation.boxes.shape == (1, 273, 4) and allocation.sector.shape == (1, 273, 4)
    assert {getattr(allocation, f).shape[:2] for f in FIELDS} == {(1, 273)}


@pytest.mark.parametrize("name", homunculus.allocators())
@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (700, 20), (333, 222), (512, 512)])
def test_exactly_the_budget_for_any_image(name, size):
    for budget in (max(16, get_allocator(name).minimum), 150, 273):
        tokens = homunculus.foveate(picture(*size), "footer", budget, name)
        assert tokens.patches.shape[-4:] == (budget, 3, 16, 16)
        allocation = rectangular(tokens.allocation)
        assert torch.cat((allocation.boxes[0], allocation.angle[0, :, None]), dim=1).unique(dim=0).shape[0] == budget
        boxes = allocation.boxes[0][allocation.angle[0] == 0]
        assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] <= size[0]).all() and (boxes[:, 3] <= size[1]).all()


@pytest.mark.parametrize("name", [n for n in homunculus.allocators() if not get_allocator(n).batchwide])
def test_an_image_is_the_same_alone_and_in_any_batch(name):
    """Bit for bit: patches and cells do not depend on batch mates, nor on their number, nor on their sizes."""
    images = [
        picture(320, 256, 1),
        picture(200, 333, 2),
        picture(320, 256, 3),
        picture(320, 256, 4),
        picture(200, 333, 5),
    ]
    queries = ["top left", None, "in the footer", "what?", "bottom right"]
    together = homunculus.foveate(images, queries, 100, name)
    assert together.patches.shape == (5, 100, 3, 16, 16)
    for i, (image, query) in enumerate(zip(images, queries, strict=True)):
        alone = homunculus.foveate(image, query, 100, name)
        assert torch.equal(alone.patches[0], together.patches[i])
        for field in FIELDS:
            assert torch.equal(getattr(alone.allocation, field)[0], getattr(together.allocation, field)[i]), field
        assert together.allocation.image_sizes[i] == (image.shape[2], image.shape[1])


def test_patches_are_the_area_averages_of_their_boxes():
    for size in ((320, 256), (301, 255)):
        tokens = homunculus.foveate(picture(*size), budget=80)
        exact = sample_boxes(picture(*size)[None], tokens.allocation.boxes)
        assert torch.allclose(tokens.patches, exact, atol=1e-5)


def test_words_move_the_tokens():
    image = picture(1024, 1024)
    middle = {}
    for place in ("top left", "bottom right"):
        allocation = homunculus.foveate(image, f"What is at the {place}?").allocation
        fine = allocation.centers[0][allocation.levels[0] == 0]
        middle[place] = fine.mean(0)
    assert (middle["top left"] < 512).all() and (middle["bottom right"] > 512).all()


def test_an_explicit_fixation_overrides_words():
    image = picture(512, 512)
    explicit = homunculus.foveate(image, "top left", fixation=(400, 400), relevance="pixels").allocation
    assert torch.equal(explicit.boxes, homunculus.foveate(image, None, fixation=(400, 400)).allocation.boxes)
    nearest = explicit.centers[0][explicit.eccentricity[0].argmin()]
    assert (nearest - 400).abs().max() < 32


def test_no_question_and_no_fixation_is_relevance_alone():
    image = picture(512, 512)
    plain = homunculus.foveate(image).allocation
    assert torch.equal(
        plain.boxes, homunculus.foveate(image, "What colour is it?", relevance="pixels").allocation.boxes
    )
    assert torch.equal(plain.boxes, homunculus.foveate(image, fixation_share=0.9).allocation.boxes)


def test_fixations_for_images_of_different_sizes():
    images = [picture(320, 256), picture(200, 300), picture(320, 256)]
    fixations = [[(10, 10)], [], [(300, 250), (5, 200)]]
    together = homunculus.foveate(images, fixation=fixations, budget=64)
    for i, image in enumerate(images):
        alone = homunculus.foveate(image, fixation=fixations[i] or None, budget=64)
        assert torch.equal(alone.allocation.boxes[0], together.allocation.boxes[i])
    with pytest.raises(FixationError, match="image 1"):
        homunculus.foveate(images, fixation=(250, 10))


def test_seeds_for_each_image():
    images = [picture(320, 256), picture(200, 300), picture(320, 256)]
    seeds = torch.tensor([5, 6, 7])
    together = homunculus.foveate(images, allocator="random", seed=seeds, budget=32)
    for i, image in enumerate(images):
        alone = homunculus.foveate(image, allocator="random", seed=int(seeds[i]), budget=32)
        assert torch.equal(alone.allocation.boxes[0], together.allocation.boxes[i])


def test_queries_in_a_numpy_array():
    image = picture(256, 256)
    listed = homunculus.foveate([image, image], ["top left", "footer"], 64).allocation.boxes
    assert torch.equal(
        homunculus.foveate([image, image], np.array(["top left", "footer"]), 64).allocation.boxes, listed
    )


def test_the_floor_is_a_dial():
    peaked = torch.rand(20, 20) ** 8
    cells = [homunculus.foveate(picture(512, 512), relevance=peaked, floor=f).allocation.boxes for f in (0.0, 0.2, 1.0)]
    assert not torch.equal(cells[0], cells[1]) and not torch.equal(cells[1], cells[2])


@pytest.mark.parametrize(("size", "budget"), [((1, 1_000_000), 273), ((64, 64), 10**8)])
def test_what_would_not_fit_in_memory_is_refused(size, budget):
    image = torch.zeros(3, 1, 1, dtype=torch.uint8).expand(3, size[1], size[0])
    with pytest.raises(ImageError, match="less extreme shape or lower the budget"):
        homunculus.foveate(image, budget=budget)


def test_relevance_maps_for_each_image_or_for_all():
    images = [picture(320, 256), picture(200, 300), picture(320, 256)]
    maps = torch.zeros(3, 10, 10)
    for i in range(3):
        maps[i, 3 * i, 3 * i] = 1.0
    together = homunculus.foveate(images, relevance=maps, budget=64).allocation
    mixed = homunculus.foveate(images, relevance=[(maps, 0.5), ("uniform", 0.5)], budget=64).allocation
    for i, image in enumerate(images):
        alone = homunculus.foveate(image, relevance=maps[i].numpy(), budget=64).allocation
        assert torch.equal(alone.boxes[0], together.boxes[i])
        alone = homunculus.foveate(image, relevance=[(maps[i], 0.5), ("uniform", 0.5)], budget=64).allocation
        assert torch.equal(alone.boxes[0], mixed.boxes[i])
    with pytest.raises(DensityError, match="density maps"):
        homunculus.foveate(images[0], relevance=maps)


def test_a_callable_sees_pixels_and_questions():
    seen = []

    def scorer(images, queries):
        seen.append((tuple(images.shape), queries))
        return images.float().mean(1)

    homunculus.foveate([picture(64, 48), picture(80, 48), picture(64, 48)], ["a", "b", "c"], 16, relevance=scorer)
    assert seen == [((2, 3, 48, 64), ["a", "c"]), ((1, 3, 48, 80), ["b"])]


def test_options_reach_the_allocator():
    image = picture(512, 512)
    sharp, blunt = (homunculus.foveate(image, fixation=(256, 256), e0=e0).allocation for e0 in (1.0, 20.0))
    assert (sharp.levels == 0).sum() > (blunt.levels == 0).sum()
    context = homunculus.foveate(image, context_level=3).allocation
    assert context.is_context.sum() > 2


@pytest.mark.parametrize("leaf", [16, 28, 32])
def test_the_leaf_is_a_parameter(leaf):
    for name in homunculus.allocators():
        tokens = homunculus.foveate(picture(500, 400), leaf=leaf, budget=100, allocator=name)
        assert tokens.patches.shape[-4:] == (100, 3, leaf, leaf) and tokens.allocation.leaf == leaf
        assert homunculus.reconstruct(tokens).images.shape == (1, 3, 400, 500)


def test_types_of_images_may_be_mixed(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(picture(50, 40).permute(1, 2, 0).numpy()).save(path)
    array = picture(50, 40).permute(1, 2, 0).numpy()
    tokens = homunculus.foveate([path, array, Image.fromarray(array), torch.rand(2, 3, 40, 50)], budget=20)
    assert tokens.patches.shape == (5, 20, 3, 16, 16)
    assert torch.equal(tokens.patches[0], tokens.patches[2])


def test_gradients_reach_the_image():
    image = torch.rand(3, 64, 64, requires_grad=True)
    homunculus.foveate(image, budget=16, relevance="uniform").patches.sum().backward()
    assert torch.allclose(image.grad, image.grad[0, 0, 0].expand_as(image))


@pytest.mark.parametrize("size", [(512, 512), (500, 510)])
def test_validation_can_be_skipped(size):
    image = picture(*size)
    checked, unchecked = (homunculus.foveate(image, "top", validate=v) for v in (True, False))
    assert torch.equal(checked.patches, unchecked.patches)


def test_the_fovea_is_fixed_in_pixels():
    """e0 is in leaves: on four times the side the fovea loses less than a level to the larger periphery."""
    levels = {}
    for side in (1024, 4096):
        density = torch.ones(side // 16, side // 16)
        allocation = homunculus.allocate(density, 273, fixation=(side / 2, side / 2), fixation_share=1.0)
        near = allocation.eccentricity[0] < 4
        levels[side] = allocation.levels[0][near & ~allocation.is_context[0]].mean().item()
    assert levels[4096] - levels[1024] < 1.0  # not 2, which is what a fovea fixed as a share of the image would give


def test_views_lead_to_the_same_tokens():
    image = picture(300, 200)
    view = make_view(image, "top right", budget=100)
    assert view.image_size == (300, 200) and view.query == ["top right"]
    assert view.fixations.tolist() == [[[250.0, pytest.approx(200 / 6), 1.0]]] and view.pyramid.grid == view.grid
    allocation = homunculus.allocation.allocate_view(view, 100)
    tokens = homunculus.foveate(image, "top right", 100)
    assert torch.equal(homunculus.sample(view.pyramid.images, allocation), tokens.patches)
    assert make_view([image, image]).batch == 2
    with pytest.raises(ImageError, match="one size"):
        make_view([image, picture(30, 20)])


def test_patches_are_float32_whatever_came_in():
    double = torch.rand(3, 40, 50, dtype=torch.float64)
    for image in (double.permute(1, 2, 0).numpy(), double, double.half()):
        assert homunculus.foveate(image, budget=16).patches.dtype == torch.float32


def test_what_is_printed_is_short():
    tokens = homunculus.foveate(picture(64, 64), budget=16)
    inside = "Allocation(1 images x 16 dyadic cells, leaf 16, cpu)"
    assert repr(tokens) == f"VisualTokens(patches [1, 16, 3, 16, 16] torch.float32, {inside})"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"budget": 0}, "positive whole number"),
        ({"allocator": "tree"}, "unknown allocator 'tree'"),
        ({"query": ["a", "b"]}, "2 queries for 1 images"),
        ({"relevance": "detial"}, "did you mean 'detail'"),
        ({"fixation": (0, 999)}, "outside the image"),
        ({"e1": 3}, "has no option 'e1'"),
        ({"leaf": 0}, "leaf must be a positive whole number"),
        ({"seed": 1 << 70, "allocator": "random"}, "64-bit whole number"),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(HomunculusError, match=error) as caught:
        homunculus.foveate(picture(64, 64), **arguments)
    assert "\n" not in str(caught.value)


def test_a_bad_budget_is_found_before_the_file_is_opened(tmp_path):
    with pytest.raises(HomunculusError, match="positive"):
        homunculus.foveate(tmp_path / "none.png", budget=0)
    with pytest.raises(ImageError, match="does not exist"):
        homunculus.foveate(tmp_path / "none.png", budget=5, allocator="topk")


def test_numpy_and_torch_layouts_are_not_confused():
    array = np.zeros((3, 40, 3), dtype=np.uint8)
    assert homunculus.foveate(array, budget=16).allocation.image_sizes == ((40, 3),)
    assert homunculus.foveate(torch.from_numpy(array), budget=16).allocation.image_sizes == ((3, 40),)
