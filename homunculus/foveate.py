"""The pipeline: image -> pyramid -> relevance (+ query, fixation) -> allocation -> sampling -> visual tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from homunculus.allocation import DEFAULT, Allocator, allocate_view, check_budget, get_allocator
from homunculus.errors import ImageError, QueryError
from homunculus.geometry import MIN_TREE_BUDGET, fit_grid
from homunculus.images import load_images
from homunculus.pyramid import ImagePyramid
from homunculus.relevance import as_fixations, spatial_points, stack_fixations
from homunculus.relevance import relevance_for as relevance_of
from homunculus.sampling import sample
from homunculus.structures import Allocation, PackedAllocation, View, VisualTokens, rectangular

MAX_FITTED_PIXELS = 1 << 29


def foveate(
    image: Any,
    query: Any = None,
    budget: int = 273,
    allocator: str = DEFAULT,
    fixation: Any = None,
    relevance: Any = None,
    *,
    leaf: int = 16,
    seed: int | Tensor = 0,
    validate: bool = True,
    **options: Any,
) -> VisualTokens:
    """Exactly `budget` visual tokens for every image, spent where the question looks.

    `image` is a path, PIL image, numpy array, tensor, or a list or batch of them, of equal or different sizes. `query`
    is one question for all or a list with one each; its spatial words ("top-left", "footer") set fixations unless
    `fixation` does: points in pixels, see `relevance.as_fixations`. `relevance` is a source or mixture, see
    `relevance.relevance`; without one, a question is heard by the scorer that came with the package, beside what pixels
    say, and "pixels" leaves it out. `options` go to the allocator, for instance `e0=2.0`. An allocator that spends one
    budget on the whole batch (`token-bank`) gives packed tokens: `unpack()` them for those of each image.

    >>> tokens = foveate(torch.rand(3, 300, 400), "What is written at the top left?", budget=100)
    >>> tokens.patches.shape, tokens.allocation.boxes.shape
    (torch.Size([1, 100, 3, 16, 16]), torch.Size([1, 100, 4]))
    """
    method = get_allocator(allocator)  # before anything is decoded
    budget = check_budget(budget)
    images = load_images(image, validate)
    queries = one_each(query, len(images))
    gazes = gaze_points(images, queries, fixation, validate)
    groups = alike(images)
    views = (
        _view(images, queries, gazes, group, select(relevance, group, len(images)), budget, leaf, validate)
        for group in groups
    )
    if method.batchwide:
        return _foveate_together(method, list(views), groups, budget, seed=seed, **options)
    parts: list[VisualTokens] = []
    members: list[int] = []
    for view, group in zip(views, groups, strict=True):
        seeds = select(seed, group, len(images))
        allocation = rectangular(allocate_view(view, budget, allocator, seed=seeds, **options))
        parts.append(VisualTokens(sample(view.pyramid.images, allocation), allocation))
        members += group
    return _in_order(parts, members)


def _foveate_together(
    method: Allocator, views: Sequence[View], groups: Sequence[Sequence[int]], budget: int, **options: Any
) -> VisualTokens:
    """Packed tokens, in the order the images came in. Images of several sizes are sampled one by one, which waits."""
    device = views[0].device
    if len(views) == 1:
        allocation = method(views[0], budget, **options)
        return VisualTokens(sample(views[0].pyramid.images, allocation), allocation)
    packed = cast(PackedAllocation, method([_moved(view, device) for view in views], budget, **options))
    parts = iter(packed.unpack())
    tokens: dict[int, VisualTokens] = {}
    for view, group in zip(views, groups, strict=True):
        for i, image in zip(group, view.pyramid.images, strict=True):
            own = next(parts)
            tokens[i] = VisualTokens(sample(image[None], own.to(image.device))[0].to(device), own)
    ordered = [tokens[i] for i in sorted(tokens)]
    in_order = PackedAllocation.pack([rectangular(own.allocation) for own in ordered])
    return VisualTokens(torch.cat([own.patches for own in ordered]), in_order)


def _moved(view: View, device: torch.device) -> View:
    fixations = None if view.fixations is None else view.fixations.to(device)
    return replace(view, density=view.density.to(device), fixations=fixations)


def make_view(
    image: Any,
    query: Any = None,
    budget: int = 273,
    fixation: Any = None,
    relevance: Any = None,
    *,
    leaf: int = 16,
    validate: bool = True,
) -> View:
    """What `foveate` shows an allocator, for an image or a batch of one size: relevance, gaze, pixels, queries.

    Look at `view.relevance`, hand the view to `allocate_view` or to a `HierarchicalAllocator`, and sample
    `view.pyramid.images` with what comes back.

    >>> view = make_view(torch.rand(3, 300, 400), "What is at the top?")
    >>> view.grid, view.image_size, view.fixations.tolist()
    ((28, 20), (400, 300), [[[200.0, 50.0, 1.0]]])
    """
    images = load_images(image, validate)
    if len(alike(images)) > 1:
        raise ImageError("a view is of images of one size and type: make one for each size, or call foveate")
    queries = one_each(query, len(images))
    gazes = gaze_points(images, queries, fixation, validate)
    return _view(images, queries, gazes, range(len(images)), relevance, check_budget(budget), leaf, validate)


def _view(
    images: Sequence[Tensor],
    queries: Sequence[Any],
    gazes: Sequence[Tensor],
    group: Sequence[int],
    relevance: Any,
    budget: int,
    leaf: int,
    validate: bool,
) -> View:
    batch = torch.stack([images[i] for i in group]) if len(group) > 1 else images[group[0]][None]
    height, width = batch.shape[-2:]
    grid = fit_grid(width, height, max(budget, MIN_TREE_BUDGET), leaf)
    if grid.gw * grid.gh * leaf**2 > MAX_FITTED_PIXELS:
        raise ImageError(
            f"an image of {width}x{height} pixels would become {grid.gw * leaf}x{grid.gh * leaf} for {budget} tokens: "
            "crop it to a less extreme shape or lower the budget"
        )
    pyramid = ImagePyramid(batch, (grid.gw, grid.gh), leaf)
    asked = [queries[i] for i in group]
    density = relevance_of(pyramid, relevance, asked, floor=0.0, validate=validate)  # allocators add their own floor
    fixations = stack_fixations([gazes[i] for i in group])
    fixations = None if fixations is None else fixations.to(batch.device, non_blocking=True)
    return View(density, (width, height), leaf, pyramid, fixations, asked)


def gaze_points(images: Sequence[Tensor], queries: Sequence[Any], fixation: Any, validate: bool = True) -> list[Tensor]:
    """Fixations of each image, (x, y, weight) in its pixels: the explicit ones, or those its question's words name.

    >>> gaze_points([torch.zeros(3, 100, 300)], ["Who signed at the bottom right?"], None)
    [tensor([[250.0000,  83.3333,   1.0000]], dtype=torch.float64)]
    """
    sizes = [(image.shape[2], image.shape[1]) for image in images]
    if fixation is not None:
        return as_fixations(fixation, sizes, validate)
    named = [spatial_points(query) if isinstance(query, str) else [] for query in queries]
    points = [
        torch.tensor([(x * width, y * height, 1.0) for x, y in own], dtype=torch.float64).reshape(-1, 3)
        for own, (width, height) in zip(named, sizes, strict=True)
    ]
    return points


def one_each(query: Any, count: int) -> list[Any]:
    """One query for each of `count` images: the same for all, or those of a list.

    >>> one_each("What is it?", 2)
    ['What is it?', 'What is it?']
    """
    if isinstance(query, np.ndarray) and query.dtype.kind in "OU":  # an array of texts, not an embedding
        query = query.tolist()
    if not isinstance(query, (list, tuple)):
        return [query] * count
    if len(query) != count:
        raise QueryError(f"{len(query)} queries for {count} images: give one for all, or one for each image")
    return list(query)


def alike(images: Sequence[Tensor]) -> list[list[int]]:
    """Indices of images that can share one batch: same size, type and device.

    >>> alike([torch.zeros(3, 8, 8), torch.zeros(3, 8, 9), torch.ones(3, 8, 8)])
    [[0, 2], [1]]
    """
    groups: dict[Any, list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault((image.shape, image.dtype, image.device), []).append(i)
    return list(groups.values())


def select(given: Any, group: Sequence[int], count: int) -> Any:
    """What concerns these images, wherever there is a tensor or array with one map (or seed) for each of them.

    >>> select(torch.tensor([5, 6, 7]), [0, 2], 3)
    tensor([5, 7])
    """
    if isinstance(given, Mapping):
        given = list(given.items())
    if isinstance(given, (list, tuple)):
        return [(select(pair[0], group, count), *pair[1:]) if isinstance(pair, tuple) else pair for pair in given]
    per_image = getattr(given, "ndim", 0) in (1, 3) and given.shape[0] == count  # seeds, or maps
    if per_image and len(group) != count:
        return torch.stack([torch.as_tensor(given[i]) for i in group])
    return given


def _in_order(parts: Sequence[VisualTokens], members: Sequence[int]) -> VisualTokens:
    """Groups put together again, in the order the images came in."""
    if len(parts) == 1:
        return parts[0]
    device = parts[0].patches.device
    back = sorted(range(len(members)), key=members.__getitem__)
    allocation = Allocation.cat([rectangular(part.allocation).to(device) for part in parts]).select(back)
    patches = torch.cat([part.patches.to(device) for part in parts])
    return VisualTokens(patches[torch.tensor(back).to(device, non_blocking=True)], allocation)
