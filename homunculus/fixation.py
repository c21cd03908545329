"""Looking more than once: fixations one after another, an image asked many times, tokens coarse to fine.

The first fixation goes to the peak of relevance, or where the question or the caller says; each next one where most is
left to see (see unseen.py), unless a model that knows better what it is unsure of says so (`uncertainty`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float64
from torch import Tensor

from homunculus.allocation import DEFAULT, allocate_view, check_budget, get_allocator
from homunculus.cache import TokenCache, content_key
from homunculus.density import as_density, resample_mass, total_mass
from homunculus.errors import AllocatorError, BudgetError, FixationError, ImageError
from homunculus.foveate import MAX_FITTED_PIXELS, gaze_points, make_view, one_each
from homunculus.geometry import Size, fit_grid, root_level
from homunculus.images import load_images
from homunculus.pyramid import ImagePyramid
from homunculus.relevance import is_question, knows_questions, stack_fixations
from homunculus.relevance import relevance_for as relevance_of
from homunculus.sampling import sample
from homunculus.structures import CELL_FIELDS, Allocation, View, VisualTokens, rectangular
from homunculus.unseen import RADIUS, left_to_see, next_fixation, shown_level

Combine = Literal["tree", "concat"]
ENOUGH = 0.1  # stop when no more than this share is left to see


@dataclass(frozen=True)
class Scan:
    """How to look several times; the function `fixate` says what each of these does."""

    n: int = 3
    combine: Combine = "tree"
    radius: float = RADIUS
    enough: float | None = ENOUGH
    uncertainty: Any = None
    confident: Callable[[VisualTokens], Tensor] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise FixationError(f"the number of fixations must be a positive whole number, got {self.n!r}")
        if not 0 < self.radius < float("inf"):
            raise FixationError(f"the radius of inhibition is a share of the longer side, above 0, got {self.radius!r}")
        if self.enough is not None and not 0 <= self.enough <= 1:
            raise FixationError(f"enough is a share from 0 to 1, or None to go on to the end, got {self.enough!r}")
        if self.combine not in get_args(Combine):
            raise FixationError(f"looks combine by 'tree' or by 'concat', got {self.combine!r}")


@dataclass(frozen=True, eq=False)
class Glance:
    """One look of several: the fixations so far, the cells, and what is left.

    `fixations` are (x, y, weight) in pixels. Weight 0 marks an image that had stopped before: its tree stays as it was,
    its look by itself is one without a gaze. `left` is the share of what there was to see that no look so far has
    shown. `tokens` reads the pixels when it is first asked for.
    """

    fixations: Float64[Tensor, "b f 3"]
    allocation: Allocation
    left: Float64[Tensor, "b"]
    observer: "Observer"
    read: Callable[[], VisualTokens]

    @property
    def tokens(self) -> VisualTokens:
        return self.read()


class Observer:
    """An image, or a batch of one size, set up once and looked at many times.

    Its pyramid is built once, and so is its relevance unless that asks about the question (a scorer does). With a
    `cache`, a cell is sampled once however often it is looked at. The arguments are those of `foveate`; `grid` sets
    another leaf grid than the fitted one.

    >>> observer = Observer(torch.rand(3, 300, 400), budget=100, cache=TokenCache())
    >>> top = observer.look("What is at the top left?")
    >>> bottom = observer.look("And at the bottom right?")
    >>> observer.cache.stats.misses < 200
    True
    """

    def __init__(
        self,
        image: Any,
        budget: int = 273,
        allocator: str = DEFAULT,
        relevance: Any = None,
        *,
        cache: TokenCache | None = None,
        grid: Size | None = None,
        leaf: int = 16,
        seed: int | Tensor = 0,
        validate: bool = True,
        **options: Any,
    ) -> None:
        get_allocator(allocator)
        self.budget, self.allocator = check_budget(budget), allocator
        self.relevance, self.cache, self.validate = relevance, cache, validate
        self.options = {"seed": seed} | options
        # Everything but relevance, which is computed when there is a question.
        view = make_view(load_images(image, validate), None, budget, None, "uniform", leaf=leaf, validate=False)
        if grid is not None and grid[0] * grid[1] * leaf**2 > MAX_FITTED_PIXELS:
            raise ImageError(
                f"an image of {view.image_size[0]}x{view.image_size[1]} pixels would become {grid[0] * leaf}x"
                f"{grid[1] * leaf}: crop it to a less extreme shape or take a coarser grid"
            )
        self.pyramid = view.pyramid if grid is None else ImagePyramid(view.pyramid.images, grid, leaf)
        self.image_size, self.leaf = view.image_size, leaf

    def __repr__(self) -> str:
        width, height = self.image_size
        return f"Observer({len(self.pyramid.images)} images of {width}x{height}, {self.budget} tokens)"

    @cached_property
    def image_keys(self) -> list[str]:
        """What the cache knows the images by."""
        return [content_key(image) for image in self.pyramid.images]

    @cached_property
    def _density(self) -> Float64[Tensor, "b gh gw"]:
        return self._ask([None] * len(self.pyramid.images))

    def _ask(self, queries: Sequence[Any]) -> Float64[Tensor, "b gh gw"]:
        return relevance_of(self.pyramid, self.relevance, queries, floor=0.0, validate=self.validate)

    def view(self, query: Any = None, fixation: Any = None) -> View:
        """What an allocator would look at for this question: the same as `make_view`, most of it ready."""
        images = self.pyramid.images
        queries = one_each(query, len(images))
        fixations = stack_fixations(gaze_points(list(images), queries, fixation, self.validate))
        fixations = None if fixations is None else fixations.to(images.device, non_blocking=True)
        listens = knows_questions(self.relevance, list(map(is_question, queries)), images.device)
        density = self._ask(queries) if listens else self._density
        return View(density, self.image_size, self.leaf, self.pyramid, fixations, queries)

    def allocate(self, view: View, budget: int | None = None, **options: Any) -> Allocation:
        """The cells of one look."""
        if get_allocator(self.allocator).batchwide and view.batch > 1:
            raise AllocatorError(
                f"{self.allocator} gives every image a count of its own: observe one image at a time, or use another "
                "allocator"
            )
        chosen = self.options | options
        return rectangular(allocate_view(view, budget or self.budget, self.allocator, **chosen))

    def tokens(self, allocation: Allocation) -> VisualTokens:
        """The cells with their patches, from the cache where there is one."""
        images = self.pyramid.images
        if self.cache is None:
            return VisualTokens(sample(images, allocation), allocation)
        return VisualTokens(self.cache.sample(images, allocation, self.image_keys), allocation)

    def look(self, query: Any = None, fixation: Any = None) -> VisualTokens:
        """What `foveate` returns for this image and question, bit for bit."""
        return self.tokens(self.allocate(self.view(query, fixation)))

    def fixate(self, query: Any = None, n: int = 3, fixation: Any = None, **how: Any) -> Iterator[Glance]:
        """Looks one after another, up to `n` of them; `how` are the fields of `Scan`. See the function `fixate`."""
        return self._glances(Scan(n, **how), self.view(query, fixation))

    def _glances(self, scan: Scan, view: View) -> Iterator[Glance]:
        batch, size = view.batch, view.image_size
        n, enough, uncertainty, confident = scan.n, scan.enough, scan.uncertainty, scan.confident
        single_gaze = get_allocator(self.allocator).single_gaze
        named = view.density.new_zeros(batch, 0, 3) if view.fixations is None else view.fixations
        fixations = F.pad(named, (0, 0, 0, max(0, n - named.shape[1])))  # [B, F, 3], F = max(n, places named)
        going = torch.ones(batch, dtype=torch.bool, device=view.device)
        shown = torch.full_like(view.density, torch.inf)
        left, everything = view.relevance, None
        if uncertainty is None:
            everything = total_mass(left_to_see(view, shown))
        for k in range(n):
            found = next_fixation(left, fixations[:, :k], size, scan.radius)
            chosen = torch.cat((found, going[:, None].double()), dim=1)[:, None]
            here = torch.where(fixations[:, k : k + 1, 2:] > 0, fixations[:, k : k + 1], chosen)
            fixations = torch.cat((fixations[:, :k], here, fixations[:, k + 1 :]), dim=1)
            until = k + 1 if k + 1 < n else fixations.shape[1]  # the last look takes in all the places that were named
            since = 0 if scan.combine == "tree" and not single_gaze else k
            allocation = self.allocate(replace(view, fixations=fixations[:, since:until]))
            read = lru_cache(1)(partial(self.tokens, allocation))  # by whoever asks first, once
            if uncertainty is None:
                shown = torch.minimum(shown, shown_level(allocation))  # by any look so far
                left = left_to_see(view, shown)
            else:
                values = uncertainty(read()) if callable(uncertainty) else uncertainty
                left = resample_mass(as_density(values, batch, view.device, self.validate), view.grid)
            everything = total_mass(left) if everything is None else everything
            share = (total_mass(left) / torch.where(everything > 0, everything, 1.0)).flatten()
            if enough is not None:
                going = going & (share > enough)
            if confident is not None:
                going = going & ~_verdict(confident(read()), going)
            yield Glance(fixations[:, :until], allocation, share, self, read)
            stops = enough is not None or confident is not None
            if stops and k + 1 >= named.shape[1] and not bool(going.any()):  # the only wait for the device
                return


def fixate(
    image: Any,
    query: Any = None,
    n: int = 3,
    fixation: Any = None,
    *,
    combine: Combine = "tree",
    radius: float = RADIUS,
    enough: float | None = ENOUGH,
    uncertainty: Any = None,
    confident: Callable[[VisualTokens], Tensor] | None = None,
    **options: Any,
) -> Iterator[Glance]:
    """Up to `n` looks at an image or a batch of one size, one after another; `options` go to the `Observer`.

    Places that `fixation` or the question's words name come first, in their order, one a look; the last look takes all
    that remain of them. Then come places of our own choice. With `combine="tree"` a look's N cells serve all fixations
    so far, with `"concat"` its own fixation only, as always with methods that have a single gaze.

    An image stops when at most the share `enough` is left to see, or when `confident(tokens)` says so, `[B]` booleans;
    iteration ends when all have stopped. `uncertainty`, a map `[h, w]` or `[B, h, w]` or a callable that makes one of
    the tokens just seen, takes the place of our own guess; `enough` is then a share of its first mass. Choosing a place
    never waits for the device; asking whether all have stopped does, once a look (`enough=None` does not ask).

    >>> [(glance.fixations.shape, glance.tokens.patches.shape) for glance in fixate(torch.rand(3, 256, 256), n=2)]
    [(torch.Size([1, 1, 3]), torch.Size([1, 273, 3, 16, 16])), (torch.Size([1, 2, 3]), torch.Size([1, 273, 3, 16, 16]))]
    """
    how = {"combine": combine, "radius": radius, "enough": enough, "uncertainty": uncertainty, "confident": confident}
    return Observer(image, **options).fixate(query, n, fixation, **how)


def saccades(
    image: Any, query: Any = None, n: int = 3, combine: Combine = "tree", *, enough: float | None = None, **options: Any
) -> VisualTokens:
    """All looks of `fixate` in one set of tokens: N of one tree over all fixations, or n * N, look after look.

    Here `enough` is None unless given, since n * N is a promise. `options` go to `fixate`.

    >>> image = torch.rand(3, 256, 256)
    >>> [saccades(image, n=2, combine=how, budget=100).allocation.budget for how in ("tree", "concat")]
    [100, 200]
    """
    allocator = options.get("allocator", DEFAULT)
    if combine == "tree" and n > 1 and get_allocator(allocator).single_gaze:
        raise FixationError(f"{allocator} has a single gaze and no tree over several: use combine='concat'")
    return join(list(fixate(image, query, n, combine=combine, enough=enough, **options)), combine)


def join(glances: Sequence[Glance], combine: Combine = "tree") -> VisualTokens:
    """The tokens of several glances: those of the last, or all side by side in the order they were seen.

    Within a look cells are distinct and in canonical order; two looks may share cells, which then come twice.
    """
    if not glances:
        raise FixationError("no glances to join: give at least one")
    if Scan(combine=combine).combine == "tree":
        return glances[-1].tokens
    looks = [glance.allocation for glance in glances]
    fields: dict[str, Any] = {name: torch.cat([getattr(look, name) for look in looks], dim=1) for name in CELL_FIELDS}
    return glances[0].observer.tokens(replace(looks[0], **fields))


def progressive(
    image: Any,
    query: Any = None,
    budgets: Sequence[int] = (64, 128, 273),
    fixation: Any = None,
    *,
    allocator: str = DEFAULT,
    leaf: int = 16,
    validate: bool = True,
    **options: Any,
) -> Iterator[VisualTokens]:
    """Coarse tokens first: one set for each budget, each made when it is asked for, each refining the one before.

    All sets share the roots of the smallest budget, on a grid with leaves enough for the largest. Stop iterating when
    the answer is sure. A split replaces a token, so sets are read whole; a cache still samples only the new cells.
    `options` go to the `Observer`.

    >>> [tokens.patches.shape[1] for tokens in progressive(torch.rand(3, 256, 256), budgets=(32, 64))]
    [32, 64]
    """
    budgets = [check_budget(budget) for budget in budgets]
    if not budgets or any(a >= b for a, b in pairwise(budgets)):
        raise BudgetError(f"progressive budgets must grow, got {budgets}: give them from small to large, as in 64, 273")
    if "depth" not in get_allocator(allocator).options():
        raise AllocatorError(f"{allocator} has no nested budgets: use a tree method such as {DEFAULT}")
    images = load_images(image, validate)
    height, width = images[0].shape[-2:]
    grid = fit_grid(width, height, budgets[0], leaf, leaves=budgets[-1])[:2]
    observer = Observer(images, budgets[-1], allocator, grid=grid, leaf=leaf, validate=validate, **options)
    view = observer.view(query, fixation)
    depth = root_level(*grid, budgets[0])
    return (observer.tokens(observer.allocate(view, budget, depth=depth)) for budget in budgets)


def _verdict(answer: Any, going: Bool[Tensor, "b"]) -> Bool[Tensor, "b"]:
    """What `confident` said, one boolean for each image."""
    sure = torch.as_tensor(answer, device=going.device)
    if sure.dtype != torch.bool or sure.shape not in ((), going.shape):
        raise FixationError(
            f"confident returned {sure.dtype} {list(sure.shape)} for {len(going)} images: return booleans, one each"
        )
    return sure.expand_as(going)
