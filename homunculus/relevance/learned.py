"""A scorer that knows questions, where there is one: what stands behind the name `learned`.

The pipeline knows no model. Whoever has one offers it here, as the package does with its own when it is imported; what
is offered is a function that loads it, called when the first question comes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from homunculus.density import as_density, normalise, resample_mass
from homunculus.errors import RelevanceError
from homunculus.pyramid import ImagePyramid

# (images, queries: one per image) -> map; None in a batch is an image that nothing is asked about.
Scorer = Callable[[Shaped[Tensor, "b 3 h w"], Sequence[Any]], Float[Tensor, "b gh gw"]]

_offers: list[Callable[[torch.device], Scorer | None]] = []


def offer_scorer(load: Callable[[torch.device], Scorer | None]) -> None:
    """Offer a scorer under the name `learned`: `load` gives it for a device, or None where it is missing after all.

    The last offer counts. A scorer is asked for often: `load` should keep what it has loaded.
    """
    _offers[:] = [load]


def scorer_for(device: torch.device) -> Scorer | None:
    """The scorer that was offered, on a device; None where there is none."""
    return _offers[0](device) if _offers else None


def is_question(query: Any) -> bool:
    """Whether there is something in it to answer.

    >>> is_question("What is the total?"), is_question("  "), is_question(None)
    (True, False, False)
    """
    return isinstance(query, str) and bool(query.strip())


def learned(pyramid: ImagePyramid, queries: Sequence[Any] | None) -> Float64[Tensor, "b gh gw"]:
    """Where the answers are likely to be seen, by the scorer that was offered."""
    images = pyramid.images
    scorer = scorer_for(images.device)
    if scorer is None:
        raise RelevanceError("this installation has no weights of the compact model: use relevance 'pixels'")
    if not queries or not any(map(is_question, queries)):
        raise RelevanceError("'learned' relevance is that of a question: ask one, or use relevance 'pixels'")
    scores = as_density(scorer(images, queries), len(images), images.device, validate=False)
    return normalise(resample_mass(scores, pyramid.grid))
