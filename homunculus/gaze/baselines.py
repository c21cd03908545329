"""What a model has to beat, and what it could at best reach: the centre, chance, other people.

- Centre: people look at the middle of any image. The density of everybody's fixations on all *other* images, smoothed,
  with a little spread evenly; the smoothing is the one that foretells the other images best.
- People: the density of everybody else's fixations on the *same* image, smoothed, laid over the centre bias. Each
  person is foretold from the others. Smoothing and mixture again come from the other images.
- Random scanpaths: places drawn evenly, places drawn from the centre bias, and another image's human path.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from homunculus.data.dice import Dice
from homunculus.errors import DataError
from homunculus.gaze.formats import Stimulus
from homunculus.gaze.maps import blur, cells_of, density, histogram, widths, with_even
from homunculus.gaze.metrics import values_at
from homunculus.geometry import Size

UNIT: Size = (64, 64)  # the grid of the centre bias, over images of any size
SIGMAS = (0.02, 0.04, 0.06, 0.09, 0.13, 0.2)  # widths of its smoothing, as shares of a side
EVEN = 0.02  # of the mass of the centre bias, spread evenly
DEGREES = (0.5, 0.75, 1.0, 1.5, 2.5)  # widths of the smoothing of people
SHARES = (0.3, 0.5, 0.7, 0.85, 0.95)  # of their mixture with the centre bias
BORROWED = 100  # paths looked at for one that is long enough


class CentreBias:
    """Where people look in images they have in common with nobody: fitted once, asked for each image without itself."""

    def __init__(self, stimuli: Sequence[Stimulus]) -> None:
        self.own: dict[str, np.ndarray] = {}  # cells of the unit grid, by image
        for stimulus in stimuli:
            name = stimulus.picture.name
            found = cells_of(stimulus.fixations, stimulus.picture.size, UNIT)
            self.own[name] = np.concatenate((self.own[name], found)) if name in self.own else found
        if len(self.own) < 2:
            raise DataError("a centre bias is fitted on other images, and there is only one: give at least two")
        everyone = histogram(np.concatenate(list(self.own.values())), UNIT)
        self._smoothed = [blur(everyone, _unit(sigma)) for sigma in SIGMAS]
        self._likelihood = {name: self._score(name) for name in self.own}
        self._total = sum(self._likelihood.values())

    def density(self, stimulus: Stimulus, grid: Size) -> Float64[np.ndarray, "h w"]:
        """The centre bias for an image, on a grid over it.

        Its own fixations are neither in the density nor scored in the choice of its width.
        """
        name = stimulus.picture.name
        best = int(np.argmax(self._total - self._likelihood[name]))
        return with_even(resample(self._without(name, best), grid), EVEN)

    def _without(self, name: str, place: int) -> Float64[np.ndarray, "h w"]:
        return np.maximum(self._smoothed[place] - blur(histogram(self.own[name], UNIT), _unit(SIGMAS[place])), 0.0)

    def _score(self, name: str) -> Float64[np.ndarray, " sigmas"]:
        """How well the others foretell this image, for each width: the sum of log densities."""
        maps = np.stack([with_even(self._without(name, place), EVEN) for place in range(len(SIGMAS))])
        return np.log(values_at(maps, self.own[name])).sum(-1)


class People:
    """Everybody else on the same image: what one person's gaze says of another's."""

    def __init__(self, stimuli: Sequence[Stimulus], centre: CentreBias, grids: Sequence[Size]) -> None:
        self.centre = centre
        self._likelihood: dict[str, np.ndarray] = {}
        for stimulus, grid in zip(stimuli, grids, strict=True):
            if len(stimulus.paths) > 1:
                name = stimulus.picture.name
                self._likelihood[name] = self._likelihood.get(name, 0.0) + self._score(stimulus, grid)
        self._total = sum(self._likelihood.values(), np.zeros((len(DEGREES), len(SHARES))))

    def densities(self, stimulus: Stimulus, grid: Size) -> Float64[np.ndarray, "people h w"] | None:
        """For each person the density of the others; None where there are no others."""
        if len(stimulus.paths) < 2:
            return None
        rest = self._total - self._likelihood[stimulus.picture.name]
        width, share = np.unravel_index(int(np.argmax(rest)), rest.shape)
        others = others_of(stimulus, grid, DEGREES[width])
        return SHARES[share] * others + (1 - SHARES[share]) * self.centre.density(stimulus, grid)

    def _score(self, stimulus: Stimulus, grid: Size) -> Float64[np.ndarray, "widths shares"]:
        bias = self.centre.density(stimulus, grid)
        cells = [cells_of(path, stimulus.picture.size, grid) for path in stimulus.paths]
        scores = np.zeros((len(DEGREES), len(SHARES)))
        at_bias = np.concatenate([values_at(bias, own) for own in cells])
        for row, degrees in enumerate(DEGREES):
            others = others_of(stimulus, grid, degrees)
            at = np.concatenate([values_at(map, own) for map, own in zip(others, cells, strict=True)])
            scores[row] = [np.log(share * at + (1 - share) * at_bias).sum() for share in SHARES]
        return scores


def others_of(stimulus: Stimulus, grid: Size, degrees: float) -> Float64[np.ndarray, "people h w"]:
    """For each person the fixations of the others, blurred, as densities."""
    size = stimulus.picture.size
    each = np.stack([histogram(cells_of(path, size, grid), grid) for path in stimulus.paths])
    smooth = blur(each, widths(stimulus.picture.degree * degrees, size, grid))
    return density(np.maximum(smooth.sum(0) - smooth, 0.0))


def resample(map: Float64[np.ndarray, "h w"], grid: Size) -> Float64[np.ndarray, "gh gw"]:
    """A map's mass on another grid over the same image.

    >>> resample(np.ones((2, 2)), (1, 4)).tolist()
    [[1.0], [1.0], [1.0], [1.0]]
    """
    across, down = _overlap(map.shape[1], grid[0]), _overlap(map.shape[0], grid[1])
    return down @ map @ across.T


def _overlap(cells: int, into: int) -> Float64[np.ndarray, "into cells"]:
    """What share of each cell lies in each of the new ones."""
    old, new = np.arange(cells + 1) / cells, np.arange(into + 1) / into
    shared = np.minimum(old[1:], new[1:, None]) - np.maximum(old[:-1], new[:-1, None])
    return np.maximum(shared, 0.0) * cells


def _unit(sigma: float) -> tuple[float, float]:
    return sigma * UNIT[0], sigma * UNIT[1]


# --------------------------------------------------------------------------------------------- random scanpaths


def drawn_path(dice: Dice, chances: Float64[np.ndarray, "h w"], count: int, size: Size) -> Float64[np.ndarray, "n 3"]:
    """Places drawn one by one from a density over an image; they have no durations.

    >>> drawn_path(Dice("doc"), np.array([[0.0, 1.0]]), 1, (64, 32))[0, 0] >= 32
    np.True_
    """
    rows, columns = chances.shape
    steps = np.cumsum(chances.ravel() / chances.sum())
    cell = np.minimum(np.searchsorted(steps, dice.array(count), "right"), rows * columns - 1)
    x = (cell % columns + dice.array(count)) * size[0] / columns
    y = (cell // columns + dice.array(count)) * size[1] / rows
    return np.column_stack((x, y, np.full(count, np.nan)))


def borrowed_path(dice: Dice, stimuli: Sequence[Stimulus], own: Stimulus, count: int) -> Float64[np.ndarray, "n 3"]:
    """The path of somebody on another image, stretched to this one: so long, or nearly where hardly anybody's is."""
    others = [one for one in (dice.choice(stimuli) for _ in range(BORROWED)) if one.picture.name != own.picture.name]
    if not others:
        raise DataError("no other image to borrow a scanpath from: give at least two")
    met = [(dice.choice(one.paths), one.picture.size) for one in others]
    path, size = max(met, key=lambda one: min(len(one[0]), count))  # the first that is long enough
    path = path[:count].copy()
    path[:, :2] *= np.array(own.picture.size) / np.array(size)
    return path
