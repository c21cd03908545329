"""Cones, acuity and receptive fields against published values."""

import math

import pytest
import torch

from bench.biology import cone_count
from homunculus.biology.acuity import E2, cutoff, minimum_angle
from homunculus.biology.cones import MERIDIANS, TABLE, cone_density, cone_limit, cone_spacing
from homunculus.biology.cortex import magnification
from homunculus.biology.receptive import AREAS, K_RANGE, channels, receptive_field
from homunculus.errors import HomunculusError


def at(*values):
    return torch.tensor(values, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------------------- cones


def test_density_passes_through_the_table():
    for meridian, column in (("nasal", 2), ("temporal", 3), ("vertical", 4)):
        rows = [row for row in TABLE if not math.isnan(row[column])]
        found = cone_density(at(*(row[1] for row in rows)), meridian)
        assert torch.allclose(found, 1000 * at(*(row[column] for row in rows)), rtol=1e-9)


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
    for area in AREAS:
        millimetres = receptive_field(e, area) * magnification(e)
        assert (millimetres / millimetres[0]).tolist() == pytest.approx([1, 1, 1, 1])


def test_fields_grow_from_area_to_area():
    sizes = [receptive_field(at(5.0), area).item() for area in AREAS]
    assert sizes == sorted(sizes) and sizes[-1] / sizes[0] == pytest.approx(4)
    assert K_RANGE[0] <= receptive_field(at(9.25)).item() / 10 <= K_RANGE[1]
    with pytest.raises(HomunculusError, match="of 'MT': choose from V1, V2, V3, hV4"):
        receptive_field(at(1.0), "MT")


def test_three_bands_an_octave_apart_everywhere():
    e = at(0.0, 2.0, 30.0)
    bands = channels(e)
    assert bands.shape == (3, 3)
    assert torch.allclose(bands[:, 0] * 2 * receptive_field(e), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(bands[:, 1:] / bands[:, :-1], torch.full((3, 2), 2.0, dtype=torch.float64))
