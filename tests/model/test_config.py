"""The shape of the model: what is refused, what survives JSON, and that presets are what they say."""

import json
import re
from dataclasses import replace

import pytest

from homunculus.errors import ModelError
from homunculus.model.config import PRESETS, Config, small, tiny
from homunculus.model.encoder import LEVELS, WAVES
from homunculus.model.rotary import POSITIONS
from homunculus.model.vlm import CompactVLM
from tests.model.tiny import TOKENIZER


@pytest.mark.parametrize("preset", PRESETS.values())
def test_a_config_survives_json(preset):
    config = Config.from_dict(json.loads(json.dumps(preset().as_dict())))
    assert config == preset() and hash(config) == hash(preset())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 100}, "100 channels do not split into 6 heads"),
        ({"width": 54, "heads": 6}, "heads of an even size"),
        ({"scorer_width": 161}, "161 channels do not split into 5 heads"),
        ({"width": 36, "heads": 6}, "heads of 6 channels are too small"),
        ({"leaf": 14}, "leaf of 14 pixels"),
        ({"leaf": 4}, "leaf of 4 pixels"),
        ({"positions": "polar"}, "no positions 'polar': choose level-x-y, placed, embedded-level, log-polar"),
    ],
)
def test_impossible_shapes_are_refused(settings, message):
    with pytest.raises(ModelError, match=message) as caught:
        Config(**settings)
    assert "\n" not in str(caught.value)


def test_a_config_from_before_there_were_positions_has_the_default():
    before = {name: value for name, value in small().as_dict().items() if name != "positions"}
    assert Config.from_dict(before) == replace(small(), positions="level-x-y") == Config()


def test_positions_cost_no_parameters_but_embeddings_of_levels_and_places():
    count = {
        name: sum(p.numel() for p in CompactVLM(replace(tiny(), positions=name), TOKENIZER).parameters())
        for name in POSITIONS
    }
    plain = sum(p.numel() for p in CompactVLM(tiny(), TOKENIZER).parameters())
    more = {"placed": 4 * WAVES[1] * tiny().width, "embedded-level": LEVELS * tiny().width}
    assert count == {name: plain + more.get(name, 0) for name in POSITIONS}


def test_unknown_settings_are_refused():
    with pytest.raises(ModelError, match="unknown settings of a model: depth, grace: update"):
        Config.from_dict({"grace": 1, "depth": 2, "width": 384})


def test_the_shipped_model_is_as_large_as_it_says():
    count = sum(p.numel() for p in CompactVLM(small(), TOKENIZER).parameters())
    said = float(re.search(r"([\d.]+) million", small.__doc__)[1])
    assert count <= 16e6
    assert round(count / 1e6, 1) == said


def test_every_setting_counts():
    """Each number of the config changes what is learned, so none is forgotten."""
    plain = tiny().as_dict()
    changes = {name: 2 * value for name, value in plain.items() if isinstance(value, int) and "heads" not in name}
    changes["scorer_stem"] = (16, 8)
    sizes = {
        name: sum(p.numel() for p in CompactVLM(Config.from_dict(plain | {name: value}), TOKENIZER).parameters())
        for name, value in changes.items()
    }
    ours = sum(p.numel() for p in CompactVLM(tiny(), TOKENIZER).parameters())
    assert all(size != ours for size in sizes.values()), sizes
