"""Reports, letters and papers: running text, stamps and bars are where they say, and pages answer their questions."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageDraw

from homunculus.data import fonts
from homunculus.data.dice import Dice
from homunculus.data.documents import (
    chart,
    compose,
    facts,
    floats,
    flow,
    furniture,
    letter,
    marks,
    paper,
    report,
    science,
)  # fmt: skip
from homunculus.data.documents.vocabulary import ORDINARY
from homunculus.data.documents.words import Words
from homunculus.data.record import REGIONS
from homunculus.errors import DataError
from tests.data.sheets import blank, inked, inside

LAYOUTS = [
    (arrange, split)
    for module in (report, letter, paper)
    for arrange, split in (
        *((arrange, "train") for arrange in dict.fromkeys(module.ARRANGEMENTS)),
        *((arrange, "test-ood") for arrange in module.HELD_OUT),
    )
]
EACH = pytest.mark.parametrize(("arrange", "split"), LAYOUTS, ids=[arrange.__name__ for arrange, _ in LAYOUTS])


# Running text


def test_a_word_is_drawn_as_pillow_draws_it():
    for face in fonts.FACES:
        page = blank()
        page.face, page.ink = face, (0, 0, 0)
        flow.paragraph(page, 30, 30, 400, "Waverley", 24)
        other = Image.new("RGB", page.size, page.paper)
        ImageDraw.Draw(other).text((30, 30), "Waverley", (0, 0, 0), fonts.load(face, 12), "la")
        assert ImageChops.difference(page.image, other).getbbox() is None


def test_justified_lines_end_together_and_the_last_does_not():
    page = blank()
    flowed = flow.paragraph(page, 20, 20, 300, Words("train").text(Dice("text"), 6), 18, justify=True)
    lines = [box for _, box in page.written]
    assert len(lines) > 5 and flowed.rest == ""
    assert {box[2] for box in lines[:-1]} == {320} and lines[-1][2] < 320


def test_a_marked_value_across_two_lines_has_a_box_on_each():
    page = blank()
    text = f"We shall meet again on the {flow.mark('twenty-third November 2031')} in the hall."
    spans = [
        flow.paragraph(page, 20, 20 + 90 * place, width, text, 20).spans for place, width in enumerate((180, 200, 225))
    ]
    assert all(len(span) == 1 and span[0][0] == "twenty-third November 2031" for span in spans)
    assert any(len(span[0][1]) == 2 for span in spans)
    for ((_, boxes),) in spans:
        assert all(later[1] > earlier[3] - 4 for earlier, later in pairwise(boxes))


def test_a_marked_value_leaves_out_the_comma_after_it():
    page, other = blank(), blank()
    box = flow.paragraph(page, 20, 20, 400, f"{flow.mark('41.20')}, then", 30).spans[0][1][0]
    flow.paragraph(other, 20, 20, 400, "41.20", 30)
    assert box == inked(other)


def test_text_beyond_the_limit_comes_back():
    text = Words("train").text(Dice("text"), 8)
    page = blank()
    first = flow.paragraph(page, 20, 20, 200, text, 18, limit=3)
    second = flow.paragraph(page, 20, first.below, 200, first.rest, 18, limit=40)
    assert " ".join(line for line, _ in page.written) == text and second.rest == ""
    assert flow.count(page, 200, text, 18) == len(page.written)


def test_letters_that_a_face_lacks_are_an_error():
    page = blank(split="test-ood")
    with pytest.raises(DataError, match="cannot write"):
        flow.paragraph(page, 20, 20, 200, "90 % < 100 % €", 18)


# Marks


@pytest.mark.parametrize("angle", [-24, -7, 0, 13, 90])
@pytest.mark.parametrize("shape", ["round", "rectangular"])
def test_the_box_of_a_turned_text_holds_its_ink(angle, shape):
    dice = Dice("stamp", shape, angle)
    for which in (1, 2):
        page = blank()
        make = marks._round if shape == "round" else marks._rectangular
        layers = make(page, "RECEIVED", "17 May 2031", "CALDWELL TRUST", dice)
        only = [layer if place == which else Image.new("L", layer.size) for place, layer in enumerate(layers)]
        box = marks.press(page, 250, 250, only, angle, (0, 0, 0), dice)[which]
        assert inside(inked(page, 60), box)
        assert inside(box, inked(page))


@pytest.mark.parametrize("place", [(0, 0), (511, 0), (0, 511), (511, 511)])
def test_a_stamp_stays_on_the_page(place):
    page = blank()
    for shape in ("round", "rectangular"):
        found = furniture.stamp(page, *place, Words("train"), Dice("corner", shape, *place), shape)
        assert len(found) == 2
        assert all(inside(box, (0, 0, 512, 512)) for _, box in found.values())


def test_print_under_a_stamp_stays_black():
    page = blank()
    page.pen.rectangle((200, 200, 300, 300), fill=(0, 0, 0))
    furniture.stamp(page, 250, 250, Words("train"), Dice("over print"), "rectangular")
    assert np.asarray(page.image)[210:290, 210:290].max() == 0


def decode(line):
    """The digits of an interleaved 2 of 5 barcode from a row of pixels: dark is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]]).astype(int)))
    runs = np.diff(edges)
    module = runs.min()
    wide = runs > 2 * module
    assert set(runs) == {module, 3 * module}
    assert not wide[:4].any() and wide[-3] and not wide[-2:].any()
    digits = ""
    for start in range(4, len(runs) - 3, 10):
        for offset in (0, 1):
            pattern = "".join("1" if one else "0" for one in wide[start + offset : start + 10 : 2])
            digits += str(
                {"00110": 0, "10001": 1, "01001": 2, "11000": 3, "00101": 4, "10100": 5, "01100": 6, "00011": 7,
                 "10010": 8, "01010": 9}[pattern]
            )  # fmt: skip
    return digits


@pytest.mark.parametrize("side", [512, 1024, 2048])
@pytest.mark.parametrize("digits", ["0123456789", "204173", "99", "558290017364"])
def test_a_barcode_reads_back_as_its_digits(side, digits):
    page = blank((side, side))
    (x0, y0, x1, y1), (text, box) = furniture.barcode(page, side // 16, side // 8, digits)
    dark = np.asarray(page.image.convert("L")) < 128
    for y in (y0, (y0 + y1) // 2, y1 - 1):
        assert decode(dark[int(y), int(x0) : int(x1)]) == digits
    assert text == digits and box[1] >= y1
    assert x1 - x0 == furniture.barcode_width(page, digits)
    assert not dark[:, : int(x0)].any()


def test_an_odd_number_of_digits_is_an_error():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        marks.bars("123")


def test_logos_and_signatures_stay_in_their_boxes():
    for place in range(40):
        page = blank()
        box = furniture.logo(page, 100, 120, 80, Dice("logo", place), "AB")
        assert inside(inked(page), box) and inside(box, (100, 120, 140, 160))
        page = blank()
        box = furniture.signature(page, 100, 300, 220, Dice("signature", place))
        assert inside(inked(page), box) and box[2] - box[0] > 60


def test_a_line_set_upwards_is_the_line_turned():
    page, other = blank(), blank()
    page.faint = other.ink = (0, 0, 0)
    text, box = furniture.sideways(page, 50, 60, "QX-20417", 24)
    flat = other.write(50, 60, "QX-20417", 24)
    turned = other.image.crop(flat).transpose(Image.Transpose.ROTATE_90)
    assert text == "QX-20417" and inked(page) == box
    assert ImageChops.difference(page.image.crop(box), turned).getbbox() is None


@pytest.mark.parametrize("split", ["train", "test-ood"])
def test_furniture_keeps_to_the_margins(split):
    for place in range(30):
        page = blank((1024, 1024), split)
        furniture.adorn(page, Words(split), Dice("margins", place))
        inner = page.image.crop((64, 64, 1024 - 64, 1024 - 64))
        assert ImageChops.difference(inner, Image.new("RGB", inner.size, page.paper)).getbbox() is None
        assert {question.region for question in page.questions} == {"periphery"}
        assert {"page", "code"} <= {word for q in page.questions for word in re.findall(r"page|code", q.text)}


# Charts


def test_bars_are_as_high_as_their_values():
    page = blank((1024, 1024))
    page.accent = (200, 0, 0)
    chart.bars(page, 100, 100, 600, 400, ["one", "two", "three"], ["20.0", "60.0", "40.0"])
    red = np.asarray(page.image) == (200, 0, 0)
    heights = red.all(2).sum(0)
    levels = sorted({int(height) for height in heights if height > 20})
    assert len(levels) == 3
    assert levels[1] == pytest.approx(2 * levels[0], abs=2) and levels[2] == pytest.approx(3 * levels[0], abs=3)


@pytest.mark.parametrize("largest", [0.013, 0.9, 1.0, 7.3, 98.9, 100.0, 613.0, 9999.0])
def test_an_axis_has_a_few_round_ticks(largest):
    tick = chart._tick(largest)
    assert 1.9 < largest / tick <= 5
    assert re.fullmatch(r"0*\.?0*(1|2|25|5)0*", f"{tick:.10f}".rstrip("0").rstrip("."))


# Pages


@EACH
@pytest.mark.parametrize("size", [(1024, 1024), (512, 512), (2048, 2048), (640, 896), (1600, 900), (777, 1033)])
def test_a_page_answers_its_questions(arrange, split, size):
    page = compose(arrange, Dice("papers", *size), split, size)
    assert page.image.size == size and len(page.questions) >= 6
    assert {question.region for question in page.questions} == set(REGIONS)
    written = " ".join(text for text, _ in page.written)
    pixels = np.asarray(page.image)
    for question in page.questions:
        assert question.answer in written, question
        assert question.boxes, question
        for x0, y0, x1, y1 in question.boxes:
            assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1]
            assert np.ptp(pixels[int(y0) : int(y1), int(x0) : int(x1)].astype(int), (0, 1)).max() > 60, question


@EACH
def test_a_box_is_where_its_answer_is_written(arrange, split):
    for place in range(6):
        page = compose(arrange, Dice("places", place), split, (1024, 1024))
        for question in page.questions:
            near = " ".join(
                text
                for text, (x0, y0, x1, y1) in page.written
                if any(x0 < box[2] and box[0] < x1 and y0 < box[3] and box[1] < y1 for box in question.boxes)
            )
            assert question.answer in near, question


@EACH
def test_boxes_are_tight(arrange, split):
    """The ink of an answer touches all four sides of its box: at least one pixel there is not the colour around."""
    page = compose(arrange, Dice("tight"), split, (1024, 1024))
    pixels = np.asarray(page.image.convert("L")).astype(int)
    for question in page.questions:
        for x0, y0, x1, y1 in question.boxes:
            patch = pixels[int(y0) : int(y1), int(x0) : int(x1)]
            around = int(np.bincount(patch.ravel()).argmax())
            inks = patch != around
            assert inks[0].any() and inks[-1].any() and inks[:, 0].any() and inks[:, -1].any(), question


@EACH
def test_pages_are_the_same_each_time_and_differ_by_seed(arrange, split):
    one, same, other = (compose(arrange, Dice("again", seed), split, (512, 512)) for seed in (1, 1, 2))
    assert one.image.tobytes() == same.image.tobytes() and one.questions == same.questions
    assert one.image.tobytes() != other.image.tobytes() and one.questions != other.questions


def test_no_answer_is_common_enough_to_guess():
    answers: Counter[str] = Counter()
    templates: dict[str, Counter[str]] = {}
    for place in range(8):
        for arrange, split in LAYOUTS:
            for question in compose(arrange, Dice("blind", place), split, (512, 512)).questions:
                answers[question.answer] += 1
                templates.setdefault(re.sub(r"\d+", "#", question.text), Counter())[question.answer] += 1
    assert max(answers.values()) < 0.01 * answers.total()
    majority = sum(max(found.values()) - 1 for found in templates.values())  # one of each is its own first sight
    assert majority < 0.05 * answers.total()


def test_papers_are_set_in_serifs_and_ood_in_held_out_faces():
    for arrange, split in LAYOUTS:
        page = compose(arrange, Dice("faces"), split, (512, 512))
        assert all(face.held_out == (split == "test-ood") for face in (page.face, page.head, page.mono))
        if arrange.__module__.endswith("paper"):
            assert page.face.style == "serif"


def words_of(*things):
    """All words of four letters or more in nested tuples of strings."""
    found = set()
    for thing in things:
        if isinstance(thing, tuple):
            found |= words_of(*thing)
        elif isinstance(thing, str):
            found |= set(re.findall(r"[a-z]{4,}", thing.lower()))
    return found


# Words that hold sentences together: both vocabularies may use them.
COMMON = words_of(
    "what which when where with whom does from that this near much will number date page time name code stand stands "
    "held other after before while under over every later than last must above below once instead should high were "
    "have come entry share whole first phone amount percentage place your days"
)


def test_held_out_words_are_held_out():
    held_out = words_of(
        tuple(known[:2] for known in (*facts._HELD_OUT, *report._HELD_OUT_STATED)), report._HELD_OUT_KINDS,
        report._HELD_OUT_AXES, report._HELD_OUT_MEASURES, science._HELD_OUT_MEASURED, science._HELD_OUT_JOURNALS,
        floats._HELD_OUT_SHOWN, marks._HELD_OUT_STAMP_WORDS, letter._HELD_OUT_SALUTATIONS, letter._HELD_OUT_CLOSINGS,
    )  # fmt: skip
    ordinary = words_of(
        facts._ORDINARY, report._KINDS, report._AXES, report._MEASURES, report._STATED, science._MEASURED,
        science._JOURNALS, floats._SHOWN, marks._STAMP_WORDS, letter._SALUTATIONS, letter._CLOSINGS,
        *(tuple(getattr(ORDINARY, field)) for field in ORDINARY.__dataclass_fields__),
    )  # fmt: skip
    assert held_out & ordinary - COMMON == set()
    assert len(held_out - COMMON) > 100


def test_pages_show_only_the_measures_of_their_split():
    ordinary = words_of(science._MEASURED, floats._SHOWN) - COMMON
    held_out = words_of(science._HELD_OUT_MEASURED, report._HELD_OUT_MEASURES, floats._HELD_OUT_SHOWN) - COMMON
    for arrange, split in LAYOUTS:
        seen = set()
        for place in range(4):
            page = compose(arrange, Dice("shown", place), split, (512, 512))
            seen |= words_of(*(text for text, _ in page.written))
        own, other = (held_out, ordinary) if split == "test-ood" else (ordinary, held_out)
        assert not seen & other
        if arrange.__module__.endswith("paper"):
            assert seen & own
