"""`vortex`: a golden-angle spiral, the sunflower's packing warped so that seeds thin out with distance from the gaze.

Point i lies in direction i * golden angle, at the radius within which the law of acuity wants (i + 1/2) mu cells. It is
inside the image if mu is at most r_i = (cells wanted up to the border in its direction) / (i + 1/2), which does not
depend on mu. So the mu that leaves exactly N points inside is found by one sort: it lies between the N-th and the next
of the r_i. No scan, no clamping of outside points to the border, no duplicates.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.polar import Acuity, border, boxes_about, gaze_of, solve_acuity
from homunculus.allocation.registry import register
from homunculus.allocation.rings import THREAD, e0_in_pixels, ring_allocation
from homunculus.geometry import Size
from homunculus.structures import Allocation, View

GOLDEN = (math.sqrt(5) - 1) / 2  # of a turn
BISECTIONS = 50


@register(
    "vortex",
    "a golden-angle spiral of squares around the gaze, dense at its centre",
    uses_gaze=True,
    single_gaze=True,
    trains="nothing: geometry; without a fixation, relevance says where to look",
)
def vortex(view: View, budget: int, *, seed: int = 0, e0: float = 3.0) -> Allocation:
    """`e0` in leaves. Squares do not tile: about an eighth of the image stays between them. An image more than 16 times
    longer than wide has no room for a spiral and is cut across, as by rings."""
    gaze = gaze_of(view)
    if max(view.image_size) > THREAD * min(view.image_size):
        return ring_allocation(view, budget, gaze, e0_in_pixels(view, e0))
    law = solve_acuity(gaze, e0_in_pixels(view, e0), budget, view)
    theta, cos, sin = spiral(candidates(budget, view.image_size), view.device)
    rank = torch.arange(len(theta), device=view.device) + 0.5
    wanted = law.tokens(border(gaze, view.image_size, cos, sin)) * (2 * math.pi)
    ratio, order = torch.sort(wanted / rank, dim=1, descending=True, stable=True)
    spacing = (ratio[:, budget - 1 : budget] * ratio[:, budget : budget + 1]).sqrt()  # mu, about 1
    # Rounded, and kept at most the smallest ratio: every chosen point stays inside.
    spacing = spacing.float().double().minimum(ratio[:, budget - 1 : budget])
    point = order[:, :budget]
    radius = inverse_tokens(law, rank[point] * spacing / (2 * math.pi), math.hypot(*view.image_size))
    side = law.side(radius) * spacing.sqrt()
    return _as_squares(view, gaze, radius, theta[point], cos[point], sin[point], side)


def candidates(budget: int, size: Size) -> int:
    """How many points of the spiral may have to be looked at: those of a disc around a corner that holds the image."""
    aspect = max(size) / min(size)
    return math.ceil(budget * math.pi * (aspect + 1 / aspect)) + 64


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def spiral(count: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Directions of the first points, in (-pi, pi], with cosine and sine; from the CPU, for the same bits anywhere."""
    turn = (torch.arange(count, dtype=torch.float64) * GOLDEN) % 1.0
    theta = torch.where(turn > 0.5, turn - 1, turn) * (2 * math.pi)
    return theta.to(device), theta.cos().to(device), theta.sin().to(device)


def inverse_tokens(law: Acuity, tokens: Float64[Tensor, "b n"], farthest: float) -> Float64[Tensor, "b n"]:
    """The eccentricity within which the law wants that many cells per radian, by bisection.

    >>> law = Acuity(*torch.tensor([[0.25], [64.0]]).double().unsqueeze(1), 16.0)
    >>> inverse_tokens(law, law.tokens(torch.tensor([[100.0]]).double()), 1000.0)
    tensor([[100.0000]], dtype=torch.float64)
    """
    low, high = torch.zeros_like(tokens), torch.full_like(tokens, farthest)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = law.tokens(middle) > tokens
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    return low


def _as_squares(
    view: View,
    gaze: Float64[Tensor, "b 2"],
    radius: Float64[Tensor, "b n"],
    theta: Float64[Tensor, "b n"],
    cos: Float64[Tensor, "b n"],
    sin: Float64[Tensor, "b n"],
    side: Float64[Tensor, "b n"],
) -> Allocation:
    width, height = view.image_size
    x = (gaze[:, :1] + radius * cos).clamp(0, width)
    y = (gaze[:, 1:] + radius * sin).clamp(0, height)
    half = side / 2
    cells = boxes_about(view, x, y, half, half)
    # The patch of the spiral a point stands for: as deep and as wide as its square, a disc at the very centre.
    disc = radius < half
    width_angle = torch.where(disc, 2 * math.pi, side / torch.where(disc, 1.0, radius))
    sector = torch.stack(
        (
            torch.where(disc, 0.0, radius - half),
            torch.where(disc, side / math.sqrt(math.pi) + radius, radius + half),
            theta - torch.where(disc, math.pi, width_angle / 2),
            theta + torch.where(disc, math.pi, width_angle / 2),
        ),
        dim=-1,
    )
    turns = torch.ceil((sector[..., 2:3] - math.pi) / (2 * math.pi)) * (2 * math.pi)
    sector = torch.cat((sector[..., :2], sector[..., 2:] - turns), dim=-1)
    return make_allocation(view, cells, "box", sector=sector.float(), gaze=gaze)
