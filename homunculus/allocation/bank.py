"""One budget for a whole batch: images bid for splits with their mass, and each is sure of a floor.

Every image is a tree and has its splits in its own best-first order. The bank reserves a floor for each image and buys
splits with all the rest, the highest bid first, whoever makes it, until the next one is too dear:

  a bid is the mass of the cell times the image's weight, which is the mass of its density beside the others';
  a price is what the split takes its image beyond the floor: nothing inside it, 1 to 3 tokens outside.

Bids never rise along an image's own order, so a prefix of every image's list is bought, by one stable sort over the
nodes of all images. Of equal bids the image that has split less goes first, then the earlier one. What is left, two
tokens at most, goes to the next bidder. An image's tokens that no split fits become context, as in allocation/tree.py.
So the batch gets exactly its total and every image its floor; and a single image gets what `foveated-pyramid` gives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.hierarchical import foveated_density
from homunculus.allocation.hiz import (
    LEVEL,
    NO_NODE,
    NOTHING,
    Nodes,
    best_nodes,
    children_of,
    cost_counts,
    is_among,
    read_levels,
    root_nodes,
)
from homunculus.allocation.registry import register
from homunculus.allocation.tree import NOWHERE, most_splits, spend, tree_level
from homunculus.density import FLOOR, total_mass
from homunculus.errors import AllocatorError
from homunculus.geometry import MIN_TREE_BUDGET
from homunculus.pyramid import mass_pyramid
from homunculus.relevance.gaze import first_gaze, image_centre
from homunculus.structures import CELL_FIELDS, PackedAllocation, View

LEAST_SPLIT = 6  # tokens beyond the roots: at least two splits, so that two tokens left over find a context cell each
UNAFFORDABLE = 1 << 32
IMAGE = LEVEL + 6  # where an image's number goes beside a node


@register(
    "token-bank",
    "one budget for the whole batch: trees bid for tokens, each sure of a floor",
    minimum=MIN_TREE_BUDGET,
    tiles=True,
    uses_gaze=True,
    batchwide=True,
    density=foveated_density,
    trains="the density, through HierarchicalAllocator.soft (allocation/soft.py)",
)
def token_bank(
    view: View | Sequence[View],
    budget: int,
    *,
    seed: int = 0,
    share: str = "mass",
    floor_tokens: int | None = None,
    e0: float = 3.0,
    fixation_share: float = 0.5,
    floor: float = FLOOR,
    depth: int | None = None,
) -> PackedAllocation:
    """`budget` tokens an image on average, exactly; `view` is a batch, or several where the images differ in size.

    Each image gets `floor_tokens` at least (a quarter of the budget; never fewer than its roots and two splits take).
    By default a density of twice the mass bids twice as much; `share="equal"` lets every image bid with a mass of 1.

    >>> densities = torch.ones(3, 64, 64, dtype=torch.float64) * torch.tensor([1.0, 2.0, 6.0])[:, None, None]
    >>> token_bank(View(densities, (1024, 1024)), 100).counts.tolist()
    [25, 64, 211]
    """
    views = [view] if isinstance(view, View) else list(view)
    floor_tokens = _checked_floor(floor_tokens, budget)
    trees = []
    for own in views:
        density = foveated_density(own, e0, fixation_share, floor)
        trees.append(Bidder(own, mass_pyramid(density, tree_level(own.grid, budget, depth)), floor_tokens))
    total = budget * sum(tree.batch for tree in trees)
    spare = total - sum(tree.batch * tree.floor for tree in trees)

    # Every image's own list [B, K]: one node more than it can ever split, so that the next bidder is always in it.
    lists = [best_nodes(tree.masses, tree.most_splits(tree.floor + spare) + 1) for tree in trees]
    longest = max(nodes.shape[1] for _, nodes, _ in lists)
    mass, nodes = (
        torch.cat([F.pad(own[i], (0, longest - own[i].shape[1]), value=nothing) for own in lists])
        for i, nothing in ((0, NOTHING), (1, NO_NODE))
    )
    gw, gh, roots, floors = _host_knowledge(trees)
    parts = Nodes.of(nodes)
    cost = torch.where(nodes >= 0, parts.cost(gw, gh), UNAFFORDABLE)
    bids = torch.where(nodes >= 0, mass * image_weights(views, share), NOTHING)
    tokens, queue = auction(bids, cost, floors - roots, spare)
    split, context = spend(cost, parts.level, tokens)

    # From here on all images in one row. What was bought is at the front of the queue.
    bought = queue[: min(len(queue), _most_bought(trees, total))]
    image = bought % len(nodes)
    is_split, is_kept, node = (field.T.flatten()[bought] for field in (split, context, nodes))
    row = _in_order(trees, torch.where(is_split, node, NO_NODE), is_kept, image, gw, gh, total)
    return _packed(trees, row, (roots + tokens).flatten())


def _checked_floor(floor_tokens: int | None, budget: int) -> int:
    if floor_tokens is None:
        return budget // 4
    if isinstance(floor_tokens, bool) or not isinstance(floor_tokens, int) or floor_tokens < 0:
        raise AllocatorError(f"floor_tokens is a whole number of tokens, 0 to {budget}, got {floor_tokens!r}")
    if floor_tokens > budget:
        raise AllocatorError(
            f"token-bank floor above budget/B: floor_tokens={floor_tokens} for every image, and the bank holds "
            f"{budget} for each: lower the floor or raise the budget"
        )
    return floor_tokens


@dataclass(frozen=True, eq=False)
class Bidder:
    """The images of one view: their trees, and what the host knows of each of them."""

    view: View
    masses: Sequence[Float64[Tensor, "b _h _w"]]
    floor_tokens: int

    @property
    def batch(self) -> int:
        return self.view.batch

    @property
    def level(self) -> int:
        return len(self.masses) - 1

    @property
    def roots(self) -> int:
        return self.masses[-1].shape[1] * self.masses[-1].shape[2]

    @property
    def floor(self) -> int:
        """What each image is sure of: enough for its roots and two splits, which the budget always is."""
        return max(self.floor_tokens, self.roots + LEAST_SPLIT)

    def most_splits(self, tokens: int) -> int:
        """How often one image can split with so many tokens, less than all of its internal nodes."""
        counts = cost_counts(self.view.grid, self.level)
        return min(most_splits(counts, tokens - self.roots), sum(counts) - 1)


def _host_knowledge(trees: Sequence[Bidder]) -> tuple[Int64[Tensor, "b 1"], ...]:
    """Columns and rows of the grid, roots and floor of every image."""
    known = [(*tree.view.grid, tree.roots, tree.floor) for tree in trees]
    device = trees[0].view.device
    return tuple(
        torch.cat([torch.full((tree.batch, 1), own[i], device=device) for tree, own in zip(trees, known, strict=True)])
        for i in range(4)
    )


def _most_bought(trees: Sequence[Bidder], total: int) -> int:
    """A bound on how many splits of all images so many tokens buy."""
    counts = [tree.batch * n for tree in trees for n in cost_counts(tree.view.grid, tree.level)]
    by_cost = [sum(counts[cost::4]) for cost in range(4)]
    return most_splits(by_cost, total - sum(tree.batch * tree.roots for tree in trees))


def image_weights(views: Sequence[View], share: str = "mass") -> Float64[Tensor, "b 1"]:
    """What each image's masses of 1 are worth beside the others': the total of its density, in units of the peak.

    >>> view = View(torch.tensor([[[1.0, 1.0]], [[0.0, 4.0]]], dtype=torch.float64), (32, 16))
    >>> image_weights([view]).tolist(), image_weights([view], "equal").tolist()
    ([[0.5], [1.0]], [[1.0], [1.0]])
    """
    if share not in ("mass", "equal"):
        raise AllocatorError(f"share must be 'mass' or 'equal', got '{share}'")
    if share == "equal":
        return torch.cat([torch.ones_like(view.density[:, 0, :1]) for view in views])
    peak = torch.stack([view.density.amax() for view in views]).amax()
    peak = torch.where(peak > 0, peak, 1.0)
    weights = torch.cat([total_mass(view.density / peak)[:, 0] for view in views])
    return torch.where(weights.amax() > 0, weights, 1.0)  # nobody has anything to say: all alike


def auction(
    bids: Float64[Tensor, "b k"], cost: Int64[Tensor, "b k"], floors: Int64[Tensor, "b 1"], spare: int
) -> tuple[Int64[Tensor, "b 1"], Int64[Tensor, "b*k"]]:
    """The tokens each image spends on splitting, and the queue: places in `[K, B]`, first served first.

    Bids do not rise along a row. Each image may spend its floor without asking; beyond it, `spare` tokens are shared.

    >>> bids = torch.tensor([[0.9, 0.5, 0.4], [0.8, 0.2, 0.1]], dtype=torch.float64)
    >>> tokens, _ = auction(bids, torch.full((2, 3), 3), floors=torch.tensor([[3], [4]]), spare=7)
    >>> tokens.tolist()  # 0.5 and 0.4 cost 3 each; the next bidder, 0.2, would need two more and gets the one left
    [[9], [5]]
    """
    spent = cost.cumsum(1)
    price = torch.maximum(spent, floors) - torch.maximum(spent - cost, floors)
    place_in_line = torch.where(spent <= floors, torch.inf, bids)
    queue = torch.sort(place_in_line.T.flatten(), descending=True, stable=True).indices
    bought = price.T.flatten()[queue].cumsum(0) <= spare  # a prefix, since no price is negative
    won = torch.zeros_like(bought).scatter_(0, queue, bought).unflatten(0, bids.T.shape).T
    next_bidder = queue.gather(0, bought.sum().clamp(max=len(queue) - 1)[None]) % len(bids)
    left = spare - (price * won).sum()
    gets_it = (torch.arange(len(bids), device=bids.device) == next_bidder)[:, None]
    return torch.maximum((cost * won).sum(1, keepdim=True), floors) + left * gets_it, queue


class Row(NamedTuple):
    """The cells of all images, one image after the other, each in canonical order."""

    nodes: Nodes  # [M]
    is_context: Bool[Tensor, "m"]
    image: Int64[Tensor, "m"]


def _in_order(
    trees: Sequence[Bidder],
    split: Int64[Tensor, "p"],
    is_kept: Bool[Tensor, "p"],
    image: Int64[Tensor, "p"],
    gw: Int64[Tensor, "b 1"],
    gh: Int64[Tensor, "b 1"],
    total: int,
) -> Row:
    """The tokens that these splits leave: roots and children that are not split themselves, and split cells kept."""
    gw, gh = gw.flatten(), gh.flatten()
    children = children_of(split, *Nodes.of(split).below(gw[image], gh[image]))
    roots = [root_nodes(tree.masses).flatten() for tree in trees]
    cells = torch.cat((*roots, children))
    counts = torch.cat([torch.full((tree.batch,), tree.roots, device=cells.device) for tree in trees])
    of_roots = torch.arange(len(cells) - len(children), device=cells.device)
    of_roots = torch.searchsorted(counts.cumsum(0), of_roots, right=True)
    cell_image = torch.cat((of_roots, image.repeat(4)))
    token = (cells >= 0) & ~is_among(cells + (cell_image << IMAGE), split + (image << IMAGE))

    everything, owner = torch.cat((split, cells)), torch.cat((image, cell_image))
    is_context = F.pad(is_kept, (0, len(cells)))
    key = Nodes.of(everything).reading_key(gw[owner], gh[owner], is_context)
    order = torch.where(torch.cat((is_kept, token)), key, NOWHERE).sort().indices[:total]
    order = order[owner[order].sort(stable=True).indices]
    return Row(Nodes.of(everything[order]), is_context[order], owner[order])


def _packed(trees: Sequence[Bidder], row: Row, counts: Int64[Tensor, "b"]) -> PackedAllocation:
    fields: dict[str, Tensor] = {}
    first = 0
    for tree in trees:
        image = row.image - first
        mine = (image >= 0) & (image < tree.batch)
        for name, value in _describe(tree, row, image.clamp(0, tree.batch - 1)).items():
            others = fields.get(name, value)
            fields[name] = torch.where(mine if value.ndim == 1 else mine[:, None], value, others)
        first += tree.batch
    views = [tree.view for tree in trees]
    gazes = [first_gaze(own.fixations, image_centre(own.batch, own.image_size, own.device)) for own in views]
    is_full = all(not (tree.view.grid[0] | tree.view.grid[1]) & ((1 << tree.level) - 1) for tree in trees)
    return PackedAllocation(
        **fields,
        gaze=torch.cat(gazes).float(),
        offsets=F.pad(counts.cumsum(0), (1, 0)).int(),
        image_sizes=tuple(own.image_size for own in views for _ in range(own.batch)),
        grids=tuple(own.grid for own in views for _ in range(own.batch)),
        leaf=views[0].leaf,
        kind="dyadic" if is_full else "box",
    )


def _describe(tree: Bidder, row: Row, image: Int64[Tensor, "m"]) -> dict[str, Tensor]:
    """The fields of all cells as if they were of this view, each cell as an image of its own."""
    view = tree.view
    gw, gh = view.grid
    per_cell = View(
        view.density.new_zeros(()).expand(len(image), gh, gw),
        view.image_size,
        view.leaf,
        fixations=None if view.fixations is None else view.fixations[image],
    )
    shares = read_levels(mass_pyramid(view.relevance, tree.level), row.nodes, image)
    cells = torch.stack(row.nodes.edges(gw, gh), dim=-1).double()[:, None]
    described = make_allocation(
        per_cell, cells, "box", is_context=row.is_context[:, None], scores=shares[:, None], in_order=True
    )
    return {name: getattr(described, name)[:, 0] for name in CELL_FIELDS}
