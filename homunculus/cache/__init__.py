"""What is kept between fixations, questions and runs: patches and their embeddings in memory, any tensors on disk.

A patch depends on its image and its box alone, and so does a context-free embedding of it (a linear or convolutional
patch embedding): both are reused. An encoding that has seen the other tokens depends on all of them and is never kept.
"""

from homunculus.cache.disk import DiskCache, allocation_from_tensors, allocation_to_tensors
from homunculus.cache.keys import content_key
from homunculus.cache.memory import CacheStats, TokenCache

__all__ = [
    "CacheStats",
    "DiskCache",
    "TokenCache",
    "allocation_from_tensors",
    "allocation_to_tensors",
    "content_key",
]
