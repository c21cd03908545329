"""A reader of plain pictures, to stand for a pretrained tower: see eval/proxy.py for what it is then shown.

In training it sees only what such a tower sees. A picture is a window of a page, as a grid of patches that are all of
one scale: most at full resolution, some scaled down, up to the whole page. Its shape changes from step to step, the
true region lies anywhere in it, and nothing is told but where each patch lies in its own grid. Now and then another
page's picture is beside it, since pretrained models have seen several images in a prompt. Texts that are to be read
without a question lie in the middle of their picture: there is no relevance that could point at them.

It uses the curriculum of ordinary readers, `Phase`, with names of its own for allocators: `picture`, `pair` (two of
them), or one of the ways of eval/proxy.py, to be trained further on that way's tokens. A budget is the most patches a
picture has; one of every leaf is the page whole.
"""

import random

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from homunculus.eval.proxy import (
    WAYS,
    Seen,
    Shower,
    one_after_another,
    own_places,
    pictures,
    plain_cells,
    whole_boxes,
    window_boxes,
    window_shape,
)
from homunculus.geometry import Size
from homunculus.model.decoder import Memory
from homunculus.model.encoder import Cells
from homunculus.relevance.gaze import peak
from homunculus.structures import View, VisualTokens
from homunculus.train.curriculum import Phase, Showing, showing
from homunculus.train.read import Reading, answer_loss
from homunculus.train.samples import Samples, sent

RATIOS = (1.0, 1.0, 1.5, 2 / 3, 2.0)  # width over height of pictures
NATIVE, BETWEEN = 0.6, 0.2  # share of pictures at full resolution, and between that and whole pages, which are the rest
LETTERS = ((16, 16), (20, 13), (12, 12), (13, 20))  # (columns, rows) of windows whose letters are learned

_ALONE, _EITHER = {"picture": 1.0}, {"picture": 3.0, "pair": 1.0}
BEGIN = Phase(0.15, {144: 1.0}, _ALONE, readings=1.0, reach=0.3)
LEARN = Phase(0.25, {144: 2.0, 256: 1.0}, _ALONE, readings=0.7)
GRIDS = Phase(0.6, {144: 1.0, 272: 5.0, 384: 1.0, 576: 0.5, 1024: 0.25}, _EITHER, readings=0.1)
PAGES = Phase(1.0, {4096: 0.6, 272: 0.4}, _EITHER)
PICTURES = (BEGIN, LEARN, GRIDS)


def on_way(way: str, budget: int = 273) -> Phase:
    """What a reader of pictures is trained further on: a way's own tokens, by true regions and by poorer relevance.

    >>> on_way("post").allocators
    {'post': 1.0}
    """
    return Phase(1.0, {budget: 1.0}, {way: 1.0}, {"true": 0.5, "corrupted": 0.5})


def picture_boxes(
    boxes: Float[Tensor, "b k 4"],
    size: Size,
    leaves: Size,
    shape: Size,
    step: int,
    leaf: int = 16,
    middle: bool = False,
) -> Float64[Tensor, "b 4"]:
    """Where pictures of (columns, rows) patches are taken, in leaves: round the boxes of each sample (in pixels), which
    lie anywhere in it or, with `middle`, in its middle and at full resolution. Inside the image; on whole pixels.

    >>> region = torch.tensor([[[200.0, 200, 260, 220]]])
    >>> picture_boxes(region, (1024, 1024), (64, 64), (16, 12), step=0, middle=True).tolist()
    [[6.375, 7.125, 22.375, 19.125]]
    """
    chance = torch.rand(len(boxes), 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    chance = sent(chance, boxes.device)
    low, high = _around(boxes, size, leaves)  # [b, 2] each
    most = min(have / want for have, want in zip(leaves, shape, strict=True))
    along = ((chance[:, 2] - NATIVE) / BETWEEN).clamp(0, 1)  # 0: full resolution, 1: as much of the page as there is
    if middle:
        along = torch.zeros_like(along)
    zoom = most**along if most > 1 else torch.full_like(along, most)
    where = torch.full_like(chance[:, :2], 0.5) if middle else chance[:, :2]
    ends: tuple[list[Tensor], list[Tensor]] = ([], [])
    for axis in (0, 1):
        side = zoom * shape[axis]
        room = (side - (high - low)[:, axis]).clamp_min(0)
        start = (low + high)[:, axis] / 2 - side / 2 + room * (where[:, axis] - 0.5)
        start = torch.minimum(start.clamp_min(0), (leaves[axis] - side).clamp_min(0))
        start = (start * leaf).floor() / leaf
        ends[0].append(start)
        ends[1].append(start + side)
    return torch.stack(ends[0] + ends[1], dim=1)


def _around(
    boxes: Float[Tensor, "b k 4"], size: Size, leaves: Size
) -> tuple[Float64[Tensor, "b 2"], Float64[Tensor, "b 2"]]:
    """Low and high ends, in leaves, of what holds all boxes of a sample; of one without boxes it is the image."""
    real = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    none = ~real.any(1)
    low, high = [], []
    for axis in (0, 1):
        scale = leaves[axis] / size[axis]
        first = boxes[..., axis].double().masked_fill(~real, torch.inf).amin(1)
        last = boxes[..., 2 + axis].double().masked_fill(~real, -torch.inf).amax(1)
        low.append(first.masked_fill(none, 0.0) * scale)
        high.append(last.masked_fill(none, float(size[axis])) * scale)
    return torch.stack(low, dim=1), torch.stack(high, dim=1)


def text_windows(
    images: Shaped[Tensor, "b 3 h w"], density: Float[Tensor, "b gh gw"], shape: Size, leaf: int, dtype: torch.dtype
) -> tuple[VisualTokens, Cells]:
    """Windows of leaves at full resolution about the peak of each density, for lessons in letters."""
    height, width = images.shape[-2:]
    wanted = density.double()
    leaves = wanted.shape[2], wanted.shape[1]
    at = peak(wanted, (width, height))
    view = View(wanted, (width, height), leaf, None, torch.cat((at, torch.ones_like(at[:, :1])), dim=-1)[:, None])
    shape = min(shape[0], leaves[0]), min(shape[1], leaves[1])
    tokens = pictures(images, window_boxes(view, shape), shape, leaves, leaf, dtype)
    return tokens, plain_cells(own_places(shape, tokens.patches))


class GridReading(Reading):
    """The loss of a step, for `loop.fit`: pictures, or a way's tokens where a phase names one."""

    def __call__(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        shown = showing(self.phases, self.steps, step, self.seed)
        samples, waited = self.drawn(shown, step)
        logits = self.model.decoder(self.memory(samples, shown, step), samples.question, samples.answer)
        loss, about = answer_loss(logits, samples.answer)
        return loss, about | {"samples": float(len(samples.question)), "waited": waited}

    def memory(self, samples: Samples, shown: Showing, step: int) -> Memory:
        """What the decoder remembers of what a step shows."""
        shower = Shower(self.model, shown.budget, self.dtype)
        if shown.allocator in WAYS:
            with torch.no_grad():
                density = self.relevance(samples, shown, step)
            return shower.memory(shown.allocator, samples.images, density)
        return shower.remember(self.pictures(shower, samples, shown, step), len(samples.question))

    def pictures(self, shower: Shower, samples: Samples, shown: Showing, step: int) -> Seen:
        """A picture for every question; a page for every image where the budget is every leaf."""
        height, width = samples.images.shape[-2:]
        leaf = self.model.config.leaf
        leaves = (round(width / leaf), round(height / leaf))
        if shown.budget >= leaves[0] * leaves[1]:
            return shower.picture(samples.images, whole_boxes(samples.images, leaves), leaves, leaves)
        shape = window_shape(shown.budget, leaves, random.Random(f"{self.seed} {step} shape").choice(RATIOS))
        reads = shown.readings > 0
        boxes = picture_boxes(samples.boxes, (width, height), leaves, shape, step, leaf, middle=reads)
        seen = shower.picture(samples.images.repeat_interleave(samples.each, dim=0), boxes, shape, leaves)
        if shown.allocator != "pair" or reads:
            return seen
        other = Seen(seen.features.roll(samples.each, 0), seen.places)
        return one_after_another(*((seen, other) if step % 2 else (other, seen)), shape)
