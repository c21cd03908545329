"""The sampling kernels compile for sm_90, with no device, in every type and layout, and read 16 bytes at a time."""

import os
import subprocess
import sys

import pytest
import torch

import homunculus
from homunculus.sampling import sample

pytest.importorskip("triton")

PRELUDE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from homunculus.kernels import triton_ops, triton_pool

TYPES = dict.fromkeys(("batch", "per_image", "width", "height", "plane_pitch", "pitch"), "i32")
TYPES |= {"image_pitch": "i64", "boxes": "*fp32", "offsets": "*i32", "gradient": "*bf16"}
TYPES |= dict.fromkeys(("scale", "shift"), ("fp32",) * 3)

def compiled(kernel, warps, image, out, limit=None, **constants):
    types = TYPES | {"images": image, "out": out} | dict.fromkeys(constants, "constexpr")
    types = {name: types[name] for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(types) if str(types[name]).startswith("*")}
    source = ASTSource(kernel, types, values, aligned)
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "maxnreg": limit})
    assert ".target sm_90" in done.asm["ptx"] and len(done.asm["cubin"]) > 0
    return done.asm["ptx"]
"""

DYADIC = """
warps = triton_ops.DYADIC["warps"]
for image, align, words, pixel, wide in (
    ("*u8", 16, True, 1, "ld.global.v4.b32"),
    ("*u8", 16, True, 3, "ld.global.b32"),
    ("*u8", 1, False, 1, "ld.global.b8"),
    ("*bf16", 8, False, 1, "ld.global.v4.b32"),
    ("*fp16", 1, False, 3, "ld.global.b16"),
    ("*fp32", 4, False, 1, "ld.global.v4.b32"),
):
    for leaf, packed in ((16, False), (28, True)):
        ptx = compiled(
            triton_pool.pool_dyadic, warps, image, "*bf16", triton_ops.DYADIC["limit"] if words else None, LEAF=leaf,
            COLS=triton.next_power_of_2(leaf), PARTS=2,
            PIXEL=pixel, WORDS=words, ALIGN=align, PACKED=packed, SPAN=64,
            REGISTERS=triton_ops.DYADIC["registers"] * (1 if words else 4),
        )
        assert leaf == 28 or wide in ptx, (image, pixel, set(re.findall(r"ld.global\\S*", ptx)))
"""

BOXES = """
dials = triton_ops.BOXES
layouts = (("*u8", True, 1), ("*u8", False, 1), ("*u8", False, 3), ("*fp16", False, 1), ("*fp32", False, 3))
for image, words, pixel in layouts:
    for leaf, packed in ((16, False), (28, True)):
        compiled(
            triton_pool.pool_boxes, dials["warps"], image, "*fp16", LEAF=leaf, COLS=triton.next_power_of_2(leaf),
            PARTS=dials["parts"], PIXEL=pixel, WORDS=words, PACKED=packed, SPAN=64,
        )
"""

SPREAD = """
for leaf, packed, out in ((16, False, "*fp32"), (28, True, "*bf16")):
    compiled(
        triton_pool.spread_boxes, 4, "", out, LEAF=leaf, COLS=triton.next_power_of_2(leaf), TILE=triton_ops.TILE,
        CHUNK=triton_ops.CHUNK, PACKED=packed,
    )
"""


@pytest.mark.parametrize("kernels", [DYADIC, BOXES, SPREAD], ids=["dyadic", "boxes", "spread"])
def test_compiles_for_hopper(kernels, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    code = PRELUDE + kernels + "print('compiled')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "compiled", done.stdout + done.stderr


def test_sampling_compiles_without_a_break():
    """By torch.compile: the choice of implementation is made while tracing and costs nothing afterwards."""
    images, allocation = torch.rand(2, 3, 64, 64), homunculus.allocate(torch.rand(2, 4, 4), 16)
    compiled = torch.compile(lambda images: sample(images, allocation), backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), sample(images, allocation))
