"""Weights in a folder: they come back, what is wrong with them is said, and no kill leaves a place without any."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.errors import DataError, ModelError, OutputError
from homunculus.model import weights
from homunculus.model.calibration import Calibration
from homunculus.model.config import small, tiny
from homunculus.model.tokenizer import Tokenizer
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import add_about, load_model, load_weights, read_about, save_weights
from tests.model.tiny import TOKENIZER, model

KIBIBYTE = 1 << 10


class Killed(BaseException):
    """As kill -9 does, it lets nothing be put in order."""


def same(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    """The same weights, once one of them was rounded to bfloat16."""
    pairs = zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x.bfloat16().to(x.dtype), y) for (a, x), (b, y) in pairs)


@pytest.fixture
def folder(tmp_path) -> Path:
    save_weights(model(), tmp_path / "weights")
    return tmp_path / "weights"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ----------------------------------------------------------------------------------------------------- they come back


def test_they_come_back_in_bfloat16(folder):
    assert files(folder) == ["model-00001-of-00001.safetensors", "model.json", "vocabulary.json"]
    found = load_model(folder)
    assert same(model(), found) and not same(model(seed=1), found)
    assert found.config == tiny() and found.tokenizer.size == TOKENIZER.size
    assert not found.training and not any(parameter.requires_grad for parameter in found.parameters())
    with weights.safe_open(folder / "model-00001-of-00001.safetensors", "pt") as file:
        assert all(file.get_tensor(name).dtype == torch.bfloat16 for name in file.keys())  # noqa: SIM118


def test_other_precisions(tmp_path):
    save_weights(model(), tmp_path / "exact", dtype=torch.float32)
    found = load_model(tmp_path / "exact").state_dict()
    assert all(torch.equal(value, found[name]) for name, value in model().state_dict().items())


def test_the_vocabulary_goes_with_them(tmp_path):
    tokenizer = Tokenizer.train(["the total of the total"] * 9, 300)
    save_weights(CompactVLM(tiny(), tokenizer), tmp_path / "own")
    found = load_model(tmp_path / "own").tokenizer
    assert found.encode("the total") == tokenizer.encode("the total") != TOKENIZER.encode("the total")


def test_about_and_calibration_are_kept(tmp_path):
    about = {"stage": "read", "calibration": {"slope": 0.5, "offset": -1.25}}
    save_weights(model(), tmp_path / "sure", about)
    assert read_about(tmp_path / "sure")["about"] == about
    assert load_model(tmp_path / "sure").calibration == Calibration(0.5, -1.25)
    save_weights(model(), tmp_path / "plain")
    assert load_model(tmp_path / "plain").calibration == Calibration()


def test_more_can_be_said_of_weights_that_are_there(folder):
    add_about(folder, {"made": "here", "calibration": {"slope": 2.0, "offset": 0.5}})
    add_about(folder, {"calibration": {"slope": 0.5, "offset": -1.25}})
    assert read_about(folder)["about"] == {"made": "here", "calibration": {"slope": 0.5, "offset": -1.25}}
    found = load_model(folder)
    assert found.calibration == Calibration(0.5, -1.25) and same(model(), found)
    assert files(folder) == ["model-00001-of-00001.safetensors", "model.json", "vocabulary.json"]
    with pytest.raises(ModelError, match=r"has no model.json"):
        add_about(folder.parent, {})


def test_a_kill_while_more_is_said_leaves_the_old_or_the_new(folder, monkeypatch):
    for moment in range(9):
        died = killed_at(moment, monkeypatch, lambda: add_about(folder, {"made": moment}))  # noqa: B023
        assert read_about(folder)["about"].get("made") in ({None, moment} if died else {moment})
        assert same(model(), load_model(folder))
        if not died:
            assert moment == 4  # written, on the disk, in its place, and that on the disk
            return
    raise AssertionError("it never came to an end")


@settings(max_examples=20, deadline=None)  # each flushes files to the disk
@given(st.integers(6, 80))
def test_no_shard_is_larger_than_allowed(tmp_path_factory, kibibytes):
    """Unless a tensor alone is."""
    place = tmp_path_factory.mktemp("shards") / "weights"
    ours = model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SHARD_BYTES", kibibytes * KIBIBYTE)
        save_weights(ours, place)
    shards = sorted(place.glob("*.safetensors"))
    assert [p.name for p in shards] == [
        f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)
    ]
    for path in shards:
        with weights.safe_open(path, "pt") as file:
            alone = len(file.keys()) == 1
        assert path.stat().st_size <= kibibytes * KIBIBYTE or alone
    assert len(shards) > 1 and same(ours, load_model(place))


def test_the_model_we_ship_fits_its_limits(tmp_path):
    save_weights(CompactVLM(small()), tmp_path / "small")
    sizes = [path.stat().st_size for path in (tmp_path / "small").glob("*.safetensors")]
    assert len(sizes) > 1 and max(sizes) <= 15 * 2**20 and sum(sizes) <= 32 * 2**20


def test_saving_again_leaves_nothing_old(folder, monkeypatch):
    monkeypatch.setattr(weights, "SHARD_BYTES", 20 * KIBIBYTE)
    save_weights(model(), folder)
    assert len(files(folder)) > 4
    monkeypatch.undo()
    save_weights(model(seed=1), folder)
    assert files(folder) == ["model-00001-of-00001.safetensors", "model.json", "vocabulary.json"]
    assert same(model(seed=1), load_model(folder)) and files(folder.parent) == ["weights"]


# ------------------------------------------------------------------------------------------------ what is wrong is said


def test_a_missing_or_damaged_shard_is_named(folder, monkeypatch):
    monkeypatch.setattr(weights, "SHARD_BYTES", 40 * KIBIBYTE)
    save_weights(model(), folder)
    shard = sorted(folder.glob("*.safetensors"))[1]
    content = shard.read_bytes()
    for damaged in (b"", content[:4], content[:100], content[:-1]):
        shard.write_bytes(damaged)
        with pytest.raises(ModelError, match=rf"{shard.name} is missing or damaged"):
            load_model(folder)
    shard.unlink()
    with pytest.raises(ModelError, match=rf"{shard.name} is missing or damaged"):
        load_model(folder)
    shard.write_bytes(content)
    assert same(model(), load_model(folder))


def test_weights_of_another_shape_change_nothing(folder):
    for config in (replace(tiny(), width=64), replace(tiny(), encoder_layers=3)):
        other = CompactVLM(config, TOKENIZER)
        before = {name: value.clone() for name, value in other.state_dict().items()}
        with pytest.raises(ModelError, match="of another shape"):
            load_weights(other, folder)
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_a_folder_without_a_model_is_named(folder):
    for place in (folder.parent / "nowhere", folder.parent):
        with pytest.raises(ModelError, match=r"has no model.json: give a folder written by `homunculus train`"):
            load_model(place)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"config": {}, "shards": 1}'])
def test_a_damaged_description_is_named(folder, text):
    (folder / "model.json").write_text(text)
    with pytest.raises(ModelError, match=r"model.json is damaged"):
        load_model(folder)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (None, "shards", "3"),
        ("config", "width", "384"),
        ("config", "heads", 0),
        ("about", "calibration", {"slop": 1.0}),
        ("about", "calibration", {"slope": "steep"}),
        ("about", "calibration", [1.0]),
    ],
)
def test_a_description_that_makes_no_sense_is_named(folder, where, name, value):
    known = json.loads((folder / "model.json").read_text())
    (known if where is None else known[where])[name] = value
    (folder / "model.json").write_text(json.dumps(known))
    with pytest.raises(ModelError, match=r"model.json is damaged"):
        load_model(folder)


def test_settings_of_a_later_version_are_named(folder):
    known = json.loads((folder / "model.json").read_text())
    known["config"]["third_eye"] = 1
    (folder / "model.json").write_text(json.dumps(known))
    with pytest.raises(ModelError, match="third_eye: update homunculus"):
        load_model(folder)


def test_a_missing_vocabulary_is_named(folder):
    (folder / "vocabulary.json").unlink()
    with pytest.raises(DataError, match=r"vocabulary.json is no vocabulary"):
        load_model(folder)


def test_without_shipped_weights_the_fix_is_named(folder, monkeypatch):
    monkeypatch.setattr(weights, "SHIPPED", folder.parent / "shipped")
    with pytest.raises(ModelError, match=r"no weights of the compact model: give a folder with --weights"):
        load_model()
    folder.rename(folder.parent / "shipped")
    assert same(model(), load_model())


# ------------------------------------------------------------------------------------------------------------- a kill


def killed_at(moment: int, monkeypatch, save) -> bool:
    """Save, and die before the given one of its renames, removals and flushes; whether it died."""
    left = moment
    with monkeypatch.context() as patch:

        def dying(call):
            def instead(*arguments, **options):
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return call(*arguments, **options)

            return instead

        calls = [
            (Path, "rename"),
            (Path, "replace"),
            (Path, "write_text"),
            (weights.shutil, "rmtree"),
            (weights.os, "fsync"),
        ]
        for owner, name in calls:
            patch.setattr(owner, name, dying(getattr(owner, name)))
        try:
            save()
        except Killed:
            return True
    return False


def test_a_kill_leaves_the_old_ones_or_the_new(folder, monkeypatch):
    """At whichever moment, also twice in a row; and saving once more puts all in order."""
    old, new = model(), model(seed=1)
    found, moment = [], 0
    while killed_at(moment, monkeypatch, lambda: save_weights(new, folder)):
        left = load_model(folder)
        assert same(old, left) or same(new, left)
        found.append(same(new, left))
        for again in range(moment + 1):
            killed_at(again, monkeypatch, lambda: save_weights(new, folder))
            left = load_model(folder)
            assert same(old, left) or same(new, left)
        save_weights(old, folder)
        assert same(old, load_model(folder)) and files(folder.parent) == ["weights"]
        moment += 1
    assert moment > 8 and found == sorted(found) and True in found and False in found


def test_a_half_removed_old_one_is_not_used(folder):
    """It is removed after the new one is in place, which is then the one that is read."""
    old = folder.with_name("weights.old")
    shutil.copytree(folder, old)
    (old / "model.json").unlink()
    assert same(model(), load_model(folder))
    (folder / "model.json").unlink()  # whole or not: what has the name is what is asked for
    with pytest.raises(ModelError, match=r"weights has no model.json"):
        load_model(folder)


def test_a_full_disk_is_said_and_leaves_the_old_ones(folder, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(weights.os, "fsync", full)
        with pytest.raises(OutputError, match="no space left on device"):
            save_weights(model(seed=1), folder)
    assert same(model(), load_model(folder))
