"""Fixations: reading them from what the caller gives, and the density around them.

Acuity falls with eccentricity e as 1/(e+e0) in length, so sampling density falls as 1/(e+e0)^2 in area. e is measured
in isotropic original pixels and expressed in leaves of the fitted grid; e0 is therefore fixed in pixels: on a larger
image the fovea covers a smaller share.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.density import normalise
from homunculus.errors import FixationError
from homunculus.geometry import Size, leaf_centers, leaf_side

SHAPES = "a point (x, y), points [F, 2] for every image, [B, F, 2], or one list of points per image"


def as_fixations(fixation: Any, sizes: Sequence[Size], validate: bool = True) -> list[Float64[Tensor, "f 3"]]:
    """Points in pixels, in any of the accepted shapes, as one tensor of (x, y, weight) per image; all weights are 1.

    >>> as_fixations((30, 40), [(64, 64), (100, 50)])[1]
    tensor([[30., 40.,  1.]], dtype=torch.float64)
    >>> [f.shape[0] for f in as_fixations([[(1, 2), (3, 4)], []], [(64, 64), (64, 64)])]
    [2, 0]
    """
    batch = len(sizes)
    points = _points(fixation, batch)
    if validate:
        for i, (found, (width, height)) in enumerate(zip(points, sizes, strict=True)):
            inside = (found >= 0) & (found <= found.new_tensor((width, height)))
            if not bool(inside.all()):
                x, y = found[~inside.all(-1)][0].tolist()
                where = f"image {i}, which is" if batch > 1 else "the image, which is"
                raise FixationError(
                    f"fixation ({x:g}, {y:g}) is outside {where} {width}x{height} pixels: "
                    f"need 0 <= x <= {width} and 0 <= y <= {height}"
                )
    return [torch.cat((found, torch.ones_like(found[:, :1])), dim=1) for found in points]


def _points(fixation: Any, batch: int) -> list[Float64[Tensor, "f 2"]]:
    if isinstance(fixation, str) or not hasattr(fixation, "__len__"):
        raise FixationError(f"cannot read a fixation from {type(fixation).__name__}: give {SHAPES}")
    if not isinstance(fixation, Tensor):
        try:
            fixation = torch.from_numpy(np.ascontiguousarray(fixation, dtype=np.float64))
        except (TypeError, ValueError):  # ragged: one list of points per image
            return _one_each([_points([] if own is None else own, 1)[0] for own in fixation], batch)
    points = fixation.double()
    if points.numel() == 0:
        return [points.new_zeros(0, 2)] * batch
    if points.shape[-1:] != (2,) or points.ndim not in (1, 2, 3):
        raise FixationError(f"fixations of shape {list(points.shape)}: give {SHAPES}")
    if points.ndim == 3:
        return _one_each(list(points), batch)
    return [points.reshape(-1, 2)] * batch


def _one_each(points: list[Tensor], batch: int) -> list[Tensor]:
    if len(points) != batch:
        raise FixationError(f"fixations for {len(points)} images, but there are {batch}: give {SHAPES}")
    return points


def stack_fixations(fixations: Sequence[Float64[Tensor, "_f 3"]]) -> Float64[Tensor, "b f 3"] | None:
    """Ragged fixations as one tensor, padded with weight 0; None when nobody looks anywhere.

    >>> stack_fixations(as_fixations([[(1, 2), (3, 4)], []], [(64, 64), (64, 64)]))[..., 2]
    tensor([[1., 1.],
            [0., 0.]], dtype=torch.float64)
    """
    if not any(len(own) for own in fixations):
        return None
    return torch.nn.utils.rnn.pad_sequence(list(fixations), batch_first=True)


def first_gaze(fixations: Float64[Tensor, "b f 3"] | None, otherwise: Float64[Tensor, "b 2"]) -> Float64[Tensor, "b 2"]:
    """The first fixation of each image that carries weight, in pixels; `otherwise` where an image has none.

    >>> first_gaze(torch.tensor([[[30.0, 40.0, 1.0]]]).double(), torch.tensor([[32.0, 32.0]]).double())
    tensor([[30., 40.]], dtype=torch.float64)
    """
    if fixations is None:
        return otherwise
    looks = fixations[..., 2] > 0
    first = looks.int().argmax(1)[:, None, None].expand(-1, 1, 2)
    return torch.where(looks.any(1, keepdim=True), fixations[..., :2].gather(1, first)[:, 0], otherwise)


def peak(density: Float64[Tensor, "b gh gw"], size: Size) -> Float64[Tensor, "b 2"]:
    """Where a density is highest over 3x3 leaves, in pixels: where to look when nobody says. The centre if it is flat.

    >>> density = torch.zeros(1, 8, 8, dtype=torch.float64); density[0, 2, 5] = 1.0
    >>> peak(density, (80, 80))
    tensor([[55., 25.]], dtype=torch.float64)
    """
    gh, gw = density.shape[1:]
    xs, ys = leaf_centers((gw, gh), size, density.device)
    # Of equal places the one nearest the centre, so that a flat relief does not draw the gaze into a corner.
    distance = _distance(xs - size[0] / 2, ys[:, None] - size[1] / 2).flatten()
    nearest = torch.argsort(distance, stable=True)
    around = torch.nn.functional.avg_pool2d(density[:, None], 3, 1, 1, divisor_override=1).flatten(1)
    # The leaf itself decides between places with equal surroundings.
    height = (around + density.flatten(1))[:, nearest]
    leaf = nearest[height.argmax(1)]
    found = torch.stack((xs[leaf % gw], ys[leaf // gw]), dim=1)
    flat = density.amax((1, 2)) == density.amin((1, 2))
    return torch.where(flat[:, None], image_centre(len(density), size, density.device), found)


def image_centre(batch: int, size: Size, device: torch.device | str | None = None) -> Float64[Tensor, "b 2"]:
    """The middle of every image, in pixels, made on the device.

    >>> image_centre(1, (64, 32))
    tensor([[32., 16.]], dtype=torch.float64)
    """
    return torch.stack([torch.full((batch,), side / 2, dtype=torch.float64, device=device) for side in size], dim=1)


def eccentricity(
    points: Float64[Tensor, "b *n 2"], fixations: Float64[Tensor, "b f 3"] | None, grid: Size, size: Size
) -> Float64[Tensor, "b *n"]:
    """Distance of each point (pixels) to the nearest fixation, or to the image centre when there is none, in leaves.

    >>> eccentricity(torch.tensor([[[512.0, 480.0]]], dtype=torch.float64), None, (64, 64), (1024, 1024))
    tensor([[2.]], dtype=torch.float64)
    """
    unit = leaf_side(grid, size)
    shape = points.shape[:-1]
    points = points.flatten(1, -2)
    x, y = points.unbind(-1)
    nearest = _distance(x - size[0] / 2, y - size[1] / 2) / unit
    if fixations is not None:
        fx, fy, weight = fixations[:, None].unbind(-1)  # [B, 1, F]
        distance = _distance(x[..., None] - fx, y[..., None] - fy) / unit
        seen = torch.where(weight > 0, distance, torch.inf).amin(-1)
        nearest = torch.where(seen.isfinite(), seen, nearest)
    return nearest.reshape(shape)


def fixation_density(
    fixations: Float64[Tensor, "b f 3"], grid: Size, size: Size, e0: float | Float64[Tensor, "b"] = 3.0
) -> Float64[Tensor, "b gh gw"]:
    """The weighted sum over fixations of 1/(e+e0)^2 at the leaf centres, of mass 1; uniform where no weight is left.

    >>> fixation = torch.tensor([[[512.0, 512.0, 1.0]]], dtype=torch.float64)
    >>> density = fixation_density(fixation, (64, 64), (1024, 1024))
    >>> density.shape, bool(density[0, 32, 32] == density.max())
    (torch.Size([1, 64, 64]), True)
    """
    xs, ys = leaf_centers(grid, size, fixations.device)
    unit = leaf_side(grid, size)
    fx, fy, weight = fixations[..., None, None].unbind(2)  # [B, F, 1, 1]
    offset = e0[:, None, None, None] if isinstance(e0, Tensor) else e0
    reach = _distance(xs - fx, ys[:, None] - fy) / unit + offset
    parts = (weight / (reach * reach)).unbind(1)
    density = parts[0]
    for part in parts[1:]:
        density = density + part
    return normalise(density)


def _distance(dx: Tensor, dy: Tensor) -> Tensor:
    # Not torch.hypot: square roots and products are rounded correctly wherever an element sits in a batch. And no root
    # of 0, whose gradient is infinite.
    squared = dx * dx + dy * dy
    apart = squared > 0
    return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)
