"""Sampling in plain torch: the definition of correct. Every cell becomes one leaf x leaf patch of values in [0, 1].

`sample_boxes`    any axis-aligned box: a patch pixel is the exact area average of the image over its share of the box.
`sample_dyadic`   full 2^L blocks of a pixel-exact leaf grid: the same numbers, read from a mip.
`sample_rotated`  a box turned about its centre: by definition the mean of 4x4 bilinear reads of a mip per patch pixel.

All take uint8 or float images `[B, 3, H, W]` on any device and are differentiable in float images; the first and the
last also in the boxes. uint8 images are walked in strips and never become floats as a whole.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from homunculus.kernels.resample import as_float, halve, strip_rows

QUADRATURE = 4


def sample_boxes(
    images: Shaped[Tensor, "b 3 h w"], boxes: Float[Tensor, "b n 4"], leaf: int = 16
) -> Float[Tensor, "b n 3 leaf leaf"]:
    """Exact area averages over axis-aligned boxes in pixels, fractions included; outside the image its border goes on.

    The integral of a piecewise constant image is bilinear between its corners, so (leaf+1)^2 reads of a summed-area
    table give all of a cell's averages at once, and their derivative in the box edges is the true one.

    >>> images = torch.arange(4.0).reshape(1, 1, 2, 2).expand(1, 3, 2, 2) / 4
    >>> sample_boxes(images, torch.tensor([[[0.5, 0.0, 1.5, 2.0]]]), leaf=1)[0, 0, 0]
    tensor([[0.3750]])
    """
    h, w = images.shape[-2:]
    steps = torch.arange(leaf + 1, dtype=torch.float64, device=images.device) / leaf
    x0, y0, x1, y1 = boxes.double().unbind(-1)
    xs = x0[..., None] + (x1 - x0)[..., None] * steps  # [B, N, leaf+1], edges of the patch pixels
    ys = y0[..., None] + (y1 - y0)[..., None] * steps
    integral = torch.zeros((), dtype=torch.float64, device=images.device)
    for top, bottom in strip_rows(images.shape, (w, h), device=images.device):
        table = F.pad(images[..., top:bottom, :].double().cumsum(2).cumsum(3), (1, 0, 1, 0))
        # Each edge moves in one strip only, or its gradient would be counted twice on a boundary; the first and the
        # last strip go on for ever.
        own = (ys >= (top if top > 0 else -torch.inf)) & (ys < (bottom if bottom < h else torch.inf))
        edges = torch.where(own, ys, ys.detach().clamp(top, bottom))
        integral = integral + _read_table(table, xs, edges - top).diff(dim=-1).diff(dim=-2)
    area = ((x1 - x0) * (y1 - y0) / leaf**2)[..., None, None, None]
    return _finish(integral.transpose(1, 2) / area, images)


def _read_table(table: Tensor, xs: Float[Tensor, "b n k"], ys: Float[Tensor, "b n k"]) -> Float[Tensor, "b c n k k"]:
    """Bilinear reads of `[B, C, H+1, W+1]` at the points ys x xs of each cell."""
    b, c, rows, columns = table.shape
    left, top = xs.detach().floor().clamp(0, columns - 2), ys.detach().floor().clamp(0, rows - 2)
    fx, fy = (xs - left)[:, None, :, None, :], (ys - top)[:, None, :, :, None]
    corner = (top[..., :, None] * columns + left[..., None, :]).long()  # [B, N, K, K]
    flat = table.flatten(2)

    def read(step: int) -> Tensor:
        index = (corner + step).flatten(1)[:, None].expand(b, c, -1)
        return flat.gather(2, index).unflatten(2, corner.shape[1:])

    upper = read(0) * (1 - fx) + read(1) * fx
    lower = read(columns) * (1 - fx) + read(columns + 1) * fx
    return upper * (1 - fy) + lower * fy


def sample_dyadic(
    images: Shaped[Tensor, "b 3 h w"], levels: Int64[Tensor, "b n"], corners: Int64[Tensor, "b n 2"], leaf: int = 16
) -> Float[Tensor, "b n 3 leaf leaf"]:
    """Area averages over full blocks: `corners` (x, y) in pixels are multiples of the block side leaf * 2^level.

    >>> images = torch.rand(1, 3, 64, 64)
    >>> patch = sample_dyadic(images, torch.tensor([[2]]), torch.tensor([[[0, 0]]]))
    >>> bool(torch.isclose(patch[0, 0, 0, 0, 0], images[0, 0, :4, :4].mean()))
    True
    """
    h, w = images.shape[-2:]
    depth = max(0, min(h, w) // leaf).bit_length() - 1
    step = torch.arange(leaf, device=images.device)
    columns = (corners[..., 0] >> levels)[..., None, None] + step  # [B, N, leaf, leaf], pixels of the cell's own mip
    rows = (corners[..., 1] >> levels)[..., None, None] + step[:, None]
    own_level = levels[..., None, None]
    patches = _gather(images.flatten(2), torch.where(own_level == 0, rows * w + columns, 0))
    if depth > 0:
        mips, starts, widths = _upper_mips(images, depth)
        place = torch.zeros_like(rows + columns)
        for level in range(1, depth + 1):
            here = starts[level] + rows * widths[level] + columns
            place = torch.where(own_level == level, here, place)
        patches = torch.where(own_level[:, :, None] == 0, patches, _gather(mips, place))
    return _finish(patches, images)


def _gather(flat: Shaped[Tensor, "b 3 pixels"], place: Int64[Tensor, "b n k k"]) -> Shaped[Tensor, "b n 3 k k"]:
    index = place.flatten(1)[:, None].expand(-1, flat.shape[1], -1)
    values = flat.gather(2, index).unflatten(2, place.shape[1:])
    return as_float(values).transpose(1, 2)


def _upper_mips(images: Tensor, depth: int) -> tuple[Float[Tensor, "b 3 pixels"], dict[int, int], dict[int, int]]:
    """Mips 1..depth laid end to end, with start and width of each; odd borders average the pixels that exist."""

    # Channel by channel, because this is where uint8 becomes float.
    mip = torch.cat([halve(as_float(channel)) for channel in images.split(1, 1)], 1)
    mips, starts, widths, start = [], {}, {}, 0
    for level in range(1, depth + 1):
        mips.append(mip.flatten(2))
        starts[level], widths[level] = start, mip.shape[-1]
        start += mip.shape[-1] * mip.shape[-2]
        mip = halve(mip) if level < depth else mip
    return torch.cat(mips, dim=2), starts, widths


def sample_rotated(
    images: Shaped[Tensor, "b 3 h w"],
    boxes: Float[Tensor, "b n 4"],
    angle: Float[Tensor, "b n"],
    leaf: int = 16,
    *,
    reads: int = QUADRATURE,
    trilinear: bool = False,
) -> Float[Tensor, "b n 3 leaf leaf"]:
    """Patches of boxes turned by `angle` (radians, clockwise as seen, since y is down) about their centres.

    Each patch pixel is the mean of 4x4 bilinear reads of the mip whose pixels are no wider than the distance between
    reads; outside the image the border pixel continues. Texture hardware can do with fewer `reads` a side, and
    `trilinear`: linear between the two mips about log2 of that distance, clamped to the mips there are.

    >>> sample_rotated(torch.ones(1, 3, 32, 32), torch.tensor([[[4.0, 4.0, 20.0, 12.0]]]), torch.tensor([[0.5]])).mean()
    tensor(1.)
    """
    h, w = images.shape[-2:]
    x0, y0, x1, y1 = boxes.double()[..., None, None].unbind(2)
    side = leaf * reads
    places = (torch.arange(side, dtype=torch.float64, device=images.device) + 0.5) / side - 0.5
    u, v = places * (x1 - x0), places[:, None] * (y1 - y0)  # [B, N, 1, side], [B, N, side, 1]
    turn = angle.double()[..., None, None]
    x = (x0 + x1) / 2 + u * turn.cos() - v * turn.sin()
    y = (y0 + y1) / 2 + u * turn.sin() + v * turn.cos()

    depth = (max(h, w) - 1).bit_length()
    flat = images.flatten(2)
    mips, starts, _ = _upper_mips(images, depth) if depth else (as_float(flat), {}, {})

    def from_mip(level: Int64[Tensor, "b n 1 1"]) -> Float[Tensor, "b n 3 side side"]:
        scale = torch.exp2(level.double())
        columns = (w + scale.long() - 1) // scale.long()
        rows = (h + scale.long() - 1) // scale.long()
        # Centres of mip pixels are at (i + 0.5) * 2^level.
        column = torch.minimum((x / scale - 0.5).clamp(min=0), columns - 1.0)
        row = torch.minimum((y / scale - 0.5).clamp(min=0), rows - 1.0)
        left, top = column.detach().floor().long(), row.detach().floor().long()
        right, below = torch.minimum(left + 1, columns - 1), torch.minimum(top + 1, rows - 1)
        fx, fy = (column - left)[:, :, None], (row - top)[:, :, None]
        start = torch.zeros_like(level)
        for deeper, offset in starts.items():
            start = torch.where(level == deeper, offset, start)

        def read(row: Tensor, column: Tensor) -> Tensor:
            place = row * columns + column
            base = _gather(flat, torch.where(level == 0, place, 0))
            upper = _gather(mips, torch.where(level == 0, 0, start + place))
            return torch.where(level[:, :, None] == 0, base, upper)

        upper = read(top, left) * (1 - fx) + read(top, right) * fx
        lower = read(below, left) * (1 - fx) + read(below, right) * fx
        return upper * (1 - fy) + lower * fy

    area = (x1 - x0) * (y1 - y0)
    if trilinear:
        lod = (area.sqrt() / side).log2().clamp(0, depth)
        level = lod.detach().floor().long()
        part = (lod - level)[:, :, None]
        values = from_mip(level) * (1 - part) + from_mip((level + 1).clamp(max=depth)) * part
    else:
        spacing = area.detach().sqrt() / side
        values = from_mip(spacing.log2().floor().clamp(0, depth).long())
    patches = values.unflatten(4, (leaf, reads)).unflatten(3, (leaf, reads)).mean((4, 6))
    return _finish(patches, images)


def _finish(patches: Tensor, images: Tensor) -> Tensor:
    """Code values in [0, 1], float32 (float64 for float64 images)."""
    scaled = patches if images.is_floating_point() else patches / 255
    return scaled.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
