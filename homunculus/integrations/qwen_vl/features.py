"""The visual tokens of a plan: only the chosen cells through the tower (`pre`), or all of it, pooled (`post`)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.layout import Layout, bilinear_taps, cell_rows, patch_positions
from homunculus.integrations.qwen_vl.plan import Plan
from homunculus.integrations.qwen_vl.windows import level_positions, true_positions, window_order
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
        return _encode_in_windows(visual, rows, places, plan, layout, sequences)
    patches = [(columns * layout.merge, lines * layout.merge) for columns, lines in plan.grids]
    taps = [bilinear_taps(p, size, visual.num_grid_per_side) for p, size in zip(places, patches, strict=True)]
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


def pool_features(features: Sequence[Float[Tensor, "_leaves d"]], plan: Plan) -> list[Float[Tensor, "_cells d"]]:
    """Features of all leaves, image by image, averaged over the area of each cell; a leaf's own to the bit."""
    return [
        _pool(own, allocation, grid)
        for own, allocation, grid in zip(features, plan.allocations, plan.grids, strict=True)
    ]


def _pool(features: Float[Tensor, "leaves d"], allocation: Allocation, grid: Size) -> Float[Tensor, "n d"]:
    if allocation.budget == len(features):
        return features
    x0, y0, x1, y1 = (allocation.boxes[0].double() / allocation.leaf).unbind(1)
    across, down = _overlap(x0, x1, grid[0]), _overlap(y0, y1, grid[1])  # [N, columns], [N, lines]
    shares = (down[:, :, None] * across[:, None, :]).flatten(1)
    shares = shares / shares.sum(1, keepdim=True)
    return (shares.float() @ features.float()).to(features.dtype)  # one-hot rows give a leaf's own features


def _overlap(low: Tensor, high: Tensor, count: int) -> Float[Tensor, "n count"]:
    at = torch.arange(count, device=low.device)
    return (torch.minimum(high[:, None], at + 1.0) - torch.maximum(low[:, None], at + 0.0)).clamp(min=0)
