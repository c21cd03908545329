"""How likely an answer is right, from how likely the model found it: a logistic curve on the log-odds of the answer.

The default believes the model. A model that was never told when it is wrong is too sure of itself; two numbers fitted
on answers whose truth is known mend most of that (Platt 1999).
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.errors import ModelError

SUREST = 32.0  # log-odds beyond which nothing is told apart
PRIOR = 1.0  # how strongly the curve is held to the default, in answers
STEPS = 50


@dataclass(frozen=True)
class Calibration:
    """Probability of being right = logistic(slope * log-odds + offset).

    >>> Calibration()(torch.tensor([0.25, 0.9]).log())
    tensor([0.2500, 0.9000], dtype=torch.float64)
    """

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, logp: Any) -> Float64[Tensor, "*shape"]:
        return (self.slope * log_odds(logp) + self.offset).sigmoid()


BELIEVED = Calibration()


def log_odds(logp: Any) -> Float64[Tensor, "*shape"]:
    """log p - log (1 - p), within `SUREST` either way; `logp` are natural logarithms of probabilities.

    >>> [round(odds, 6) for odds in log_odds(torch.tensor([0.2, 1.0]).log()).tolist()]
    [-1.386294, 32.0]
    """
    logp = torch.as_tensor(logp, dtype=torch.float64).clamp(max=-1e-15)
    return (logp - (-torch.expm1(logp)).log()).clamp(-SUREST, SUREST)


def fit_calibration(logps: Any, rights: Any) -> Calibration:
    """The curve under which answers with these log-probabilities are most likely right (1) and wrong (0) as they were.

    Newton's method on the log-likelihood, less `PRIOR` / 2 times the squared distance from the default, which keeps
    few or cleanly parted answers from giving an endless slope.

    >>> logps = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.2, 0.2, 0.2, 0.2]).log().repeat(50)
    >>> fitted = fit_calibration(logps, torch.tensor([1, 1, 0, 0, 0, 0, 0, 0]).repeat(50))  # too sure of itself
    >>> [round(p, 1) for p in fitted(logps[3:5]).tolist()]
    [0.5, 0.0]
    """
    x, y = log_odds(logps), torch.as_tensor(rights, dtype=torch.float64)
    if x.shape != y.shape or x.ndim != 1 or not len(x) or not bool(((y == 0) | (y == 1)).all()):
        raise ModelError(f"{list(x.shape)} log-probabilities and {list(y.shape)} verdicts: give one 0 or 1 for each")
    design = torch.stack((x, torch.ones_like(x)), dim=1)  # [n, 2]
    start = torch.tensor([1.0, 0.0], dtype=torch.float64, device=x.device)
    prior = PRIOR * torch.eye(2, dtype=torch.float64, device=x.device)

    def cost(at: Tensor) -> Tensor:
        score = design @ at
        return (torch.nn.functional.softplus(score) - y * score).sum() + PRIOR / 2 * (at - start).square().sum()

    at = start
    for _ in range(STEPS):
        chance = (design @ at).sigmoid()
        slope = design.T @ (chance - y) + PRIOR * (at - start)
        bend = design.T @ (design * (chance * (1 - chance))[:, None]) + prior
        step = torch.linalg.solve(bend, slope)
        while bool(cost(at - step) > cost(at)) and bool(step.abs().max() > 1e-12):  # too far: the cost is convex
            step = step / 2
        at = at - step
    return Calibration(*at.tolist())
