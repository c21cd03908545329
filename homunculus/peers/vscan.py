"""`vscan`: half by attention overall, half window by window, the others merged (Zhang et al., 2025, arXiv 2505.22654).

This is the first half of the method, after the encoder. The second, which prunes in a middle layer of the language
model by the attention of the question, acts elsewhere and is not part of this file.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.allocation.stratified import heaviest_of_groups, share_tokens
from homunculus.peers.hired import cut
from homunculus.peers.likeness import marked, top
from homunculus.peers.merging import nearest_kept, themselves, weighted_mean
from homunculus.peers.registry import register
from homunculus.peers.tokens import Reduced, Seen, kept


@register("vscan", "half looked at by all, half by window, the others merged into them", query=False, merges=True)
def vscan(seen: Seen, budget: int, *, seed: int = 0, windows: int = 4) -> Reduced:
    """A token ends as the mean of itself and of those given up that are most like it, by the cosine of keys.

    The local half comes from `windows` x `windows` parts of the grid, at most one part for each of its tokens: equal
    numbers from each part, by early attention.
    """
    count = seen.features.shape[1]
    overall = top(seen.attention.float(), budget - budget // 2)
    index = torch.cat((overall, most_in_windows(seen, overall, budget // 2, windows)), 1).sort(1).values
    belongs = nearest_kept(seen.keys, index) | themselves(index, count)
    features = weighted_mean(belongs.float(), seen.features).to(seen.features.dtype)
    return kept(seen, index)._replace(features=features, mass=belongs.sum(2).float())


def most_in_windows(seen: Seen, taken: Int64[Tensor, "b k"], wanted: int, windows: int) -> Int64[Tensor, "b wanted"]:
    """`wanted` tokens beside those taken, as equally from all windows as they have them."""
    side = min(windows, max(1, math.isqrt(wanted)))
    places = cut(seen, side, "windows of vscan")
    columns, rows = seen.grid
    gone = marked(taken, columns * rows)
    free: Float[Tensor, "b parts"] = places.sums((~gone).double().unflatten(1, (rows, columns)))
    counts = share_tokens(torch.ones_like(free), free.round().long(), wanted, each=0)
    early = seen.early.double().clamp(min=0).masked_fill(gone, -1.0)  # those taken come last in their window
    order = torch.arange(columns * rows, device=early.device)
    return heaviest_of_groups(early, places.of_leaves, places.capacity, counts, wanted, order)
