"""Four quadtrees, one for each orientation of strokes, whose cells are stretched along the strokes or across them.

The budget is split over the orientation bands of a steerable pyramid (steerable.py: strokes at 0, 45, 90 and 135
degrees). In each band a tree of its own spends the band's tokens by its energy times relevance, and every square of the
tree becomes a rectangle of the same area about the same place, 2:1 in pixels: axis-aligned for horizontal and vertical
strokes, turned by 45 degrees for the others. Where a rectangle would leave the image it is moved by at most a quarter
of its tree cell, then shrunk. A band's leftover context tokens are sqrt(2):1 and never moved.

So no two cells are alike. In two bands their long sides point in different directions. In one band the tree cells
without context are disjoint and each holds the centre of its rectangle; context has another shape; and two context
cells (there are never more in a band) are disjoint or parent and child, which do not share a centre.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.hierarchical import HierarchicalAllocator
from homunculus.allocation.registry import register
from homunculus.allocation.stratified import share_tokens
from homunculus.allocation.tree import cut_tree, tree_over
from homunculus.density import FLOOR, normalise, total_mass, with_floor
from homunculus.errors import AllocatorError
from homunculus.geometry import MIN_TREE_BUDGET, Size, check_leaves, root_level
from homunculus.pyramid import mass_pyramid
from homunculus.steerable import orientation_energy
from homunculus.structures import Allocation, View

SPLITS = "energy", "query", "equal"
STRETCHES = "along", "across", "none"

HORIZONTAL, VERTICAL = 0, 2  # bands
FAVOURED, OTHER = 128.0, 32.0  # what a question about text or buildings gives its own band, and each of the others

_TEXT = re.compile(
    r"\b(?:texts?|words?|read(?:s|ing)?|written|writing|writes?|says?|said|spell(?:s|ed|ing)?|print(?:s|ed)?|typed?|"
    r"letters?|digits?|numbers?|codes?|dates?|titles?|captions?|headings?|headlines?|paragraphs?|sentences?|lines?|"
    r"labels?|names?|initials|signatures?|signed|address(?:es)?|totals?|amounts?|prices?|invoices?|receipts?|"
    r"documents?|pages?|forms?|tables?|headers?|footers?|footnotes?)\b"
)
_BUILDING = re.compile(
    r"\b(?:buildings?|houses?|towers?|skyscrapers?|skylines?|fa[cç]ades?|windows?|doors?|columns?|pillars?|"
    r"church(?:es)?|cathedrals?|castles?|temples?|bridges?|architecture|storeys?|balcon(?:y|ies))\b"
)


# ------------------------------------------------------------------------------------------------- shares of the bands


def mixed_density(view: View, split: str = "energy", floor: float = FLOOR) -> Float64[Tensor, "b gh gw"]:
    """The densities of the four bands, each weighted by the share of the budget that its band gets: of mass 1.

    >>> from homunculus.pyramid import ImagePyramid
    >>> pyramid = ImagePyramid(torch.rand(1, 3, 64, 96), grid=(6, 4))
    >>> mixed_density(View(torch.ones(1, 4, 6, dtype=torch.float64), (96, 64), pyramid=pyramid)).shape
    torch.Size([1, 4, 6])
    """
    shares, densities = _bands(view, split, floor)
    one, two, three, four = (densities * shares[..., None, None]).unbind(1)
    return (one + two) + (three + four)


def _bands(view: View, split: str, floor: float) -> tuple[Float64[Tensor, "b 4"], Float64[Tensor, "b 4 gh gw"]]:
    """What each band may spend, as a share of 1, and where: its energy times relevance, of mass 1, over a floor."""
    energy = orientation_energy(view.pixels("frequency")).flatten(0, 1)
    # Energy has a floor of its own, or relevance would count for nothing where a band is silent.
    relevance = view.relevance.repeat_interleave(4, 0)
    density = with_floor(normalise(with_floor(normalise(energy), floor) * relevance), floor)
    if split == "energy":
        shares = normalise(total_mass(energy).reshape(-1, 1, 4))[:, 0]  # no energy at all: equal
    else:
        asked = view.query if isinstance(view.query, Sequence) and not isinstance(view.query, str) else [view.query]
        favoured = [favoured_band(query) for query in asked] if split == "query" else [None]
        shares = _query_shares(favoured, view.device).expand(view.batch, -1)
    return shares, density.unflatten(0, (-1, 4))


def favoured_band(query: Any) -> int | None:
    """The band that a question is about: 0 for text, whose lines run across the page, 2 for buildings, whose edges
    stand upright, None for all else, an embedding included. Text on a building is text.

    >>> favoured_band("What does the sign say?"), favoured_band("How tall is the church?"), favoured_band("Any dogs?")
    (0, 2, None)
    """
    words = query.lower() if isinstance(query, str) else ""
    if _TEXT.search(words):
        return HORIZONTAL
    return VERTICAL if _BUILDING.search(words) else None


def _query_shares(favoured: Sequence[int | None], device: torch.device) -> Float64[Tensor, "b 4"]:
    band = torch.arange(4, device=device)
    weights = {own: torch.where(band == (-1 if own is None else own), FAVOURED, OTHER).double() for own in favoured}
    return normalise(torch.stack([weights[own] for own in favoured])[:, None])[:, 0]


def band_budgets(shares: Float64[Tensor, "b 4"], budget: int, leaves: int) -> Int64[Tensor, "b 4"]:
    """Shares of 1 as tokens, by largest remainder. A band gets 16 at least; the others give in proportion to what they
    have above that.

    >>> band_budgets(torch.tensor([[128.0, 32.0, 32.0, 32.0]], dtype=torch.float64) / 224, 273, 4096)
    tensor([[156,  39,  39,  39]])
    """
    above = (shares * budget - MIN_TREE_BUDGET).clamp(min=0)
    return share_tokens(above, torch.full((4,), leaves, device=shares.device), budget, each=MIN_TREE_BUDGET)


# ---------------------------------------------------------------------------------------------------------- rectangles


def stretch_cells(
    cells: Float64[Tensor, "b n 4"],
    band: Int64[Tensor, "b n"],
    is_context: Bool[Tensor, "b n"],
    stretch: str,
    grid: Size,
    size: Size,
) -> tuple[Float64[Tensor, "b n 4"], Float[Tensor, "b n"]]:
    """Tree cells as rectangles of the same area inside the image, stretched with their band: boxes and angles.

    Boxes are in leaf units like the cells, unturned; shape, angle and bounds are right in pixels of the image, also
    where leaves are not square there.

    >>> cell, band = torch.tensor([[[4.0, 4.0, 8.0, 8.0]]]).double(), torch.tensor([[0]])
    >>> stretch_cells(cell, band, torch.tensor([[False]]), "along", (16, 16), (256, 256))[0]
    tensor([[[3.1716, 4.5858, 8.8284, 7.4142]]], dtype=torch.float64)
    """
    leaf = [side / count for side, count in zip(size, grid, strict=True)]
    centre = [(cells[..., i] + cells[..., i + 2]) / 2 * leaf[i] for i in (0, 1)]
    sides = [(cells[..., i + 2] - cells[..., i]) * leaf[i] for i in (0, 1)]
    half = (sides[0] * sides[1]).sqrt() / 2
    long = torch.where(is_context, half * 2**0.25, half * 2**0.5)
    short = half * half / long

    direction = (band + (2 if stretch == "across" else 0)) % 4  # of the long side, in steps of 45 degrees
    upright, diagonal = direction == 2, direction % 2 == 1
    halves = [torch.where(upright, short, long), torch.where(upright, long, short)]
    angle = torch.where(diagonal, 2 - direction, 0).float() * (math.pi / 4)
    reach = [torch.where(diagonal, (long + short) * 0.5**0.5, own) for own in halves]  # half of the bounding box

    for i in (0, 1):
        near = reach[i].clamp(max=size[i] / 2)
        move = (near - centre[i]).clamp(min=0) - (centre[i] + near - size[i]).clamp(min=0)
        limit = torch.where(is_context, 0.0, sides[i] / 4)
        centre[i] = centre[i] + torch.maximum(torch.minimum(move, limit), -limit)
    room = [torch.minimum(c, side - c) for c, side in zip(centre, size, strict=True)]
    shrink = torch.minimum(room[0] / reach[0], room[1] / reach[1]).clamp(max=1)
    low = [((c - own * shrink) / unit).clamp(min=0) for c, own, unit in zip(centre, halves, leaf, strict=True)]
    high = [
        ((c + own * shrink) / unit).clamp(max=count)
        for c, own, unit, count in zip(centre, halves, leaf, grid, strict=True)
    ]
    return torch.stack((*low, *high), dim=-1), angle


# ---------------------------------------------------------------------------------------------------- the allocator


@register(
    "frequency",
    "a tree for each of four stroke orientations, its cells stretched 2:1",
    minimum=4 * MIN_TREE_BUDGET,
    needs_pixels=True,
    turned=True,
    density=mixed_density,
    trains="the relevance that weighs the bands, through HierarchicalAllocator.soft",
)
def frequency(
    view: View,
    budget: int,
    *,
    seed: int = 0,
    split: str = "energy",
    stretch: str = "along",
    floor: float = FLOOR,
) -> Allocation:
    """`split` shares the budget over the bands by their energy, by the kind of question, or equally; `stretch` lays the
    long side of a cell along the strokes or across them. With "none" the four densities, weighted by the shares of
    their bands, are spent by one tree of squares, since four of them would repeat each other's cells.

    A cell's score is the relevance in its square of the tree.
    """
    _check("split", split, SPLITS)
    _check("stretch", stretch, STRETCHES)
    check_leaves(view.grid, budget)
    if stretch == "none":
        return HierarchicalAllocator(lambda view: mixed_density(view, split, floor), budget, validate=False)(view)
    shares, densities = _bands(view, split, floor)
    counts = band_budgets(shares, budget, view.leaves)

    gw, gh = view.grid
    tree = tree_over(gw, gh, root_level(gw, gh, MIN_TREE_BUDGET), view.device)  # roots that the poorest band can split
    levels = mass_pyramid(densities.flatten(0, 1), tree.root_level)
    masses = tree.concatenate(levels, lowest=1)[:, tree.flat[: tree.internal]]
    cut = cut_tree(tree, masses, budget - 3 * MIN_TREE_BUDGET, own=counts.reshape(-1, 1))

    # The filled ones of the four bands side by side, moved to the front: exactly `budget` of them in every image.
    nodes, is_context, filled = (
        own.unflatten(0, (view.batch, 4)).flatten(1) for own in (cut.nodes, cut.is_context, cut.filled)
    )
    kept = torch.sort(~filled, dim=1, stable=True).indices[:, :budget]
    nodes, is_context, band = nodes.gather(1, kept), is_context.gather(1, kept), kept // cut.nodes.shape[1]
    cells, angle = stretch_cells(tree.boxes(nodes), band, is_context, stretch, view.grid, view.image_size)
    relevance = tree.concatenate(mass_pyramid(view.relevance, tree.root_level)).gather(1, tree.flat[nodes])
    return make_allocation(view, cells, "rotated", is_context=is_context, scores=relevance, angle=angle)


def _check(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise AllocatorError(f"frequency has no {name}={value!r}: choose from {', '.join(choices)}")
