"""Scene text: boxes against the pixels that ink changes, answers against what is written, and nothing to guess."""

import hashlib
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, __version__, features

from homunculus.data import REGIONS, SPLITS, make
from homunculus.data.dice import Dice
from homunculus.data.fonts import FACES, faces
from homunculus.data.scene_text import CORNERS, vocabulary
from homunculus.data.scene_text.held_out import HELD_OUT_SURFACES
from homunculus.data.scene_text.lettering import Hand, bent, hand, written
from homunculus.data.scene_text.panel import Panel
from homunculus.data.scene_text.surfaces import COLOURS, SURFACES
from homunculus.data.scene_text.walls import HELD_OUT_WALLS, WALLS
from homunculus.data.scene_text.warp import onto, projection, through, tilted
from homunculus.errors import DataError

SIZES = [(128, 128), (256, 256), (512, 160), (150, 400)]


@pytest.fixture(scope="module")
def many():
    """Three hundred small records of train and some of `test-ood`."""
    train = [make("scene-text", "train", index, size=(144, 128), clean=True) for index in range(300)]
    return train + [make("scene-text", "test-ood", index, size=(144, 128), clean=True) for index in range(40)]


@pytest.mark.parametrize("size", SIZES)
def test_all_regions_asked_and_no_question_twice(size):
    for index in range(12):
        record = make("scene-text", SPLITS[index % 4], index, size=size)
        assert record.image.shape == (size[1], size[0], 3) and record.image.dtype == np.uint8
        assert {question.region for question in record.questions} == set(REGIONS)
        assert len({question.text for question in record.questions}) == len(record.questions)
        for question in record.questions:
            [(x0, y0, x1, y1)] = question.boxes
            assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1]


def test_two_to_eight_texts_and_every_answer_is_one_of_them(many):
    for record in many:
        there = {(text["text"], tuple(text["box"])) for text in record.meta["texts"]}
        assert 2 <= len(there) <= 8
        for question in record.questions:
            assert (question.answer, question.boxes[0]) in there
            assert question.answers in ((question.answer,), (question.answer, question.answer.lower()))


def test_boxes_hold_the_ink_and_no_more(monkeypatch):
    """The same picture without ink differs from the picture exactly inside the boxes."""
    for index in range(16):
        split = "test-ood" if index % 2 else "train"
        inked = make("scene-text", split, index, size=(640, 512), clean=True)
        with monkeypatch.context() as patch:
            patch.setattr(Panel, "print", lambda *_: None)
            bare = make("scene-text", split, index, size=(640, 512), clean=True)
        changed = (inked.image != bare.image).any(2)
        near = np.zeros_like(changed)
        for text in inked.meta["texts"]:
            x0, y0, x1, y1 = text["box"]
            near[max(0, y0 - 2) : y1 + 2, max(0, x0 - 2) : x1 + 2] = True
            inside = changed[y0:y1, x0:x1]
            for edge in (inside[:2], inside[-2:], inside[:, :2], inside[:, -2:]):
                assert edge.any(), f"{inked.key}: the box of {text['text']!r} is loose"
        assert not (changed & ~near).any(), f"{inked.key}: ink outside the boxes"


def test_periphery_is_near_a_border_and_letters_shrink_outwards():
    heights = defaultdict(list)
    for index in range(24):
        record = make("scene-text", "train", index, size=(512, 512), clean=True)
        for question in record.questions:
            x0, y0, x1, y1 = question.boxes[0]
            if question.region == "periphery":
                assert min(y1, 512 - y0) < 0.15 * 512
            heights[question.region].append(min(x1 - x0, y1 - y0))
    assert np.median(heights["target"]) > 1.5 * np.median(heights["periphery"])
    assert min(map(min, heights.values())) >= 5  # of 512: no text is smaller than ten pixels at 1024


def test_a_corner_is_asked_about_only_when_one_text_reaches_into_it(many):
    asked = 0
    for record in many:
        width, height = record.image_size
        for question in record.questions:
            if question.kind == "place":
                asked += 1
                across, down = CORNERS[re.fullmatch(r"What .+ at the (\w+ \w+)\?", question.text)[1]]
                mask = np.zeros((height, width), int)
                for text in record.meta["texts"]:
                    x0, y0, x1, y1 = text["box"]
                    mask[y0:y1, x0:x1] += 1
                thirds = [
                    slice(int(side * k / 3 + 0.999), int(side * (k + 1) / 3))
                    for k, side in ((down, height), (across, width))
                ]
                x0, y0, x1, y1 = question.boxes[0]
                own = np.zeros_like(mask)
                own[y0:y1, x0:x1] = 1
                assert (mask[tuple(thirds)] == own[tuple(thirds)]).all() and own[tuple(thirds)].any()
    assert asked > 100


def test_nothing_can_be_guessed(many):
    answers, all_answers = defaultdict(Counter), Counter()
    for record in many[:300]:
        for question in record.questions:
            asked = re.sub(r"(red|green|blue|yellow|white|black|orange|brown) ", "", question.text)
            answers[asked][question.answer.lower()] += 1
            all_answers[question.answer.lower()] += 1
    assert all_answers.most_common(1)[0][1] < 0.02 * all_answers.total()
    best = sum(found.most_common(1)[0][1] for found in answers.values() if found.total() >= 40)
    asked = sum(found.total() for found in answers.values() if found.total() >= 40)
    assert asked > 1000 and best < 0.05 * asked


def test_test_ood_shares_no_word_name_form_surface_wall_or_face(many):
    assert not set(vocabulary.WORDS) & set(vocabulary.HELD_OUT_WORDS)
    assert len(set(vocabulary.WORDS)) == len(vocabulary.WORDS) >= 150 and len(vocabulary.HELD_OUT_WORDS) >= 60
    brands = {s: {vocabulary.brand(Dice("brand", s, k), s) for k in range(1500)} for s in ("train", "test-ood")}
    assert not brands["train"] & brands["test-ood"] and len(brands["train"]) > 1200
    for say in (
        vocabulary.plate,
        vocabulary.phone,
        vocabulary.code,
        vocabulary.price,
        vocabulary.hours,
        vocabulary.street,
    ):
        forms = {}
        for split in ("train", "test-ood"):
            said = [say(Dice("form", split, k), split) for k in range(60)]
            forms[split] = (
                set(said) if say is vocabulary.street else {re.sub("[A-Z]", "A", re.sub("[0-9]", "0", s)) for s in said}
            )
        assert not forms["train"] & forms["test-ood"], say.__name__
    seen = [
        ({r.meta["wall"] for r in some}, {t["surface"] for r in some for t in r.meta["texts"]})
        for some in (many[:300], many[300:])
    ]
    assert seen == [(set(WALLS), set(SURFACES)), (set(HELD_OUT_WALLS), set(HELD_OUT_SURFACES))]
    assert not set(WALLS) & set(HELD_OUT_WALLS) and not set(SURFACES) & set(HELD_OUT_SURFACES)
    assert all(hand(Dice("hand", k), "test-ood").face.held_out for k in range(20)) and not set(faces("train")) & set(
        faces("test-ood")
    )


def test_plates_and_codes_have_no_letter_that_looks_like_a_digit():
    for k in range(200):
        said = vocabulary.plate(Dice("plate", k), "train") + vocabulary.code(Dice("code", k), "test-ood")
        assert not set(said) & set("IOQ")


def test_the_same_arguments_give_the_same_record():
    for clean in (True, False):
        one, two = (make("scene-text", "val", 5, size=(160, 128), clean=clean) for _ in range(2))
        assert (one.image == two.image).all() and one.questions == two.questions
    clean, worn = (make("scene-text", "val", 5, size=(160, 128), clean=clean) for clean in (True, False))
    assert clean.questions == worn.questions and (clean.image != worn.image).any()


def test_every_surface_can_be_drawn_small_and_large():
    for split, surfaces in (("train", SURFACES), ("test-ood", HELD_OUT_SURFACES)):
        for name, surface in surfaces.items():
            for u in (10, 90):
                panel = surface.draw(Dice(name, u), split, u, "green")
                assert panel.paint.size == panel.outline.size and panel.outline.getbbox() is not None
                for ink in panel.inks:
                    assert ink.mask.getbbox() is not None
                    assert ink.at[0] >= 0 and ink.at[0] + ink.mask.width <= panel.size[0] + 1, (
                        f"{name} at {u}: {ink.answer}"
                    )
                    assert ink.at[1] >= 0 and ink.at[1] + ink.mask.height <= panel.size[1] + 1, (
                        f"{name} at {u}: {ink.answer}"
                    )


@pytest.mark.parametrize("name", ["sign", "street sign", "banner"])
@pytest.mark.parametrize("colour", sorted(COLOURS))
def test_signs_have_the_colour_that_tells_them_apart(name, colour):
    split = "test-ood" if name == "banner" else "train"
    panel = (SURFACES | HELD_OUT_SURFACES)[name].draw(Dice(name, colour), split, 30, colour)
    body = np.median(np.asarray(panel.paint).reshape(-1, 3), 0)
    assert min(COLOURS, key=lambda other: np.abs(np.array(COLOURS[other]) - body).sum()) == colour


@given(st.integers(0, 10_000), st.integers(20, 400), st.integers(20, 400))
def test_the_projection_takes_corners_to_corners_and_back(seed, width, height):
    into = (10.0, 20.0, 300.0, 260.0)
    quad = tilted(Dice("quad", seed), (width, height), into, turn=25, depth=0.2)
    a, b, c, d, e, f, g, h = projection((width, height), quad)
    for (x, y), (u, v) in zip(quad, ((0, 0), (width, 0), (width, height), (0, height)), strict=True):
        assert into[0] <= x <= into[2] and into[1] <= y <= into[3]
        w = g * x + h * y + 1
        assert abs((a * x + b * y + c) / w - u) < 1e-6 and abs((d * x + e * y + f) / w - v) < 1e-6
        assert np.allclose(onto((u, v), (width, height), quad), (x, y), atol=1e-6)


def test_a_part_seen_through_is_that_part_of_the_whole():
    flat = written("Window", Hand(FACES[0], True), 60)
    quad = tilted(Dice("part"), flat.size, (0.0, 0.0, 260.0, 90.0), turn=10, depth=0.2)
    way = projection(flat.size, quad)
    whole = np.asarray(through(flat, way, (0, 0, 260, 90))).astype(int)
    part = np.asarray(through(flat.crop((40, 0, 120, flat.height)), way, (0, 0, 260, 90), (40, 0))).astype(int)
    middle = [onto((x, flat.height / 2), flat.size, quad)[0] for x in (65, 95)]
    columns = slice(int(middle[0]), int(middle[1]))
    assert np.abs(whole[:, columns] - part[:, columns]).max() <= 1


@pytest.mark.parametrize("sag", [30, -30])
def test_bent_ink_hangs_along_a_parabola(sag):
    bar = bent(Image.new("L", (240, 20), 255), sag)
    tops = (np.asarray(bar) >= 128).argmax(0)
    x = np.arange(240) + 0.5
    depth = abs(sag) * ((2 * x - 240) / 240) ** 2
    assert np.abs(tops - (depth if sag > 0 else abs(sag) - depth)).max() <= 1.5


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_capitals_are_as_tall_as_asked(face):
    for height in (12, 40, 90):
        assert abs(written("HE", Hand(face, False), height).height - height) <= max(2, 0.06 * height)


def test_what_a_face_cannot_write_is_refused():
    with pytest.raises(DataError, match="cannot write"):
        written("<price>", Hand(next(face for face in FACES if "<" in face.misplaced), False), 20)


EQUAL = __version__ == "12.3.0" and features.version("freetype2") == "2.14.3"


@pytest.mark.skipif(not EQUAL, reason="pixels are promised for equal Pillow and FreeType only: 12.3.0 and 2.14.3")
def test_checksum():
    record = make("scene-text", "train", 0, size=(256, 192), clean=True)
    assert hashlib.sha256(record.image.tobytes()).hexdigest()[:16] == "0593ac0f20347fa7"
