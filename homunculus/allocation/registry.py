"""One dictionary of allocators. An allocator is `f(view, budget, *, seed=0, **options) -> Allocation`.

One that is `batchwide` spends budget * images over them all and returns a `PackedAllocation`; it also takes a sequence
of views, for images of different sizes.

Anybody can add one; every call of this process then knows it by name, and it is held to the budget like the others:

    from homunculus.allocation import leaf_cells, make_allocation, register

    @register("first-row", "the leaves of the first rows, in reading order")
    def first_row(view, budget, *, seed=0):
        leaves = torch.arange(budget, device=view.device).expand(view.batch, -1)
        return make_allocation(view, leaf_cells(leaves, view.grid[0]), "dyadic")
"""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, TypeVar, get_args

from torch import Tensor

from homunculus.errors import AllocatorError, BudgetError
from homunculus.structures import Allocation, PackedAllocation, View

T = TypeVar("T")


@dataclass(frozen=True)
class Allocator:
    """A registered method: its name, one line about it, the smallest budget it can keep, and what it looks at."""

    name: str
    summary: str
    function: Callable[..., Allocation | PackedAllocation]
    minimum: int = 1
    tiles: bool = False  # its cells cover every pixel exactly once
    uses_gaze: bool = False  # fixations move its cells
    single_gaze: bool = False  # only the first fixation does
    uses_relevance: bool = True  # the density does
    needs_pixels: bool = False  # it cannot work on a density alone
    turned: bool = False  # its cells are boxes at an angle
    batchwide: bool = False  # one budget for the whole batch: counts differ and depend on batch mates
    density: Callable[[View], Tensor] = attrgetter("relevance")  # what it spends by, for drawing
    trains: str = ""  # what of it can be trained, and with what

    def options(self) -> list[str]:
        """The names of the keyword options it takes."""
        return options_of(self.function)

    def __call__(
        self, view: View | Sequence[View], budget: int, *, seed: int | Tensor = 0, **options: Any
    ) -> Allocation | PackedAllocation:
        if not self.batchwide and not isinstance(view, View):
            raise AllocatorError(f"{self.name} takes images of one size at a time: call it for each view")
        if budget < self.minimum:
            raise BudgetError(
                f"{self.name} needs a budget of at least {self.minimum}, got {budget}: raise it, "
                "or use uniform, topk or random, which take any"
            )
        known = self.options()
        for option in options.keys() - known:
            raise AllocatorError(f"{self.name} has no option '{option}': it takes {', '.join(known) or 'none'}")
        check_numbers(self.name, self.function, options)
        if "seed" in known:
            options["seed"] = seed
        allocation = self.function(view, budget, **options)
        if not isinstance(allocation, (Allocation, PackedAllocation)):
            raise AllocatorError(
                f"{self.name} returned {type(allocation).__name__}: return an Allocation (make_allocation)"
            )
        if self.batchwide and not isinstance(allocation, PackedAllocation):
            raise AllocatorError(f"{self.name} is batchwide and returned an Allocation: return a PackedAllocation")
        cells = allocation.boxes.numel() // 4
        images = view.batch if isinstance(view, View) else sum(own.batch for own in view)
        if cells != budget * images:
            raise AllocatorError(f"{self.name} returned {cells} cells for {images} x {budget}: the budget is a promise")
        return allocation


def options_of(function: Callable) -> list[str]:
    """The names of the keyword options that a method takes."""
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


def check_numbers(name: str, function: Callable, options: Mapping[str, Any], tensors: bool = True) -> None:
    """Options declared as numbers must be finite numbers, whole ones where they are declared so, switches True or
    False, or None where that is declared too. A tensor may stand for any of them, or, without `tensors`, for those that
    are declared to take one."""
    declared = inspect.signature(function).parameters
    for option, value in options.items():
        kinds = get_args(declared[option].annotation) or (declared[option].annotation,)
        kind = next((kind for kind in (bool, int, float) if kind in kinds), None)
        if kind is None or (isinstance(value, Tensor) and (tensors or Tensor in kinds)):
            continue
        if value is None and type(None) in kinds:
            continue
        if kind is bool:
            fine, what = isinstance(value, bool), "True or False"
        else:
            fine = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
            fine, what = fine and math.isfinite(value), "a whole number" if kind is int else "a finite number"
        if not fine:
            raise AllocatorError(f"{option} of {name} is {what}, {declared[option].default} by default, got {value!r}")


def called(name: Any, registry: Mapping[str, T], kind: str, known: Iterable[str]) -> T:
    """What is registered by a name, or an error that says which of the `known` ones may have been meant."""
    if not isinstance(name, str):
        raise AllocatorError(f"{kind} is given by name, got {type(name).__name__}: register it first")
    if name not in registry:
        near = difflib.get_close_matches(name, registry, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(known)}"
        raise AllocatorError(f"unknown {kind.split()[-1]} '{name}': {hint}")
    return registry[name]


DEFAULT = "foveated-pyramid"

_REGISTRY: dict[str, Allocator] = {}


def register(name: str, summary: str, **traits: Any) -> Callable[[Callable], Callable]:
    """Decorator: make a function known as the allocator `name`; `traits` are fields of `Allocator`."""

    def add(function: Callable) -> Callable:
        if name in _REGISTRY:
            raise AllocatorError(f"an allocator called '{name}' exists already: choose another name")
        _REGISTRY[name] = Allocator(name, summary, function, **traits)
        return function

    return add


def get_allocator(name: Any) -> Allocator:
    """The allocator of that name.

    >>> get_allocator("topk").minimum
    1
    >>> get_allocator("top-k")
    Traceback (most recent call last):
    homunculus.errors.AllocatorError: unknown allocator 'top-k': did you mean 'topk'?
    """
    return called(name, _REGISTRY, "an allocator", allocators())


def allocators() -> dict[str, str]:
    """Every allocator's name with one line about it, the default first.

    >>> list(allocators())[0]
    'foveated-pyramid'
    """
    names = sorted(_REGISTRY, key=lambda name: (name != DEFAULT, name))
    return {name: _REGISTRY[name].summary for name in names}
