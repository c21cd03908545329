"""One image with questions whose answers and places are known: what every generator and loader yields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, UInt8
from torch import Tensor

from homunculus.errors import DataError
from homunculus.geometry import Size

Box = tuple[float, float, float, float]  # x0, y0, x1, y1: half-open, pixels of the image
Split = Literal["train", "val", "test-iid", "test-ood"]
Region = Literal["target", "secondary", "periphery"]

SPLITS: tuple[Split, ...] = get_args(Split)
REGIONS: tuple[Region, ...] = get_args(Region)


@dataclass(frozen=True)
class Question:
    """A question, the answers that count as right (the first is the one shown) and where the answer is seen.

    `boxes` is empty and `region` None where nobody has said (data of others). `kind` says how the place is named:
    by key, by place, by section; or what is asked of a scene: colour, count, relation.

    >>> Question("What is the total?", ("41.20",), ((710, 900, 790, 922),), "target", "key").answer
    '41.20'
    """

    text: str
    answers: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    region: Region | None = None
    kind: str = ""

    def __post_init__(self) -> None:
        if not self.text or not self.answers:
            raise DataError(f"a question needs a text and at least one answer, got {self.text!r} and {self.answers!r}")
        for x0, y0, x1, y1 in self.boxes:
            if not (x0 < x1 and y0 < y1):
                raise DataError(f"the box {x0, y0, x1, y1} of {self.text!r} is empty: boxes are x0, y0, x1, y1")

    @property
    def answer(self) -> str:
        return self.answers[0]


@dataclass(frozen=True, eq=False)
class Record:
    """An image [h, w, 3], the question asked of it, and more questions on its other regions.

    `key` names it for ever: family/split/index for what we make, dataset/split/id for what others made.
    """

    key: str
    image: UInt8[np.ndarray, "h w 3"]
    question: Question
    followups: tuple[Question, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def questions(self) -> tuple[Question, ...]:
        return (self.question, *self.followups)

    @property
    def image_size(self) -> Size:
        return self.image.shape[1], self.image.shape[0]


def relevance_map(boxes: Sequence[Box], image_size: Size, grid: Size) -> Float64[Tensor, "gh gw"]:
    """What share of each leaf of a grid the boxes together cover: the true relevance of a question, for any grid.

    >>> relevance_map([(0, 0, 64, 32)], image_size=(128, 128), grid=(4, 4))[0]
    tensor([1., 1., 0., 0.], dtype=torch.float64)
    """
    if not boxes:
        raise DataError("no boxes, so no relevance: this question's place is not known")
    corners = torch.tensor(boxes, dtype=torch.float64)  # [k, 4]
    columns, across = _pieces(corners[:, 0], corners[:, 2], image_size[0], grid[0])
    lines, down = _pieces(corners[:, 1], corners[:, 3], image_size[1], grid[1])
    covered = (down.cover[:, :, None] & across.cover[:, None, :]).any(0)  # [line pieces, column pieces]
    area = down.share[:, None] * across.share * covered
    density = torch.zeros(grid[1], grid[0], dtype=torch.float64)
    return density.index_put_((lines[:, None], columns), area, accumulate=True)


class _Pieces(NamedTuple):
    """An axis cut at every edge of a leaf or box: what share of its leaf each piece is, and which boxes cover it."""

    share: Float64[Tensor, "pieces"]
    cover: Bool[Tensor, "k pieces"]


def _pieces(low: Tensor, high: Tensor, size: int, cells: int) -> tuple[Int64[Tensor, "pieces"], _Pieces]:
    """The leaf of each piece of [0, size), and the pieces."""
    edges = torch.arange(cells + 1, dtype=torch.float64) * size / cells
    cuts = torch.cat((edges, low, high)).clamp(0, size).unique()
    middle = (cuts[1:] + cuts[:-1]) / 2
    leaf = torch.bucketize(middle, edges) - 1
    cover = (low[:, None] <= middle) & (middle < high[:, None])
    return leaf, _Pieces(cuts.diff() * cells / size, cover)
