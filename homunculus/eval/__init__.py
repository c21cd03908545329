"""Is an answer right, is a difference real, and how much is known without looking."""

from homunculus.eval.metrics import METRIC_OF, METRICS, anls, exact, relaxed, score, vqa
from homunculus.eval.signs import holm
from homunculus.eval.statistics import Comparison, Interval, compare, interval

__all__ = [
    "METRICS",
    "METRIC_OF",
    "Comparison",
    "Interval",
    "anls",
    "compare",
    "exact",
    "holm",
    "interval",
    "relaxed",
    "score",
    "vqa",
]
