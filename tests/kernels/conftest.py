"""Kernels run on a CUDA device, or on a CPU under Triton's interpreter: `make test-kernels` sets TRITON_INTERPRET=1."""

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("kernels") and not (torch.cuda.is_available() or INTERPRETED):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device or Triton's interpreter: make test-kernels"))


if importlib.util.find_spec("triton") is None:  # their modules cannot even be imported
    collect_ignore = ["test_pool.py", "test_compile.py", "test_cut.py"]
