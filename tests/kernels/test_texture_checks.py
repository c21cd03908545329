"""What texture sampling refuses, how deep its mips are, and what torch.compile sees of it: all without a device."""

import pytest
import torch

from homunculus.errors import HomunculusError, ImageError, KernelError
from homunculus.kernels import texture_checks
from homunculus.kernels.texture import TexturePyramid, mip_depth, sample_cells, sample_texture
from homunculus.kernels.texture_arrays import ArrayShape

from .texture_cases import any_boxes


def test_images_that_no_texture_can_hold():
    for images, message in (
        (torch.rand(3, 8, 8), "batch, 3, height, width"),
        (torch.rand(1, 4, 8, 8), "batch, 3, height, width"),
        (torch.rand(1, 3, 0, 8), "batch, 3, height, width"),
        (torch.rand(1, 3, 8, 8).double(), "not torch.float64"),
    ):
        with pytest.raises(ImageError, match=message):
            texture_checks.check_images(images)
    boxes, angle = any_boxes(1, 2, 8, 8)
    with pytest.raises(KernelError, match="this is the CPU: move the images"):
        sample_cells(torch.rand(1, 3, 8, 8), boxes, angle, leaf=4, kind="rotated")
    with pytest.raises(KernelError, match="this is the CPU: move the images"):
        TexturePyramid(torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": torch.rand(3, 5, 4)}, r"boxes of 2 images are \[2, cells, 4\], got \[3, 5, 4\]"),
        ({"boxes": torch.rand(2, 5)}, r"are \[2, cells, 4\]"),
        ({"angle": torch.rand(2, 4)}, "every box has one angle"),
        ({"offsets": torch.zeros(3, dtype=torch.int32)}, r"are \[cells, 4\]"),
        ({"boxes": torch.rand(5, 4), "angle": None, "offsets": torch.zeros(3)}, "3 int32, got torch.float32"),
        ({"boxes": torch.rand(2, 5, 4, requires_grad=True)}, "no gradient and these boxes"),
        ({"boxes": torch.rand(2, 5, 4, device="meta")}, "the images are on cpu"),
        ({"dtype": torch.float64}, "not torch.float64"),
    ],
)
def test_cells_that_do_not_fit(change, message):
    given = {"boxes": torch.rand(2, 5, 4), "angle": torch.rand(2, 5), "offsets": None, "dtype": torch.float32} | change
    with pytest.raises(KernelError, match=message):
        texture_checks.check_cells((2, torch.device("cpu")), **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaf": 0}, "leaf must be a positive"),
        ({"reads": 0}, "at least 1, got 0"),
        ({"reads": True}, "at least 1, got True"),
        ({"trilinear": True, "dyadic": True}, "choose one"),
        ({"scale": (1, 1)}, "three numbers each, got 2 and 3"),
    ],
)
def test_readings_that_make_no_sense(change, message):
    plain = {"leaf": 16, "reads": 4, "trilinear": False, "dyadic": False, "scale": (1, 1, 1), "shift": (0, 0, 0)}
    with pytest.raises(HomunculusError, match=message):
        texture_checks.checked_reading(**(plain | change))


def test_precision_must_hold_the_images():
    bytes_, floats = torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.zeros(1, 3, 2, 2)
    assert texture_checks.checked_precision(bytes_, None) == "byte"
    assert texture_checks.checked_precision(floats, None) == "half"
    with pytest.raises(KernelError, match="precision='half'"):
        texture_checks.checked_precision(floats, "byte")
    with pytest.raises(KernelError, match="not 'float'"):
        texture_checks.checked_precision(floats, "float")


@pytest.mark.parametrize(
    ("size", "leaf", "reads"), [((1024, 768), 16, 4), ((61, 67), 3, 1), ((5000, 7), 16, 2), ((9, 9), 16, 1)]
)
def test_mips_are_as_deep_as_a_box_of_twice_the_image_needs(size, leaf, reads):
    deepest = 2 * (size[0] * size[1]) ** 0.5 / (leaf * reads)
    depth = mip_depth(size, leaf, reads)
    assert 2**depth >= min(deepest, max(size)) and (depth == 0 or 2 ** (depth - 1) < deepest)
    shape = ArrayShape.holding(size, 2, depth, "byte")
    assert all(
        padded % 2**depth == 0 and own <= padded < own + 2**depth for padded, own in zip(shape.size, size, strict=True)
    )


def test_shapes_under_a_fake_tensor():
    """What torch.compile sees; needs no device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        images, boxes = torch.empty(2, 3, 64, 64), torch.empty(2, 7, 4)
        how = (16, 4, "bilinear", [1.0] * 3, [0.0] * 3, torch.bfloat16, "half")
        patches = sample_texture(images, boxes, None, None, *how)
    assert patches.shape == (2, 7, 3, 16, 16) and patches.dtype == torch.bfloat16
