"""texture.cu to a shared library: built by nvcc on first use for the device at hand, kept in a cache directory, loaded
with ctypes. No torch headers and no dynamic CUDA runtime, so one build serves every version of torch.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from homunculus.errors import KernelError

SOURCE = Path(__file__).with_name("texture.cu")
FLAGS = ("-O3", "-std=c++17", "-lineinfo", "--shared", "-cudart", "static", "-Xcompiler", "-fPIC")
INSTEAD = "HOMUNCULUS_KERNELS=triton, or reference for rotated cells"


def missing(device: torch.device | str) -> str | None:
    """What keeps the texture kernels from running on this device, with the fix, in one line; None if nothing does.

    >>> missing("cpu")
    'textures need a CUDA device and this is the CPU: move the images to one, or set HOMUNCULUS_KERNELS=reference'
    """
    device = torch.device(device)
    if device.type != "cuda":
        return (
            f"textures need a CUDA device and this is the {device.type.upper()}: move the images to one, "
            "or set HOMUNCULUS_KERNELS=reference"
        )
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "textures need a CUDA device and torch sees none: install a CUDA build of torch and NVIDIA's driver"
    if find_nvcc() is None and built_library(architecture(device)) is None:
        return (
            "textures need CUDA's compiler nvcc once and there is none: install the CUDA toolkit, put nvcc on the PATH "
            f"or set CUDA_HOME, or use {INSTEAD}"
        )
    return None


def load(device: torch.device) -> ctypes.CDLL:
    """The library for this device; built first where nobody has."""
    problem = missing(device)
    if problem is not None:
        raise KernelError(problem)
    return _load(architecture(device))


@cache
def _load(arch: str) -> ctypes.CDLL:
    nvcc = find_nvcc()
    path = built_library(arch) if nvcc is None else build(nvcc, arch)
    if path is None:
        raise KernelError(f"the library for {arch} has gone from {cache_directory()}: install nvcc to build it again")
    return declare(ctypes.CDLL(str(path)))


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The C functions at the end of texture.cu, with their argument types."""
    i, p, f = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
    floats, strides = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_longlong)
    arguments = {
        "message": [i],
        "create": [i, i, i, i, i, i, ctypes.POINTER(p)],
        "destroy": [p],
        "cell_bytes": [],
        "fill": [p, p, i, strides, i, i, i, p, p],
        "sample": [p, p, p, i, p, i, i, i, i, i, i, i, i, i, f, floats, floats, p, p, i, p],
    }
    for name, types in arguments.items():
        function = getattr(library, f"homunculus_texture_{name}")
        function.argtypes, function.restype = types, ctypes.c_char_p if name == "message" else i
    return library


def architecture(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def cache_directory() -> Path:
    """HOMUNCULUS_CACHE, else homunculus/ in XDG_CACHE_HOME, else in ~/.cache."""
    own = os.environ.get("HOMUNCULUS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "homunculus"


def find_nvcc() -> str | None:
    """CUDA's compiler in CUDA_HOME, on the PATH, or in its usual place."""
    home = os.environ.get("CUDA_HOME")
    return (shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None) or (
        shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    )


def built_library(arch: str) -> Path | None:
    """A library of this very source that some nvcc has built before: what a machine without nvcc can use."""
    return next(iter(sorted(cache_directory().glob(f"texture-{arch}-{_digest(SOURCE.read_bytes())}-*.so"))), None)


def library_path(nvcc: str, arch: str) -> Path:
    """Where the build goes: the name changes with architecture, source and compiler."""
    compiler = _digest((_version(nvcc) + " ".join(FLAGS)).encode())
    return cache_directory() / f"texture-{arch}-{_digest(SOURCE.read_bytes())}-{compiler}.so"


def build(nvcc: str, arch: str) -> Path:
    """The library's path, compiled if it is not there yet (some seconds).

    The compiler writes beside it under another name and the result is moved into place in one step: processes that
    build at the same time do the work twice and see a whole file.
    """
    path = library_path(nvcc, arch)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=".texture-", suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        _run([nvcc, *FLAGS, f"-arch={arch}", "-o", partial, str(SOURCE)])
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def _version(nvcc: str) -> str:
    return _run([nvcc, "--version"])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines()
        reason = next((line for line in lines if "error" in line.lower() or "fatal" in line.lower()), "no reason given")
        raise KernelError(f"{command[0]} failed, {reason.strip()}: repair it, or use {INSTEAD}")
    return done.stdout
