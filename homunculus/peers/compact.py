"""The compact model at full resolution, as published reducers see it: every leaf encoded, then fewer remembered.

The encoder is not told how relevant its cells are, as an encoder of others would not be. Attention is what all tokens
give to each, since there is no CLS token; keys are those of the last layer, before they are turned by their places.
"""

from typing import Any, cast

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from homunculus.allocation import allocate_view
from homunculus.density import resample_mass
from homunculus.errors import ModelError
from homunculus.model.blocks import Block
from homunculus.model.decoder import Memory
from homunculus.model.encoder import Cells, Encoder, cells_of
from homunculus.model.rotary import Turns, turns
from homunculus.model.vlm import CompactVLM
from homunculus.peers.layers import LAYER_PEERS, remember_reduced
from homunculus.peers.registry import get_peer
from homunculus.peers.tokens import Reduced, Seen
from homunculus.sampling import sample
from homunculus.structures import View, rectangular

ROWS = 256  # of an attention table that are held at a time: whole, one of 4096 tokens takes 400 MiB for an image


@torch.no_grad()
def seen_whole(
    model: CompactVLM, images: Shaped[Tensor, "b 3 h w"], question: Int64[Tensor, "b q"] | None = None
) -> Seen:
    """All leaves of images, encoded; with a question also how relevant the scorer finds each.

    >>> from homunculus.model.config import tiny
    >>> seen_whole(CompactVLM(tiny()), torch.rand(1, 3, 64, 96)).features.shape
    torch.Size([1, 24, 32])
    """
    leaf = model.config.leaf
    height, width = images.shape[-2:]
    columns, rows = (max(1, round(side / leaf)) for side in (width, height))
    even = torch.full((len(images), rows, columns), 1.0, dtype=torch.float64, device=images.device)
    allocation = rectangular(allocate_view(View(even, (width, height), leaf), columns * rows, "uniform"))
    cells = cells_of(allocation)
    cells = cells._replace(weights=torch.full_like(cells.weights, torch.nan))
    patches = sample(images, allocation).to(model.encoder.norm.weight.dtype)
    features, keys, attention, early = looked_at(model.encoder, patches, cells)
    relevance = None
    if question is not None:
        density = model.relevance(images, question)
        relevance = resample_mass(density.double(), (columns, rows)).flatten(1).float()
    return Seen(features, cells.places, (columns, rows), keys, attention, early, relevance)


def looked_at(
    encoder: Encoder, patches: Float[Tensor, "b n 3 leaf leaf"], cells: Cells
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, as the encoder gives them; keys of its last layer; how much each token is looked at in the last layer
    and in the first."""
    before: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, given: before.append(given[0])) for block in encoder.blocks]
    try:
        features = encoder(patches, cells)
    finally:
        for hook in hooks:
            hook.remove()
    where = turns(cells.places, features.shape[-1] // encoder.heads)
    first, last = (cast(Block, encoder.blocks[place]) for place in (0, -1))
    key, _ = last.attention.keys_values(last.norm(before[-1]), None)
    keys = key.transpose(1, 2).flatten(2)
    return features, keys, received(last, before[-1], where), received(first, before[0], where)


def received(block: Block, x: Float[Tensor, "b n c"], where: Turns) -> Float[Tensor, "b n"]:
    """How much all tokens look at each in a block: the mean over tokens and heads, sum 1."""
    normed = block.norm(x)
    query = block.attention.queries(normed, where).float()
    key = block.attention.keys_values(normed, where)[0].float()
    total = torch.zeros(x.shape[:2], device=x.device)
    for part in query.split(ROWS, dim=2):
        total += (part @ key.mT / part.shape[-1] ** 0.5).softmax(-1).mean(1).sum(1)
    return total / x.shape[1]


@torch.no_grad()
def remembered(
    model: CompactVLM,
    seen: Seen,
    peer: str,
    budget: int,
    question: Int64[Tensor, "b q"] | None = None,
    **options: Any,
) -> Memory:
    """What the decoder keeps of images when a peer has reduced their tokens; one in its layers hears the question.

    >>> from homunculus.model.config import tiny
    >>> model = CompactVLM(tiny())
    >>> seen = seen_whole(model, torch.rand(1, 3, 128, 128))
    >>> remembered(model, seen, "divprune", 20).counts
    (20, 20)
    """
    if peer in LAYER_PEERS:
        if question is None:
            raise ModelError(f"{peer} chooses while the question is read: give it")
        return remember_reduced(model.decoder, seen.features, seen.places, question, LAYER_PEERS[peer], budget)
    return _remember(model, get_peer(peer)(seen, budget, **options))


def _remember(model: CompactVLM, reduced: Reduced) -> Memory:
    nothing = torch.zeros_like(reduced.places)  # a decoder asks of cells only where they are
    return model.decoder.remember(reduced.features, Cells(reduced.places, nothing[..., 0], nothing[..., :3]))
