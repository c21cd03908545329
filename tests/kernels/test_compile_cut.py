"""The cut's kernels compile for sm_90, with no device and whether or not this process interprets them."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from homunculus.kernels import triton_cut

TYPES = {"values": "*fp64", "density": "*fp64", "masses": "*fp64", "out": "*fp64", "context_rank": "*i16"}
TYPES |= dict.fromkeys(("flags", "is_context", "filled"), "*i8")
TYPES |= dict.fromkeys(("levels", "internal", "count", "roots", "budget", "least", "wanted"), "i32")

def compiled(kernel, warps, **constants):
    types = {name: "constexpr" if name in constants else TYPES.get(name, "*i64") for name in kernel.arg_names}
    source = ASTSource(kernel, types, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)

for nodes in (32, 2048, 8192):
    for given, own, maximum in ((False, False, False), (False, False, True), (True, True, False)):
        constants = {"NODES": nodes, "CHUNK": triton_cut.CHUNK, "GIVEN": given, "OWN": own, "MAX": maximum}
        done = compiled(triton_cut.cut_kernel, triton_cut.warps(nodes), **constants)
        assert ".target sm_90" in done.asm["ptx"] and len(done.asm["cubin"]) > 0
        assert "fma.rn.f64" not in done.asm["ptx"]  # masses are sums, rounded one by one
done = compiled(triton_cut.mass_kernel, 8, CHUNK=triton_cut.CHUNK)
assert ".target sm_90" in done.asm["ptx"] and len(done.asm["cubin"]) > 0
print("compiled")
"""


def test_compiles_for_hopper(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "compiled", done.stdout + done.stderr
