"""VisualTokens to the image the model saw: coarse cells first, finer ones over them, patches enlarged as boxes."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from homunculus.geometry import Size
from homunculus.kernels.resample import area_resample
from homunculus.structures import Allocation, VisualTokens, rectangular

GREY = 0.5
CHUNK_ROWS = 32


class Reconstruction(NamedTuple):
    """Images in [0, 1] and the mask of the pixels that some cell shows; gaps are mid-grey. Lists when sizes differ."""

    images: Float[Tensor, "b 3 h w"] | list[Float[Tensor, "3 _h _w"]]
    mask: Bool[Tensor, "b h w"] | list[Bool[Tensor, "_h _w"]]


def reconstruct(tokens: VisualTokens, max_side: int | None = None) -> Reconstruction:
    """Paint the patches back where they came from, at the original size or scaled down to `max_side` pixels.

    Dyadic cells are painted on the leaf grid and resampled by area, which keeps constants and mean brightness; other
    cells are painted pixel centre by pixel centre.

    >>> import homunculus
    >>> image, mask = homunculus.reconstruct(homunculus.foveate(torch.full((3, 200, 300), 0.25)))
    >>> image.shape, bool(mask.all()), image.unique().tolist()
    (torch.Size([1, 3, 200, 300]), True, [0.25])
    """
    allocation = rectangular(tokens.allocation)
    parts: dict[tuple[Size, Size], list[int]] = {}
    for i, key in enumerate(zip(allocation.image_sizes, allocation.grids, strict=True)):
        parts.setdefault(key, []).append(i)
    results: dict[int, tuple[Tensor, Tensor]] = {}
    paint = _paint_dyadic if allocation.kind == "dyadic" else _paint_boxes
    for (size, _), members in parts.items():
        painted = paint(tokens.patches[members], allocation.select(members), _target(size, max_side))
        results |= dict(zip(members, zip(*painted, strict=True), strict=True))
    images, masks = zip(*(results[i] for i in range(len(allocation))), strict=True)
    if len({image.shape for image in images}) > 1:
        return Reconstruction(list(images), list(masks))
    return Reconstruction(torch.stack(images), torch.stack(masks))


def _target(size: Size, max_side: int | None) -> Size:
    scale = 1.0 if max_side is None else min(1.0, max_side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _paint_dyadic(patches: Tensor, allocation: Allocation, target: Size) -> tuple[Tensor, Tensor]:
    """Level by level on the leaf grid, at the coarsest mip that still has the target's resolution."""
    b, n, _, leaf, _ = patches.shape
    (width, height), (gw, gh) = allocation.image_sizes[0], allocation.grids[0]
    # Pixels a leaf on the canvas: halve while it stays at least as fine as the target.
    side = leaf
    while side % 2 == 0 and gw * side >= 2 * target[0] and gh * side >= 2 * target[1]:
        side //= 2
    levels = allocation.levels.round().long()
    corner = allocation.boxes[..., :2].double()
    column = (corner[..., 0] * gw / width).round().long()  # in leaves
    row = (corner[..., 1] * gh / height).round().long()
    canvas = torch.zeros(b, 3, gh * side, gw * side, dtype=patches.dtype, device=patches.device)
    mask = torch.zeros(b, gh * side, gw * side, dtype=torch.bool, device=patches.device)
    for level in range(min(gw, gh).bit_length() - 1, -1, -1):
        columns, rows = gw >> level, gh >> level
        # Which token owns each cell of this level; the last slot takes those of other levels.
        place = torch.where(levels == level, (row >> level) * columns + (column >> level), rows * columns)
        owner = torch.full((b, rows * columns + 1), -1, device=patches.device)
        owner = owner.scatter(1, place, torch.arange(n, device=patches.device).expand(b, -1))[:, :-1]
        span = side << level  # canvas pixels across a cell
        inked = _resize(patches, min(leaf, span))
        grid = inked.gather(1, owner.clamp(min=0)[..., None, None, None].expand(-1, -1, *inked.shape[2:]))
        sheet = grid.unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
        factor = span // inked.shape[-1]
        sheet = sheet.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
        painted = (owner >= 0).unflatten(1, (rows, columns)).repeat_interleave(span, 1).repeat_interleave(span, 2)
        h, w = painted.shape[1:]
        canvas[..., :h, :w] = torch.where(painted[:, None], sheet, canvas[..., :h, :w])
        mask[..., :h, :w] |= painted
    # A pixel that cells cover in part takes their colour alone: grey must not bleed into it.
    share = area_resample(mask.to(canvas.dtype), target)[:, None]
    seen = share > 1e-6
    picture = area_resample(canvas, target) / torch.where(seen, share, 1.0)
    return torch.where(seen, picture, GREY), seen[:, 0]


def _resize(patches: Tensor, side: int) -> Tensor:
    return patches if patches.shape[-1] == side else area_resample(patches, (side, side))


def _paint_boxes(patches: Tensor, allocation: Allocation, target: Size) -> tuple[Tensor, Tensor]:
    """Every pixel centre takes the finest cell it lies in; rows go in chunks, each with the cells that reach it."""
    leaf = allocation.leaf
    width, height = allocation.image_sizes[0]
    xs = (torch.arange(target[0], device=patches.device) + 0.5) * width / target[0]
    ys = (torch.arange(target[1], device=patches.device) + 0.5) * height / target[1]
    canvas = torch.full((len(patches), 3, target[1], target[0]), GREY, dtype=patches.dtype, device=patches.device)
    mask = torch.zeros(len(patches), target[1], target[0], dtype=torch.bool, device=patches.device)
    for i, own in enumerate(patches):
        finest_last = torch.argsort(allocation.levels[i], descending=True, stable=True)
        for top in range(0, target[1], CHUNK_ROWS):
            rows = ys[top : top + CHUNK_ROWS]
            cells = finest_last[_reach(allocation, i, finest_last, rows)]
            if len(cells) == 0:
                continue
            u, v = _inside(allocation, i, cells, xs, rows)  # [cells, rows, columns], [0, 1) where inside
            inside = (u >= 0) & (u < 1) & (v >= 0) & (v < 1)
            rank = torch.arange(1, len(cells) + 1, device=inside.device)[:, None, None]
            last, seen = (inside * rank).amax(0) - 1, inside.any(0)
            winner = last.clamp(min=0)[None]
            column = (u.expand_as(inside).gather(0, winner)[0] * leaf).long().clamp(0, leaf - 1)
            row = (v.expand_as(inside).gather(0, winner)[0] * leaf).long().clamp(0, leaf - 1)
            colour = own[cells[winner[0]], :, row, column].permute(2, 0, 1)
            part = slice(top, top + len(rows))
            canvas[i, :, part] = torch.where(seen, colour, canvas[i, :, part])
            mask[i, part] = seen
    return canvas, mask


def _reach(allocation: Allocation, image: int, cells: Tensor, rows: Tensor) -> Bool[Tensor, "cells"]:
    """Which cells can touch these pixel rows."""
    x0, y0, x1, y1 = allocation.boxes[image, cells].unbind(-1)
    reach = (y1 - y0) / 2
    if allocation.kind == "rotated":
        reach = torch.hypot(x1 - x0, y1 - y0) / 2
    middle = (y0 + y1) / 2
    return (middle - reach <= rows[-1]) & (middle + reach > rows[0])


def _inside(allocation: Allocation, image: int, cells: Tensor, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    """Where the pixels (ys x xs) lie in each cell, as fractions of its width and height."""
    x0, y0, x1, y1 = allocation.boxes[image, cells][..., None, None].unbind(1)
    if allocation.kind != "rotated":
        return (xs - x0) / (x1 - x0), (ys[:, None] - y0) / (y1 - y0)  # broadcast: axes are separate
    turn = allocation.angle[image, cells][..., None, None]
    dx, dy = xs - (x0 + x1) / 2, ys[:, None] - (y0 + y1) / 2
    along, across = dx * turn.cos() + dy * turn.sin(), dy * turn.cos() - dx * turn.sin()
    return along / (x1 - x0) + 0.5, across / (y1 - y0) + 0.5
