"""Degrees and pixels: the convention, pinned, and what it costs on a flat screen."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.biology.field import (
    DEGREES,
    check_field,
    check_gaze,
    eccentricity_map,
    pixels_per_degree,
    to_degrees,
    to_pixels,
)
from homunculus.errors import FixationError, ImageError


def test_the_longer_side_spans_the_field_and_pixels_are_square():
    for size in ((1024, 768), (768, 1024)):
        assert pixels_per_degree(size, 40.0) == pytest.approx(25.6)
        assert to_degrees(768.0, size, 40.0) == pytest.approx(30.0)
        x, y = eccentricity_map(torch.tensor([0.0, 0.0]), size, 40.0)
        assert x.shape == y.shape == (size[1], size[0])
        assert x[0, 1] - x[0, 0] == pytest.approx(1 / 25.6) and y[0, 0] - y[1, 0] == pytest.approx(1 / 25.6)


def test_the_literal_fovea_of_a_page():
    """0.75 degrees of an image 40 degrees wide are 19 pixels of 1024."""
    assert to_pixels(0.75, (1024, 1024), 40.0) == pytest.approx(19.2) and DEGREES == 40.0


@given(st.floats(0.01, 359.0), st.floats(0, 5000), st.tuples(st.integers(1, 9000), st.integers(1, 9000)))
def test_there_and_back(degrees, length, size):
    assert to_pixels(to_degrees(length, size, degrees), size, degrees) == pytest.approx(length, rel=1e-12)


def test_x_goes_right_and_y_goes_up_from_the_gaze():
    x, y = eccentricity_map(torch.tensor([30.0, 10.0]), (100, 50), 10.0)
    assert x[0, 0] == pytest.approx(-2.95) and x[0, 99] == pytest.approx(6.95)
    assert y[0, 0] == pytest.approx(0.95) and y[49, 0] == pytest.approx(-3.95)
    assert (x[:, 30] > 0).all() and (x[:, 29] < 0).all()


def test_a_flat_screen_differs_by_less_than_a_hundredth_of_its_side():
    """The docstring's figure: at 40 degrees the tangent places nothing more than 0.8 % of the side elsewhere."""
    half = math.radians(20.0)
    angles = [half * i / 1000 for i in range(1001)]
    flat = [math.tan(angle) / math.tan(half) for angle in angles]  # of half the side
    apart = max(abs(a / half - f) for a, f in zip(angles, flat, strict=True)) / 2
    assert 0.0075 < apart < 0.0085


@pytest.mark.parametrize("degrees", [0, 0.0, -40.0, 360.0, math.nan, math.inf, True, "40", None])
def test_a_field_of_view_is_an_angle(degrees):
    with pytest.raises(ImageError, match="field of view is the angle that the longer side spans") as error:
        check_field(degrees)
    assert "\n" not in str(error.value)
    if isinstance(degrees, float):
        with pytest.raises(ImageError):
            to_pixels(1.0, (10, 10), degrees)


@pytest.mark.parametrize("gaze", [(-1.0, 5.0), (5.0, 21.0), (math.nan, 5.0), (11.0, 5.0)])
def test_a_gaze_is_inside(gaze):
    with pytest.raises(FixationError, match="is outside the image, which is 10x20 pixels"):
        check_gaze(torch.tensor(gaze), (10, 20))
    assert check_gaze(torch.tensor([10.0, 20.0]), (10, 20)).dtype == torch.float64
