"""Rings of equal log step around the gaze, cut into sectors: exactly N cells that share the image among them.

Ring edges lie one cell side apart (see `polar.Acuity`), so cells are as deep as they are wide. A ring that leaves the
image falls into arcs; arcs get tokens by largest remainder of the cells they should hold, and sector edges are at
equal mass. What would earn less than a quarter of a token (a corner's last sliver) joins the ring inside it. Where an
arc joins, the inner ring is cut at the sides that bound it: every cell is one sector, cut to the image, and every
pixel belongs to exactly one of them.

The arithmetic that decides is on integers (2^-32 tokens), so the result has no last bit to disagree about.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.foveal import allocate_at
from homunculus.allocation.polar import (
    Acuity,
    border,
    boxes_about,
    directions,
    gaze_of,
    side_distances,
    solve_acuity,
)
from homunculus.allocation.registry import register
from homunculus.allocation.stratified import largest_remainder
from homunculus.allocation.threads import thread_slabs
from homunculus.biology.acuity import E2
from homunculus.biology.field import DEGREES, to_pixels
from homunculus.density import fold_sum
from homunculus.errors import AllocatorError
from homunculus.geometry import Size, leaf_side
from homunculus.relevance.maps import saliency
from homunculus.structures import Allocation, View

MIN_RING_BUDGET = 16
UNIT = 1 << 32  # one token
MERGE_BELOW = (0.25, 0.5, 1.0, 2.0)  # tokens; the first that leaves no more arcs than tokens is taken
QUADRATURE = 24
WIDEST = 0.97  # of the way from a cell's centre to the farther side
LARGEST_E0 = 1e5  # leaves; all places are alike long before
FINEST_BOX = 2e-6  # of the longer side: what float32 can still tell from nothing anywhere in the image
THREAD = 16  # an image so much longer than wide is cut across, not into sectors


@dataclass(frozen=True)
class Arcs:
    """Arcs of the rings, 4 slots for each: slot c begins at the c-th side direction, `leads` says if an arc does.

    An arc of ring j spans `quadrants` quarter turns and reaches out to the end of ring `last`.
    """

    leads: Bool[Tensor, "b r 4"]
    mass: Int64[Tensor, "b r 4"]
    quadrants: Int64[Tensor, "b r 4"]
    last: Int64[Tensor, "b r 4"]
    kept: Bool[Tensor, "b r 4"]  # this quarter of the ring belongs to an arc of this ring, not to one further in


def ring_allocation(
    view: View,
    budget: int,
    gaze: Float64[Tensor, "b 2"],
    e0: Float64[Tensor, "b 1"],
    *,
    hemifields: bool = False,
    field: float = 1.0,
    weight: Float64[Tensor, "b gh gw"] | None = None,
) -> Allocation:
    """Exactly `budget` sectors around each gaze; e0 in pixels.

    `hemifields` cuts every ring at the vertical through the gaze. `field` is the side of the sampled square relative to
    that of equal area. `weight` multiplies the wanted density, leaf by leaf.

    >>> view = View(torch.ones(1, 64, 64, dtype=torch.float64), (1024, 1024))
    >>> corner = torch.zeros(1, 2, dtype=torch.float64)
    >>> ring_allocation(view, 273, corner, torch.full((1, 1), 48.0).double()).sector.shape
    torch.Size([1, 273, 4])
    """
    size = view.image_size
    if max(size) > THREAD * min(size):
        return _as_squares(view, gaze, *thread_slabs(view, budget, gaze, e0), field)
    law = solve_acuity(gaze, e0, budget, view)
    count = direction_count(budget)
    distance = side_distances(gaze, size)
    # The sweep begins at the nearest side: a ring with any gap has one there, so no arc runs over the beginning.
    start = torch.full_like(distance[:, :1], 3).long() if hemifields else distance.argmin(1, keepdim=True)
    turn = (torch.arange(4, device=view.device) + start) % 4  # [B, 4], side directions in order of the sweep
    place = (torch.arange(count, device=view.device) + start * (count // 4)) % count  # [B, T]
    cos, sin = (table[place] for table in directions(count, view.device))
    reach = border(gaze, size, cos, sin)

    edges = ring_edges(law, distance, ring_count(budget, size), 0.0 if hemifields else 0.5)
    within = law.tokens(edges)[..., None]  # [B, R+1, 1], tokens per radian
    wanted = law.tokens(reach)[:, None]  # [B, 1, T]
    table = (within[:, 1:].minimum(wanted) - within[:, :-1]).clamp(min=0) * (2 * math.pi / count)  # [B, R, T]
    if weight is not None:
        table = table * _along_rings(weight, view, gaze, edges, cos, sin)
    tokens = fold_sum(fold_sum(table, -1), -2)
    mass = (table * (budget * UNIT / tokens)).round().long()

    gaps = edges[:, :-1, None] >= distance.gather(1, turn)[:, None]  # [B, R, 4]: nothing of this ring in that direction
    if hemifields:
        gaps = gaps | (turn % 2 == 1)[:, None]
    arcs = choose_arcs(mass.unflatten(2, (4, count // 4)).sum(-1), gaps, budget)
    return _as_squares(view, gaze, *cut_sectors(arcs, mass, edges, start, budget), field)


def direction_count(budget: int) -> int:
    """How finely directions are told apart: some twenty for every cell across the image, and a power of two."""
    return 1 << max(8, math.ceil(math.log2(20 * math.sqrt(budget))))


def ring_count(budget: int, size: Size) -> int:
    """More rings than there ever are, known from shapes alone: a corner of a square needs 1.84 sqrt(N) of them, the end
    of a long strip sqrt(N * aspect)."""
    return math.ceil(math.sqrt(budget) * max(2.2, 1.05 * math.sqrt(max(size) / min(size)))) + 4


def ring_edges(law: Acuity, distance: Float64[Tensor, "b 4"], rings: int, first: float) -> Float64[Tensor, "b edges"]:
    """Radii one cell side apart, from 0: `first` steps to the first edge, or one if 0. A disc too small to earn a
    quarter of a token, as in a corner, is left to the first ring."""
    steps = torch.arange(rings, dtype=torch.float64, device=distance.device) + (first or 1.0)
    edges = torch.nn.functional.pad(law.radius(steps.expand(distance.shape[0], -1)), (1, 0))
    # The share of the full turn in which the disc lies inside: exact while the disc is smaller than the image.
    open_sides = (distance > 0).double()
    horizontal, vertical = open_sides[:, 0::2].amin(1), open_sides[:, 1::2].amin(1)
    quarter_turns = (1 + horizontal) * (1 + vertical)
    disc = law.tokens(edges[:, 1:2]) * (math.pi / 2) * quarter_turns[:, None]
    edges[:, 1:2] = torch.where(disc < MERGE_BELOW[0], 0.0, edges[:, 1:2])
    edges[:, -1] = torch.inf
    return edges


def _along_rings(
    weight: Float64[Tensor, "b gh gw"],
    view: View,
    gaze: Float64[Tensor, "b 2"],
    edges: Float64[Tensor, "b edges"],
    cos: Float64[Tensor, "b t"],
    sin: Float64[Tensor, "b t"],
) -> Float64[Tensor, "b r t"]:
    """The leaf's value halfway through every ring, in every direction."""
    (width, height), (gw, gh) = view.image_size, view.grid
    middle = ((edges[:, :-1] + edges[:, 1:].clamp(max=4.0 * (width + height))) / 2)[..., None]
    x, y = gaze[:, 0, None, None] + middle * cos[:, None], gaze[:, 1, None, None] + middle * sin[:, None]
    column = (x * gw / width).floor().clamp(0, gw - 1)
    row = (y * gh / height).floor().clamp(0, gh - 1)
    place = (row * gw + column).long()
    return weight.flatten(1).gather(1, place.flatten(1)).view_as(place)


def choose_arcs(mass: Int64[Tensor, "b r 4"], gaps: Bool[Tensor, "b r 4"], budget: int) -> Arcs:
    """Every ring's arcs, from the outside in: what is worth less than a share of a token joins the ring inside it.

    That share is a quarter, or more where there would be more arcs than tokens (a strip thinner than its cells).
    """
    batch, rings = mass.shape[:2]
    shares = len(MERGE_BELOW)
    limit = torch.stack([torch.full((), int(share * UNIT), device=mass.device) for share in MERGE_BELOW])[:, None]
    carried = torch.zeros(batch, shares, 4, dtype=torch.int64, device=mass.device)
    last = torch.full_like(carried, rings - 1)  # the ring up to which nobody further out takes a quadrant
    found: list[tuple[Tensor, ...]] = []
    for ring in range(rings - 1, -1, -1):
        total = mass[:, ring, None] + carried
        cut = gaps[:, ring, None] | (last != last.roll(1, -1))
        cut = torch.cat((torch.ones_like(cut[..., :1]), cut[..., 1:]), dim=-1)
        arc = cut.long().cumsum(-1)
        together = arc[..., None] == arc[..., None, :]  # [B, share, 4, 4]
        whole = (total[..., None, :] * together).sum(-1)
        keep = (whole > 0) & (whole >= limit) if ring > 0 else whole > 0
        found.append((cut & keep, whole, together.sum(-1), last, keep))
        carried, last = torch.where(keep, 0, total), torch.where(keep, ring - 1, last)
    leads, whole, quadrants, last, kept = (
        torch.stack(parts[::-1], dim=2) for parts in zip(*found, strict=True)
    )  # [B, share, R, 4]
    few_enough = leads.flatten(2).sum(-1) <= budget  # [B, share]
    choice = few_enough.int().argmax(1)[:, None, None, None].expand(-1, 1, rings, 4)
    return Arcs(*(part.gather(1, choice)[:, 0] for part in (leads, whole, quadrants, last, kept)))


def cut_sectors(
    arcs: Arcs,
    mass: Int64[Tensor, "b r t"],
    edges: Float64[Tensor, "b edges"],
    start: Int64[Tensor, "b 1"],
    budget: int,
) -> tuple[Float64[Tensor, "b n 4"], Float64[Tensor, "b n 2"]]:
    """Every arc's tokens as sectors of equal mass (rho0, rho1, theta0, theta1), and the angles they fill of the image.

    The outer edges of an arc lie in the gaps beside it, where exactly does not matter: the sector is cut to the image.
    """
    batch, _, count = mass.shape
    quarter = math.pi / 2
    leads, worth = arcs.leads.flatten(1), torch.where(arcs.leads, arcs.mass, 0).flatten(1)
    granted = leads.long()
    # An arc's first token is its own; the rest follow what is worth more than one.
    excess = (worth - UNIT).clamp(min=0).double()
    free = budget - granted.sum(1, keepdim=True)
    granted = granted + largest_remainder(excess, torch.where(leads, budget, 0), free)

    token = torch.arange(budget, device=mass.device).expand(batch, -1).contiguous()
    upto = granted.cumsum(1)
    slot = torch.searchsorted(upto, token, right=True).clamp(max=granted.shape[1] - 1)  # [B, N]
    share, own = granted.gather(1, slot), worth.gather(1, slot)
    offset = token - (upto.gather(1, slot) - share)
    before = worth.cumsum(1).gather(1, slot) - own

    # What every ring holds in every direction once the outer ones have joined it: a difference of two sums.
    outward = torch.nn.functional.pad(mass.flip(1).cumsum(1).flip(1), (0, 0, 0, 1))  # [B, R+1, T]
    beyond = outward.gather(1, _per_direction(arcs.last + 1, count))
    held = torch.where(_per_direction(arcs.kept, count), outward[:, :-1] - beyond, 0).flatten(1)
    cumulative = held.cumsum(1)

    def direction(part: Int64[Tensor, "b n"], after: bool = True) -> Float64[Tensor, "b n"]:
        """Where the arc has spent `part` of its `share` parts: the first such direction, or the last if not `after`."""
        target = before + own // share * part + own % share * part // share
        index = torch.searchsorted(cumulative, target, right=after).clamp(max=held.shape[1] - 1)
        here = held.gather(1, index)
        fraction = (target - (cumulative.gather(1, index) - here)).double() / here.clamp(min=1)
        turned = index % count + start * (count // 4)
        return (turned + fraction.clamp(0, 1)) * (2 * math.pi / count)

    ring, begin = slot // 4, (slot % 4 + start).double() * quarter
    end = begin + arcs.quadrants.flatten(1).gather(1, slot) * quarter
    first, next_first = direction(offset), direction(offset + 1)
    is_first, is_last = offset == 0, offset + 1 == share
    theta0, theta1 = torch.where(is_first, begin, first), torch.where(is_last, end, next_first)
    filled = torch.stack((first, torch.where(is_last, direction(share, False), next_first)), dim=-1)
    rho0 = edges.gather(1, ring)
    rho1 = edges.gather(1, arcs.last.flatten(1).gather(1, slot) + 1)
    turns = torch.ceil((theta0 - math.pi) / (2 * math.pi)) * (2 * math.pi)
    return torch.stack((rho0, rho1, theta0 - turns, theta1 - turns), dim=-1), filled


def _per_direction(slots: Tensor, count: int) -> Tensor:
    """A value of each quarter `[B, R, 4]` as one of each direction `[B, R, T]`."""
    return slots.repeat_interleave(count // 4, dim=2)


def _as_squares(
    view: View,
    gaze: Float64[Tensor, "b 2"],
    sector: Float64[Tensor, "b n 4"],
    filled: Float64[Tensor, "b n 2"],
    field: float,
) -> Allocation:
    """The allocation: each sector cut to the image, sampled by the square of its area about its centre of mass."""
    width, height = view.image_size
    rho0, rho1 = sector[..., :2, None].unbind(2)
    theta0, theta1 = filled[..., None].unbind(2)
    middles = (torch.arange(QUADRATURE, dtype=torch.float64, device=view.device) + 0.5) / QUADRATURE
    theta = theta0 + (theta1 - theta0) * middles  # [B, N, Q]
    cos, sin = theta.cos(), theta.sin()
    outer = border(gaze, view.image_size, cos.flatten(1), sin.flatten(1)).view_as(theta).minimum(rho1).maximum(rho0)
    ring = fold_sum(outer**2 - rho0**2, -1) / 2
    lever = (outer**3 - rho0**3) / 3
    x, y = (fold_sum(lever * part, -1) / ring.clamp(min=1e-300) for part in (cos, sin))
    area = (ring * (theta1 - theta0) / QUADRATURE)[..., 0]
    x = (gaze[:, None, 0] + x[..., 0]).clamp(0, width)
    y = (gaze[:, None, 1] + y[..., 0]).clamp(0, height)
    half = (area.clamp(min=0).sqrt() * (field / 2)).clamp(min=FINEST_BOX * max(width, height))
    # Clipped on one side at the most: two cells side by side, both wider than the image, would become the same box.
    half_x, half_y = (half.minimum(WIDEST * c.maximum(side - c)) for c, side in ((x, width), (y, height)))
    cells = boxes_about(view, x, y, half_x, half_y)
    rho = sector[..., :2].clamp(max=2 * math.hypot(width, height))  # beyond the image one radius is like another
    return make_allocation(view, cells, "box", sector=torch.cat((rho, sector[..., 2:]), dim=-1).float(), gaze=gaze)


# ------------------------------------------------------------------------------------------------------- allocators


def e0_in_pixels(view: View, e0: Any) -> Float64[Tensor, "b 1"]:
    """e0 given in leaves, a number or one for each image, in pixels."""
    if isinstance(e0, Tensor):
        if e0.numel() not in (1, view.batch):
            raise AllocatorError(f"{e0.numel()} values of e0 for {view.batch} images: give one, or one for each image")
        return e0.double().reshape(-1, 1).expand(view.batch, 1) * leaf_side(view.grid, view.image_size)
    if not (isinstance(e0, (int, float)) and 0 < e0 <= LARGEST_E0):
        raise AllocatorError(f"e0 is a length in leaves above 0 and up to {LARGEST_E0:g}, got {e0!r}")
    return torch.full(
        (view.batch, 1), e0 * leaf_side(view.grid, view.image_size), dtype=torch.float64, device=view.device
    )


@register(
    "log-polar-rings",
    "rings of equal log step around the gaze, cut into sectors; tiles the image",
    minimum=MIN_RING_BUDGET,
    tiles=True,
    uses_gaze=True,
    single_gaze=True,
    trains="nothing: geometry; without a fixation, relevance says where to look",
)
def log_polar_rings(
    view: View, budget: int, *, seed: int = 0, e0: float = 3.0, foveal_share: float | None = None
) -> Allocation:
    """`e0` in leaves; `foveal_share` solves it for the share of cells near the gaze (see allocation/foveal.py)."""
    gaze = gaze_of(view)

    def rings(e0: Any) -> Allocation:
        return ring_allocation(view, budget, gaze, e0_in_pixels(view, e0))

    return allocate_at(rings, view, e0, foveal_share)


@register(
    "acuity-bins",
    "rings at equal steps of visual acuity over a stated field; tiles the image",
    minimum=MIN_RING_BUDGET,
    tiles=True,
    uses_gaze=True,
    single_gaze=True,
    trains="nothing: geometry; without a fixation, relevance says where to look",
)
def acuity_bins(view: View, budget: int, *, seed: int = 0, degrees: float = DEGREES, e2: float = E2) -> Allocation:
    """Ring edges at equal integrals of de/MAR(e), MAR = MAR0 (1 + e/E2); the longer side spans `degrees`."""
    if not (0 < degrees < 360 and 0 < e2 < math.inf):
        raise AllocatorError(f"degrees must be from 0 to 360 and e2 above 0, got {degrees=}, {e2=}")
    leaves = to_pixels(e2, view.image_size, degrees) / leaf_side(view.grid, view.image_size)
    return ring_allocation(view, budget, gaze_of(view), e0_in_pixels(view, leaves))


@register(
    "scene-aware",
    "rings around the gaze, finer where something stands out; tiles the image",
    minimum=MIN_RING_BUDGET,
    tiles=True,
    uses_gaze=True,
    single_gaze=True,
    trains="nothing: geometry and saliency",
)
def scene_aware(view: View, budget: int, *, seed: int = 0, e0: float = 3.0, beta: float = 0.35) -> Allocation:
    """What stands out counts as (1 + beta * saliency) times nearer to the gaze; without pixels relevance says what."""
    if not 0 <= beta <= 1:
        raise AllocatorError(f"beta is how much nearer salient places count, from 0 to 1, got {beta}")
    salient = view.relevance if view.pyramid is None else saliency(view.pyramid)
    share = salient / salient.amax((1, 2), keepdim=True).clamp(min=1e-300)
    nearer = 1 + beta * share
    # s falls by that factor far from the gaze, so the density grows by its square.
    return ring_allocation(view, budget, gaze_of(view), e0_in_pixels(view, e0), weight=nearer * nearer)
