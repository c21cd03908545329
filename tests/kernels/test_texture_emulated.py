"""The texture kernels themselves, compiled for the CPU against an emulator of CUDA (emulator/cuda_runtime.h).

What only hardware can answer (does it filter as documented, does it keep up) is in test_texture.py.
"""

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from homunculus.errors import KernelError
from homunculus.kernels.resample import halve
from homunculus.kernels.texture import depth_for
from homunculus.kernels.texture_arrays import ArrayShape, MipArray, Pool, Precision, Reading
from homunculus.kernels.texture_bound import texture_error_bound
from homunculus.kernels.texture_build import SOURCE, declare

from .texture_cases import DTYPES, READINGS, SIZES, any_boxes, assert_within_bound, blocks, expected, noise, precisions

EMULATOR = Path(__file__).with_name("emulator")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to compile the kernels for the CPU")
    out = tmp_path_factory.mktemp("emulator") / "texture.so"
    flags = ["-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unknown-pragmas"]
    done = subprocess.run(
        [compiler, *flags, f"-I{EMULATOR}", str(SOURCE), "-o", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return declare(ctypes.CDLL(str(out)))


@pytest.fixture(autouse=True)
def _all_is_freed(library):
    yield
    assert library.emulator_things_alive() == 0


def run(
    library: ctypes.CDLL,
    images: Tensor,
    boxes: Tensor,
    angle: Tensor | None,
    reading: Reading,
    precision: Precision,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    b, _, h, w = images.shape
    shape = ArrayShape.holding((w, h), b, depth_for((w, h), reading), precision)
    patches = torch.full((*boxes.shape[:-1], 3, reading.leaf, reading.leaf), math.nan, dtype=dtype)
    array = MipArray(shape, library)
    array.fill(images, stream=0)
    array.sample(patches.flatten(0, 1), boxes.contiguous(), angle, None, reading, 0, images=b)
    array.free()
    return patches


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_box_is_the_reference_within_the_bound(library, size, dtype):
    boxes, angle = any_boxes(2, 8, *size)
    for precision in precisions(dtype):
        for reads, filter in READINGS:
            reading, contrast = Reading(3, reads, filter), 1.0 if reads % 2 else 0.04
            images = noise(dtype, 2, 3, *size, contrast=contrast)
            found = run(library, images, boxes, angle, reading, precision)
            assert_within_bound(found, images, boxes, angle, reading, precision)


def test_the_bound_is_tight_where_little_happens():
    assert texture_error_bound("byte", contrast=0.04) < 0.0031  # half a code value is 0.00196
    assert texture_error_bound("half", contrast=0.04) < 0.0009


def test_weights_of_eight_bits_use_the_bound_up(library):
    columns = (torch.arange(64) % 2).float().expand(1, 3, 4, 64).contiguous()
    starts = torch.linspace(8, 40, 200)
    boxes = torch.stack((starts, starts * 0 + 1, starts + 1e-3, starts * 0 + 1.001), dim=-1)[None]
    reading = Reading(1, 1)
    found = run(library, columns, boxes, None, reading, "half")
    error = (found.double() - expected(columns, boxes, None, reading)).abs().max()
    assert texture_error_bound("half", longest=64) / 3 < error < texture_error_bound("half", longest=64)


@pytest.mark.parametrize("size", [(61, 67), (64, 64), (130, 97), (3, 200)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dyadic_cells_are_texels_of_their_mip(library, size, dtype):
    images, boxes = noise(dtype, 2, 3, *size), blocks(2, *size, leaf=3)
    reading = Reading(3, 1, "point")
    for precision in precisions(dtype):
        found = run(library, images, boxes, None, reading, precision)
        assert_within_bound(found, images, boxes, None, reading, precision)
        if dtype in (torch.uint8, torch.float16):
            leaves = (boxes[0, :, 2] - boxes[0, :, 0]) == 3
            wanted = expected(images, boxes, None, reading).float()
            assert torch.equal(found[:, leaves], wanted[:, leaves])


def test_halves_hold_bytes_and_the_means_of_four_exactly(library):
    images, boxes = noise(torch.uint8, 1, 3, 32, 32), blocks(1, 32, 32, leaf=2)
    reading = Reading(2, 1, "point")
    fine = (boxes[0, :, 2] - boxes[0, :, 0]) <= 4
    found = run(library, images, boxes, None, reading, "half")
    assert torch.equal(found[:, fine], expected(images, boxes, None, reading).float()[:, fine])


@pytest.mark.parametrize("size", [(200, 130), (64, 129)])
def test_every_level_is_rounded_once_and_its_border_goes_on(library, size):
    """Texel by texel, one read at each centre, beyond the image too. More than six levels are made in two passes."""
    h, w = size
    images = noise(torch.uint8, 1, 3, h, w)
    depth = (max(h, w) - 1).bit_length()
    array = MipArray(ArrayShape.holding((w, h), 1, depth, "byte"), library)
    array.fill(images, stream=0)
    mip = images.double()
    for level in range(depth + 1):
        rows, columns = mip.shape[-2:]
        side = max(rows, columns) + 2
        box = torch.tensor([[[-1.0, -1.0, side - 1, side - 1]]], dtype=torch.float64) * 2**level
        patches = torch.empty(1, 3, side, side)
        array.sample(patches, box, None, None, Reading(side, 1, "bilinear"), 0, images=1)
        at = torch.arange(side) - 1
        wanted = mip[:, :, at.clamp(0, rows - 1)][..., at.clamp(0, columns - 1)]
        assert (patches * 255 - wanted).abs().max() <= 0.5 + 1e-4, level
        mip = halve(mip)
    array.free()


def test_layouts(library):
    wide = noise(torch.uint8, 3, 5, 40, 90)
    boxes, angle = any_boxes(2, 6, 20, 30)
    for images in (
        wide[:2, 1:4, 3:23, 5:35],
        wide[1:, :3, ::2, ::3],
        wide[:1, :3, :20, :30].expand(2, 3, 20, 30),
        wide[:2, :3, :20, :30].contiguous(memory_format=torch.channels_last),
        wide[:2, :3, :30, :20].transpose(2, 3),
    ):
        for reading in (Reading(4), Reading(4, 1, "trilinear")):
            found = run(library, images, boxes, angle, reading, "byte")
            plain = run(library, images.contiguous(), boxes, angle, reading, "byte")
            assert torch.equal(found, plain) and found.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_patches_are_normalised_and_rounded_at_the_end(library, dtype):
    images = noise(torch.uint8, 1, 3, 40, 50)
    boxes, angle = any_boxes(1, 6, 40, 50)
    reading = Reading(5, 4, "bilinear", scale=(4.0, 2.0, 1.5), shift=(-2.0, -1.0, 0.25))
    for precision in ("byte", "half"):
        found = run(library, images, boxes, angle, reading, precision, dtype)
        assert found.dtype == dtype
        assert_within_bound(found, images, boxes, angle, reading, precision)


def test_float64_boxes_and_large_leaves(library):
    images = noise(torch.float32, 1, 3, 33, 47)
    boxes, angle = (cells.double() for cells in any_boxes(1, 3, 33, 47))
    for leaf in (1, 28):  # 784 patch pixels: more than a block has threads
        reading = Reading(leaf)
        found = run(library, images, boxes, angle, reading, "half")
        assert_within_bound(found, images, boxes, angle, reading, "half")


def test_coordinates_have_the_digits_that_float32_has(library):
    """At the far end of 16384 pixels a place is known to 1/2048 of a pixel; centre and step are not rounded before."""
    width = 16384
    images = noise(torch.float16, 1, 3, 1, width)
    centres = width - torch.rand(400, dtype=torch.float64) * 4000 - 40
    boxes = torch.stack((centres - 0.7, centres * 0, centres + 0.7, centres * 0 + 1), dim=-1)[None]
    array = MipArray(ArrayShape.holding((width, 1), 1, 0, "half"), library)
    array.fill(images, stream=0)
    patches = torch.empty(400, 3, 2, 2)
    array.sample(patches, boxes, None, None, Reading(2, 1), 0, images=1)
    array.free()
    x = ((centres[:, None] + torch.tensor([-0.35, 0.35], dtype=torch.float64)) / width).float().double() * width - 0.5
    weight = (x.frac() * 256).floor() / 256
    row = images[0, 0, 0].double()
    wanted = row[x.long()] * (1 - weight) + row[x.long() + 1] * weight
    assert ((patches[:, 0, 0] - wanted).abs() < 1e-6).double().mean() > 0.99


def test_an_image_does_not_depend_on_its_batch_mates(library):
    images = noise(torch.float32, 3, 3, 61, 67)
    boxes, angle = any_boxes(3, 5, 61, 67)
    together = run(library, images, boxes, angle, Reading(4), "half")
    alone = [run(library, images[i : i + 1], boxes[i : i + 1], angle[i : i + 1], Reading(4), "half") for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


def test_packed_cells_find_their_image_in_every_part_of_the_batch(library):
    images = noise(torch.uint8, 4, 3, 30, 40)
    boxes, angle = any_boxes(4, 7, 30, 40)
    counts = [3, 0, 7, 5]
    packed = [torch.cat([cells[i, :n] for i, n in enumerate(counts)]) for cells in (boxes, angle)]
    offsets = torch.tensor([0, 3, 3, 10, 15], dtype=torch.int32)
    reading = Reading(4)
    patches = torch.full((15, 3, 4, 4), math.nan)
    array = MipArray(ArrayShape.holding((40, 30), 2, 2, "byte"), library)
    for first in (2, 0):  # two images at a time
        array.fill(images[first : first + 2], stream=0)
        array.sample(patches, *packed, offsets, reading, 0, images=4, first=first)
    array.free()
    wanted = run(library, images, boxes, angle, reading, "byte")
    assert torch.equal(patches, torch.cat([wanted[i, :n] for i, n in enumerate(counts)]))


def test_boxes_from_another_world_read_some_pixel(library):
    """Far outside: the border, as in the reference. Not a number: anything, but nothing outside the array."""
    images = noise(torch.uint8, 1, 3, 20, 30)
    far = torch.tensor([[[1e6, 5.0, 1e6 + 4, 9.0], [5.0, -1e7, 9.0, 4 - 1e7]]])
    reading = Reading(2)
    assert_within_bound(run(library, images, far, None, reading, "byte"), images, far, None, reading, "byte")
    odd = torch.tensor(
        [[[math.nan, 0, 1, 1], [0, 0, math.inf, 1], [-math.inf, 0, math.inf, 1], [5, 5, 5, 5], [9, 9, 4, 4]]]
    )
    found = run(library, images, odd, torch.full((1, 5), math.nan), reading, "byte")
    assert (found >= 0).all() and (found <= 1).all()


def test_errors_of_cuda_become_errors_of_ours(library):
    with pytest.raises(
        KernelError, match=r"making a texture of 2048 x 32768 x 32768 pixels: .* sample fewer or smaller"
    ):
        MipArray(ArrayShape(0, (32768, 32768), 2048, 1, "half"), library)
    with pytest.raises(KernelError, match=r"CUDA error 1\)"):
        MipArray(ArrayShape(7, (64, 64), 1, 1, "half"), library)  # no such device
    array = MipArray(ArrayShape(0, (64, 64), 1, 1, "byte"), library)
    with pytest.raises(KernelError, match="filling a texture"):
        array.fill(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), stream=0)  # more images than layers
    with pytest.raises(KernelError, match="filling a texture"):
        array.fill(torch.zeros(1, 3, 64, 64), stream=0)  # floats into bytes
    array.free()
    array.free()  # once is enough, twice does no harm


def test_the_pool_lends_keeps_and_frees(library, monkeypatch):
    monkeypatch.setattr("homunculus.kernels.texture_arrays.load", lambda device: library)
    small, large = ArrayShape(0, (64, 64), 1, 1, "byte"), ArrayShape(0, (128, 128), 1, 1, "byte")
    pool = Pool(limit=small.bytes + large.bytes)
    first, second = pool.take(small), pool.take(small)
    assert first is not second and pool.bytes == 0
    pool.give(first)
    pool.give(second)
    assert pool.bytes == 2 * small.bytes and pool.take(small) is second
    pool.give(second)
    pool.give(pool.take(large))  # too much together: the one unused for longest goes
    assert pool.bytes == small.bytes + large.bytes and pool.take(small) is second
    pool.give(second)
    pool.limit = 1
    pool.give(pool.take(small))  # the last one used stays, however large
    assert pool.bytes == small.bytes
    pool.release()
    assert pool.bytes == 0
