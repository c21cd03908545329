"""Which file is the photograph, and where it is in a file with bars."""

import json

import numpy as np
import pytest

from homunculus.errors import DataError
from homunculus.gaze.formats import gather, load
from homunculus.gaze.given import parse_maps
from homunculus.gaze.letterbox import without_bars
from tests.gaze import sets

DISPLAY = (1680, 1050)
SIDES, ABOVE = (140, 0), (0, 52)  # of 640x480 and of 640x360


@pytest.mark.parametrize(
    ("bars", "dark"),
    [
        (SIDES, 0.1),  # 640x480, 10 % of it black at both sides: with the bars 280 pixels of black
        (ABOVE, 0.05),  # 640x360, whose black sides are wider than its bars
        (ABOVE, 0.3),
        ((184, 0), 0.0),  # 640x512 is rarer, and found as it stands
        ((0, 105), 0.0),
    ],
)
def test_dark_scenery_is_no_bar(tmp_path, bars, dark):
    sets.photograph(tmp_path / "a.jpg", DISPLAY, bars, dark)
    expected = bars[0], bars[1], DISPLAY[0] - bars[0], DISPLAY[1] - bars[1]
    np.testing.assert_allclose(without_bars(tmp_path / "a.jpg"), expected, atol=1)


def test_scenery_that_is_dark_but_not_black_is_no_bar(tmp_path):
    pixels = np.zeros((1050, 1680), np.uint8)
    pixels[:, 184:-184] = 9  # a night of 640x512
    pixels[:, 400:-400] = 120
    sets.Image.fromarray(pixels).save(tmp_path / "a.png")
    assert without_bars(tmp_path / "a.png") == (184, 0, 1680 - 184, 1050)
    sets.Image.fromarray(np.zeros((1050, 1680), np.uint8)).save(tmp_path / "a.png")
    assert without_bars(tmp_path / "a.png") == (0, 0, 1680, 1050)  # a night without any star


def test_bars_of_a_file_of_another_size(tmp_path):
    sets.photograph(tmp_path / "a.png", (512, 320), (43, 0))  # 640x480, as many models take it
    assert without_bars(tmp_path / "a.png") == (43, 0, 512 - 43, 320)


# --------------------------------------------------------------------------------------- maps in the data's folder


def test_maps_in_the_folder_of_the_data_do_not_replace_photographs(tmp_path):
    sets.photograph(tmp_path / "photographs" / "a.jpg", (640, 480))
    sets.photograph(tmp_path / "maps" / "a.jpg", (64, 48))
    (tmp_path / "fixations.json").write_text(json.dumps([sets.trial("a.jpg")]))
    with pytest.raises(DataError, match=r"two different images a\.jpg .*maps/a\.jpg.*: .* --maps"):
        gather(load(tmp_path, "coco-search18"))
    given = parse_maps([f"mine={tmp_path / 'maps'}"])["mine"]
    (found,) = gather(load(tmp_path, "coco-search18", without=given.files.values()))
    assert found.picture.size == (640, 480) and given(found).shape == (48, 64)
    # A photograph beside its map stays a photograph.
    np.save(tmp_path / "photographs" / "a.npy", np.ones((3, 4)))
    beside = parse_maps([f"mine={tmp_path / 'photographs'}"])["mine"]
    (tmp_path / "maps" / "a.jpg").unlink()
    (found,) = gather(load(tmp_path, "coco-search18", without=beside.files.values()))
    assert found.picture.size == (640, 480) and beside(found).shape == (3, 4)


def test_copies_of_a_photograph_are_one(tmp_path):
    for folder in ("one", "two"):
        sets.photograph(tmp_path / folder / "a.jpg", (640, 480))
    (tmp_path / "fixations.json").write_text(json.dumps([sets.trial("a.jpg")]))
    assert len(gather(load(tmp_path, "coco-search18"))) == 1


def test_mit1003_is_in_allstimuli(tmp_path):
    pytest.importorskip("scipy")
    still = np.concatenate([np.tile([x, 300.0], (60, 1)) for x in (500.0, 100.0, 900.0)])
    sets.mit1003(tmp_path, {("ajs", "a"): still})
    sets.photograph(tmp_path / "maps" / "a.png", (64, 48))
    (found,) = gather(load(tmp_path, "mit1003"))
    assert found.picture.path == tmp_path / "ALLSTIMULI" / "a.jpeg" and len(found.fixations) == 2
    (tmp_path / "ALLSTIMULI").rename(tmp_path / "photographs")
    with pytest.raises(DataError, match="two different images a"):
        gather(load(tmp_path, "mit1003"))
    (found,) = gather(load(tmp_path, "mit1003", without=[tmp_path / "maps" / "a.png"]))
    assert found.picture.size == (1024, 768)


def test_salicon_with_maps_beside(tmp_path):
    sets.salicon_json(tmp_path, {"a.jpg": [[[1, 1]]]})
    sets.photograph(tmp_path / "a_maps" / "a.jpg", (64, 48))
    with pytest.raises(DataError, match=r"two different images a\.jpg"):
        gather(load(tmp_path, "salicon"))
    (found,) = gather(load(tmp_path, "salicon", without=[tmp_path / "a_maps" / "a.jpg"]))
    assert found.picture.size == (640, 480)
