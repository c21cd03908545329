"""The table of `python -m bench.biology`: every fact agrees, a wrong one would not, and the page shows it."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.biology import NOT_MODELLED, Row, alike, batch_times, printed, rows
from homunculus.viz.example import example_page

PAGE = (Path(__file__).parents[2] / "docs" / "biology.md").read_text()


@pytest.fixture(scope="module")
def found() -> list[Row]:
    return list(rows())


def test_every_fact_agrees(found):
    assert len(found) >= 40
    assert [row.fact for row in found if not row.agrees] == []


def test_a_wrong_fact_would_not(found):
    assert not printed("M(0)", 17.3, "23.1", "copied").agrees
    for row in found:
        width = max(abs(row.ours), 1.0)
        assert not (replace(row, ours=row.low - width).agrees and replace(row, ours=row.high + width).agrees)


def test_the_page_shows_the_table(found):
    printed_rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    steady = [str(row) for row in found if not 0 <= row.ours < 1e-6]  # the last bits of a logarithm are not
    assert len(steady) == len(found) - 2
    for row in [*steady, *NOT_MODELLED]:
        assert row in printed_rows


def test_the_page_shows_how_alike_images_are():
    seen = alike("foveated-pyramid", example_page().float() / 255)
    line = next(line for line in PAGE.splitlines() if line.startswith("| example page | `foveated-pyramid`"))
    whole, *rings = (float(cell) for cell in line.split("|")[3:10])
    assert seen.whole == pytest.approx(whole, abs=0.006)
    assert list(seen.rings) == pytest.approx(rings, abs=0.011)


def test_what_is_timed_is_what_the_page_tells_of():
    timed = batch_times("cpu", batch=2, repeats=1)
    told = next(part for part in PAGE.split("\n\n") if "bench.biology --time" in part)
    assert timed.keys() == {"v1", "log-polar-rings", "foveated-pyramid"} and all(ms > 0 for ms in timed.values())
    assert all(f"`{name}`" in told for name in ("v1", "log-polar-rings")) and "the default tree" in told
