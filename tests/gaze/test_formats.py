"""Loaders on made-up files of exactly the published formats, whole, wrong and cut off."""

import json
import sys
from collections import Counter

import numpy as np
import pytest

from homunculus.errors import DataError
from homunculus.gaze.formats import gather, load
from homunculus.gaze.letterbox import undo_letterbox
from homunculus.gaze.mit1003 import fixations_of
from homunculus.gaze.salicon import CLEAR
from tests.gaze import sets


def refused(folder, name, *words):
    with pytest.raises(DataError) as error:
        list(load(folder, name))
    message = str(error.value)
    assert "\n" not in message and all(word in message for word in words), message


# ------------------------------------------------------------------------------------------------ COCO-Search18


def test_the_letterbox_is_undone_and_the_forced_fixation_dropped(tmp_path):
    counts = Counter()
    # 640x480 at 2.1875 is 1400x1050, with bars of 140 pixels left and right.
    (viewing,) = load(sets.coco_search18(tmp_path, [sets.trial()]), "coco-search18", counts)
    expected = [[0, 0, 180], [(1539 - 140) / 2.1875, 1049 / 2.1875, 330]]
    np.testing.assert_allclose(viewing.fixations, expected)
    assert viewing.picture.size == (640, 480) and viewing.subject == "3" and viewing.question == "Find the cup."
    assert viewing.picture.degree == pytest.approx(31 / 2.1875)
    assert counts == {"forced": 1, "outside": 0}


@pytest.mark.parametrize(("bars", "size"), [((140, 0), (1400, 1050)), ((0, 75), (1680, 900)), ((0, 0), (1680, 1050))])
def test_padded_files_give_the_same_places_as_photographs(tmp_path, bars, size):
    sets.photograph(tmp_path / "images" / "cup" / "000000000001.jpg", (1680, 1050), bars)
    corner = [bars[0] + 10.0, bars[1] + 20.0]
    shown = sets.trial(X=[840.0, corner[0]], Y=[525.0, corner[1]], T=[1, 2])
    (tmp_path / "fixations.json").write_text(json.dumps([shown]))
    (viewing,) = load(tmp_path, "coco-search18")
    assert viewing.picture.size == size and viewing.picture.pixels().shape == (3, size[1], size[0])
    np.testing.assert_allclose(viewing.fixations[0, :2], [10, 20])
    np.testing.assert_allclose(undo_letterbox(np.array([corner]), size, (1680, 1050))[0][0], [10, 20])
    assert viewing.picture.pixels().min() > 30  # no bar is left


def test_the_letterbox_there_and_back():
    places = np.random.default_rng(0).uniform(0, 400, (50, 2))
    for size in ((640, 480), (480, 640), (640, 360), (427, 640)):
        scale = min(1680 / size[0], 1050 / size[1])
        shown = places * scale + (np.array([1680, 1050]) - np.array(size) * scale) / 2
        np.testing.assert_allclose(undo_letterbox(shown, size, (1680, 1050))[0], places, atol=1e-9)


def test_fixations_outside_wrong_responses_and_other_conditions_are_left_out_and_counted(tmp_path):
    outside = sets.trial(X=[840, 10, 840, 5000], Y=[525, 500, 500, 500], T=[1, 2, 3, 4])
    wrong, absent = sets.trial(correct=0, subject=5), sets.trial(condition="absent", subject=6)
    trials = [outside, wrong, absent, sets.trial(subject=4)]
    sets.coco_search18(tmp_path, trials)
    counts = Counter()
    found = list(load(tmp_path, "coco-search18", counts))
    assert [len(viewing.fixations) for viewing in found] == [1, 2]
    assert counts == {"forced": 2, "outside": 2, "wrong response": 1, "other condition": 1}
    assert len(list(load(tmp_path, "coco-search18", condition=""))) == 3
    assert len(list(load(tmp_path, "coco-search18", condition="absent"))) == 1


def test_official_folders_hold_each_trial_in_two_splits(tmp_path):
    """split1 and split2 part the same trials in two ways: nobody may be counted twice."""
    trials = [sets.trial(subject=1), sets.trial(subject=2), sets.trial(subject=3, correct=0)]
    sets.coco_search18(tmp_path, trials)
    (tmp_path / "coco_search18_fixations_TP_train_split2.json").write_text(json.dumps(trials[1:] + trials[:1]))
    other = [sets.trial(subject=1, task="fork"), sets.trial("2.jpg", subject=1)]  # another task, another image
    (tmp_path / "coco_search18_fixations_TP_validation_split2.json").write_text(json.dumps(other))
    sets.photograph(tmp_path / "images" / "2.jpg", (640, 480))
    counts = Counter()
    found = gather(load(tmp_path, "coco-search18", counts))
    assert [stimulus.subjects for stimulus in found] == [["1", "2"], ["1"], ["1"]]
    assert counts == {"forced": 4, "outside": 0, "wrong response": 1, "repeated": 3}


@pytest.mark.parametrize("correct", [0, -1, 2, "0", "1", float("nan"), None, [1]])
def test_only_a_response_of_one_is_correct(tmp_path, correct):
    sets.coco_search18(tmp_path, [sets.trial(correct=correct), sets.trial(subject=9)])
    counts = Counter()
    assert [viewing.subject for viewing in load(tmp_path, "coco-search18", counts)] == ["9"]
    assert counts["wrong response"] == 1


def test_a_condition_may_be_written_large(tmp_path):
    sets.coco_search18(tmp_path, [sets.trial(condition="Present"), sets.trial(condition="ABSENT", subject=9)])
    for condition, subject in (("present", "3"), ("Present", "3"), ("absent", "9")):
        assert [one.subject for one in load(tmp_path, "coco-search18", condition=condition)] == [subject]


def test_an_image_of_two_tasks_is_found_in_the_folder_of_its_task(tmp_path):
    sets.photograph(tmp_path / "images" / "cup" / "1.jpg", (640, 480))
    sets.photograph(tmp_path / "images" / "stop_sign" / "1.jpg", (480, 640))
    trials = [sets.trial("1.jpg", task=task, X=[840] * 3, Y=[525] * 3) for task in ("cup", "stop sign")]
    (tmp_path / "fixations.json").write_text(json.dumps(trials))
    found = gather(load(tmp_path, "coco-search18"))
    assert [stimulus.picture.size for stimulus in found] == [(640, 480), (480, 640)]
    assert {stimulus.picture.name for stimulus in found} == {"1.jpg"}  # one image for what is fitted on others


def test_wrong_files_of_coco_search18(tmp_path):
    refused(tmp_path / "nowhere", "coco-search18", "is no folder", "give")
    refused(tmp_path, "coco-search18", "holds no *fixations*.json", "unpack")
    file = tmp_path / "fixations.json"
    for text, word in (
        ("", "ends in the middle"),
        ("Hello", "is no JSON"),
        ('[{"name": 1,, "X": 2}]', "is no JSON"),
        (json.dumps([sets.trial()])[:-9], "ends in the middle"),
        ("[[1, 2]]", "is no trial"),
        (json.dumps([{"name": "a.jpg"}]), "has no subject, task, X, Y, T, correct"),
        (json.dumps([sets.trial()]), "holds no image 000000000001.jpg"),
    ):
        file.write_text(text)
        refused(tmp_path, "coco-search18", word)
    file.write_bytes(b"\xff\xfe\x00[")
    refused(tmp_path, "coco-search18", "cannot be read")
    sets.photograph(tmp_path / "000000000001.jpg", (640, 480))
    file.write_text(json.dumps([sets.trial(X=[1, 2])]))
    refused(tmp_path, "coco-search18", "trial 0", "X, Y and T")
    file.write_text(json.dumps([sets.trial(X=[10**400, 2, 3])]))
    refused(tmp_path, "coco-search18", "trial 0", "X, Y and T")
    file.write_text(json.dumps([sets.trial()]))
    (tmp_path / "000000000001.jpg").write_bytes(b"no picture")
    refused(tmp_path, "coco-search18", "000000000001.jpg cannot be read")


# ------------------------------------------------------------------------------------------------------ MIT1003


def trace(*stays: tuple[float, float, int], noise: float = 0.5) -> np.ndarray:
    """Stays of (x, y, samples) joined by saccades of 8 samples."""
    dice = np.random.default_rng(1)
    parts = []
    for (x, y, samples), following in zip(stays, [*stays[1:], None], strict=True):
        parts.append(np.tile([x, y], (samples, 1)).astype(float))
        if following is not None:
            parts.append(np.linspace([x, y], following[:2], 10)[1:-1])
    path = np.concatenate(parts)
    return path + dice.normal(0, noise, path.shape)


def test_fixations_are_found_in_a_raw_trace():
    found = fixations_of(trace((512, 384, 60), (200, 300, 72), (800, 600, 96)))
    np.testing.assert_allclose(found[:, :2], [[512, 384], [200, 300], [800, 600]], atol=2)
    np.testing.assert_allclose(found[:, 2], [250, 300, 400], atol=25)
    blink = trace((512, 384, 60), (200, 300, 120))
    blink[120:130] = np.nan  # parts one stay in two
    np.testing.assert_allclose(fixations_of(blink)[:, 0], [512, 200, 200], atol=2)
    assert fixations_of(np.zeros((3, 2))).shape == (0, 3)
    assert fixations_of(np.full((100, 2), np.nan)).shape == (0, 3)


def test_mit1003(tmp_path):
    pytest.importorskip("scipy")
    long = "i" + "x" * 70  # the variable's name is cut
    stays = trace((512, 384, 60), (200, 300, 72), (1200, 300, 72))
    sets.mit1003(tmp_path, {("ajs", long): stays, ("CNG", long): stays, ("ajs", "other"): stays})
    counts = Counter()
    found = gather(load(tmp_path, "mit1003", counts))
    assert [stimulus.subjects for stimulus in found] == [["CNG", "ajs"], ["ajs"]]
    np.testing.assert_allclose(found[0].paths[0][:, :2], [[200, 300]], atol=2)  # no centre, nothing outside
    assert counts == {"forced": 3, "outside": 3}
    assert found[0].question is None and found[0].picture.degree == 35
    assert len(gather(load(tmp_path, "mit1003", limit=1))) == 1


def test_wrong_files_of_mit1003(tmp_path, monkeypatch):
    io = pytest.importorskip("scipy.io")
    refused(tmp_path, "mit1003", "holds no DATA/PERSON/*.mat", "unpack DATA.zip")
    sets.mit1003(tmp_path, {("ajs", "a"): np.zeros((100, 2))})
    file = tmp_path / "DATA" / "ajs" / "a.mat"
    whole = file.read_bytes()
    for wrong in (b"", b"nothing of the kind", whole[:200], whole[: len(whole) // 2]):
        file.write_bytes(wrong)
        refused(tmp_path, "mit1003", "a.mat", "download it again")
    for wrong in ({"a": {"DATA": {"gaze": 1}}}, {"a": 5.0}, {"a": {"DATA": {"eyeData": np.zeros(4)}}}):
        io.savemat(file, wrong)
        refused(tmp_path, "mit1003", "no DATA.eyeData")
    (tmp_path / "ALLSTIMULI" / "a.jpeg").unlink()
    refused(tmp_path, "mit1003", "holds no image a.jpeg", "ALLSTIMULI.zip")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    sets.photograph(tmp_path / "ALLSTIMULI" / "a.jpeg", (640, 480))
    refused(tmp_path, "mit1003", "pip install 'homunculus[gaze]'")


# ------------------------------------------------------------------------------------------------------ SALICON


def test_salicon_places_are_rows_and_columns_from_one(tmp_path):
    sets.salicon_json(tmp_path, {"a.jpg": [[[1, 1], [480, 640], [481, 640]], []], "b.jpg": [[[10, 20]]]})
    counts = Counter()
    first, second = gather(load(tmp_path, "salicon", counts))
    assert first.picture.size == (640, 480) and counts == {"outside": 1}
    np.testing.assert_allclose(first.fixations[:, :2], [[0.5, 0.5], [639.5, 479.5]])
    np.testing.assert_allclose(second.fixations[:, :2], [[19.5, 9.5]])
    assert np.isnan(first.fixations[:, 2]).all()
    sets.salicon_json(tmp_path, {"a.jpg": [[[1, 1]], None]})  # nothing at all is an empty list
    assert [len(one.paths) for one in gather(load(tmp_path, "salicon"))] == [1]


def test_early_files_of_salicon_are_known_by_places_below_the_image(tmp_path):
    sets.salicon_json(tmp_path, {"a.jpg": [[[600.0, 100.0], [20.0, 30.0]]]})
    (only,) = gather(load(tmp_path, "salicon"))
    np.testing.assert_allclose(only.fixations[:, :2], [[599.5, 99.5], [19.5, 29.5]])
    sets.salicon_json(tmp_path, {"a.jpg": [[[100.0, 600.0], [20.0, 30.0]]]}, (480, 640))  # upright: y is the longer
    (only,) = gather(load(tmp_path, "salicon"))
    np.testing.assert_allclose(only.fixations[:, :2], [[99.5, 599.5], [19.5, 29.5]])


def test_one_bad_place_does_not_turn_a_file_of_salicon_over(tmp_path):
    good = [[100, 600 + i] for i in range(CLEAR)]  # (row, column): no y is that large
    for bad in ([490, 100], [9999, 1], [1, 9999], [-5, 600]):
        sets.salicon_json(tmp_path, {"a.jpg": [[*good, bad]], "b.jpg": [[[10, 20]]]})
        first, second = gather(load(tmp_path, "salicon"))
        np.testing.assert_allclose(first.fixations[:, :2], [[599.5 + i, 99.5] for i in range(CLEAR)])
        np.testing.assert_allclose(second.fixations[:, :2], [[19.5, 9.5]])
    sets.salicon_json(tmp_path, {"a.jpg": [[*good, *([x, y] for y, x in good)]]})
    refused(tmp_path, "salicon", "fixations_val2014.json", "(row, column)", "(x, y)", "give")


def test_salicon_in_matlab_files(tmp_path):
    pytest.importorskip("scipy")
    for people in ([[[1, 1], [640, 480]], [[320, 240]]], [[[7, 9]]]):  # several people, and one
        sets.salicon_mat(tmp_path, "COCO_val2014_000000000042", people)
        (only,) = gather(load(tmp_path, "salicon"))
        assert [path[:, :2].tolist() for path in only.paths] == [[[x - 0.5, y - 0.5] for x, y in one] for one in people]


NO_PLACES = ([[1, 1, 1]], ["a", "b"], "text", "5", 5, [5], [[1, None], None], [[10**400, 1]], {"x": 1}, [[[1, 1]]])
NO_IMAGES = ({"width": "640"}, {"height": None}, {"height": 0}, {"id": [1]}, {"id": None}, {"file_name": ["a.jpg"]})


def test_wrong_files_of_salicon(tmp_path):
    io = pytest.importorskip("scipy.io")
    refused(tmp_path, "salicon", "neither", "unpack")
    sets.salicon_json(tmp_path, {"a.jpg": [[[1, 1]]]})
    file = tmp_path / "fixations_val2014.json"
    whole = json.loads(file.read_text())
    for change, word in (
        ({"images": []}, "no images"),
        ({"annotations": []}, "has no annotations"),
        ({"images": [{"id": 1}]}, "lacks id, file_name, width or height"),
        ({"annotations": [{"image_id": 100}]}, "no fixations"),
        ({"annotations": [{"image_id": 7, "fixations": [[1, 1]]}]}, "does not list"),
        ({"annotations": [{"image_id": [100], "fixations": [[1, 1]]}]}, "does not list"),
        *(({"annotations": [{"image_id": 100, "fixations": wrong}]}, "no pairs of numbers") for wrong in NO_PLACES),
        *(({"annotations": [wrong]}, "no image_id, fixations") for wrong in (5, None, "text", [])),
        *(({"images": [whole["images"][0] | wrong]}, "lacks id, file_name") for wrong in NO_IMAGES),
        *(({"images": [wrong]}, "lacks id, file_name") for wrong in (5, None, "text", [])),
    ):
        file.write_text(json.dumps(whole | change))
        refused(tmp_path, "salicon", "fixations_val2014.json", word)
    file.write_text(json.dumps(whole)[:-5])
    refused(tmp_path, "salicon", "ends in the middle")
    (tmp_path / "images" / "a.jpg").unlink()
    file.write_text(json.dumps(whole))
    refused(tmp_path, "salicon", "holds no image a.jpg")
    file.unlink()
    io.savemat(tmp_path / "b.mat", {"locations": 1})
    refused(tmp_path, "salicon", "b.mat has no variable gaze")
    for wrong in (5.0, "abc", np.ones((2, 3)), {"location": 1}, {"fixations": "text"}, {"fixations": 7.0}):
        io.savemat(tmp_path / "b.mat", {"gaze": wrong})
        refused(tmp_path, "salicon", "b.mat", "fixations")
