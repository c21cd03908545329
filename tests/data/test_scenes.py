"""Scenes: every answer against a second reading of the question, every box against the pixels, and even answers."""

import hashlib
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from PIL import Image, __version__

from homunculus.data import REGIONS, SPLITS, make
from homunculus.data.dice import Dice
from homunculus.data.scenes import laid
from homunculus.data.scenes.camera import light, photographed, softened
from homunculus.data.scenes.ground import GROUNDS, HELD_OUT_GROUNDS, ground, littered
from homunculus.data.scenes.objects import COLOURS, TEXTURES, Look, _filled, render, textures
from homunculus.data.scenes.shapes import FIGURES, HELD_OUT_SHAPES, SHAPES

SIZES = [(128, 128), (256, 256), (512, 160), (150, 400)]
COUNTED = {"leaves": "leaf", "fish": "fish", "crosses": "cross"}


@pytest.fixture(scope="module")
def many():
    """Three hundred records of train and a few of each other split."""
    train = [make("scenes", "train", index, size=(144, 128), clean=True) for index in range(300)]
    return train + [
        make("scenes", split, index, size=(144, 128), clean=True) for split in SPLITS[1:] for index in range(12)
    ]


# The second reading: what a question means, from its words and the list of things alone.


def extent(thing):
    x0, y0, x1, y1 = thing["box"]
    return max(x1 - x0, y1 - y0)


def meant(phrase, things):
    """The things a phrase such as "small red striped fish" may mean."""
    *words, noun = phrase.split()
    size = words.pop(0) if words and words[0] in ("small", "large") else ""
    found = [t for t in things if noun in (t["shape"], "object")]
    for word in words:
        assert word in COLOURS or word in TEXTURES, phrase
        found = [t for t in found if word in (t["colour"], t["texture"])]
    if size:
        found.sort(key=extent, reverse=size == "large")
        small, large = sorted(map(extent, found[:2]))
        assert large >= 1.6 * small, f"{phrase}: sizes {small} and {large} are too close"
        found = found[:1]
    return found


def the(phrase, things):
    found = meant(phrase, things)
    assert len(found) == 1, f"'{phrase}' means {len(found)} things"
    return found[0]


SIGNS = {"left": (0, -1), "above": (1, -1), "right": (0, 1), "below": (1, 1)}


def beyond(one, other, way):
    """How far `one` lies to the left of (above, ...) `other`; negative where it does not lie clear of it."""
    axis, sign = SIGNS[way]
    return one["box"][axis] - other["box"][axis + 2] if sign > 0 else other["box"][axis] - one["box"][axis + 2]


def beside(anchor, way, things):
    """The nearest thing on that side among those that share a row (or column) of pixels with the anchor."""
    axis = 1 - SIGNS[way][0]
    row = set(range(anchor["box"][axis], anchor["box"][axis + 2]))
    level = [t for t in things if row & set(range(t["box"][axis], t["box"][axis + 2])) and beyond(t, anchor, way) >= 0]
    level.sort(key=lambda t: beyond(t, anchor, way))
    assert len(level) < 2 or beyond(level[0], anchor, way) < beyond(level[1], anchor, way)
    return level[0]


EDGES = {"leftmost": (0, 1), "topmost": (1, 1), "rightmost": (2, -1), "bottommost": (3, -1)}


def most(word, things):
    if word in ("smallest", "largest"):
        ranked = sorted(things, key=extent, reverse=word == "largest")
        assert extent(ranked[0]) != extent(ranked[1])
        return ranked[0]
    edge, sign = EDGES[word]
    ranked = sorted(things, key=lambda t: sign * t["box"][edge])
    assert ranked[0]["box"][edge] != ranked[1]["box"][edge]
    return ranked[0]


def read(text, things):
    """The answer to a question and the things it is seen on."""
    if found := re.fullmatch(r"What (colour|shape) is the (\w+most|smallest|largest) object\?", text):
        thing = most(found[2], things)
        return thing[found[1]], [thing]
    if found := re.fullmatch(r"What (colour|shape) is the (.+)\?", text):
        thing = the(found[2], things)
        return thing[found[1]], [thing]
    if found := re.fullmatch(r"What pattern does the (.+) have\?", text):
        thing = the(found[1], things)
        return thing["texture"], [thing]
    if found := re.fullmatch(r"Is there an? (\w+ \w+)\?", text):
        seen = meant(found[1], things)
        return "yes" if seen else "no", seen
    if found := re.fullmatch(r"How many (\w+) (\w+) are there\?", text):
        shape = COUNTED.get(found[2], found[2].removesuffix("s"))
        seen = meant(f"{found[1]} {shape}", things)
        return str(len(seen)), seen
    if found := re.fullmatch(r"What is directly (?:to the )?(left|right|above|below)(?: of)? the (.+)\?", text):
        thing = beside(the(found[2], things), found[1], things)
        return thing["shape"], [thing]
    found = re.fullmatch(r"Is the (.+?) (?:to the )?(left|right|above|below)(?: of)? the (.+)\?", text)
    assert found, text
    one, other = the(found[1], things), the(found[3], things)
    ahead, back = beyond(one, other, found[2]) >= 0, beyond(other, one, found[2]) >= 0
    assert ahead != back, f"neither or both: {text}"
    return "yes" if ahead else "no", [one, other]


def test_every_answer_is_true_and_seen_in_its_boxes(many):
    kinds = Counter()
    for record in many:
        things = record.meta["things"]
        for question in record.questions:
            answer, seen = read(question.text, things)
            assert question.answer == answer, f"{record.key}: {question.text}"
            boxes = [tuple(t["box"]) for t in seen] or [(0, 0, *record.image_size)]
            assert sorted(question.boxes) == sorted(boxes), f"{record.key}: {question.text}"
            assert question.region == (seen[0]["region"] if len(seen) == 1 else "target")
            kinds[question.kind] += 1
    assert set(kinds) == {"colour", "texture", "shape", "existence", "count", "relation", "side", "extreme"}


@pytest.mark.parametrize("size", SIZES)
def test_all_regions_asked_and_no_question_twice(size):
    for index in range(12):
        record = make("scenes", SPLITS[index % 4], index, size=size)
        assert record.image.shape == (size[1], size[0], 3) and record.image.dtype == np.uint8
        assert {question.region for question in record.questions} == set(REGIONS)
        assert len({question.text for question in record.questions}) == len(record.questions)
        for question in record.questions:
            for x0, y0, x1, y1 in question.boxes:
                assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1]


def test_regions_lie_where_they_say(many):
    for record in many:
        width, height = record.image_size
        for thing in record.meta["things"]:
            x0, y0, x1, y1 = thing["box"]
            x, y = (x0 + x1) / 2 / width, (y0 + y1) / 2 / height
            assert (thing["region"] == "periphery") == (min(x, 1 - x, y, 1 - y) < 0.15)


@pytest.mark.parametrize("split", ["train", "test-ood"])
def test_things_are_visible_and_their_boxes_tight(split):
    for index in range(12):
        dice = Dice("masks", split, index)
        _, canvas, scene = laid(dice, split, (320, 256))
        for owner, thing in enumerate(scene.things, 1):
            rows, columns = np.nonzero(canvas.owners == owner)
            assert thing.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            alone = np.asarray(render(thing.look))[..., 3] >= 128
            assert len(rows) == thing.pixels and alone.sum() == thing.whole
            assert thing.pixels >= 0.85 * thing.whole


def test_what_the_owners_say_is_what_one_sees():
    for index in range(6):
        dice = Dice("owners", index)
        _, canvas, _ = laid(dice, "train", (256, 256))
        _, bare = ground(dice.fork("ground"), "train", (256, 256))
        littered(bare, dice.fork("litter"))
        changed = (np.asarray(canvas.image) != np.asarray(bare)).any(2)
        assert changed[canvas.owners > 0].mean() > 0.98


def test_a_plain_thing_has_the_colour_it_is_said_to_have():
    palette, total = np.array([rgb for rgb, _ in COLOURS.values()]), 0
    for index in range(40):
        _, canvas, scene = laid(Dice("colours", index), "train", (160, 160))
        pixels = np.asarray(canvas.image)
        for owner, thing in enumerate(scene.things, 1):
            if thing.look.texture == "plain" and thing.look.shape in ("disc", "square", "cross") and thing.extent >= 12:
                middle = np.median(pixels[canvas.owners == owner], 0)
                assert list(COLOURS)[np.abs(palette - middle).sum(1).argmin()] == thing.look.colour, middle
                total += 1
    assert total > 30


@pytest.mark.parametrize("index", range(12))
def test_the_light_leaves_colours_alone(index):
    shade = np.asarray(light(Dice("light", index), (64, 48)))
    assert shade.min() >= 0.8 * 255 and shade.max() >= 250
    grey = Image.new("RGB", (64, 48), (200, 200, 200))
    seen = np.asarray(photographed(grey, Dice("light", index), clean=True))
    assert (seen == seen[..., :1]).all()


def test_answers_are_even(many):
    answers = defaultdict(Counter)
    for record in many[:300]:
        for question in record.questions:
            answers[question.kind][question.answer] += 1
    prior = {
        "colour": 10,
        "texture": 6,
        "shape": 15,
        "existence": 2,
        "count": 10,
        "relation": 15,
        "side": 2,
        "extreme": 15,
    }
    for kind, classes in prior.items():
        found = answers[kind]
        most_common = found.most_common(1)[0][1] / found.total()
        margin = 0.08
        assert most_common < 1 / classes + margin, f"{kind}: {found.most_common(3)} of {found.total()}"
        assert len(found) >= min(classes, 15)


def test_test_ood_shares_no_shape_ground_or_pairing():
    assert not set(SHAPES) & set(HELD_OUT_SHAPES) and not set(GROUNDS) & set(HELD_OUT_GROUNDS)
    assert set(SHAPES) | set(HELD_OUT_SHAPES) == set(FIGURES) and len(SHAPES) >= 10
    seen = {}
    for split in ("train", "test-ood"):
        made = [make("scenes", split, index, size=(256, 256), clean=True) for index in range(24)]
        things = [thing for record in made for thing in record.meta["things"]]
        pairs = {(t["colour"], t["texture"]) for t in things if t["texture"] != "plain"}
        seen[split] = {t["shape"] for t in things}, {record.meta["ground"] for record in made}, pairs
    assert not any(a & b for a, b in zip(*seen.values(), strict=True))
    for colour in COLOURS:
        assert len(textures("train", colour)) > 1 and len(textures("test-ood", colour)) > 1


def test_the_same_arguments_give_the_same_record():
    for clean in (True, False):
        one, two = (make("scenes", "val", 5, size=(160, 128), clean=clean) for _ in range(2))
        assert (one.image == two.image).all() and one.questions == two.questions
    clean, worn = (make("scenes", "val", 5, size=(160, 128), clean=clean) for clean in (True, False))
    assert clean.questions == worn.questions and (clean.image != worn.image).any()
    assert np.abs(clean.image.astype(int) - worn.image).mean() < 12


@pytest.mark.parametrize("shape", sorted(FIGURES))
@pytest.mark.parametrize("side", [8, 14, 60, 200])
def test_every_figure_fills_its_box(shape, side):
    for texture in TEXTURES:
        drawn = render(Look(shape, "red", texture, side, (200, 30, 30)))
        assert drawn.mode == "RGBA" and abs(max(drawn.size) - side) <= 1 + 0.08 * side and min(drawn.size) >= side // 3
        assert (np.asarray(drawn)[..., 3] >= 128).mean() > 0.2


def test_a_fading_thing_is_blended_by_a_gradient():
    """Every column as Pillow's gradient over the whole canvas has it."""
    for size in ((2, 30), (97, 64), (300, 411)):
        canvas = Image.new("RGB", size, (200, 30, 30))
        ramp = Image.linear_gradient("L").resize(size, Image.Resampling.BILINEAR)
        canvas.paste((246, 242, 232), (0, 0), ramp.point([level * 9 // 10 for level in range(256)]))
        assert _filled(Look("disc", "red", "fading", 30, (200, 30, 30)), size, 1).tobytes() == canvas.tobytes()


def test_softened_is_the_average_with_four_neighbours():
    pixels = (Dice("soft").array(5 * 7 * 3) * 256).astype(np.uint8).reshape(5, 7, 3)
    near = np.pad(pixels, ((1, 1), (1, 1), (0, 0)), "edge").astype(int)
    total = near[:-2, 1:-1] + near[2:, 1:-1] + near[1:-1, :-2] + near[1:-1, 2:]
    for halvings in (3, 4):
        assert (softened(pixels, halvings) == (total + pixels.astype(int) * (2**halvings - 4)) // 2**halvings).all()


def test_the_camera_moves_nothing():
    spot = Image.new("RGB", (64, 64), (30, 30, 30))
    spot.paste((220, 220, 220), (20, 24, 40, 44))
    for index in range(8):
        seen = np.asarray(photographed(spot, Dice("camera", index), clean=False)).astype(int).mean(2)
        rows, columns = np.nonzero(seen > 110)
        assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (20, 24, 40, 44)


@pytest.mark.skipif(__version__ != "12.3.0", reason="pixels are promised for equal Pillow only: 12.3.0")
def test_checksum():
    record = make("scenes", "train", 0, size=(256, 192), clean=True)
    assert hashlib.sha256(record.image.tobytes()).hexdigest()[:16] == "8a31a783324806b5"
