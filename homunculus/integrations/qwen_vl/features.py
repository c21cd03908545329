"""The visual tokens of a plan: only the chosen cells through the tower (`pre`), all of it, pooled (`post`), or an
overview and crops as the ordinary images they are (`views`)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor

from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.layout import (
    Layout,
    bilinear_taps,
    cell_rows,
    cut_to_leaves,
    patch_positions,
    patchify,
    unpatchify,
)
from homunculus.integrations.qwen_vl.plan import Plan, alike, rows_of
from homunculus.integrations.qwen_vl.rectangular import rectangular_attention
from homunculus.integrations.qwen_vl.windows import level_positions, true_positions, window_order
from homunculus.kernels.resample import area_resample
from homunculus.structures import Allocation


def encode_cells(visual: Any, pixel_values: Float[Tensor, "patches values"], plan: Plan, layout: Layout) -> Any:
    """The tower's own output for the chosen cells: attention within each image, positions at the cells' true places."""
    rows, places = cells_of(pixel_values.type(visual.dtype), plan, layout)
    lengths = [count * layout.merge**2 for count in plan.counts]
    sequences = {"cu_seqlens": _ends(lengths, pixel_values.device), "max_seqlen": max(lengths)}
    with rectangular_attention(visual, lengths):
        if hasattr(visual, "fullatt_block_indexes"):
            return _encode_in_windows(visual, torch.cat(rows), places, plan, layout, sequences)
        sizes = [(columns * layout.merge, lines * layout.merge) for columns, lines in plan.grids]
        index, weight = _taps(places, sizes, visual.num_grid_per_side)
        return visual(
            torch.cat(rows),
            grid_thw=None,
            interp_indices=index,
            interp_weights=weight,
            position_ids=torch.cat(places),
            return_dict=True,
            **sequences,
        )


def cells_of(
    pixel_values: Float[Tensor, "patches values"], plan: Plan, layout: Layout
) -> tuple[list[Float[Tensor, "_rows values"]], list[Float[Tensor, "_rows 2"]]]:
    """The rows of every image's cells and their places among its patches; images of one size and budget together."""
    rows: list[Any] = [None] * len(plan.grids)
    places: list[Any] = [None] * len(plan.grids)
    kinds = [(grid, own.budget, own.kind) for grid, own in zip(plan.grids, plan.allocations, strict=True)]
    for images in alike(kinds):
        grid, count, kind = kinds[images[0]]
        given = rows_of(pixel_values, plan.grids, images, layout)
        boxes = torch.cat([plan.allocations[i].boxes for i in images])
        every_leaf = count == grid[0] * grid[1]  # then rows are there already, in reading order
        own = given if every_leaf else cell_rows(given, boxes, kind, grid, layout)
        for image, row, place in zip(images, own, patch_positions(boxes, layout), strict=True):
            rows[image], places[image] = row, place
    return rows, places


def _taps(places: Sequence[Tensor], sizes: Sequence[Size], side: int) -> tuple[Tensor, Tensor]:
    if len(set(sizes)) == 1:
        return bilinear_taps(torch.cat(list(places)), sizes[0], side)
    taps = [bilinear_taps(place, size, side) for place, size in zip(places, sizes, strict=True)]
    return torch.cat([index for index, _ in taps]), torch.cat([weight for _, weight in taps])


def _encode_in_windows(
    visual: Any, rows: Tensor, places: list[Tensor], plan: Plan, layout: Layout, sequences: dict[str, Any]
) -> Any:
    """Qwen2.5-VL: see windows.py."""
    order, counts = window_order(list(plan.allocations), visual.window_size // layout.leaf)
    lengths = (counts * layout.merge**2).tolist()
    pairs = zip(places, plan.allocations, strict=True)
    own = torch.cat([level_positions(place, allocation, layout) for place, allocation in pairs])
    with true_positions(visual, torch.cat(places), order):
        return visual(
            rows,
            grid_thw=None,
            position_ids=own,
            window_index=order,
            cu_window_seqlens=_ends(lengths, rows.device),
            max_window_seqlen=max(lengths),
            return_dict=True,
            **sequences,
        )


def _ends(lengths: Sequence[int], device: torch.device) -> Int32[Tensor, "sequences_plus_1"]:
    """Where sequences end; equal ones are counted on the device, so that nothing has to travel there."""
    if len(set(lengths)) == 1:
        return torch.arange(len(lengths) + 1, dtype=torch.int32, device=device) * lengths[0]
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)


def encode_views(visual: Any, pixel_values: Float[Tensor, "patches values"], plan: Plan, layout: Layout) -> Any:
    """The tower's own output for every view of every image: ordinary images in ordinary grids."""
    sizes = [columns * lines * layout.merge**2 for columns, lines in plan.grids]
    rows, grids = [], []
    for i, part in enumerate(pixel_values.type(visual.dtype).split(sizes)):
        shown = plan.views_of(i)
        if shown is None:  # every leaf is kept
            rows.append(part)
            grids.append(plan.grids[i])
            continue
        image = unpatchify(part, plan.grids[i], layout)
        overview = area_resample(image, (shown.overview[0] * layout.leaf, shown.overview[1] * layout.leaf))
        boxes = (shown.boxes[0, 1:] * layout.leaf).long().tolist()
        pictures = [overview.to(image.dtype), *(image[:, y0:y1, x0:x1] for x0, y0, x1, y1 in boxes)]
        rows += [patchify(cut_to_leaves(picture, layout), layout) for picture in pictures]
        grids += [shown.overview, *[shown.crop] * len(boxes)]
    thw = [[1, lines * layout.merge, columns * layout.merge] for columns, lines in grids]
    return visual(torch.cat(rows), grid_thw=torch.tensor(thw).to(pixel_values.device), return_dict=True)


def pool_features(features: Sequence[Float[Tensor, "_leaves d"]], plan: Plan) -> list[Float[Tensor, "_cells d"]]:
    """Features of all leaves, image by image, averaged over the area of each cell; a leaf's own to the bit."""
    return [
        _pool(own, allocation, grid)
        for own, allocation, grid in zip(features, plan.allocations, plan.grids, strict=True)
    ]


def _pool(features: Float[Tensor, "leaves d"], allocation: Allocation, grid: Size) -> Float[Tensor, "n d"]:
    if allocation.budget == len(features):
        return features
    shares = cell_shares(allocation, grid).float()
    return (shares @ features.float()).to(features.dtype)  # one-hot rows give a leaf's own features


def cell_shares(allocation: Allocation, grid: Size) -> Float64[Tensor, "n leaves"]:
    """How each cell of a single image is made up of the leaves under it; rows sum to 1."""
    x0, y0, x1, y1 = (allocation.boxes[0].double() / allocation.leaf).unbind(1)
    across, down = _overlap(x0, x1, grid[0]), _overlap(y0, y1, grid[1])  # [N, columns], [N, lines]
    shares = (down[:, :, None] * across[:, None, :]).flatten(1)
    return shares / shares.sum(1, keepdim=True)


def _overlap(low: Tensor, high: Tensor, count: int) -> Float[Tensor, "n count"]:
    at = torch.arange(count, device=low.device)
    return (torch.minimum(high[:, None], at + 1.0) - torch.maximum(low[:, None], at + 0.0)).clamp(min=0)
