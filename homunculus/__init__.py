"""Homunculus: a fixed visual budget for vision-language models, spent where the question looks."""

from homunculus import viz
from homunculus.allocation import HierarchicalAllocator, allocate, allocators, coverage, register
from homunculus.allocation.foveal import foveal_share
from homunculus.cache import DiskCache, TokenCache
from homunculus.errors import HomunculusError
from homunculus.fixation import Observer, fixate, progressive, saccades
from homunculus.foveate import foveate, make_view
from homunculus.geometry import fit_grid
from homunculus.reconstruct import reconstruct
from homunculus.relevance import offer_scorer
from homunculus.sampling import sample
from homunculus.structures import Allocation, PackedAllocation, View, VisualTokens

__version__ = "0.1.0"


@offer_scorer
def _learned(device):  # type: ignore[no-untyped-def]  # the one place where pipeline and model meet, and only once asked
    from homunculus.model.learned import packaged_scorer

    return packaged_scorer(device)


__all__ = [
    "Allocation",
    "DiskCache",
    "HierarchicalAllocator",
    "HomunculusError",
    "Observer",
    "PackedAllocation",
    "TokenCache",
    "View",
    "VisualTokens",
    "allocate",
    "allocators",
    "coverage",
    "fit_grid",
    "fixate",
    "foveal_share",
    "foveate",
    "make_view",
    "progressive",
    "reconstruct",
    "register",
    "saccades",
    "sample",
    "viz",
]
