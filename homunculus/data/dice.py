"""Seeded chance that is the same everywhere: a counter-based stream named by words, and the few draws we need.

numpy promises the bits of its bit generators for ever, but not what `Generator` makes of them, and Python promises only
`random()`. So the bits are Philox's, keyed by a hash of the name, and every draw is made from them here.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

import numpy as np
from jaxtyping import Float32, UInt8

T = TypeVar("T")

_AHEAD = 512  # draws made at once: one at a time would cost a lock each


class Dice:
    """A stream of chance named by what it is for; equal names give equal draws on every machine.

    >>> dice = Dice("documents", "train", 7)
    >>> dice.integer(1, 6), Dice("documents", "train", 7).integer(1, 6) == Dice("documents", "train", 7).integer(1, 6)
    (4, True)
    """

    def __init__(self, *name: str | int) -> None:
        self._name = name
        digest = blake2b(repr(name).encode(), digest_size=16).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest, "little"))
        self._ready: list[float] = []

    def fork(self, *name: str | int) -> "Dice":
        """An independent stream: drawing more or less from one does not disturb the other."""
        return Dice(*self._name, *name)

    def random(self) -> float:
        """A float in [0, 1) with 53 random bits."""
        if not self._ready:
            self._ready = self.array(_AHEAD).tolist()[::-1]
        return self._ready.pop()

    def array(self, count: int) -> np.ndarray:
        """`count` float64 in [0, 1) at once."""
        return (self._bits.random_raw(count) >> np.uint64(11)) * 2.0**-53

    def normal(self, count: int) -> Float32[np.ndarray, " count"]:
        """`count` standard normal values to within 2 %: the sum of eight random bytes, exact integer arithmetic."""
        octets = self._bits.random_raw(count).view(np.uint8).reshape(count, 8)
        total = octets.sum(1, dtype=np.int32) - 1020
        return (total / np.float32(np.sqrt(8 * (256**2 - 1) / 12))).astype(np.float32)

    def octets(self, count: int) -> UInt8[np.ndarray, " count"]:
        """`count` random bytes at once: what noise over a whole picture is made of."""
        return self._bits.random_raw(-(-count // 8)).astype("<u8").view(np.uint8)[:count]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return low + int(self.random() * (high - low + 1))

    def choice(self, things: Sequence[T]) -> T:
        return things[int(self.random() * len(things))]

    def weighted(self, things: Sequence[T], weights: Sequence[float]) -> T:
        place = self.random() * sum(weights)
        for thing, weight in zip(things, weights, strict=True):
            place -= weight
            if place < 0:
                return thing
        return things[-1]

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """A new list in random order."""
        mixed = list(things)
        for last in range(len(mixed) - 1, 0, -1):
            other = int(self.random() * (last + 1))
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed

    def sample(self, things: Sequence[T], count: int) -> list[T]:
        """`count` different things in random order.

        >>> sorted(Dice("abc").sample("abc", 3))
        ['a', 'b', 'c']
        """
        return self.shuffled(things)[:count]

    def letters(self, alphabet: str, count: int) -> str:
        return "".join(self.choice(alphabet) for _ in range(count))
