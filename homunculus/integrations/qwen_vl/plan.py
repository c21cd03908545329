"""What one call looks at: images, questions and the cells chosen for each image, decided once before anything runs.

Neither of the model's own methods sees pixels and question together, so a plan is made from the whole call: as many
cells for an image as the prompt has placeholders for it. A prompt with a placeholder for every leaf, as an unpatched
processor writes it, keeps every leaf, and the model answers as it always did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from homunculus.allocation import allocate_view
from homunculus.allocation.views import ViewGrids, view_grids
from homunculus.errors import ImageError, RelevanceError
from homunculus.foveate import gaze_points
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.layout import Layout, unpatchify
from homunculus.pyramid import ImagePyramid
from homunculus.relevance import relevance as relevance_of
from homunculus.relevance import stack_fixations
from homunculus.relevance.maps import SOURCES
from homunculus.structures import CELL_FIELDS, Allocation, View, canonical_order, rectangular

# The cells of one image, and the views they make up where they do.
Choice = tuple[Allocation, ViewGrids | None]


@dataclass(frozen=True)
class Looking:
    """How cells are chosen: see `patch`."""

    relevance: Any = None
    allocator: str = "foveated-pyramid"
    fixation: Any = None
    options: tuple[tuple[str, Any], ...] = ()
    views: bool = False  # an overview and crops, each an ordinary image
    region: Any = None  # (x0, y0, x1, y1) as shares of the image, or words such as "the footer"

    def __post_init__(self) -> None:
        if self.region is None or isinstance(self.region, str):
            return
        box = tuple(self.region)
        if len(box) != 4 or not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            raise RelevanceError(
                f"a region is words or (x0, y0, x1, y1) as shares of the image, 0 to 1, got {self.region!r}"
            )


@dataclass(frozen=True, eq=False)
class Plan:
    """The cells of every image of a call, and which images each row of the batch has, in the order of the prompt."""

    allocations: tuple[Allocation, ...]
    grids: tuple[Size, ...]  # (columns, lines) of leaves
    rows: tuple[tuple[int, ...], ...]
    views: tuple[ViewGrids | None, ...] = ()  # of images shown as ordinary images, which then go grid by grid

    @property
    def counts(self) -> list[int]:
        """Tokens of each image."""
        return [allocation.budget for allocation in self.allocations]

    def views_of(self, image: int) -> ViewGrids | None:
        return self.views[image] if self.views else None

    def repeated(self, times: int) -> list[int]:
        """Image numbers after every row has been repeated, as beam search does: each row's images together."""
        return [image for row in self.rows for _ in range(times) for image in row]


def leaf_grids(image_grid_thw: Int64[Tensor, "images 3"], layout: Layout) -> list[Size]:
    """(columns, lines) of leaves of each image (waits for the device)."""
    return [(w // layout.merge, h // layout.merge) for _, h, w in image_grid_thw.tolist()]


def placeholder_runs(input_ids: Int64[Tensor, "b t"], image_token: int) -> list[list[int]]:
    """The lengths of the runs of image placeholders in each row (waits for the device).

    >>> placeholder_runs(torch.tensor([[7, 7, 1, 7], [1, 1, 2, 2]]), 7)
    [[2, 1], []]
    """
    marks = (input_ids == image_token).tolist()
    return [[len(list(run)) for is_image, run in groupby(row) if is_image] for row in marks]


def make_plan(
    pixel_values: Float[Tensor, "patches values"],
    grids: Sequence[Size],
    runs: Sequence[Sequence[int]],
    questions: Sequence[str | None],
    layout: Layout,
    colours: tuple[Sequence[float], Sequence[float]],
    looking: Looking,
    maps: Sequence[Tensor] | None = None,
    kept: Sequence[Choice | None] | None = None,
) -> Plan:
    """Choose the cells of every image. `runs` are the placeholders of each row's images, `questions` one to a row,
    `colours` the mean and std that the processor normalised with; `maps`, one an image, stand for a scorer's name;
    `kept` are choices made before, which stand."""
    counts = [count for row in runs for count in row]
    if len(counts) != len(grids):
        raise ImageError(
            f"the prompt has placeholders for {len(counts)} images and {len(grids)} were given: "
            "make inputs with the processor that was patched"
        )
    owners = [row for row, own in enumerate(runs) for _ in own]
    parts = pixel_values.split([columns * lines * layout.merge**2 for columns, lines in grids])
    allocations, views = [], []
    for i, (part, grid, count, owner) in enumerate(zip(parts, grids, counts, owners, strict=True)):
        source = looking.relevance if maps is None else with_map(looking.relevance, maps[i])
        own = replace(looking, relevance=source)
        before = None if kept is None else kept[i]
        allocation, shown = before or choose_cells(part, grid, count, questions[owner], layout, colours, own)
        allocations.append(allocation)
        views.append(shown)
    numbers = iter(range(len(grids)))
    rows = tuple(tuple(next(numbers) for _ in own) for own in runs)
    return Plan(tuple(allocations), tuple(grids), rows, tuple(views))


def scorer_in(source: Any, names: Sequence[str]) -> str | None:
    """The one of these names that a source or mixture asks for.

    >>> scorer_in([("coarse-pass", 0.7), ("detail", 0.3)], ["coarse-pass"])
    'coarse-pass'
    """
    parts = [source] if isinstance(source, str) else _mixture(source)
    return next((name for name in parts if isinstance(name, str) and name in names), None)


def with_map(source: Any, density: Tensor) -> Any:
    """The source or mixture with a map in the place of the scorer's name (the first that is no source of its own)."""
    if isinstance(source, str):
        return density
    pairs = source.items() if isinstance(source, Mapping) else source
    return [(part if part in SOURCES or not isinstance(part, str) else density, weight) for part, weight in pairs]


def _mixture(source: Any) -> list[Any]:
    if isinstance(source, Mapping):
        return list(source)
    return [pair[0] for pair in source] if isinstance(source, (list, tuple)) else []


def region_map(region: Sequence[float], grid: Size) -> Float64[Tensor, "lines columns"]:
    """How much of each leaf lies in a region.

    >>> region_map((0.0, 0.0, 0.5, 0.75), (2, 2)).tolist()
    [[1.0, 0.0], [0.5, 0.0]]
    """
    x0, y0, x1, y1 = region
    parts = []
    for low, high, count in ((y0, y1, grid[1]), (x0, x1, grid[0])):
        at = torch.arange(count, dtype=torch.float64)
        parts.append((torch.clamp(at + 1, max=high * count) - torch.clamp(at, min=low * count)).clamp(min=0))
    return parts[0][:, None] * parts[1]


def _middle(region: Sequence[float], size: Size) -> tuple[float, float]:
    return (region[0] + region[2]) / 2 * size[0], (region[1] + region[3]) / 2 * size[1]


def choose_cells(
    rows: Float[Tensor, "patches values"],
    grid: Size,
    budget: int,
    question: str | None,
    layout: Layout,
    colours: tuple[Sequence[float], Sequence[float]],
    looking: Looking,
) -> Choice:
    """`budget` cells of one image, in pixels of the image as the processor resized it, and the views they make up."""
    columns, lines = grid
    leaves, size = columns * lines, (columns * layout.leaf, lines * layout.leaf)
    if budget > leaves:
        raise ImageError(
            f"{budget} placeholders for an image of {columns}x{lines} cells: "
            "make inputs with the processor that was patched, which enlarges small images"
        )
    if budget == leaves:  # nothing to choose
        view = View(torch.ones(1, lines, columns, dtype=torch.float64, device=rows.device), size, layout.leaf)
        return rectangular(allocate_view(view, budget, "uniform")), None
    mean, std = (torch.tensor(c, dtype=torch.float32).to(rows.device)[:, None, None] for c in colours)
    image = (unpatchify(rows.detach().float(), grid, layout) * std + mean).clamp(0, 1)
    pyramid = ImagePyramid(image[None], grid, layout.leaf)
    source, words, gaze = looking.relevance, question, looking.fixation
    if isinstance(looking.region, str):
        words = looking.region
    elif looking.region is not None:
        source, gaze = region_map(looking.region, grid).to(rows.device), _middle(looking.region, size)
    density = relevance_of(pyramid, source, [question], floor=0.0, validate=False)
    fixations = stack_fixations(gaze_points([image], [words], gaze))
    fixations = None if fixations is None else fixations.to(rows.device)
    view = View(density, size, layout.leaf, pyramid, fixations, [question])
    if looking.views:
        options = dict(looking.options)
        return rectangular(allocate_view(view, budget, "views", **options)), view_grids(view, budget, **options)
    allocation = rectangular(allocate_view(view, budget, looking.allocator, **dict(looking.options)))
    if allocation.kind == "rotated":
        raise ImageError(
            f"{looking.allocator} turns its cells, and the tower takes upright ones: use another allocator"
        )
    return in_reading_order(allocation), None


def in_reading_order(allocation: Allocation) -> Allocation:
    """Cells in canonical order, whoever chose them: the language model reads them one after the other."""
    order = canonical_order(allocation.centers, allocation.levels, allocation.is_context)[0]
    return replace(allocation, **{name: getattr(allocation, name)[:, order] for name in CELL_FIELDS})
