"""The compact model whole: image -> relevance -> allocation -> sampling -> encoder -> decoder -> answer."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn

from homunculus.allocation import DEFAULT, allocate_view, get_allocator
from homunculus.density import resample_mass
from homunculus.errors import ModelError
from homunculus.geometry import MIN_TREE_BUDGET, fit_grid
from homunculus.model.calibration import BELIEVED
from homunculus.model.config import Config, small
from homunculus.model.decoder import Decoder, Memory, Written
from homunculus.model.encoder import Encoder, cells_of
from homunculus.model.scorer import Scorer, as_density
from homunculus.model.tokenizer import Tokenizer, default_tokenizer
from homunculus.pyramid import ImagePyramid
from homunculus.relevance.gaze import peak
from homunculus.sampling import sample
from homunculus.structures import CELL_FIELDS, Allocation, View, VisualTokens, rectangular


def look(
    images: Shaped[Tensor, "images 3 h w"],
    density: Float[Tensor, "b dh dw"],
    budget: int = 273,
    allocator: str = DEFAULT,
    *,
    fixations: Float64[Tensor, "b f 3"] | None = None,
    leaf: int = 16,
    seed: int | Tensor = 0,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> VisualTokens:
    """Spend a budget on images of one size by a density. Allocators with a gaze look at its peak, unless told where.
    A choice of cells has no gradient: none reaches the density. Of several densities to an image, those of the first
    come first; the image is not copied for them.

    >>> look(torch.rand(2, 3, 256, 256), torch.rand(2, 16, 16), 64).patches.shape
    torch.Size([2, 64, 3, 16, 16])
    """
    view = view_of(images, density, budget, allocator, fixations=fixations, leaf=leaf)
    allocation = rectangular(allocate_view(view, budget, allocator, seed=seed, **options))
    patches = sample(images, by_image(allocation, len(density) // len(images)), dtype=dtype)
    return VisualTokens(patches.reshape(len(density), -1, *patches.shape[2:]), allocation)


def view_of(
    images: Shaped[Tensor, "images 3 h w"],
    density: Float[Tensor, "b dh dw"],
    budget: int,
    allocator: str,
    *,
    fixations: Float64[Tensor, "b f 3"] | None = None,
    leaf: int = 16,
) -> View:
    """What an allocator is given: the density on a grid that fits the images; a gaze and pixels where it uses them.

    >>> view_of(torch.rand(1, 3, 256, 128), torch.rand(1, 4, 4), 64, "topk").grid
    (8, 16)
    """
    if len(density) % len(images):
        raise ModelError(f"{len(density)} densities do not part among {len(images)} images: give as many to each")
    height, width = images.shape[-2:]
    each, method = len(density) // len(images), get_allocator(allocator)
    grid = fit_grid(width, height, max(budget, MIN_TREE_BUDGET), leaf)
    wanted = resample_mass(density.detach().double(), (grid.gw, grid.gh))
    if fixations is None and method.uses_gaze:
        at = peak(wanted, (width, height))
        fixations = torch.cat((at, torch.ones_like(at[:, :1])), dim=-1)[:, None]
    pyramid = None
    if method.needs_pixels:
        pyramid = ImagePyramid(images.repeat_interleave(each, dim=0), (grid.gw, grid.gh), leaf)
    return View(wanted, (width, height), leaf, pyramid, fixations)


def by_image(allocation: Allocation, each: int) -> Allocation:
    """`each` allocations in a row as one of their image, with the cells of all.

    >>> import homunculus
    >>> by_image(homunculus.allocate(torch.rand(6, 8, 8), 32), each=3)
    Allocation(2 images x 96 dyadic cells, leaf 16, cpu)
    """
    if each == 1:
        return allocation
    cells = {name: getattr(allocation, name).unflatten(0, (-1, each)).flatten(1, 2) for name in CELL_FIELDS}
    return replace(
        allocation,
        **cells,
        gaze=allocation.gaze[::each],
        image_sizes=allocation.image_sizes[::each],
        grids=allocation.grids[::each],
    )


class CompactVLM(nn.Module):
    """A vision-language model small enough to read, and to ship.

    >>> from homunculus.model.config import tiny
    >>> model = CompactVLM(tiny())
    >>> question = model.tokenizer.batch([model.tokenizer.encode("What is the total?")])
    >>> answer = model.tokenizer.batch([model.tokenizer.spell("41.20")])
    >>> model(torch.rand(1, 3, 256, 256), question, answer, budget=64).shape
    torch.Size([1, 5, 259])
    """

    def __init__(self, config: Config | None = None, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.config = config or small()
        self.tokenizer = tokenizer or default_tokenizer()
        if self.tokenizer.size > self.config.vocabulary:
            raise ModelError(
                f"a tokenizer of {self.tokenizer.size} numbers needs a model of as many, not {self.config.vocabulary}: "
                "set vocabulary in its config"
            )
        self.calibration = BELIEVED  # how sure an answer's probability makes us; weights may know better
        self.scorer = Scorer(self.config)
        self.encoder = Encoder(self.config)
        self.decoder = Decoder(self.config)

    @property
    def device(self) -> torch.device:
        return self.decoder.embedding.weight.device

    def forward(
        self,
        images: Shaped[Tensor, "b 3 h w"],
        question: Int64[Tensor, "b q"],
        answer: Int64[Tensor, "b t"],
        budget: int = 273,
        allocator: str = DEFAULT,
    ) -> Float[Tensor, "b t letters"]:
        """Logits of an answer's letters, each given those before it."""
        density = self.relevance(images, question)
        tokens = look(images, density, budget, allocator, leaf=self.config.leaf)
        memory = self.see(tokens)
        return self.decoder(memory, question, answer)

    def relevance(self, images: Shaped[Tensor, "b 3 h w"], question: Int64[Tensor, "b q"]) -> Float[Tensor, "b gh gw"]:
        """Where the answer is likely to be seen: a density of mass 1 over leaves."""
        return as_density(self.scorer(self.scorer.features(images), question))

    def see(self, tokens: VisualTokens) -> Memory:
        """What the decoder remembers of visual tokens: they are encoded, and turned into keys and values."""
        cells = cells_of(rectangular(tokens.allocation))
        features = self.encoder(tokens.patches.to(self.decoder.embedding.weight.dtype), cells)
        return self.decoder.remember(features, cells)

    @torch.no_grad()
    def read(self, tokens: VisualTokens, question: Int64[Tensor, "b q"], longest: int = 160) -> Written:
        """The likeliest answer, letter by letter."""
        return self.decoder.write(self.see(tokens), question, longest)
