"""Building the texture kernels: the compiler's report, the cache of libraries, what is said when something lacks."""

import ctypes
import os
import re
import stat
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from homunculus.errors import KernelError
from homunculus.kernels import texture_build
from homunculus.kernels.texture_arrays import ArrayShape, MipArray
from homunculus.kernels.texture_build import FLAGS, SOURCE, build, declare, find_nvcc, library_path, missing

ROOT = Path(__file__).parents[2]
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOMUNCULUS_CACHE", str(tmp_path / "cache"))


@needs_nvcc
def test_compiles_without_warnings_spills_or_stack(tmp_path):
    strict = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", "--resource-usage"]
    command = [find_nvcc(), *FLAGS, *strict, "-arch=sm_90", "-o", str(tmp_path / "texture.so"), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert len(frames) > 20 and set(frames) == {("0", "0", "0")}
    # Two blocks of `fill` and eight of `sample` on a multiprocessor of 65536 registers at once, or latency shows.
    assert max(int(n) for n in re.findall(r"Used (\d+) registers", report)) <= 64


@needs_nvcc
def test_builds_once_and_loads():
    nvcc = find_nvcc()
    path = build(nvcc, "sm_90")
    assert path == library_path(nvcc, "sm_90") and path.parent == texture_build.cache_directory()
    written = path.stat().st_mtime_ns
    assert build(nvcc, "sm_90") == path and path.stat().st_mtime_ns == written
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half-made is left
    library = declare(ctypes.CDLL(str(path)))
    assert library.homunculus_texture_message(2) == b"out of memory"
    if not torch.cuda.is_available():
        with pytest.raises(KernelError, match=r"making a texture of 1 x 64 x 64 pixels: .*\(CUDA error \d+\)"):
            MipArray(ArrayShape(0, (64, 64), 1, 1, "byte"), library)


def fake_nvcc(folder: Path, version: str = "13.0", body: str = "sleep 0.2; echo library > $out") -> str:
    """A compiler that only writes its output."""
    folder.mkdir(exist_ok=True)
    path = folder / "nvcc"
    take = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done'
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo {version} && exit 0\n{take}\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def test_name_follows_source_compiler_and_architecture(tmp_path, monkeypatch):
    old, new = fake_nvcc(tmp_path / "old", "12.9"), fake_nvcc(tmp_path / "new", "13.0")
    names = {library_path(nvcc, arch).name for nvcc in (old, new) for arch in ("sm_80", "sm_90")}
    assert len(names) == 4
    changed = tmp_path / "texture.cu"
    changed.write_text(SOURCE.read_text() + "// more\n")
    monkeypatch.setattr(texture_build, "SOURCE", changed)
    assert library_path(new, "sm_90").name not in names


def test_two_processes_may_build_at_once(tmp_path):
    nvcc = fake_nvcc(tmp_path / "bin")
    code = f"from homunculus.kernels.texture_build import build; print(build({nvcc!r}, 'sm_90').read_text())"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True) for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in both] == ["library", "library"]
    assert [p.suffix for p in texture_build.cache_directory().iterdir()] == [".so"]


def test_a_failed_build_leaves_nothing_and_says_why(tmp_path):
    nvcc = fake_nvcc(tmp_path / "bin", body="echo half > $out; echo 'texture.cu(1): error: no such luck' >&2; exit 2")
    with pytest.raises(KernelError, match="no such luck") as caught:
        build(nvcc, "sm_90")
    assert "\n" not in str(caught.value)
    assert list(texture_build.cache_directory().iterdir()) == []


def test_where_libraries_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("HOMUNCULUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert texture_build.cache_directory() == tmp_path / "xdg" / "homunculus"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert texture_build.cache_directory() == tmp_path / "home" / ".cache" / "homunculus"


def test_where_the_compiler_is_looked_for(monkeypatch, tmp_path):
    on_path, at_home = fake_nvcc(tmp_path / "path"), fake_nvcc(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "path") + os.pathsep + os.environ["PATH"])
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert find_nvcc() == on_path
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_nvcc() == at_home


def on_a_gpu_machine(monkeypatch) -> torch.device:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return torch.device("cuda", 0)


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    assert "move the images" in missing("cpu")
    with monkeypatch.context() as here:
        here.setattr(torch.cuda, "is_available", lambda: False)
        assert "torch sees none" in missing("cuda")
        with pytest.raises(KernelError, match="torch sees none"):
            texture_build.load(torch.device("cuda", 0))
    device = on_a_gpu_machine(monkeypatch)
    nvcc = fake_nvcc(tmp_path / "bin")
    monkeypatch.setattr(texture_build, "find_nvcc", lambda: nvcc)
    assert missing(device) is None
    monkeypatch.setattr(texture_build, "find_nvcc", lambda: None)
    message = missing(device)
    assert "nvcc" in message and "CUDA_HOME" in message and "\n" not in message
    build(nvcc, "sm_80")
    assert missing(device) == message  # for another device
    path = build(nvcc, "sm_90")
    assert missing(device) is None and texture_build.built_library("sm_90") == path


def test_the_source_travels_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["homunculus.kernels"]
    assert SOURCE.parent.name == "kernels" and any(fnmatch(SOURCE.name, pattern) for pattern in patterns)
