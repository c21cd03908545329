"""Relevance in words: what spoils it does so at the rate and by the distance it says, alike for all methods."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homunculus.data import relevance_map
from homunculus.errors import RelevanceError
from homunculus.eval.relevances import bounds, displaced, elsewhere, mixture_of, told_region

SIZE = (256, 192)


@st.composite
def some_boxes(draw):
    boxes = []
    for _ in range(draw(st.integers(1, 3))):
        x, y = draw(st.integers(0, 200)), draw(st.integers(0, 150))
        boxes.append((x, y, x + draw(st.integers(4, 50)), y + draw(st.integers(4, 40))))
    return boxes


def keys(count):
    return [f"scenes/test-iid/{i // 4}#{i % 4}" for i in range(count)]


@pytest.mark.parametrize("rate", [0, 30, 70, 100])
def test_a_rate_is_that_share_of_questions(rate):
    boxes = [(16, 16, 48, 32)]
    true = relevance_map(boxes, SIZE, (16, 12))
    right = [told_region(f"hit-{rate}", key, boxes, SIZE).equal(true) for key in keys(2000)]
    assert abs(sum(right) / 2000 - rate / 100) < 3.5 * math.sqrt(max(rate * (100 - rate), 1) / 1e4 / 2000)


def test_a_higher_rate_only_mends():
    boxes = [(16, 16, 48, 32)]
    true = relevance_map(boxes, SIZE, (16, 12))
    for key in keys(300):
        found = [told_region(f"hit-{rate}", key, boxes, SIZE) for rate in (30, 50, 90)]
        right = [one.equal(true) for one in found]
        assert right == sorted(right)
        wrong = [one for one, own in zip(found, right, strict=True) if not own]
        assert all(one.equal(wrong[0]) for one in wrong)


@given(some_boxes(), st.integers(0, 1000))
def test_elsewhere_has_the_same_form_inside_the_image(boxes, number):
    moved = elsewhere(str(number), boxes, SIZE)
    shifts = {(round(a[0] - b[0], 6), round(a[1] - b[1], 6)) for a, b in zip(moved, boxes, strict=True)}
    assert len(shifts) == 1
    x0, y0, x1, y1 = bounds(moved)
    inside = bounds(boxes)[2] - bounds(boxes)[0] <= SIZE[0] and bounds(boxes)[3] - bounds(boxes)[1] <= SIZE[1]
    assert not inside or (x0 >= -1e-6 and y0 >= -1e-6 and x1 <= SIZE[0] + 1e-6 and y1 <= SIZE[1] + 1e-6)


def test_elsewhere_does_not_meet_the_truth():
    boxes = [(16, 16, 48, 32)]
    true = relevance_map(boxes, SIZE, (16, 12)) > 0
    for key in keys(200):
        ((x0, y0, x1, y1),) = elsewhere(key, boxes, SIZE)
        assert x1 <= 16 or x0 >= 48 or y1 <= 16 or y0 >= 32
    assert true.any()


@given(some_boxes(), st.integers(0, 8), st.integers(0, 1000))
def test_displacement_is_as_long_as_it_says(boxes, leaves, number):
    moved = displaced(str(number), boxes, SIZE, 16.0 * leaves)
    for (a, b, c, d), (e, f, g, h) in zip(moved, boxes, strict=True):
        assert math.hypot(a - e, b - f) == pytest.approx(16 * leaves, abs=1e-6)
        assert (c - a, d - b) == pytest.approx((g - e, h - f))
    assert told_region(f"moved-{leaves}", str(number), boxes, SIZE).sum() > 0


def test_nothing_is_farther_than_the_image():
    with pytest.raises(RelevanceError, match="displace it less"):
        displaced("key", [(0, 0, 16, 16)], (32, 32), 100.0)


def test_what_knows_no_truth_tells_none():
    assert told_region("predicted", "key", [(0, 0, 9, 9)], SIZE) is None
    assert told_region("detail", "key", [(0, 0, 9, 9)], SIZE) is None
    assert told_region("true", "key", [(0, 0, 9, 9)], SIZE).equal(relevance_map([(0, 0, 9, 9)], SIZE, (16, 12)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no relevance ''"),
        ("hit-101", "no relevance 'hit-101'"),
        ("learned", "no relevance 'learned'"),
        ("0.5 predicted +", "no relevance ''"),
        ("x predicted", "'x predicted' has no weight"),
        ("-1 detail", "'-1 detail' has no weight"),
        ("1 2 detail", "no relevance '1 2 detail'"),
    ],
)
def test_words_that_say_nothing(words, message):
    with pytest.raises(RelevanceError, match=message):
        mixture_of(words)
