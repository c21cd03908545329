"""Parts of a model through torch.compile while a stage lasts, on a GPU.

Blocks are compiled, not models: all blocks of a kind share what is compiled for one, which takes seconds instead of a
minute, and whatever is around them stays plain Python.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Looking for good tiles fails on some open sizes in torch 2.11 (an assertion in its tiling_utils).
OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"triton.coalesce_tiling_analysis": False}


@contextmanager
def compiled(modules: Iterable[nn.Module], fixed: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """While this lasts, these modules run compiled if the device is a GPU; on others they stay as they are.

    Sizes that change are left open once they do; for the modules that are `fixed` each is compiled for itself, since
    convolutions of open sizes cannot be.
    """
    ways = ((modules, None), (fixed, False))
    chosen = {module: dynamic for group, dynamic in ways for module in group} if device.type == "cuda" else {}
    for module, dynamic in chosen.items():
        module.forward = torch.compile(module.forward, dynamic=dynamic, options=OPTIONS)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in chosen:
            del module.forward
