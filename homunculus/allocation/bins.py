"""Bins about the gaze, one leaf each: `pseudo-log-polar` learns where they lie, `log-polar-bins` are rings and sectors.

A learned bin is a point beside the gaze and a reach. In training it is a soft assignment over all leaves, and its token
the mean of what lies there; at inference it takes one leaf, and no leaf is taken twice.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from homunculus.allocation.cells import leaf_cells, make_allocation
from homunculus.allocation.grid import first_leaves
from homunculus.allocation.polar import gaze_of
from homunculus.allocation.registry import register
from homunculus.allocation.topk_coverage import best_of_groups
from homunculus.density import with_floor
from homunculus.errors import AllocatorError, BudgetError
from homunculus.geometry import Size, check_leaves, leaf_centers, leaf_side
from homunculus.structures import Allocation, View

FOVEAL_SHARE = 0.25
FOVEAL_SIGMA = 0.05  # of the longer side
PLASTIC = 1.3247179572447460  # x^3 = x + 1: its powers make points that fill a square evenly, however many


# ----------------------------------------------------------------------------------------------------- pseudo-log-polar


class LearnedBins(nn.Module):
    """`count` bins about the gaze: centres [N, 2] and the logarithm of their reach [N], both in longer sides.

    A centre outside the image is mirrored into it: never farther from the gaze than it was.

    >>> view = View(torch.ones(1, 16, 16, dtype=torch.float64), (256, 256))
    >>> LearnedBins(20).soft(view).shape
    torch.Size([1, 20, 256])
    """

    def __init__(self, count: int = 273, seed: int = 0) -> None:
        super().__init__()
        centres, log_reach = initial_bins(count, seed)
        self.centres = nn.Parameter(centres)
        self.log_reach = nn.Parameter(log_reach)

    def __len__(self) -> int:
        return len(self.centres)

    def soft(self, view: View, temperature: float = 1.0) -> Float64[Tensor, "b n leaves"]:
        """How much of each leaf goes into each bin's token: softmax over leaves, so every bin sums to 1."""
        return (self.logits(view) / temperature).softmax(2)

    def logits(self, view: View) -> Float64[Tensor, "b n leaves"]:
        """-distance^2 / (2 reach^2) + log relevance, for every bin and leaf."""
        x_cost, y_cost = bin_costs(view, gaze_of(view), self.centres, self.log_reach.exp())
        value = with_floor(view.relevance).log()[:, None]
        return (value - x_cost[:, :, None] - y_cost[..., None]).flatten(2)


def bin_tokens(weights: Float[Tensor, "b n leaves"], features: Float[Tensor, "b leaves d"]) -> Float[Tensor, "b n d"]:
    """The token of every bin in training: the mean of the leaves' features or pixels, weighted by assignment.

    >>> bin_tokens(torch.full((1, 3, 4), 0.25), torch.arange(8.0).reshape(1, 4, 2))[0, 0]
    tensor([3., 4.])
    """
    return weights.to(features.dtype) @ features


def initial_bins(count: int, seed: int = 0) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n"]]:
    """Centres and log reach of untrained bins, in longer sides: a quarter is a Gaussian fovea (sigma 0.05), the rest
    lie evenly within one side of the gaze. Mirrored into the image these are even again, wherever the gaze is.

    Points of low discrepancy, which `seed` shifts. A bin reaches about as far as its neighbour.

    >>> centres, log_reach = initial_bins(273)
    >>> int((centres[:68].norm(dim=1) < 0.1).sum()), log_reach.exp().unique()
    (61, tensor([0.0152, 0.0698]))
    """
    foveal = round(count * FOVEAL_SHARE)
    shift = 0.5 + seed * 2654435761 % 2**32 / 2**32
    place = torch.arange(1, count + 1, dtype=torch.float64)
    u, v = ((place * PLASTIC**-power + shift) % 1 for power in (1, 2))
    distance = FOVEAL_SIGMA * (-2 * torch.log1p(-u[:foveal])).sqrt()
    turn = 2 * math.pi * v[:foveal]
    fovea = torch.stack((distance * turn.cos(), distance * turn.sin()), dim=1)
    spread = 2 * torch.stack((u[foveal:], v[foveal:]), dim=1) - 1
    near = FOVEAL_SIGMA * math.sqrt(2 * math.pi / max(foveal, 1))
    far = 1 / math.sqrt(max(count - foveal, 1))
    reach = torch.cat((torch.full((foveal,), near), torch.full((count - foveal,), far)))
    return torch.cat((fovea, spread)).float(), reach.log()


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _default_bins(count: int, device: torch.device) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n"]]:
    centres, log_reach = initial_bins(count)
    return centres.to(device), log_reach.exp().to(device)


@register(
    "pseudo-log-polar",
    "bins about the gaze, learned or evenly spread, one leaf each",
    uses_gaze=True,
    single_gaze=True,
    trains="LearnedBins, through soft assignment and relaxed.dead_bin_loss",
)
def pseudo_log_polar(view: View, budget: int, *, seed: int = 0, bins: LearnedBins | None = None) -> Allocation:
    """Bin after bin, the fovea first, takes the free leaf of highest log relevance - distance^2 / (2 reach^2): what its
    soft assignment prefers at any temperature. `bins` are trained ones, as many as the budget."""
    check_leaves(view.grid, budget)
    if bins is not None and not isinstance(bins, LearnedBins):
        raise AllocatorError(f"bins of pseudo-log-polar are a LearnedBins, got {type(bins).__name__}")
    if bins is not None and len(bins) != budget:
        raise BudgetError(f"these are {len(bins)} bins and the budget is {budget}: one bin is one token")
    gaze = gaze_of(view)
    with torch.no_grad():
        centres, reach = _default_bins(budget, view.device) if bins is None else (bins.centres, bins.log_reach.exp())
        costs = bin_costs(view, gaze, centres, reach)
        leaves = assign_leaves(steady_log(with_floor(view.relevance)), *costs)
    shares = view.relevance.flatten(1).gather(1, leaves)
    return make_allocation(view, leaf_cells(leaves, view.grid[0]), "dyadic", scores=shares, gaze=gaze)


def bin_positions(gaze: Float64[Tensor, "b 2"], centres: Float[Tensor, "n 2"], size: Size) -> Float64[Tensor, "b n 2"]:
    """Where the bins of each image lie, in pixels, those outside of it mirrored into it.

    >>> bin_positions(torch.tensor([[10.0, 10.0]]).double(), torch.tensor([[-0.25, 0.125]]), (100, 50))
    tensor([[[15.0000, 22.5000]]], dtype=torch.float64)
    """
    axes = []
    for axis, side in enumerate(size):
        place = (gaze[:, axis, None] + centres[:, axis].double() * max(size)).remainder(2 * side)
        axes.append(torch.where(place > side, 2 * side - place, place))
    return torch.stack(axes, dim=-1)


def bin_costs(
    view: View, gaze: Float64[Tensor, "b 2"], centres: Float[Tensor, "n 2"], reach: Float[Tensor, "n"]
) -> tuple[Float64[Tensor, "b n gw"], Float64[Tensor, "b n gh"]]:
    """distance^2 / (2 reach^2) of every bin to every column and to every row of leaves: their sum is that to a leaf."""
    positions = bin_positions(gaze, centres, view.image_size)
    fall = 0.5 / (reach.double() * reach.double())[:, None]
    xs, ys = leaf_centers(view.grid, view.image_size, view.device)
    dx, dy = ((leaves - positions[..., i, None]) / max(view.image_size) for i, leaves in enumerate((xs, ys)))
    return dx * dx * fall, dy * dy * fall


def assign_leaves(
    value: Float64[Tensor, "b gh gw"], x_cost: Float64[Tensor, "b n gw"], y_cost: Float64[Tensor, "b n gh"]
) -> Int64[Tensor, "b n"]:
    """Bin after bin, the free leaf of highest value less cost; of equal ones the first in reading order.

    >>> assign_leaves(torch.zeros(1, 1, 3).double(), torch.zeros(1, 2, 3).double(), torch.zeros(1, 2, 1).double())
    tensor([[0, 1]])
    """
    free = value.clone(memory_format=torch.contiguous_format)
    gain = torch.empty_like(free)
    leaves = []
    for x, y in zip(x_cost.unbind(1), y_cost.unbind(1), strict=True):
        torch.sub(free, x[:, None], out=gain).sub_(y[:, :, None])
        leaves.append(gain.flatten(1).argmax(1, keepdim=True))
        free.view(len(free), -1).scatter_(1, leaves[-1], -torch.inf)
    return torch.cat(leaves, dim=1)


def steady_log(x: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """The natural logarithm to some 1e-13, of the same bits wherever an element sits, in any batch, on any device.

    `torch.log` promises none of that. Here a mantissa m in [0.5, 1) about c = sqrt(0.5) becomes
    ln m = ln c + 2 artanh((m - c) / (m + c)), a short series.

    >>> steady_log(torch.tensor([0.5, 2.718281828459045]).double())
    tensor([-0.6931,  1.0000], dtype=torch.float64)
    """
    mantissa, exponent = torch.frexp(x)
    s = (mantissa - math.sqrt(0.5)) / (mantissa + math.sqrt(0.5))
    square = s * s
    series = torch.full_like(s, 1 / 15)
    for odd in (13, 11, 9, 7, 5, 3, 1):
        series = series * square + 1 / odd
    return (exponent.double() - 0.5) * math.log(2) + 2 * s * series


# ------------------------------------------------------------------------------------------------------- log-polar-bins


@register(
    "log-polar-bins",
    "the best leaf of each ring and sector about the gaze, the rest by relevance",
    uses_gaze=True,
    single_gaze=True,
)
def log_polar_bins(
    view: View, budget: int, *, seed: int = 0, bins: tuple[int, int] | None = None, e0: float = 1.5
) -> Allocation:
    """`bins` = (rings, sectors), 16 x 17 at 273 tokens. Rings have equal steps of log(1 + e/e0), e0 in leaves, out to
    the image's diagonal, wherever the gaze is. Many bins hold no leaf: 183 of 272 do at the centre of 64x64 leaves, 62
    at a corner."""
    check_leaves(view.grid, budget)
    pair = bins is None or (isinstance(bins, (tuple, list)) and len(bins) == 2)
    if not pair or not all(isinstance(n, int) and n > 0 for n in bins or ()):
        raise AllocatorError(f"bins are two positive whole numbers (rings, sectors), got {bins}")
    if not e0 > 0:
        raise AllocatorError(f"e0 is a distance in leaves, above 0, got {e0}")
    rings, sectors = _bin_grid(budget) if bins is None else bins
    if rings * sectors > budget:
        raise BudgetError(
            f"{rings}x{sectors} bins with a token each and a budget of {budget}: "
            f"use at least {rings * sectors} tokens or fewer bins"
        )
    gaze = gaze_of(view)
    best = best_of_groups(view.relevance, polar_bins(view, gaze, rings, sectors, e0), rings * sectors)
    # No share of relevance exceeds 1, so the best of every bin come before all others, and those by relevance.
    leaves = first_leaves(view.relevance + 2 * best, budget)
    shares = view.relevance.flatten(1).gather(1, leaves)
    return make_allocation(view, leaf_cells(leaves, view.grid[0]), "dyadic", scores=shares, gaze=gaze)


def _bin_grid(budget: int) -> tuple[int, int]:
    """16 rings by 17 sectors, scaled so that the budget has a token for each."""
    rings = max(1, math.isqrt(budget * 16 // 17))
    return rings, budget // rings


def polar_bins(
    view: View, gaze: Float64[Tensor, "b 2"], rings: int, sectors: int, e0: float = 1.5
) -> Int64[Tensor, "b leaves"]:
    """The bin of every leaf, ring * sectors + sector; sectors begin to the right of the gaze and go clockwise.

    >>> view = View(torch.ones(1, 64, 64, dtype=torch.float64), (1024, 1024))
    >>> polar_bins(view, gaze_of(view), 16, 17).unique().numel()
    183
    """
    ring_edges, sector_edges = _polar_edges(view.grid, view.image_size, rings, sectors, e0, view.device)
    xs, ys = leaf_centers(view.grid, view.image_size, view.device)
    dx = (xs - gaze[:, :1])[:, None]  # [B, 1, gw]
    dy = (ys - gaze[:, 1:])[:, :, None]
    ring = torch.bucketize(dx * dx + dy * dy, ring_edges, right=True)
    sector = torch.bucketize(diamond_angle(dx, dy), sector_edges, right=True)
    return (ring * sectors + sector).flatten(1)


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _polar_edges(
    grid: Size, size: Size, rings: int, sectors: int, e0: float, device: torch.device
) -> tuple[Float64[Tensor, "inner_rings"], Float64[Tensor, "inner_sectors"]]:
    """Squared radii between rings and diamond angles between sectors: comparisons, so that no logarithm or angle is
    taken of a leaf and every device decides alike."""
    unit = leaf_side(grid, size)
    outermost = math.log1p(math.hypot(*size) / (unit * e0))
    radii = [unit * e0 * math.expm1(outermost * ring / rings) for ring in range(1, rings)]
    angles = torch.tensor([2 * math.pi * sector / sectors for sector in range(1, sectors)], dtype=torch.float64)
    squared = torch.tensor([radius**2 for radius in radii], dtype=torch.float64)
    return squared.to(device), diamond_angle(angles.cos(), angles.sin()).to(device)


def diamond_angle(dx: Float64[Tensor, "*a"], dy: Float64[Tensor, "*b"]) -> Float64[Tensor, "*c"]:
    """A number from 0 to 4 that grows with the angle of (dx, dy), a quarter turn being 1, by correctly rounded steps.

    >>> diamond_angle(torch.tensor([1.0, 0.0, -1.0, 1.0]).double(), torch.tensor([0.0, 1.0, 0.0, -1.0]).double())
    tensor([0.0000, 1.0000, 2.0000, 3.5000], dtype=torch.float64)
    """
    length = dx.abs() + dy.abs()
    up = dy / torch.where(length > 0, length, 1.0)
    return torch.where(dx < 0, 2 - up, torch.where(dy < 0, 4 + up, up))
