"""What a run tells: a line for each step in NAME.jsonl, a bar or a line now and then, and curves of all stages.

A line holds step, loss, rate, norm (of the gradient, before it is clipped), seconds (spent in steps so far), whatever
the stage's loss gave, samples_per_second, `skipped` where the step was not taken, `evaluation` where the model was
evaluated after it, and at each reading of a GPU memory (highest so far, GiB) and busy: the share of time in which a
kernel ran, as the driver samples it, left out where the driver's library is not there to be asked.
"""

import ctypes
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from homunculus.errors import DataError
from homunculus.train.checkpoint import replace_file

OWN = ("step", "loss", "rate", "norm", "seconds", "skipped", "samples_per_second", "memory", "busy", "evaluation")
EVERY = 10.0  # seconds between plain lines


class Journal:
    """The file with a line for each step. Opened at step n, it keeps the lines of the n steps before and no others.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "reader.jsonl"
    ...     with Journal(path) as journal:
    ...         journal.write([{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}])
    ...     with Journal(path, step=1) as journal:
    ...         journal.write([{"step": 1, "loss": 1.5}])
    ...     read_journal(path)
    [{'step': 0, 'loss': 2.0}, {'step': 1, 'loss': 1.5}]
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        kept = [line for line in read_journal(path) if line["step"] < step] if path.exists() else []
        text = "".join(_text(line) for line in kept)
        replace_file(path, lambda beside: beside.write_text(text, encoding="utf-8"))
        self.file = path.open("a", encoding="utf-8")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines; what is not finite becomes null."""
        self.file.writelines(_text(line) for line in lines)
        self.file.flush()

    def flush(self) -> None:
        """Onto the disk, before a checkpoint that relies on these lines."""
        os.fsync(self.file.fileno())


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal, without a last one that a kill cut short."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")[:-1]  # whatever follows the last line break is not a whole line
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        raise DataError(f"{path} is not a journal of a run: remove it") from None


class Teller:
    """Says how a run goes, on stderr: a bar where somebody watches, or else a line every ten seconds.

    >>> with Teller("reader", steps=100, step=0, shown=False) as teller:
    ...     teller.tell(20, {"loss": 1.5, "accuracy": 0.25})
    >>> told({"step": 19, "loss": 1.5, "accuracy": 0.25, "samples_per_second": 1234.5})
    'loss 1.5  accuracy 0.25  1234 samples/s'
    """

    def __init__(self, name: str, steps: int, step: int, shown: bool = True) -> None:
        self.name, self.steps, self.shown = name, steps, shown
        self.first = (step, time.monotonic())
        self.last = self.first[1]
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        hidden = not (shown and self.console.is_terminal)
        self.bar = Progress(*columns, TextColumn("{task.fields[told]}"), console=self.console, disable=hidden)
        self.task = self.bar.add_task(name, total=steps, completed=step, told="")

    def __enter__(self) -> "Teller":
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def tell(self, step: int, line: Mapping[str, Any]) -> None:
        """How things stand after `step` steps, by the last line of the journal."""
        now = time.monotonic()
        self.bar.update(self.task, completed=step, told=told(line))
        if self.bar.disable and (now - self.last >= EVERY or step == self.steps):
            left = (now - self.first[1]) / max(step - self.first[0], 1) * (self.steps - step)
            self.last = now
            self.say(f"{self.name}: step {step} of {self.steps}  {told(line)}  {left:.0f} s left")

    def say(self, text: str) -> None:
        """A line of its own."""
        if self.shown:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def told(line: Mapping[str, Any]) -> str:
    """The numbers of a line that somebody watching wants to see."""
    numbers = {"loss": line.get("loss")} | {k: v for k, v in line.items() if k not in OWN and k != "samples"}
    numbers |= line.get("evaluation", {})
    parts = [f"{key} {value:.4g}" for key, value in numbers.items() if value is not None]
    if speed := line.get("samples_per_second"):
        parts.append(f"{speed:.0f} samples/s")
    return "  ".join(parts)


def device_figures(device: torch.device) -> dict[str, float]:
    """Highest memory (GiB) and busy share of a GPU; nothing for the CPU.

    >>> device_figures(torch.device("cpu"))
    {}
    """
    if device.type != "cuda":
        return {}
    figures = {"memory": round(torch.cuda.max_memory_allocated(device) / 2**30, 3)}
    busy = _busy(str(torch.cuda.get_device_properties(device).uuid))
    return figures if busy is None else figures | {"busy": busy}


def _busy(uuid: str) -> float | None:
    """Through the library of the driver itself, since torch.cuda.utilization wants a package that may be absent."""
    library = _library()
    handle, rates = ctypes.c_void_p(), (ctypes.c_uint * 2)()  # GPU and memory, per cent
    name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
    if library is None or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != 0:
        return None
    return rates[0] / 100 if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0 else None


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def plot(out: Path, order: Sequence[str] = ()) -> Path:
    """Draw the journals of all stages in a folder to curves.png: a row each, with loss, shares while training and on
    held-out images. Stages come in the given order, those that it does not name last."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = {name: place for place, name in enumerate(order)}
    paths = sorted(out.glob("*.jsonl"), key=lambda path: (places.get(path.stem, len(places)), path.stem))
    stages = {path.stem: lines for path in paths if (lines := read_journal(path))}
    if not stages:
        raise DataError(f"no journal with lines in {out}: train a stage first")
    figure = Figure(figsize=(15, 3.5 * len(stages)), layout="constrained")
    grid = figure.subplots(len(stages), 3, squeeze=False)
    for row, (name, lines) in zip(grid, stages.items(), strict=True):
        evaluations = [{"step": line["step"], **line["evaluation"]} for line in lines if "evaluation" in line]
        _draw(row[0], lines, ["loss"], f"{name}: loss")
        _draw(row[1], lines, _keys(lines, (*OWN, "samples", "waited")), f"{name}: while training")
        _draw(row[2], evaluations, _keys(evaluations, ("step",)), f"{name}: held-out images", marker="o")
        for axes in row[1:]:  # shares, as far as we know
            axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
            axes.grid(alpha=0.3)
    FigureCanvasAgg(figure).print_png(out / "curves.png")
    return out / "curves.png"


def _keys(lines: list[dict[str, Any]], without: Sequence[str]) -> list[str]:
    return [key for key in dict.fromkeys(key for line in lines for key in line) if key not in without]


def _draw(axes: Any, lines: list[dict[str, Any]], keys: list[str], title: str, **style: Any) -> None:
    """A line for each key; those of one family, which its name begins with, have one colour."""
    axes.set_title(title)
    axes.set_xlabel("step")
    families = list(dict.fromkeys(key.partition(":")[0] for key in keys))
    manners = list(dict.fromkeys(key.partition(":")[2] for key in keys))
    for key in keys:
        family, _, manner = key.partition(":")
        look = {"color": f"C{families.index(family)}", "linestyle": ("-", "--", ":")[manners.index(manner) % 3]}
        points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
        width = max(len(points) // 200, 1)  # means of neighbours: a curve of at most 400 points
        pieces = [points[i : i + width] for i in range(0, len(points), width)]
        x, y = ([sum(p[axis] for p in piece) / len(piece) for piece in pieces] for axis in (0, 1))
        axes.plot(x, y, label=key, linewidth=1.2, **look, **style)
    if keys:
        axes.set_xlim(0, 1.02 * max(1, *(line["step"] for line in lines)))
        axes.legend(fontsize="small", ncols=2 if len(keys) > 4 else 1)


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(_finite(line)) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
