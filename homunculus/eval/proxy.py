"""What a pretrained tower might make of our tokens: the only evidence we have without its weights.

A reader that only ever saw pictures as plain grids stands for such a tower: every patch of one scale (told to be level
0, no relevance, upright squares), at its place in leaves of its own grid. It is shown the same questions in ways it was
not trained for, as the stages of integrations/qwen_vl show them to Qwen, and in ways it was:

  grid        a window at full resolution where relevance is: a picture like any other
  pre         cells of several scales, each at its centre, through the encoder together
  post        the whole page through the encoder; features averaged by cell, at the cells' centres
  views       an overview and a crop, each encoded as a picture of its own, one after the other for the decoder
  downscaled  the whole page scaled down to the budget, which any processor can do
  whole       every leaf, at many times the budget: what `post` has before it averages
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from homunculus.allocation.cells import make_allocation
from homunculus.allocation.views import ViewGrids, crop_corners, view_grids
from homunculus.density import resample_mass
from homunculus.errors import ModelError
from homunculus.eval.answers import exactly
from homunculus.geometry import MIN_TREE_BUDGET, Size, fit_grid
from homunculus.model.decoder import Memory
from homunculus.model.encoder import Cells, cells_of
from homunculus.model.vlm import CompactVLM, look
from homunculus.sampling import sample
from homunculus.structures import Allocation, View, VisualTokens, rectangular

# What a reader that was trained on cells of all kinds is shown in place of each way, where there is such a thing.
ORDINARY = {"pre": "foveated-pyramid", "views": "views", "downscaled": "uniform", "whole": "uniform"}
BLIND = ("downscaled", "whole")  # ways that show the same whatever is relevant


class Seen(NamedTuple):
    """Features of tokens and where the decoder finds them: level, x and y in leaves, and 0 for t."""

    features: Float[Tensor, "b n c"]
    places: Float[Tensor, "b n 4"]


# ------------------------------------------------------------------------------------------------------------ pictures


def plain_cells(places: Float[Tensor, "b n 4"]) -> Cells:
    """Tokens of which nothing is told but x and y: level 0, no weight, upright squares.

    >>> cells = plain_cells(torch.tensor([[[2.0, 6.0, 10.0, 0.0]]]))
    >>> cells.places.tolist(), cells.weights.tolist(), cells.forms.tolist()
    ([[[0.0, 6.0, 10.0, 0.0]]], [[nan]], [[[0.0, 0.0, 0.0]]])
    """
    flat = torch.zeros_like(places[..., 0])
    level_free = torch.cat((flat[..., None], places[..., 1:]), dim=-1)
    return Cells(level_free, torch.full_like(flat, torch.nan), torch.zeros_like(places[..., 1:]))


def own_places(grid: Size, like: Float[Tensor, "b ..."]) -> Float[Tensor, "b n 4"]:
    """Where the patches of pictures of (columns, rows) lie, in leaves of their own, in reading order.

    >>> own_places((2, 1), torch.zeros(1))[0].tolist()
    [[0.0, 0.5, 0.5, 0.0], [0.0, 1.5, 0.5, 0.0]]
    """
    columns, rows = grid
    at = torch.arange(columns * rows, device=like.device)
    x, y = at % columns + 0.5, at // columns + 0.5
    return torch.stack((x * 0, x, y, x * 0), dim=-1).expand(len(like), -1, -1)


def pictures(
    images: Shaped[Tensor, "b 3 h w"],
    boxes: Float64[Tensor, "b 4"],
    grid: Size,
    leaves: Size,
    leaf: int = 16,
    dtype: torch.dtype | None = None,
) -> VisualTokens:
    """What boxes show (in leaves, of which the image has `leaves`), each as a grid of (columns, rows) patches.

    >>> box = torch.tensor([[0.0, 0.0, 8.0, 4.0]], dtype=torch.float64)
    >>> pictures(torch.rand(1, 3, 128, 128), box, (4, 2), (8, 8)).patches.shape
    torch.Size([1, 8, 3, 16, 16])
    """
    b, _, height, width = images.shape
    even = torch.ones(b, leaves[1], leaves[0], dtype=torch.float64, device=images.device)
    cells = ViewGrids(grid, grid, boxes[:, None]).cells()
    allocation = make_allocation(View(even, (width, height), leaf), cells, "box", in_order=True)
    return VisualTokens(sample(images, allocation, dtype=dtype), allocation)


def encode(model: CompactVLM, patches: Float[Tensor, "b n 3 leaf leaf"], places: Float[Tensor, "b n 4"]) -> Seen:
    """Patches through the encoder, which is told where they are and nothing else."""
    cells = plain_cells(places)
    return Seen(model.encoder(patches, cells), cells.places)


def one_after_another(first: Seen, second: Seen, grid: Size) -> Seen:
    """Two pictures for the decoder; the second begins, in x and in y, behind the first's longer side, as images in a
    prompt of Qwen-VL do. `grid` is (columns, rows) of the first."""
    level, x, y, t = second.places.unbind(-1)
    behind = torch.stack((level, x + max(grid), y + max(grid), t), dim=-1)
    features, places = zip(first, Seen(second.features, behind), strict=True)
    return Seen(torch.cat(features, dim=1), torch.cat(places, dim=1))


# ---------------------------------------------------------------------------------------------------------------- ways


def window_shape(budget: int, within: Size, ratio: float = 1.0) -> Size:
    """Columns and rows of a window of at most so many leaves, `ratio` times as wide as high, that fits into a grid.

    >>> window_shape(273, (64, 64)), window_shape(273, (64, 8)), window_shape(256, (64, 64), 4.0)
    ((17, 16), (34, 8), (32, 8))
    """
    rows = min(within[1], max(1, int(math.sqrt(budget / ratio))))
    return min(within[0], max(1, budget // rows)), rows


def window_boxes(view: View, shape: Size) -> Float64[Tensor, "b 4"]:
    """Windows of (columns, rows) leaves about the fixations, or else where the density is heaviest, in leaves.

    >>> density = torch.zeros(1, 64, 64, dtype=torch.float64); density[0, 30, 20] = 1.0
    >>> window_boxes(View(density, (1024, 1024)), (16, 12)).tolist()
    [[13.0, 25.0, 29.0, 37.0]]
    """
    return _boxes(crop_corners(view, shape, 1)[:, 0].double(), shape)


def whole_boxes(images: Shaped[Tensor, "b 3 h w"], leaves: Size) -> Float64[Tensor, "b 4"]:
    """A box round each image whole, in leaves."""
    return _boxes(torch.zeros(len(images), 2, dtype=torch.float64, device=images.device), leaves)


def _boxes(corner: Float64[Tensor, "b 2"], side: Size) -> Float64[Tensor, "b 4"]:
    """Made with plain numbers: a copy of a tensor would wait for the device."""
    return torch.stack((corner[:, 0], corner[:, 1], corner[:, 0] + side[0], corner[:, 1] + side[1]), dim=1)


def scaled_shape(budget: int, leaves: Size) -> Size:
    """Columns and rows of at most so many patches for a whole image of so many leaves, hardly squashed.

    >>> scaled_shape(273, (64, 64)), scaled_shape(273, (96, 48)), scaled_shape(273, (8, 8))
    ((16, 16), (23, 11), (8, 8))
    """
    shrunk = min(1.0, math.sqrt(budget / (leaves[0] * leaves[1])))
    return max(1, int(leaves[0] * shrunk)), max(1, int(leaves[1] * shrunk))


def cell_shares(allocation: Allocation) -> Float[Tensor, "b n leaves"]:
    """What share of each cell lies on each leaf of the image; rows sum to 1. Cells are upright boxes."""
    (width, height), (gw, gh) = allocation.image_sizes[0], allocation.grids[0]
    x0, y0, x1, y1 = allocation.boxes.double().unbind(-1)
    across = _overlap(x0 * gw / width, x1 * gw / width, gw).float()
    down = _overlap(y0 * gh / height, y1 * gh / height, gh).float()
    return (down[..., :, None] * across[..., None, :]).flatten(2)


def _overlap(low: Float64[Tensor, "b n"], high: Float64[Tensor, "b n"], count: int) -> Float64[Tensor, "b n count"]:
    """What share of each stretch lies on each of so many units of an axis."""
    at = torch.arange(count, dtype=torch.float64, device=low.device)
    shared = (torch.minimum(high[..., None], at + 1) - torch.maximum(low[..., None], at)).clamp(min=0)
    return shared / shared.sum(-1, keepdim=True)


def pool_features(features: Float[Tensor, "b leaves c"], allocation: Allocation) -> Float[Tensor, "b n c"]:
    """Features of all leaves averaged over the area of each cell; a cell of one leaf has that leaf's."""
    return torch.bmm(cell_shares(allocation).to(features.dtype), features)


class Shower:
    """Shows images to a reader of plain pictures in any of the ways.

    `images` are of one size, with one density a question and as many questions to each image, image by image.

    >>> from homunculus.model.config import tiny
    >>> shower = Shower(CompactVLM(tiny()), budget=64)
    >>> images, density = torch.rand(1, 3, 256, 256), torch.rand(2, 16, 16)
    >>> {way: shower.seen(way, images, density).features.shape[:2] for way in WAYS}["views"]
    torch.Size([2, 64])
    """

    def __init__(self, model: CompactVLM, budget: int = 273, dtype: torch.dtype | None = None) -> None:
        self.model, self.budget = model, budget
        self.dtype = dtype or model.decoder.embedding.weight.dtype  # of the patches

    def memory(self, way: str, images: Shaped[Tensor, "i 3 h w"], density: Float[Tensor, "b gh gw"]) -> Memory:
        """What the decoder remembers, for every question."""
        return self.remember(self.seen(way, images, density), len(density))

    def remember(self, seen: Seen, questions: int) -> Memory:
        """Keys and values for so many questions, as many of each image as there are."""
        memory = self.model.decoder.remember(seen.features, plain_cells(seen.places))
        each = questions // len(seen.features)
        if each == 1:
            return memory
        return Memory(tuple((k.repeat_interleave(each, 0), v.repeat_interleave(each, 0)) for k, v in memory.layers))

    def seen(self, way: str, images: Shaped[Tensor, "i 3 h w"], density: Float[Tensor, "b gh gw"]) -> Seen:
        """Features and places: for every question, or for every image where they depend on nothing else."""
        if way not in WAYS:
            raise ModelError(f"no way '{way}' to show an image: choose one of {', '.join(WAYS)}")
        return WAYS[way](self, images, density)

    def grid(self, images: Tensor, density: Tensor) -> Seen:
        view = self._view(images, density)
        shape = window_shape(self.budget, view.grid)
        return self.picture(_for_each(images, density), window_boxes(view, shape), shape, view.grid)

    def pre(self, images: Tensor, density: Tensor) -> Seen:
        tokens = self._cells(images, density)
        return encode(self.model, tokens.patches, cells_of(rectangular(tokens.allocation)).places)

    def post(self, images: Tensor, density: Tensor) -> Seen:
        with torch.no_grad():
            allocation = rectangular(self._cells(images, density).allocation)
        every = _for_each(self.whole(images).features, density)
        return Seen(pool_features(every, allocation), plain_cells(cells_of(allocation).places).places)

    def views(self, images: Tensor, density: Tensor) -> Seen:
        view = self._view(images, density)
        shown, each = view_grids(view, self.budget), _for_each(images, density)
        overview = self.picture(each, shown.boxes[:, 0], shown.overview, view.grid)
        crop = self.picture(each, shown.boxes[:, 1], shown.crop, view.grid)
        return one_after_another(overview, crop, shown.overview)

    def downscaled(self, images: Tensor, density: Tensor | None = None) -> Seen:
        leaves = self.leaves(images)
        return self.picture(images, whole_boxes(images, leaves), scaled_shape(self.budget, leaves), leaves)

    def whole(self, images: Tensor, density: Tensor | None = None) -> Seen:
        leaves = self.leaves(images)
        return self.picture(images, whole_boxes(images, leaves), leaves, leaves)

    def picture(self, images: Tensor, boxes: Float64[Tensor, "b 4"], shape: Size, leaves: Size) -> Seen:
        """What boxes show, in leaves, each encoded as a picture of its own."""
        with torch.no_grad():
            patches = pictures(images, boxes, shape, leaves, self.model.config.leaf, self.dtype).patches
        return encode(self.model, patches, own_places(shape, patches))

    def leaves(self, images: Tensor) -> Size:
        """The grid of leaves that cells of the budget are made on."""
        height, width = images.shape[-2:]
        grid = fit_grid(width, height, max(self.budget, MIN_TREE_BUDGET), self.model.config.leaf)
        return grid.gw, grid.gh

    def _view(self, images: Tensor, density: Tensor) -> View:
        height, width = images.shape[-2:]
        wanted = resample_mass(density.detach().double(), self.leaves(images))
        return View(wanted, (width, height), self.model.config.leaf)

    def _cells(self, images: Tensor, density: Tensor) -> VisualTokens:
        leaf = self.model.config.leaf
        return look(_for_each(images, density), density, self.budget, leaf=leaf, dtype=self.dtype)


WAYS: dict[str, Callable[[Shower, Tensor, Tensor], Seen]] = {
    "grid": Shower.grid,
    "pre": Shower.pre,
    "post": Shower.post,
    "views": Shower.views,
    "downscaled": Shower.downscaled,
    "whole": Shower.whole,
}


def _for_each(values: Shaped[Tensor, "i *rest"], density: Float[Tensor, "b gh gw"]) -> Shaped[Tensor, "b *rest"]:
    """Of each image as many copies in a row as it has questions."""
    each = len(density) // len(values)
    return values if each == 1 else values.repeat_interleave(each, dim=0)


def ordinary_memory(
    model: CompactVLM, way: str, images: Shaped[Tensor, "i 3 h w"], density: Float[Tensor, "b gh gw"], budget: int = 273
) -> Memory:
    """What a reader that was trained on cells remembers of the tokens that it knows in place of a way's."""
    if way not in ORDINARY:
        raise ModelError(f"no cells stand for '{way}': choose one of {', '.join(ORDINARY)}")
    leaves = Shower(model, budget).leaves(images)
    if way in BLIND:
        columns, rows = leaves if way == "whole" else scaled_shape(budget, leaves)
        budget = columns * rows
    return model.see(look(_for_each(images, density), density, budget, ORDINARY[way], leaf=model.config.leaf))


# -------------------------------------------------------------------------------------------------------------- answers


@torch.no_grad()
def exact_answers(
    model: CompactVLM,
    remember: Callable[[Tensor, Tensor], Memory],
    images: Shaped[Tensor, "i 3 h w"],
    question: Int64[Tensor, "b q"],
    density: Float[Tensor, "b gh gw"],
    answers: Sequence[Sequence[str]],
    *,
    batch: int = 64,
    longest: int = 64,
) -> list[float]:
    """1 for every question whose written answer is one of those that count, else 0; `batch` images at a time.

    `remember` makes a memory of images and densities, such as `Shower.memory` of one way.
    """
    each = len(question) // len(images)
    found: list[float] = []
    for first in range(0, len(images), batch):
        own = slice(first * each, (first + batch) * each)
        memory = remember(images[first : first + batch], density[own])
        written = model.decoder.write(memory, question[own], longest)
        said = [model.tokenizer.decode(letters) for letters in written.letters.tolist()]
        found += [exactly(one, right) for one, right in zip(said, answers[own], strict=True)]
    return found
