"""Visual tokens to features: each patch embedded with its scale and how relevant it was found, then attention.

Of the question it knows only what the choice of cells and their weights give away: for one allocation its features can
be kept. A budget is exact, so no token is padding; where counts differ all the same, it is told which tokens are real.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from homunculus.model.blocks import Block, Norm
from homunculus.model.config import Config
from homunculus.model.rotary import POSITIONS
from homunculus.structures import Allocation

WEIGHT_RANGE = 6.0  # doublings of the mean density that are told apart, up and down
LEVELS = 12  # that have an embedding, where levels are embedded
WAVES = (32.0, 5)  # leaves of the shortest wave that tells a place, and how many there are, each twice as long


class Cells(NamedTuple):
    """What the encoder is told of each token beside its pixels."""

    places: Float[Tensor, "b n 4"]  # level, x and y of the centre in leaves, and 0 for t
    weights: Float[Tensor, "b n"]  # log2 of density over its mean, within WEIGHT_RANGE; NaN where it is not told
    forms: Float[Tensor, "b n 3"]  # log2 of width over height, and the turn: sin 2a, 1 - cos 2a; zeros: upright squares


def cells_of(allocation: Allocation) -> Cells:
    """Places and weights of an allocation's cells. A leaf is a leaf of the fitted grid: grids of one batch may differ.

    >>> import homunculus
    >>> cells = cells_of(homunculus.allocate(torch.ones(64, 64), 256, "uniform"))
    >>> cells.places[0, 0].tolist(), cells.weights.abs().max().item() < 1e-5
    ([2.0, 2.0, 2.0, 0.0], True)
    """
    per_leaf = [(w / gw, h / gh) for (w, h), (gw, gh) in zip(allocation.image_sizes, allocation.grids, strict=True)]
    leaves = [float(gw * gh) for gw, gh in allocation.grids]
    if len(set(allocation.grids)) == 1 and len(set(allocation.image_sizes)) == 1:  # plain numbers need no transfer
        x, y = allocation.centers[..., 0] / per_leaf[0][0], allocation.centers[..., 1] / per_leaf[0][1]
        mean_share: float | Tensor = leaves[0]
    else:
        sides = torch.tensor(per_leaf, device=allocation.device)
        x, y = (allocation.centers / sides[:, None]).unbind(-1)
        mean_share = torch.tensor(leaves, device=allocation.device)[:, None]
    places = torch.stack((allocation.levels, x, y, torch.zeros_like(x)), dim=-1).float()
    density = allocation.scores * mean_share / 4**allocation.levels
    weights = density.clamp_min(1e-9).log2().clamp(-WEIGHT_RANGE, WEIGHT_RANGE).float()
    width, height = (allocation.boxes[..., 2:] - allocation.boxes[..., :2]).unbind(-1)
    turn = 2 * allocation.angle
    forms = torch.stack(((width / height).log2(), turn.sin(), 1 - turn.cos()), dim=-1).float()
    return Cells(places, weights, forms)


class Encoder(nn.Module):
    """Patches and cells to features [b, n, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        pixels = 3 * config.leaf**2
        self.patch_embedding = nn.Sequential(
            nn.Linear(pixels, config.width), nn.GELU(), nn.Linear(config.width, config.width)
        )
        self.cell_embedding = nn.Linear(6, config.width)  # level, weight, whether it is told, form
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.encoder_layers))
        self.norm = Norm(config.width)
        self.turns = POSITIONS[config.positions]
        embedded = config.positions == "embedded-level"  # zeros, so that all else begins as in any other model
        self.level_embedding = nn.Parameter(torch.zeros(LEVELS, config.width)) if embedded else None
        placed = config.positions == "placed"
        self.place_embedding = nn.Parameter(torch.zeros(4 * WAVES[1], config.width)) if placed else None

    def forward(
        self, patches: Float[Tensor, "b n 3 leaf leaf"], cells: Cells, real: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n c"]:
        told = ~cells.weights.isnan()
        about = (
            cells.places[..., 0] / 4,
            cells.weights.nan_to_num() / WEIGHT_RANGE,
            told.float(),
            *cells.forms.unbind(-1),
        )
        known = torch.stack(about, dim=-1).to(patches.dtype)
        x = self.patch_embedding(patches.flatten(2) * 4 - 2) + self.cell_embedding(known)
        if self.level_embedding is not None:
            x = x + embedded_levels(cells.places[..., 0], self.level_embedding)
        if self.place_embedding is not None:
            x = x + waves(cells.places[..., 1:3]).to(x.dtype) @ self.place_embedding.to(x.dtype)
        where = self.turns(cells.places, x.shape[-1] // self.heads)
        mask = None if real is None else real[:, None, None]  # nobody looks at padding
        for block in self.blocks:
            x = block(x, where, mask)
        return self.norm(x)


def waves(places: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n w"]:
    """x and y in leaves as sines and cosines of waves, of which the longest tells where in a large image a place is.

    >>> waves(torch.zeros(1, 1, 2)).flatten().tolist() == [0.0] * 10 + [1.0] * 10
    True
    """
    shortest, count = WAVES
    rates = 2 * math.pi / shortest * 0.5 ** torch.arange(count, device=places.device)
    angles = (places.float()[..., None] * rates).flatten(2)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def embedded_levels(levels: Float[Tensor, "b n"], table: Float[Tensor, "levels c"]) -> Float[Tensor, "b n c"]:
    """The rows of a table at levels; between two whole levels, between their rows.

    >>> embedded_levels(torch.tensor([[0.0, 1.25, 9.0]]), torch.tensor([[0.0], [1.0], [3.0]])).flatten().tolist()
    [0.0, 1.5, 3.0]
    """
    known = torch.arange(len(table), device=levels.device)
    apart = levels.clamp(0, len(table) - 1)[..., None] - known
    return (1 - apart.abs()).clamp_min(0).to(table.dtype) @ table
