"""Image (+ query, fixation) to a density over leaves: how much each place matters."""

from homunculus.relevance.gaze import as_fixations, eccentricity, fixation_density, stack_fixations
from homunculus.relevance.maps import cosine, detail, saliency, uniform
from homunculus.relevance.mixture import default_mixture, relevance
from homunculus.relevance.words import spatial_points

__all__ = [
    "as_fixations",
    "cosine",
    "default_mixture",
    "detail",
    "eccentricity",
    "fixation_density",
    "relevance",
    "saliency",
    "spatial_points",
    "stack_fixations",
    "uniform",
]
