"""Numbers that are published, or were chosen once: a table of results is of these, so that none changes unnoticed."""

import inspect

import pytest
import torch

from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM
from homunculus.peers import cdpruner, combined, dyrate, get_peer, likeness, peers, tome, variable
from homunculus.peers.combined import remember_combined
from tests.model.tiny import questions

OPTIONS = {
    "cdpruner": {"logarithm": False},
    "coarse-then-residual": {"rounds": 4},
    "hired": {"tiles": 2},
    "prumerge+": {"neighbours": 32, "grid": 0.5, "grid_first": False},
    "tome": {"rounds": 24},
    "tome-soft": {"rounds": 24, "threshold": 0.5, "temperature": 0.1},
    "visionzip": {"dominant": 54 / 64},
    "vscan": {"windows": 4},
}


@pytest.mark.parametrize("name", list(peers()))
def test_options_of_a_peer(name):
    options = inspect.signature(get_peer(name).function).parameters.values()
    found = {option.name: option.default for option in options if option.kind is option.KEYWORD_ONLY}
    assert found.pop("seed") == 0 and found == OPTIONS.get(name, {})


@pytest.mark.parametrize(
    ("value", "default"),
    [
        (tome.ROUNDS, 24),
        (dyrate.RATE, 0.02),
        (dyrate.LETTERS, 16),
        (dyrate.Schedule(), dyrate.Schedule(rate=0.02, least=1, every=1)),
        (combined.CELLS, 150),
        (combined.MERGED, 2 / 3),
        (combined.ROUNDS, 12),
        (combined.SHOWN, 0.6),
        (variable.COUNTS, (64, 100, 160, 256, 400)),
        (variable.MEAN, 273),
        (variable.THRESHOLDS, (5.45, 8.29, 12.4, 22.5)),
        (cdpruner.NOTHING, 1e-8),
        (cdpruner.STEPS, 2.0**40),
        (likeness.STEPS, 2**20),
    ],
)
def test_numbers(value, default):
    assert value == default


def test_what_is_left_of_an_image_at_the_default_rate():
    """Two fifths for the tenth letter, a tenth for the fifteenth, the first being letter 0."""
    left = dyrate.Schedule().left(10**6, 16)
    assert [round(left[letter] / 10**6, 3) for letter in (9, 14)] == [0.382, 0.096]


def test_combined_merges_in_rounds_of_its_own(monkeypatch):
    given = []

    def noting(name):
        def reduce(seen, budget, **options):
            given.append((name, seen.features.shape[1], budget, options))
            return get_peer(name)(seen, budget, **options)

        return reduce

    monkeypatch.setattr("homunculus.peers.combined.get_peer", noting)
    memory = remember_combined(CompactVLM(tiny()), torch.rand(1, 3, 256, 256), torch.rand(1, 16, 16), questions("Who?"))
    assert given == [("tome", 150, 100, {"rounds": 12})] and memory.counts == (100, 20)


def test_equal_gains_go_to_the_first_whoever_is_beside():
    """Tokens that come again and again, at any place of a batch: a product may add in another order there."""
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(1, 7, 67, generator=generator).repeat(1, 19, 1)  # [1, 133, 67]
    others = torch.randn(6, 133, 67, generator=generator) * 1000
    even = torch.ones(7, 133).double()
    alone = cdpruner.largest_gains(own, even[:1], 20)
    assert alone[0, :7].sort().values.tolist() == list(range(7))  # the first of each kind
    assert alone[0, 7:].tolist() == list(range(7, 20))  # which say all there is
    for place in range(7):
        batch = torch.cat((others[:place], own, others[place:]))
        assert torch.equal(cdpruner.largest_gains(batch, even, 20)[place], alone[0])
