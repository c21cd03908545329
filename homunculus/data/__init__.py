"""Questions with known answers and known places: synthetic families, data sets of others, and files of both."""

from homunculus.data.record import REGIONS, SPLITS, Question, Record, relevance_map
from homunculus.data.stream import FAMILIES, make, stream

__all__ = ["FAMILIES", "REGIONS", "SPLITS", "Question", "Record", "make", "relevance_map", "stream"]
