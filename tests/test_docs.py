"""docs/allocators.md is what the code says it is."""

from pathlib import Path

import pytest
from PIL import Image

import homunculus
from bench import family

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "allocators.md").read_text()


def test_the_page_is_made_from_the_code():
    described, cost, _ = PAGE.partition("## Cost")
    assert cost
    assert described.split("## Geometry")[0] == family.described().split("## Geometry")[0]


def test_the_geometry_is_what_it_measures():
    committed = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") > 4]
    assert committed == [f"| {' | '.join(row)} |" for row in family.geometry_rows()]


def test_no_duplicates_and_the_law_of_magnification():
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") > 4]
    assert all(row[4] == "0" for row in rows)
    slopes = {(row[0].strip("| `"), row[1]): float(row[7].strip(" |")) for row in rows if row[7].strip(" |")}
    for name in ("v1", "log-polar-rings", "foveated-pyramid"):
        for gaze in family.GAZES:
            assert slopes[name, gaze] == pytest.approx(1, abs=0.1)


def test_every_allocator_has_its_cost_and_its_picture():
    costs = [line for line in PAGE.partition("## Cost")[2].splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in costs] == list(homunculus.allocators())
    for name in homunculus.allocators():
        with Image.open(DOCS / "allocators" / f"{name}.png") as picture:
            assert picture.size == family.PICTURE
    assert len(list((DOCS / "allocators").glob("*.png"))) == len(homunculus.allocators())
