"""Rows with something for every part of a page, and the page of them."""

import pytest

from homunculus.eval.rows import Kept
from homunculus.report.page import document
from homunculus.report.sheet import Sheet
from tests.report.made_up import rich


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return rich(tmp_path_factory.mktemp("rows") / "rows.jsonl", questions=120)


@pytest.fixture(scope="module")
def full(file):
    return Sheet([Kept(file)])


@pytest.fixture(scope="module")
def blocks(full):
    return document(full)
