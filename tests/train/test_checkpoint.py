"""Files that are whole or not there, damage that is seen, and states that fit or change nothing."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from homunculus.errors import HomunculusError, ModelError, OutputError
from homunculus.train import checkpoint
from homunculus.train.checkpoint import load, named_state, put_weights, save


def states(step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    weight = torch.full((3, 2), float(step))
    half = torch.full((5,), step, dtype=torch.bfloat16)
    return {"a.weight": weight, "a.same": weight, "half": half}, {"a.weight/step": torch.tensor(float(step))}


def saved(folder: Path, *steps: int) -> list[Path]:
    return [save(folder, *states(step), {"step": step, "what": {"rate": 0.1}}) for step in steps]


def test_it_comes_back(tmp_path):
    saved(tmp_path, 7)
    found = load(tmp_path)
    model, optimiser = states(7)
    assert found.meta == {"step": 7, "what": {"rate": 0.1}}
    for expected, got in ((model, found.model), (optimiser, found.optimiser)):
        assert expected.keys() == got.keys()
        assert all(torch.equal(expected[key], got[key]) and expected[key].dtype == got[key].dtype for key in expected)


def test_views_are_saved_as_they_look(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    save(tmp_path, {"turned": whole.T, "part": whole[1:, ::2]}, {}, {"step": 0})
    found = load(tmp_path).model
    assert torch.equal(found["turned"], whole.T) and torch.equal(found["part"], whole[1:, ::2])


def test_nothing_yet(tmp_path):
    assert load(tmp_path / "none") is None


def test_two_are_kept_and_the_newest_is_used(tmp_path):
    (tmp_path / "step-00000001.safetensors.part").write_bytes(b"cut short")
    saved(tmp_path, 3, 20, 100)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020.safetensors", "step-00000100.safetensors"]
    assert load(tmp_path).meta["step"] == 100


def test_a_cut_file_is_named_and_the_one_before_used(tmp_path, capsys):
    _, newest = saved(tmp_path, 1, 2)
    content = newest.read_bytes()
    for length in (0, 4, 100, len(content) - 1):
        newest.write_bytes(content[:length])
        assert load(tmp_path).meta["step"] == 1
        assert f"{newest} is damaged" in capsys.readouterr().err


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path, bytes]:
    folder = tmp_path_factory.mktemp("bits")
    _, newest = saved(folder, 1, 2)
    return folder, newest, newest.read_bytes()


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_seen(pair, where, bit):
    folder, newest, content = pair
    damaged = bytearray(content)
    damaged[int(where * len(content))] ^= 1 << bit
    newest.write_bytes(damaged)
    assert load(folder).meta["step"] == 1


def test_when_all_are_damaged_nothing_is_begun_anew(tmp_path):
    for path in saved(tmp_path, 1, 2):
        path.write_bytes(b"")
    with pytest.raises(HomunculusError, match=r"every checkpoint in .* is damaged"):
        load(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_while_writing_leaves_the_last_one(tmp_path, monkeypatch, call):
    saved(tmp_path, 1)

    def fail(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, call, fail)
        with pytest.raises(OutputError, match="no space left on device"):
            saved(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001.safetensors"]
    assert load(tmp_path).meta["step"] == 1


def test_the_disk_has_the_file_before_it_has_the_name(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(checkpoint.os, "fsync", lambda h: (calls.append(os.fstat(h).st_mode >> 12), fsync(h)))
    monkeypatch.setattr(checkpoint.os, "replace", lambda a, b: (calls.append("renamed"), replace(a, b)))
    saved(tmp_path, 1)
    assert calls == [0o10, "renamed", 0o04]  # a file, the rename, the folder


def test_a_compiled_model_has_its_own_names():
    compiled = nn.Sequential()
    compiled._orig_mod = nn.Linear(2, 2)  # as torch.compile does
    state = named_state(compiled)
    assert sorted(state) == ["bias", "weight"]
    put_weights(compiled, {name: torch.ones_like(value) for name, value in state.items()}, "here")
    assert (compiled._orig_mod.weight == 1).all()


def test_weights_that_do_not_fit_are_named_and_change_nothing():
    layer = nn.Linear(8, 8)
    before = layer.weight.detach().clone()
    fitting = {"weight": torch.ones(8, 8), "bias": torch.ones(8)}
    for tensors, said in (
        (fitting | {"weight": torch.ones(64, 8)}, r"'weight' is \[64, 8\] in here and \[8, 8\] in the model"),
        (fitting | {"extra": torch.ones(1)}, "here has 'extra'"),
        ({"weight": fitting["weight"]}, "here lacks 'bias'"),
    ):
        with pytest.raises(ModelError, match=said):
            put_weights(layer, tensors, "here")
        assert torch.equal(layer.weight, before)
