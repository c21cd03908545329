"""Stage 2: encoder and decoder learn to answer, on what a curriculum shows. The scorer is frozen.

The allocation is hard and relevance is made before it (true, corrupted, or predicted by the frozen scorer), so a step
is as cheap as its tokens. Batches are as large as a number of tokens allows, whatever the budget.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from homunculus.model.decoder import Layer
from homunculus.model.encoder import Cells, cells_of
from homunculus.model.tokenizer import PAD
from homunculus.model.vlm import CompactVLM, look
from homunculus.structures import rectangular
from homunculus.train.augment import augmented, chosen
from homunculus.train.curriculum import Phase, Showing, showing
from homunculus.train.densities import corrupted
from homunculus.train.pool import Pool
from homunculus.train.samples import Samples
from homunculus.train.score import TOGETHER, compiled_parts, fill, predicted, truth_of


def answer_loss(
    logits: Float[Tensor, "b t letters"], answer: Int64[Tensor, "b t"]
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Cross-entropy of the letters; the share of right ones, and of answers right in every letter, each given the
    true ones before it. A sample whose answer is empty counts for nothing."""
    real = answer != PAD
    count = real.sum().clamp_min(1)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), answer.flatten(), ignore_index=PAD, reduction="sum") / count
    with torch.no_grad():
        right = (logits.argmax(-1) == answer) | ~real
        asked = real.any(1)
        exact = (right.all(1) & asked).sum() / asked.sum().clamp_min(1)
    return loss, {"letters": (right & real).sum() / count, "exact": exact}


class Reading:
    """The loss of a step, for `loop.fit`. `augment` is the share of steps whose images are."""

    def __init__(
        self,
        model: CompactVLM,
        pools: Sequence[Pool],
        phases: Sequence[Phase],
        steps: int,
        *,
        tokens: int = 512 * 273,
        largest: int = 768,
        each: int = 8,
        seed: int = 0,
        offset: int = 0,
        augment: float = 0.0,
    ) -> None:
        self.model, self.pools, self.phases, self.steps = model, pools, phases, steps
        self.tokens, self.largest, self.each = tokens, largest, each
        self.seed, self.offset, self.augment = seed, offset, augment
        layers = cast(Sequence[Layer], model.decoder.layers)
        modules = [*model.encoder.blocks, *layers, *(layer.attention.keys_values for layer in layers)]
        self.parts = [module.forward for module in modules]  # what is compiled, for any budget
        self.fixed = compiled_parts(model)
        self.dtype = torch.bfloat16 if model.device.type == "cuda" else torch.float32

    def begin(self, step: int) -> None:
        fill(self.pools, self.offset + step)

    def __call__(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        shown = showing(self.phases, self.steps, step, self.seed)
        samples, waited = self.drawn(shown, step)
        leaf = self.model.config.leaf
        with torch.no_grad():
            density = self.relevance(samples, shown, step)
            how: dict[str, Any] = {"leaf": leaf, "seed": step, "dtype": self.dtype}
            images = enlarged(samples.images, shown.enlarged)
            tokens = look(images, density, shown.budget, shown.allocator, **how)
            cells = cells_of(rectangular(tokens.allocation))
            cells = untold(cells, shown.untold, step)
        features = self.model.encoder(tokens.patches, cells)
        logits = self.model.decoder(self.model.decoder.remember(features, cells), samples.question, samples.answer)
        loss, about = answer_loss(logits, samples.answer)
        return loss, about | {"samples": float(len(density)), "waited": waited}

    def drawn(self, shown: Showing, step: int) -> tuple[Samples, float]:
        """The samples of a step, and the seconds that were ever waited for images; the pool goes on."""
        pool = self.pools[(self.offset + step) % len(self.pools)]
        samples = pool.draw(self.count(shown.budget), self.offset + step, self.each, shown.readings)
        if chosen(self.augment, self.offset + step):
            samples = augmented(samples, pool.own_seed, self.offset + step, pool.colours(samples))
        pool.advance()
        return samples, pool.waited

    def count(self, budget: int) -> int:
        """The samples of a step: whole groups of images that the scorer reads together, where there are so many."""
        most, group = min(self.largest, self.tokens // budget), TOGETHER * self.each
        unit = group if most >= group else self.each
        return max(unit, most // unit * unit)

    def relevance(self, samples: Samples, shown: Showing, step: int) -> Float[Tensor, "b gh gw"]:
        height, width = samples.images.shape[-2:]
        leaf = self.model.config.leaf
        if shown.relevance == "predicted":
            return predicted(self.model, samples)
        truth = truth_of(samples, (width // leaf, height // leaf))
        return truth if shown.relevance == "true" else corrupted(truth, seed=step)


def enlarged(images: UInt8[Tensor, "b 3 h w"], times: int) -> UInt8[Tensor, "b 3 h2 w2"]:
    """Images so many times as large, as a camera of more pixels would have taken them: type is then read in coarser
    cells, farther apart.

    >>> enlarged(torch.arange(4, dtype=torch.uint8).view(1, 1, 1, 4).expand(1, 3, 1, 4), 2)[0, 0, 0].tolist()
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    if times == 1:
        return images
    working = torch.float16 if images.is_cuda else torch.float32  # bytes are whole numbers up to 255 in either
    parts = (
        F.interpolate(part.to(working), scale_factor=float(times), mode="bilinear") for part in images.split(TOGETHER)
    )
    return torch.cat([part.round_().to(torch.uint8) for part in parts])


def untold(cells: Cells, share: float, step: int) -> Cells:
    """Cells of some samples without their weights, so that a reader can do without."""
    generator = torch.Generator().manual_seed(step)
    hidden = torch.rand(len(cells.weights), generator=generator) < share
    hidden = hidden.to(cells.weights.device, non_blocking=True)
    return cells._replace(weights=cells.weights.masked_fill(hidden[:, None], float("nan")))
