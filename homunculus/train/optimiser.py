"""What a run is told, how its learning rate goes, and how parameters move: AdamW alone, or Muon for hidden matrices.

Nothing here waits for the device: rates are numbers of the host, and a step with a gradient that is not finite is
skipped on the device. AdamW is fused on every device, since only the fused one can skip.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from homunculus.errors import HomunculusError
from homunculus.train.muon import Muon
from homunculus.train.processes import like

OPTIMISERS = ("adamw", "muon")
DTYPES = ("bfloat16", "float32")
BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Settings:
    """What a run is told. Another value makes another run, except for how often it saves.

    >>> Settings(steps=0)
    Traceback (most recent call last):
    homunculus.errors.HomunculusError: steps is a whole number above 0, got 0
    """

    steps: int
    rate: float = 8e-4  # the highest learning rate
    warmup: int = 200  # steps until it is reached
    final: float = 0.05  # the share of it that is left at the end
    decay: float = 0.05  # weight decay, of matrices only
    clip: float = 1.0  # the longest gradient
    optimiser: str = "adamw"  # or "muon"
    dtype: str = "bfloat16"  # of autocast on CUDA; "float32" for none
    save_every: float = 60.0  # seconds
    save_steps: int = 0  # save after so many steps instead
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise HomunculusError(f"steps is a whole number above 0, got {self.steps}")
        if self.optimiser not in OPTIMISERS:
            raise HomunculusError(f"no optimiser '{self.optimiser}': choose one of {', '.join(OPTIMISERS)}")
        if self.dtype not in DTYPES:
            raise HomunculusError(f"no dtype '{self.dtype}' to train in: choose one of {', '.join(DTYPES)}")
        if not (self.rate > 0 and self.clip > 0 and 0 <= self.final <= 1 and self.decay >= 0 and self.warmup >= 0):
            raise HomunculusError("rate and clip are above 0, final is from 0 to 1, decay and warmup are not negative")


def rate_at(step: int, settings: Settings) -> float:
    """The learning rate of a step: a straight line up to `rate`, then half a cosine down to `final` of it.

    >>> settings = Settings(steps=101, rate=1.0, warmup=1, final=0.1)
    >>> [round(rate_at(step, settings), 3) for step in (0, 1, 50, 100)]
    [1.0, 1.0, 0.557, 0.1]
    """
    if step < settings.warmup:
        return settings.rate * (step + 1) / settings.warmup
    along = min((step - settings.warmup) / max(settings.steps - 1 - settings.warmup, 1), 1.0)
    return settings.rate * (settings.final + (1 - settings.final) * 0.5 * (1 + math.cos(math.pi * along)))


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Matrices and kernels shrink; embeddings, norms and biases do not."""
    return parameter.ndim >= 2 and "embedding" not in name


def is_hidden(name: str, parameter: Tensor) -> bool:
    """What Muon moves: matrices that stand between the embeddings and the heads."""
    return parameter.ndim == 2 and "embedding" not in name and "head" not in name


class Optimiser:
    """AdamW, or Muon and AdamW together, over named parameters; its state is a flat dictionary of tensors.

    >>> layer = nn.Linear(2, 1)
    >>> optimiser = make_optimiser(dict(layer.named_parameters()), Settings(steps=10))
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> optimiser.step(rate=0.1, skip=torch.tensor(0.0))
    >>> sorted(optimiser.state())[:3]
    ['bias/exp_avg', 'bias/exp_avg_sq', 'bias/step']
    """

    def __init__(self, named: Mapping[str, nn.Parameter], parts: list[torch.optim.Optimizer]) -> None:
        self.named = dict(named)
        self.parts = parts

    def step(self, rate: float, skip: Float32[Tensor, ""]) -> None:
        """Move every parameter that has a gradient, unless `skip` is 1 on the device, and forget the gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.found_inf = skip  # type: ignore[attr-defined]  # what torch.amp.GradScaler sets
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """All that the next steps depend on, as "parameter/what"."""
        found = {}
        for name, parameter in self.named.items():
            for part in self.parts:
                for key, value in part.state.get(parameter, {}).items():
                    found[f"{name}/{key}"] = value
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that `state` gave."""
        owner = {id(p): part for part in self.parts for group in part.param_groups for p in group["params"]}
        for key, value in state.items():
            name, _, what = key.rpartition("/")
            if name not in self.named:
                raise HomunculusError(f"the saved optimiser knows '{name}', which does not learn here: start anew")
            parameter = self.named[name]
            value = like(parameter, value) if value.shape == parameter.shape else value.to(parameter.device)
            owner[id(parameter)].state[parameter][what] = value


def make_optimiser(named: Mapping[str, nn.Parameter], settings: Settings) -> Optimiser:
    """The optimiser that the settings name, over parameters by name: `dict(model.named_parameters())`.

    >>> named = {"block.weight": nn.Parameter(torch.ones(2, 2)), "block.bias": nn.Parameter(torch.ones(2))}
    >>> [type(part).__name__ for part in make_optimiser(named, Settings(steps=10, optimiser="muon")).parts]
    ['AdamW', 'Muon']
    """
    if not named:
        raise HomunculusError("nothing to learn: give at least one parameter that requires a gradient")
    turned = {n: p for n, p in named.items() if settings.optimiser == "muon" and is_hidden(n, p)}
    if any(hasattr(p, "device_mesh") for p in turned.values()):
        raise HomunculusError("Muon needs whole matrices and FSDP takes them apart: use optimiser='adamw' or DDP")
    rest = {n: p for n, p in named.items() if n not in turned}
    decayed = [p for n, p in rest.items() if is_decayed(n, p)]
    kept = [p for n, p in rest.items() if not is_decayed(n, p)]
    groups = [{"params": decayed, "weight_decay": settings.decay}, {"params": kept, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    parts: list[torch.optim.Optimizer] = []
    if groups:
        parts.append(torch.optim.AdamW(groups, lr=settings.rate, betas=BETAS, fused=True))
    if turned:
        parts.append(Muon(turned.values(), settings.rate, settings.decay))
    return Optimiser(named, parts)
