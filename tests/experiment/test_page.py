"""docs/experiment.md: its examples run, and what it says of suites is so."""

import re
from pathlib import Path

import torch

from homunculus.allocation import registry
from homunculus.eval.plans import Plan
from homunculus.eval.suites import SUITES
from homunculus.peers import Seen, get_peer
from homunculus.peers import registry as peer_registry

PAGE = Path(__file__).parent.parent.parent / "docs" / "experiment.md"


def test_its_examples_run(monkeypatch):
    for own in (registry, peer_registry):
        monkeypatch.setattr(own, "_REGISTRY", dict(own._REGISTRY))
    first, own = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    known: dict = {}
    exec(first, known)
    assert len(known["rows"]) == 8 and isinstance(known["rows"][0]["said"], str)
    exec(own, known)
    seen = Seen(
        torch.arange(8.0).diag()[None], torch.zeros(1, 8, 4), (4, 2), torch.eye(8)[None], *[torch.zeros(1, 0)] * 2
    )
    assert Plan("scenes", method="mine").method == "mine" and Plan("scenes", method="peers/loudest").peer == "loudest"
    assert get_peer("loudest")(seen, 3).index.tolist() == [[5, 6, 7]]


def test_it_names_every_suite():
    named = set(re.findall(r"--suite ([\w,]+)", PAGE.read_text()))
    assert {name for words in named for name in words.split(",")} == set(SUITES)
