"""Rows to a table: means over rows with intervals over images, models between people and the baselines.

A row is one image with one target; rows of the same image stand and fall together, so intervals draw whole images.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from homunculus.eval.statistics import Interval, interval
from homunculus.gaze.compare import BASELINES, OF_MAPS, OF_PATHS, PEOPLE, Row
from homunculus.gaze.scanpath import FEWEST

RESAMPLES = 2000
NONE = "-"

SAYS = {
    "gain": "information gain over the centre bias, bits per fixation",
    "gain with centre": "the same for a mixture of map and centre bias whose share comes from the other images",
    "shuffled AUC": "chance to outrank a place fixated in another image",
    "NSS": "height at fixations, in standard deviations",
    "AUC": "AUC of Judd: chance to outrank any place",
    "KL": "divergence of the model from people, nats; less is better",
    "CC": "Pearson's correlation with the blurred map of people",
    "SIM": "mass in common with it",
    "CC 64x64": "Pearson's correlation on 64x64 cells, blurred by 2, weighted by duration",
    "sequence": "sequence score: regions visited in the same order",
    "shape": "MultiMatch, shape",
    "direction": "MultiMatch, direction",
    "length": "MultiMatch, length",
    "position": "MultiMatch, position",
}
WHY_NOT_CC = (
    "CC alone misleads: the centre row has not seen the image and correlates with people all the same, so a high CC "
    "may be no more than a habit of looking at the middle; only what exceeds that row, and information gain above 0, "
    "is about the image."
)
OVER = "Means are over rows, each one image with one target; intervals are 95 %, whole images drawn."
OF_PEOPLE = (
    "The row of people foretells each person from all others. Its KL, CC and SIM compare with one person's map, which "
    "is noisier than that of everybody, with which the other rows are compared."
)


class Line(NamedTuple):
    """A method: on how many images, and the mean of each measure with its interval; None where there is none."""

    method: str
    images: int
    means: dict[str, Interval | None]


def summarise(rows: Sequence[Row]) -> list[Line]:
    """A line for each method: people, models by falling information gain, baselines."""
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(row.method, []).append(row)
    lines = [_line(method, own) for method, own in methods.items()]

    def place(line: Line) -> tuple[int, float]:
        gain = line.means["gain"]
        if line.method in BASELINES:
            return 2, BASELINES.index(line.method)
        return (0 if line.method == PEOPLE else 1), (math.inf if gain is None else -gain.mean)

    return sorted(lines, key=place)


def _line(method: str, rows: Sequence[Row]) -> Line:
    means: dict[str, Interval | None] = {}
    mixed = {"gain with centre": mixed_gain(rows)}
    for name in (*OF_MAPS, *OF_PATHS):
        scores = mixed.get(name) or [row.scores.get(name, math.nan) for row in rows]
        known = [(score, row.image) for score, row in zip(scores, rows, strict=True) if not math.isnan(score)]
        enough = len({image for _, image in known}) > 1
        values, images = zip(*known, strict=True) if enough else ((), ())
        means[name] = interval(values, images, resamples=RESAMPLES) if enough else None
    return Line(method, len({row.image for row in rows}), means)


def mixed_gain(rows: Sequence[Row]) -> list[float]:
    """Each row's gain at the share of the map that is best for all other images.

    >>> rows = [Row("a", f"{i}.jpg", {}, gains) for i, gains in enumerate([(0.0, 1.0), (0.0, 2.0), (3.0, -1.0)])]
    >>> mixed_gain(rows)
    [0.0, 0.0, -1.0]
    """
    by_image: dict[str, np.ndarray] = {}
    for row in rows:
        if row.mixed:
            by_image[row.image] = by_image.get(row.image, 0.0) + np.array(row.mixed)
    total = sum(by_image.values())
    best = {image: int(np.argmax(total - own)) for image, own in by_image.items()}
    return [row.mixed[best[row.image]] if row.mixed else math.nan for row in rows]


def cell(mean: Interval | None, places: int = 2, spread: bool = True) -> str:
    """A mean with its interval, for reading.

    >>> cell(Interval(0.5, 0.4, 0.6)), cell(Interval(0.5, 0.4, 0.6), spread=False), cell(None)
    ('0.50 [0.40, 0.60]', '0.50', '-')
    """
    if mean is None:
        return NONE
    middle, low, high = (f"{round(value, places) + 0.0:.{places}f}" for value in mean)  # never -0.00
    return f"{middle} [{low}, {high}]" if spread else middle


def markdown(lines: Sequence[Line], about: Mapping[str, Any]) -> str:
    """The whole table for a document: maps, then paths, every mean with its interval."""
    parts = [about_line(about), ""]
    for title, names in (("Maps", OF_MAPS), ("Scanpaths", OF_PATHS)):
        shown = [line for line in lines if any(line.means[name] is not None for name in names)]
        header = ["method", "images", *names]
        table = [header, ["---"] * len(header)]
        table += [[line.method, str(line.images), *(cell(line.means[name]) for name in names)] for line in shown]
        parts += [f"### {title}", "", *(f"| {' | '.join(row)} |" for row in table), ""]
    parts += [OVER, "", WHY_NOT_CC, "", OF_PEOPLE, "", *(f"- **{name}**: {says}" for name, says in SAYS.items()), ""]
    return "\n".join(parts)


def as_json(lines: Sequence[Line], about: Mapping[str, Any]) -> str:
    """Everything, for programs."""
    methods = [
        {
            "method": line.method,
            "images": line.images,
            **{name: None if mean is None else mean._asdict() for name, mean in line.means.items()},
        }
        for line in lines
    ]
    return json.dumps({**about, "measures": SAYS, "methods": methods}, indent=1) + "\n"


def about_line(about: Mapping[str, Any]) -> str:
    """What was looked at, and what was left out, in a sentence.

    >>> about = {"data": "mit1003", "images": 2, "viewings": 30, "fixations": 200, "left out": {"outside": 3}}
    >>> about_line(about)
    'mit1003: 200 fixations in 30 viewings of 2 images; left out: 3 outside. Intervals are 95 %, over images.'
    """
    left = ", ".join(f"{count} {why}" for why, count in about["left out"].items() if count)
    short = about.get("short paths", 0)
    brief = f" {short} paths of fewer than {FEWEST} fixations have no MultiMatch." if short else ""
    seen = f"{about['fixations']} fixations in {about['viewings']} viewings of {about['images']} images"
    return f"{about['data']}: {seen}; left out: {left or 'nothing'}. Intervals are 95 %, over images.{brief}"
