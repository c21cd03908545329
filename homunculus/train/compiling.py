"""Parts of a model through torch.compile while a stage lasts, on a GPU.

Blocks are compiled, not models: all blocks of a kind share what is compiled for one, which takes seconds instead of a
minute, and whatever is around them stays plain Python.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Looking for good tiles fails on some open sizes in torch 2.11 (an assertion in its tiling_utils).
OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"triton.coalesce_tiling_analysis": False}

Method = Callable[..., Any]  # of a module, bound to it


@contextmanager
def compiled(methods: Iterable[Method], fixed: Iterable[Method], device: torch.device) -> Iterator[None]:
    """While this lasts, these methods of modules run compiled if the device is a GPU; on others they stay as they are.

    Sizes that change are left open once they do; for methods that are `fixed` each is compiled for itself, since
    convolutions of open sizes cannot be.
    """
    ways = [(method, None) for method in methods] + [(method, False) for method in fixed]
    if device.type != "cuda":
        ways = []
    chosen = [(method.__self__, method.__name__, dynamic) for method, dynamic in ways]  # type: ignore[attr-defined]
    for owner, name, dynamic in chosen:
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=dynamic, options=OPTIONS))
    try:
        yield
    finally:
        for owner, name, _ in chosen:
            delattr(owner, name)
