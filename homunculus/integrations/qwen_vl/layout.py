"""How a Qwen-VL processor lays an image out, and where cells of any size lie in it.

A row of `pixel_values` is one patch: channels x temporal copies x patch x patch, normalised. Patches come in blocks of
merge x merge, which the tower joins to one token: a leaf, 32 pixels a side for Qwen3-VL and 28 for Qwen2.5-VL. Blocks
are in reading order, and so are the patches of each. Grids here are (columns, lines) of leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from homunculus.geometry import Size
from homunculus.kernels.dispatch import sample_cells
from homunculus.structures import Allocation


@dataclass(frozen=True)
class Layout:
    """Pixels to a patch, patches to a side of a token, equal frames to an image."""

    patch: int
    merge: int = 2
    temporal: int = 2

    @property
    def leaf(self) -> int:
        return self.patch * self.merge


def unpatchify(rows: Float[Tensor, "*b patches values"], grid: Size, layout: Layout) -> Float[Tensor, "*b 3 h w"]:
    """The normalised image that these rows were cut from, or a batch of them.

    >>> rows = torch.arange(4.0)[:, None].expand(4, 3 * 2 * 2 * 2)
    >>> unpatchify(rows, (1, 1), Layout(patch=2))[0, ::2, ::2]
    tensor([[0., 1.],
            [2., 3.]])
    """
    columns, lines = grid
    p, m = layout.patch, layout.merge
    blocks = rows.reshape(-1, lines, columns, m, m, 3, layout.temporal, p, p)[:, :, :, :, :, :, 0]  # equal frames
    return blocks.permute(0, 5, 1, 3, 6, 2, 4, 7).reshape(*rows.shape[:-2], 3, lines * m * p, columns * m * p)


def patchify(cells: Float[Tensor, "n 3 leaf leaf"], layout: Layout) -> Float[Tensor, "patches values"]:
    """Squares of one leaf each as rows: n blocks of merge x merge patches.

    >>> layout = Layout(patch=2)
    >>> rows = torch.rand(4, 3 * 2 * 2 * 2).unflatten(1, (3, 2, 4))[:, :, :1].expand(-1, -1, 2, -1).reshape(4, -1)
    >>> torch.equal(patchify(unpatchify(rows, (1, 1), layout)[None], layout), rows)
    True
    """
    n, p, m = len(cells), layout.patch, layout.merge
    blocks = cells.view(n, 3, m, p, m, p).permute(0, 2, 4, 1, 3, 5)[:, :, :, :, None]
    return blocks.expand(-1, -1, -1, -1, layout.temporal, -1, -1).reshape(n * m * m, -1)


def cut_to_leaves(image: Float[Tensor, "3 h w"], layout: Layout) -> Float[Tensor, "n 3 leaf leaf"]:
    """An image of whole leaves, leaf by leaf in reading order: `patchify` makes the rows of an ordinary image of it."""
    side = layout.leaf
    leaves = image.view(3, image.shape[1] // side, side, image.shape[2] // side, side)
    return leaves.permute(1, 3, 0, 2, 4).reshape(-1, 3, side, side)


def whole_leaves(
    boxes: Float[Tensor, "b n 4"], columns: int, layout: Layout
) -> tuple[Bool[Tensor, "b n"], Int64[Tensor, "b n"]]:
    """Which cells are exactly a leaf, and the number of the leaf each cell begins in, of `columns` to a line."""
    low = boxes[..., :2] / layout.leaf
    size = (boxes[..., 2:] - boxes[..., :2]) / layout.leaf
    whole = ((low == low.floor()) & (size == 1)).all(-1)
    return whole, low[..., 1].long() * columns + low[..., 0].long()


def on_image(allocation: Allocation, size: Size) -> Allocation:
    """The boxes of one image's cells in pixels of the original (width, height), to be drawn over it.

    >>> import homunculus
    >>> on_image(homunculus.allocate(torch.ones(4, 4), 16, leaf=32), (64, 256)).boxes[0, -1].tolist()
    [48.0, 192.0, 64.0, 256.0]
    """
    ratio = torch.tensor([new / old for new, old in zip(size, allocation.image_sizes[0], strict=True)])
    ratio = ratio.to(allocation.device)
    scaled = {name: getattr(allocation, name) * ratio for name in ("centers", "gaze")}
    sector = torch.full_like(allocation.sector, torch.nan)  # rings would be no rings; boxes are what was sampled
    boxes = allocation.boxes * ratio.repeat(2)
    return replace(allocation, boxes=boxes, sector=sector, image_sizes=(size,), **scaled)


def to_original(box: Sequence[float], resized: Size, original: Size) -> tuple[float, float, float, float]:
    """A box that a model gives in pixels of the resized image, as Qwen2.5-VL does, in pixels of the original.

    >>> to_original((0, 10, 50, 100), resized=(100, 100), original=(200, 50))
    (0.0, 5.0, 100.0, 50.0)
    """
    x, y = original[0] / resized[0], original[1] / resized[1]
    return box[0] * x, box[1] * y, box[2] * x, box[3] * y


def cell_rows(
    rows: Float[Tensor, "b patches values"], boxes: Float[Tensor, "b n 4"], kind: str, grid: Size, layout: Layout
) -> Float[Tensor, "b cell_patches values"]:
    """The rows of the chosen cells: a leaf's own, to the bit; for larger cells their footprint, area-averaged."""
    images = unpatchify(rows, grid, layout)
    upright = torch.zeros_like(boxes[..., 0])
    kind = "dyadic" if kind == "dyadic" else "box"
    averaged = sample_cells(images, boxes, upright, leaf=layout.leaf, kind=kind).flatten(0, 1)
    whole, leaf = whole_leaves(boxes, grid[0], layout)
    image = torch.arange(len(rows), device=rows.device)[:, None]
    own = rows.unflatten(1, (-1, layout.merge**2))[image, leaf]  # [B, N, patches of a cell, values]
    pooled = patchify(averaged, layout).to(rows.dtype).view_as(own)
    return torch.where(whole[..., None, None], own, pooled).flatten(1, 2)


def patch_positions(boxes: Float[Tensor, "*b n 4"], layout: Layout) -> Float[Tensor, "*b cell_patches 2"]:
    """(line, column) of the patches of every cell among the image's own patches: their centres, so fractions for
    patches that cover several."""
    return _centres(boxes, layout.merge) / layout.patch - 0.5


def token_positions(boxes: Float[Tensor, "*b n 4"], leaf: int) -> Float[Tensor, "*b n 2"]:
    """(line, column) of every cell among the image's leaves, from the centre of its box."""
    return _centres(boxes, 1) / leaf - 0.5


def _centres(boxes: Float[Tensor, "*b n 4"], parts: int) -> Float[Tensor, "*b n_parts_parts 2"]:
    """(y, x) of the middles of parts x parts pieces of each box, in reading order."""
    x0, y0, x1, y1 = boxes.double()[..., None].unbind(-2)
    step = (torch.arange(parts, device=boxes.device) + 0.5) / parts
    x, y = x0 + (x1 - x0) * step, y0 + (y1 - y0) * step  # [..., N, parts]
    pairs = torch.stack(torch.broadcast_tensors(y[..., :, None], x[..., None, :]), dim=-1)
    return pairs.flatten(-4, -2).float()


def bilinear_taps(
    positions: Float[Tensor, "*n 2"], patches: Size, side: int
) -> tuple[Int64[Tensor, "*n 4"], Float[Tensor, "*n 4"]]:
    """Entries of a learned side x side table about each position, and their weights; corners lie on corners.

    >>> index, weight = bilinear_taps(torch.tensor([[1.0, 0.5]]), (3, 3), side=3)
    >>> index.tolist(), weight.tolist()
    ([[3, 4, 6, 7]], [[0.5, 0.5, 0.0, 0.0]])
    """
    index, weight = [], []
    for axis, size in ((0, patches[1]), (1, patches[0])):
        place = positions[..., axis] * (side - 1) / max(size - 1, 1)
        low = place.floor()
        index.append(torch.stack((low, low + 1), dim=-1).long().clamp(0, side - 1))
        weight.append(torch.stack((1 - (place - low), place - low), dim=-1))
    (lines, columns), (down, across) = index, weight
    taps = lines[..., :, None] * side + columns[..., None, :]
    return taps.flatten(-2), (down[..., :, None] * across[..., None, :]).flatten(-2)
