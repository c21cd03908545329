"""Records and what makes them: chance that is the same everywhere, relevance from boxes, faces, streams."""

import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFont

from homunculus import foveate
from homunculus.data import FAMILIES, REGIONS, SPLITS, Question, Record, fonts, make, relevance_map, stream
from homunculus.data.dice import Dice
from homunculus.data.fonts import FACES, faces, load, load_file, missing
from homunculus.data.stream import check
from homunculus.errors import DataError

# Dice. The numbers are pinned: a change to any of them would change every record ever made.


def test_draws_are_pinned():
    dice = Dice("pinned", 7)
    assert [dice.random() for _ in range(3)] == [0.5672806352564751, 0.7831214525946928, 0.5849524566339733]
    assert [dice.integer(1, 6) for _ in range(10)] == [5, 4, 4, 5, 5, 3, 3, 3, 1, 3]
    assert dice.shuffled("abcdefgh") == list("cgaehdbf")
    assert dice.letters("XYZ", 12) == "YYYXZXXZZYZX"
    assert [dice.weighted("ab", (3, 1)) for _ in range(12)] == list("ababbaaaaaba")
    assert [round(float(value), 6) for value in dice.normal(3)] == [-0.023921, 0.995113, -0.105252]
    assert dice.octets(9).tolist() == [164, 174, 164, 162, 93, 56, 198, 61, 250]
    assert dice.array(2).tolist() == [0.7223899804853007, 0.6643928955613072]
    assert dice.fork("a", 1).random() == 0.34441866853731073


def test_forks_name_streams_and_leave_each_other_alone():
    parent = Dice("documents", "train", 3)
    before = parent.fork("paper").array(4).tolist()
    parent.array(1000)
    parent.fork("ink").array(1000)
    assert parent.fork("paper").array(4).tolist() == before == Dice("documents", "train", 3, "paper").array(4).tolist()


def test_drawing_one_by_one_is_drawing_at_once():
    one, all_ = Dice("batch"), Dice("batch").array(1100).tolist()
    assert [one.random() for _ in range(1100)] == all_


def test_names_that_look_alike_are_different():
    names = [("a", 1), ("a", "1"), ("a1",), (1, "a"), ("a", 1, ""), ("", "a", 1)]
    assert len({Dice(*name).random() for name in names}) == len(names)


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return abs(float(np.corrcoef(one, other)[0, 1]))


def test_neighbouring_names_are_independent():
    count = 20_000  # the correlation of independent draws is within 4 / sqrt(count) but for one time in 16 000
    streams = [Dice("scenes", split, index).array(count) for split in SPLITS for index in (0, 1)]
    streams += [Dice("scenes", "train", 0).fork(name).array(count) for name in ("a", "b")]
    for k, one in enumerate(streams):
        assert all(correlation(one, other) < 4 / count**0.5 for other in streams[k + 1 :])
    assert all(correlation(one[:-1], one[1:]) < 4 / count**0.5 for one in streams)


def test_draws_are_uniform():
    dice, count = Dice("uniform"), 12_000
    for low, high in ((1, 6), (0, 9), (-3, 3)):
        found = np.bincount([dice.integer(low, high) - low for _ in range(count)], minlength=high - low + 1)
        expected = count / (high - low + 1)
        assert len(found) == high - low + 1 and ((found - expected) ** 2 / expected).sum() < 30  # chi-square
    octets = np.bincount(dice.octets(256_000), minlength=256)
    assert ((octets - 1000) ** 2 / 1000).sum() < 256 + 5 * 512**0.5
    orders = {tuple(dice.shuffled("abc")) for _ in range(200)}
    assert len(orders) == 6
    assert 0.23 < np.mean([dice.weighted((0, 1), (3, 1)) for _ in range(5000)]) < 0.27
    assert 0.23 < np.mean([dice.chance(0.25) for _ in range(5000)]) < 0.27
    places = [dice.uniform(2, 4) for _ in range(5000)]
    assert 2 <= min(places) < 2.01 and 3.99 < max(places) < 4


def test_normal_is_nearly_normal():
    values = np.sort(Dice("normal").normal(200_000))
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01
    shares = [(values < bound).mean() for bound in (-2, -1, 0, 1, 2)]
    assert np.allclose(shares, [0.0228, 0.1587, 0.5, 0.8413, 0.9772], atol=0.006)


@given(st.lists(st.integers(), max_size=20), st.integers(0, 1000))
def test_shuffling_keeps_everything_and_sampling_takes_from_it(things, seed):
    dice = Dice("shuffle", seed)
    assert sorted(dice.shuffled(things)) == sorted(things)
    places = dice.sample(range(len(things)), 5)
    assert len(places) == len(set(places)) == min(5, len(things))


# Records.


def test_a_question_without_text_answer_or_with_an_empty_box_is_refused():
    for text, answers in (("", ("a",)), ("Who?", ())):
        with pytest.raises(DataError, match="text and at least one answer"):
            Question(text, answers)
    with pytest.raises(DataError, match="empty"):
        Question("Who?", ("me",), ((5, 5, 5, 9),))


def test_a_record_lists_its_questions_first_one_first():
    first, second = Question("Who?", ("me", "I")), Question("Where?", ("here",))
    record = Record("a/b/0", np.zeros((3, 5, 3), np.uint8), first, (second,))
    assert record.questions == (first, second) and record.image_size == (5, 3) and first.answer == "me"


def counted(boxes, image_size, grid):
    """The share of each leaf's pixels that lie in some box, counted pixel by pixel: whole pixels, whole leaves."""
    width, height = image_size
    inside = np.zeros((height, width))
    for x0, y0, x1, y1 in boxes:
        inside[y0:y1, x0:x1] = 1
    return inside.reshape(grid[1], height // grid[1], grid[0], width // grid[0]).mean((1, 3))


@st.composite
def boxed(draw, most):
    """Boxes of whole pixels on a grid of whole leaves."""
    gw, gh, leaf = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 8))
    width, height = gw * leaf, gh * leaf * draw(st.integers(1, 2))
    boxes = []
    for _ in range(draw(st.integers(1, most))):
        x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        boxes.append((x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))))
    return boxes, (width, height), (gw, gh)


@given(boxed(most=4))
def test_relevance_is_the_share_of_pixels_that_boxes_cover_together(case):
    assert np.allclose(relevance_map(*case), counted(*case), atol=1e-12)


def test_relevance_of_the_whole_image_is_one_and_of_no_box_an_error():
    assert torch.allclose(relevance_map([(0, 0, 97, 31)], (97, 31), (7, 5)), torch.ones(5, 7, dtype=torch.float64))
    with pytest.raises(DataError, match="not known"):
        relevance_map([], (10, 10), (2, 2))


# Faces.

ASCII = "".join(map(chr, range(33, 127)))


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_a_face_has_the_letters_it_claims(face):
    lacking = missing(face, ASCII)
    assert set(lacking) == set(face.misplaced)
    for cut in ("regular", "bold", "italic"):
        font = load(face, 40, cut)
        shapes = {letter: bytes(font.getmask(letter)) for letter in ASCII if letter not in face.misplaced}
        assert all(any(shape) for shape in shapes.values())
        assert len({shapes[letter] for letter in "ABCDEFGHKLMNPRSTUVWXYZabdefghknpqrt23456789"}) == 43
        assert bytes(font.getmask("\uffff")) not in shapes.values()


def test_misplaced_letters_are_refused_and_foreign_ones_too():
    roman = next(face for face in FACES if face.name == "Computer Modern Roman")
    assert missing(roman, "a<b{c}$") == "$<{}" and missing(roman, "é") == "é"
    assert missing(FACES[0], "plain words 123") == "" and missing(FACES[1], "中") == "中"


def test_faces_are_set_in_basic_layout():
    for font in (load(FACES[0], 20), load(FACES[1], 20), load_file("STIXGeneral", 20)):
        assert font.layout_engine == ImageFont.Layout.BASIC and font.size == 20


def test_held_out_faces_are_for_test_ood_only():
    held_out = {face.name for face in faces("test-ood")}
    for split in SPLITS[:-1]:
        assert not held_out & {face.name for face in faces(split)}
    assert all({"sans", "serif", "mono"} <= {face.style for face in faces(split)} for split in SPLITS)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    fonts._folder.cache_clear()
    monkeypatch.setattr(fonts, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'homunculus\[data\]'") as caught:
        fonts._folder()
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert fonts._folder().is_dir()


def test_fonts_need_no_import_of_matplotlib():
    code = "import sys; from homunculus.data.fonts import *; load(FACES[0], 12); print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Streams.


def same(one: Record, other: Record) -> bool:
    return one.key == other.key and one.questions == other.questions and bool((one.image == other.image).all())


@pytest.mark.parametrize("family", ["scenes", "scene-text"])
def test_a_stream_is_its_records_made_one_by_one_in_any_order(family):
    size = (128, 128)
    streamed = list(stream(family, "val", start=1, stop=8, step=3, size=size))
    assert [record.key for record in streamed] == [f"{family}/val/{index}" for index in (1, 4, 7)]
    for index, record in zip((7, 4, 1), streamed[::-1], strict=True):
        assert same(record, make(family, "val", index, size=size))


def test_workers_share_a_stream_without_overlap():
    keys = [record.key for k in range(3) for record in islice(stream("scenes", start=k, step=3, size=(128, 128)), 2)]
    assert sorted(keys) == [f"scenes/train/{index}" for index in range(6)]


def test_splits_never_share_a_picture():
    pictures = {make("scenes", split, index, size=(128, 128)).image.tobytes() for split in SPLITS for index in range(3)}
    assert len(pictures) == 12


def test_each_region_is_asked_about_once_before_any_is_again():
    firsts = set()
    for record in stream("scenes", stop=12, size=(128, 128)):
        regions = [question.region for question in record.questions]
        assert sorted(regions[:3]) == sorted(REGIONS)
        assert record.question is record.questions[0] and len(set(record.questions)) == len(record.questions)
        firsts.add(regions[0])
    assert firsts == set(REGIONS)


def test_what_does_not_exist_is_named():
    with pytest.raises(DataError, match="no family 'cats': choose one of documents, scenes, scene-text"):
        make("cats", "train", 0)
    with pytest.raises(DataError, match="no split 'dev'"):
        check("scenes", "dev")
    assert set(FAMILIES) == {"documents", "scenes", "scene-text"}


@pytest.mark.parametrize("family", FAMILIES)
def test_images_can_be_looked_at_as_they_are(family):
    """Arrays of their own, which torch takes without a warning."""
    record = make(family, "val", 1, size=(512, 512))
    assert record.image.flags.writeable
    assert foveate(record.image, record.question.text, budget=64).patches.shape == (1, 64, 3, 16, 16)
