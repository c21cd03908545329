"""The loop: the same bits whatever interrupts it, steps that are not finite, what is frozen, when it stops."""

import multiprocessing
import random
import signal
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from homunculus.errors import HomunculusError
from homunculus.train import loop
from homunculus.train.journal import read_journal
from homunculus.train.loop import Outcome, Settings, fit

STEPS = 150
SETTINGS = Settings(STEPS, rate=0.01, warmup=10)
OFTEN = replace(SETTINGS, save_steps=4)
KILLS = 5


class Toy:
    """A regression with dropout, whose batch follows from the step."""

    def __init__(self, seed: int = 0, pause: float = 0.0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.pause = pause
        self.signals: dict[int, tuple[signal.Signals, ...]] = {}  # raised at a step
        self.seen: list[int] = []

    def loss(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        time.sleep(self.pause)
        self.seen.append(step)
        for number in self.signals.get(step, ()):
            raised(number)
        x = torch.randn(32, 4, generator=torch.Generator().manual_seed(step))
        error = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        return error, {"error": error.sqrt(), "samples": torch.tensor(32.0)}

    def fit(self, out: Path, settings: Settings = SETTINGS, **options: Any) -> Outcome:
        return fit(self.model, self.loss, settings, out, name="toy", **{"progress": False, **options})


def raised(number: signal.Signals) -> None:
    """Raise a signal and wait until it is heard: two that are raised at once may be heard as one."""
    before, until = signal.getsignal(number), time.monotonic() + 5
    signal.raise_signal(number)
    while signal.getsignal(number) is before and time.monotonic() < until:
        time.sleep(0.001)


def curve(out: Path) -> list[tuple[int, float, float, float]]:
    return [(line["step"], line["loss"], line["norm"], line["rate"]) for line in read_journal(out / "toy.jsonl")]


def assert_same(one: nn.Module, other: nn.Module) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> tuple[Toy, Path]:
    toy, out = Toy(), tmp_path_factory.mktemp("unbroken")
    assert toy.fit(out).finished
    return toy, out


def train_slowly(out: Path, begun: Any) -> None:
    torch.set_num_threads(1)
    Toy(seed=1, pause=0.012).fit(out, OFTEN, begin=lambda _: begun.set())  # other weights, unless it resumes


def test_it_learns_and_tells_each_step_once(unbroken):
    toy, out = unbroken
    lines = read_journal(out / "toy.jsonl")
    assert [line["step"] for line in lines] == toy.seen == list(range(STEPS))
    assert lines[-1]["loss"] < 0.1 * lines[0]["loss"]
    assert all(line["samples_per_second"] > 0 and line["samples"] == 32 for line in lines)
    assert all(a["seconds"] <= b["seconds"] for a, b in pairwise(lines))
    assert all(line["error"] == pytest.approx(line["loss"] ** 0.5) for line in lines)


def test_kill_nine_at_five_moments_changes_nothing(unbroken, tmp_path):
    """Each process starts from the same wrong weights, so what is right at the end came from the checkpoints."""
    reference, expected = unbroken
    context = multiprocessing.get_context("forkserver")  # torch is imported once, so that a start takes milliseconds
    context.set_forkserver_preload(["tests.train.test_loop"])
    Toy().fit(tmp_path, minutes=0.0)  # the true first weights, and one step
    moments = random.Random(7)
    for _ in range(KILLS):
        begun = context.Event()
        process = context.Process(target=train_slowly, args=(tmp_path, begun))
        process.start()
        assert begun.wait(60)
        time.sleep(moments.uniform(0.02, 0.25))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it was to be killed in the midst of work"
    assert 1 < len(curve(tmp_path)) < STEPS
    last = Toy(seed=2)
    assert last.fit(tmp_path).finished
    assert curve(tmp_path) == curve(expected)
    assert_same(last.model, reference.model)


def test_a_damaged_checkpoint_costs_steps_but_not_the_result(unbroken, tmp_path, capsys):
    reference, expected = unbroken
    Toy().fit(tmp_path, minutes=0.0)
    stopped = Toy(seed=1)
    stopped.signals = {50: (signal.SIGTERM,)}
    with pytest.raises(SystemExit) as left:
        stopped.fit(tmp_path, OFTEN, progress=True)
    assert left.value.code == 128 + signal.SIGTERM
    assert "SIGTERM, saved at step" in capsys.readouterr().err
    before, newest = sorted((tmp_path / "toy").iterdir())
    assert before.name == "step-00000048.safetensors" and newest.name == "step-00000052.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])
    again = Toy(seed=2)
    assert again.fit(tmp_path).finished
    assert f"{newest} is damaged" in capsys.readouterr().err
    assert again.seen[0] == int(before.stem.split("-")[1])
    assert curve(tmp_path) == curve(expected)
    assert_same(again.model, reference.model)


def test_muon_resumes_to_the_same_bits(tmp_path):
    settings = Settings(10, optimiser="muon")
    whole, parts = Toy(), Toy()
    whole.fit(tmp_path / "whole", settings)
    while not parts.fit(tmp_path / "parts", settings, minutes=0.0).finished:
        parts = Toy(seed=1)
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    assert_same(whole.model, parts.model)


def test_ctrl_c_saves_and_leaves(tmp_path):
    toy = Toy()
    toy.signals = {5: (signal.SIGINT,)}
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as left:
        toy.fit(tmp_path)
    assert left.value.code == 128 + signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
    again = Toy(seed=1)
    again.fit(tmp_path)
    assert again.seen[0] == toy.seen[-1] + 1 > 5


def test_a_second_ctrl_c_leaves_at_once(tmp_path):
    toy = Toy()
    toy.signals = {5: (signal.SIGINT, signal.SIGINT)}  # within one step
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            toy.fit(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert toy.seen[-1] == 5


def test_what_is_finished_is_only_loaded(unbroken, tmp_path):
    toy, out = unbroken
    again = Toy(seed=3)
    outcome = again.fit(out)
    assert outcome.finished and outcome.step == STEPS and not again.seen
    assert outcome.loss == curve(out)[-1][1]
    assert_same(again.model, toy.model)


def test_it_stops_in_time(tmp_path):
    outcome = Toy(pause=0.02).fit(tmp_path, Settings(10_000), minutes=2 / 60)
    assert not outcome.finished and 1 < outcome.step < 100  # as many as could be, were nothing but the pauses
    assert Toy(seed=1).fit(tmp_path, Settings(10_000), minutes=0.0).step == outcome.step + 1


def test_it_hears_where_it_starts(tmp_path):
    starts: list[int] = []
    Toy().fit(tmp_path, minutes=0.0, begin=starts.append)
    Toy().fit(tmp_path, minutes=0.0, begin=starts.append)
    assert starts == [0, 1]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path, kind, poison):
    toy, held = Toy(), {}

    def loss(step: int) -> Any:
        value, extra = toy.loss(step)
        if step == 8:
            held["after"] = [p.detach().clone() for p in toy.model.parameters()]
        if step == 7:
            held["before"] = [p.detach().clone() for p in toy.model.parameters()]
            # the root of 0 is finite, its slope is not
            return (value * torch.nan if poison == "loss" else (value - value.detach()).sqrt()), extra
        return value, extra

    outcome = fit(toy.model, loss, Settings(40, optimiser=kind, warmup=0), tmp_path, name="toy", progress=False)
    lines = read_journal(tmp_path / "toy.jsonl")
    assert outcome.skipped == 1 and [line["step"] for line in lines if line.get("skipped")] == [7]
    assert all(torch.equal(a, b) for a, b in zip(held["before"], held["after"], strict=True))
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_many_in_a_row_end_the_run(tmp_path):
    toy = Toy()
    with pytest.raises(
        HomunculusError, match=r"toy: loss or gradient not finite in the \d+ steps before step"
    ) as raised:
        fit(toy.model, lambda step: (toy.loss(step)[0] * torch.inf, {}), SETTINGS, tmp_path, name="toy", progress=False)
    assert "\n" not in str(raised.value)
    assert len(toy.seen) < loop.PATIENCE + loop.WINDOW


class Waits(TorchDispatchMode):
    """Counts what would wait for a device: numbers read from tensors, and questions whose answer is a Python bool."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.equal)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_no_step_waits_for_the_device(tmp_path, kind):
    toy, waits = Toy(), []
    with Waits() as mode:

        def loss(step: int) -> Any:
            waits.append(mode.count)
            return toy.loss(step)

        fit(toy.model, loss, Settings(60, optimiser=kind), tmp_path, name="toy", progress=False)
    assert waits[-1] == waits[1]  # the first step may set things up; `tolist` of a window is not seen here


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_no_step_waits_for_the_gpu(tmp_path, kind):
    model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 1)).cuda()
    x = torch.randn(32, 4, device="cuda")

    def loss(step: int) -> Any:
        torch.cuda.set_sync_debug_mode("error" if step > 2 else "default")
        made = model(x)
        assert made.dtype == torch.bfloat16
        return (made.float() - x.sum(1, keepdim=True)).square().mean(), {"samples": 32.0}

    real = loop.device_figures  # what is called just before a window is read
    loop.device_figures = lambda device: (torch.cuda.set_sync_debug_mode("default"), real(device))[1]
    try:
        fit(model, loss, Settings(100, optimiser=kind, rate=0.01), tmp_path, name="toy", progress=False)
    finally:
        loop.device_figures = real
        torch.cuda.set_sync_debug_mode("default")
    lines = read_journal(tmp_path / "toy.jsonl")
    assert lines[-1]["loss"] < lines[0]["loss"] and any("memory" in line for line in lines)


def test_only_what_is_trained_changes(tmp_path):
    toy = Toy()
    first, last = toy.model[0], toy.model[3]
    first.bias.requires_grad_(False)
    before = [p.detach().clone() for p in first.parameters()]
    during: list[list[bool]] = []
    toy.fit(
        tmp_path,
        Settings(20),
        trained=list(last.parameters()),
        begin=lambda _: during.append([p.requires_grad for p in toy.model.parameters()]),
    )
    assert during == [[False, False, True, True]]
    assert [p.requires_grad for p in toy.model.parameters()] == [True, False, True, True]
    assert all(torch.equal(a, b) for a, b in zip(before, first.parameters(), strict=True))
    assert not torch.equal(last.weight, Toy().model[3].weight)


def test_evaluation_is_noted_and_leaves_modes_alone(tmp_path):
    toy = Toy()
    toy.model[0].eval()
    modes = []

    def evaluate(step: int) -> dict[str, float]:
        modes.append((step, toy.model.training, toy.model[2].training, torch.is_grad_enabled()))
        return {"score": float(step)}

    toy.fit(tmp_path, Settings(25), evaluate=evaluate, evaluate_every=10)
    assert modes == [(step, False, False, False) for step in (10, 20, 25)]
    assert [m.training for m in toy.model] == [False, True, True, True]
    noted = {line["step"]: line["evaluation"] for line in read_journal(tmp_path / "toy.jsonl") if "evaluation" in line}
    assert noted == {9: {"score": 10.0}, 19: {"score": 20.0}, 24: {"score": 25.0}}


def test_another_run_is_not_mistaken_for_this_one(tmp_path):
    toy = Toy()
    toy.fit(tmp_path, minutes=0.0)
    with pytest.raises(HomunculusError, match=r"was begun with rate=0.01, not 0.5"):
        toy.fit(tmp_path, Settings(STEPS, rate=0.5, warmup=10))
    with pytest.raises(HomunculusError, match=r"was begun with other parameters to train"):
        toy.fit(tmp_path, trained=list(toy.model[0].parameters()))
    often = Settings(STEPS, rate=0.01, warmup=10, save_every=3.0)
    assert toy.fit(tmp_path, often, minutes=0.0).step == 2


def test_what_cannot_be_is_said(tmp_path):
    toy = Toy()
    with pytest.raises(HomunculusError, match=r"1 parameters to train are not the model's"):
        toy.fit(tmp_path, trained=[nn.Parameter(torch.ones(1))])
    with pytest.raises(HomunculusError, match=r"the loop itself notes 'rate'"):
        fit(toy.model, lambda s: (toy.loss(s)[0], {"rate": 1.0}), SETTINGS, tmp_path, name="toy", progress=False)


def test_without_a_terminal_it_tells_in_plain_lines(tmp_path, capsys):
    Toy().fit(tmp_path, Settings(20), progress=True)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "toy: 97 parameters learn, 0 are frozen, from step 0 of 20"
    assert told[-1].startswith("toy: step 20 of 20  loss ") and "samples/s" in told[-1]
