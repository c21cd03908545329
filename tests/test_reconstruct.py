"""Reconstruction: constants stay constant, brightness is kept, gaps are said to be gaps."""

from dataclasses import replace

import pytest
import torch

import homunculus
from homunculus.sampling import sample
from homunculus.structures import PackedAllocation, VisualTokens

SIZES = [(256, 256), (300, 200), (97, 411), (1, 1), (1, 60), (33, 2)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", homunculus.allocators())
def test_a_constant_image_stays_constant(name, size):
    image = torch.full((3, size[1], size[0]), 0.3)
    tokens = homunculus.foveate(image, budget=64, allocator=name)
    picture, mask = homunculus.reconstruct(tokens)
    assert picture.shape == (1, 3, size[1], size[0])
    assert torch.allclose(picture[:, :, mask[0]], torch.tensor(0.3), atol=1e-6)
    assert (picture[:, :, ~mask[0]] == 0.5).all()
    if homunculus.allocation.get_allocator(name).tiles and tokens.allocation.sector.isnan().all():  # squares leave gaps
        assert mask.all()


@pytest.mark.parametrize("size", SIZES)
def test_mean_brightness_is_kept(size):
    image = torch.rand(3, size[1], size[0])
    for name in ("foveated-pyramid", "detail-tree"):
        picture = homunculus.reconstruct(homunculus.foveate(image, budget=64, allocator=name)).images
        assert torch.allclose(picture.mean((2, 3)), image.mean((1, 2))[None], atol=1e-5)


def test_uniform_keeps_brightness_nearly():
    image = torch.rand(3, 300, 400)
    picture = homunculus.reconstruct(homunculus.foveate(image, budget=150, allocator="uniform")).images
    assert torch.allclose(picture.mean((2, 3)), image.mean((1, 2))[None], atol=2e-3)


def test_every_leaf_gives_the_image_back():
    image = torch.randint(0, 256, (3, 128, 160), dtype=torch.uint8)
    tokens = homunculus.foveate(image, budget=80)
    assert torch.equal(homunculus.reconstruct(tokens).images[0], image / 255)


@pytest.mark.parametrize("side", [24, 48, 96])
def test_nothing_is_lost_that_the_tokens_hold(side):
    """Small images are enlarged, here by a whole number: all leaves hold every pixel, and painting gives them back."""
    image = torch.rand(3, side, side)
    tokens = homunculus.foveate(image, budget=324)
    assert tokens.allocation.grids == ((18, 18),) and 288 % side == 0
    assert torch.allclose(homunculus.reconstruct(tokens).images[0], image, atol=1e-5)


def test_finer_cells_are_painted_over_coarser_ones():
    allocation = homunculus.allocate(torch.ones(16, 16), 18)  # sixteen cells and two context tokens under them
    assert allocation.is_context.sum() == 2
    patches = torch.where(allocation.is_context[..., None, None, None], 1.0, 0.25).expand(1, 18, 3, 16, 16)
    assert (homunculus.reconstruct(VisualTokens(patches, allocation)).images == 0.25).all()


def test_gaps_are_grey_and_masked():
    image = torch.zeros(3, 256, 256)
    picture, mask = homunculus.reconstruct(homunculus.foveate(image, budget=20, allocator="topk"))
    assert mask.sum() == 20 * 256
    assert (picture[0, :, ~mask[0]] == 0.5).all() and (picture[0, :, mask[0]] == 0).all()


def test_images_of_different_sizes_come_as_a_list():
    images = [torch.rand(3, 100, 200), torch.rand(3, 64, 64), torch.rand(3, 100, 200)]
    pictures, masks = homunculus.reconstruct(homunculus.foveate(images, budget=32))
    assert [p.shape for p in pictures] == [i.shape for i in images]
    assert all(mask.all() for mask in masks)
    alone = homunculus.reconstruct(homunculus.foveate(images[2], budget=32)).images[0]
    assert torch.equal(pictures[2], alone)


@pytest.mark.parametrize("name", ["foveated-pyramid", "uniform"])
def test_scaled_down(name):
    image = torch.rand(3, 400, 600)
    tokens = homunculus.foveate(image, budget=100, allocator=name)
    small = homunculus.reconstruct(tokens, max_side=150)
    assert small.images.shape == (1, 3, 100, 150) and small.mask.all()
    full = homunculus.reconstruct(tokens).images
    assert (small.images - torch.nn.functional.avg_pool2d(full, 4)).abs().mean() < 0.05
    assert homunculus.reconstruct(tokens, max_side=5000).images.shape == (1, 3, 400, 600)


def test_turned_boxes_are_painted_turned():
    straight = homunculus.allocate(torch.ones(4, 4), 1, "topk", image_size=(64, 64))
    boxes = torch.tensor([[[16.0, 28.0, 48.0, 36.0]]])
    turned = replace(straight, boxes=boxes, angle=torch.full((1, 1), torch.pi / 2), kind="rotated")
    image = torch.rand(1, 3, 64, 64)
    _, mask = homunculus.reconstruct(VisualTokens(sample(image, turned), turned))
    ys, xs = mask[0].nonzero().unbind(1)
    assert (xs.min(), xs.max() + 1, ys.min(), ys.max() + 1) == (28, 36, 16, 48)


def test_gradients_reach_the_patches():
    tokens = homunculus.foveate(torch.rand(3, 64, 64), budget=16)
    patches = tokens.patches.clone().requires_grad_()
    homunculus.reconstruct(VisualTokens(patches, tokens.allocation)).images.sum().backward()
    cells = tokens.allocation.levels[0].exp2().square()
    expected = torch.where(tokens.allocation.is_context[0], 0.0, cells)[:, None, None, None].expand(-1, 3, 16, 16)
    assert torch.allclose(patches.grad[0], expected)


def test_packed_tokens_are_painted_image_by_image():
    tokens = homunculus.foveate(torch.rand(2, 3, 64, 64), budget=16)
    packed = PackedAllocation.pack([own.allocation for own in tokens.unpack()])
    found = homunculus.reconstruct(VisualTokens(tokens.patches.flatten(0, 1), packed))
    assert torch.equal(found.images, homunculus.reconstruct(tokens).images)
