"""One dictionary of peers. A peer is `f(seen, budget, *, seed=0, **options) -> Reduced`, all images of a batch at once.

Called by name it is held to the budget like the allocators, and it does its sums in full precision even inside a model
that runs in bfloat16. Nothing here waits for the device: what is checked is shapes.

    from homunculus.peers import get_peer, kept, register

    @register("first", "the first tokens, in reading order", query=False)
    def first(seen, budget, *, seed=0):
        return kept(seen, torch.arange(budget, device=seen.features.device).expand(len(seen.features), -1))

    reduced = get_peer("first")(seen, 273)
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from homunculus.allocation.registry import called, check_numbers, options_of
from homunculus.errors import AllocatorError, BudgetError
from homunculus.peers.tokens import BOTH, Reduced, Seen, check_seen, kept


@dataclass(frozen=True)
class Peer:
    """A published method that acts on features: its name, one line about it, and what it looks at."""

    name: str
    summary: str
    function: Callable[..., Reduced]
    query: bool = False  # its choice depends on the question: it needs relevance
    merges: bool = False  # tokens it gives up go into those it keeps
    attention: Collection[str] = BOTH  # where it may ask how much each token is looked at, which is dear to find out

    def options(self) -> list[str]:
        """The names of the keyword options it takes."""
        return options_of(self.function)

    def _check_options(self, options: dict[str, Any]) -> None:
        """Options must be known; numbers among them finite, whole ones where they are declared so."""
        for option in options.keys() - self.options():
            takes = ", ".join(own for own in self.options() if own != "seed") or "none"
            raise AllocatorError(f"{self.name} has no option '{option}': it takes {takes}")
        check_numbers(self.name, self.function, options, tensors=False)

    def __call__(self, seen: Seen, budget: Any, *, seed: Any = 0, **options: Any) -> Reduced:
        self._check_options(options)
        check_seen(seen)
        batch, count = seen.features.shape[:2]
        if isinstance(budget, bool) or not isinstance(budget, Integral) or not 1 <= int(budget) <= count:
            raise BudgetError(
                f"{self.name} keeps 1 to {count} tokens of these images, got {budget!r}: change the budget"
            )
        if self.query and seen.relevance is None:
            raise AllocatorError(
                f"{self.name} needs to know what is asked: give relevance, or take a peer that is blind"
            )
        asked = [{"late": "attention", "early": "early"}[when] for when in self.attention]
        if count and any(getattr(seen, field).shape[1] == 0 for field in asked):
            raise AllocatorError(
                f"{self.name} needs to know how much tokens are looked at: give {' and '.join(asked)}, one for each "
                "token"
            )
        if "seed" in self.options():
            options["seed"] = _checked_seed(seed, batch)
        if budget == count:  # nothing to give up
            return kept(seen, torch.arange(count, device=seen.features.device).expand(batch, -1))
        with full_precision(seen.features.device.type):
            reduced = self.function(seen, int(budget), **options)
        _check_reduced(self.name, seen, int(budget), reduced)
        return reduced


def full_precision(device: str) -> AbstractContextManager:
    """No autocast: likeness in bfloat16 would tell few tokens apart."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _checked_seed(seed: Any, batch: int) -> int | Tensor:
    if isinstance(seed, Tensor):
        if seed.shape != (batch,) or seed.dtype != torch.int64:
            raise AllocatorError(
                f"seeds are int64, one for each of {batch} images, got {seed.dtype} {list(seed.shape)}"
            )
    elif isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 63:
        raise AllocatorError(f"a seed is a 64-bit whole number, got {seed!r}")
    return seed


def _check_reduced(name: str, seen: Seen, budget: int, reduced: Any) -> None:
    if not isinstance(reduced, Reduced):
        raise AllocatorError(f"{name} returned {type(reduced).__name__}: return Reduced (see kept)")
    batch, _, channels = seen.features.shape
    shapes = ((batch, budget, channels), (batch, budget, seen.places.shape[2]), (batch, budget), (batch, budget))
    for field, value, shape in zip(Reduced._fields, reduced, shapes, strict=True):
        if value.shape != shape:
            raise AllocatorError(
                f"{name} returned {field} {list(value.shape)} instead of {list(shape)}: the budget is a promise"
            )


_REGISTRY: dict[str, Peer] = {}


def register(name: str, summary: str, **traits: Any) -> Callable[[Callable], Callable]:
    """Decorator: make a function known as the peer `name`; `traits` are fields of `Peer`."""
    attention = traits.get("attention", BOTH)
    if not isinstance(attention, (tuple, list, set, frozenset)) or not set(attention) <= set(BOTH):
        raise AllocatorError(f"attention of {name} is some of {BOTH} or (), got {attention!r}")

    def add(function: Callable) -> Callable:
        if name in _REGISTRY:
            raise AllocatorError(f"a peer called '{name}' exists already: choose another name")
        _REGISTRY[name] = Peer(name, summary, function, **traits)
        return function

    return add


def get_peer(name: Any) -> Peer:
    """The peer of that name.

    >>> get_peer("cdpruner").query
    True
    >>> get_peer("prumerge")
    Traceback (most recent call last):
    homunculus.errors.AllocatorError: unknown peer 'prumerge': did you mean 'prumerge+'?
    """
    return called(name, _REGISTRY, "a peer", peers())


def peers() -> dict[str, str]:
    """Every peer's name with one line about it.

    >>> list(peers())[:3]
    ['aim', 'cdpruner', 'coarse-then-residual']
    """
    return {name: _REGISTRY[name].summary for name in sorted(_REGISTRY)}
