"""One class behind every tree method. What varies between them is only the density.

`foveated-pyramid` splits by relevance and by distance to the fixations; `detail-tree` by the error a split would
remove.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.foveal import allocate_at
from homunculus.allocation.registry import register
from homunculus.allocation.soft import SoftCells, soft_cut
from homunculus.allocation.tree import Tree, cut_density, cut_tree, mass_inside, tree_level, tree_over
from homunculus.density import FLOOR, with_floor
from homunculus.errors import AllocatorError, BudgetError, DensityError
from homunculus.geometry import MIN_TREE_BUDGET, root_level
from homunculus.pyramid import Reduce, mass_pyramid, pool_blocks
from homunculus.relevance.gaze import fixation_density
from homunculus.structures import Allocation, View

# A density over leaves [B, gh, gw] to be pooled, or node masses of every level 0, 1, ... that never grow downwards.
Density = Callable[[View], Float64[Tensor, "b gh gw"] | Sequence[Float64[Tensor, "b _h _w"]]]


@dataclass(frozen=True)
class HierarchicalAllocator:
    """Exactly `budget` cells by best-first splitting of a quadtree, for any density, any grid and any depth.

    `depth` sets the level of the roots (default: about budget/16 of them). `context_level` keeps a token for every
    split cell of at least that level, out of the same budget; where the count would not come out, up to three of them
    go without. `reduce="max"` splits by the peak inside a cell, not by the sum. `validate=False` leaves out the check
    that the density is finite and nonnegative, which waits for the device.

    >>> view = View(torch.rand(2, 64, 64, dtype=torch.float64), image_size=(1024, 1024))
    >>> allocate = HierarchicalAllocator(lambda view: view.density, budget=100)
    >>> allocate(view).boxes.shape
    torch.Size([2, 100, 4])
    """

    density: Density
    budget: int = 273
    depth: int | None = None
    context_level: int | None = None
    reduce: Reduce = "sum"
    validate: bool = True

    def __post_init__(self) -> None:
        if self.reduce not in ("sum", "max"):
            raise AllocatorError(f"reduce must be 'sum' or 'max', got '{self.reduce}'")
        for name in ("depth", "context_level"):
            level = getattr(self, name)
            if level is not None and (not isinstance(level, int) or level < 1):
                raise AllocatorError(f"{name} is a level of cells that can be split, 1 or more, got {level!r}")

    def __call__(self, view: View) -> Allocation:
        tree, density = self._tree(view), self._density(view)
        if isinstance(density, Tensor):
            cut, masses = cut_density(tree, density, self.budget, self.context_level, self.reduce)
        else:
            masses = tree.in_node_order(density)
            cut = cut_tree(tree, masses, self.budget, self.context_level)
        self._check(density, masses)
        return make_allocation(
            view,
            tree.boxes(cut.nodes),
            "dyadic" if tree.is_full else "box",
            levels=tree.levels(cut.nodes),
            is_context=cut.is_context,
            scores=mass_inside(tree, view.relevance, cut.nodes),
            in_order=True,
        )

    def nested(self, view: View, budgets: Sequence[int]) -> list[Allocation]:
        """One allocation per budget over the same roots, those of the smallest: each refines the one before.

        Splits are a prefix of one sorted list, so a larger budget reads further in it. A split replaces a token:
        nothing of a smaller set can be reused as it is.

        >>> view = View(torch.rand(1, 64, 64, dtype=torch.float64), image_size=(1024, 1024))
        >>> [a.budget for a in HierarchicalAllocator(lambda view: view.density).nested(view, [100, 273, 512])]
        [100, 273, 512]
        """
        if not budgets:
            raise BudgetError("nested budgets need at least one budget, got none")
        gw, gh = view.grid
        depth = root_level(gw, gh, min(budgets)) if self.depth is None else self.depth
        return [replace(self, budget=budget, depth=depth)(view) for budget in budgets]

    def soft(self, view: View, temperature: float = 0.1) -> SoftCells:
        """The relaxed allocation, differentiable in the density: see allocation/soft.py."""
        tree = self._tree(view)
        return soft_cut(tree, self._masses(view, tree), self.budget, temperature, self.validate)

    def _tree(self, view: View) -> Tree:
        return tree_over(*view.grid, tree_level(view.grid, self.budget, self.depth), view.device)

    def _density(self, view: View) -> Float64[Tensor, "b gh gw"] | Sequence[Float64[Tensor, "b _h _w"]]:
        density = self.density(view)
        leaves = density if isinstance(density, Tensor) else density[0]
        if leaves.shape != view.density.shape:
            raise DensityError(
                f"the allocator's density is {list(leaves.shape)}, but the view's grid is {list(view.density.shape)}"
            )
        return density

    def _masses(self, view: View, tree: Tree) -> Float64[Tensor, "b internal"]:
        density = self._density(view)
        levels = mass_pyramid(density, tree.root_level, self.reduce) if isinstance(density, Tensor) else density
        masses = tree.in_node_order(levels)
        self._check(density, masses)
        return masses

    def _check(self, density: Tensor | Sequence[Tensor], masses: Float64[Tensor, "b internal"]) -> None:
        leaves = density if isinstance(density, Tensor) else density[0]
        if self.validate and not bool(_sound(leaves) & _sound(masses)):
            raise DensityError("the density is negative, NaN or too large to sum: it must be finite and at least 0")


def _sound(x: Tensor) -> Tensor:
    return ((x >= 0) & (x < torch.inf)).all()


def foveated_density(
    view: View, e0: float | Float64[Tensor, "b"] = 3.0, fixation_share: float = 0.5, floor: float = FLOOR
) -> Float64[Tensor, "b gh gw"]:
    """Half relevance, half 1/(e+e0)^2 around the fixations, each of mass 1, over a floor; without a fixation,
    relevance alone. `e0` in leaves, for all images or one each.

    >>> view = View(torch.ones(1, 64, 64, dtype=torch.float64), (1024, 1024))
    >>> foveated_density(view).unique().numel()
    1
    """
    if not ((isinstance(e0, Tensor) or e0 > 0) and 0 <= fixation_share <= 1):
        raise AllocatorError(f"need e0 above 0 and fixation_share from 0 to 1, got {e0=}, {fixation_share=}")
    density = view.relevance
    if view.fixations is not None:
        gaze = fixation_density(view.fixations, view.grid, view.image_size, e0)
        looking = (view.fixations[..., 2] > 0).any(1)[:, None, None]
        share = looking.double() * fixation_share
        density = (1 - share) * density + share * gaze
    return with_floor(density, floor)


@register(
    "foveated-pyramid",
    "quadtree split by relevance and distance to the gaze; tiles the image",
    minimum=MIN_TREE_BUDGET,
    tiles=True,
    uses_gaze=True,
    density=foveated_density,
    trains="the density, through HierarchicalAllocator.soft (allocation/soft.py)",
)
def foveated_pyramid(
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
    """The default. `e0` in leaves: small compresses the periphery, large treats all places alike; `foveal_share` solves
    it for the share of cells near the gaze (see allocation/foveal.py)."""

    def tree(e0: float | Tensor) -> Allocation:
        density = partial(foveated_density, e0=e0, fixation_share=fixation_share, floor=floor)
        return HierarchicalAllocator(density, budget, depth, context_level, reduce, validate=False)(view)

    return allocate_at(tree, view, e0, foveal_share, finds_its_gaze=False)


def detail_masses(view: View, floor: float = FLOOR) -> list[Float64[Tensor, "b _h _w"]]:
    """The relevance-weighted squared error of showing each cell by its own average: what splitting it down removes.

    m(cell) = sum of m(children) + sum of relevance * band^2, the band being what splitting this cell adds. Not a pooled
    leaf density, but a child never outweighs its parent all the same.
    """
    pyramid = view.pixels("detail-tree")
    gw, gh = view.grid
    weights = mass_pyramid(with_floor(view.relevance, floor), (max(gw, gh) - 1).bit_length())
    masses = [torch.zeros_like(view.relevance)]
    for level in range(1, len(weights)):
        band = level - 1
        cell = pyramid.energy_level(band)
        gained = pyramid.energy[band].double() * weights[cell] / 4**cell  # mean relevance of a leaf in that cell
        for _ in range(level - cell):
            gained = pool_blocks(gained)
        masses.append(pool_blocks(masses[-1]) + gained)
    return masses


@register(
    "detail-tree",
    "quadtree split where it removes most relevance-weighted error; tiles the image",
    minimum=MIN_TREE_BUDGET,
    tiles=True,
    needs_pixels=True,
    trains="the relevance that weighs the error, through HierarchicalAllocator.soft",
)
def detail_tree(
    view: View,
    budget: int,
    *,
    seed: int = 0,
    floor: float = FLOOR,
    depth: int | None = None,
    context_level: int | None = None,
) -> Allocation:
    """Level of detail by error, as a renderer chooses it: smooth areas stay coarse however relevant they are."""
    density = partial(detail_masses, floor=floor)
    return HierarchicalAllocator(density, budget, depth, context_level, validate=False)(view)
