"""`variable`: as many tokens for each image as its relevance asks for, padded to the most of the batch.

Not a published method but what many of them have: a count that differs from image to image. Relevance that is gathered
in few places needs few tokens, relevance that is spread needs many. How spread it is says the effective number of
leaves, exp(entropy): 1 where all of it lies in one leaf, all leaves where it is even. Thresholds part that number into
as many ranges as there are counts.

A batch must be rectangular, so images with few tokens are padded to the most that one of them has. Nobody looks at
padding, in the encoder or in the decoder, and it costs as much as a token: that waste is reported. Counts have to be
known to cut the images, so here, unlike everywhere else, the host waits for the device.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from homunculus.density import normalise, total_mass
from homunculus.errors import AllocatorError, BudgetError
from homunculus.model.decoder import Memory
from homunculus.model.encoder import Cells, cells_of
from homunculus.model.vlm import CompactVLM, look
from homunculus.structures import rectangular

COUNTS = (64, 100, 160, 256, 400)
MEAN = 273  # what THRESHOLDS are for
# By `thresholds_among`: the shipped model's scorer on 450 questions of the training split, 150 of each family at 1024
# pixels a side. Documents, whose relevance is gathered, then have 203 on average, scenes 302, scene-text 314.
THRESHOLDS = (5.45, 8.29, 12.4, 22.5)


class Padded(NamedTuple):
    """Cells of images with different counts, padded to the most of them."""

    patches: Float[Tensor, "b n 3 leaf leaf"]
    cells: Cells
    real: Bool[Tensor, "b n"] | None  # None: nothing is padding
    counts: tuple[int, ...]

    @property
    def waste(self) -> float:
        """The share of all tokens that are padding."""
        return 1 - sum(self.counts) / (len(self.counts) * max(self.counts))


def spread(density: Float[Tensor, "b gh gw"]) -> Float64[Tensor, "b"]:
    """The effective number of leaves, exp(entropy), whatever the density's scale.

    >>> round(spread(torch.ones(1, 4, 8)).item(), 9), spread(torch.eye(4)[None, :1]).item()
    (32.0, 1.0)
    """
    return total_mass(torch.special.entr(normalise(density.double()))).flatten().exp()


def counts_of(
    density: Float[Tensor, "b gh gw"], thresholds: Sequence[float] = THRESHOLDS, counts: Sequence[int] = COUNTS
) -> tuple[int, ...]:
    """How many tokens each image gets: the first count below the first threshold, one more for each that is reached.

    >>> counts_of(torch.stack((torch.eye(4), torch.ones(4, 4))), (3, 9), (10, 20, 30))
    (20, 30)
    """
    if len(thresholds) != len(counts) - 1 or list(thresholds) != sorted(thresholds):
        raise AllocatorError(f"{len(counts)} counts need {len(counts) - 1} rising thresholds, got {list(thresholds)}")
    ranges = [sum(value >= threshold for threshold in thresholds) for value in spread(density).tolist()]  # waits
    return tuple(counts[number] for number in ranges)


def thresholds_for(
    densities: Float[Tensor, "s gh gw"], mean: float = MEAN, counts: Sequence[int] = COUNTS
) -> tuple[float, ...]:
    """Thresholds at which a sample of densities gets `mean` tokens on average, as nearly as their number allows.

    Of all ways to share the images among the counts the evenest with that mean is taken: shares that go as
    exp(x * count) for some x.

    >>> densities = torch.rand(200, 8, 8, generator=torch.Generator().manual_seed(0)) ** 4
    >>> given = counts_of(densities, thresholds_for(densities, 200))
    >>> sum(given) / 200, sorted(set(given))
    (199.66, [64, 100, 160, 256, 400])
    """
    return thresholds_among(spread(densities).tolist(), mean, counts)


def thresholds_among(spreads: Sequence[float], mean: float = MEAN, counts: Sequence[int] = COUNTS) -> tuple[float, ...]:
    """The same for a sample of which only the effective numbers of leaves are known, of grids of any size."""
    if not min(counts) < mean < max(counts):
        raise BudgetError(f"a mean of {mean:g} tokens is not between {min(counts)} and {max(counts)}: change either")
    low, high = -1.0, 1.0  # of x, for a token
    for _ in range(60):
        x = (low + high) / 2
        weights = [math.exp(x * (count - mean)) for count in counts]
        too_many = sum(w * count for w, count in zip(weights, counts, strict=True)) > mean * sum(weights)
        low, high = (low, x) if too_many else (x, high)
    ordered = sorted(spreads)
    ends, total = [], 0.0
    for weight in weights[:-1]:
        total += weight / sum(weights)
        ends.append(min(max(round(total * len(ordered)), 0), len(ordered)))
    edges = [0.0, *ordered, math.inf]
    return tuple(_between(edges[end], edges[end + 1]) for end in ends)


def _between(below: float, above: float) -> float:
    """A number of three digits where one lies between them, else their mean."""
    middle = below * 2 + 1 if math.isinf(above) else (below + above) / 2
    short = float(f"{middle:.3g}")
    return short if below < short <= above else middle


def padded(
    images: Shaped[Tensor, "b 3 h w"],
    density: Float[Tensor, "b gh gw"],
    counts: Sequence[int],
    *,
    leaf: int = 16,
    dtype: torch.dtype | None = None,
) -> Padded:
    """A foveated pyramid of each image, of as many cells as it is given.

    >>> tokens = padded(torch.rand(2, 3, 256, 256), torch.rand(2, 16, 16), (64, 100))
    >>> tokens.patches.shape, tokens.real.sum(1).tolist(), round(tokens.waste, 3)
    (torch.Size([2, 100, 3, 16, 16]), [64, 100], 0.18)
    """
    most, device = max(counts), images.device
    own = torch.tensor(list(counts)).to(device)
    real = torch.arange(most, device=device) < own[:, None]
    patches: Tensor | None = None
    cells = Cells(*(torch.zeros(len(images), most, *last, device=device) for last in ((4,), (), (3,))))
    for count in sorted(set(counts)):
        some = torch.tensor([i for i, wanted in enumerate(counts) if wanted == count]).to(device)
        tokens = look(images[some], density[some], count, leaf=leaf, dtype=dtype)
        if patches is None:
            patches = tokens.patches.new_zeros(len(images), most, *tokens.patches.shape[2:])
        patches[some, :count] = tokens.patches
        for whole, part in zip(cells, cells_of(rectangular(tokens.allocation)), strict=True):
            whole[some, :count] = part
    assert patches is not None
    return Padded(patches, cells, None if min(counts) == most else real, tuple(counts))


def remember_padded(model: CompactVLM, tokens: Padded) -> Memory:
    """What the decoder keeps of images with different counts; padding is masked everywhere."""
    features = model.encoder(tokens.patches.to(model.encoder.norm.weight.dtype), tokens.cells, tokens.real)
    return model.decoder.remember(features, tokens.cells)._replace(real=tokens.real)
