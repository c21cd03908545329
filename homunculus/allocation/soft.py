"""The tree, relaxed: splitting with probabilities, so that a density can be trained through its allocation.

A node splits with probability p = sigmoid((log mass - t) / temperature), and t is solved so that the expected number of
tokens is that of the hard cut. Children never outweigh parents, so p(child) <= p(parent), and a cell's weight
p(parent) - p(self) is never negative: over every pixel the weights sum to exactly 1. Noise for exploration belongs on
the leaf log-density, before pooling; noise on node masses would tear children from their parents.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.allocation.relaxed import gumbel_noise, threshold
from homunculus.allocation.tree import Tree, best_first_order, longest_prefix
from homunculus.errors import AllocatorError, DensityError


@dataclass(frozen=True)
class SoftCells:
    """Expected cells: `weights[L]` `[B, h_L, w_L]` is the probability that the cell of level L is a token, and
    `split[L]` (L >= 1) that it is split. Weights of all levels sum to 1 over every pixel."""

    weights: tuple[Float64[Tensor, "b _h _w"], ...]
    split: tuple[Float64[Tensor, "b _h _w"] | None, ...]

    def tokens(self) -> Float64[Tensor, "b"]:
        """The expected number of tokens of each image, context not counted."""
        return torch.stack([level.flatten(1).sum(1) for level in self.weights]).sum(0)


def soft_cut(
    tree: Tree, masses: Float64[Tensor, "b internal"], budget: int, temperature: float = 0.1, validate: bool = True
) -> SoftCells:
    """The relaxed cut of a tree. Masses must be positive: a floor on the density sees to that.

    >>> from homunculus.allocation.tree import tree_over
    >>> tree = tree_over(8, 8, 2)
    >>> soft = soft_cut(tree, torch.rand(1, tree.internal, dtype=torch.float64) + 0.1, budget=25)
    >>> round(soft.tokens().item(), 6)
    25.0
    """
    if not temperature > 0:
        raise AllocatorError(f"temperature must be above 0, got {temperature}")
    if validate and not bool((masses > 0).all()):
        raise DensityError("the soft tree needs a density above 0 everywhere: add a floor (density.with_floor)")
    log_mass = masses.log()
    t = threshold(log_mass, _tokens_added(tree, masses, budget), temperature, weights=tree.cost.double())
    split_probability = torch.sigmoid((log_mass - t) / temperature)
    parent = torch.ones(masses.shape[0], tree.count + 1, dtype=masses.dtype, device=masses.device)
    parent = parent.scatter(
        1, tree.children.flatten().expand(masses.shape[0], -1), split_probability.repeat_interleave(4, 1)
    )
    own = torch.nn.functional.pad(split_probability, (0, tree.count - tree.internal))
    weights = parent[:, : tree.count] - own
    return SoftCells(_as_levels(tree, weights), (None, *_as_levels(tree, own)[1:]))


def gumbel(density: Float64[Tensor, "b gh gw"], scale: float, generator: torch.Generator | None = None) -> Tensor:
    """The density with Gumbel noise on its logarithm: sampling instead of always taking the heaviest.

    >>> gumbel(torch.ones(1, 4, 4, dtype=torch.float64), 0.5).shape
    torch.Size([1, 4, 4])
    """
    return density * (gumbel_noise(density, generator) * scale).exp()


def _tokens_added(tree: Tree, masses: Float64[Tensor, "b internal"], budget: int) -> Float64[Tensor, "b 1"]:
    """The tokens that the splits of the hard cut add: what the relaxed ones sum to."""
    added = tree.cost[best_first_order(masses.detach(), longest_prefix(tree, budget))].cumsum(1)
    return torch.where(added <= budget - tree.roots, added, 0).amax(1, keepdim=True).double()


def _as_levels(tree: Tree, values: Float64[Tensor, "b nodes"]) -> tuple[Tensor, ...]:
    """Values in node order as maps for levels 0..root_level."""
    flat = torch.empty_like(values).scatter(1, tree.flat.expand_as(values), values)
    maps, start = [], 0
    for level in range(tree.root_level, -1, -1):
        w, h = tree.level_size(level)
        maps.append(flat[:, start : start + w * h].unflatten(1, (h, w)))
        start += w * h
    return tuple(reversed(maps))
