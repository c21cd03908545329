"""What the tests of the compact model share: a small model, questions, looks at noise, and a watch over the device."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from homunculus.model.config import tiny
from homunculus.model.decoder import Decoder
from homunculus.model.encoder import Cells
from homunculus.model.tokenizer import EOS, Tokenizer
from homunculus.model.vlm import CompactVLM, look
from homunculus.structures import VisualTokens

TOKENIZER = Tokenizer([])  # bytes alone: nothing here depends on a vocabulary
QUESTIONS = ("What is the total?", "Who?", "When was it due?")
ANSWERS = ("41.20", "Zoë", "7 May 1999")


def model(seed: int = 0) -> CompactVLM:
    torch.manual_seed(seed)
    return CompactVLM(tiny(), TOKENIZER)


def questions(*texts: str, length: int | None = None) -> Tensor:
    return TOKENIZER.batch([TOKENIZER.encode(text) for text in texts or QUESTIONS], length)


def answers(*texts: str, length: int | None = None) -> Tensor:
    return TOKENIZER.batch([[*TOKENIZER.spell(text), EOS] for text in texts or ANSWERS], length)


def noise(batch: int = 3, width: int = 256, height: int = 256, seed: int = 0) -> Tensor:
    return torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


def tokens(batch: int = 3, budget: int = 64, seed: int = 0, **options: Any) -> VisualTokens:
    """Looks at noise by noise."""
    density = torch.rand(batch, 16, 16, generator=torch.Generator().manual_seed(seed + 1)) ** 4
    return look(noise(batch, seed=seed), density, budget, **options)


def loud_decoder() -> Decoder:
    """One whose letters follow from what it sees and not from the letter before."""
    torch.manual_seed(3)
    decoder = Decoder(tiny())
    for layer in decoder.layers:
        layer.attention.out.weight.data *= 8
        layer.mlp[2].weight.data *= 8
    return decoder


def pictures(batch: int = 3, count: int = 20, seed: int = 5) -> tuple[Tensor, Cells]:
    """Features and cells of images, made up."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, count, 32, generator=generator)
    places = torch.rand(batch, count, 4, generator=generator) * torch.tensor([4.0, 64.0, 64.0, 0.0])
    return features, Cells(places, torch.zeros(batch, count), torch.zeros(batch, count, 3))


def close(a: Tensor, b: Tensor, tolerance: float = 2e-5) -> bool:
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item()))


class NeverWaits(TorchDispatchMode):
    """Refuses what makes a host wait for a GPU: reading a value, shapes that depend on values, copies from the host.

    To be used on the meta device, where any tensor of the host stands out.
    """

    WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.unique", "aten.is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not str(func).startswith(self.WAITS), f"{func} waits for the device"
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves((args, kwargs, result)):
            assert not isinstance(value, Tensor) or value.device.type == "meta", f"{func} on {value.device}"
        return result
