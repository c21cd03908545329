"""Values by cluster and by stratum: questions about one image stand and fall together, families count equally."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from homunculus.errors import DataError

RESAMPLES = 10_000  # draws, of clusters or of signs
_AT_ONCE = 1 << 21  # of them are held in memory


class Clusters(NamedTuple):
    """Values added up by cluster: what any resampling of whole clusters needs."""

    sums: Float64[np.ndarray, " clusters"]
    counts: Float64[np.ndarray, " clusters"]

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.counts.sum())


def group(values: Any, clusters: Sequence[Any] | None) -> Clusters:
    """Sums and counts by cluster, in order of appearance.

    >>> group([1.0, 2.0, 4.0], ["page 1", "page 2", "page 1"]).sums.tolist()
    [5.0, 2.0]
    """
    numbers = numbers_of(values)
    if clusters is None:
        return Clusters(numbers, np.ones_like(numbers))
    if len(clusters) != len(numbers):
        raise DataError(f"{len(numbers)} values but {len(clusters)} cluster labels: give one a value")
    places: dict[Any, int] = {}
    which = np.array([places.setdefault(label, len(places)) for label in clusters])
    return Clusters(np.bincount(which, numbers), np.bincount(which).astype(np.float64))


def group_by_stratum(values: Any, clusters: Sequence[Any] | None, strata: Sequence[Any] | None) -> list[Clusters]:
    """Sums and counts by cluster for each stratum, in order of appearance.

    >>> [part.mean for part in group_by_stratum([1.0, 0.0, 1.0, 1.0], None, "aabb")]
    [0.5, 1.0]
    """
    numbers = numbers_of(values)
    if strata is None:
        return [group(numbers, clusters)]
    if len(strata) != len(numbers):
        raise DataError(f"{len(numbers)} values but {len(strata)} labels of strata: give one a value")
    if clusters is not None and len(clusters) != len(numbers):
        raise DataError(f"{len(numbers)} values but {len(clusters)} cluster labels: give one a value")
    places: dict[Any, list[int]] = {}
    for place, label in enumerate(strata):
        places.setdefault(label, []).append(place)
    return [group(numbers[own], None if clusters is None else [clusters[i] for i in own]) for own in places.values()]


def numbers_of(values: Any) -> Float64[np.ndarray, " n"]:
    """Scores as they are counted with; what is no list of them is said.

    >>> numbers_of([1, 0.5]).tolist()
    [1.0, 0.5]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.isfinite(numbers).all():
        raise DataError(f"scores are a list of finite numbers, at least one, not {numbers.shape}: check the metric")
    return numbers


def portions(resamples: int, size: int) -> Iterator[int]:
    """How many of the draws of so many clusters fit into memory, until all are made."""
    step = max(1, _AT_ONCE // size)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)
