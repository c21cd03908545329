"""Stage 0: the encoder learns to see. Only the encoder is trained; the heads are thrown away afterwards.

Two lessons, alone or together. *Letters*: every leaf on which letters lie says which, in their order; pages know where
each of theirs is. *Bands*: half of the tokens lose their pixels and are drawn again from the others, the error taken
band by band of a Laplacian pyramid, so that thin strokes weigh as much as areas.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from homunculus.errors import ModelError
from homunculus.geometry import Size
from homunculus.model.encoder import cells_of
from homunculus.model.tokenizer import FIRST_PIECE, PAD
from homunculus.model.vlm import CompactVLM, look
from homunculus.structures import Allocation, rectangular
from homunculus.train.pool import Pool
from homunculus.train.read import untold
from homunculus.train.samples import Pages, sent
from homunculus.train.score import fill

Lesson = Literal["letters", "bands", "both"]

SLOTS = 3  # letters to a leaf, at most: of the smallest type
BANDS = 4  # of a patch of 16 pixels: 16, 8, 4 and what is left at 2
HIDDEN = 0.5  # share of the tokens that are drawn again
UNTOLD = 0.5  # share of the images whose encoder is not told how relevant its cells were found


# ------------------------------------------------------------------------------------------------------------- letters


def text_density(
    letters: Int64[Tensor, "b texts length 3"], size: Size, grid: Size, step: int
) -> Float[Tensor, "b gh gw"]:
    """Where the letters are, some texts heavier than others, a little blurred."""
    b, texts, _, _ = letters.shape
    weight = torch.rand(b, texts, generator=torch.Generator().manual_seed(step)) ** 2
    weight = sent(weight, letters.device)[..., None] * (letters[..., 2] != PAD)
    density = torch.zeros(b, grid[0] * grid[1], device=letters.device)
    density.scatter_add_(1, leaf_of(letters, size, grid).flatten(1), weight.flatten(1))
    return F.avg_pool2d(density.view(b, 1, grid[1], grid[0]), 3, stride=1, padding=1)[:, 0]


def leaf_of(places: Int64[Tensor, "*b xy"], size: Size, grid: Size) -> Int64[Tensor, "*b"]:
    """The leaf, in reading order, in which each place lies: x and y in pixels, and whatever follows."""
    column = (places[..., 0] * grid[0] // size[0]).clamp(0, grid[0] - 1)
    line = (places[..., 1] * grid[1] // size[1]).clamp(0, grid[1] - 1)
    return line * grid[0] + column


def letter_targets(letters: Int64[Tensor, "b texts length 3"], allocation: Allocation) -> Int64[Tensor, "b n slots"]:
    """The letters on each token that is a leaf, left to right, PAD where there is none; other tokens have none."""
    size, grid = allocation.image_sizes[0], allocation.grids[0]
    b, n = allocation.levels.shape
    leaves = grid[0] * grid[1]
    leaf = leaf_of(letters, size, grid).flatten(1)
    tokens = leaf_of(allocation.centers.long(), size, grid)  # [b, n]
    tokens = tokens.masked_fill(allocation.levels != 0, leaves)  # coarser ones share a place that nobody reads
    table = torch.full((b, leaves + 1), -1, device=leaf.device)
    table.scatter_(1, tokens, torch.arange(n, device=leaf.device).expand(b, n))
    token = table[:, :leaves].gather(1, leaf)

    number = letters[..., 2].flatten(1)
    slot, alike = torch.zeros_like(leaf), torch.ones_like(leaf, dtype=torch.bool)
    real = leaf.masked_fill((letters == 0).all(-1).flatten(1), -1)  # padding lies nowhere
    for back in range(1, SLOTS + 1):  # letters of a text come from left to right
        alike = alike & (F.pad(real, (back, 0), value=-2)[:, : leaf.shape[1]] == real)
        slot = slot + alike
    shown = (token >= 0) & (number != PAD) & (slot < SLOTS)
    targets = torch.full((b, n * SLOTS + 1), PAD, device=leaf.device)
    targets.scatter_(1, torch.where(shown, token * SLOTS + slot, n * SLOTS), number)
    return targets[:, :-1].view(b, n, SLOTS)


def letter_loss(
    logits: Float[Tensor, "b n slots letters"], targets: Int64[Tensor, "b n slots"], counted: Bool[Tensor, "b n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy over the leaves that count, and the share of letters that are right."""
    loss = F.cross_entropy(logits.flatten(0, 2).float(), targets.flatten(), reduction="none").view_as(targets)
    loss = (loss.sum(-1) * counted).sum() / counted.sum().clamp_min(1)
    with torch.no_grad():
        real = (targets != PAD) & counted[..., None]
        right = ((logits.argmax(-1) == targets) & real).sum() / real.sum().clamp_min(1)
    return loss, right


# --------------------------------------------------------------------------------------------------------------- bands


def laplacian_bands(patches: Float[Tensor, "*b 3 s s"], bands: int = BANDS) -> list[Float[Tensor, "..."]]:
    """What each halving of the side takes away, fine to coarse, and the rest; the bands add up to the patch.

    >>> [tuple(band.shape) for band in laplacian_bands(torch.rand(2, 3, 16, 16))]
    [(2, 3, 16, 16), (2, 3, 8, 8), (2, 3, 4, 4), (2, 3, 2, 2)]
    """
    found = []
    here = patches.flatten(0, -4)
    for _ in range(bands - 1):
        half = F.avg_pool2d(here, 2)
        found.append(here - half.repeat_interleave(2, -1).repeat_interleave(2, -2))
        here = half
    return [*found, here]


def laplacian_loss(
    drawn: Float[Tensor, "*b 3 s s"], patches: Float[Tensor, "*b 3 s s"], counted: Float[Tensor, "*b"]
) -> Float[Tensor, ""]:
    """The mean over bands of the error in each, relative to what the band holds."""
    weight = counted.flatten()[:, None, None, None]
    errors = []
    for ours, true in zip(laplacian_bands(drawn), laplacian_bands(patches), strict=True):
        scale = (true.abs() * weight).mean().clamp_min(1e-4)
        errors.append(((ours - true).abs() * weight).mean() / scale)
    return torch.stack(errors).mean()


# --------------------------------------------------------------------------------------------------------------- stage


class Pretraining(nn.Module):
    """The loss of a step, for `loop.fit`."""

    def __init__(
        self,
        model: CompactVLM,
        pools: Sequence[Pool],
        *,
        lesson: Lesson = "letters",
        budget: int = 273,
        batch: int = 512,
        offset: int = 0,
    ) -> None:
        super().__init__()
        if lesson not in get_args(Lesson):
            raise ModelError(f"no lesson '{lesson}': choose one of {', '.join(get_args(Lesson))}")
        self.model, self.lesson, self.budget, self.batch, self.offset = model, lesson, budget, batch, offset
        self.pools = list(pools)
        self.parts = list(model.encoder.blocks)  # what is compiled
        self.fixed: list[nn.Module] = []
        self.dtype = torch.bfloat16 if model.device.type == "cuda" else torch.float32
        width = model.config.width
        self.letters = nn.Linear(width, SLOTS * FIRST_PIECE, device=model.device)
        self.bands = nn.Linear(width, 3 * model.config.leaf**2, device=model.device)

    def begin(self, step: int) -> None:
        fill(self.pools, self.offset + step)

    def forward(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        pool = self.pools[(self.offset + step) % len(self.pools)]
        pages = pool.pages(self.batch, self.offset + step)
        pool.advance()
        loss, about = self.lessons(pages, step)
        return loss, about | {"samples": float(self.batch), "waited": pool.waited}

    def lessons(self, pages: Pages, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss on some pages, and what share of their letters is right; chance follows from the step."""
        height, width = pages.images.shape[-2:]
        leaf = self.model.config.leaf
        with torch.no_grad():
            density = text_density(pages.letters, (width, height), (width // leaf, height // leaf), step)
            method = ("foveated-pyramid", "topk")[step % 2]
            tokens = look(pages.images, density, self.budget, method, leaf=leaf, seed=step, dtype=self.dtype)
            allocation = rectangular(tokens.allocation)
            cells = untold(cells_of(allocation), UNTOLD, step)
            hidden = torch.rand(tokens.patches.shape[:2], generator=torch.Generator().manual_seed(step)) < HIDDEN
            hidden = sent(hidden, tokens.patches.device) & (self.lesson != "letters")
            seen = tokens.patches.masked_fill(hidden[:, :, None, None, None], 0.5)
        features = self.model.encoder(seen, cells)
        about, losses = {}, []
        if self.lesson != "bands":
            logits = self.letters(features).unflatten(-1, (SLOTS, FIRST_PIECE))
            targets = letter_targets(pages.letters, allocation)
            loss, about["letters"] = letter_loss(logits, targets, (allocation.levels == 0) & ~hidden)
            losses.append(loss)
        if self.lesson != "letters":
            drawn = self.bands(features).view_as(seen).float()
            losses.append(laplacian_loss(drawn, tokens.patches.float(), hidden.float()))
        return torch.stack(losses).sum(), about
