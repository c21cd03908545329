"""The library's choice of where to look, image by image, against people and against the baselines.

A relevance source is a density over the leaves of the image, with its floor, blurred by a degree. The saccade loop is
the path of its fixations, and as a map the density of its tokens: 1 / the area of the cell over each leaf, blurred by a
degree. Maps of others come as they are, on the leaves, with a floor.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from homunculus.data.dice import Dice
from homunculus.density import FLOOR
from homunculus.fixation import Observer
from homunculus.gaze.baselines import CentreBias, People, borrowed_path, drawn_path, resample
from homunculus.gaze.clusters import centres_of, letters
from homunculus.gaze.formats import Stimulus
from homunculus.gaze.maps import blur, cells_of, density, histogram, widths, with_even
from homunculus.gaze.metrics import auc, cc, information_gain, kl, nss, sim
from homunculus.gaze.scanpath import MultiMatch, multimatch, sequence_score
from homunculus.geometry import Size, fit_grid
from homunculus.relevance import relevance
from homunculus.unseen import shown_level

BUDGET = 273
LONGEST = 10  # fixations of a path that are compared
PERSONS = 10  # people whose paths are compared on an image
DRAWS = 5  # random paths for each image
NEGATIVES = 50_000  # fixations of other images that shuffled AUC is measured against
COARSE: Size = (64, 64)  # the grid of the plain correlation
COARSE_SIGMA = (2.0, 2.0)

SHARES = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)  # of a map in its mixture with the centre bias
OF_MAPS = ("gain", "gain with centre", "shuffled AUC", "NSS", "AUC", "KL", "CC", "SIM", "CC 64x64")
OF_PATHS = ("sequence", *MultiMatch._fields)
CENTRE, UNIFORM, BORROWED, PEOPLE, SACCADES = "centre", "uniform", "path on another image", "people", "saccades"
BASELINES = (CENTRE, UNIFORM, BORROWED)

Paths = Sequence[Float64[np.ndarray, "_n 3"]]
MapOf = Callable[[Stimulus], Float64[np.ndarray, "_h _w"]]


class Row(NamedTuple):
    """One method on one image with one target: its scores, not a number where there is none."""

    method: str
    image: str
    scores: dict[str, float]
    mixed: tuple[float, ...] = ()  # its gain when mixed with the centre bias, for each of SHARES


class Bench:
    """What is known of all images before any is looked at: the centre bias, other people, negatives."""

    def __init__(self, stimuli: Sequence[Stimulus]) -> None:
        self.stimuli = stimuli
        self.grids = [fit_grid(*stimulus.picture.size, BUDGET)[:2] for stimulus in stimuli]
        self.centre = CentreBias(stimuli)
        self.people = People(stimuli, self.centre, self.grids)
        places = [stimulus.fixations[:, :2] / np.array(stimulus.picture.size) for stimulus in stimuli]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(one.picture.name for one in stimuli))}
        images = [np.full(len(own), numbers[one.picture.name]) for own, one in zip(places, stimuli, strict=True)]
        self._numbers, self._places, self._images = numbers, np.concatenate(places), np.concatenate(images)
        if len(self._places) > NEGATIVES:
            some = np.argsort(Dice("negatives").array(len(self._places)), kind="stable")[:NEGATIVES]
            self._places, self._images = self._places[some], self._images[some]

    def elsewhere(self, stimulus: Stimulus, grid: Size) -> Float64[np.ndarray, "h w"]:
        """How often each leaf of an image would be fixated by people who look at other images."""
        others = self._images != self._numbers[stimulus.picture.name]
        return histogram(cells_of(self._places[others], (1, 1), grid), grid)

    def rows(
        self, number: int, sources: Sequence[str], given: Mapping[str, MapOf], looks: int = LONGEST, seed: int = 0
    ) -> tuple[list[Row], dict[str, Float64[np.ndarray, "_h _w"]], Float64[np.ndarray, "n 3"]]:
        """All methods on one image: their rows, their maps and the path of the saccade loop."""
        stimulus, grid = self.stimuli[number], self.grids[number]
        longest = min(looks, max(map(len, stimulus.paths)))
        own, path = look(stimulus, grid, sources, longest)
        for name, map_of in given.items():
            own[name] = with_even(resample(map_of(stimulus), grid), FLOOR)
        bias = self.centre.density(stimulus, grid)
        maps = own | {CENTRE: bias, UNIFORM: density(np.ones((grid[1], grid[0])))}
        scores = dict(zip(maps, self._of_maps(stimulus, grid, np.stack(list(maps.values())), bias), strict=True))
        scores[PEOPLE] = self._of_people(stimulus, grid, bias)
        paths: dict[str, Paths] = {SACCADES: [path]} | random_paths(stimulus, self.stimuli, bias, longest, seed)
        mixed = {name: mixtures(map, stimulus, bias) for name, map in maps.items() if name != CENTRE}
        if scores[PEOPLE]:  # in a mixture already
            mixed[PEOPLE] = (scores[PEOPLE]["gain"],) * len(SHARES)
        for name, found in score_paths(stimulus, paths, looks).items():
            scores[name] = scores.get(name, {}) | found
        image = stimulus.picture.name
        return [Row(name, image, found, mixed.get(name, ())) for name, found in scores.items()], maps, path

    def _of_maps(
        self, stimulus: Stimulus, grid: Size, maps: Float64[np.ndarray, "k h w"], bias: Float64[np.ndarray, "h w"]
    ) -> list[dict[str, float]]:
        found = score_maps(maps, stimulus.fixations, stimulus, bias, self.elsewhere(stimulus, grid))
        return [{name: float(values[k]) for name, values in found.items()} for k in range(len(maps))]

    def _of_people(self, stimulus: Stimulus, grid: Size, bias: Float64[np.ndarray, "h w"]) -> dict[str, float]:
        """Each person from the others, by the number of their fixations."""
        densities = self.people.densities(stimulus, grid)
        if densities is None:
            return {}
        negatives = self.elsewhere(stimulus, grid)
        each = [
            score_maps(map[None], path, stimulus, bias, negatives)
            for map, path in zip(densities, stimulus.paths, strict=True)
        ]
        counts = [len(path) for path in stimulus.paths]
        return {name: float(np.average([one[name][0] for one in each], weights=counts)) for name in each[0]}


def score_maps(
    maps: Float64[np.ndarray, "k h w"],
    fixations: Float64[np.ndarray, "n 3"],
    stimulus: Stimulus,
    bias: Float64[np.ndarray, "h w"],
    elsewhere: Float64[np.ndarray, "h w"],
) -> dict[str, Float64[np.ndarray, " k"]]:
    """Every measure of maps against fixations on an image."""
    size, grid = stimulus.picture.size, (maps.shape[2], maps.shape[1])
    cells = cells_of(fixations, size, grid)
    human = blur(histogram(cells, grid), widths(stimulus.picture.degree, size, grid))
    coarse = np.stack([blur(resample(map, COARSE), COARSE_SIGMA) for map in maps])
    return {
        "gain": information_gain(density(maps), bias, cells),
        "shuffled AUC": auc(maps, cells, elsewhere),
        "NSS": nss(maps, cells),
        "AUC": auc(maps, cells),
        "KL": kl(maps, human),
        "CC": cc(maps, human),
        "SIM": sim(maps, human),
        "CC 64x64": cc(coarse, coarse_people(fixations, size)),
    }


def mixtures(
    map: Float64[np.ndarray, "h w"], stimulus: Stimulus, bias: Float64[np.ndarray, "h w"]
) -> tuple[float, ...]:
    """The gain of a map mixed with the centre bias, for each share of it: a map that is too sure of itself is trusted
    as much as it deserves."""
    cells = cells_of(stimulus.fixations, stimulus.picture.size, (map.shape[1], map.shape[0]))
    shares = np.array(SHARES)[:, None, None]
    return tuple(information_gain(shares * density(map) + (1 - shares) * bias, bias, cells).tolist())


def coarse_people(fixations: Float64[np.ndarray, "n 3"], size: Size) -> Float64[np.ndarray, "64 64"]:
    """Where people looked, and how long, on 64x64 cells, blurred by two of them; without durations all count the same.

    >>> long_and_short = np.array([[16.0, 32.0, 300.0], [48.0, 32.0, 100.0]])
    >>> seen = coarse_people(long_and_short, (64, 64))
    >>> round(float(seen[:, :32].sum() / seen[:, 32:].sum()), 6)
    3.0
    """
    lasting = fixations[:, 2]
    weights = lasting if np.isfinite(lasting).all() and (lasting > 0).any() else np.ones(len(lasting))
    return blur(histogram(cells_of(fixations, size, COARSE), COARSE, weights), COARSE_SIGMA)


def look(
    stimulus: Stimulus, grid: Size, sources: Sequence[str], longest: int
) -> tuple[dict[str, Float64[np.ndarray, "_h _w"]], Float64[np.ndarray, "n 3"]]:
    """The library looks: a density for each source and for the tokens of the saccade loop, and the loop's path."""
    pixels = stimulus.picture.pixels()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    observer = Observer(pixels.to(device), BUDGET)
    question = stimulus.question
    wide = widths(stimulus.picture.degree, stimulus.picture.size, grid)
    maps = {}
    for source in sources:
        said = (
            relevance(observer.pyramid, source, [question])
            if source == "learned"
            else relevance(observer.pyramid, source)
        )
        maps[source] = blur(said[0].cpu().numpy(), wide)
    last = list(observer.fixate(question, longest, enough=None))[-1]
    tokens = torch.exp2(-2 * shown_level(last.allocation))[0].cpu().numpy()  # nothing where no cell is
    maps[SACCADES] = blur(with_even(tokens, FLOOR), wide)
    path = last.fixations[0, :longest, :2].cpu().numpy()
    return maps, np.column_stack((path, np.full(len(path), np.nan)))


def random_paths(
    stimulus: Stimulus, stimuli: Sequence[Stimulus], bias: Float64[np.ndarray, "h w"], longest: int, seed: int = 0
) -> dict[str, Paths]:
    """Paths of chance: drawn evenly, from the centre bias, and borrowed from another image."""
    dice = Dice("scanpaths", stimulus.picture.name, stimulus.target, seed)
    size = stimulus.picture.size
    return {
        UNIFORM: [drawn_path(dice, np.ones((1, 1)), longest, size) for _ in range(DRAWS)],
        CENTRE: [drawn_path(dice, bias, longest, size) for _ in range(DRAWS)],
        BORROWED: [borrowed_path(dice, stimuli, stimulus, longest) for _ in range(DRAWS)],
    }


def score_paths(stimulus: Stimulus, paths: Mapping[str, Paths], longest: int = LONGEST) -> dict[str, dict[str, float]]:
    """Paths against those of people, and people against each other, by one rule.

    Two people are compared over as many fixations as both made. Nobody asked a model when to stop, so its path takes
    the place of each person in turn, and is compared with each of the others over as many fixations as that person was.
    """
    human = [path[:longest] for path in stimulus.paths]
    centres = centres_of(human)
    human = human[:PERSONS]
    size = stimulus.picture.size
    pairs = list(itertools.combinations(range(len(human)), 2))
    # (person, fixations) that a model is compared with, and how often; somebody who is alone is compared whole.
    turns = Counter((j, min(len(human[i]), len(human[j]))) for pair in pairs for i, j in (pair, pair[::-1]))
    turns = turns or Counter({(0, len(human[0])): 1})

    def alike(one: Float64[np.ndarray, "n 3"], other: Float64[np.ndarray, "m 3"], most: int) -> tuple[float, ...]:
        count = min(most, len(one), len(other))
        one, other = one[:count], other[:count]
        return sequence_score(letters(one, centres), letters(other, centres)), *multimatch(one, other, size)

    scores = {}
    for name, own in paths.items():
        found = [alike(path, human[person], most) for path in own for person, most in turns]
        scores[name] = _mean(found, list(turns.values()) * len(own))
    if pairs:
        scores[PEOPLE] = _mean([alike(human[i], human[j], longest) for i, j in pairs], [1] * len(pairs))
    return scores


def _mean(found: Sequence[tuple[float, ...]], times: Sequence[int]) -> dict[str, float]:
    """Means over comparisons, each made so many times; MultiMatch over those whose paths are long enough."""
    table, weights = np.array(found), np.array(times)
    means = {}
    for name, column in zip(OF_PATHS, table.T, strict=True):
        known = ~np.isnan(column)
        means[name] = float(np.average(column[known], weights=weights[known])) if known.any() else np.nan
    return means


def evaluate(
    bench: Bench, sources: Sequence[str], given: Mapping[str, MapOf], looks: int = LONGEST
) -> Iterator[tuple[Stimulus, list[Row], dict[str, Any], Any]]:
    """All methods on all images, one image after another."""
    for number, stimulus in enumerate(bench.stimuli):
        yield stimulus, *bench.rows(number, sources, given, looks)
