"""One dictionary of allocators. An allocator is `f(view, budget, *, seed=0, **options) -> Allocation`.

Anybody can add one, and it is then in the gallery, in the tests over all allocators and in every comparison:

    @register("mine", "what it does in one line", minimum=1)
    def mine(view, budget, *, seed=0): ...
"""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import Tensor

from homunculus.errors import AllocatorError, BudgetError
from homunculus.structures import Allocation, PackedAllocation, View


@dataclass(frozen=True)
class Allocator:
    """A registered method: its name, one line about it, the smallest budget it can keep, whether its cells tile."""

    name: str
    summary: str
    function: Callable[..., Allocation | PackedAllocation]
    minimum: int = 1
    tiles: bool = False
    density: Callable[[View], Tensor] = attrgetter("relevance")  # what it spends by, for drawing

    def options(self) -> list[str]:
        """The names of the keyword options it takes."""
        return [p.name for p in inspect.signature(self.function).parameters.values() if p.kind is p.KEYWORD_ONLY]

    def __call__(self, view: View, budget: int, **options: Any) -> Allocation | PackedAllocation:
        if budget < self.minimum:
            raise BudgetError(f"{self.name} needs a budget of at least {self.minimum}, got {budget}")
        for option in options.keys() - self.options():
            raise AllocatorError(f"{self.name} has no option '{option}': it takes {', '.join(self.options())}")
        return self.function(view, budget, **options)


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


def get_allocator(name: str) -> Allocator:
    """The allocator of that name.

    >>> get_allocator("topk").minimum
    1
    >>> get_allocator("top-k")
    Traceback (most recent call last):
    homunculus.errors.AllocatorError: unknown allocator 'top-k': did you mean 'topk'?
    """
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(allocators())}"
        raise AllocatorError(f"unknown allocator '{name}': {hint}")
    return _REGISTRY[name]


def allocators() -> dict[str, str]:
    """Every allocator's name with one line about it, the default first.

    >>> list(allocators())[0]
    'foveated-pyramid'
    """
    names = sorted(_REGISTRY, key=lambda name: name != DEFAULT)  # stable: the others as they were registered
    return {name: _REGISTRY[name].summary for name in names}
