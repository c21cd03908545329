"""Published reducers at stage `post`: they act on the tower's features of the whole image, DeepStack levels alike.

Where a token ends may depend on its features, and the language model wants to know before it asks for them. So the
tower runs while a call is planned, and what is left of its features waits until the model asks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from homunculus.allocation import DEFAULT, make_allocation
from homunculus.errors import AllocatorError
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.call import Call
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.plan import Looking, Plan, alike, check_count, one_image
from homunculus.integrations.qwen_vl.watching import Looks
from homunculus.integrations.qwen_vl.whole import Features
from homunculus.peers import Peer, Reduced, Seen, get_peer, kept, peers
from homunculus.peers.reading import all_peers, stage_of
from homunculus.peers.tokens import fingerprints, picked
from homunculus.structures import Allocation, View

RIDE = 2.0**-40  # a power of two: scaling by it and back changes no bit
STEPS = float(1 << 20)  # of a leaf: places are rounded to these, so that halves are halves whoever added them up
ELSEWHERE = {  # what peers of other stages do, none of it to features that another's tower made
    "none": "reads all tokens",
    "layers": "acts in layers of our own language model",
    "decoding": "acts while our own language model writes",
    "batch": "counts cells for each image of our own model",
    "combined": "acts in several parts of our own model",
}


def check_peer(looking: Looking, stage: str) -> Peer | None:
    """The peer that is asked for, if one is, or an error that says why it cannot work here.

    >>> check_peer(Looking(peer="tome"), "pre")
    Traceback (most recent call last):
    homunculus.errors.AllocatorError: tome reduces features of the whole image: give stage='post', got 'pre'
    """
    if looking.peer is None:
        return None
    name = looking.peer
    where = stage_of(name) if name in [*all_peers()] else "features"
    if where != "features":
        raise AllocatorError(
            f"{name} {ELSEWHERE[where]} and cannot reduce another's features: choose from {', '.join(peers())}"
        )
    peer = get_peer(name)  # names those that can, if it is none
    if stage != "post":
        raise AllocatorError(f"{name} reduces features of the whole image: give stage='post', got {stage!r}")
    if looking.allocator != DEFAULT:
        raise AllocatorError(f"{name} and {looking.allocator} both choose what is left: give a peer or an allocator")
    if looking.fixation is not None or isinstance(looking.region, str):
        raise AllocatorError(f"{name} has no fovea: leave out fixation and words for region")
    asked = looking.relevance is not None or looking.region is not None
    if peer.query and not asked:
        raise AllocatorError(f"{name} needs to know what is asked: give relevance, such as 'coarse-pass'")
    if not peer.query and (asked or looking.expect):
        raise AllocatorError(f"{name} is blind to the question: leave out relevance, region and expect")
    return peer


def reduce_features(
    peer: Peer,
    whole: Sequence[Features],
    pixels: Float[Tensor, "patches values"],
    densities: Sequence[Float64[Tensor, "_lines _columns"] | None],
    call: Call,
    layout: Layout,
    options: Mapping[str, Any],
) -> tuple[Plan, list[list[Tensor]]]:
    """Where the tokens of every image lie, and for every level their features, image by image; images of one size and
    budget are reduced together.

    `densities` are relevance, which a peer that hears the question asks for. `pixels` are all images one after another:
    what is drawn by lot is drawn by these, whose bits do not depend on the batch as the tower's do.
    """
    shown = pixels.split([columns * lines * layout.merge**2 for columns, lines in call.grids])
    cells: list[Any] = [None] * len(whole)
    tokens: list[Any] = [None] * len(whole)
    kinds = list(zip(call.grids, call.counts, strict=True))
    for images in alike(kinds):
        grid, count = kinds[images[0]]
        levels = [torch.stack(level) for level in zip(*(whole[i].levels for i in images), strict=True)]
        looks = Looks(*(torch.stack(look) for look in zip(*(whole[i].looks for i in images), strict=True)))
        asked = [own.flatten().float() for i in images if (own := densities[i]) is not None]
        relevance = torch.stack(asked) if asked else None
        own_pixels = fingerprints(torch.stack([shown[i] for i in images]))
        left, reduced = reduce_levels(peer, levels, looks, relevance, grid, count, options, own_pixels)
        made = as_allocation(reduced, grid, layout)
        for place, image in enumerate(images):
            cells[image], tokens[image] = one_image(made, place), tuple(level[place] for level in left)
    return Plan(tuple(cells), call.grids, call.rows), [list(level) for level in zip(*tokens, strict=True)]


def reduce_levels(
    peer: Peer,
    levels: Sequence[Float[Tensor, "b leaves _"]],
    looks: Looks,
    relevance: Float[Tensor, "b leaves"] | None,
    grid: Size,
    count: int,
    options: Mapping[str, Any],
    fingerprint: Int64[Tensor, "b"] | None = None,
) -> tuple[list[Float[Tensor, "b count _"]], Reduced]:
    """Every level with what the first one was reduced by: the peer chooses by the tower's last features alone.

    A peer that drops tokens says which it keeps. One that merges them has the other levels as further channels, scaled
    down so far that no likeness notices them: what happens to a channel does not depend on its scale.
    """
    check_count(count, grid)
    first, *deeper = levels
    features = first
    if peer.merges and deeper:
        wide = torch.promote_types(first.dtype, torch.float32)
        features = torch.cat([first.to(wide), *(level.to(wide) * RIDE for level in deeper)], dim=-1)
    places = leaf_places(grid, first.device).expand(len(first), -1, -1)
    seen = Seen(features, places, grid, *looks, relevance, fingerprint)  # looks: keys, late and early attention
    if count == first.shape[1]:  # nothing to give up, nobody to ask
        every = torch.arange(count, device=first.device).expand(len(first), -1)
        return list(levels), kept(seen._replace(features=first), every)
    reduced = peer(seen, count, **options)
    if not peer.merges or not deeper:
        return [reduced.features, *(picked(level, reduced.index) for level in deeper)], reduced
    own, *others = reduced.features.split([level.shape[-1] for level in levels], dim=-1)
    return [own.to(first.dtype), *(other.div(RIDE).to(first.dtype) for other in others)], reduced


def leaf_places(grid: Size, device: torch.device) -> Float64[Tensor, "leaves 2"]:
    """(line, column) of every leaf, in reading order.

    >>> leaf_places((2, 2), torch.device("cpu")).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    columns, lines = grid
    number = torch.arange(columns * lines, device=device)
    return torch.stack((number // columns, number % columns), dim=-1).double()


def as_allocation(reduced: Reduced, grid: Size, layout: Layout) -> Allocation:
    """A cell of one leaf at the place of every token, in the peer's order; `scores` are for what share of all leaves
    each stands."""
    columns, lines = grid
    corner = (reduced.places * STEPS).round().div(STEPS).flip(-1)  # x, y in leaves
    even = torch.ones(len(corner), lines, columns, dtype=torch.float64, device=corner.device)
    view = View(even, (columns * layout.leaf, lines * layout.leaf), layout.leaf)
    scores = reduced.mass / (columns * lines)
    return make_allocation(view, torch.cat((corner, corner + 1), dim=-1), "box", scores=scores, in_order=True)
