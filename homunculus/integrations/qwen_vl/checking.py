"""What can be refused before a model is there: nobody should wait for gigabytes of weights to hear of a slip."""

from collections.abc import Sequence
from typing import cast

from homunculus.allocation import check_budget, get_allocator
from homunculus.errors import HomunculusError, RelevanceError
from homunculus.integrations.qwen_vl.plan import Looking
from homunculus.integrations.qwen_vl.reducing import check_peer
from homunculus.integrations.qwen_vl.rope import Positions
from homunculus.integrations.qwen_vl.scorers import NAMES
from homunculus.peers import Peer
from homunculus.relevance.maps import SOURCES

STAGES = ("pre", "post", "views")


class PatchError(HomunculusError):
    """A model that cannot be put on a budget, or inputs that do not fit one that was."""


def check_arguments(
    budget: int | Sequence[int], stage: str, positions: str | None, looking: Looking
) -> tuple[list[int], Positions, Peer | None]:
    """The budgets, positions and peer that these arguments of `patch` mean, or an error that says what is wrong.

    >>> check_arguments(273, "pre", None, Looking())
    ([273], 'true', None)
    >>> check_arguments(273, "mid", None, Looking())
    Traceback (most recent call last):
    homunculus.integrations.qwen_vl.checking.PatchError: stage is one of pre, post, views, got 'mid'
    """
    if stage not in STAGES:
        raise PatchError(f"stage is one of {', '.join(STAGES)}, got {stage!r}")
    where = positions or ("stock" if stage == "views" else "rounded" if looking.peer else "true")
    if where not in ("true", "rounded", *(["stock"] if stage == "views" else [])):
        raise PatchError(f"positions are 'true' or 'rounded', for views also 'stock', got {positions!r}")
    sources = [*SOURCES, *NAMES]
    if isinstance(looking.relevance, str) and looking.relevance not in sources:
        raise RelevanceError(f"unknown relevance source '{looking.relevance}': choose from {', '.join(sources)}")
    get_allocator(looking.allocator)
    peer = check_peer(looking, stage)
    budgets = [budget] if isinstance(budget, (int, float, str)) else list(budget)
    return [check_budget(one) for one in budgets], cast(Positions, where), peer
