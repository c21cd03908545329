"""What the looks so far have left to see, and where to look next.

Left is relevance times the contrast that no look has shown, from the Laplacian bands finer than the finest cell over
each leaf. Places just looked at are left alone: the map is multiplied by d^4 / (d^4 + r^4) around each fixation, which
is 0 there and one half at the radius r. Only sums, products, quotients and roots, each rounded on its own, so that an
image gets the same fixations alone and in a batch; nothing here waits for the device.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.density import normalise, with_floor
from homunculus.geometry import Size, leaf_centers
from homunculus.relevance.gaze import peak
from homunculus.relevance.maps import QUIET
from homunculus.structures import Allocation, View

RADIUS = 0.15  # of inhibition, as a share of the longer side
CHUNK = 1 << 22  # cells times leaves looked at together


def shown_level(allocation: Allocation) -> Float64[Tensor, "b gh gw"]:
    """The level of the finest cell over each leaf's centre, for images of one size; infinite where there is none.

    >>> import homunculus
    >>> shown_level(homunculus.allocate(torch.ones(8, 8), 16)).unique().tolist()
    [1.0]
    """
    grid, size = allocation.grids[0], allocation.image_sizes[0]
    xs, ys = leaf_centers(grid, size, allocation.device)
    rows = max(1, CHUNK // (allocation.boxes[..., 0].numel() * grid[0]))
    level = allocation.levels.double()[..., None, None]
    x0, y0, x1, y1 = allocation.boxes.double()[..., None, None].unbind(2)  # [B, N, 1, 1]
    shown = []
    for y in ys[:, None].split(rows):
        if allocation.kind == "rotated":
            cos, sin = (turn(allocation.angle.double())[..., None, None] for turn in (torch.cos, torch.sin))
            dx, dy = xs - (x0 + x1) / 2, y - (y0 + y1) / 2
            along, across = dx * cos + dy * sin, dy * cos - dx * sin
            inside = (along.abs() * 2 <= x1 - x0) & (across.abs() * 2 <= y1 - y0)
        else:
            inside = ((x0 <= xs) & (xs < x1)) & ((y0 <= y) & (y < y1))
        shown.append(torch.where(inside, level, torch.inf).amin(1))
    return torch.cat(shown, dim=1)


def left_to_see(view: View, shown: Float64[Tensor, "b gh gw"]) -> Float64[Tensor, "b gh gw"]:
    """Relevance times the root-mean-square contrast of each leaf that cells of the `shown` levels average away.

    A cell of level L shows its leaves by blocks of 2^L pixels: bands 0..L-1 are lost, and the part of the next one that
    a fractional level asks for. A leaf shown at level 0 has nothing left; one under no cell loses every band.

    >>> image = torch.full((3, 64, 64), 0.5); image[:, 16:32, 32:48] = (torch.arange(16) % 2).float()
    >>> from homunculus.foveate import make_view
    >>> view = make_view(image, budget=16)
    >>> left_to_see(view, torch.ones(1, 4, 4).double())[0].nonzero().tolist()
    [[1, 2]]
    """
    pyramid = view.pixels("the search for what is left to see")
    gw, gh = view.grid
    lost = torch.zeros_like(view.density)
    for band, energy in sorted(pyramid.energy.items()):
        cell = pyramid.energy_level(band)
        by_leaf = (energy.double() / 4**cell).repeat_interleave(1 << cell, 1).repeat_interleave(1 << cell, 2)
        lost = lost + by_leaf[:, :gh, :gw] * (shown - band).clamp(0, 1)
    contrast = (lost.sqrt() / view.leaf - QUIET).clamp(min=0)
    return with_floor(view.relevance) * contrast


def inhibition(
    fixations: Float64[Tensor, "b f 3"], grid: Size, size: Size, radius: float = RADIUS
) -> Float64[Tensor, "b gh gw"]:
    """What keeps the gaze from returning: a factor for each leaf, 0 at a fixation and 1 far from all of them.

    >>> factor = inhibition(torch.tensor([[[8.0, 8.0, 1.0]]]).double(), (4, 1), (64, 16), radius=0.25)
    >>> [round(value, 2) for value in factor.flatten().tolist()]
    [0.0, 0.5, 0.94, 0.99]
    """
    xs, ys = leaf_centers(grid, size, fixations.device)
    reach = radius * max(size)
    factor = torch.ones(len(fixations), len(ys), len(xs), dtype=torch.float64, device=fixations.device)
    for x, y, weight in (point[..., None, None].unbind(1) for point in fixations.unbind(1)):
        dx, dy = (xs - x) / reach, (ys[:, None] - y) / reach
        square = dx * dx + dy * dy
        fourth = square * square
        factor = factor * torch.where(weight > 0, fourth / (1 + fourth), 1.0)
    return factor


def next_fixation(
    left: Float64[Tensor, "b gh gw"], fixations: Float64[Tensor, "b f 3"], size: Size, radius: float = RADIUS
) -> Float64[Tensor, "b 2"]:
    """Where most is left, away from the fixations so far, in pixels; where nothing is left, away from them is all.

    >>> left = torch.zeros(1, 8, 8, dtype=torch.float64); left[0, 1, 1], left[0, 6, 5] = 3.0, 1.0
    >>> next_fixation(left, torch.tensor([[[24.0, 24.0, 1.0]]]).double(), (128, 128))
    tensor([[ 88., 104.]], dtype=torch.float64)
    """
    grid = left.shape[2], left.shape[1]
    return peak(with_floor(normalise(left)) * inhibition(fixations, grid, size, radius), size)
