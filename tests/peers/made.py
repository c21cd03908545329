"""What the tests of peers share: tokens made of noise, and plain loops to compare with."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homunculus.geometry import Size
from homunculus.model.decoder import Memory
from homunculus.model.vlm import CompactVLM
from homunculus.peers import Seen, get_peer
from homunculus.peers.compact import remember_tokens
from homunculus.peers.layers import LAYER_PEERS, remember_reduced


def made(batch: int = 3, grid: Size = (8, 6), channels: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32):
    """Tokens of noise whose fields have nothing to do with each other."""
    generator = torch.Generator().manual_seed(seed)
    count = grid[0] * grid[1]

    def noise(*shape: int) -> Tensor:
        return torch.randn(batch, count, *shape, generator=generator).to(dtype)

    attention, early, relevance = (noise().float().mul(2).softmax(1).to(dtype) for _ in range(3))
    features, keys = noise(channels), noise(channels)
    across = torch.arange(grid[0]).repeat(grid[1])
    down = torch.arange(grid[1]).repeat_interleave(grid[0])
    places = torch.stack((torch.zeros(count), across + 0.5, down + 0.5, torch.zeros(count)), 1)
    return Seen(features, places.expand(batch, -1, -1).to(dtype), grid, keys, attention, early, relevance)


def alone(seen: Seen, i: int) -> Seen:
    """One image of a batch."""
    return each(seen, lambda value: value[i : i + 1])


def each(seen: Seen, change: Callable[[Tensor], Tensor]) -> Seen:
    """All tensors changed, the grid as it is."""
    changed: dict[str, Any] = {k: change(v) for k, v in seen._asdict().items() if isinstance(v, Tensor)}
    return seen._replace(**changed)


def remembered(model: CompactVLM, seen: Seen, peer: str, budget: int, question: Tensor) -> Memory:
    """What the decoder keeps of images when a peer has reduced their tokens, or does so in its layers."""
    if peer in LAYER_PEERS:
        return remember_reduced(model.decoder, seen.features, seen.places, question, LAYER_PEERS[peer], budget)
    reduced = get_peer(peer)(seen, budget)
    return remember_tokens(model, reduced.features, reduced.places)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of two vectors, in float64; 0 where one has no length."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 0.0


def numbers(value: Tensor) -> np.ndarray:
    return value.detach().double().numpy()
