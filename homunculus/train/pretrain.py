"""Stage 0: the encoder learns to see. Only the encoder is trained; the heads are thrown away afterwards.

Two lessons, alone or together. *Letters*: each leaf says which letters lie on it, see train/letters.py. *Bands*: half
of the tokens lose their pixels and are drawn again from the others, the error taken band by band of a Laplacian
pyramid, so that thin strokes weigh as much as areas.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from homunculus.errors import ModelError
from homunculus.geometry import Size
from homunculus.model.encoder import Cells, cells_of
from homunculus.model.tokenizer import FIRST_PIECE
from homunculus.model.vlm import CompactVLM, look
from homunculus.structures import VisualTokens, rectangular
from homunculus.train.augment import augmented_pages
from homunculus.train.compiling import Method
from homunculus.train.letters import SLOTS, known, letter_loss, letter_targets, text_density
from homunculus.train.pool import Pool
from homunculus.train.proxy import text_windows
from homunculus.train.read import untold
from homunculus.train.samples import Pages, sent
from homunculus.train.score import fill

Lesson = Literal["letters", "bands", "both"]

BANDS = 4  # of a patch of 16 pixels: 16, 8, 4 and what is left at 2
HIDDEN = 0.5  # share of the tokens that are drawn again
UNTOLD = 0.5  # share of the images whose encoder is not told how relevant its cells were found


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
        windows: Sequence[Size] = (),
        offset: int = 0,
        augment: float = 0.0,
    ) -> None:
        super().__init__()
        if lesson not in get_args(Lesson):
            raise ModelError(f"no lesson '{lesson}': choose one of {', '.join(get_args(Lesson))}")
        self.model, self.lesson, self.budget, self.batch, self.offset = model, lesson, budget, batch, offset
        self.augment = augment  # the share of pages whose letters have other shapes
        self.windows = tuple(windows)  # (columns, rows) of plain grids of leaves that are shown instead of cells
        self.pools = list(pools)
        self.parts = [block.forward for block in model.encoder.blocks]  # what is compiled
        self.fixed: list[Method] = []
        self.dtype = torch.bfloat16 if model.device.type == "cuda" else torch.float32
        width = model.config.width
        self.letters = nn.Linear(width, SLOTS * FIRST_PIECE, device=model.device)
        self.bands = nn.Linear(width, 3 * model.config.leaf**2, device=model.device)

    def begin(self, step: int) -> None:
        fill(self.pools, self.offset + step)

    def forward(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        pool = self.pools[(self.offset + step) % len(self.pools)]
        pages = pool.pages(self.batch, self.offset + step)
        if changed := round(self.augment * self.batch):
            first, rest = (
                Pages(*(values[part] for values in pages)) for part in (slice(changed), slice(changed, None))
            )
            first = augmented_pages(first, pool.own_seed, self.offset + step)
            pages = Pages(*(torch.cat(pair) for pair in zip(first, rest, strict=True)))
        pool.advance()
        loss, about = self.lessons(pages, step)
        return loss, about | {"samples": float(self.batch), "waited": pool.waited}

    def lessons(self, pages: Pages, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss on some pages, and what share of their letters is right; chance follows from the step."""
        with torch.no_grad():
            tokens, cells = self.shown(pages, step)
            allocation = rectangular(tokens.allocation)
            hidden = torch.rand(tokens.patches.shape[:2], generator=torch.Generator().manual_seed(step)) < HIDDEN
            hidden = sent(hidden, tokens.patches.device) & (self.lesson != "letters")
            seen = tokens.patches.masked_fill(hidden[:, :, None, None, None], 0.5)
        features = self.model.encoder(seen, cells)
        about, losses = {}, []
        if self.lesson != "bands":
            logits = self.letters(features).unflatten(-1, (SLOTS, FIRST_PIECE))
            targets = letter_targets(pages.letters, allocation)
            counted = (allocation.levels == 0) & ~hidden & known(pages.letters)
            loss, about["letters"] = letter_loss(logits, targets, counted)
            losses.append(loss)
        if self.lesson != "letters":
            drawn = self.bands(features).view_as(seen).float()
            losses.append(laplacian_loss(drawn, tokens.patches.float(), hidden.float()))
        return torch.stack(losses).sum(), about

    def shown(self, pages: Pages, step: int) -> tuple[VisualTokens, Cells]:
        """Cells about the texts, of half of the pages without how relevant they were found; or windows."""
        height, width = pages.images.shape[-2:]
        leaf = self.model.config.leaf
        density = text_density(pages.letters, (width, height), (width // leaf, height // leaf), step)
        if self.windows:
            shape = self.windows[step % len(self.windows)]
            return text_windows(pages.images, density, shape, leaf, self.dtype)
        method = ("foveated-pyramid", "topk")[step % 2]
        tokens = look(pages.images, density, self.budget, method, leaf=leaf, seed=step, dtype=self.dtype)
        return tokens, untold(cells_of(rectangular(tokens.allocation)), UNTOLD, step)
