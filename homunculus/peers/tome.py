"""`tome` and `tome-soft`: merge the most alike tokens, a few at a time (Bolya et al., 2023, arXiv 2210.09461).

The paper merges the same number in every layer of the encoder. Here the encoder has run in full, so the rounds follow
each other at once: as many as a ViT-L has layers, and more where half of what is left is too few. Their number matters:
in few rounds the last ones must merge nearly every token with something, however unlike it is.
"""

from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.peers.bipartite import Groups, Softness, as_reduced, merged, single
from homunculus.peers.registry import register
from homunculus.peers.tokens import Reduced, Seen

ROUNDS = 24


@register("tome", "merges the most alike tokens, round by round", query=False, merges=True, attention=())
def tome(seen: Seen, budget: int, *, seed: int = 0, rounds: int = ROUNDS) -> Reduced:
    """Equal rounds of bipartite matching by the cosine of keys; a token is the mean of all it stands for."""
    return as_reduced(seen, _in_rounds(single(seen, seen.keys), budget, rounds, None))


@register(
    "tome-soft",
    "as tome, but tokens that are hardly alike hardly change each other",
    query=False,
    merges=True,
    attention=(),
)
def tome_soft(
    seen: Seen,
    budget: int,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    threshold: float | Tensor = 0.5,
    temperature: float | Tensor = 0.1,
) -> Reduced:
    """A token that is merged weighs sigmoid((likeness - threshold) / temperature) of its mass in the mean.

    Far below the threshold this is pruning, far above it is `tome`. The mass goes over in full either way. Both numbers
    may be tensors that learn: the result has gradients in them, and through likeness in the keys.
    """
    if not isinstance(temperature, Tensor) and temperature <= 0:
        raise AllocatorError(f"temperature of tome-soft is above 0, 0.1 by default, got {temperature!r}")
    return as_reduced(seen, _in_rounds(single(seen, seen.keys), budget, rounds, Softness(threshold, temperature)))


def _in_rounds(groups: Groups, budget: int, rounds: int, softness: Softness | None) -> Groups:
    left = groups.mass.shape[1]
    if rounds < 1:
        raise AllocatorError(f"rounds of merging are 1 or more, {ROUNDS} by default, got {rounds}")
    for pairs in round_sizes(left, budget, rounds):
        groups = merged(groups, pairs, softness)
    return groups


def round_sizes(count: int, budget: int, rounds: int) -> list[int]:
    """How many pairs merge in each round: equal numbers, never more than half of what is left.

    >>> round_sizes(64, 40, 3), round_sizes(64, 4, 2)
    ([8, 8, 8], [30, 17, 8, 4, 1])
    """
    each, sizes = -(-(count - budget) // rounds), []
    while count > budget:
        sizes.append(min(each, count // 2, count - budget))
        count -= sizes[-1]
    return sizes
