"""Where the time of one pass goes: calls timed in place, on a CUDA device by events, so that nothing waits for them."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class Spans:
    """Times of named calls, each with the names of the calls it was made within.

    >>> class Thing:
    ...     def outer(self):
    ...         self.inner()
    ...     def inner(self):
    ...         time.sleep(0.01)
    >>> thing, spans = Thing(), Spans("cpu")
    >>> with spans.timing([(thing, "outer", "all"), (thing, "inner", "part")]):
    ...     thing.outer()
    ...     thing.inner()
    >>> spans.total("part") >= 20, 10 <= spans.total("part", outside="all") < spans.total("part"), vars(thing)
    (True, True, {})
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.clear()

    def clear(self) -> None:
        self._open: list[str] = []
        self._found: list[tuple[str, tuple[str, ...], Any, Any]] = []

    def total(self, label: str, outside: str | None = None) -> float:
        """Milliseconds in calls of this name, but for those within a call named `outside` (waits for the device)."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        chosen = [(start, stop) for name, within, start, stop in self._found if name == label and outside not in within]
        if self.device == "cuda":
            return sum(start.elapsed_time(stop) for start, stop in chosen)
        return sum((stop - start) * 1000 for start, stop in chosen)

    @contextmanager
    def timing(self, seams: Sequence[tuple[Any, str, str]]) -> Iterator[None]:
        """While this lasts, calls of `owner.name` are timed, for every (owner, name, label)."""
        undo: list[Callable[[], None]] = []
        try:
            for owner, name, label in seams:
                undo.append(self._wrap(owner, name, label))
            yield
        finally:
            for one in reversed(undo):
                one()

    def _wrap(self, owner: Any, name: str, label: str) -> Callable[[], None]:
        own = name in vars(owner)
        function = getattr(owner, name)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            within = tuple(self._open)
            self._open.append(label)
            start = self._now()
            try:
                return function(*args, **kwargs)
            finally:
                self._found.append((label, within, start, self._now()))
                self._open.pop()

        setattr(owner, name, run)
        return (lambda: setattr(owner, name, function)) if own else (lambda: delattr(owner, name))

    def _now(self) -> Any:
        if self.device != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
