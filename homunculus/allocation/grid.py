"""One level only: `uniform` cells over the whole image, and the leaves that `topk` or chance picks."""

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from homunculus.allocation.cells import leaf_cells, make_allocation
from homunculus.allocation.registry import register
from homunculus.errors import AllocatorError
from homunculus.geometry import check_leaves, spread_order
from homunculus.structures import Allocation, View


@register(
    "uniform",
    "equal near-square cells over the whole image: plain downsampling",
    tiles=True,
    uses_relevance=False,
    trains="nothing",
)
def uniform(view: View, budget: int, *, seed: int = 0) -> Allocation:
    """R = round(sqrt(N*H/W)) rows of floor(N/R) or ceil(N/R) cells; row heights follow the counts, so areas agree."""
    (width, height), (gw, gh) = view.image_size, view.grid
    rows = min(max(1, round(math.sqrt(budget * height / width))), budget)
    cell = torch.arange(budget, device=view.device)
    # Row r starts at cell floor(r*N/R): the longer rows are spread evenly over the image.
    row = ((cell + 1) * rows - 1) // budget
    first, after = row * budget // rows, (row + 1) * budget // rows
    count = (after - first).double()
    x0, x1 = (cell - first) * gw / count, (cell - first + 1) * gw / count
    y0, y1 = first.double() * gh / budget, after.double() * gh / budget
    cells = torch.stack((x0, y0, x1, y1), dim=-1).expand(view.batch, -1, -1)
    return make_allocation(view, cells, "box")


@register("topk", "the most relevant leaves: sharp where it looks, blind elsewhere")
def topk(view: View, budget: int, *, seed: int = 0) -> Allocation:
    """The N leaves of highest density; equal ones are taken spread over the image."""
    return _leaves(view, budget, first_leaves(view.density, budget))


@register(
    "random",
    "leaves drawn at random, the same ones for the same image and seed",
    uses_relevance=False,
    trains="nothing",
)
def random(view: View, budget: int, *, seed: int | Int64[Tensor, "b"] = 0) -> Allocation:
    """N leaves without replacement, drawn from `seed` (one for all, or one per image) and the image's own density."""
    return _leaves(view, budget, first_leaves(random_keys(view, seed), budget))


def first_leaves(keys: Tensor, budget: int) -> Int64[Tensor, "b n"]:
    """The row-major indices of the `budget` highest keys `[B, gh, gw]`; ties are taken in spreading order.

    >>> first_leaves(torch.ones(1, 4, 4), 4)
    tensor([[ 0,  8,  2, 10]])
    """
    gh, gw = keys.shape[1:]
    check_leaves((gw, gh), budget)
    spread = spread_order(gw, gh, keys.device)
    order = torch.sort(keys.flatten(1)[:, spread], dim=1, descending=True, stable=True).indices
    return spread[order[:, :budget]]


def _leaves(view: View, budget: int, leaves: Int64[Tensor, "b n"]) -> Allocation:
    shares = view.relevance.flatten(1).gather(1, leaves)
    return make_allocation(view, leaf_cells(leaves, view.grid[0]), "dyadic", scores=shares)


def random_keys(view: View, seed: int | Int64[Tensor, "b"]) -> Int64[Tensor, "b gh gw"]:
    """A random 64-bit integer for every leaf, from the seed, the grid and every bit of the image's density.

    Integer arithmetic wraps and is associative, so the draw is the same alone and in a batch, on any device, without a
    generator and without asking the device for anything.
    """
    if isinstance(seed, Tensor):
        if seed.shape != (view.batch,) or seed.is_floating_point():
            raise AllocatorError(
                f"seeds are whole numbers, one for each of {view.batch} images, got {list(seed.shape)}"
            )
    elif not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 63:
        raise AllocatorError(f"a seed is a 64-bit whole number, got {seed!r}")
    gw, gh = view.grid
    place = torch.arange(gw * gh, device=view.device)
    bits = view.density.contiguous().view(torch.int64).flatten(1)
    content = scramble(bits ^ scramble(place + 1)).sum(1)  # a wrapping sum has no order
    seeds = seed if isinstance(seed, Tensor) else torch.full_like(content, seed)
    image = scramble(scramble(content ^ (gw << 32 | gh)) + seeds)
    return scramble(image[:, None] ^ scramble(place)).unflatten(1, (gh, gw))


def scramble(x: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """A one-to-one mixing of 64-bit integers (xor-shifts and odd multiplications): neighbours land far apart.

    >>> len(set(scramble(torch.arange(1000)).tolist()))
    1000
    """
    x = x + 0x1E3779B97F4A7C15
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
