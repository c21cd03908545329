"""The compact model at full resolution, as published reducers see it: every leaf encoded, then fewer remembered.

This model finds with its scorer and reads with the rest, so with a density its encoder is told how relevant each leaf
is, as it is of cells; without one it is told nothing, as an encoder of others would be. Attention is what all tokens
give to each, since there is no CLS token; keys are those of the last layer, before they are turned by their places.
"""

from collections.abc import Collection
from typing import cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.allocation import allocate_view
from homunculus.density import resample_mass
from homunculus.geometry import Size
from homunculus.model.blocks import Block
from homunculus.model.decoder import Memory
from homunculus.model.encoder import Cells, Encoder, cells_of
from homunculus.model.rotary import Turns
from homunculus.model.vlm import CompactVLM
from homunculus.peers.registry import full_precision
from homunculus.peers.tokens import BOTH, Seen, fingerprints
from homunculus.sampling import sample
from homunculus.structures import View, rectangular

ROWS = 256  # of an attention table that are held at a time: whole, one of 4096 tokens takes 400 MiB for an image


@torch.no_grad()
def seen_whole(
    model: CompactVLM,
    images: Shaped[Tensor, "b 3 h w"],
    *,
    attention: Collection[str] = BOTH,
    density: Float[Tensor, "b gh gw"] | None = None,
) -> Seen:
    """All leaves of images, encoded, and told where a density lies if one is given. `attention` says in which layers it
    is found out how much each is looked at; of the others it is [b, 0] and nobody pays.

    >>> from homunculus.model.config import tiny
    >>> seen_whole(CompactVLM(tiny()), torch.rand(1, 3, 64, 96)).features.shape
    torch.Size([1, 24, 32])
    """
    seen = seen_cells(model, *every_leaf(images, model.config.leaf, density), attention=attention)
    return seen._replace(fingerprint=fingerprints(images))


def every_leaf(
    images: Shaped[Tensor, "b 3 h w"], leaf: int = 16, density: Float[Tensor, "b gh gw"] | None = None
) -> tuple[Float[Tensor, "b n 3 _ _"], Cells, Size]:
    """All leaves of images, with the weights of a density or none, and how many columns and rows they have."""
    height, width = images.shape[-2:]
    columns, rows = (max(1, round(side / leaf)) for side in (width, height))
    if density is None:
        wanted = torch.full((len(images), rows, columns), 1.0, dtype=torch.float64, device=images.device)
    else:
        wanted = resample_mass(density.double(), (columns, rows))
    allocation = rectangular(allocate_view(View(wanted, (width, height), leaf), columns * rows, "uniform"))
    cells = cells_of(allocation)
    if density is None:
        cells = cells._replace(weights=torch.full_like(cells.weights, torch.nan))
    return sample(images, allocation), cells, (columns, rows)


def on_grid(density: Float[Tensor, "b gh gw"], grid: Size) -> Float[Tensor, "b n"]:
    """A density as the relevance of the tokens of a grid."""
    return resample_mass(density.double(), grid).flatten(1).float()


def seen_cells(
    model: CompactVLM,
    patches: Float[Tensor, "b n 3 leaf leaf"],
    cells: Cells,
    grid: Size,
    *,
    attention: Collection[str] = BOTH,
) -> Seen:
    """Patches of any cells, encoded. Of what is told of them only the features have gradients: the rest chooses."""
    features, before = encoded(model.encoder, patches.to(model.encoder.norm.weight.dtype), cells)
    with torch.no_grad():
        where = model.encoder.turns(cells.places, features.shape[-1] // model.encoder.heads)
        first, last = (cast(Block, model.encoder.blocks[place]) for place in (0, -1))
        key, _ = last.attention.keys_values(last.norm(before[-1]), None)
        nothing = torch.zeros(len(features), 0, device=features.device)
        late = received(last, before[-1], where) if "late" in attention else nothing
        early = received(first, before[0], where) if "early" in attention else nothing
    return Seen(features, cells.places, grid, key.transpose(1, 2).flatten(2), late, early)


def encoded(
    encoder: Encoder, patches: Float[Tensor, "b n 3 leaf leaf"], cells: Cells
) -> tuple[Float[Tensor, "b n c"], list[Tensor]]:
    """Features, as the encoder gives them, and what went into each of its blocks."""
    before: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, given: before.append(given[0])) for block in encoder.blocks]
    try:
        return encoder(patches, cells), before
    finally:
        for hook in hooks:
            hook.remove()


def received(block: Block, x: Float[Tensor, "b n c"], where: Turns) -> Float[Tensor, "b n"]:
    """How much all tokens look at each in a block: the mean over tokens and heads, sum 1; compared in full precision
    even inside autocast, as in peers/layers.py."""
    normed = block.norm(x)
    query = block.attention.queries(normed, where).float()
    key = block.attention.keys_values(normed, where)[0].float()
    total = torch.zeros(x.shape[:2], device=x.device)
    with full_precision(x.device.type):
        for part in query.split(ROWS, dim=2):
            total += (part @ key.mT / part.shape[-1] ** 0.5).softmax(-1).mean(1).sum(1)
    return total / x.shape[1]


def remember_tokens(model: CompactVLM, features: Float[Tensor, "b n c"], places: Float[Tensor, "b n 4"]) -> Memory:
    """What the decoder keeps of tokens, all shown to every layer."""
    nothing = torch.zeros_like(places)  # a decoder asks of cells only where they are
    return model.decoder.remember(features, Cells(places, nothing[..., 0], nothing[..., :3]))
