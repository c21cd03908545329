"""Where the answer is, as a density over leaves; and the same as an imperfect scorer would have it.

A reader that only ever saw the true region fails where the scorer errs. `corrupted` errs in the ways scorers do, at
random and independently for each map, so that a reader can be trained before there is a scorer:

  blur          a Gaussian of 0.3 to 3 leaves, log-uniform
  displacement  with probability 0.3, by up to 3 leaves in each direction
  false peaks   with probability 0.5, one to three blobs elsewhere that carry up to 70 % of the mass
  miss          with probability `miss`, the false peaks carry all of it
  floor         0 to 30 % of the mass, spread evenly over the image, the true region included

Random numbers come from the CPU, so a seed gives the same errors on every device.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from homunculus.errors import DensityError
from homunculus.geometry import Size
from homunculus.train.samples import sent

BLUR = (0.3, 3.0)  # leaves
DISPLACED, DISPLACEMENT = 0.3, 3.0  # how often, and by how many leaves at most
DISTRACTED, FALSE = 0.5, 0.7  # how often there are false peaks, and the most they carry
PEAKS, PEAK = 3, (0.5, 4.0)  # of one map at most, and how wide in leaves
FLOOR = 0.3


def true_density(boxes: Float[Tensor, "b k 4"], image_size: Size, grid: Size) -> Float[Tensor, "b gh gw"]:
    """What share of each leaf the boxes of each sample cover: the sum over boxes, at most 1. Empty rows cover nothing.

    >>> true_density(torch.tensor([[[0.0, 0, 64, 32], [0, 0, 0, 0]]]), image_size=(128, 128), grid=(4, 4))[0, 0]
    tensor([1., 1., 0., 0.])
    """
    across = _covered(boxes[..., 0], boxes[..., 2], image_size[0], grid[0])  # [b, k, gw]
    down = _covered(boxes[..., 1], boxes[..., 3], image_size[1], grid[1])  # [b, k, gh]
    return (down[..., :, None] * across[..., None, :]).sum(1).clamp(max=1)


def _covered(low: Tensor, high: Tensor, size: int, cells: int) -> Float[Tensor, "b k cells"]:
    """What share of each cell of an axis lies between low and high."""
    edges = torch.arange(cells + 1, dtype=low.dtype, device=low.device) * (size / cells)
    overlap = torch.minimum(high[..., None], edges[1:]) - torch.maximum(low[..., None], edges[:-1])
    return overlap.clamp(min=0) * (cells / size)


def corrupted(
    density: Float[Tensor, "b gh gw"], seed: int | torch.Generator, miss: float = 0.1
) -> Float[Tensor, "b gh gw"]:
    """True densities, of any mass, as a scorer might have them: nonnegative, mass 1. A map without mass stays uniform.

    >>> density = torch.zeros(2, 8, 8); density[:, 2, 3] = 1.0
    >>> corrupted(density, seed=0).sum((1, 2)).allclose(torch.ones(2))
    True
    """
    if not 0 <= miss <= 1:
        raise DensityError(f"miss is a probability, from 0 to 1, got {miss}")
    b, gh, gw = density.shape
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    chance = torch.rand(b, 9 + 4 * PEAKS, generator=generator, dtype=torch.float64)
    chance = sent(chance, density.device).to(density.dtype)
    blur, moved, dx, dy, distracted, share, missed, floor, blobs = chance[:, :9].T[..., None]  # each [b, 1]
    x, y, width, weight = chance[:, 9:].reshape(b, 4, PEAKS).unbind(1)  # each [b, PEAKS]

    sigma = _between(blur, *BLUR)
    shift = DISPLACEMENT * (moved < DISPLACED)
    rows = _moved(gh, shift * (2 * dy - 1), sigma)  # [b, gh, gh]
    columns = _moved(gw, shift * (2 * dx - 1), sigma)
    seen = _unit(rows @ density @ columns.mT)

    rank = torch.arange(PEAKS, device=density.device)
    weight = weight * (rank <= (blobs * PEAKS).floor())  # one to three of them
    width = _between(width, *PEAK)
    false = torch.einsum("bp,bph,bpw->bhw", weight, _bell(gh, y * gh, width), _bell(gw, x * gw, width))
    false = _unit(false * (density <= 0))

    carried = torch.where(missed < miss, 1.0, FALSE * share * (distracted < DISTRACTED))[..., None]  # [b, 1, 1]
    mixed = (1 - carried) * seen + carried * false
    even = FLOOR * floor[..., None]
    return (1 - even) * mixed + even / (gh * gw)


def _between(chance: Tensor, low: float, high: float) -> Tensor:
    """Log-uniform between low and high."""
    return low * (high / low) ** chance


def _bell(cells: int, centre: Float[Tensor, "b n"], sigma: Float[Tensor, "b n"]) -> Float[Tensor, "b n cells"]:
    """A Gaussian over the cells of an axis, sum 1: what falls off an edge is put back inside."""
    middle = torch.arange(cells, dtype=centre.dtype, device=centre.device) + 0.5
    return (-0.5 * ((middle - centre[..., None]) / sigma[..., None]) ** 2).softmax(-1)


def _moved(cells: int, shift: Float[Tensor, "b 1"], sigma: Float[Tensor, "b 1"]) -> Float[Tensor, "b cells cells"]:
    """The matrix that moves mass along an axis of cells and blurs it, none lost."""
    centre = torch.arange(cells, dtype=shift.dtype, device=shift.device) + 0.5 + shift  # [b, cells]
    return _bell(cells, centre, sigma.expand_as(centre)).mT


def _unit(density: Float[Tensor, "b h w"]) -> Float[Tensor, "b h w"]:
    """Mass 1; uniform where there is none."""
    mass = density.sum((1, 2), keepdim=True)
    even = 1 / (density.shape[1] * density.shape[2])
    return torch.where(mass > 0, density / torch.where(mass > 0, mass, 1.0), even)
