"""`cdpruner`: tokens that matter to the question and are unlike each other (Zhang et al., 2025, arXiv 2506.10967).

A determinantal point process prefers sets whose kernel has a large determinant: the kernel is r_i * cosine * r_j, so a
token adds its relevance squared, less what those already chosen say of it. The greedy choice adds the token of the
largest gain. An incremental Cholesky factor gives every token's gain after each choice without any determinant.

The paper's r is a cosine of image and text, scaled by the least and the most of it. Relevance here is a density, the
softmax of scores: scaled as it is, r^2 is next to nothing for most tokens, and the most relevant are chosen nearly
however alike they are. Its logarithm is closer to such a cosine. Both are there, and both have rows in docs/tables.md.
"""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.peers.likeness import unit
from homunculus.peers.registry import register
from homunculus.peers.tokens import Reduced, Seen, kept, picked

NOTHING = 1e-8  # gains below are what rounding leaves of 0
STEPS = float(1 << 40)  # gains are compared in steps: those of equal tokens differ in their last bits


@register("cdpruner", "tokens relevant to the question and unlike each other", query=True, attention=())
def cdpruner(seen: Seen, budget: int, *, seed: int = 0, logarithm: bool = False) -> Reduced:
    """Greedy maximum of the determinant of r * cosine of features * r; r is relevance or its logarithm, from 0 to 1."""
    if seen.relevance is None:
        raise AllocatorError("cdpruner needs to know what is asked: give relevance, or take divprune, which is blind")
    relevance = logarithms(seen.relevance) if logarithm else seen.relevance
    return kept(seen, largest_gains(seen.features, from_0_to_1(relevance), budget))


def logarithms(relevance: Float[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
    """Of relevance on any scale, to base 2. A token that has none counts as having half the least that others of its
    image have: below them, as a region that is given is to what lies outside, and not so far that they become alike.

    >>> logarithms(torch.tensor([[1.0, 0.0, 4.0], [0.0, 0.0, 0.0]])).tolist()
    [[0.0, -1.0, 2.0], [0.0, 0.0, 0.0]]
    """
    logs = relevance.double().log2()
    least = logs.where(logs.isfinite(), torch.inf).amin(1, keepdim=True)
    return logs.where(logs.isfinite(), torch.where(least.isfinite(), least - 1, 0.0))


def from_0_to_1(values: Float[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
    """Scaled by the least and the most of each image, never of the batch; 1 where all are the same.

    >>> from_0_to_1(torch.tensor([[1.0, 3.0, 2.0], [7.0, 7.0, 7.0]])).tolist()
    [[0.0, 1.0, 0.5], [1.0, 1.0, 1.0]]
    """
    values = values.double()
    least, most = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    return torch.where(most > least, (values - least) / (most - least).where(most > least, 1.0), 1.0)


@torch.no_grad()
def largest_gains(
    features: Float[Tensor, "b n c"], relevance: Float64[Tensor, "b n"], budget: int
) -> Int64[Tensor, "b k"]:
    """In the order chosen; of equal gains the first.

    Once the chosen ones say all there is (a kernel of c channels has no more than c of rank), the most relevant follow.

    >>> features = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    >>> largest_gains(features, torch.tensor([[0.9, 1.0, 0.5]]).double(), 3)
    tensor([[1, 2, 0]])
    """
    vectors = unit(features, torch.float64) * relevance[..., None]
    gain = vectors.square().sum(-1)
    rank = NOTHING * relevance.square()  # below any real gain
    factor = vectors.new_zeros(vectors.shape[0], budget, vectors.shape[1])  # [b, k, n]: rows of the Cholesky factor
    found: list[Tensor] = []
    for step in range(budget):
        chosen = torch.where(gain > NOTHING, (gain * STEPS).round() / STEPS, rank).argmax(1, keepdim=True)
        found.append(chosen)
        own = gain.gather(1, chosen)
        kernel = (vectors @ picked(vectors, chosen).mT)[..., 0]
        before = factor[:, :step]
        said = (before.mT @ before.gather(2, chosen[:, None].expand(-1, step, 1)))[..., 0]
        row = torch.where(own > NOTHING, (kernel - said) * own.clamp(min=NOTHING).rsqrt(), 0.0)
        factor[:, step] = row
        gain = (gain - row.square()).scatter(1, chosen, -torch.inf)
        rank = rank.scatter(1, chosen, -torch.inf)
    return torch.cat(found, 1)
