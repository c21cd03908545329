"""Centre, people and random paths: fitted on others, and right where the answer is known."""

from pathlib import Path

import numpy as np
import pytest

from homunculus.data.dice import Dice
from homunculus.errors import DataError
from homunculus.gaze.baselines import CentreBias, People, borrowed_path, drawn_path, resample
from homunculus.gaze.formats import Stimulus
from homunculus.gaze.maps import cells_of, density
from homunculus.gaze.metrics import information_gain
from homunculus.gaze.record import Picture

SIZE, GRID = (640, 480), (40, 30)


def hill(x: float, y: float, sigma: float) -> np.ndarray:
    ys, xs = np.mgrid[: GRID[1], : GRID[0]] + 0.5
    return density(np.exp(-((xs * 16 - x) ** 2 + (ys * 16 - y) ** 2) / (2 * sigma**2)))


def gazed(chances: list[np.ndarray], people: int = 8, fixations: int = 6, seed: int = 0) -> list[Stimulus]:
    """An image for each density, and made-up people who look by it."""
    stimuli = []
    for number, own in enumerate(chances):
        dice = Dice("baselines", seed, number)
        paths = [drawn_path(dice, own, fixations, SIZE) for _ in range(people)]
        stimuli.append(Stimulus(Picture(Path(f"{number}.jpg"), SIZE, 30.0), "", list("abcdefghij"[:people]), paths))
    return stimuli


def test_the_centre_bias_is_what_others_do():
    truth = 0.9 * hill(320, 240, 90) + 0.1 * density(np.ones((30, 40)))
    stimuli = gazed([truth] * 60)
    bias = CentreBias(stimuli).density(stimuli[0], GRID)
    assert bias.sum() == pytest.approx(1)
    divergence = (truth * np.log2(truth / bias)).sum()
    assert divergence < 0.05  # bits; a uniform one has more than ten times that
    assert (truth * np.log2(truth * truth.size)).sum() > 10 * divergence


def test_an_image_is_not_in_its_own_centre_bias():
    corner = hill(40, 40, 15)
    stimuli = gazed([corner, *[hill(320, 240, 60)] * 20])
    bias = CentreBias(stimuli)
    own, others = bias.density(stimuli[0], GRID), bias.density(stimuli[1], GRID)
    assert own[:5, :5].sum() < 0.01  # what little is spread evenly
    assert others[:5, :5].sum() > 3 * own[:5, :5].sum()
    with pytest.raises(DataError, match="at least two"):
        CentreBias(stimuli[:1])


def test_people_foretell_people_as_far_as_they_agree():
    chances = [0.8 * hill(x, y, 40) + 0.2 * density(np.ones((30, 40))) for x, y in ((100, 100), (500, 380), (320, 90))]
    stimuli = gazed(chances * 4, people=10, fixations=12)
    centre = CentreBias(stimuli)
    people = People(stimuli, centre, [GRID] * len(stimuli))
    gained, best = [], []
    for stimulus, truth in zip(stimuli, chances * 4, strict=True):
        bias = centre.density(stimulus, GRID)
        found = people.densities(stimulus, GRID)
        np.testing.assert_allclose(found.sum((1, 2)), 1)
        for map, path in zip(found, stimulus.paths, strict=True):
            gained.append(float(information_gain(map, bias, cells_of(path, SIZE, GRID))))
        best.append(float((truth * np.log2(truth / bias)).sum()))
    assert 0.8 * np.mean(best) < np.mean(gained) < np.mean(best) + 0.1


def test_people_who_agree_on_nothing_gain_nothing():
    stimuli = gazed([density(np.ones((30, 40)))] * 12, people=6)
    centre = CentreBias(stimuli)
    people = People(stimuli, centre, [GRID] * len(stimuli))
    gained = [
        float(information_gain(map, centre.density(stimulus, GRID), cells_of(path, SIZE, GRID)))
        for stimulus in stimuli
        for map, path in zip(people.densities(stimulus, GRID), stimulus.paths, strict=True)
    ]
    assert np.mean(gained) < 0.02


def test_one_person_alone_has_no_others():
    stimuli = gazed([hill(320, 240, 60)] * 3, people=1)
    people = People(stimuli, CentreBias(stimuli), [GRID] * 3)
    assert people.densities(stimuli[0], GRID) is None


def test_drawn_paths_follow_their_density():
    truth = hill(200, 300, 50)
    path = drawn_path(Dice("many"), truth, 20_000, SIZE)
    np.testing.assert_allclose(path[:, :2].mean(0), [200, 300], atol=2)
    np.testing.assert_allclose(path[:, :2].std(0), 50, atol=2)
    assert np.isnan(path[:, 2]).all()
    edge = np.zeros((2, 3))
    edge[1, 2] = 1
    assert (drawn_path(Dice("edge"), edge, 50, (30, 20))[:, :2] >= [20, 10]).all()


def test_borrowed_paths_come_from_another_image_and_are_stretched():
    picture = Picture(Path("small.jpg"), (64, 48), 30.0)
    small = Stimulus(picture, "", ["a"], [np.array([[32.0, 24.0, 100.0], [63.0, 47.0, 100.0]])])
    (large,) = gazed([hill(320, 240, 60)])
    path = borrowed_path(Dice("borrow"), [small, large], large, 1)
    assert path.tolist() == [[320, 240, 100]]
    assert len(borrowed_path(Dice("borrow"), [small, large], large, 9)) == 2  # nobody elsewhere looked so often
    with pytest.raises(DataError, match="no other image"):
        borrowed_path(Dice("borrow"), [large], large, 1)


def test_borrowed_paths_are_long_enough_where_any_is():
    own, other = gazed([hill(320, 240, 60)] * 2)
    for place in range(7):
        other.paths[place] = other.paths[place][:2]
    assert [len(borrowed_path(Dice("long", i), [own, other], own, 5)) for i in range(10)] == [5] * 10


def test_resampling_keeps_mass_where_it_is():
    dice = np.random.default_rng(0)
    map = dice.uniform(0, 1, (64, 64))
    for grid in ((40, 32), (7, 9), (128, 64)):
        assert resample(map, grid).sum() == pytest.approx(map.sum())
    np.testing.assert_allclose(resample(map, (32, 16)), map.reshape(16, 4, 32, 2).sum((1, 3)))
    np.testing.assert_allclose(resample(map, (64, 64)), map)
