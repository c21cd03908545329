"""Gaze data sets by name, and their viewings gathered by what was looked at."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from homunculus.errors import DataError
from homunculus.gaze import coco_search18, mit1003, salicon
from homunculus.gaze.record import Few, Picture, Viewing

FORMATS: dict[str, Callable[..., Iterator[Viewing]]] = {
    "coco-search18": coco_search18.read,
    "mit1003": mit1003.read,
    "salicon": salicon.read,
}


def load(
    folder: str | Path,
    name: str,
    counts: Counter[str] | None = None,
    limit: int | None = None,
    condition: str = "present",
    without: Iterable[Path] = (),
) -> Iterator[Viewing]:
    """The viewings of a data set in a folder, one by one; `counts` learns what was left out, and why.

    With a `limit`, only the first so many images that are met. `condition` is that of COCO-Search18: its trials with
    the target present, absent, or both (""). `without` are files in the folder that are no photographs, but maps.

    >>> load("anywhere", "mit1000")
    Traceback (most recent call last):
    homunculus.errors.DataError: no gaze data set 'mit1000': choose one of coco-search18, mit1003, salicon
    """
    if name not in FORMATS:
        raise DataError(f"no gaze data set '{name}': choose one of {', '.join(FORMATS)}")
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"{place} is no folder: give the one that holds the images and the gaze of {name}")
    counts = Counter() if counts is None else counts
    if name != "coco-search18":
        return FORMATS[name](place, counts, Few(limit), without)
    condition = condition.lower()
    if condition not in ("", *coco_search18.CONDITIONS):
        raise DataError(f"no condition '{condition}': choose present, absent or both")
    return coco_search18.read(place, counts, Few(limit), without, condition)


@dataclass(frozen=True, eq=False)
class Stimulus:
    """An image, with what was searched for in it, and everybody's fixations on it."""

    picture: Picture
    target: str
    subjects: list[str] = field(default_factory=list)
    paths: list[Float64[np.ndarray, "_n 3"]] = field(default_factory=list)

    @property
    def fixations(self) -> Float64[np.ndarray, "n 3"]:
        return np.concatenate(self.paths)

    @property
    def question(self) -> str | None:
        return Viewing(self.picture, "", np.zeros((0, 3)), self.target).question


def gather(viewings: Iterable[Viewing]) -> list[Stimulus]:
    """Viewings by image and target, in order of appearance; those without a fixation are left out."""
    found: dict[tuple[Path, str], Stimulus] = {}
    for viewing in viewings:
        if len(viewing.fixations):
            key = viewing.picture.path, viewing.target
            own = found.setdefault(key, Stimulus(viewing.picture, viewing.target))
            own.subjects.append(viewing.subject)
            own.paths.append(viewing.fixations)
    return list(found.values())
