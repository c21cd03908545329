"""Fused sampling against dense sums in float64, forward and back, in every type and layout; as torch operators."""

from dataclasses import replace

import pytest
import torch

import homunculus
from homunculus.allocation import get_allocator
from homunculus.errors import KernelError
from homunculus.kernels import plain, triton_ops
from homunculus.sampling import sample
from homunculus.structures import PackedAllocation
from tests.devices import no_sync
from tests.kernels.oracle import (
    DEVICE,
    TYPES,
    anywhere,
    assert_as_good_as_torch,
    blocks,
    dense_patches,
    error,
    picture,
)

pytestmark = pytest.mark.kernels
LAYOUTS = ("planar", "channels_last", "slice", "grey")
gpu = pytest.mark.gpu
dyadic_parts = triton_ops.dyadic_parts  # before any test replaces it


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """The interpreter runs programs one after the other: two to a cell show all there is to see."""
    if DEVICE == "cpu":
        monkeypatch.setattr(triton_ops, "dyadic_parts", lambda *_: 2)
        monkeypatch.setitem(triton_ops.BOXES, "parts", 2)


def pooled(images, boxes, leaf=16, kind="box", **options):
    return triton_ops.sample_cells(images, boxes, boxes[..., 0], leaf=leaf, kind=kind, **options)


def check(images, boxes, leaf, kind, dtype):
    truth = dense_patches(images, boxes, leaf)
    same_precision = dense_patches(images, boxes, leaf, torch.float32).to(dtype)
    found = pooled(images, boxes, leaf, kind, dtype=dtype)
    assert found.dtype == dtype
    assert_as_good_as_torch(found, truth, same_precision)


# The interpreter takes a second for each, so the CPU sees every value of every axis and a GPU every combination.
EACH_VALUE = [
    ("uint8", "planar", 16, "bfloat16"),
    ("uint8", "channels_last", 16, "float32"),
    ("uint8", "slice", 16, "float32"),
    ("uint8", "grey", 8, "float16"),
    ("uint8", "planar", 28, "float32"),
    ("uint8", "channels_last", 28, "bfloat16"),
    ("float16", "planar", 32, "float16"),
    ("bfloat16", "channels_last", 16, "bfloat16"),
    ("float32", "planar", 16, "float32"),
    ("float32", "slice", 28, "float16"),
    ("float32", "channels_last", 6, "float32"),
]
EVERY_COMBINATION = [
    pytest.param(*case, marks=gpu)
    for case in ((i, a, leaf, o) for i in TYPES for a in LAYOUTS for leaf in (16, 28, 32) for o in list(TYPES)[1:])
    if case not in EACH_VALUE
]


@pytest.mark.parametrize(("image", "layout", "leaf", "patch"), EACH_VALUE + EVERY_COMBINATION)
def test_blocks(image, layout, leaf, patch):
    images = picture(TYPES[image], 2, leaf * 4, leaf * 6, layout)
    check(images, blocks(2, 6, 4, leaf), leaf, "dyadic", TYPES[patch])


@pytest.mark.parametrize(("image", "layout", "leaf", "patch"), EACH_VALUE + EVERY_COMBINATION)
def test_any_box(image, layout, leaf, patch):
    images = picture(TYPES[image], 2, 37, 52, layout)
    check(images, anywhere(2, 9, 37, 52), leaf, "box", TYPES[patch])


@pytest.mark.parametrize(("size", "leaf"), [((1, 1), 4), ((1, 40), 1), ((40, 1), 2), ((3, 5), 3), ((17, 33), 7)])
def test_odd_images_and_leaves(size, leaf):
    images = picture(torch.uint8, 1, *size)
    check(images, anywhere(1, 7, *size), leaf, "box", torch.float32)


def test_cells_far_smaller_than_a_pixel():
    """Patch pixels of a thousandth of a pixel, on edges and across them: cut to seven digits all the same."""
    images = picture(torch.float32, 1, 2, 82)
    rows = torch.arange(17, 23) / 19  # 2 pixels in 38 cells, the edge between them included
    boxes = torch.stack((rows * 0 + 7.9, rows, rows * 0 + 10.6, rows + 1 / 19), dim=1)
    check(images, boxes[None].float().to(DEVICE), 32, "box", torch.float32)
    found = pooled(images, boxes[None].float().to(DEVICE), 32)
    assert error(found, dense_patches(images, boxes[None].float().to(DEVICE), 32)) < 5e-7


@pytest.mark.parametrize("layout", ["planar", "channels_last"])
@pytest.mark.parametrize("image", ["uint8", "float32"])
def test_blocks_of_any_depth(image, layout):
    """Levels 0 to 7 of a small leaf: patch pixels of up to 128 x 128 pixels, made of blocks of 32."""
    images = picture(TYPES[image], 1, 256, 256, layout)
    corners = torch.tensor(
        [[0, 0, 256], [128, 0, 128], [192, 64, 64], [32, 96, 32], [16, 48, 16], [8, 8, 8], [6, 4, 2]]
    )
    boxes = torch.cat((corners[:, :2], corners[:, :2] + corners[:, 2:]), dim=1)[None].float().to(DEVICE)
    check(images, boxes, 2, "dyadic", torch.float32)


def test_bytes_are_summed_exactly():
    """Integers until the last step: a block of ones averages to one, and any two blocks with one sum to one value."""
    images = torch.full((1, 3, 64, 64), 255, dtype=torch.uint8, device=DEVICE)
    boxes = torch.tensor([[[0.0, 0.0, 64.0, 64.0], [16.0, 32.0, 32.0, 48.0]]], device=DEVICE)
    assert torch.equal(pooled(images, boxes, kind="dyadic"), torch.ones(1, 2, 3, 16, 16, device=DEVICE))
    pair = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8, device=DEVICE)
    shuffled = pair.unflatten(3, (16, 4)).flip(4).flatten(3)
    assert torch.equal(pooled(pair, boxes[:, :1], kind="dyadic"), pooled(shuffled, boxes[:, :1], kind="dyadic"))


def test_normalisation_is_fused():
    images, boxes = picture(torch.uint8, 2, 32, 32), anywhere(2, 5, 32, 32)
    scale, shift = (3.0, 4.0, 5.0), (-1.5, -0.25, 2.0)
    truth = dense_patches(images, boxes, 8) * torch.tensor(scale, device=DEVICE)[:, None, None].double()
    truth += torch.tensor(shift, device=DEVICE)[:, None, None]
    found = pooled(images, boxes, 8, dtype=torch.float32, scale=scale, shift=shift)
    assert error(found, truth) < 2e-6
    assert error(plain.sample_cells(
        images, boxes, boxes[..., 0], leaf=8, kind="box", scale=scale, shift=shift), truth) < 2e-6  # fmt: skip


@pytest.mark.parametrize("kind", ["dyadic", "box"])
def test_packed_cells_are_the_same_cells(kind):
    images = picture(torch.uint8, 3, 64, 64)
    boxes = blocks(3, 4, 4, 16) if kind == "dyadic" else anywhere(3, 4, 64, 64)
    counts = [4, 1, 2]
    offsets = torch.tensor([0, *counts], dtype=torch.int32, device=DEVICE).cumsum(0, dtype=torch.int32)
    packed = torch.cat([boxes[i, :n] for i, n in enumerate(counts)])
    found = pooled(images, packed, kind=kind, offsets=offsets)
    together = pooled(images, boxes, kind=kind)
    assert torch.equal(found, torch.cat([together[i, :n] for i, n in enumerate(counts)]))


@pytest.mark.parametrize("kind", ["dyadic", "box"])
def test_same_bits_alone_and_in_a_batch(kind):
    images = picture(torch.uint8, 3, 32, 64)
    boxes = blocks(3, 4, 2, 16) if kind == "dyadic" else anywhere(3, 3, 32, 64)
    together = pooled(images, boxes, kind=kind)
    for i in range(3):
        assert torch.equal(pooled(images[i : i + 1], boxes[i : i + 1], kind=kind)[0], together[i])


# ------------------------------------------------------------------------------------------------------------- backward


BACKWARD = [("float32", "float32", 16), ("bfloat16", "bfloat16", 28), ("float16", "float32", 6)]


@pytest.mark.parametrize(("image", "patch", "leaf"), BACKWARD)
@pytest.mark.parametrize("kind", ["dyadic", "box"])
def test_gradients(image, patch, leaf, kind):
    size = (leaf * 2, leaf * 4) if kind == "dyadic" else (37, 70)
    images = picture(TYPES[image], 2, *size).requires_grad_()
    boxes = blocks(2, 4, 2, leaf) if kind == "dyadic" else anywhere(2, 7, *size)
    patches = pooled(images, boxes, leaf, kind, dtype=TYPES[patch], scale=(2.0, 1.0, 0.5))
    cotangent = torch.randn(patches.shape).to(patches)
    (found,) = torch.autograd.grad(patches, images, cotangent)
    assert found.dtype == images.dtype and found.shape == images.shape

    def by_torch(precision):
        leafs = images.detach().to(precision).requires_grad_()
        scale = torch.tensor([2.0, 1.0, 0.5], device=DEVICE).to(precision)[:, None, None]
        return torch.autograd.grad(
            dense_patches(leafs, boxes, leaf, precision) * scale, leafs, cotangent.to(precision)
        )[0]

    assert_as_good_as_torch(found, by_torch(torch.float64), by_torch(torch.float32).to(images.dtype))


def test_gradients_have_the_same_bits_every_time():
    """Many overlapping cells: sums in whatever order they arrive would differ from run to run on a GPU."""
    boxes = anywhere(1, 60 if DEVICE == "cuda" else 9, 64, 64)
    gradient = torch.randn(boxes.shape[1], 3, 16, 16, device=DEVICE)
    arguments = (gradient, boxes[0], None, [1, 3, 64, 64], torch.float32, [1.0] * 3)
    first = triton_ops.spread_cells(*arguments)
    assert all(torch.equal(triton_ops.spread_cells(*arguments), first) for _ in range(20 if DEVICE == "cuda" else 1))


def test_forward_and_backward_are_adjoint():
    """<pool(x), g> = <x, spread(g)>, packed cells and a second tile included."""
    images, boxes = picture(torch.float32, 2, 20, 90), anywhere(2, 6, 20, 90)
    offsets = torch.tensor([0, 2, 12], dtype=torch.int32, device=DEVICE)
    flat = boxes.flatten(0, 1)
    patches = pooled(images, flat, 8, offsets=offsets)
    gradient = torch.randn_like(patches)
    back = triton_ops.spread_cells(gradient, flat, offsets, list(images.shape), torch.float32, [1.0] * 3)
    assert torch.isclose((patches * gradient).sum(), (images * back).sum(), rtol=1e-4)


# -------------------------------------------------------------------------------------------------- as torch operators


def arguments(**changed):
    images = picture(torch.float32, 2, 32, 32).requires_grad_()
    given = {"images": images, "boxes": blocks(2, 2, 2, 16).flatten(0, 1), "offsets": None, "leaf": 16, "dyadic": True}
    given |= {"dtype": torch.float32, "scale": [1.0] * 3, "shift": [0.0] * 3}
    return tuple((given | changed).values())


@pytest.mark.parametrize("dyadic", [True, False])
def test_operators_are_well_formed(dyadic):
    """Schema, fake kernel and autograd registration, as torch itself checks them."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(triton_ops.pool_cells, arguments(dyadic=dyadic), test_utils=checks)


def test_programs_to_a_cell():
    """Never more than rows, more for large cells and for few of them, always a power of two."""
    for cells, size, columns in ((1, 1e9, 16), (17472, 11_000, 16), (273, 180_000, 32), (10**6, 1, 4)):
        parts = dyadic_parts(cells, size, columns)
        assert 1 <= parts <= columns and parts & (parts - 1) == 0
    assert dyadic_parts(17472, 11_000, 16) < dyadic_parts(17472, 180_000, 16)
    assert dyadic_parts(17472, 11_000, 16) < dyadic_parts(273, 11_000, 16)


def test_nothing_to_sample():
    empty = torch.zeros(2, 0, 4, device=DEVICE)
    assert pooled(picture(torch.uint8, 2, 16, 16), empty).shape == (2, 0, 3, 16, 16)


def test_blocks_that_are_none_read_nothing_outside():
    """Cells that claim to be dyadic and are not: some patch of the image, never memory beyond it or left unwritten."""
    images = picture(torch.float32, 1, 48, 64)
    wild = [[-50, -50, 0, 0], [60, 40, 700, 700], [5, 5, 5, 5], [9, 9, 4, 4], [0, 0, 48, 48]]
    wild += [[float("nan")] * 4] if DEVICE == "cuda" else []  # numpy, under the interpreter, warns
    found = pooled(images, torch.tensor([wild], dtype=torch.float32, device=DEVICE), kind="dyadic")
    assert (found >= 0).all() and (found <= 1).all()
    boxes = torch.tensor([wild[:2]], dtype=torch.float32, device=DEVICE)
    assert error(pooled(images, boxes), dense_patches(images, boxes, 16)) < 1e-5  # any box is any box


def test_what_has_no_kernel_is_refused():
    images, boxes = picture(torch.float32, 1, 32, 32), anywhere(1, 2, 32, 32)
    with pytest.raises(KernelError, match="rotated cells: use reference or texture"):
        pooled(images, boxes, kind="rotated")
    with pytest.raises(KernelError, match="no gradient in the boxes: use reference"):
        pooled(images, boxes.requires_grad_())
    with pytest.raises(KernelError, match=r"no torch.float64 images"):
        pooled(images.double(), boxes.detach())


def test_sample_takes_triton_when_told(monkeypatch):
    """The whole way: `sample` with the implementation forced, against the reference forced."""
    images = picture(torch.uint8, 2, 64, 96)
    for grid, name in (((6, 4), "foveated-pyramid"), ((6, 4), "uniform")):
        density = torch.rand(2, grid[1], grid[0], device=DEVICE)
        monkeypatch.setenv("HOMUNCULUS_KERNELS", "reference")
        allocation = homunculus.allocate(density, 16, name, image_size=(96, 64))
        expected = sample(images, allocation, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
        monkeypatch.setenv("HOMUNCULUS_KERNELS", "triton")
        found = sample(images, allocation, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
        assert torch.allclose(found, expected, atol=3e-6)
    packed = PackedAllocation.pack([allocation.select([0]), allocation.select([1])])
    found = sample(images, packed, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    assert torch.allclose(found, expected.flatten(0, 1), atol=3e-6)
    with pytest.raises(KernelError, match="no gradient in the boxes"):
        sample(images, replace(allocation, boxes=allocation.boxes.clone().requires_grad_()))


# ------------------------------------------------------------------------------------------------------- on a device


@gpu
@pytest.mark.parametrize("name", [n for n in homunculus.allocators() if not get_allocator(n).needs_pixels])
def test_every_allocator_is_sampled_alike(name, monkeypatch):
    for size in ((512, 512), (500, 389)):
        images = picture(torch.uint8, 3, size[1], size[0])
        density = torch.rand(3, 24, 32, device="cuda")
        allocation = homunculus.allocate(density, 273, name, image_size=size, fixation=[(100, 200)])
        found = sample(images, allocation)
        monkeypatch.setenv("HOMUNCULUS_KERNELS", "reference")
        assert torch.allclose(found, sample(images, allocation), atol=1e-6)
        monkeypatch.delenv("HOMUNCULUS_KERNELS")


@gpu
@pytest.mark.parametrize("kind", ["dyadic", "box"])
def test_nothing_waits_and_graphs_replay(kind):
    images = picture(torch.uint8, 4, 128, 128)
    boxes = blocks(4, 8, 8, 16) if kind == "dyadic" else anywhere(4, 20, 128, 128)
    pooled(images, boxes, kind=kind)
    with no_sync():
        pooled(images, boxes, kind=kind)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = pooled(images, boxes, kind=kind)
    images.copy_(picture(torch.uint8, 4, 128, 128, seed=1))
    boxes.copy_(boxes.flip(1))
    graph.replay()
    assert torch.equal(captured, pooled(images, boxes, kind=kind))


@gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler warns about torch
def test_compiles_with_gradients():
    images, boxes = picture(torch.float32, 2, 64, 64).requires_grad_(), anywhere(2, 9, 64, 64)

    def loss(images):
        return (pooled(images * 2, boxes, dtype=torch.bfloat16).float() ** 2).sum()

    expected = torch.autograd.grad(loss(images), images)[0]
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(images), images)[0]
    assert torch.allclose(found, expected, rtol=1e-3)


@gpu
def test_other_streams_are_respected():
    images, boxes = picture(torch.uint8, 8, 512, 512), anywhere(8, 200, 512, 512)
    expected = pooled(images, boxes)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = images.clone()
        torch.cuda._sleep(10_000_000)
        late.copy_(images)
        found = pooled(late, boxes)
    stream.synchronize()
    assert torch.equal(found, expected)


@gpu
def test_a_batch_beyond_two_billion_bytes():
    """Offsets of images take 64 bits."""
    images = torch.zeros(12, 3, 8192, 8192, dtype=torch.uint8, device="cuda")
    images[-1, :, -16:, -16:] = 255
    boxes = torch.tensor([8176.0, 8176.0, 8192.0, 8192.0], device="cuda").expand(12, 1, 4).contiguous()
    for kind in ("dyadic", "box"):
        found = pooled(images, boxes, kind=kind)
        assert found[-1].eq(1).all() and found[:-1].eq(0).all()
