"""Sampling: exact area averages, whatever the box, the type or the way they are computed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.errors import ImageError
from homunculus.kernels import plain, reference, resample
from homunculus.kernels.reference import sample_boxes, sample_dyadic, sample_rotated
from homunculus.sampling import sample


def naive(image: np.ndarray, box: tuple[float, ...], leaf: int) -> np.ndarray:
    """Every patch pixel by looping over the image pixels it overlaps."""
    c, h, w = image.shape
    x0, y0, x1, y1 = box
    out = np.zeros((c, leaf, leaf))
    for j in range(leaf):
        for i in range(leaf):
            left, right = x0 + (x1 - x0) * i / leaf, x0 + (x1 - x0) * (i + 1) / leaf
            top, bottom = y0 + (y1 - y0) * j / leaf, y0 + (y1 - y0) * (j + 1) / leaf
            for y in range(math.floor(top), min(math.ceil(bottom), h)):
                for x in range(math.floor(left), min(math.ceil(right), w)):
                    overlap = (min(x + 1, right) - max(x, left)) * (min(y + 1, bottom) - max(y, top))
                    out[:, j, i] += overlap * image[:, y, x]
            out[:, j, i] /= (right - left) * (bottom - top)
    return out


boxes_in = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 1), st.floats(0.01, 1))


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(1, 20), boxes_in, st.integers(1, 4), st.integers(0, 999))
def test_any_box_against_a_naive_loop(w, h, box, leaf, seed):
    image = torch.rand(1, 3, h, w, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x0, y0 = box[0] * w * 0.99, box[1] * h * 0.99
    x1, y1 = x0 + box[2] * (w - x0), y0 + box[3] * (h - y0)
    found = sample_boxes(image, torch.tensor([[[x0, y0, x1, y1]]], dtype=torch.float64), leaf)[0, 0]
    assert np.allclose(found.numpy(), naive(image[0].numpy(), (x0, y0, x1, y1), leaf), atol=1e-9)


@pytest.mark.parametrize("leaf", [16, 28, 32])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float64])
def test_mips_give_the_same_as_boxes(leaf, dtype):
    size = leaf * 16
    image = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    image = image if dtype == torch.uint8 else (image / 255).to(dtype)
    allocation = homunculus.allocate(torch.rand(2, 16, 16) ** 6, 60, leaf=leaf, fixation=(40, 50))
    assert allocation.kind == "dyadic" and allocation.levels.unique().numel() > 2
    fast = sample(image, allocation)
    exact = sample_boxes(image, allocation.boxes, leaf)
    assert fast.dtype == exact.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(fast, exact, atol=1e-5)


def test_leaves_of_a_pixel_exact_grid_are_the_pixels():
    image = torch.randint(0, 256, (1, 3, 64, 80), dtype=torch.uint8)
    patches = sample(image, homunculus.allocate(torch.ones(4, 5), 20))
    expected = image[0].unflatten(1, (4, 16)).unflatten(3, (5, 16)).permute(1, 3, 0, 2, 4).flatten(0, 1) / 255
    assert torch.equal(patches[0], expected)


def test_fitted_grids_average_the_original_pixels():
    """A 100 x 70 image on 10 x 7 leaves of 16: every patch pixel covers 0.625 image pixels, and means survive."""
    image = torch.rand(1, 3, 70, 100)
    allocation = homunculus.allocate(torch.rand(7, 10), 70, image_size=(100, 70))
    patches = sample(image, allocation)
    assert torch.allclose(patches.mean((1, 3, 4)), image.mean((2, 3)), atol=1e-6)
    cell = allocation.boxes[0, 23].int().tolist()
    assert torch.allclose(
        patches[0, 23].mean((1, 2)), image[0, :, cell[1] : cell[3], cell[0] : cell[2]].mean((1, 2)), atol=1e-6
    )


@pytest.mark.parametrize("name", ["uniform", "foveated-pyramid", "topk"])
def test_uint8_and_float_agree(name):
    image = torch.randint(0, 256, (1, 3, 90, 133), dtype=torch.uint8)
    allocation = homunculus.allocate(torch.rand(24, 36), 100, name, image_size=(133, 90))
    assert torch.allclose(sample(image, allocation), sample(image / 255, allocation), atol=1e-6)


def test_strips_change_nothing(monkeypatch):
    image = torch.randint(0, 256, (2, 3, 200, 100), dtype=torch.uint8)
    allocation = homunculus.allocate(torch.rand(2, 26, 13), 100, "uniform", image_size=(100, 200))
    whole = sample(image, allocation)
    monkeypatch.setitem(resample.STRIP_BYTES, "cpu", 20_000)
    assert len(reference.strip_rows(image.shape, (100, 200))) > 5
    assert torch.allclose(sample(image, allocation), whole, atol=1e-7)


def test_channels_last_and_slices_are_fine():
    image = torch.rand(2, 3, 64, 64)
    allocation = homunculus.allocate(torch.rand(2, 4, 4), 16)
    expected = sample(image, allocation)
    assert torch.equal(sample(image.contiguous(memory_format=torch.channels_last), allocation), expected)
    padded = torch.rand(2, 3, 70, 70)
    padded[..., :64, :64] = image
    assert torch.equal(sample(padded[..., :64, :64], allocation), expected)


def test_same_bits_alone_and_in_a_batch():
    images = torch.randint(0, 256, (3, 3, 100, 150), dtype=torch.uint8)
    for name in ("uniform", "foveated-pyramid"):
        allocation = homunculus.allocate(torch.rand(3, 20, 30), 64, name, image_size=(150, 100))
        together = sample(images, allocation)
        for i in range(3):
            assert torch.equal(sample(images[i : i + 1], allocation.select([i]))[0], together[i])


def test_gradients_in_image_and_box():
    image = torch.rand(1, 3, 6, 7, dtype=torch.float64, requires_grad=True)
    boxes = torch.tensor([[[0.3, 1.2, 4.1, 5.7], [2.6, 0.1, 6.4, 3.3]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda i, b: sample_boxes(i, b, leaf=2), (image, boxes))


def test_boxes_that_ask_for_a_gradient_get_one():
    allocation = homunculus.allocate(torch.ones(8, 8), 16)
    moving = replace(allocation, boxes=allocation.boxes.clone().requires_grad_())
    sample(torch.rand(1, 3, 128, 128), moving).square().sum().backward()
    assert moving.boxes.grad.abs().sum() > 0


def test_gradients_do_not_know_of_strips(monkeypatch):
    """Edges that fall exactly between two strips are counted once."""
    image = torch.rand(1, 3, 32, 8, dtype=torch.float64)
    gradients = []
    for limit in (1 << 24, 8 * 3 * 8 * 4 // 2):  # one strip, and strips of four rows
        monkeypatch.setitem(resample.STRIP_BYTES, "cpu", limit)
        boxes = torch.tensor([[[1.0, 8.0, 5.0, 16.0], [0.5, 3.7, 7.0, 20.0]]], dtype=torch.float64, requires_grad=True)
        (sample_boxes(image, boxes, leaf=2) * torch.arange(24).reshape(1, 2, 3, 2, 2)).sum().backward()
        gradients.append(boxes.grad)
    assert len(resample.strip_rows(image.shape, (8, 32))) > 4
    assert torch.allclose(gradients[0], gradients[1])


def test_the_border_goes_on_outside(monkeypatch):
    image = torch.rand(1, 3, 8, 8)
    for limit in (1 << 24, 8 * 3 * 4):
        monkeypatch.setitem(resample.STRIP_BYTES, "cpu", limit)
        below, right = sample_boxes(image, torch.tensor([[[2.0, 4.0, 6.0, 12.0], [4.0, 2.0, 12.0, 6.0]]]), leaf=4)[0]
        assert torch.allclose(
            below[:, 2:], sample_boxes(image, torch.tensor([[[2.0, 7.0, 6.0, 8.0]]]), leaf=4)[0, 0, :, :2], atol=1e-6
        )
        assert torch.allclose(
            right[..., 2:],
            sample_boxes(image, torch.tensor([[[7.0, 2.0, 8.0, 6.0]]]), leaf=4)[0, 0, ..., :2],
            atol=1e-6,
        )


def test_gradient_of_mips():
    image = torch.rand(1, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    levels, corners = torch.tensor([[0, 1, 2]]), torch.tensor([[[2, 4], [4, 0], [0, 0]]])
    assert torch.autograd.gradcheck(lambda i: sample_dyadic(i, levels, corners, leaf=2), image)


def test_a_box_finds_its_target_by_gradient():
    """Only works if the derivative in the box edges is right: slide a window onto a bright square."""
    ys, xs = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    image = torch.exp(-((xs - 40) ** 2 + (ys - 23) ** 2) / 300).expand(1, 3, 64, 64)
    centre = torch.tensor([30.0, 30.0], requires_grad=True)
    optimiser = torch.optim.Adam([centre], lr=0.5)
    for _ in range(120):
        box = torch.cat((centre - 6, centre + 6))[None, None]
        optimiser.zero_grad()
        (-sample_boxes(image, box, leaf=4).mean()).backward()
        optimiser.step()
    assert (centre - torch.tensor([40.5, 23.5])).abs().max() < 0.5


# -------------------------------------------------------------------------------------------------------------- rotated


def smooth(size: int) -> torch.Tensor:
    ys, xs = torch.meshgrid(torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij")
    waves = torch.stack((torch.sin(xs / 9), torch.cos(ys / 7), torch.sin((xs + ys) / 11)))
    return (waves[None] + 1) / 2


def naive_rotated(image: np.ndarray, box: tuple[float, ...], angle: float, leaf: int) -> np.ndarray:
    """The definition, read by read: 4 x 4 per patch pixel, bilinear, from the mip no coarser than their distance."""
    x0, y0, x1, y1 = box
    level = max(0, math.floor(math.log2(math.sqrt((x1 - x0) * (y1 - y0)) / (4 * leaf))))
    mip = torch.from_numpy(image)[None]
    for _ in range(level):
        mip = resample.halve(mip)
    mip = mip[0].numpy()
    out = np.zeros((3, leaf, leaf))
    for j in range(4 * leaf):
        for i in range(4 * leaf):
            u, v = ((i + 0.5) / (4 * leaf) - 0.5) * (x1 - x0), ((j + 0.5) / (4 * leaf) - 0.5) * (y1 - y0)
            x = ((x0 + x1) / 2 + u * math.cos(angle) - v * math.sin(angle)) / 2**level - 0.5
            y = ((y0 + y1) / 2 + u * math.sin(angle) + v * math.cos(angle)) / 2**level - 0.5
            x, y = min(max(x, 0), mip.shape[2] - 1), min(max(y, 0), mip.shape[1] - 1)
            left, top = int(x), int(y)
            right, below = min(left + 1, mip.shape[2] - 1), min(top + 1, mip.shape[1] - 1)
            upper = mip[:, top, left] * (1 - x + left) + mip[:, top, right] * (x - left)
            lower = mip[:, below, left] * (1 - x + left) + mip[:, below, right] * (x - left)
            out[:, j // 4, i // 4] += (upper * (1 - y + top) + lower * (y - top)) / 16
    return out


@pytest.mark.parametrize(
    ("box", "angle"),
    [
        ((3.0, 4.0, 9.0, 12.0), 0.3),
        ((0.0, 0.0, 40.0, 33.0), 1.2),
        ((-9.0, 5.0, 30.0, 50.0), -2.0),
        ((1.0, 2.0, 60.0, 61.0), 0.0),
    ],
)
def test_rotated_boxes_against_their_definition(box, angle):
    image = torch.rand(1, 3, 61, 67, dtype=torch.float64)
    found = sample_rotated(image, torch.tensor([[box]], dtype=torch.float64), torch.tensor([[angle]]).double(), leaf=3)
    assert np.allclose(found[0, 0].numpy(), naive_rotated(image[0].numpy(), box, angle, 3), atol=1e-9)


def test_turned_by_nothing_is_nearly_the_area_average():
    image, boxes = smooth(128), torch.tensor([[[10.0, 20.0, 74.0, 52.0], [60.0, 40.0, 70.0, 55.0]]])
    turned = sample_rotated(image, boxes, torch.zeros(1, 2))
    difference = (turned - sample_boxes(image, boxes)).abs().amax((2, 3, 4))[0]
    assert difference[0] < 2e-3  # four pixels by two under each patch pixel
    assert difference[1] < 2e-2  # under one pixel: bilinear between pixels against constant on them


def test_quarter_turns_permute_the_patch():
    """Clockwise as seen: the patch's x axis points down the image."""
    image, boxes = smooth(128), torch.tensor([[[40.0, 30.0, 72.0, 62.0]]])
    straight = sample_rotated(image, boxes, torch.zeros(1, 1))
    quarter = sample_rotated(image, boxes, torch.full((1, 1), math.pi / 2))
    assert torch.allclose(quarter, straight.transpose(-1, -2).flip(-2), atol=1e-5)
    half = sample_rotated(image, boxes, torch.full((1, 1), math.pi))
    assert torch.allclose(half, straight.flip(-1, -2), atol=1e-5)


def test_turned_box_follows_turned_content():
    """A plane tilted along the box: constant across it, whatever the angle."""
    angle = 0.4
    ys, xs = torch.meshgrid(torch.arange(128) + 0.5, torch.arange(128) + 0.5, indexing="ij")
    plane = ((xs * math.cos(angle) + ys * math.sin(angle)) / 256).expand(1, 3, 128, 128)
    patch = sample_rotated(plane, torch.tensor([[[40.0, 50.0, 90.0, 75.0]]]), torch.tensor([[angle]]))[0, 0, 0]
    assert patch.std(0).max() < 1e-5
    assert torch.allclose(patch.diff(dim=1), torch.tensor(50 / 16 / 256), atol=1e-5)


def test_coarse_turned_boxes_read_a_mip():
    """A box of 1024 pixels read from the full image would alias; the mean of noise shows that it does not."""
    image = torch.randint(0, 256, (1, 3, 1024, 1024), dtype=torch.uint8)
    patch = sample_rotated(image, torch.tensor([[[0.0, 0.0, 1024.0, 1024.0]]]), torch.tensor([[0.001]]))
    assert patch.std() < 0.02 and abs(patch.mean() - 0.5) < 0.005


def test_gradients_of_turned_boxes():
    image = torch.rand(1, 3, 9, 9, dtype=torch.float64, requires_grad=True)
    boxes = torch.tensor([[[1.3, 2.1, 6.2, 5.4]]], dtype=torch.float64, requires_grad=True)
    angle = torch.tensor([[0.37]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda i, b, a: sample_rotated(i, b, a, leaf=1), (image, boxes, angle))


@pytest.mark.parametrize("reads", [1, 2, 4])
def test_fewer_reads_read_a_coarser_mip(reads):
    """Of noise, the mean is kept and the variance falls alike: what the mip has averaged the reads need not."""
    image = torch.rand(1, 3, 256, 256, dtype=torch.float64)
    boxes, angle = torch.tensor([[[32.0, 32.0, 224.0, 224.0]]]).double(), torch.tensor([[0.3]]).double()
    patch = sample_rotated(image, boxes, angle, leaf=4, reads=reads, trilinear=True)
    assert abs(patch.mean() - 0.5) < 0.01 and patch.std() < 0.02


@pytest.mark.parametrize("lod", [0.0, 0.3, 0.75, 0.99])
def test_trilinear_is_linear_between_two_mips(lod):
    image = torch.rand(1, 3, 61, 67, dtype=torch.float64)
    side = 4 * 3 * 2**lod  # 3 patch pixels of 4 reads, 2^lod pixels apart: near enough to read both as they are
    box, angle = (20.0, 25.0, 20 + side, 25 + side), 0.3
    fine = naive_rotated(image[0].numpy(), box, angle, 3)
    coarse = naive_rotated(resample.halve(image)[0].numpy(), tuple(edge / 2 for edge in box), angle, 3)
    turn = torch.tensor([[angle]]).double()
    found = sample_rotated(image, torch.tensor([[box]]).double(), turn, leaf=3, trilinear=True)
    assert np.allclose(found[0, 0].numpy(), fine * (1 - lod) + coarse * lod, atol=1e-9)


def test_trilinear_stops_at_the_mips_there_are():
    image = torch.rand(1, 3, 8, 8)
    boxes = torch.tensor([[[3.0, 3.0, 3.5, 3.5], [-4000.0, -4000.0, 4000.0, 4000.0]]])
    near, far = sample_rotated(image, boxes, torch.zeros(1, 2), leaf=2, trilinear=True)[0]
    assert torch.allclose(near, sample_rotated(image, boxes[:, :1], torch.zeros(1, 1), leaf=2)[0, 0])
    assert torch.allclose(far, image.mean((2, 3))[0, :, None, None].expand(3, 2, 2), atol=1e-6)


def test_gradients_of_trilinear_reads():
    image = torch.rand(1, 3, 9, 9, dtype=torch.float64, requires_grad=True)
    boxes = torch.tensor([[[1.3, 2.1, 6.2, 5.4]]], dtype=torch.float64, requires_grad=True)
    angle = torch.tensor([[0.37]], dtype=torch.float64, requires_grad=True)
    how = {"leaf": 1, "reads": 2, "trilinear": True}
    assert torch.autograd.gradcheck(lambda i, b, a: sample_rotated(i, b, a, **how), (image, boxes, angle))


def test_tiny_images_and_borders():
    patch = sample_rotated(torch.full((1, 3, 1, 1), 0.3), torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), torch.tensor([[1.0]]))
    assert torch.allclose(patch, torch.tensor(0.3))


def test_images_must_be_those_that_were_allocated():
    allocation = homunculus.allocate(torch.ones(4, 4), 16)
    with pytest.raises(ImageError, match="1 images of 65x64 pixels do not match"):
        sample(torch.rand(1, 3, 64, 65), allocation)
    with pytest.raises(ImageError, match="2 images"):
        sample(torch.rand(2, 3, 64, 64), allocation)


@pytest.mark.parametrize("kind", ["dyadic", "box", "rotated"])
def test_images_may_be_sampled_some_at_a_time(kind, monkeypatch):
    images = (torch.rand(5, 3, 96, 128, generator=torch.Generator().manual_seed(1)) * 255).to(torch.uint8)
    boxes = torch.tensor([[0.0, 0, 16, 16], [32, 32, 64, 64], [64, 0, 128, 64]]).expand(5, 3, 4)
    angle = torch.linspace(0, 1, 15).view(5, 3)
    how = {"leaf": 16, "kind": kind}
    monkeypatch.setattr(plain, "together", lambda *_: None)
    whole = plain.sample_cells(images, boxes, angle, **how)
    for each in (1, 2, 4):
        monkeypatch.setattr(plain, "together", lambda *_, each=each: each)
        assert torch.equal(plain.sample_cells(images, boxes, angle, **how), whole)
