"""Drills: pages of words that nobody knows, for training alone; every answer stands where its box says."""

import re
from collections import Counter, defaultdict
from dataclasses import fields

import numpy as np
import pytest

from homunculus.data import FAMILIES
from homunculus.data.dice import Dice
from homunculus.data.documents.page import TYPE, Page
from homunculus.data.documents.vocabulary import HELD_OUT, ORDINARY, Vocabulary
from homunculus.data.fonts import faces, load, missing
from homunculus.data.record import REGIONS
from homunculus.data.stream import make as make_data
from homunculus.errors import DataError
from homunculus.model.tokenizer import default_tokenizer
from homunculus.train.drills import check, compose, draw, make
from homunculus.train.drills import strings as makers
from homunculus.train.drills.strings import MAKERS, Strings, held_out_words, label, real_words, word
from homunculus.train.pool import Pool

SIZE = (1024, 1024)
SIZES = ((512, 512), (1024, 1536), (1600, 900), (512, 1400), (2048, 2048))


@pytest.fixture(scope="module")
def pages():
    return [compose(Dice("test drills", index), "train", SIZE) for index in range(100)]


def overlap(one, other):
    return min(one[2], other[2]) - max(one[0], other[0]) > 1 and min(one[3], other[3]) - max(one[1], other[1]) > 1


def inside(small, large):
    return small[0] >= large[0] and small[1] >= large[1] and small[2] <= large[2] and small[3] <= large[3]


def places_of(page):
    """Where each text stands, in any case."""
    where = defaultdict(list)
    for text, box in page.written:
        where[text.casefold()].append(box)
    return where


def held_out():
    """The words that only `test-ood` has, as this test finds them and not as the maker does; "for" is of an event."""
    parts = {"surname_heads", "surname_tails", "town_heads", "town_tails"}
    names = [field.name for field in fields(Vocabulary) if field.name not in parts]
    words = {one.lower() for name in names for text in getattr(HELD_OUT, name) for one in text.split()}
    for heads, tails in ((HELD_OUT.surname_heads, HELD_OUT.surname_tails), (HELD_OUT.town_heads, HELD_OUT.town_tails)):
        words |= {(head + tail).lower() for head in heads for tail in tails}
    return {one for one in words if re.fullmatch("[a-z]{3,}", one)} - {"for"}


# Pages


def test_every_page_is_full_and_asked_about_in_all_regions(pages):
    for page in pages:
        assert len(page.written) >= 25
        assert len(page.questions) >= 20
        assert {question.region for question in page.questions} == set(REGIONS)
        texts = [question.text.casefold() for question in page.questions]
        assert len(set(texts)) == len(texts)
    assert 60 <= np.median([len(page.written) for page in pages]) <= 150
    kinds = Counter(question.kind for page in pages for question in page.questions)
    assert set(kinds) == {"key", "place", "section", "sentence"}
    assert min(kinds.values()) > 0.02 * kinds.total()


def test_nothing_is_printed_over_anything(pages):
    for page in pages:
        boxes = [box for _, box in page.written]
        for place, box in enumerate(boxes):
            assert not any(overlap(box, other) for other in boxes[:place]), page.written[place]


def test_every_answer_is_written_in_its_box(pages):
    whole = 0
    for page in pages:
        pixels = np.asarray(page.image).astype(int)
        for question in page.questions:
            ((x0, y0, x1, y1),) = question.boxes
            holding = [text for text, box in page.written if inside((x0, y0, x1, y1), box)]
            assert len(holding) == 1 and question.answer in holding[0], question
            whole += question.answer == holding[0]
            assert np.ptp(pixels[y0:y1, x0:x1], axis=(0, 1)).max() > 40, question
    assert whole > 0.85 * sum(len(page.questions) for page in pages)


def test_a_word_in_a_line_has_the_box_of_its_letters(pages):
    """The letters of an answer, whose places the page noted on its own, lie in its box, and no others of the line."""
    seen = 0
    for page in pages:
        for question in page.questions:
            if question.kind == "sentence":
                ((x0, _, x1, _),) = question.boxes
                line, box = next(one for one in page.written if inside(question.boxes[0], one[1]))
                at = [box[0] + (box[2] - box[0]) * along for along in page.letters[line, box]]
                assert "".join(letter for letter, x in zip(line, at, strict=True) if x0 <= x < x1) == question.answer
                seen += 1
    assert seen > 50


def test_neighbours_are_where_the_question_says(pages):
    """What stands right of, left of, below or above a text is nearest to it on that side."""
    seen = Counter()
    for page in pages:
        where = places_of(page)
        for question in page.questions:
            found = re.fullmatch(r"What stands (to the right of|to the left of|below|above) (.+)\?", question.text)
            if not found:
                continue
            side, ((ax0, ay0, ax1, ay1),) = found[1], question.boxes
            known = [name for name in (found[2], found[2] + ":") if name.casefold() in where]
            ((x0, y0, x1, y1),) = where[known[0].casefold()]
            seen[side] += 1
            if side.startswith("to the"):
                assert (ax0 >= x1) if "right" in side else (ax1 <= x0), question
                between = (
                    (x1, min(y0, ay0), ax0, max(y1, ay1)) if "right" in side else (ax1, min(y0, ay0), x0, max(y1, ay1))
                )
            else:
                assert (ay0 >= y1 - 2) if side == "below" else (ay1 <= y0 + 2), question
                assert min(abs(ax0 - x0), abs(ax1 - x1), abs(ax0 + ax1 - x0 - x1) / 2) < 20, (
                    question
                )  # one edge in line
                between = (
                    (max(x0, ax0), y1, min(x1, ax1), ay0) if side == "below" else (max(x0, ax0), ay1, min(x1, ax1), y0)
                )
            others = [box for _, box in page.written if box not in ((x0, y0, x1, y1), question.boxes[0])]
            assert not any(overlap(between, box) for box in others), question
    assert min(seen[side] for side in ("to the right of", "to the left of", "below", "above")) > 3


def test_a_label_that_is_asked_for_is_on_the_page_once(pages):
    asked = 0
    for page in pages:
        texts = Counter(text.rstrip(":").casefold() for text, _ in page.written)
        for question in page.questions:
            found = re.fullmatch(r"(?:Find the|Tell me the|What is given for|Look up) ([^,]+)[.?]", question.text)
            if found and " in the row " not in found[1] and not found[1].startswith("word that"):
                assert texts[found[1].casefold()] == 1, question
                asked += 1
    assert asked > 30


def test_a_part_is_where_the_question_says(pages):
    """Of the places of one label, the part that is named has the one at that end, or the one in between."""
    seen = Counter()
    for page in pages:
        where = places_of(page)
        for question in page.questions:
            named = r"the (top|bottom|middle|left|right|second) .+"
            ways = rf"(?:In|Look at) {named}[,:] what is the (.+)\?", rf"For {named}, read the (.+)\."
            found = next((m for way in ways if (m := re.fullmatch(way, question.text, re.I))), None)
            if not found or len(boxes := where[found[2].casefold()]) < 2:
                continue
            axis = int(max(box[1] for box in boxes) - min(box[1] for box in boxes) > 2)  # parts lie along x or along y
            starts = sorted(box[axis] for box in boxes)
            value = question.boxes[0][axis]
            part = sum(value >= start - 3 for start in starts) - 1  # a value stands beside its label or below it
            place = found[1].lower()
            expected = {"top": 0, "left": 0, "second": 1, "bottom": len(starts) - 1, "right": len(starts) - 1}
            assert part == expected.get(place, 1), question
            assert place != "middle" or len(starts) == 3
            seen[place] += 1
    assert min(seen[place] for place in ("top", "bottom", "middle", "left", "right", "second")) > 2


def test_a_number_is_that_of_one_line(pages):
    seen = 0
    for page in pages:
        signs = [re.fullmatch(r"(?:No\. )?[(\[]?(\d+)[.)\]]?", text) for text, _ in page.written]
        lines = [(sign[1], box) for sign, (_, box) in zip(signs, page.written, strict=True) if sign]
        for question in page.questions:
            if found := re.fullmatch(
                r"(?:What stands at|What was written for|Which value has) number (\d+)\?", question.text
            ):
                answer = question.boxes[0]
                own = [box for number, box in lines if number == found[1]]
                near = [box for box in own if -3 < answer[1] - box[1] < 3 * (box[3] - box[1]) and box[0] < answer[2]]
                assert len(near) == 1, question
                seen += 1
    assert seen > 10


def test_words_named_by_their_first_letters_are_alone(pages):
    seen = 0
    for page in pages:
        printed = [one for text, _ in page.written for one in re.findall("[a-z0-9]+", text.casefold())]
        for question in page.questions:
            if found := re.fullmatch(r"Which word (begins|ends) with (\S+)\?", question.text):
                fits = str.startswith if found[1] == "begins" else str.endswith
                assert [one for one in printed if fits(one, found[2].casefold())] == [question.answer.casefold()]
                seen += 1
    assert seen > 20


def test_answers_are_short_and_long_and_questions_fit(pages):
    more = [compose(Dice("more drills", index), "train", SIZE) for index in range(50)]
    asked = [question for page in (*pages, *more) for question in page.questions]
    lengths = Counter(len(question.answer) for question in asked)
    assert set(range(1, 41)) <= set(lengths) and max(lengths) <= 60
    assert sum(length in lengths for length in range(41, 61)) >= 12
    assert max(len(default_tokenizer().encode(question.text)) for question in asked) <= 48


def test_every_sign_of_ascii_is_printed(pages):
    signs = {letter for page in pages for text, _ in page.written for letter in text}
    assert {chr(code) for code in range(33, 127)} <= signs


def test_all_faces_cuts_and_sizes_of_type(monkeypatch):
    seen, plain = Counter(), Page.font

    def noted(self, size=20, cut="regular", face=None):
        seen[(face or self.face).name, cut] += 1
        assert TYPE[0] <= size <= TYPE[1]
        seen[size] += 1
        return plain(self, size, cut, face)

    monkeypatch.setattr(Page, "font", noted)
    for index in range(30):
        compose(Dice("faces", index), "train", (512, 512))
    cuts = {(face.name, cut) for face in faces("train") for cut in ("regular", "bold", "italic")}
    assert {one for one in seen if isinstance(one, tuple)} == cuts
    assert seen[12] and seen[40]


@pytest.mark.parametrize("size", SIZES)
def test_pages_of_other_sizes(size):
    for index in range(6):
        drawing = draw(Dice("sizes", index), "val", size, clean=index % 2 == 0)
        assert drawing.image.shape == (size[1], size[0], 3)
        assert len(drawing.meta["texts"]) >= 25 and len(drawing.questions) >= 12
        assert {question.region for question in drawing.questions} == set(REGIONS)
        for question in drawing.questions:
            ((x0, y0, x1, y1),) = question.boxes
            assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1]


def test_texts_have_their_letters_as_documents_have():
    drill, document = (make(family, "train", 3, size=(512, 512)) for family in ("drills", "documents"))
    assert set(drill.meta["texts"][0]) == set(document.meta["texts"][0])
    for known in drill.meta["texts"]:
        assert len(known["letters"]) == len(known["text"])
        assert known["letters"] == sorted(known["letters"])
        assert known["letters"][0] > -0.1 and known["letters"][-1] < 1.1


# What is held out stays so


def test_no_held_out_word_is_ever_printed(pages):
    hidden = held_out()
    assert len(hidden) > 2500 and hidden <= held_out_words()
    printed = {one for page in pages for text, _ in page.written for one in re.findall("[a-z]{3,}", text.casefold())}
    assert len(printed) > 5000
    assert not printed & hidden
    asked = {
        one
        for page in pages
        for question in page.questions
        for one in re.findall("[a-z]{3,}", question.text.casefold())
    }
    assert not asked & hidden


def test_a_held_out_word_is_not_made_even_by_accident(monkeypatch):
    """Real words that are all held out: none is let through, so nothing but invented words comes."""
    monkeypatch.setattr(makers, "real_words", lambda: tuple(sorted(held_out_words())))
    dice = Dice("accident")
    assert not {word(dice) for _ in range(3000)} & held_out()
    strings = Strings(dice)
    monkeypatch.setattr(makers, "word", lambda dice: "genial plateau")
    assert "genial" not in strings.fresh(label, 40).casefold()


def test_real_words_are_ordinary_ones_and_a_small_share():
    ordinary = {
        one for field in fields(Vocabulary) for text in getattr(ORDINARY, field.name) for one in text.lower().split()
    }
    dice, known = Dice("share"), set(real_words())
    assert known <= {re.sub("[^a-z]", "", one) for one in ordinary} | ordinary
    made = [word(dice) for _ in range(4000)]
    assert 0.08 < sum(one in known for one in made) / len(made) < 0.2
    assert len(set(made)) > 3400
    letters = Counter("".join(made))
    assert all(letters[rare] / letters.total() > 0.004 for rare in "qxzjkvwy")


def test_only_faces_of_the_train_split(monkeypatch):
    seen = set()

    def noted(face, *rest):
        seen.add(face)
        return load(face, *rest)

    monkeypatch.setattr("homunculus.data.documents.page.load", noted)
    for index in range(20):
        compose(Dice("split", index), "val", (512, 512))
    assert seen == set(faces("train"))


@pytest.mark.parametrize("split", ["test-ood", "test-iid"])
def test_drills_are_for_training_only(split):
    for refused in (
        lambda: draw(Dice("refused"), split, SIZE, True),
        lambda: make("drills", split, 0),
        lambda: check("drills", split),
        lambda: Pool({"drills": 1.0}, split=split),
    ):
        with pytest.raises(DataError, match="for training only") as error:
            refused()
        assert "\n" not in str(error.value)


def test_what_is_refused():
    with pytest.raises(DataError, match="at least 512"):
        draw(Dice("small"), "train", (1024, 400), True)
    with pytest.raises(DataError, match="no family 'spills'"):
        make("spills", "train", 0)
    with pytest.raises(DataError, match="no family 'drills'"):
        make_data("drills", "train", 0)
    assert "drills" not in FAMILIES


# Strings


def test_a_page_has_no_string_twice():
    strings = Strings(Dice("twice"))
    made = [strings.value(20) if index % 2 else strings.label(20) for index in range(400)]
    assert len({text.casefold() for text in made}) == len(made)
    assert all(1 <= len(text) <= 20 for text in made)
    singles = [strings.value(1) for _ in range(80)]
    again = {text.casefold() for text, times in Counter(text.casefold() for text in singles).items() if times > 1}
    assert again and again <= strings.repeated  # there are not 80 letters and digits, and who asks is told


@pytest.mark.parametrize("face", faces("train"), ids=lambda face: face.name)
def test_every_face_can_write_what_is_made(face):
    dice = Dice("writable")
    assert not any(missing(face, make_one(dice)) for make_one in MAKERS for _ in range(60))


# In training


def test_records_are_the_same_each_time():
    one, again, other = (make("drills", "train", index, size=(512, 512)) for index in (5, 5, 6))
    assert one.key == "drills/train/5"
    assert one.image.tobytes() == again.image.tobytes() and one.questions == again.questions
    assert one.image.tobytes() != other.image.tobytes()
    assert make("drills", "val", 5, size=(512, 512)).image.tobytes() != one.image.tobytes()


def test_other_families_are_as_they_were():
    ours, theirs = make("scenes", "test-ood", 4, size=(128, 96)), make_data("scenes", "test-ood", 4, size=(128, 96))
    assert ours.key == theirs.key and ours.image.tobytes() == theirs.image.tobytes()
    assert ours.questions == theirs.questions


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pool_mixes_drills_with_the_data(workers):
    weights = {"drills": 1.0, "scenes": 1.0}
    with Pool(weights, size=(512, 512), capacity=6, renewed=1, readings=8, workers=workers) as pool:
        pool.fill()
        drawn = [pool.plan.record(number)[0] for number in range(6)]
        assert set(drawn) == {"drills", "scenes"}
        slot = drawn.index("drills")
        record = make(*_of(pool, slot), size=(512, 512))
        assert pool.rows.images[slot].numpy().tobytes() == record.image.tobytes()
        assert pool.asked_of[slot][:24] == record.questions[:24]
        texts = len(record.meta["texts"])
        assert (pool.rows.letters[slot, :texts, 0, 2] > 0).all()  # all texts with their letters


def _of(pool, number):
    family, index = pool.plan.record(number)
    return family, "train", index
