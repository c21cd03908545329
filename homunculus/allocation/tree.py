"""Exact-budget best-first splitting of a quadtree is one stable sort.

Splitting a cell replaces 1 token by its children, 4 of them or fewer at a clipped border. Best-first splitting always
takes the heaviest cell and would need a heap per image. It does not: a cell's mass is the sum (or maximum) of a
nonnegative density over its area, so a child never outweighs its parent, and the first k nodes of all nodes sorted by
mass are closed under ancestors. Hence, for a whole batch at once:

  1. pool the density to every level;
  2. list the internal nodes, coarse levels first, each level in bit-reversed Morton order, and sort that list by mass,
     descending and stably: ties go to the coarser node, then to the one that spreads leftovers over the image;
  3. split the longest prefix of the list whose cost fits; a cell whose parent is split and that is not is a token;
  4. at most 2 tokens are left over (a split costs 3). They become context: the first split cells, coarser then heavier,
     keep a token of their own. `context_level` asks for more of them: every split cell of at least that level.

The result equals that of the heap (allocation/heap.py) to the last tie. It is exact, gap-free and deterministic, and
the work after the sort depends on the budget only. Over a grid whose sides are multiples of the roots' side all cells
are full and all splits cost 3; any other grid is covered from the top-left and its border cells are clipped.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.geometry import Size, cells_across, root_level, spread_order


@dataclass(frozen=True, eq=False)
class Tree:
    """What depends only on the grid: the nodes of a quadtree that touch it, and how they hang together.

    Nodes are numbered coarse levels first, each level in tie-breaking order: `internal` of them can be split, the rest
    are leaves. `children` point to node `count`, which does not exist, where a clipped cell has none.
    """

    grid: Size
    root_level: int
    roots: int
    internal: int
    count: int
    cost_counts: tuple[int, ...]  # how many splits cost 0, 1, 2, 3 tokens
    level: Int64[Tensor, "nodes"]
    corner: Int64[Tensor, "nodes 2"]  # top-left, in cells of the node's own level
    flat: Int64[Tensor, "nodes"]  # place in the concatenated row-major levels, coarse first
    children: Int64[Tensor, "internal 4"]
    cost: Int64[Tensor, "internal"]  # tokens a split adds: children that touch the image, less one
    rank: Int64[Tensor, "nodes"]  # place in reading order: by centre, y before x
    context_rank: Int64[Tensor, "internal"]  # likewise, but coarse to fine first
    from_rank: Int64[Tensor, "nodes"]
    from_context_rank: Int64[Tensor, "internal"]

    @property
    def is_full(self) -> bool:
        """Whether no cell is clipped."""
        return not (self.grid[0] | self.grid[1]) & ((1 << self.root_level) - 1)

    def level_size(self, level: int) -> Size:
        """Cells of that level across and down."""
        return cells_across(self.grid[0], level), cells_across(self.grid[1], level)

    def boxes(self, nodes: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape 4"]:
        """The nodes' cells in leaf units, clipped to the grid."""
        side = torch.ones_like(nodes) << self.level[nodes]
        low = self.corner[nodes] * side[..., None]
        high = low + side[..., None]
        x1, y1 = high[..., 0].clamp(max=self.grid[0]), high[..., 1].clamp(max=self.grid[1])
        return torch.cat((low, torch.stack((x1, y1), dim=-1)), dim=-1).double()

    def concatenate(self, levels: Sequence[Float64[Tensor, "b _h _w"]], lowest: int = 0) -> Float64[Tensor, "b places"]:
        """Maps of levels root_level..`lowest` laid end to end, coarse first: `flat` says where a node is."""
        return torch.cat([levels[i].flatten(1) for i in range(self.root_level, lowest - 1, -1)], dim=1)


_trees: OrderedDict[tuple, Tree] = OrderedDict()
_trees_lock = threading.Lock()
MAX_CACHED_NODES = 1 << 21  # some 150 MB of tables


def tree_over(gw: int, gh: int, root_level: int, device: torch.device | str = "cpu") -> Tree:
    """The quadtree over a grid, with roots of the given level. The ones used last are kept, up to a limit in nodes.

    >>> tree = tree_over(64, 64, 4)
    >>> tree.roots, tree.internal, tree.count
    (16, 1360, 5456)
    """
    key = gw, gh, root_level, str(device)
    with _trees_lock:
        tree = _trees.pop(key, None) or _build_tree(gw, gh, root_level, device)
        _trees[key] = tree  # last used, last out
        while len(_trees) > 1 and sum(kept.count for kept in _trees.values()) > MAX_CACHED_NODES:
            _trees.popitem(last=False)
    return tree


@torch.inference_mode(False)  # the tables outlive whoever asked for them first
def _build_tree(gw: int, gh: int, root_level: int, device: torch.device | str) -> Tree:
    widths = torch.tensor([cells_across(gw, level) for level in range(root_level + 1)])
    heights = torch.tensor([cells_across(gh, level) for level in range(root_level + 1)])
    sizes = widths * heights
    starts = sizes.flip(0).cumsum(0).flip(0) - sizes  # of each level among places, coarse first
    coarse_first = range(root_level, -1, -1)
    orders = [spread_order(int(widths[i]), int(heights[i])) for i in coarse_first]
    level = torch.cat([torch.full_like(order, i) for i, order in zip(coarse_first, orders, strict=True)])
    flat = torch.cat([order + starts[i] for i, order in zip(coarse_first, orders, strict=True)])
    in_level = torch.cat(orders)
    corner = torch.stack((in_level % widths[level], in_level // widths[level]), dim=1)
    count, internal = len(level), len(level) - gw * gh

    node_at = _inverse(flat)
    below = level[:internal] - 1
    children = []
    for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x, y = corner[:internal, 0] * 2 + dx, corner[:internal, 1] * 2 + dy
        exists = (x < widths[below]) & (y < heights[below])
        place = starts[below] + y * widths[below] + x
        children.append(torch.where(exists, node_at[place.clamp(max=count - 1)], count))
    child = torch.stack(children, dim=1)
    cost = (child < count).sum(1) - 1

    # Centres in half leaves: integers, so that reading order has no rounding in it.
    low = corner << level[:, None]
    high = torch.minimum(low + (1 << level)[:, None], torch.tensor([gw, gh]))
    centre = low + high
    from_rank = torch.argsort(centre[:, 1] * (2 * gw + 1) + centre[:, 0], stable=True)
    from_context_rank = from_rank[from_rank < internal]
    area = (high - low).prod(1)  # a clipped cell is as coarse as what is left of it
    from_context_rank = from_context_rank[torch.argsort(-area[from_context_rank], stable=True)]

    return Tree(
        grid=(gw, gh),
        root_level=root_level,
        roots=int(sizes[root_level]),
        internal=internal,
        count=count,
        cost_counts=tuple(cost.bincount(minlength=4).tolist()),
        level=level.to(device),
        corner=corner.to(device),
        flat=flat.to(device),
        children=child.to(device),
        cost=cost.to(device),
        rank=_inverse(from_rank).to(device),
        context_rank=_inverse(from_context_rank).to(device),
        from_rank=from_rank.to(device),
        from_context_rank=from_context_rank.to(device),
    )


def _inverse(permutation: Tensor) -> Tensor:
    return torch.empty_like(permutation).scatter_(0, permutation, torch.arange(len(permutation)))


@dataclass(frozen=True)
class Cut:
    """The outcome of splitting: N token nodes of each image, in canonical order.

    Where images have budgets of their own, the first `own` nodes of each count and `filled` marks them.
    """

    nodes: Int64[Tensor, "b n"]
    is_context: Bool[Tensor, "b n"]
    filled: Bool[Tensor, "b n"]


def longest_prefix(tree: Tree, budget: int) -> int:
    """An upper bound, known without asking the device, on how many nodes a budget can split: the cheapest first."""
    return most_splits(tree.cost_counts, budget - tree.roots)


def most_splits(cost_counts: Sequence[int], tokens: int) -> int:
    """How many splits so many tokens buy at most, of those that cost 0, 1, 2, 3 tokens.

    >>> most_splits((1, 4, 0, 100), 10)
    7
    """
    splits = 0
    for cost, nodes in enumerate(cost_counts):
        affordable = min(nodes, tokens // cost) if cost else nodes
        tokens, splits = tokens - affordable * cost, splits + affordable
    return splits


def tree_level(grid: Size, budget: int, depth: int | None = None) -> int:
    """The level of the roots that a budget wants over a grid, or `depth`, if that leaves tokens to split them with.

    >>> tree_level((64, 64), 273), tree_level((64, 64), 273, depth=6)
    (4, 6)
    """
    gw, gh = grid
    level = root_level(gw, gh, budget)  # also refuses budgets no tree can meet
    if depth is None:
        return level
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise AllocatorError(f"depth is a level of cells that can be split, 1 or more, got {depth!r}")
    roots = cells_across(gw, depth) * cells_across(gh, depth)
    deepest = (max(gw, gh) - 1).bit_length()
    if depth > deepest or roots > max(1, budget // 3):
        raise AllocatorError(
            f"depth={depth} makes {roots} roots of {gw}x{gh} leaves for {budget} tokens: "
            f"use a depth from {level} to {deepest}"
        )
    return depth


def best_first_order(masses: Float64[Tensor, "b internal"], length: int) -> Int64[Tensor, "b length"]:
    """The first nodes of the one sorted list: heaviest first, ties in node order (torch.topk would scramble them)."""
    return torch.sort(masses, dim=1, descending=True, stable=True).indices[:, :length]


def cut_tree(
    tree: Tree,
    masses: Float64[Tensor, "b internal"],
    budget: int,
    context_level: int | None = None,
    own: Int64[Tensor, "b 1"] | None = None,
) -> Cut:
    """Split best-first until the budget is spent: N token nodes per image, context tokens included.

    `own` gives each image a budget of its own, at most `budget` and enough for the roots.

    >>> tree = tree_over(8, 8, 2)
    >>> cut = cut_tree(tree, torch.ones(1, tree.internal, dtype=torch.float64), 16)
    >>> tree.level[cut.nodes[0]].tolist()  # equal masses: the roots first, so this is the ordinary 4x4 grid
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    batch, device = masses.shape[0], masses.device
    order = best_first_order(masses, longest_prefix(tree, budget))
    tokens = (budget if own is None else own) - tree.roots
    split, context = spend(tree.cost[order], tree.level[order], tokens, context_level)

    is_split = torch.zeros(batch, tree.internal + 1, dtype=torch.bool, device=device).scatter_(1, order, split)
    roots = torch.arange(tree.roots, device=device).expand(batch, -1)
    children = torch.where(split[..., None], tree.children[order], tree.count).flatten(1)
    cells = torch.cat((roots, children), dim=1)
    token = (cells < tree.count) & ~is_split.gather(1, cells.clamp(max=tree.internal))  # no leaf is split

    # One integer sort puts the tokens in canonical order and everything else behind them.
    context_key = torch.where(context, tree.context_rank[order], NOWHERE)
    cell_key = torch.where(token, tree.internal + tree.rank[cells.clamp(max=tree.count - 1)], NOWHERE)
    key = torch.cat((context_key, cell_key), dim=1).sort(dim=1).values[:, :budget]
    is_context = key < tree.internal
    nodes = torch.where(
        is_context,
        tree.from_context_rank[key.clamp(max=tree.internal - 1)],
        tree.from_rank[(key - tree.internal).clamp(0, tree.count - 1)],
    )
    return Cut(nodes, is_context, key < NOWHERE)


NOWHERE = 1 << 62  # sorts behind every real key


def spend(
    cost: Int64[Tensor, "b k"],
    level: Int64[Tensor, "b k"],
    tokens: int | Int64[Tensor, "b 1"],
    context_level: int | None = None,
) -> tuple[Bool[Tensor, "b k"], Bool[Tensor, "b k"]]:
    """Which nodes of the sorted list, given by cost and level, are split, and which of those keep a token of their own.

    >>> split, context = spend(torch.tensor([[3, 3, 3]]), torch.tensor([[2, 1, 1]]), 7)
    >>> split.tolist(), context.tolist()
    ([[True, True, False]], [[True, False, False]])
    """
    several = cost > 0  # a clipped cell with a single child is that child over again, and no token beside it
    keeps = several & (level >= context_level) if context_level is not None else torch.zeros_like(several)
    split = (cost + keeps).cumsum(1) <= tokens  # a prefix, since no cost is negative
    context = tokens - (cost * split).sum(1, keepdim=True)  # what is left for context tokens
    if context_level is not None:
        # If there are more of these than split cells, one more cell is split, and at most three of the finest kept
        # ones give up their token: the budget is met whatever the density.
        short = context > (split & several).sum(1, keepdim=True)
        after = split.sum(1, keepdim=True)
        split = split | (short & (torch.arange(cost.shape[1], device=cost.device) == after))
        context = tokens - (cost * split).sum(1, keepdim=True)
    most = 2 if context_level is None else cost.shape[1]
    return split, _first_coarsest(level, split & several, context, most)


def _first_coarsest(
    level: Int64[Tensor, "b k"], allowed: Bool[Tensor, "b k"], wanted: Int64[Tensor, "b 1"], most: int
) -> Bool[Tensor, "b k"]:
    """Marks the first `wanted` (never above `most`) of the allowed nodes, the coarser before the heavier."""
    length = level.shape[1]
    place = torch.arange(length, device=level.device)  # in a list sorted by mass, earlier is heavier
    preference = torch.where(allowed, place - level * length, NOWHERE)
    first = preference.topk(min(most, length), dim=1, largest=False, sorted=True).indices
    return torch.zeros_like(allowed).scatter_(1, first, place[: first.shape[1]] < wanted)
