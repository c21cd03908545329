"""Stages 2b and 4: the answers teach the scorer too, through the relaxed allocator. Hard at inference.

Which cells are looked at is decided hard, as always, and a choice has no gradient. What it is made of has one:

  - the tree relaxed (allocation/soft.py) says how likely each chosen cell was to come about. A patch fades to its mean
    colour by that: a cell that does not come about is seen in its parent's patch, as a few pixels at most;
  - the encoder is told how dense relevance is in each cell.

A cell comes about when its parent is split. The probability that it is a token is less, by that of its being split in
turn; but of that only one side is seen here, what would be lost, and not what its children would show. Descending it
would teach cells that matter not to split. So only the splitting of the parent counts.

With `sight="soft"` patches are faded in the forward pass as well: only cells that nearly did not come about look other
than they will when the model is asked, and that is where gradients come from. With "hard" they are as always, and only
gradients know of fading. That is exact for the reader but poor advice for the scorer: once a reader is sure, a little
more contrast does not help it, though less would hurt. In a toy (tests/train/test_joint.py) a soft sight sends density
to the true region for more questions than a hard one.

The true region stays part of the loss, so that a scorer that serves the reader does not forget what it knew. Stage 2b
freezes the reader, which then is a fixed judge of where looking pays; stage 4 freezes nothing.

What is asked for is all that a scorer is taught to find. With `coverage` it pays as well for every region of the image
into which none of its best leaves falls, so that a top-k of them leaves fewer places out.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from homunculus.allocation import DEFAULT, HierarchicalAllocator
from homunculus.allocation.hierarchical import foveated_density
from homunculus.allocation.relaxed import coverage_penalty, exponential, relaxed_topk
from homunculus.allocation.soft import SoftCells
from homunculus.allocation.tree import Tree, tree_level, tree_over
from homunculus.density import resample_mass
from homunculus.errors import ModelError
from homunculus.model.encoder import Cells, cells_of
from homunculus.model.scorer import as_density
from homunculus.model.vlm import CompactVLM, look
from homunculus.pyramid import mass_pyramid
from homunculus.structures import Allocation, View, VisualTokens, rectangular
from homunculus.train.curriculum import Phase, showing
from homunculus.train.pool import Pool
from homunculus.train.read import Reading, answer_loss, enlarged, untold
from homunculus.train.score import names_loss, on_leaves, scored_and_named, scorer_loss, truth_of

Frozen = Literal["reader", "nothing"]
Sight = Literal["soft", "hard"]
NAMES = 0.5  # the weight of where the question's words stand, beside that of the region


# ----------------------------------------------------------------------------------------------------- the relaxed tree


def view_of(allocation: Allocation, density: Float[Tensor, "b dh dw"]) -> View:
    """What `foveated-pyramid` was given when `model.vlm.look` looked by a density, here with the density's gradient."""
    gaze = allocation.gaze.double()
    fixations = torch.cat((gaze, torch.ones_like(gaze[:, :1])), dim=1)[:, None]
    wanted = resample_mass(density.double(), allocation.grids[0])
    return View(wanted, allocation.image_sizes[0], allocation.leaf, fixations=fixations)


def tree_of(view: View, budget: int) -> Tree:
    """The tree it cut; no cell of it is clipped, since `look` fits the grid to the budget."""
    return tree_over(*view.grid, tree_level(view.grid, budget), view.device)


def relaxed(view: View, budget: int, temperature: float) -> SoftCells:
    """The same tree, cut by the same masses, with probabilities."""
    return HierarchicalAllocator(foveated_density, budget, validate=False).soft(view, temperature)


def where_in(tree: Tree, allocation: Allocation) -> Int64[Tensor, "b n"]:
    """Where cells lie among the maps of all levels of a tree, laid end to end, coarse first (`Tree.concatenate`).

    >>> import homunculus
    >>> where_in(tree_over(4, 4, 1), homunculus.allocate(torch.eye(4), 16, depth=1)).tolist()  # behind the 4 roots
    [[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]
    """
    level, x, y, _ = cells_of(allocation).places.unbind(-1)
    level = level.round().long()
    side = 1 << level
    column, row = (x / side).floor().long(), (y / side).floor().long()
    coarser = tree.roots * ((1 << 2 * (tree.root_level - level)) - 1) // 3  # cells of all levels above
    return coarser + row * (tree.grid[0] // side) + column


def reached(tree: Tree, soft: SoftCells) -> Float64[Tensor, "b places"]:
    """The probability of every cell of a tree to come about, be it as a token or to be split in turn; 1 for roots."""
    return tree.concatenate(
        [token if split is None else token + split for token, split in zip(soft.weights, soft.split, strict=True)]
    )


def faded(
    patches: Float[Tensor, "b n 3 leaf leaf"], probability: Float[Tensor, "b n"], sight: Sight
) -> Float[Tensor, "b n 3 leaf leaf"]:
    """Each patch as far from its mean colour as it is likely; with a hard sight unchanged, only gradients know.

    >>> patch = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).expand(1, 1, 3, 2, 2)
    >>> faded(patch, torch.full((1, 1), 0.5), "soft")[0, 0, 0]
    tensor([[0.2500, 0.7500],
            [0.7500, 0.2500]])
    """
    lost = probability - (1.0 if sight == "soft" else probability.detach())
    detail = patches - patches.mean((-2, -1), keepdim=True)
    return patches + detail * lost.to(patches.dtype)[..., None, None, None]  # where nothing is lost, the patch itself


def seen(
    tokens: VisualTokens, density: Float[Tensor, "b dh dw"], temperature: float, sight: Sight = "soft"
) -> tuple[Float[Tensor, "b n 3 leaf leaf"], Cells]:
    """Patches and cells that `look` has chosen by a density, with gradients to it.

    >>> density = torch.rand(1, 16, 16, requires_grad=True)
    >>> patches, cells = seen(look(torch.rand(1, 3, 256, 256), density, 64), density, temperature=1.0)
    >>> patches.requires_grad, cells.weights.requires_grad
    (True, True)
    """
    allocation = rectangular(tokens.allocation)
    view = view_of(allocation, density)
    tree = tree_of(view, allocation.budget)
    where = where_in(tree, allocation)
    masses = tree.concatenate(mass_pyramid(view.relevance, tree.root_level)).gather(1, where)
    probability = reached(tree, relaxed(view, allocation.budget, temperature)).gather(1, where)
    return faded(tokens.patches, probability, sight), cells_of(replace(allocation, scores=masses.float()))


# ------------------------------------------------------------------------------------------------------------- coverage


def empty_share(scores: Float[Tensor, "b gh gw"], budget: int, temperature: float) -> Float[Tensor, ""]:
    """The expected share of the 8 x 8 regions of an image that a relaxed top-k of its leaves leaves empty.

    >>> tilted = torch.arange(256.0).view(1, 16, 16)  # the best 64 leaves are the last four rows: two of regions
    >>> round(empty_share(tilted, 64, temperature=0.1).item(), 3), round(empty_share(0 * tilted, 64, 0.1).item(), 3)
    (0.75, 0.316)
    """
    flat = scores.float().flatten(1)
    chosen = relaxed_topk(flat, min(budget, flat.shape[1]), temperature)
    return coverage_penalty(chosen.view(scores.shape)).mean()


# ------------------------------------------------------------------------------------------------------------ the stage


class Joint(Reading):
    """The loss of a step, for `loop.fit`: of the answers, and `supervised` times that of the scorer's own stage: of
    the true region and of the places of the question's words.

    `temperature`, of log-mass, falls from the first value to the second. Steps with other methods than the default
    teach the reader, and the scorer by the region alone: their choices have no relaxed form here. `coverage` times the
    share of regions that a top-k would leave empty is added.
    """

    def __init__(
        self,
        model: CompactVLM,
        pools: Sequence[Pool],
        phases: Sequence[Phase],
        steps: int,
        *,
        frozen: Frozen = "reader",
        supervised: float = 0.5,
        sight: Sight = "soft",
        temperature: tuple[float, float] = (1.0, 0.3),
        coverage: float = 0.0,
        tokens: int = 256 * 273,  # one group of images with their questions
        **options: Any,
    ) -> None:
        check(phases, frozen, supervised, sight, coverage)
        super().__init__(model, pools, phases, steps, tokens=tokens, **options)
        self.frozen, self.supervised, self.sight, self.temperature = frozen, supervised, sight, temperature
        self.coverage = coverage

    def trained(self) -> list[nn.Parameter]:
        """What this stage may change."""
        return list((self.model.scorer if self.frozen == "reader" else self.model).parameters())

    def __call__(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        shown = showing(self.phases, self.steps, step, self.seed)
        samples, waited = self.drawn(shown, step)
        scores, names = scored_and_named(self.model, samples)
        grid = (scores.shape[2], scores.shape[1])
        region, found = scorer_loss(scores, truth_of(samples, grid))
        naming, found["named"] = names_loss(names, on_leaves(samples.anchors, samples, grid))

        density = as_density(scores)
        temperature = exponential(step, self.steps, *self.temperature)
        with torch.no_grad():
            leaf = self.model.config.leaf
            how: dict[str, Any] = {"leaf": leaf, "seed": step, "dtype": self.dtype}
            images = enlarged(samples.images, shown.enlarged)
            tokens = look(images, density, shown.budget, shown.allocator, **how)
        if shown.allocator == DEFAULT:
            patches, cells = seen(tokens, density, temperature, self.sight)
        else:
            patches, cells = tokens.patches, cells_of(rectangular(tokens.allocation))
        cells = untold(cells, shown.untold, step)

        features = self.model.encoder(patches, cells)
        logits = self.model.decoder(self.model.decoder.remember(features, cells), samples.question, samples.answer)
        answered, read = answer_loss(logits, samples.answer)
        losses = {"answer_loss": answered.detach(), "scorer_loss": region.detach(), "names_loss": naming.detach()}
        about = {"samples": float(len(density)), "waited": waited}
        loss = answered + self.supervised * (region + NAMES * naming)
        if self.coverage:
            empty = empty_share(scores, shown.budget, temperature)
            loss, losses["empty"] = loss + self.coverage * empty, empty.detach()
        return loss, read | found | losses | about


def check(phases: Sequence[Phase], frozen: str, supervised: float, sight: str, coverage: float = 0.0) -> None:
    """Refuse what leaves the scorer nothing to learn from."""
    for name, value, known in (("frozen", frozen, Frozen), ("sight", sight, Sight)):
        if value not in get_args(known):
            raise ModelError(f"no {name} '{value}': choose {' or '.join(get_args(known))}")
    if not supervised >= 0:
        raise ModelError(f"supervised is a weight of the region's loss, at least 0, got {supervised}")
    if not coverage >= 0:
        raise ModelError(f"coverage is a weight of the regions left empty, at least 0, got {coverage}")
    for phase in phases:
        if {name for name, weight in phase.relevance.items() if weight > 0} != {"predicted"} or phase.readings > 0:
            raise ModelError(
                'a joint stage looks where the scorer says: give phases relevance={"predicted": 1.0} and readings=0'
            )
        others = {name for name, weight in phase.allocators.items() if weight > 0} - {DEFAULT}
        if others and (frozen == "reader" or supervised == 0):
            raise ModelError(
                f"answers teach the scorer through {DEFAULT} alone: leave {min(others)} out of the phases, "
                'or use frozen="nothing" with supervised above 0'
            )
