"""Two processes are one with the same global batch. Run by torchrun, this file is also what they run.

Tolerance: 1e-5 of each loss, as float32 sums over two halves and over a whole differ in their last bits.
"""

import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from homunculus.errors import HomunculusError
from homunculus.train import processes
from homunculus.train.journal import read_journal
from homunculus.train.loop import Settings, fit
from homunculus.train.processes import share

ROOT = Path(__file__).parents[2]
BATCH = 16
SETTINGS = Settings(30, rate=0.01, warmup=5)
MUON = Settings(20, rate=0.01, warmup=5, optimiser="muon")
RELATIVE = 1e-5


class Toy:
    """A regression whose processes take every other sample; one of its parts is used by even steps only."""

    def __init__(self) -> None:
        torch.manual_seed(share()[0])  # processes begin with different weights and must agree
        self.model = nn.ModuleDict({"body": nn.Linear(4, 16), "even": nn.Linear(16, 16), "last": nn.Linear(16, 1)})
        self.bad: tuple[int, int] | None = None  # step, part

    def loss(self, step: int) -> tuple[Tensor, dict[str, Any]]:
        part, parts = share()
        x = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))[part::parts]
        hidden = torch.tanh(self.model["body"](x))
        hidden = self.model["even"](hidden) if step % 2 == 0 else hidden
        error = (self.model["last"](hidden) - x.sum(1, keepdim=True)).square().mean()
        poison = torch.nan if self.bad == (step, part) else 1.0
        return error * poison, {"error": error, "samples": len(x)}

    def stage(self, out: Path, name: str, settings: Settings = SETTINGS, **options: Any) -> bool:
        return fit(self.model, self.loss, settings, out, name=name, progress=False, **options).finished


def run_all(out: Path, kind: str) -> None:
    """Stages one after another: plain, one that stops and goes on, from the first on with Muon, one with a bad step."""
    if kind == "fsdp":
        pretend_fsdp()
    toy = Toy()
    toy.stage(out, "plain")
    for _ in range(2):
        Toy().stage(out, "parts", minutes=0.0)
    Toy().stage(out, "parts")
    assert not [True for thing in gc.get_objects() if type(thing) is DistributedDataParallel], "a wrapper is left"
    if kind == "fsdp":
        assert all(hasattr(parameter, "full_tensor") for parameter in toy.model.parameters())
        with pytest.raises(HomunculusError, match="Muon needs whole matrices"):
            Toy().stage(out, "muon", MUON)
        return
    toy.stage(out, "muon", MUON)
    toy.bad = (7, share()[1] - 1)
    toy.stage(out, "bad", Settings(12))


def pretend_fsdp() -> None:
    """Accelerate shards on GPUs only; told that these are, it shards on the CPU as well."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    Accelerator(mixed_precision="no", cpu=True)
    for state in (PartialState, AcceleratorState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="NO_WRAP", cpu_ram_efficient_loading=False
    )


def launch(out: Path, kind: str, count: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    command += ["--master-port", str(port), "-m", "tests.train.test_processes", str(out), kind]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    run_all(out, "ddp")
    return out


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Path:
    pytest.importorskip("accelerate")
    out = tmp_path_factory.mktemp("together")
    launch(out, "ddp", 2)
    return out


def losses(out: Path, name: str) -> list[float]:
    lines = read_journal(out / f"{name}.jsonl")
    assert [line["step"] for line in lines] == list(range(len(lines)))
    return [line["loss"] for line in lines]


@pytest.mark.parametrize("name", ["plain", "muon"])
def test_two_processes_learn_as_one_does(alone, together, name):
    assert losses(together, name) == pytest.approx(losses(alone, name), rel=RELATIVE)
    assert len(set(losses(alone, name))) > 10


def test_samples_of_all_processes_are_counted(together):
    assert {line["samples"] for line in read_journal(together / "plain.jsonl")} == {BATCH}


def test_two_processes_go_on_where_they_stopped(together):
    assert losses(together, "parts") == losses(together, "plain")


def test_a_bad_loss_of_one_process_skips_the_step_of_all(together):
    skipped = [line["step"] for line in read_journal(together / "bad.jsonl") if line.get("skipped")]
    assert skipped == [7]
    assert all(loss is not None for step, loss in enumerate(losses(together, "bad")) if step != 7)


def test_two_processes_that_share_the_weights_learn_as_one_does(alone, tmp_path):
    pytest.importorskip("accelerate")
    launch(tmp_path, "fsdp", 2)
    assert losses(tmp_path, "plain") == pytest.approx(losses(alone, "plain"), rel=RELATIVE)
    assert losses(tmp_path, "parts") == losses(tmp_path, "plain")


def test_alone_accelerate_is_not_imported(tmp_path):
    code = (
        "import sys, json, torch; from pathlib import Path; from homunculus.train.loop import Settings, fit\n"
        "layer = torch.nn.Linear(1, 1)\n"
        f"fit(layer, lambda s: (layer(torch.ones(1, 1)).sum(), {{}}), Settings(2), Path({str(tmp_path)!r}), name='a')\n"
        "print(json.dumps([m for m in ('accelerate', 'matplotlib') if m in sys.modules]))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "WORLD_SIZE"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert json.loads(done.stdout) == [], done.stderr


def test_without_accelerate_the_fix_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(HomunculusError, match=r"pip install 'homunculus\[scale\]'"):
        processes.processes(torch.device("cpu"))


def test_more_processes_than_gpus_may_ask_but_not_train(monkeypatch):
    """For evaluation they take the GPUs in turn; gradients need one for each."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    assert processes.local_device() == torch.device("cuda", 0)
    with pytest.raises(HomunculusError, match="3 processes train on 2 GPUs and each needs its own"):
        processes.processes(processes.local_device())


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), sys.argv[2])
