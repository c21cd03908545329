"""The loop that every stage shares: it steps, saves, resumes, stops in time, and tells how it goes.

Nothing in a step waits for the device: losses, norms and what the stage measures stay there and are read together,
every 20 steps or two seconds. A step whose loss or gradient is not finite is skipped on the device and counted.

A step is a function of the weights, the optimiser's state and its number (the global generator is seeded by it), so a
run that is killed and called again ends, on the CPU, with the same bits as one that was not. State is out/NAME/, lines
are out/NAME.jsonl; after a kill those that came after the checkpoint are dropped and made again.
"""

import math
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

import homunculus
from homunculus.cache.keys import content_key
from homunculus.errors import HomunculusError
from homunculus.train.checkpoint import Checkpoint, load, named_state, plain, put_weights, save
from homunculus.train.journal import OWN, Journal, Teller, device_figures
from homunculus.train.optimiser import Settings, make_optimiser, rate_at
from homunculus.train.processes import Alone, Loss, Signals, processes, share, whole

__all__ = ["Outcome", "Settings", "fit"]

WINDOW = 20  # steps between readings of the device, at most
PAUSE = 2.0  # seconds between them, about
PATIENCE = 25  # skipped steps in a row that end a run
SAVING = 50e6  # bytes a second: how long the first checkpoint is thought to take, until one has been timed


@dataclass
class Outcome:
    """How a run stands: after how many steps, the loss of the last, seconds spent in steps, steps that were skipped."""

    finished: bool = False
    step: int = 0
    loss: float = math.nan
    seconds: float = 0.0
    skipped: int = 0
    in_a_row: int = 0  # how many of the skipped ones were the last


def fit(
    model: nn.Module,
    loss: Loss,
    settings: Settings,
    out: Path,
    *,
    name: str,
    trained: Sequence[nn.Parameter] | None = None,
    evaluate: Callable[[int], dict[str, float]] | None = None,
    evaluate_every: int = 0,
    begin: Callable[[int], None] | None = None,
    minutes: float | None = None,
    progress: bool = True,
) -> Outcome:
    """Train a model, or go on with it: called again after a kill, it resumes; after the end, it returns at once.

    `loss(step)` gives the loss of a step and scalars to note ("samples": how many there were), all on the device; what
    is random in it must follow from the step. Only `trained` learns (by default all that requires a gradient), the rest
    is frozen meanwhile. `begin(step)` hears where the run starts. `evaluate(steps done)` is called in evaluation mode,
    without gradients, every `evaluate_every` steps and at the end. After `minutes`, saving included, the run stops with
    its state saved and `finished` False; Ctrl-C and SIGTERM save as well, then leave.

    >>> from tempfile import TemporaryDirectory
    >>> def loss(step):
    ...     x = torch.randn(8, 2)
    ...     return (layer(x) - x.sum(1, keepdim=True)).square().mean(), {"samples": torch.tensor(8.0)}
    >>> with TemporaryDirectory() as out:
    ...     layer = nn.Linear(2, 1)
    ...     outcome = fit(layer, loss, Settings(300, rate=0.1, warmup=10), Path(out), name="sum", progress=False)
    >>> outcome.finished, outcome.loss < 1e-4
    (True, True)
    """
    started = time.monotonic()
    team = processes(next(model.parameters()).device)
    folder, names = Path(out) / name, _names(model, trained)
    found = _matching(folder, settings, names)
    outcome = Outcome(**{key: found.meta[key] for key in asdict(Outcome())}) if found else Outcome()
    if found:
        put_weights(model, found.model, folder)
    if outcome.finished:
        return outcome
    teller = Teller(name, settings.steps, outcome.step, shown=progress and team.main)
    with _learning(model, names), teller, _journal(folder, outcome.step, team.main) as journal:
        run = _Run(model, loss, settings, team, names, folder, outcome)
        if found:
            run.optimiser.load(found.optimiser)
        teller.say(f"{name}: {run.described()}, from step {outcome.step} of {settings.steps}")
        if begin:
            begin(outcome.step)
        run.saved, number = time.monotonic(), 0
        with Signals() as signals:
            while not outcome.finished:
                lines = run.steps(_end(outcome.step, run.window, settings, evaluate_every))
                if evaluate and _is_time(outcome.step, evaluate_every, settings):
                    lines[-1]["evaluation"] = run.evaluated(evaluate)
                if journal:
                    journal.write(lines)
                teller.tell(outcome.step, lines[-1])
                _check_finite(name, outcome, settings)
                late = minutes is not None and time.monotonic() + run.needed() > started + 60 * minutes
                number, stop, due, run.window = team.agreed([signals.number, late, run.is_due(), run.window])
                if outcome.finished or number or stop or due:
                    run.save(journal)
                if (number or stop) and not outcome.finished:
                    why = signal.Signals(number).name if number else "out of time"
                    teller.say(f"{name}: {why}, saved at step {outcome.step}: the same command goes on from there")
                    break
        team.release()
    if number:
        raise SystemExit(128 + number)
    return outcome


class _Run:
    """What the steps of a run work on."""

    def __init__(
        self, model: nn.Module, loss: Loss, settings: Settings, team: Alone, names: set[str], folder: Path, now: Outcome
    ) -> None:
        self.model, self.settings, self.team, self.folder, self.outcome = model, settings, team, folder, now
        self.names = names
        self.forward = team.prepare(model, loss)
        named = {plain(n): p for n, p in model.named_parameters() if plain(n) in names}  # FSDP has made them anew
        self.optimiser = make_optimiser(named, settings)
        self.device = next(model.parameters()).device
        self.cast = settings.dtype == "bfloat16" and self.device.type == "cuda"
        self.saved = time.monotonic()  # when
        self.window = 1  # steps until the next reading; the first may be slow
        self.pace = 0.0  # seconds a step, lately
        self.windows = 0  # read so far; the first one compiles, which is no pace
        self.saving = 0.5 + 3 * sum(p.numel() * p.element_size() for p in named.values()) / SAVING  # seconds
        self.evaluating = 0.0  # seconds

    def described(self) -> str:
        """What learns and what is frozen."""
        counts = {True: 0, False: 0}
        for parameter in self.model.parameters():
            counts[parameter.requires_grad] += parameter.numel()
        return f"{counts[True]:,} parameters learn, {counts[False]:,} are frozen"

    def step(self, step: int) -> tuple[tuple[str, ...], Tensor]:
        """One step; gives names and values of what it measured, still on the device."""
        _seed((self.settings.seed * 1_000_003 + step) * 4099 + share()[0], self.device)
        with torch.autocast("cuda", torch.bfloat16) if self.cast else nullcontext():
            value, extra = self.forward(step)
        value.backward()
        norm = whole(nn.utils.clip_grad_norm_(self.optimiser.named.values(), self.settings.clip))
        row = self.team.mean(_row(value, extra))
        skip = 1 - torch.isfinite(row[0] + norm).float()
        self.optimiser.step(rate_at(step, self.settings), skip)
        return ("loss", *extra, "norm", "skipped"), torch.cat((row, torch.stack((norm.float(), skip))))

    def steps(self, end: int) -> list[dict[str, Any]]:
        """All steps before `end`; gives their lines of the journal."""
        first, began = self.outcome.step, time.monotonic()
        rows = [self.step(step) for step in range(first, end)]
        figures = device_figures(self.device)  # now, while it is busy
        values = iter(torch.cat([row for _, row in rows]).tolist())  # the only wait for the device
        self.pace = (time.monotonic() - began) / len(rows)
        self.window = min(max(int(PAUSE / self.pace), 1), WINDOW)
        self.windows += 1
        lines = []
        for step, (keys, _) in enumerate(rows, first):
            measured = {key: next(values) for key in keys}
            self.outcome.seconds += self.pace
            self._count(step, measured)
            lines.append(self._line(step, measured))
        lines[-1] |= figures
        return lines

    def _count(self, step: int, measured: dict[str, float]) -> None:
        skipped = bool(measured.pop("skipped"))
        now = self.outcome
        now.step, now.finished, now.loss = step + 1, step + 1 == self.settings.steps, measured["loss"]
        now.in_a_row = now.in_a_row + 1 if skipped else 0
        now.skipped += skipped

    def _line(self, step: int, measured: dict[str, float]) -> dict[str, Any]:
        line: dict[str, Any] = {"step": step, **measured, "rate": rate_at(step, self.settings)}
        line["seconds"] = round(self.outcome.seconds, 3)
        if self.outcome.in_a_row:
            line["skipped"] = True
        if "samples" in measured:
            line["samples"] = measured["samples"] * self.team.parts  # each process told of its own
            line["samples_per_second"] = round(line["samples"] / self.pace, 1)
        return line

    def evaluated(self, evaluate: Callable[[int], dict[str, float]]) -> dict[str, float]:
        """What `evaluate` measures, with all modules in evaluation mode."""
        began = time.monotonic()
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16) if self.cast else nullcontext():
            found = evaluate(self.outcome.step)
        for module, mode in modes.items():
            module.training = mode
        self.evaluating = max(self.evaluating, time.monotonic() - began)
        return found

    def is_due(self) -> bool:
        """Whether it is time to save."""
        if self.settings.save_steps:
            return self.outcome.step % self.settings.save_steps == 0
        return time.monotonic() - self.saved >= self.settings.save_every

    def needed(self) -> float:
        """Seconds until the next moment to stop and save will have passed, generously."""
        step = self.pace if self.windows > 1 else 0.0
        return 1.25 * self.window * step + self.evaluating + 1.5 * self.saving

    def save(self, journal: Journal | None) -> None:
        """Write a checkpoint; what is finished needs no optimiser any more."""
        began = time.monotonic()
        model = named_state(self.model)
        optimiser = {} if self.outcome.finished else {k: whole(v) for k, v in self.optimiser.state().items()}
        if journal:
            journal.flush()
            save(self.folder, model, optimiser, asdict(self.outcome) | _described(self.settings, self.names))
        self.team.wait()
        self.saved = time.monotonic()
        self.saving = self.saved - began


def _seed(number: int, device: torch.device) -> None:
    """As torch.manual_seed does, which spends a tenth of a millisecond on devices that are not there."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def _check_finite(name: str, outcome: Outcome, settings: Settings) -> None:
    if outcome.in_a_row >= PATIENCE:
        where = f"in the {outcome.in_a_row} steps before step {outcome.step}"
        raise HomunculusError(
            f"{name}: loss or gradient not finite {where}: lower rate={settings.rate} or check the data"
        )


def _row(value: Tensor, extra: Mapping[str, Tensor | float]) -> Float32[Tensor, " n"]:
    """The loss and all else that was measured, in one tensor on the device."""
    if taken := set(extra) & set(OWN):
        raise HomunculusError(f"the loop itself notes '{min(taken)}': give what the loss measures another name")
    return torch.stack([_scalar(x, value.device) for x in (value, *extra.values())])


def _scalar(x: Tensor | float, device: torch.device) -> Float32[Tensor, ""]:
    if isinstance(x, Tensor) and x.device == device:
        return x.detach().float()
    return torch.full((), float(x), device=device)  # a copy from the host would wait for the device


def _is_time(step: int, every: int, settings: Settings) -> bool:
    return step == settings.steps or (every > 0 and step % every == 0)


def _end(step: int, window: int, settings: Settings, evaluate_every: int) -> int:
    """Where a window that begins at `step` ends: at the next step to evaluate or save at, if that comes first."""
    stops = [(step // every + 1) * every for every in (settings.save_steps, evaluate_every) if every > 0]
    return min(step + window, settings.steps, *stops)


def _names(model: nn.Module, trained: Sequence[nn.Parameter] | None) -> set[str]:
    """The names of the parameters that learn."""
    if trained is None:
        return {plain(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    wanted = {id(parameter) for parameter in trained}
    names = {plain(name) for name, parameter in model.named_parameters() if id(parameter) in wanted}
    if len(names) < len(wanted):
        raise HomunculusError(f"{len(wanted) - len(names)} parameters to train are not the model's: give its own")
    return names


@contextmanager
def _learning(model: nn.Module, names: set[str]) -> Iterator[None]:
    """Only these parameters take gradients meanwhile."""
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(plain(name) in names)
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])


def _journal(folder: Path, step: int, main: bool) -> AbstractContextManager[Journal | None]:
    if not main:
        return nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    return Journal(folder.with_name(f"{folder.name}.jsonl"), step)


def _described(settings: Settings, names: set[str]) -> dict[str, Any]:
    """What a checkpoint says of the run it belongs to."""
    versions = {"homunculus": homunculus.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"settings": asdict(settings), "trained": content_key(sorted(names)), "versions": versions}


def _matching(folder: Path, settings: Settings, names: set[str]) -> Checkpoint | None:
    """The checkpoint to go on from, which must be of this very run."""
    found = load(folder)
    if found is None:
        return None
    now = _described(settings, names)
    for key, value in now["settings"].items():
        before = found.meta["settings"].get(key)
        if before != value and not key.startswith("save_"):
            raise HomunculusError(f"{folder} was begun with {key}={before}, not {value}: keep it or write elsewhere")
    if found.meta["trained"] != now["trained"]:
        raise HomunculusError(f"{folder} was begun with other parameters to train: keep them or write elsewhere")
    return found
