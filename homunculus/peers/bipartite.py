"""One round of bipartite soft matching: every other token looks for its like among the rest, and the best pairs merge.

The step that ToMe (Bolya et al., 2023, arXiv 2210.09461) takes in every layer and AIM takes before the language model.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from homunculus.peers.likeness import cosines, top, unit
from homunculus.peers.tokens import Reduced, Seen, picked


class Groups(NamedTuple):
    """Groups of tokens that have become one, in reading order of their first tokens. Values are in full precision."""

    values: tuple[Float[Tensor, "b t _"], ...]  # features, places and keys: means of each group
    first: Int64[Tensor, "b t"]
    mass: Float32[Tensor, "b t"]


class Softness(NamedTuple):
    """A token weighs sigmoid((likeness - threshold) / temperature) of its mass in the mean with its partner."""

    threshold: float | Tensor
    temperature: float | Tensor


def single(seen: Seen, keys: Float[Tensor, "b n d"]) -> Groups:
    """Every token a group of its own; `keys` is what likeness is measured in."""
    values = (seen.features, seen.places, keys)
    wide = tuple(value.to(torch.promote_types(value.dtype, torch.float32)) for value in values)
    batch, count = keys.shape[:2]
    first = torch.arange(count, device=keys.device).expand(batch, -1)
    return Groups(wide, first, torch.ones(batch, count, device=keys.device))


def merged(groups: Groups, pairs: int, softness: Softness | None = None) -> Groups:
    """As many groups fewer as there are `pairs`, at most half of them: the most alike first, equal ones in order.

    Groups at even places look for the most alike at an odd one; several may find the same. A group becomes the mean
    of its tokens, so mass, and the mean of all tokens by mass, stay the same. With `softness` the mean counts a
    newcomer less the less it is alike; its mass still goes over in full.

    >>> features = torch.tensor([[[1.0, 0], [1, 1], [0, 1], [0, 2]]])
    >>> seen = Seen(features, torch.zeros(1, 4, 3), (2, 2), features, *[torch.ones(1, 4)] * 2)
    >>> merged(single(seen, features), 1).values[0].tolist(), merged(single(seen, features), 1).mass.tolist()
    ([[[1.0, 0.0], [1.0, 1.0], [0.0, 1.5]]], [[1.0, 1.0, 2.0]])
    """
    keys = groups.values[-1]
    looking, found = unit(keys[:, ::2]), unit(keys[:, 1::2])
    with torch.no_grad():
        best, partner = cosines(looking, found).max(2)
        order = top(best, best.shape[1])
        going, staying = order[:, :pairs], order[:, pairs:].sort(1).values
        target = partner.gather(1, going)
        # [b, odd, pairs]: who goes to whom.
        belongs = target[:, None] == torch.arange(found.shape[1], device=keys.device)[:, None]
    mass, arriving = groups.mass[:, 1::2], groups.mass[:, ::2].gather(1, going)
    weight = arriving
    if softness is not None:
        alike = (picked(looking, going) * picked(found, target)).sum(-1)
        weight = arriving * torch.sigmoid((alike - softness.threshold) / softness.temperature)
    joined = (belongs * weight[:, None]).float()
    total = mass + joined.sum(2)
    values = []
    for value in groups.values:
        own, other = value[:, 1::2], value[:, ::2]
        mean = (own * mass[..., None] + joined.to(value.dtype) @ picked(other, going)) / total[..., None]
        values.append(torch.cat((picked(other, staying), mean), 1))
    first = groups.first[:, ::2]
    newcomers = torch.where(belongs, first.gather(1, going)[:, None], 1 << 62)
    first = torch.cat((first.gather(1, staying), groups.first[:, 1::2].minimum(newcomers.amin(2))), 1)
    mass = torch.cat((groups.mass[:, ::2].gather(1, staying), mass + (belongs * arriving[:, None]).sum(2)), 1)
    first, order = first.sort(1)
    return Groups(tuple(picked(value, order) for value in values), first, mass.gather(1, order))


def as_reduced(seen: Seen, groups: Groups) -> Reduced:
    """What is left, in the precision it came in."""
    features, places, _ = groups.values
    return Reduced(features.to(seen.features.dtype), places.to(seen.places.dtype), groups.first, groups.mass)
