"""Image (+ query, fixation) to a density over leaves: how much each place matters."""

from homunculus.relevance.gaze import as_fixations, eccentricity, fixation_density, stack_fixations
from homunculus.relevance.learned import is_question, offer_scorer
from homunculus.relevance.maps import cosine, detail, pixels, saliency, uniform
from homunculus.relevance.mixture import default_for, default_mixture, knows_questions, relevance, relevance_for
from homunculus.relevance.words import spatial_points

__all__ = [
    "as_fixations",
    "cosine",
    "default_for",
    "default_mixture",
    "detail",
    "eccentricity",
    "fixation_density",
    "is_question",
    "knows_questions",
    "offer_scorer",
    "pixels",
    "relevance",
    "relevance_for",
    "saliency",
    "spatial_points",
    "stack_fixations",
    "uniform",
]
