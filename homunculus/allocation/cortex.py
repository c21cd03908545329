"""`v1`: cells of equal cortical area, as the primary visual cortex would share an image among its hypercolumns.

Linear magnification is M(e) = M0 e0 / (e + e0) (Horton and Hoyt 1991: 17.3 mm / (e + 0.75 deg)). A patch of cortex
sees an area that grows with (e + e0)^2, so cells of equal cortical area have sides proportional to e + e0, and their
number within an eccentricity is the cortical area up to it. Each half of the visual field has a cortex of its own, so
no cell crosses the vertical through the gaze. Receptive fields grow with e + e0 as well; `receptive_field` says how
wide a cell averages, 1 being its own area. The law stops at a leaf, since the literal fovea of an image 40 degrees wide
would want cells of a few pixels. Whole cells are dealt to each ring, so that the finest are about a leaf: 14 pixels of
16 at 273 tokens on 1024 x 1024.
"""

import math
from typing import Any

from homunculus.allocation.foveal import allocate_at
from homunculus.allocation.polar import gaze_of
from homunculus.allocation.registry import register
from homunculus.allocation.rings import MIN_RING_BUDGET, e0_in_pixels, ring_allocation
from homunculus.biology.cortex import E0
from homunculus.biology.field import DEGREES, to_pixels
from homunculus.errors import AllocatorError
from homunculus.geometry import leaf_side
from homunculus.structures import Allocation, View


@register(
    "v1",
    "cells of equal cortical area, each half field apart; tiles the image",
    minimum=MIN_RING_BUDGET,
    tiles=True,
    uses_gaze=True,
    single_gaze=True,
    trains="nothing: geometry; without a fixation, relevance says where to look",
)
def v1(
    view: View,
    budget: int,
    *,
    seed: int = 0,
    degrees: float = DEGREES,
    e0: float = E0,
    receptive_field: float = 1.0,
    foveal_share: float | None = None,
) -> Allocation:
    """The longer side spans `degrees` of the visual field; `e0` in degrees, or solved for by `foveal_share`."""
    if not (0 < degrees < 360 and 0 < e0 < math.inf and 0 < receptive_field < math.inf):
        raise AllocatorError(
            f"degrees, e0 and receptive_field must be above 0, got {degrees=}, {e0=}, {receptive_field=}"
        )
    gaze = gaze_of(view)

    def hypercolumns(e0_leaves: Any) -> Allocation:
        return ring_allocation(
            view, budget, gaze, e0_in_pixels(view, e0_leaves), hemifields=True, field=receptive_field
        )

    leaves = to_pixels(e0, view.image_size, degrees) / leaf_side(view.grid, view.image_size)
    return allocate_at(hypercolumns, view, leaves, foveal_share)
