"""`aim`: halve the tokens by merging, again and again (Zhong et al., 2024, arXiv 2412.03248).

This is the first half of the method, before the language model. The second, which ranks tokens by their attention
inside the language model and drops them layer by layer, acts elsewhere and is not part of this file.
"""

from homunculus.peers.bipartite import as_reduced, merged, single
from homunculus.peers.registry import register
from homunculus.peers.tokens import Reduced, Seen


@register("aim", "halves the tokens by merging until the budget is met", query=False, merges=True, attention=())
def aim(seen: Seen, budget: int, *, seed: int = 0) -> Reduced:
    """Every other token joins the one most like it, by the cosine of features; the last round stops at the budget."""
    groups, left = single(seen, seen.features), seen.features.shape[1]
    while left > budget:
        pairs = min(left // 2, left - budget)
        groups, left = merged(groups, pairs), left - pairs
    return as_reduced(seen, groups)
