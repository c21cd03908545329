"""docs/experiment.md: its examples run, and what it says of suites is so."""

import re
from pathlib import Path

from homunculus.allocation import registry
from homunculus.eval.plans import Plan
from homunculus.eval.suites import SUITES

PAGE = Path(__file__).parent.parent.parent / "docs" / "experiment.md"


def test_its_examples_run(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    first, own = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    known: dict = {}
    exec(first, known)
    assert len(known["rows"]) == 8 and isinstance(known["rows"][0]["said"], str)
    exec(own, known)
    assert Plan("scenes", method="mine").method == "mine"


def test_it_names_every_suite():
    named = set(re.findall(r"--suite ([\w,]+)", PAGE.read_text()))
    assert {name for words in named for name in words.split(",")} == set(SUITES)
