"""Relevance from any mixture of sources: names, maps of any size, or callables that score an image for a query.

The dials of looking are explicit. `floor` spreads part of the mass evenly (exploit <-> explore). The default mixture is
0.4 query, 0.3 saliency, 0.3 detail; without a query, or a scorer that knows it, the other two share its part.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.density import FLOOR, as_density, normalise, resample_mass, with_floor
from homunculus.errors import RelevanceError
from homunculus.pyramid import ImagePyramid
from homunculus.relevance.learned import is_question, scorer_for
from homunculus.relevance.maps import SOURCES

# A name, a map [h, w] or [B, h, w], or a callable (images [B, 3, H, W], queries: one per image) -> map.
Source = str | Tensor | np.ndarray | Callable[[Tensor, Sequence[Any]], Tensor]
Mixture = Sequence[tuple[Source, float]]


def default_mixture(scorer: Source | None = None) -> Mixture:
    """0.4 query, 0.3 saliency, 0.3 detail; `scorer` is what knows the query, and without one the others share its part.

    >>> default_mixture()
    [('saliency', 0.3), ('detail', 0.3)]
    """
    known = [("saliency", 0.3), ("detail", 0.3)]
    return known if scorer is None else [(scorer, 0.4), *known]


def relevance(
    pyramid: ImagePyramid,
    source: Source | Mixture | Mapping[Source, float] | None = None,
    queries: Sequence[Any] | None = None,
    floor: float = FLOOR,
    validate: bool = True,
) -> Float64[Tensor, "b gh gw"]:
    """The relevance density of a batch of images on its leaf grid, mass 1, with at least `floor` of it spread evenly.

    `source` is one source or a mixture: pairs (or a mapping) of sources and weights. None is `default_mixture()`, which
    asks no model.

    >>> pyramid = ImagePyramid(torch.rand(2, 3, 256, 256), (16, 16))
    >>> relevance(pyramid, {"detail": 1.0, "uniform": 1.0}).shape
    torch.Size([2, 16, 16])
    """
    maps = [_map_of(part, pyramid, queries, validate) * weight for part, weight in _parts(source)]
    return with_floor(normalise(reduce(torch.add, maps)), floor)


def relevance_for(
    pyramid: ImagePyramid,
    source: Source | Mixture | Mapping[Source, float] | None = None,
    queries: Sequence[Any] | None = None,
    floor: float = FLOOR,
    validate: bool = True,
) -> Float64[Tensor, "b gh gw"]:
    """`relevance`, with a default that listens: None is the `default_for` of each image's own query.

    >>> pyramid = ImagePyramid(torch.rand(2, 3, 64, 64), (4, 4))
    >>> alike = relevance_for(pyramid, None, [None, "What is it?"]) == relevance(pyramid)
    >>> alike[0].all().item()
    True
    """
    asked = [is_question(query) for query in queries or ()]
    if source is not None or not knows_questions(None, asked, pyramid.images.device):
        return relevance(pyramid, source, queries, floor, validate)
    heard = relevance(pyramid, default_mixture("learned"), queries, floor, validate)
    if all(asked):
        return heard
    listens = torch.tensor(asked).to(heard.device, non_blocking=True)
    return torch.where(listens[:, None, None], heard, relevance(pyramid, None, None, floor, validate))


def default_for(query: Any, device: torch.device) -> Mixture:
    """What is looked by where nothing else is said: a question that is heard, or pixels alone.

    >>> default_for(None, torch.device("cpu"))
    [('saliency', 0.3), ('detail', 0.3)]
    """
    return default_mixture("learned" if knows_questions(None, [is_question(query)], device) else None)


def knows_questions(source: Any, asked: Sequence[bool], device: torch.device) -> bool:
    """Whether a source or mixture, or None as the default, may say something else to another question.

    >>> [knows_questions(source, [True], torch.device("cpu")) for source in ("detail", {"learned": 1.0})]
    [False, True]
    """
    if source is None:
        return any(asked) and scorer_for(device) is not None
    parts = list(source) if isinstance(source, Mapping) else source
    if isinstance(parts, (list, tuple)):
        parts = [part[0] if isinstance(part, tuple) else part for part in parts]
    else:
        parts = [parts]
    return any(callable(part) or (isinstance(part, str) and part == "learned") for part in parts)


def _parts(source: Source | Mixture | Mapping[Source, float] | None) -> Mixture:
    if source is None or (isinstance(source, str) and source == "pixels"):
        return default_mixture()
    if isinstance(source, Mapping):
        source = list(source.items())
    if isinstance(source, (list, tuple)):
        if not source or not all(isinstance(part, tuple) and len(part) == 2 for part in source):
            raise RelevanceError(
                "a relevance mixture is a list of (source, weight) pairs, such as [('detail', 0.5), (scorer, 0.5)]"
            )
        weights = [weight for _, weight in source]
        fine = all(isinstance(weight, (int, float)) and 0 <= weight < float("inf") for weight in weights)
        if not fine or not sum(weights) > 0:
            raise RelevanceError(f"relevance weights must be finite, at least 0 and not all 0, got {weights}")
        return source
    return [(cast(Source, source), 1.0)]


def _map_of(source: Source, pyramid: ImagePyramid, queries: Sequence[Any] | None, validate: bool) -> Tensor:
    batch, device = pyramid.images.shape[0], pyramid.images.device
    if isinstance(source, str):
        if source not in SOURCES:
            near = difflib.get_close_matches(source, SOURCES, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(SOURCES)}"
            raise RelevanceError(f"unknown relevance source '{source}': {hint}")
        return SOURCES[source](pyramid, queries) if source == "learned" else SOURCES[source](pyramid)
    values = source(pyramid.images, list(queries or [None] * batch)) if callable(source) else source
    if callable(source) and not hasattr(values, "__len__"):
        raise RelevanceError(
            f"the relevance callable returned {type(values).__name__}: return a map [h, w] or [B, h, w]"
        )
    return normalise(resample_mass(as_density(values, batch, device, validate), pyramid.grid))
