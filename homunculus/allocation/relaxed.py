"""Choices that carry gradients: what allocators with parameters are trained with.

A relaxed top-k gives every candidate a probability p = sigmoid((score - t) / temperature), with t solved so that they
sum to k. As the temperature falls, p becomes the hard choice. The threshold is found by bisection; its gradient is that
of the equation it solves, so it flows to the scores and to k itself. Also here: the penalty for empty regions, the loss
for bins nobody uses, and schedules for the temperature.
"""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from homunculus.allocation.grid import first_leaves
from homunculus.allocation.stratified import Strata
from homunculus.errors import AllocatorError, BudgetError

BISECTIONS = 60
CERTAIN = 1 - 1e-12  # no probability counts as more than this, so that logarithms stay finite


def relaxed_topk(
    scores: Float[Tensor, "b n"],
    k: int | Float[Tensor, "b 1"],
    temperature: float,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b n"]:
    """The probability of each of n candidates to be among the k chosen; each row sums to k.

    Scores are finite and act like log-weights: `noise` = 1 adds Gumbel noise, which samples instead of always
    preferring the highest. `k` may be a tensor, need not be whole, and receives gradients too.

    >>> relaxed_topk(torch.tensor([[3.0, 2.0, 1.0, 0.0]]), 2, temperature=0.5)
    tensor([[0.9526, 0.7311, 0.2689, 0.0474]])
    """
    if not temperature > 0:
        raise AllocatorError(f"temperature must be above 0, got {temperature}")
    n = scores.shape[1]
    if isinstance(k, int):
        if not 0 <= k <= n:
            raise BudgetError(f"cannot choose {k} of {n} candidates: choose from 0 to {n}")
        k = torch.full_like(scores[:, :1], k)
    if noise:
        scores = scores + noise * gumbel_noise(scores, generator)
    return torch.sigmoid((scores - threshold(scores, k, temperature)) / temperature)


def threshold(
    scores: Float[Tensor, "b n"],
    total: Float[Tensor, "b 1"],
    temperature: float,
    weights: Float[Tensor, "n"] | None = None,
) -> Float[Tensor, "b 1"]:
    """The t at which the (weighted) sum of sigmoid((score - t) / temperature) is `total`, differentiable in both.

    >>> threshold(torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[1.0]]).double(), 0.5)
    tensor([[0.5000]], dtype=torch.float64)
    """

    def weighted(x: Tensor) -> Tensor:
        return (x if weights is None else weights * x).sum(1, keepdim=True)

    with torch.no_grad():
        low = scores.amin(1, keepdim=True) - 50 * temperature
        high = scores.amax(1, keepdim=True) + 50 * temperature
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            too_many = weighted(torch.sigmoid((scores - middle) / temperature)) > total
            low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
        root = (low + high) / 2
    p = torch.sigmoid((scores - root) / temperature)
    excess = weighted(p) - total
    slope = weighted(p * (1 - p)).detach() / temperature
    # A Newton step for its gradient only: where hardly anything is undecided, its value would be rounding over nothing.
    return root + (excess - excess.detach()) / slope.clamp(min=torch.finfo(slope.dtype).tiny)


def gumbel_noise(like: Float[Tensor, "*shape"], generator: torch.Generator | None = None) -> Float[Tensor, "*shape"]:
    """Standard Gumbel noise: log-weights plus this, sorted, is sampling without replacement in proportion to weights.

    >>> gumbel_noise(torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """
    exponential = torch.empty_like(like).exponential_(generator=generator)
    return -exponential.clamp(min=torch.finfo(like.dtype).tiny).log()


def hard_topk_mask(scores: Float[Tensor, "b gh gw"], k: int | Int64[Tensor, "b 1"]) -> Bool[Tensor, "b gh gw"]:
    """The k highest leaves of each image, ties spread over it as everywhere else.

    >>> hard_topk_mask(torch.zeros(1, 2, 4), 2).int().tolist()
    [[[1, 0, 1, 0], [0, 0, 0, 0]]]
    """
    order = first_leaves(scores, scores[0].numel())
    chosen = (torch.arange(order.shape[1], device=order.device) < k).expand_as(order)
    return torch.zeros_like(chosen).scatter(1, order, chosen).unflatten(1, scores.shape[1:])


def straight_through(p: Float[Tensor, "*shape"], hard: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The hard choice forwards, the gradient of the relaxed one backwards.

    >>> p = torch.tensor([0.7, 0.3], requires_grad=True)
    >>> straight_through(p, p > 0.5).detach()
    tensor([1., 0.])
    """
    return hard.to(p.dtype) + (p - p.detach())


def coverage_penalty(p: Float[Tensor, "b gh gw"], cells: int = 8) -> Float[Tensor, "b"]:
    """The expected share of the `cells` x `cells` regions of an image that no token falls into.

    A region is occupied with probability 1 - prod(1 - p) over its leaves: counting empty regions has no gradient, this
    has. Leaves are taken as independent.

    >>> coverage_penalty(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]]), cells=2)
    tensor([0.6250])
    """
    gh, gw = p.shape[1:]
    regions = Strata.even((gw, gh), min(cells, gw), min(cells, gh), p.device)
    log_empty = regions.sums(torch.log1p(-p.double().clamp(max=CERTAIN)))
    return log_empty.exp().mean(1).to(p.dtype)


def dead_bin_loss(
    logits: Float[Tensor, "b n leaves"], relevance: Float[Tensor, "b leaves"], share: float = 0.1
) -> Float[Tensor, "b"]:
    """How far the bins nobody uses fall short of `share` of an even portion, in nats, averaged over all bins.

    Softmax over leaves makes every bin total 1, so a loss on those totals is a constant. Here every leaf asks which bin
    is responsible for it (softmax over bins), and a bin's usage is the relevance it answers for: N usages that sum to
    1. A logarithm keeps the gradient alive however dead the bin is.

    >>> logits = torch.tensor([[[0.0, 0.0], [-9.0, -9.0]]])  # the first bin takes both leaves
    >>> dead_bin_loss(logits, torch.full((1, 2), 0.5)) > 0
    tensor([True])
    """
    least = torch.finfo(relevance.dtype).tiny
    log_usage = (logits.log_softmax(1) + relevance.clamp(min=least).log()[:, None]).logsumexp(2)
    return (math.log(share / logits.shape[1]) - log_usage).clamp(min=0).mean(1)


# ------------------------------------------------------------------------------------------------ temperature schedules


def linear(step: int, total: int, start: float = 1.0, end: float = 0.1) -> float:
    """From `start` at step 0 to `end` at step `total` and after, in equal steps.

    >>> linear(50, 100)
    0.55
    """
    return start + (end - start) * _progress(step, total)


def exponential(step: int, total: int, start: float = 1.0, end: float = 0.1) -> float:
    """From `start` to `end` in equal ratios: as long between 1 and 0.1 as between 0.1 and 0.01.

    >>> round(exponential(50, 100, 1.0, 0.01), 6)
    0.1
    """
    return start * (end / start) ** _progress(step, total)


def cosine(step: int, total: int, start: float = 1.0, end: float = 0.1) -> float:
    """From `start` to `end`, slow at both ends.

    >>> cosine(0, 100), cosine(100, 100)
    (1.0, 0.1)
    """
    return end + (start - end) * (1 + math.cos(math.pi * _progress(step, total))) / 2


def _progress(step: int, total: int) -> float:
    return min(max(step / max(total, 1), 0.0), 1.0)
