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

On a CUDA device one kernel does all of it (kernels/triton_cut.py), to the same bits.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Float64, Int, Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.geometry import Size, cells_across, root_level, spread_order
from homunculus.kernels.dispatch import use_triton
from homunculus.pyramid import Reduce, mass_pyramid

MAX_FUSED_NODES = 8192  # internal nodes, all of which the kernel holds in registers: 128 x 128 leaves and more


@dataclass(frozen=True, eq=False)
class Tree:
    """What depends only on the grid: the nodes of a quadtree that touch it, and how they hang together.

    Nodes are numbered coarse levels first, each level in tie-breaking order: `internal` of them can be split, the rest
    are leaves. `children` point to node `count`, which does not exist, where a clipped cell has none.

    Keys are integers in canonical order: first a place for each internal node as context, then one for each node as an
    ordinary token, then `nowhere`.
    """

    grid: Size
    root_level: int
    roots: int
    internal: int
    count: int
    cost_counts: tuple[int, ...]  # how many splits cost 0, 1, 2, 3 tokens
    starts: Int64[Tensor, "levels_plus_1"]  # where each level begins among internal nodes, and where the last ends
    level: Int64[Tensor, "nodes"]
    corner: Int64[Tensor, "nodes 2"]  # top-left, in cells of the node's own level
    flat: Int64[Tensor, "nodes"]  # place in the concatenated row-major levels, coarse first
    parent: Int64[Tensor, "nodes"]  # 0 for the roots, which have none
    children: Int64[Tensor, "internal 4"]
    root_keys: Int[Tensor, "roots"]
    child_keys: Int[Tensor, "internal 4"]  # `nowhere` where there is no child
    cost: Int64[Tensor, "internal"]  # tokens a split adds: children that touch the image, less one
    rank: Int64[Tensor, "nodes"]  # place in reading order: by centre, y before x
    context_rank: Int[Tensor, "internal"]  # likewise, but coarse to fine first
    from_key: Int64[Tensor, "keys"]
    box: Float64[Tensor, "nodes 4"]  # the cell in leaf units, clipped to the grid
    reported_level: Float32[Tensor, "nodes"]

    @property
    def nowhere(self) -> int:
        return self.internal + self.count

    @property
    def from_rank(self) -> Int64[Tensor, "nodes"]:
        return self.from_key[self.internal : self.nowhere]

    @property
    def is_full(self) -> bool:
        """Whether no cell is clipped."""
        return not (self.grid[0] | self.grid[1]) & ((1 << self.root_level) - 1)

    def level_size(self, level: int) -> Size:
        """Cells of that level across and down."""
        return cells_across(self.grid[0], level), cells_across(self.grid[1], level)

    def boxes(self, nodes: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape 4"]:
        """The nodes' cells in leaf units, clipped to the grid."""
        return self.box[nodes]

    def levels(self, nodes: Int64[Tensor, "*shape"]) -> Float32[Tensor, "*shape"]:
        """Half the log2 of the cells' areas: a clipped cell is as coarse as what is left of it."""
        return self.reported_level[nodes]

    def concatenate(self, levels: Sequence[Float64[Tensor, "b _h _w"]], lowest: int = 0) -> Float64[Tensor, "b places"]:
        """Maps of levels root_level..`lowest` laid end to end, coarse first: `flat` says where a node is."""
        return torch.cat([levels[i].flatten(1) for i in range(self.root_level, lowest - 1, -1)], dim=1)

    def in_node_order(self, levels: Sequence[Float64[Tensor, "b _h _w"]]) -> Float64[Tensor, "b internal"]:
        """The values of the nodes that can be split, from maps of levels 0..root_level (level 0 is not looked at)."""
        return self.concatenate(levels, lowest=1)[:, self.flat[: self.internal]]


_trees: OrderedDict[tuple, Tree] = OrderedDict()
_trees_lock = threading.Lock()
MAX_CACHED_NODES = 1 << 21  # some 250 MB of tables


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
    parent = torch.zeros(count + 1, dtype=torch.int64)
    parent[child.flatten()] = torch.arange(internal).repeat_interleave(4)

    # Centres in half leaves: integers, so that reading order has no rounding in it.
    low = corner << level[:, None]
    high = torch.minimum(low + (1 << level)[:, None], torch.tensor([gw, gh]))
    centre = low + high
    from_rank = torch.argsort(centre[:, 1] * (2 * gw + 1) + centre[:, 0], stable=True)
    from_context_rank = from_rank[from_rank < internal]
    area = (high - low).prod(1)  # a clipped cell is as coarse as what is left of it
    from_context_rank = from_context_rank[torch.argsort(-area[from_context_rank], stable=True)]

    nowhere = internal + count
    rank = _inverse(from_rank)
    key = torch.cat((internal + rank, torch.tensor([nowhere])))  # the last for children that do not exist
    small = (
        torch.int16 if nowhere < 1 << 15 else torch.int32
    )  # a radix sort takes half as many passes over half the bits

    return Tree(
        grid=(gw, gh),
        root_level=root_level,
        roots=int(sizes[root_level]),
        internal=internal,
        count=count,
        cost_counts=tuple(cost.bincount(minlength=4).tolist()),
        starts=torch.cat((starts[1:].flip(0), torch.tensor([internal]))).to(device),
        level=level.to(device),
        corner=corner.to(device),
        flat=flat.to(device),
        parent=parent[:count].to(device),
        children=child.to(device),
        root_keys=key[: int(sizes[root_level])].to(small).to(device),
        child_keys=key[child].to(small).to(device),
        cost=cost.to(device),
        rank=rank.to(device),
        context_rank=_inverse(from_context_rank).to(small).to(device),
        from_key=torch.cat((from_context_rank, from_rank, from_rank[-1:])).to(device),
        box=torch.cat((low, high), dim=1).double().to(device),
        reported_level=(area.double().log2() / 2).float().to(device),
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


def cut_density(
    tree: Tree,
    density: Float64[Tensor, "b gh gw"],
    budget: int,
    context_level: int | None = None,
    reduce: Reduce = "sum",
) -> tuple[Cut, Float64[Tensor, "b internal"]]:
    """`cut_tree` from a density over leaves; also the masses it went by.

    >>> cut, masses = cut_density(tree_over(8, 8, 2), torch.ones(1, 8, 8, dtype=torch.float64), 17)
    >>> cut.nodes.shape, cut.is_context.sum().item(), masses.amax().item()
    (torch.Size([1, 17]), 1, 16.0)
    """
    if _is_fused(tree, density, context_level):
        from homunculus.kernels import triton_cut

        *cut, masses = triton_cut.cut(tree, density, budget, maximum=reduce == "max")
        return Cut(*cut), masses
    masses = tree.in_node_order(mass_pyramid(density.detach(), tree.root_level, reduce))
    return cut_tree(tree, masses, budget, context_level), masses


def mass_inside(tree: Tree, density: Float64[Tensor, "b gh gw"], nodes: Int64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
    """The density inside the cell of each node; differentiable in the density.

    >>> tree = tree_over(8, 8, 2)
    >>> mass_inside(tree, torch.ones(1, 8, 8, dtype=torch.float64), torch.tensor([[0, tree.count - 1]]))
    tensor([[16.,  1.]], dtype=torch.float64)
    """
    if not density.requires_grad and _is_fused(tree, density):
        from homunculus.kernels import triton_cut

        return triton_cut.mass_inside(tree, density, nodes)
    return tree.concatenate(mass_pyramid(density, tree.root_level)).gather(1, tree.flat[nodes])


def _is_fused(tree: Tree, values: Tensor, context_level: int | None = None) -> bool:
    """Whether the kernel does it: float64, no asking for context, and not too large a tree, where Triton can run."""
    suits = context_level is None and tree.internal <= MAX_FUSED_NODES and values.dtype == torch.float64
    return suits and use_triton(values.device)


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
    if _is_fused(tree, masses, context_level):
        from homunculus.kernels import triton_cut

        return Cut(*triton_cut.cut(tree, masses, budget, own=own)[:3])
    order = best_first_order(masses, longest_prefix(tree, budget))
    is_split = torch.zeros(len(masses), tree.count + 1, dtype=torch.bool, device=masses.device)
    if tree.is_full and context_level is None and own is None:
        # The whole list is split, and how much is left is known: nothing to work out.
        is_split.scatter_(1, order, True)
        hidden = is_split.gather(1, tree.children[order].flatten(1))
        context = tree.context_rank[_two_coarsest(tree, order, budget - tree.roots - 3 * order.shape[1])]
    else:
        tokens = (budget if own is None else own) - tree.roots
        split, keeps = spend(tree.cost[order], tree.level[order], tokens, context_level)
        is_split.scatter_(1, order, split)
        hidden = is_split.gather(1, tree.children[order].flatten(1)) | ~split.repeat_interleave(4, 1)
        context = torch.where(keeps, tree.context_rank[order], tree.nowhere)

    # One sort of small integers puts the tokens in canonical order and everything else behind them.
    children = tree.child_keys[order].flatten(1).masked_fill_(hidden, tree.nowhere)
    roots = torch.where(is_split[:, : tree.roots], tree.nowhere, tree.root_keys)
    key = torch.cat((context, roots, children), dim=1).sort(dim=1).values[:, :budget].long()
    return Cut(tree.from_key[key], key < tree.internal, key < tree.nowhere)


def _two_coarsest(tree: Tree, order: Int64[Tensor, "b k"], wanted: int) -> Int64[Tensor, "b wanted"]:
    """The first 0, 1 or 2 of the sorted nodes of a full tree, the coarser before the heavier."""
    if wanted < 2:
        return order[:, :wanted]  # nothing outweighs its root, so the first is one
    second = tree.level[order[:, 1:]].argmax(1, keepdim=True)  # of equal levels the first, which is the heavier
    return torch.cat((order[:, :1], order[:, 1:].gather(1, second)), dim=1)


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
