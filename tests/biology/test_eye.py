"""Cones, acuity and receptive fields against published values."""

import math

import pytest
import torch

from bench.biology import cone_count
from homunculus.biology.acuity import E2, cutoff, minimum_angle
from homunculus.biology.cones import MERIDIANS, MM_PER_DEGREE, TABLE, cone_density, cone_limit, cone_spacing
from homunculus.biology.cortex import magnification
from homunculus.biology.receptive import K_RANGE, channels, receptive_field
from homunculus.errors import HomunculusError


def at(*values):
    return torch.tensor(values, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------------------- cones


def test_density_passes_through_the_table():
    for meridian, column in (("nasal", 2), ("temporal", 3), ("vertical", 4)):
        rows = [row for row in TABLE if not math.isnan(row[column])]
        found = cone_density(at(*(row[1] for row in rows)), meridian)
        assert torch.allclose(found, 1000 * at(*(row[column] for row in rows)), rtol=1e-9)


@pytest.mark.parametrize(
    ("e", "nasal", "temporal", "vertical"),
    # Read off github.com/rjonnal/cone_density, thousands per mm^2: 0, 0.1, 0.5, 1, 3 and 10 mm away.
    [
        (0.0, 196, 196, 198),
        (0.357, 115, 121, 107),
        (1.79, 36, 38, 30.5),
        (3.57, 21, 21, 16.5),
        (10.7, 8.7, 9.0, 7.6),
        (35.7, 5.5, 3.9, 4.2),
    ],
)
def test_density_is_that_of_another_transcription(e, nasal, temporal, vertical):
    found = [cone_density(at(e), meridian).item() / 1000 for meridian in ("nasal", "temporal", "vertical")]
    assert found == pytest.approx([nasal, temporal, vertical], rel=0.065)


def test_how_long_a_degree_is_far_from_the_fovea():
    """MM_PER_DEGREE is one number; what its comment says of the rest is in the table."""

    def shorter(e):
        inner = max(row for row in TABLE if row[1] < e)
        outer = min(row for row in TABLE if row[1] >= e)
        return 1 - (outer[0] - inner[0]) / (outer[1] - inner[1]) / MM_PER_DEGREE

    assert abs(shorter(30)) < 0.025  # the table has two digits of a millimetre
    assert [round(shorter(e), 2) for e in (40, 55, 63)] == [0.03, 0.11, 0.2]


@pytest.mark.parametrize("meridian", MERIDIANS)
def test_density_falls_between_its_neighbours(meridian):
    e = torch.linspace(0, 10, 4001, dtype=torch.float64)
    assert (cone_density(e, meridian).diff() < 0).all()  # nothing overshoots
    middle = cone_density(at(5.0), meridian).item()
    low, high = cone_density(at(7.14, 3.57), meridian).tolist()
    assert low < middle < high


def test_curcio_1990():
    """From the abstract: mean peak 199 000 (100 000 to 324 000) per mm^2, ten times lower 1 mm away, 40 to 45 % more
    in nasal than in temporal retina, 4.6 million (4.08 to 5.29) in all."""
    peak = cone_density(at(0.0)).item()
    assert peak == pytest.approx(199_000, rel=0.02)
    assert peak / cone_density(at(3.57)).item() == pytest.approx(10, rel=0.15)
    for e in (35.7, 42.9):
        nasal, temporal = (cone_density(at(e), meridian).item() for meridian in ("nasal", "temporal"))
        assert 1.40 <= nasal / temporal <= 1.46
    assert 3.5e6 < cone_count() < 4.6e6  # the table ends before the retina does


def test_cones_sample_up_to_about_60_cycles_in_the_fovea():
    assert cone_limit(at(0.0)).item() == pytest.approx(60, rel=0.15)
    # Hexagons: rows lie sqrt(3)/2 of the spacing apart, and a cycle needs two rows.
    assert cone_limit(at(3.0)).item() * 2 * cone_spacing(at(3.0)).item() * math.sqrt(3) / 2 == pytest.approx(1)
    # And the eye is no better than its cones, at any eccentricity.
    e = torch.linspace(0, 60, 200, dtype=torch.float64)
    assert (cutoff(e) < cone_limit(e)).all()


def test_beyond_the_table_nothing_is_known():
    assert cone_density(at(-1.0, 68.0)).isnan().all() and cone_density(at(67.7)).isfinite().all()
    with pytest.raises(HomunculusError, match="no meridian of the retina is called 'oblique': choose from mean, nasal"):
        cone_density(at(1.0), "oblique")


# -------------------------------------------------------------------------------------------------------------- acuity


def test_twenty_twenty_is_one_minute_and_thirty_cycles():
    assert (minimum_angle(at(0.0)) * 60).item() == pytest.approx(1) and cutoff(at(0.0)).item() == pytest.approx(30)
    assert 2 <= E2 <= 2.5 and minimum_angle(at(E2)).item() == pytest.approx(2 / 60)
    assert minimum_angle(at(1.0, 2.0, 3.0)).diff().diff().abs().max() < 1e-12  # a straight line


# ---------------------------------------------------------------------------------------------------- receptive fields


def test_fields_cover_the_same_cortex_everywhere():
    e = at(0.0, 1.0, 5.0, 40.0)
    millimetres = receptive_field(e) * magnification(e)
    assert (millimetres / millimetres[0]).tolist() == pytest.approx([1, 1, 1, 1])
    assert K_RANGE[0] <= receptive_field(at(9.25)).item() / 10 <= K_RANGE[1]


def test_three_bands_an_octave_apart_everywhere():
    e = at(0.0, 2.0, 30.0)
    bands = channels(e)
    assert bands.shape == (3, 3)
    assert torch.allclose(bands[:, 0] * 2 * receptive_field(e), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(bands[:, 1:] / bands[:, :-1], torch.full((3, 2), 2.0, dtype=torch.float64))
