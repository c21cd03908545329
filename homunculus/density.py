"""A density over leaves: nonnegative, one map per image, its scale without meaning. Reading, checking, resampling.

Sums run in a fixed order, element by element, so a map gets the same bits alone and in a batch.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.errors import DensityError
from homunculus.geometry import Size
from homunculus.kernels.resample import area_resample

FLOOR = 0.02  # the share of the mass that is spread evenly, so that nothing is ever quite abandoned


def as_density(
    values: Any, batch: int | None = None, device: torch.device | None = None, validate: bool = True
) -> Float64[Tensor, "b h w"]:
    """Anything map-like, `[h, w]` or `[B, h, w]`, as a checked float64 density. All zero is fine: it means uniform.

    >>> as_density([[0, 1], [2, 3]]).shape
    torch.Size([1, 2, 2])
    """
    if not isinstance(values, Tensor):
        try:
            values = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
        except (TypeError, ValueError):
            raise DensityError(
                f"cannot read a density from {type(values).__name__}: give a map [h, w] or [B, h, w]"
            ) from None
    if values.is_complex() or values.is_quantized or values.is_meta or values.layout != torch.strided:
        raise DensityError(f"cannot read a density from a {values.type()}: give a dense real map [h, w] or [B, h, w]")
    density = values.to(device=device, dtype=torch.float64, non_blocking=True)
    density = density[None] if density.ndim == 2 else density
    if density.ndim != 3 or 0 in density.shape:
        raise DensityError(
            f"a density of shape {list(density.shape)}: give a map [h, w] or [B, h, w] that is not empty"
        )
    if batch is not None and density.shape[0] != batch:
        if density.shape[0] != 1:
            raise DensityError(f"{density.shape[0]} density maps for {batch} images: give one, or one for each image")
        density = density.expand(batch, -1, -1)
    if validate and not bool(((density >= 0) & (density < torch.inf)).all()):  # the only wait for the device
        index = (~((density >= 0) & (density < torch.inf))).nonzero()[0].tolist()
        value = density[tuple(index)].item()
        raise DensityError(
            f"density is {value:g} at image {index[0]}, row {index[1]}, column {index[2]}: "
            "every value must be finite and at least 0"
        )
    return density


def fold_sum(x: Float64[Tensor, "*shape"], dim: int) -> Float64[Tensor, "*folded"]:
    """The sum along one axis (kept, of length 1), to the same bits alone, in a batch, and with the axis flipped.

    `Tensor.sum` promises none of that. Here the far half is folded onto the near one, mirrored, until one is left.

    >>> fold_sum(torch.ones(2, 5, dtype=torch.float64), -1)
    tensor([[5.],
            [5.]], dtype=torch.float64)
    """
    while (n := x.shape[dim]) > 1:
        half = n // 2
        folded = x.narrow(dim, 0, half) + x.narrow(dim, n - half, half).flip(dim)
        x = torch.cat((folded, x.narrow(dim, half, 1)), dim) if n % 2 else folded
    return x


def total_mass(density: Float64[Tensor, "b h w"]) -> Float64[Tensor, "b 1 1"]:
    """The sum of each map, in an order that neither batch nor mirror can change.

    >>> total_mass(torch.ones(2, 3, 5, dtype=torch.float64)).flatten()
    tensor([15., 15.], dtype=torch.float64)
    """
    return fold_sum(fold_sum(density, -1), -2)


def normalise(density: Float64[Tensor, "b h w"]) -> Float64[Tensor, "b h w"]:
    """Each map scaled to mass 1; a map without any mass says nothing and becomes uniform.

    >>> normalise(torch.tensor([[[0.0, 0.0]], [[1.0, 3.0]]], dtype=torch.float64)).tolist()
    [[[0.5, 0.5]], [[0.25, 0.75]]]
    """
    # Scaling by the maximum first keeps the sum of huge densities finite and that of subnormal ones normal. It cancels,
    # so no gradient needs to pass through it; and no branch of a `where` may divide by 0, or gradients become NaN.
    peak = density.detach().amax(dim=(1, 2), keepdim=True)
    scaled = torch.where(peak > 0, density / torch.where(peak > 0, peak, 1.0), 1.0)
    return scaled / total_mass(scaled)


def with_floor(density: Float64[Tensor, "b gh gw"], floor: float = FLOOR) -> Float64[Tensor, "b gh gw"]:
    """A density of mass 1, topped up so that at least `floor` of it is spread evenly. Doing it twice changes nothing.

    >>> one_hot = torch.zeros(1, 2, 2, dtype=torch.float64); one_hot[0, 0, 0] = 1.0
    >>> with_floor(one_hot, 0.02)[0].tolist()
    [[0.985, 0.005], [0.005, 0.005]]
    """
    if not 0 <= floor <= 1:
        raise DensityError(f"the floor is a share of the mass, from 0 to 1, got floor={floor}")
    even = 1 / (density.shape[1] * density.shape[2])
    # What every leaf already has; the missing share m solves (1 - m) * spread + m = floor.
    spread = density.amin(dim=(1, 2), keepdim=True) / even
    missing = (floor - spread).clamp(min=0) / (1 - spread).clamp(min=max(1 - floor, 1e-12))
    return density + missing * (even - density)


def resample_mass(density: Float64[Tensor, "b h w"], grid: Size) -> Float64[Tensor, "b gh gw"]:
    """A density laid on another grid over the same image, mass kept: each leaf gets what lies over it.

    >>> resample_mass(torch.tensor([[[3.0, 6.0, 9.0]]], dtype=torch.float64), (2, 1))
    tensor([[[ 6., 12.]]], dtype=torch.float64)
    """
    h, w = density.shape[1:]
    if (w, h) == grid:
        return density
    return area_resample(density, grid) * (h * w / (grid[0] * grid[1]))
