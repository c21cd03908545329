"""Boxes in leaf units, from any allocator, become an `Allocation`: pixels, levels, scores, canonical order."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from homunculus.density import normalise, resample_mass
from homunculus.errors import AllocatorError
from homunculus.geometry import to_pixels
from homunculus.relevance.gaze import eccentricity, first_gaze, image_centre
from homunculus.structures import Allocation, CellKind, View, canonical_order


def make_allocation(
    view: View,
    cells: Float64[Tensor, "b n 4"],
    kind: CellKind,
    *,
    levels: Float[Tensor, "b n"] | None = None,
    is_context: Bool[Tensor, "b n"] | None = None,
    scores: Float[Tensor, "b n"] | None = None,
    angle: Float[Tensor, "b n"] | None = None,
    sector: Float[Tensor, "b n 4"] | None = None,
    gaze: Float64[Tensor, "b 2"] | None = None,
    in_order: bool = False,
) -> Allocation:
    """The allocation of these cells (x0, y0, x1, y1 in leaf units); scores default to the density inside each box.

    `gaze` is given by methods that look somewhere of their own accord; eccentricity is then measured from there.

    >>> view = View(torch.ones(1, 4, 4, dtype=torch.float64), image_size=(64, 64))
    >>> cells = torch.tensor([[[2.0, 0.0, 4.0, 4.0], [0.0, 0.0, 2.0, 4.0]]], dtype=torch.float64)
    >>> allocation = make_allocation(view, cells, "box")
    >>> allocation.boxes[0].tolist(), allocation.levels[0].tolist(), allocation.scores[0].tolist()
    ([[0.0, 0.0, 32.0, 64.0], [32.0, 0.0, 64.0, 64.0]], [1.5, 1.5], [0.5, 0.5])
    """
    b, n = cells.shape[:2]
    size, grid = view.image_size, view.grid
    # From the exact centre in leaf units, not from rounded boxes: cells in one row must have one and the same y.
    middles = (cells[..., :2] + cells[..., 2:]) / 2
    in_pixels = to_pixels(torch.cat((cells, middles), dim=-1), grid, size, torch.float64)
    boxes, centers = in_pixels.split((4, 2), dim=-1)
    if levels is None:
        area = (cells[..., 2] - cells[..., 0]) * (cells[..., 3] - cells[..., 1])
        levels = area.log2() / 2
    fixations = view.fixations if gaze is None else torch.nn.functional.pad(gaze, (0, 1), value=1.0)[:, None]
    gaze = first_gaze(view.fixations, image_centre(b, size, view.device)) if gaze is None else gaze
    fields = {
        "boxes": boxes.float(),
        "centers": centers.float(),
        "levels": levels.float(),
        "eccentricity": eccentricity(centers, fixations, grid, size).float(),
        "scores": (box_mass(view.relevance, cells) if scores is None else scores).float(),
        "is_context": torch.zeros(b, n, dtype=torch.bool, device=view.device) if is_context is None else is_context,
        "angle": torch.zeros_like(centers[..., 0], dtype=torch.float32) if angle is None else angle,
        "sector": torch.full_like(cells, torch.nan, dtype=torch.float32) if sector is None else sector,
    }
    if not in_order:
        order = canonical_order(fields["centers"], fields["levels"], fields["is_context"])
        fields = {name: _permute(value, order) for name, value in fields.items()}
    fields["gaze"] = gaze.float()
    return Allocation(**fields, image_sizes=(size,) * b, grids=(grid,) * b, leaf=view.leaf, kind=kind)


def _permute(value: Tensor, order: Tensor) -> Tensor:
    return value.gather(1, order if value.ndim == 2 else order[..., None].expand_as(value))


def leaf_cells(leaves: Tensor, gw: int) -> Float64[Tensor, "b n 4"]:
    """Row-major leaf indices `[B, N]` as unit cells.

    >>> leaf_cells(torch.tensor([[5]]), gw=4).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    corner = torch.stack((leaves % gw, leaves // gw), dim=-1).double()
    return torch.cat((corner, corner + 1), dim=-1)


def box_mass(density: Float64[Tensor, "b gh gw"], cells: Float64[Tensor, "b n 4"]) -> Float64[Tensor, "b n"]:
    """The density inside each box (leaf units, fractions allowed), read from its integral.

    Good for reporting. Never for choosing: differences of an integral image do not keep the order of nested cells.

    >>> box_mass(torch.ones(1, 4, 4, dtype=torch.float64), torch.tensor([[[0.5, 0, 2, 1]]], dtype=torch.float64))
    tensor([[1.5000]], dtype=torch.float64)
    """
    gh, gw = density.shape[1:]
    integral = torch.nn.functional.pad(density, (1, 0, 1, 0)).cumsum(1).cumsum(2).flatten(1)

    def up_to(x: Tensor, y: Tensor) -> Tensor:  # mass of the rectangle from the origin: bilinear in the integral
        left, top = x.floor().clamp(0, gw - 1), y.floor().clamp(0, gh - 1)
        fx, fy = x - left, y - top
        corner = (top * (gw + 1) + left).long()
        m00, m01, m10, m11 = (integral.gather(1, corner + step) for step in (0, 1, gw + 1, gw + 2))
        return (1 - fy) * ((1 - fx) * m00 + fx * m01) + fy * ((1 - fx) * m10 + fx * m11)

    x0, y0, x1, y1 = cells.unbind(-1)
    return (up_to(x1, y1) - up_to(x0, y1) - up_to(x1, y0) + up_to(x0, y0)).clamp(min=0)


def retold(allocation: Allocation, density: Float64[Tensor, "b gh gw"]) -> Allocation:
    """The same cells of images of one size, with what they hold of another density.

    >>> from homunculus.allocation import allocate
    >>> kept = allocate(torch.rand(1, 16, 16), 64)
    >>> retold(kept, torch.ones(1, 16, 16).double()).scores.sum().item()  # they tile
    1.0
    """
    if allocation.kind == "rotated":
        raise AllocatorError("what turned cells hold is not read from upright boxes: allocate anew")
    size, grid = allocation.image_sizes[0], allocation.grids[0]
    cells = to_pixels(allocation.boxes.double(), size, grid, torch.float64)  # the other way: pixels to leaves
    return replace(allocation, scores=box_mass(normalise(resample_mass(density, grid)), cells).float())
