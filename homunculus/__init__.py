"""Homunculus: a fixed visual budget for vision-language models, spent where the question looks."""

from homunculus import viz
from homunculus.allocation import HierarchicalAllocator, allocate, allocators, coverage, register
from homunculus.errors import HomunculusError
from homunculus.foveate import foveate, make_view
from homunculus.geometry import fit_grid
from homunculus.reconstruct import reconstruct
from homunculus.sampling import sample
from homunculus.structures import Allocation, PackedAllocation, View, VisualTokens

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "HierarchicalAllocator",
    "HomunculusError",
    "PackedAllocation",
    "View",
    "VisualTokens",
    "allocate",
    "allocators",
    "coverage",
    "fit_grid",
    "foveate",
    "make_view",
    "reconstruct",
    "register",
    "sample",
    "viz",
]
