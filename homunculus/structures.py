"""What flows: a `View` goes into an allocator, an `Allocation` comes out, sampling makes `VisualTokens` of it.

Canonical token order, everywhere: context tokens first, coarse to fine, then all others by centre, y before x (context
tokens of one level likewise). Tensors are rectangular `[B, N, ...]`; what the host must know without asking the device
(sizes, grids, leaf, kind of cell) is kept as plain Python values, so nothing here ever waits for a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Float64, Int32
from torch import Tensor

from homunculus.density import normalise
from homunculus.errors import AllocatorError, DensityError, ImageError
from homunculus.geometry import Size, check_leaf

# dyadic: full 2^L x 2^L blocks of the leaf grid, sampled from a mip; box: any axis-aligned box; rotated: any angle.
CellKind = Literal["dyadic", "box", "rotated"]


@dataclass(frozen=True, eq=False)
class View:
    """All that an allocator may look at, for a batch of images of one size.

    `density` is nonnegative, on the leaf grid over the whole image; only its shape matters, not its scale.
    `fixations` are (x, y, weight) in pixels of the original image; weight 0 marks padding.
    `pyramid` is the `pyramid.ImagePyramid` of the pixels, for allocators that need them.

    >>> View(torch.ones(2, 48, 64, dtype=torch.float64), image_size=(1000, 750)).grid
    (64, 48)
    """

    density: Float64[Tensor, "b gh gw"]
    image_size: Size
    leaf: int = 16
    pyramid: Any = None
    fixations: Float64[Tensor, "b f 3"] | None = None
    query: Any = None

    def __post_init__(self) -> None:
        check_leaf(self.leaf)
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise ImageError(f"image_size is (width, height), both at least 1, got {self.image_size}")
        if self.density.ndim != 3 or self.density.dtype != torch.float64:
            raise DensityError(
                f"a View's density is a float64 tensor [batch, gh, gw], got {self.density.dtype} "
                f"{list(self.density.shape)}: homunculus.allocate accepts anything map-like"
            )

    @cached_property
    def relevance(self) -> Float64[Tensor, "b gh gw"]:
        """The density scaled to mass 1 for each image; one without mass becomes uniform."""
        return normalise(self.density)

    @property
    def batch(self) -> int:
        return self.density.shape[0]

    @property
    def grid(self) -> Size:
        return self.density.shape[2], self.density.shape[1]

    @property
    def leaves(self) -> int:
        return self.density.shape[1] * self.density.shape[2]

    @property
    def device(self) -> torch.device:
        return self.density.device

    def pixels(self, who: str) -> Any:
        """The image pyramid, or an error naming the allocator that cannot work without it."""
        if self.pyramid is None:
            raise AllocatorError(f"{who} looks at pixels and this view has none: call homunculus.foveate(image, ...)")
        return self.pyramid


@dataclass(frozen=True, eq=False)
class Allocation:
    """Exactly N cells for each of B images, in canonical order. Boxes and centres are in pixels of the original images.

    `levels` is half the log2 of the cell's area in leaves: integral for dyadic cells. `eccentricity` is the distance to
    the nearest fixation (or to the image centre), in leaves. `scores` is the share of the relevance density inside the
    cell. `angle` turns the box about its centre (radians, 0 unless rotated). `sector` is (rho0, rho1, theta0, theta1)
    about `gaze`, NaN unless the cell is a piece of a ring: pixels and radians, clockwise since y is down, theta0 in
    (-pi, pi] and theta1 above it by the sector's width; the cell is then sector and image together, and its box only
    the square that is sampled. `gaze` is the first fixation, where the method looked of itself, or the image centre.

    >>> import homunculus
    >>> allocation = homunculus.allocate(torch.ones(64, 64), budget=273)
    >>> allocation.boxes.shape, allocation.levels.unique().tolist()
    (torch.Size([1, 273, 4]), [1.0, 2.0, 4.0])
    """

    boxes: Float[Tensor, "b n 4"]
    centers: Float[Tensor, "b n 2"]
    levels: Float[Tensor, "b n"]
    eccentricity: Float[Tensor, "b n"]
    scores: Float[Tensor, "b n"]
    is_context: Bool[Tensor, "b n"]
    angle: Float[Tensor, "b n"]
    sector: Float[Tensor, "b n 4"]
    gaze: Float[Tensor, "b 2"]
    image_sizes: tuple[Size, ...]
    grids: tuple[Size, ...]
    leaf: int = 16
    kind: CellKind = "box"

    def __len__(self) -> int:
        return self.boxes.shape[0]

    def __repr__(self) -> str:
        return f"Allocation({len(self)} images x {self.budget} {self.kind} cells, leaf {self.leaf}, {self.device})"

    @property
    def budget(self) -> int:
        return self.boxes.shape[1]

    @property
    def device(self) -> torch.device:
        return self.boxes.device

    def to(self, device: torch.device | str) -> "Allocation":
        """Every tensor moved; precision is never touched."""
        return replace(self, **{name: getattr(self, name).to(device) for name in (*CELL_FIELDS, "gaze")})

    def select(self, images: Sequence[int]) -> "Allocation":
        """The allocations of some images of the batch, in the order asked for."""
        index = torch.tensor(list(images), dtype=torch.int64).to(self.device, non_blocking=True)
        tensors = {name: getattr(self, name)[index] for name in (*CELL_FIELDS, "gaze")}
        return replace(
            self,
            **tensors,
            image_sizes=tuple(self.image_sizes[i] for i in images),
            grids=tuple(self.grids[i] for i in images),
        )

    @staticmethod
    def cat(parts: Sequence["Allocation"]) -> "Allocation":
        """One batch out of several; the cells must share budget and leaf, the image sizes need not agree."""
        return Allocation(
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in (*CELL_FIELDS, "gaze")},
            image_sizes=tuple(size for part in parts for size in part.image_sizes),
            grids=tuple(grid for part in parts for grid in part.grids),
            leaf=_common_leaf(parts),
            kind=_common_kind(parts),
        )


CELL_FIELDS = ("boxes", "centers", "levels", "eccentricity", "scores", "is_context", "angle", "sector")


def _common_leaf(parts: Sequence[Allocation]) -> int:
    leaves = {part.leaf for part in parts}
    if len(leaves) != 1:
        raise AllocatorError(f"allocations with leaves of {sorted(leaves)} pixels cannot be put together: use one leaf")
    return leaves.pop()


def _common_kind(parts: Sequence[Allocation]) -> CellKind:
    """The most general kind among them."""
    kinds: tuple[CellKind, ...] = ("rotated", "box", "dyadic")
    return next(kind for kind in kinds if kind in {part.kind for part in parts})


@dataclass(frozen=True, eq=False)
class PackedAllocation:
    """Cells of images with different counts, laid end to end: image i owns cells `offsets[i]:offsets[i+1]`.

    The fields are those of `Allocation` without the batch axis; each image's cells are in canonical order.

    >>> import homunculus
    >>> parts = [homunculus.allocate(torch.ones(64, 64), budget=n) for n in (64, 100)]
    >>> packed = PackedAllocation.pack(parts)
    >>> packed.boxes.shape, packed.offsets.tolist()
    (torch.Size([164, 4]), [0, 64, 164])
    """

    boxes: Float[Tensor, "m 4"]
    centers: Float[Tensor, "m 2"]
    levels: Float[Tensor, "m"]
    eccentricity: Float[Tensor, "m"]
    scores: Float[Tensor, "m"]
    is_context: Bool[Tensor, "m"]
    angle: Float[Tensor, "m"]
    sector: Float[Tensor, "m 4"]
    gaze: Float[Tensor, "images 2"]
    offsets: Int32[Tensor, "images_plus_1"]
    image_sizes: tuple[Size, ...]
    grids: tuple[Size, ...]
    leaf: int = 16
    kind: CellKind = "box"

    def __len__(self) -> int:
        return len(self.image_sizes)

    def __repr__(self) -> str:
        cells = self.boxes.shape[0]
        return f"PackedAllocation({len(self)} images, {cells} {self.kind} cells, leaf {self.leaf}, {self.device})"

    @property
    def device(self) -> torch.device:
        return self.boxes.device

    @property
    def counts(self) -> Int32[Tensor, "images"]:
        """How many cells each image has."""
        return self.offsets.diff()

    def to(self, device: torch.device | str) -> "PackedAllocation":
        """Every tensor moved; precision is never touched."""
        return replace(self, **{name: getattr(self, name).to(device) for name in (*CELL_FIELDS, "gaze", "offsets")})

    @staticmethod
    def pack(parts: Sequence[Allocation]) -> "PackedAllocation":
        """Batches of any budgets, laid end to end."""
        counts = [part.budget for part in parts for _ in range(len(part))]
        offsets = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        merged = {name: torch.cat([getattr(part, name).flatten(0, 1) for part in parts]) for name in CELL_FIELDS}
        return PackedAllocation(
            **merged,
            gaze=torch.cat([part.gaze for part in parts]),
            offsets=offsets.to(parts[0].device),
            image_sizes=tuple(size for part in parts for size in part.image_sizes),
            grids=tuple(grid for part in parts for grid in part.grids),
            leaf=_common_leaf(parts),
            kind=_common_kind(parts),
        )

    def unpack(self) -> list[Allocation]:
        """One `Allocation` of a single image for each image (reads the offsets of several, so waits for the device)."""
        bounds = self.offsets.tolist() if len(self) > 1 else [0, self.boxes.shape[0]]
        return [
            Allocation(
                **{name: getattr(self, name)[None, start:stop] for name in CELL_FIELDS},
                gaze=self.gaze[i : i + 1],
                image_sizes=(self.image_sizes[i],),
                grids=(self.grids[i],),
                leaf=self.leaf,
                kind=self.kind,
            )
            for i, (start, stop) in enumerate(pairwise(bounds))
        ]


@dataclass(frozen=True, eq=False)
class VisualTokens:
    """An allocation and the patch of every cell: one leaf-sized square of pixels in [0, 1], whatever area it shows.

    `patches` is `[B, N, 3, leaf, leaf]`, or `[M, 3, leaf, leaf]` beside a `PackedAllocation`.
    """

    patches: Float[Tensor, "*cells 3 leaf leaf"]
    allocation: Allocation | PackedAllocation

    def __len__(self) -> int:
        return len(self.allocation)

    def __repr__(self) -> str:
        return f"VisualTokens(patches {list(self.patches.shape)} {self.patches.dtype}, {self.allocation!r})"

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "VisualTokens":
        """Moved to `device`; `dtype` casts the patches only, since boxes and centres need their float32."""
        allocation = self.allocation if device is None else self.allocation.to(device)
        return VisualTokens(self.patches.to(device=device, dtype=dtype), allocation)

    def unpack(self) -> "list[VisualTokens]":
        """The tokens of each image by itself, as a batch of one; of packed tokens, this waits for the device."""
        if isinstance(self.allocation, Allocation):
            return [VisualTokens(self.patches[i : i + 1], self.allocation.select([i])) for i in range(len(self))]
        parts = self.allocation.unpack()
        patches = self.patches.split([part.budget for part in parts])
        return [VisualTokens(own[None], part) for own, part in zip(patches, parts, strict=True)]


def rectangular(allocation: Allocation | PackedAllocation) -> Allocation:
    """The allocation itself, or that of a packed single image; an error where images may have different counts."""
    if isinstance(allocation, Allocation):
        return allocation
    if len(allocation) > 1:
        raise AllocatorError("this needs the same number of cells in every image: unpack() a packed allocation first")
    return allocation.unpack()[0]


def canonical_order(
    centers: Float[Tensor, "b n 2"], levels: Float[Tensor, "b n"], is_context: Bool[Tensor, "b n"]
) -> torch.Tensor:
    """The permutation `[B, N]` that puts cells in canonical order (see the top of this file). Ties keep their place.

    >>> centers = torch.tensor([[[5.0, 1.0], [1.0, 9.0], [1.0, 1.0], [8.0, 8.0]]])
    >>> is_context = torch.tensor([[False, False, False, True]])
    >>> canonical_order(centers, torch.zeros(1, 4), is_context)
    tensor([[3, 2, 0, 1]])
    """
    rank = torch.where(is_context, -levels, torch.inf)
    order = torch.argsort(centers[..., 0], dim=1, stable=True)
    for key in (centers[..., 1], rank):
        order = order.gather(1, torch.argsort(key.gather(1, order), dim=1, stable=True))
    return order
