"""The tree of allocation/tree.py without its tables: expanded from the roots, level by level, where it can be chosen.

At most k nodes are ever split, and a child never outweighs its parent nor comes before it in a tie. So a node that is
not among the k best seen down to its own level is not split, and neither is anything below it: that whole subtree is
never visited. Each level looks at 4k nodes at most, however large the image, where the plain tree sorts all of them
(for rendering the same idea is called hierarchical z). No threshold is involved, and the result is the same to the
last tie: candidates stand behind the coarser ones they are compared with, and among themselves in spreading order.

What a node is follows from (level, x, y) by arithmetic: its box, its children, the price of its split, its place in
reading order. Only the mass pyramid still costs a pass over the leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.foveal import allocate_at
from homunculus.allocation.hierarchical import HierarchicalAllocator, foveated_density
from homunculus.allocation.registry import register
from homunculus.allocation.tree import NOWHERE, most_splits, spend, tree_level
from homunculus.density import FLOOR
from homunculus.geometry import MIN_TREE_BUDGET, Size, cells_across, spread_order
from homunculus.pyramid import Reduce, mass_pyramid
from homunculus.structures import Allocation, View

Side = int | Int64[Tensor, "*#shape"]  # of a grid: one for all nodes, or a tensor that broadcasts against them

# A node is one integer: its level, then y and x in cells of that level.
LEVEL, ROW = 40, 20
PLACE, COLUMN = (1 << LEVEL) - 1, (1 << ROW) - 1
NO_NODE = -1 << 62  # at place 0, so that reading there does no harm


class Nodes(NamedTuple):
    """Nodes taken apart: cell (x, y) among the cells of its level, counted from the top-left."""

    level: Int64[Tensor, "*shape"]
    x: Int64[Tensor, "*shape"]
    y: Int64[Tensor, "*shape"]

    @staticmethod
    def of(code: Int64[Tensor, "*shape"]) -> "Nodes":
        """The parts of each node.

        >>> [part.item() for part in Nodes.of(torch.tensor(2 << LEVEL | 5 << ROW | 7))]
        [2, 7, 5]
        """
        return Nodes((code >> LEVEL).clamp(min=0), code & COLUMN, (code & PLACE) >> ROW)

    def edges(self, gw: Side, gh: Side) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x0, y0, x1, y1 in leaves, clipped to the grid."""
        right, below = (self.x + 1) << self.level, (self.y + 1) << self.level
        return self.x << self.level, self.y << self.level, right.clamp(max=gw), below.clamp(max=gh)

    def below(self, gw: Side, gh: Side) -> tuple[Tensor, Tensor, Tensor]:
        """The level of the children, and how many columns and rows it has."""
        level = (self.level - 1).clamp(min=0)
        return level, -(-gw >> level), -(-gh >> level)

    def cost(self, gw: Side, gh: Side) -> Int64[Tensor, "*shape"]:
        """Tokens a split adds: children that touch the grid, less one."""
        _, columns, rows = self.below(gw, gh)
        return (columns - 2 * self.x).clamp(max=2) * (rows - 2 * self.y).clamp(max=2) - 1

    def reading_key(self, gw: Side, gh: Side, is_context: Bool[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Integers in canonical order: context by area, then everything by centre, y before x."""
        x0, y0, x1, y1 = self.edges(gw, gh)
        centre = (y0 + y1) * (2 * gw + 1) + (x0 + x1)  # in half leaves
        area = (x1 - x0) * (y1 - y0)
        return centre - is_context * (area * ((2 * gw + 1) * (2 * gh + 1)))


def children_of(code: Int64[Tensor, "*b m"], level: Side, columns: Side, rows: Side) -> Int64[Tensor, "*b 4*m"]:
    """All first children, then all second ones and so on; `NO_NODE` where one is outside the grid or has no parent.

    Their `level` and the size of its grid may be tensors like `code`. Of the children x changes slowest, so where the
    parents are in spreading order, the children are too.
    """
    slot = torch.arange(4, device=code.device)
    child = ((code & PLACE) << 1)[..., None, :] + ((slot & 1) << ROW | slot >> 1)[:, None]
    level, columns, rows = (n[..., None, :] if isinstance(n, Tensor) else n for n in (level, columns, rows))
    exists = (code >= 0)[..., None, :] & (child & COLUMN < columns) & (child >> ROW < rows)
    return torch.where(exists, child + (level << LEVEL), NO_NODE).flatten(-2)


def cost_counts(grid: Size, root_level: int) -> tuple[int, int, int, int]:
    """How many splits of the tree over a grid cost 0, 1, 2, 3 tokens.

    >>> cost_counts((64, 64), 4), cost_counts((5, 3), 1)
    ((0, 0, 0, 1360), (1, 3, 0, 2))
    """
    none = one = three = 0
    for level in range(root_level):
        (pairs_x, odd_x), (pairs_y, odd_y) = (divmod(cells_across(side, level), 2) for side in grid)
        none += odd_x * odd_y
        one += pairs_x * odd_y + odd_x * pairs_y
        three += pairs_x * pairs_y
    return none, one, 0, three


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # the tables outlive whoever asked for them first
def level_nodes(
    columns: int, rows: int, level: int, device: torch.device | str = "cpu"
) -> tuple[Int64[Tensor, "cells"], Int64[Tensor, "cells"]]:
    """All cells of a level in spreading order: their places, row by row, and the nodes."""
    place = spread_order(columns, rows, device)
    return place, (level << LEVEL) + (place // columns << ROW) + place % columns


def root_nodes(masses: Sequence[Float64[Tensor, "b _h _w"]]) -> Int64[Tensor, "b roots"]:
    """The roots of every image, in spreading order, given the masses of all levels."""
    b, h, w = masses[-1].shape
    return level_nodes(w, h, len(masses) - 1, masses[-1].device)[1].expand(b, -1)


def read_levels(
    levels: Sequence[Float64[Tensor, "b _h _w"]], nodes: Nodes, image: Int64[Tensor, "*#shape"]
) -> Float64[Tensor, "*shape"]:
    """The value of each node in its own level of a pyramid, `image` being its place in the batch."""
    values = torch.zeros((), dtype=levels[0].dtype, device=levels[0].device)
    for level, values_here in enumerate(levels):
        b, h, w = values_here.shape
        place = (image * h + nodes.y) * w + nodes.x
        read = values_here.flatten()[place.clamp(0, b * h * w - 1)]
        values = torch.where(nodes.level == level, read, values)
    return values


def best_nodes(
    masses: Sequence[Float64[Tensor, "b _h _w"]], count: int
) -> tuple[Float64[Tensor, "b count"], Int64[Tensor, "b count"], Int64[Tensor, "b"]]:
    """The first `count` internal nodes by mass (ties: the coarser, then spread): masses, nodes, and how many were seen.

    `masses` are those of levels 0, 1, ... up to the roots, with at least `count` internal nodes among them.

    >>> mass, nodes, visited = best_nodes(mass_pyramid(torch.eye(64, dtype=torch.float64)[None], 4), 6)
    >>> mass.tolist(), Nodes.of(nodes).level.tolist(), visited.tolist()  # of 1360
    ([[16.0, 16.0, 16.0, 16.0, 8.0, 8.0]], [[4, 4, 4, 4, 3, 3]], [48])
    """
    device = masses[0].device
    # As long as the nodes above a level are no more than `count`, all of them are kept and all of it is looked at.
    level, known = len(masses) - 1, 0
    while level > 1 and known + masses[level][0].numel() <= count:
        known, level = known + masses[level][0].numel(), level - 1
    whole = [(masses[i], *level_nodes(*masses[i].shape[:0:-1], i, device)) for i in range(level, len(masses))][::-1]
    nodes = torch.cat([own for _, _, own in whole]).expand(len(masses[0]), -1)
    mass = torch.cat([levels.flatten(1)[:, place] for levels, place, _ in whole], dim=1)
    visited = torch.full_like(nodes[:, 0], nodes.shape[1])
    while True:
        # The coarser come first, each level in spreading order, so a stable sort breaks ties as the whole tree does.
        ranked, order = torch.sort(mass, dim=1, descending=True, stable=True)
        order = order[:, :count]
        best_mass, best = ranked[:, :count], nodes.gather(1, order)
        if level == 1:
            return best_mass, best, visited
        # Back in their old order: first those known from coarser levels, then what is to be expanded.
        order = order.sort(dim=1).values
        if device.type == "cpu":  # asking costs nothing here: fewer empty places, and an early out
            coarser = int((order < known).sum(1).min())
        else:
            coarser = max(0, order.shape[1] - (nodes.shape[1] - known))
        if coarser == order.shape[1]:
            return best_mass, best, visited
        parents = F.pad(nodes[:, known:], (known, 0), value=NO_NODE).gather(1, order[:, coarser:])
        level = level - 1
        rows, columns = masses[level].shape[1:]
        frontier = children_of(parents, level, columns, rows)
        exists = frontier >= 0
        place = (frontier & COLUMN) + ((frontier & PLACE) >> ROW) * columns
        seen = torch.where(exists, masses[level].flatten(1).gather(1, place), NOTHING)
        visited, known = visited + exists.sum(1), best.shape[1]
        nodes, mass = torch.cat((best, frontier), dim=1), torch.cat((best_mass, seen), dim=1)


NOTHING = -1.0  # lighter than any mass


@dataclass(frozen=True)
class HiZCut:
    """N token nodes of each image, in canonical order, and how many nodes of the tree were looked at."""

    nodes: Nodes  # [B, N]
    is_context: Bool[Tensor, "b n"]
    visited: Int64[Tensor, "b"]


def hi_z_cut(masses: Sequence[Float64[Tensor, "b _h _w"]], budget: int, context_level: int | None = None) -> HiZCut:
    """What `tree.cut_tree` returns, from the masses of levels 0, 1, ... up to the roots; see there.

    >>> cut = hi_z_cut(mass_pyramid(torch.eye(64, dtype=torch.float64)[None], 4), budget=100)
    >>> torch.bincount(cut.nodes.level[0]).tolist(), cut.visited.tolist()  # of 1360
    ([0, 64, 16, 8, 12], [192])
    """
    gh, gw = masses[0].shape[1:]
    roots = root_nodes(masses)
    tokens = budget - roots.shape[1]
    _, nodes, visited = best_nodes(masses, most_splits(cost_counts((gw, gh), len(masses) - 1), tokens))
    parts = Nodes.of(nodes)
    split, context = spend(parts.cost(gw, gh), parts.level, tokens, context_level)
    split_nodes = torch.where(split, nodes, NO_NODE)
    cells = torch.cat((roots, children_of(split_nodes, *parts.below(gw, gh))), dim=1)
    token = (cells >= 0) & ~is_among(cells, split_nodes)

    everything, chosen = torch.cat((nodes, cells), dim=1), torch.cat((context, token), dim=1)
    is_context = F.pad(context, (0, cells.shape[1]))
    key = Nodes.of(everything).reading_key(gw, gh, is_context)
    order = torch.where(chosen, key, NOWHERE).sort(dim=1).indices[:, :budget]
    return HiZCut(Nodes.of(everything.gather(1, order)), is_context.gather(1, order), visited)


def is_among(values: Int64[Tensor, "*b n"], others: Int64[Tensor, "*b m"]) -> Bool[Tensor, "*b n"]:
    """Which values occur among the others of their row.

    >>> is_among(torch.tensor([[1, 2, 3]]), torch.tensor([[3, 1, 9]]))
    tensor([[ True, False,  True]])
    """
    ordered = others.sort(dim=-1).values
    place = torch.searchsorted(ordered, values.contiguous()).clamp(max=others.shape[-1] - 1)
    return ordered.gather(-1, place) == values


def expand(
    view: View,
    masses: Sequence[Float64[Tensor, "b _h _w"]],
    budget: int,
    context_level: int | None = None,
) -> Allocation:
    """The allocation of a tree, given by the masses of its levels 0, 1, ... up to the roots.

    >>> view = View(torch.rand(1, 64, 64, dtype=torch.float64), image_size=(1024, 1024))
    >>> plain = HierarchicalAllocator(lambda view: view.density, budget=100)(view)
    >>> torch.equal(expand(view, mass_pyramid(view.density, 5), 100).boxes, plain.boxes)
    True
    """
    gw, gh = view.grid
    level = len(masses) - 1
    cut = hi_z_cut(masses, budget, context_level)
    image = torch.arange(view.batch, device=view.device)[:, None]
    return make_allocation(
        view,
        torch.stack(cut.nodes.edges(gw, gh), dim=-1).double(),
        "dyadic" if not (gw | gh) & ((1 << level) - 1) else "box",
        is_context=cut.is_context,
        scores=read_levels(mass_pyramid(view.relevance, level), cut.nodes, image),
        in_order=True,
    )


@register(
    "hi-z",
    "the default's tree, visited only where it can still be chosen",
    minimum=MIN_TREE_BUDGET,
    tiles=True,
    uses_gaze=True,
    density=foveated_density,
    trains="the density, through HierarchicalAllocator.soft (allocation/soft.py)",
)
def hi_z(
    view: View,
    budget: int,
    *,
    seed: int = 0,
    e0: float = 3.0,
    foveal_share: float | None = None,
    fixation_share: float = 0.5,
    floor: float = FLOOR,
    depth: int | None = None,
    context_level: int | None = None,
    reduce: Reduce = "sum",
) -> Allocation:
    """The cells of `foveated-pyramid`, option for option; sooner on a CPU with many leaves or no tables yet.

    A GPU sorts the whole tree in less time than these many small steps take to launch.
    """
    HierarchicalAllocator(foveated_density, budget, depth, context_level, reduce)  # refuses bad options
    level = tree_level(view.grid, budget, depth)

    def tree(e0: float | Tensor) -> Allocation:
        density = foveated_density(view, e0, fixation_share, floor)
        return expand(view, mass_pyramid(density, level, reduce), budget, context_level)

    return allocate_at(tree, view, e0, foveal_share, finds_its_gaze=False)
