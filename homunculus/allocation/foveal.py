"""The foveal share: how many of the cells lie near the gaze, and the e0 that makes it what one wants."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.geometry import leaf_side
from homunculus.structures import Allocation, View

NEAR = 0.2  # of the longer side
FINEST_E0, COARSEST_E0 = 0.02, 500.0  # leaves
TRIALS = 14


def foveal_share(allocation: Allocation) -> Float64[Tensor, "b"]:
    """The share of each image's cells whose centre lies within 0.2 of the longer side from the nearest fixation.

    >>> import homunculus
    >>> foveal_share(homunculus.allocate(torch.ones(64, 64), 256, "uniform")).item()
    0.125
    """
    near = [
        NEAR * max(size) / leaf_side(grid, size)
        for size, grid in zip(allocation.image_sizes, allocation.grids, strict=True)
    ]
    if len(set(near)) == 1:  # images of one size, as every allocator sees them
        return (allocation.eccentricity <= near[0]).double().mean(1)
    reach = torch.tensor(near).to(allocation.device, non_blocking=True)
    return (allocation.eccentricity <= reach[:, None]).double().mean(1)


def allocate_at(
    allocate: Callable[[Any], Allocation], view: View, e0: float, share: float | None, finds_its_gaze: bool = True
) -> Allocation:
    """The allocation at a given e0, or at the one that makes the foveal share `share`.

    A method that does not look anywhere of its own accord has no fovea without a fixation.
    """
    if share is None:
        return allocate(e0)
    if view.fixations is None and not finds_its_gaze:
        raise AllocatorError("foveal_share is a share of the cells near a fixation and there is none: give fixation=")
    return allocate(dial_e0(allocate, view, share))


def dial_e0(allocate: Callable[[Tensor], Allocation], view: View, share: float) -> Float64[Tensor, "b"]:
    """The e0 of each image, in leaves, whose allocation came nearest to the wanted foveal share in a bisection.

    The smaller e0, the more cells go to the gaze, by and large: the share moves in whole cells, now and then backwards,
    and has limits (a corner cannot be as crowded as the centre; a tree that gives half of its density to relevance
    cannot crowd anywhere), so the best of all trials is kept. `foveal_share` says what was reached.
    """
    if isinstance(share, bool) or not (isinstance(share, (int, float)) and 0 <= share <= 1):
        raise AllocatorError(f"foveal_share is a share of the cells, from 0 to 1, got {share!r}")
    low = torch.full((view.batch,), math.log(FINEST_E0), dtype=torch.float64, device=view.device)
    high = torch.full_like(low, math.log(COARSEST_E0))
    best, error = low, torch.full_like(low, torch.inf)
    for trial in range(TRIALS):
        # The ends first: a share beyond what is possible gets the nearest possible one.
        middle = (low, high, (low + high) / 2)[min(trial, 2)]
        reached = foveal_share(allocate(middle.exp()))
        better = (reached - share).abs() < error
        best, error = torch.where(better, middle, best), torch.where(better, (reached - share).abs(), error)
        if trial > 1:
            crowded = reached > share
            low, high = torch.where(crowded, middle, low), torch.where(crowded, high, middle)
    return best.exp()
