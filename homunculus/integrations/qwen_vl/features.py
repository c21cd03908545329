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
from homunculus.integrations.qwen_vl.plan import Plan
from homunculus.integrations.qwen_vl.rectangular import rectangular_attention
from homunculus.integrations.qwen_vl.windows import level_positions, true_positions, window_order
from homunculus.kernels.resample import area_resample
from homunculus.structures import Allocation


def encode_cells(visual: Any, pixel_values: Float[Tensor, "patches values"], plan: Plan, layout: Layout) -> Any:
    """The tower's own output for the chosen cells: attention within each image, positions at the cells' true places."""
    sizes = [columns * lines * layout.merge**2 for columns, lines in plan.grids]
    parts = pixel_values.type(visual.dtype).split(sizes)
    images = list(zip(parts, plan.allocations, plan.grids, strict=True))
    rows = torch.cat([cell_rows(part, allocation, layout) for part, allocation, _ in images])
    places = [patch_positions(allocation, layout) for allocation in plan.allocations]
    lengths = [count * layout.merge**2 for count in plan.counts]
    sequences = {"cu_seqlens": _ends(lengths, rows.device), "max_seqlen": max(lengths)}
    if hasattr(visual, "fullatt_block_indexes"):
        with rectangular_attention(visual, lengths):
            return _encode_in_windows(visual, rows, places, plan, layout, sequences)
    patches = [(columns * layout.merge, lines * layout.merge) for columns, lines in plan.grids]
    taps = [bilinear_taps(p, size, visual.num_grid_per_side) for p, size in zip(places, patches, strict=True)]
    with rectangular_attention(visual, lengths):
        return visual(
            rows,
            grid_thw=None,
            interp_indices=torch.cat([index for index, _ in taps]),
            interp_weights=torch.cat([weight for _, weight in taps]),
            position_ids=torch.cat(places),
            return_dict=True,
            **sequences,
        )


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
