"""Density + budget to an `Allocation`: one file per idea, one registry."""

from numbers import Integral
from typing import Any

from torch import Tensor

from homunculus.allocation import (  # noqa: F401  (each registers its allocators)
    adaptive,
    atlas,
    bank,
    bins,
    cortex,
    frequency,
    grid,
    hierarchical,
    hiz,
    levels,
    rings,
    stratified,
    topk_coverage,
    views,
    vortex,
)
from homunculus.allocation.cells import leaf_cells, make_allocation
from homunculus.allocation.coverage import Coverage, coverage
from homunculus.allocation.hierarchical import HierarchicalAllocator
from homunculus.allocation.registry import DEFAULT, Allocator, allocators, get_allocator, register
from homunculus.density import as_density
from homunculus.errors import BudgetError, ImageError
from homunculus.geometry import Size, check_leaf, check_leaves
from homunculus.relevance import as_fixations, stack_fixations
from homunculus.structures import Allocation, PackedAllocation, View

__all__ = [
    "DEFAULT",
    "Allocator",
    "Coverage",
    "HierarchicalAllocator",
    "allocate",
    "allocate_view",
    "allocators",
    "check_budget",
    "coverage",
    "get_allocator",
    "leaf_cells",
    "make_allocation",
    "register",
]


def allocate(
    density: Any,
    budget: int = 273,
    allocator: str = DEFAULT,
    *,
    image_size: Size | None = None,
    leaf: int = 16,
    fixation: Any = None,
    seed: int | Tensor = 0,
    validate: bool = True,
    **options: Any,
) -> Allocation | PackedAllocation:
    """Spend `budget` tokens on a density over leaves, `[gh, gw]` or `[B, gh, gw]`, without any pixels.

    Boxes are in pixels of `image_size` = (width, height), by default leaf pixels for every leaf. `validate=False` skips
    the checks that wait for the device. `options` go to the allocator.

    >>> import torch
    >>> allocation = allocate(torch.rand(2, 64, 64), budget=150, fixation=(512, 512), e0=2.0)
    >>> allocation.boxes.shape
    torch.Size([2, 150, 4])
    """
    get_allocator(allocator)
    budget = check_budget(budget)
    density = as_density(density, validate=validate)
    gh, gw = density.shape[1:]
    check_leaves((gw, gh), budget)
    size = (gw * check_leaf(leaf), gh * leaf) if image_size is None else _size(image_size)
    fixations = None
    if fixation is not None:
        fixations = stack_fixations(as_fixations(fixation, [size] * len(density), validate))
        fixations = None if fixations is None else fixations.to(density.device, non_blocking=True)
    view = View(density, size, leaf, fixations=fixations)
    return allocate_view(view, budget, allocator, seed=seed, **options)


def allocate_view(
    view: View, budget: int = 273, allocator: str = DEFAULT, *, seed: int | Tensor = 0, **options: Any
) -> Allocation | PackedAllocation:
    """Spend `budget` tokens on a view: what `allocate` and `foveate` both come down to.

    >>> import torch
    >>> view = View(torch.rand(1, 48, 64, dtype=torch.float64), image_size=(640, 480))
    >>> allocate_view(view, 100, "uniform").boxes.shape
    torch.Size([1, 100, 4])
    """
    return get_allocator(allocator)(view, check_budget(budget), seed=seed, **options)


def _size(image_size: Any) -> Size:
    try:
        width, height = (int(side) for side in image_size)
    except (TypeError, ValueError):
        raise ImageError(f"image_size is (width, height) in pixels, got {image_size!r}") from None
    return width, height


def check_budget(budget: Any) -> int:
    """A positive whole number of tokens, or an error that says so."""
    if isinstance(budget, bool) or not isinstance(budget, Integral) or budget < 1:
        raise BudgetError(f"budget must be a positive whole number of tokens, got {budget!r}")
    return int(budget)
