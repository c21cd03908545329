"""Parts of a batch: which of them are this process's, and what a step of several is.

A stream has as many parts as a recipe says, whatever the number of processes, and each part has a batch of its own at
every step. A process that has one part computes just that; one that has several takes them one after another and means
their losses, as processes with one each do side by side: 8 parts give the same curve on 1, 2, 4 or 8 GPUs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from homunculus.errors import HomunculusError
from homunculus.train.pool import Pool
from homunculus.train.processes import share
from homunculus.train.score import fill

SUMS = ("samples", "waited")  # of what a loss tells; the rest are means


def own_parts(parts: int | None = None) -> tuple[list[int], int]:
    """The parts of this process, and how many there are in all; None is one for each process.

    >>> own_parts(), own_parts(3)
    (([0], 1), ([0, 1, 2], 3))
    """
    process, count = share()
    parts = count if parts is None else parts
    if parts < 1 or parts % count:
        raise HomunculusError(f"{parts} parts of a batch cannot be shared by {count} processes: give a multiple of it")
    return list(range(process, parts, count)), parts


class InParts:
    """The mean of a stage's loss over several parts of a batch, each drawn from pools of its own."""

    def __init__(self, loss: Any, pools: Sequence[Sequence[Pool]]) -> None:
        self.loss, self.pools = loss, pools

    def begin(self, step: int) -> None:
        for own in self.pools:
            fill(own, self.loss.offset + step)

    def __call__(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        losses, told = zip(*(self._of_part(own, step) for own in self.pools), strict=True)
        about = {key: sum(one[key] for one in told) / (1 if key in SUMS else len(told)) for key in told[0]}
        return torch.stack(losses).mean(), about

    def _of_part(self, own: Sequence[Pool], step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        self.loss.pools = own
        return self.loss(step)
