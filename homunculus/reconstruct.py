"""VisualTokens to the image the model saw: coarse cells first, finer ones over them, patches enlarged as boxes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from homunculus.geometry import Size, leaf_centers
from homunculus.kernels.resample import area_resample, input_rows, resample_span, strip_rows
from homunculus.structures import Allocation, PackedAllocation, VisualTokens

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
    if isinstance(tokens.allocation, PackedAllocation):
        each = [reconstruct(own, max_side) for own in tokens.unpack()]
        return _together([own.images[0] for own in each], [own.mask[0] for own in each])
    allocation = tokens.allocation
    parts: dict[tuple[Size, Size], list[int]] = {}
    for i, key in enumerate(zip(allocation.image_sizes, allocation.grids, strict=True)):
        parts.setdefault(key, []).append(i)
    results: dict[int, tuple[Tensor, Tensor]] = {}
    paint = _paint_dyadic if allocation.kind == "dyadic" else _paint_boxes
    for (size, _), members in parts.items():
        painted = paint(tokens.patches[members], allocation.select(members), _target(size, max_side))
        results |= dict(zip(members, zip(*painted, strict=True), strict=True))
    images, masks = zip(*(results[i] for i in range(len(allocation))), strict=True)
    return _together(images, masks)


def _together(images: Sequence[Tensor], masks: Sequence[Tensor]) -> Reconstruction:
    if len({image.shape for image in images}) > 1:
        return Reconstruction(list(images), list(masks))
    return Reconstruction(torch.stack(list(images)), torch.stack(list(masks)))


def _target(size: Size, max_side: int | None) -> Size:
    scale = 1.0 if max_side is None else min(1.0, max_side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _paint_dyadic(patches: Tensor, allocation: Allocation, target: Size) -> tuple[Tensor, Tensor]:
    """Blocks of the leaf grid: pixels are looked up strip by strip and resampled by area."""
    b, _, _, leaf, _ = patches.shape
    (width, height), (gw, gh) = allocation.image_sizes[0], allocation.grids[0]
    # A canvas of `side` pixels a leaf: all of them for the image at its own size, fewer where it is only drawn small.
    halvings = 0
    while target != (width, height) and leaf % (2 << halvings) == 0:
        side = leaf >> (halvings + 1)
        if gw * side < target[0] or gh * side < target[1]:
            break
        halvings += 1
    side = leaf >> halvings
    canvas = gw * side, gh * side
    cells = _BlockCells(allocation)
    sheets = [_shrink(patches, leaf >> i).flatten(3) for i in range(halvings + 1)]  # [B, N, 3, pixels] at every size
    pictures, masks = [], []
    for rows in strip_rows((b, 3, canvas[1], canvas[0]), target, device=patches.device):
        top, bottom = input_rows(canvas[1], target[1], rows)
        pixels, shown = cells.look_up(sheets, side, torch.arange(top, bottom, device=patches.device))
        # A pixel that cells cover in part takes their colour alone: grey must not bleed into it.
        share = resample_span(shown.to(pixels.dtype), canvas, target, rows)[:, None]
        seen = share > 1e-6
        picture = resample_span(pixels, canvas, target, rows) / torch.where(seen, share, 1.0)
        pictures.append(torch.where(seen, picture, GREY))
        masks.append(seen[:, 0])
    return torch.cat(pictures, dim=2), torch.cat(masks, dim=1)


class _BlockCells:
    """Which token shows each leaf: level by level, finer over coarser."""

    def __init__(self, allocation: Allocation) -> None:
        (width, height), (gw, gh) = allocation.image_sizes[0], allocation.grids[0]
        b, n, device = len(allocation), allocation.budget, allocation.device
        self.level = allocation.levels.round().long()
        corner = allocation.boxes[..., :2].double()
        self.column = (corner[..., 0] * gw / width).round().long()  # in leaves
        self.row = (corner[..., 1] * gh / height).round().long()
        self.owner = torch.full((b, gh, gw), -1, device=device)
        for level in range(min(gw, gh).bit_length() - 1, -1, -1):
            w, h = gw >> level, gh >> level
            # The last slot takes the tokens of all other levels.
            place = torch.where(self.level == level, (self.row >> level) * w + (self.column >> level), h * w)
            own = torch.full((b, h * w + 1), -1, device=device)
            own = own.scatter(1, place, torch.arange(n, device=device).expand(b, -1))[:, :-1].unflatten(1, (h, w))
            own = own.repeat_interleave(1 << level, 1).repeat_interleave(1 << level, 2)
            here = self.owner[:, : own.shape[1], : own.shape[2]]
            here.copy_(torch.where(own >= 0, own, here))

    def look_up(self, sheets: list[Tensor], side: int, ys: Tensor) -> tuple[Tensor, Tensor]:
        """Canvas rows `ys`: pixels `[B, 3, rows, columns]`, 0 in gaps, and where there is a cell at all.

        A cell of level L spans side << L canvas pixels. Where that is less than its patch has, the patch is taken from
        the sheet that was halved often enough; where it is more, patch pixels are repeated.
        """
        xs = torch.arange(self.owner.shape[2] * side, device=ys.device)
        token = self.owner[:, ys // side][:, :, xs // side]  # [B, rows, columns]
        known = token.clamp(min=0)
        level, column, row = (
            field.gather(1, known.flatten(1)).view_as(token) for field in (self.level, self.column, self.row)
        )
        halvings = len(sheets) - 1
        repeat = (level - halvings).clamp(min=0)
        x, y = (xs - column * side) >> repeat, (ys[:, None] - row * side) >> repeat
        shown = token >= 0
        pixels = torch.zeros((), dtype=sheets[0].dtype, device=ys.device)
        for i, sheet in enumerate(sheets):
            mine = shown & ((halvings - level).clamp(min=0) == i)
            size = round(sheet.shape[-1] ** 0.5)
            index = torch.where(mine, known * size**2 + y * size + x, 0)
            flat = sheet.transpose(1, 2).flatten(2)  # [B, 3, N * pixels]
            found = flat.gather(2, index.flatten(1)[:, None].expand(-1, 3, -1)).unflatten(2, token.shape[1:])
            pixels = torch.where(mine[:, None], found, pixels)
        return pixels, shown


def _shrink(patches: Tensor, side: int) -> Tensor:
    return patches if patches.shape[-1] == side else area_resample(patches, (side, side))


def _paint_boxes(patches: Tensor, allocation: Allocation, target: Size) -> tuple[Tensor, Tensor]:
    """Every pixel centre takes the finest cell it lies in; rows go in chunks, each with the cells that reach it."""
    leaf = allocation.leaf
    width, height = allocation.image_sizes[0]
    xs, ys = leaf_centers(target, (width, height), patches.device)
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
    x0, y0, x1, y1 = allocation.boxes[image, cells].double().unbind(-1)
    reach = (y1 - y0) / 2
    if allocation.kind == "rotated":
        reach = torch.hypot(x1 - x0, y1 - y0) / 2
    middle = (y0 + y1) / 2
    return (middle - reach <= rows[-1]) & (middle + reach > rows[0])


def _inside(allocation: Allocation, image: int, cells: Tensor, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    """Where the pixels (ys x xs) lie in each cell, as fractions of its width and height."""
    x0, y0, x1, y1 = allocation.boxes[image, cells].double()[..., None, None].unbind(1)
    if allocation.kind != "rotated":
        return (xs - x0) / (x1 - x0), (ys[:, None] - y0) / (y1 - y0)  # broadcast: axes are separate
    turn = allocation.angle[image, cells].double()[..., None, None]
    dx, dy = xs - (x0 + x1) / 2, ys[:, None] - (y0 + y1) / 2
    along, across = dx * turn.cos() + dy * turn.sin(), dy * turn.cos() - dx * turn.sin()
    return along / (x1 - x0) + 0.5, across / (y1 - y0) + 0.5
