"""One process or many. With `torchrun --nproc-per-node 8 script.py` or `accelerate launch script.py` each process takes
its share of every batch, gradients are averaged, and all hold the same weights; alone, Accelerate is not even imported.

The loss is run as the forward pass of one module that Accelerate prepares, so a stage may call any part of its model
and is the same script for one process and for many. DDP is the default. FSDP comes by Accelerate's own configuration,
version 2 only, whose parameters stay apart and named; with AdamW, since Muon needs whole matrices; one stage a command:

    accelerate launch --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy NO_WRAP --num_processes 8 script.py
"""

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from homunculus.errors import HomunculusError

Loss = Callable[[int], tuple[Tensor, Mapping[str, Tensor | float]]]


def share() -> tuple[int, int]:
    """Which process this is and how many there are: it takes samples part, part + parts, ... of every batch.

    >>> share()
    (0, 1)
    """
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def apart() -> Iterator[None]:
    """While this lasts a process trains by itself, whatever others do: what it makes is what one alone would make.

    >>> with apart():
    ...     share()
    (0, 1)
    """
    before = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def local_device() -> torch.device:
    """Where this process computes: its own GPU where there is one, or one of few in turn."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def whole(tensor: Tensor) -> Tensor:
    """A tensor that processes hold in parts, put together (all of them must ask); any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def like(target: Tensor, value: Tensor) -> Tensor:
    """A value laid out as the target is: on its device, and in parts where that is in parts."""
    value = value.to(target.device)
    if not hasattr(target, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, target.device_mesh, target.placements)  # type: ignore[attr-defined]


class Signals:
    """Takes note of Ctrl-C and SIGTERM, so that a run may save before it leaves; a second one acts at once.

    >>> with Signals() as signals:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     signals.number == signal.SIGTERM
    True
    """

    number = 0

    def __enter__(self) -> "Signals":
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number
        self.__exit__()


class Alone:
    """The one process there is."""

    parts = 1
    main = True  # writes files and prints

    def prepare(self, model: nn.Module, loss: Loss) -> Loss:
        """The loss to call in place of this one, after whose backward pass gradients are means over processes."""
        return loss

    def mean(self, values: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        """The mean over processes, without waiting for the device."""
        return values

    def agreed(self, numbers: list[int]) -> list[int]:
        """The highest of each over processes, so that all do the same next."""
        return numbers

    def wait(self) -> None:
        """Until all are here."""

    def release(self) -> None:
        """Let go of what was prepared, so that another stage may prepare the model anew."""


class Together(Alone):
    """One of several processes, through Accelerate."""

    def __init__(self, device: torch.device) -> None:
        try:
            from accelerate import Accelerator
            from accelerate.utils import DistributedDataParallelKwargs
        except ImportError:
            raise HomunculusError("several processes need Accelerate: pip install 'homunculus[scale]'") from None
        if device.type == "cuda" and (here := int(os.environ.get("LOCAL_WORLD_SIZE", 1))) > torch.cuda.device_count():
            raise HomunculusError(
                f"{here} processes train on {torch.cuda.device_count()} GPUs and each needs its own: start fewer"
            )
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # a batch may leave a part of a model out
        # What is computed in bfloat16 is for the settings of the run to say.
        self.accelerator = Accelerator(mixed_precision="no", cpu=device.type == "cpu", kwargs_handlers=[unused])
        self.parts = self.accelerator.num_processes
        self.main = self.accelerator.is_main_process
        self.device = device
        atexit.unregister(_let_threads_finish)  # once is enough, however many stages there were
        atexit.register(_let_threads_finish)

    def prepare(self, model: nn.Module, loss: Loss) -> Loss:
        """The loss as the forward pass of a module with the model's parameters, wrapped by Accelerate."""
        forward = _Forward(model, loss)
        if not self.accelerator.is_fsdp2:
            if self.accelerator.distributed_type == "FSDP":
                raise HomunculusError("FSDP of version 1 hides parameters in flat ones: use --fsdp_version 2")
            return self.accelerator.prepare(forward)
        for value in model.state_dict().values():  # as DDP does: all begin with the weights of the first
            torch.distributed.broadcast(value, src=0)
        # Accelerate insists on an optimiser; ours is made after the parameters have been taken apart.
        idle = torch.optim.SGD(forward.parameters(), lr=0.0)
        return self.accelerator.prepare(forward, idle)[0]

    def mean(self, values: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        """The mean over processes, without waiting for the device."""
        return self.accelerator.reduce(values, "mean")

    def agreed(self, numbers: list[int]) -> list[int]:
        """The highest of each over processes, so that all do the same next."""
        mine = torch.tensor([numbers], dtype=torch.int64, device=self.device)  # [1, n]
        return self.accelerator.gather(mine).amax(0).tolist()

    def wait(self) -> None:
        """Until all are here."""
        self.accelerator.wait_for_everyone()

    def release(self) -> None:
        """Without its wrapper a model's gradients are no longer averaged."""
        self.accelerator.free_memory()


class _Forward(nn.Module):
    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, step: int) -> tuple[Tensor, Mapping[str, Tensor | float]]:
        return self.loss(step)


def _let_threads_finish() -> None:
    """Gloo's threads drop the last tensors they sent after we have gone on, and need the interpreter for it: one that
    asks when Python is already ending aborts the process (torch 2.13: 17 of 25 runs on a busy machine). A thread that
    waits for us to sleep is done in microseconds."""
    time.sleep(0.2)


def processes(device: torch.device) -> Alone:
    """This process with its companions, as the launcher's environment says.

    >>> processes(torch.device("cpu")).parts
    1
    """
    return Together(device) if share()[1] > 1 else Alone()
