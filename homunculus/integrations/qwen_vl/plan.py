"""What one call looks at: images, questions and the cells chosen for each image, decided once before anything runs.

Neither of the model's own methods sees pixels and question together, so a plan is made from the whole call: as many
cells for an image as the prompt has placeholders for it. A prompt with a placeholder for every leaf, as an unpatched
processor writes it, keeps every leaf, and the model answers as it always did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from homunculus.allocation import allocate_view, get_allocator
from homunculus.allocation.views import ViewGrids, view_grids
from homunculus.data.record import relevance_map
from homunculus.errors import ImageError, RelevanceError
from homunculus.foveate import gaze_points
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.call import Call
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
    expect: tuple[str, ...] = ()  # further questions that the cells should serve as well
    peer: str | None = None  # a published reducer of features, in place of an allocator (reducing.py)

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


def make_plan(
    pixel_values: Float[Tensor, "patches values"],
    call: Call,
    layout: Layout,
    colours: tuple[Sequence[float], Sequence[float]],
    looking: Looking,
    maps: Sequence[Tensor] | None = None,
    gazes: Float64[Tensor, "images f 3"] | None = None,
    kept: Sequence[Choice | None] | None = None,
) -> Plan:
    """Choose the cells of every image, those of one size and budget together. `colours` are the mean and std that the
    processor normalised with; `maps`, one an image, stand for a scorer's name; `gazes` are fixations; `kept` are
    choices made before, which stand."""
    choices: list[Choice | None] = [None] * len(call.grids) if kept is None else list(kept)
    todo = [image for image, choice in enumerate(choices) if choice is None]
    one_by_one = not looking.views and get_allocator(looking.allocator).batchwide
    kinds = [(call.grids[i], call.counts[i], i if one_by_one else None) for i in todo]
    for group in alike(kinds):
        images = [todo[i] for i in group]
        chosen, shown = choose_cells(
            rows_of(pixel_values, call.grids, images, layout),
            call.grids[images[0]],
            call.counts[images[0]],
            [call.questions[call.owners[i]] for i in images],
            layout,
            colours,
            with_maps(looking, maps, images),
            None if gazes is None else gazes if len(images) == len(gazes) else gazes[images],
        )
        for place, image in enumerate(images):
            views = None if shown is None else replace(shown, boxes=shown.boxes[place : place + 1])
            choices[image] = one_image(chosen, place), views
    made = cast(list[Choice], choices)
    return Plan(tuple(own for own, _ in made), call.grids, call.rows, tuple(views for _, views in made))


def densities_of(
    pixel_values: Float[Tensor, "patches values"],
    call: Call,
    layout: Layout,
    colours: tuple[Sequence[float], Sequence[float]],
    looking: Looking,
    maps: Sequence[Tensor] | None = None,
) -> list[Float64[Tensor, "_lines _columns"]]:
    """How relevant the leaves of every image are, for who chooses no cells; all images of one size at once."""
    found: list[Any] = [None] * len(call.grids)
    for images in alike(call.grids):
        rows = rows_of(pixel_values, call.grids, images, layout)
        questions = [call.questions[call.owners[i]] for i in images]
        density, _ = density_of(
            rows, call.grids[images[0]], questions, layout, colours, with_maps(looking, maps, images)
        )
        for image, own in zip(images, density, strict=True):
            found[image] = own
    return found


def alike(kinds: Sequence[Any]) -> list[list[int]]:
    """The places of equal kinds, kind by kind.

    >>> alike([(4, 4), (2, 8), (4, 4)])
    [[0, 2], [1]]
    """
    groups: dict[Any, list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    return list(groups.values())


def rows_of(
    pixel_values: Float[Tensor, "patches values"], grids: Sequence[Size], images: Sequence[int], layout: Layout
) -> Float[Tensor, "b own values"]:
    """The rows of some images of one size, as a batch; nothing is copied where these are all there are."""
    if len(images) == len(grids):
        return pixel_values.unflatten(0, (len(images), -1))
    parts = pixel_values.split([columns * lines * layout.merge**2 for columns, lines in grids])
    return torch.stack([parts[i] for i in images])


def one_image(allocation: Allocation, place: int) -> Allocation:
    """One image of a batch; nothing is copied."""
    own = slice(place, place + 1)
    fields = {name: getattr(allocation, name)[own] for name in (*CELL_FIELDS, "gaze")}
    return replace(allocation, **fields, image_sizes=allocation.image_sizes[own], grids=allocation.grids[own])


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


def with_maps(looking: Looking, maps: Sequence[Tensor] | None, images: Sequence[int]) -> Looking:
    """The same with these images' maps in the place of a scorer's name, where one was asked."""
    if maps is None:
        return looking
    return replace(looking, relevance=with_map(looking.relevance, torch.stack([maps[i] for i in images])))


def _mixture(source: Any) -> list[Any]:
    if isinstance(source, Mapping):
        return list(source)
    return [pair[0] for pair in source] if isinstance(source, (list, tuple)) else []


def _asks(source: Any) -> bool:
    """Whether a source looks at the question: callables may, and nothing else does."""
    return callable(source) or any(callable(part) for part in _mixture(source))


def region_map(region: Sequence[float], grid: Size) -> Float64[Tensor, "lines columns"]:
    """How much of each leaf lies in a region.

    >>> region_map((0.0, 0.0, 0.5, 0.75), (2, 2)).tolist()
    [[1.0, 0.0], [0.5, 0.0]]
    """
    x0, y0, x1, y1 = region
    columns, lines = grid
    return relevance_map([(x0 * columns, y0 * lines, x1 * columns, y1 * lines)], grid, grid)


@lru_cache(maxsize=256)
def _region_on(device: torch.device, region: tuple[float, ...], grid: Size) -> Float64[Tensor, "lines columns"]:
    return region_map(region, grid).to(device)


@lru_cache(maxsize=64)
def _colour_on(device: torch.device, values: tuple[float, ...]) -> Float[Tensor, "3 1 1"]:
    return torch.tensor(values, dtype=torch.float32).to(device)[:, None, None]


def gaze_of(call: Call, looking: Looking, layout: Layout) -> Float64[Tensor, "images f 3"] | None:
    """The fixations of every image: those given, the middle of the region, or what spatial words name; on the host."""
    points = []
    for image, (columns, lines) in enumerate(call.grids):
        size = columns * layout.leaf, lines * layout.leaf
        words, gaze = [call.questions[call.owners[image]], *looking.expect], looking.fixation
        if isinstance(looking.region, str):
            words = [looking.region]
        elif looking.region is not None:
            x0, y0, x1, y1 = looking.region
            gaze = (x0 + x1) / 2 * size[0], (y0 + y1) / 2 * size[1]
        sized = torch.empty(3, size[1], size[0], device="meta")  # its pixels do not matter
        asked = words if gaze is None else words[:1]
        points.append(torch.cat([gaze_points([sized], [one], gaze)[0] for one in asked]))
    return stack_fixations(points)


def choose_cells(
    rows: Float[Tensor, "b patches values"],
    grid: Size,
    budget: int,
    questions: Sequence[str | None],
    layout: Layout,
    colours: tuple[Sequence[float], Sequence[float]],
    looking: Looking,
    fixations: Float64[Tensor, "b f 3"] | None = None,
) -> Choice:
    """`budget` cells of each image, in pixels of the image as the processor resized it, and the views they make up."""
    columns, lines = grid
    leaves, size = columns * lines, (columns * layout.leaf, lines * layout.leaf)
    check_count(budget, grid)
    if budget == leaves:  # nothing to choose
        ones = torch.ones(len(rows), lines, columns, dtype=torch.float64, device=rows.device)
        return rectangular(allocate_view(View(ones, size, layout.leaf), budget, "uniform")), None
    density, pyramid = density_of(rows, grid, questions, layout, colours, looking)
    view = View(density, size, layout.leaf, pyramid, fixations, list(questions))
    if looking.views:
        options = dict(looking.options)
        return rectangular(allocate_view(view, budget, "views", **options)), view_grids(view, budget, **options)
    allocation = rectangular(allocate_view(view, budget, looking.allocator, **dict(looking.options)))
    if allocation.kind == "rotated":
        raise ImageError(
            f"{looking.allocator} turns its cells, and the tower takes upright ones: use another allocator"
        )
    return in_reading_order(allocation), None


def check_count(count: int, grid: Size) -> None:
    """Refuse more tokens than an image has leaves."""
    columns, lines = grid
    if count > columns * lines:
        raise ImageError(
            f"{count} placeholders for an image of {columns}x{lines} cells: "
            "make inputs with the processor that was patched, which enlarges small images"
        )


def density_of(
    rows: Float[Tensor, "b patches values"],
    grid: Size,
    questions: Sequence[str | None],
    layout: Layout,
    colours: tuple[Sequence[float], Sequence[float]],
    looking: Looking,
) -> tuple[Float64[Tensor, "b lines columns"], ImagePyramid]:
    """How relevant the leaves of images of one size are, the mean over questions to expect, and their pixels."""
    mean, std = (_colour_on(rows.device, tuple(colour)) for colour in colours)
    images = (unpatchify(rows.detach().float(), grid, layout) * std + mean).clamp(0, 1)
    pyramid = ImagePyramid(images, grid, layout.leaf)
    source = looking.relevance
    if looking.region is not None and not isinstance(looking.region, str):
        source = _region_on(rows.device, tuple(looking.region), grid)
    asked: list[list[Any]] = [list(questions), *([one] * len(rows) for one in looking.expect if _asks(source))]
    density = torch.stack([relevance_of(pyramid, source, own, floor=0.0, validate=False) for own in asked]).mean(0)
    return density, pyramid


def in_reading_order(allocation: Allocation) -> Allocation:
    """Cells in canonical order, whoever chose them: the language model reads them one after the other."""
    order = canonical_order(allocation.centers, allocation.levels, allocation.is_context)
    image = torch.arange(len(order), device=order.device)[:, None]
    return replace(allocation, **{name: getattr(allocation, name)[image, order] for name in CELL_FIELDS})
