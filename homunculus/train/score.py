"""Stage 1: the scorer learns where answers are, from the true regions. Only the scorer is trained.

An image is read once for several of its questions, which is most of the cost.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from homunculus.model.scorer import as_density
from homunculus.model.vlm import CompactVLM
from homunculus.train.densities import true_density
from homunculus.train.pool import Pool
from homunculus.train.samples import Samples

TOGETHER = 32  # images


def scorer_loss(
    scores: Float[Tensor, "b gh gw"], truth: Float[Tensor, "b gh gw"]
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Cross-entropy of the density with the true region; how often its peak is there, and how much of its mass is
    there or one leaf beside.

    >>> loss, about = scorer_loss(torch.zeros(1, 4, 4), torch.eye(4)[None])
    >>> round(loss.item(), 3), about["hit"].item(), about["mass"].item()
    (2.773, 1.0, 0.875)
    """
    log_density = scores.flatten(1).log_softmax(-1)
    target = truth.flatten(1)
    loss = -(target * log_density).sum(1) / target.sum(1).clamp_min(1e-9)
    with torch.no_grad():
        hit = peak_inside(scores, truth)
        grown = F.max_pool2d((truth > 0).float()[:, None], 3, stride=1, padding=1).flatten(1)
        mass = (log_density.exp() * grown).sum(1)
    return loss.mean(), {"hit": hit.float().mean(), "mass": mass.mean()}


def peak_inside(scores: Float[Tensor, "b gh gw"], truth: Float[Tensor, "b gh gw"]) -> Bool[Tensor, " b"]:
    """Whether the highest leaf of each map is one that the true region covers, if only in part.

    >>> peak_inside(torch.eye(2)[None], torch.tensor([[[0.0, 1], [1, 0]]])).item()
    False
    """
    return truth.flatten(1).gather(1, scores.flatten(1).argmax(1, keepdim=True))[:, 0] > 0


def predicted(model: CompactVLM, samples: Samples) -> Float[Tensor, "b gh gw"]:
    """The scorer's density for every question, each image read once; `TOGETHER` images at a time, a size to compile."""
    found = []
    for images, questions in zip(
        samples.images.split(TOGETHER), samples.question.split(TOGETHER * samples.each), strict=True
    ):
        features = model.scorer.features(images).repeat_interleave(samples.each, dim=0)
        found.append(as_density(model.scorer(features, questions)))
    return torch.cat(found)


class Scoring:
    """The loss of a step, for `loop.fit`."""

    def __init__(
        self, model: CompactVLM, pools: Sequence[Pool], images: int = TOGETHER, each: int = 8, offset: int = 0
    ) -> None:
        self.model, self.pools, self.images, self.each, self.offset = model, pools, images, each, offset
        self.parts: list[nn.Module] = []
        self.fixed = [model.scorer.stem, *model.scorer.blocks]  # what is compiled

    def begin(self, step: int) -> None:
        fill(self.pools, self.offset + step)

    def __call__(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        pool = self.pools[(self.offset + step) % len(self.pools)]
        samples = pool.draw(self.images * self.each, self.offset + step, each=self.each)
        pool.advance()
        features = self.model.scorer.features(samples.images).repeat_interleave(self.each, dim=0)
        scores = self.model.scorer(features, samples.question)
        loss, about = scorer_loss(scores, truth_of(samples, (scores.shape[2], scores.shape[1])))
        return loss, about | {"samples": float(len(samples.question)), "waited": pool.waited}


def fill(pools: Sequence[Pool], step: int) -> None:
    """Bring pools, of which each step draws from the next, to their state at a step."""
    for number, pool in enumerate(pools):
        pool.fill((step + len(pools) - 1 - number) // len(pools))


def truth_of(samples: Samples, grid: tuple[int, int]) -> Float[Tensor, "b gh gw"]:
    height, width = samples.images.shape[-2:]
    return true_density(samples.boxes, (width, height), grid)
