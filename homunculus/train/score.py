"""Stage 1: the scorer learns where answers are, from the true regions, and where the words of questions stand. Only
the scorer is trained.

An image is read once for several of its questions, which is most of the cost.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from homunculus.model.scorer import as_density
from homunculus.model.tokenizer import FIRST_PIECE, PAD
from homunculus.model.vlm import CompactVLM
from homunculus.train.augment import augmented_with_letters, chosen
from homunculus.train.compiling import Method
from homunculus.train.densities import true_density
from homunculus.train.letters import SLOTS, known, leaf_letters, letter_loss
from homunculus.train.pool import Pool
from homunculus.train.samples import Samples, sent

TOGETHER = 32  # images
LEAVES = 512  # of an image whose letters are asked for


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


def names_loss(
    names: Float[Tensor, "b gh gw"], truth: Float[Tensor, "b gh gw"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy of the names' density with the leaves on which words of the question stand, over the questions of
    which any do; and how often its peak is on one.

    >>> loss, named = names_loss(torch.zeros(2, 4, 4), torch.stack((torch.eye(4), torch.zeros(4, 4))))
    >>> round(loss.item(), 3), named.item()
    (2.773, 1.0)
    """
    mass = truth.sum((1, 2))
    counted = mass > 0
    loss = -(truth * names.flatten(1).log_softmax(-1).view_as(names)).sum((1, 2)) / mass.clamp_min(1e-9)
    questions = counted.sum().clamp_min(1)
    return (loss * counted).sum() / questions, (peak_inside(names, truth) & counted).sum() / questions


def peak_inside(scores: Float[Tensor, "b gh gw"], truth: Float[Tensor, "b gh gw"]) -> Bool[Tensor, " b"]:
    """Whether the highest leaf of each map is one that the true region covers, if only in part.

    >>> peak_inside(torch.eye(2)[None], torch.tensor([[[0.0, 1], [1, 0]]])).item()
    False
    """
    return truth.flatten(1).gather(1, scores.flatten(1).argmax(1, keepdim=True))[:, 0] > 0


def compiled_parts(model: CompactVLM) -> list[Method]:
    """Of the scorer, what is compiled, for one size: what takes long."""
    scorer = model.scorer
    return [scorer.stem.forward, scorer.named, *(block.forward for block in scorer.blocks), scorer.decided]


def predicted(model: CompactVLM, samples: Samples) -> Float[Tensor, "b gh gw"]:
    """The scorer's density for every question."""
    return as_density(scored(model, samples))


def scored(model: CompactVLM, samples: Samples) -> Float[Tensor, "b gh gw"]:
    """The scorer's scores for every question, each image read once."""
    return scored_and_named(model, samples)[0]


def scored_and_named(model: CompactVLM, samples: Samples) -> tuple[Float[Tensor, "b gh gw"], Float[Tensor, "b gh gw"]]:
    """Scores for every question and where its words stand; `TOGETHER` images at a time, a size to compile."""
    found = []
    for images, questions in zip(
        samples.images.split(TOGETHER), samples.question.split(TOGETHER * samples.each), strict=True
    ):
        features = model.scorer.features(images).repeat_interleave(samples.each, dim=0)
        found.append(model.scorer.scores_and_names(features, questions))
    scores, names = zip(*found, strict=True)
    return torch.cat(scores), torch.cat(names)


class Scoring(nn.Module):
    """The loss of a step, for `loop.fit`. Leaves also say which letters lie on them, so that the scorer can find words
    it was never asked for, and which of them stand in the question; `letters` and `names` are the weights of that.
    `augment` is the share of steps whose images are."""

    def __init__(
        self,
        model: CompactVLM,
        pools: Sequence[Pool],
        *,
        images: int = TOGETHER,
        each: int = 8,
        letters: float = 0.5,
        names: float = 0.5,
        offset: int = 0,
        augment: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.pools, self.images, self.each, self.offset = model, list(pools), images, each, offset
        self.weight, self.names, self.augment = letters, names, augment
        self.letters = nn.Linear(model.config.scorer_width, SLOTS * FIRST_PIECE, device=model.device)
        self.parts: list[Method] = []
        self.fixed = compiled_parts(model)

    def begin(self, step: int) -> None:
        fill(self.pools, self.offset + step)

    def forward(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        pool = self.pools[(self.offset + step) % len(self.pools)]
        samples = pool.draw(self.images * self.each, self.offset + step, each=self.each)
        letters = pool.letters(samples)
        if chosen(self.augment, self.offset + step):
            colours = pool.colours(samples)
            samples, letters = augmented_with_letters(samples, letters, pool.own_seed, self.offset + step, colours)
        pool.advance()
        features = self.model.scorer.features(samples.images)
        repeated = features.repeat_interleave(self.each, dim=0)
        scores, names = self.model.scorer.scores_and_names(repeated, samples.question)
        grid = (scores.shape[2], scores.shape[1])
        loss, about = scorer_loss(scores, truth_of(samples, grid))
        if self.names:
            naming, about["named"] = names_loss(names, on_leaves(samples.anchors, samples, grid))
            loss = loss + self.names * naming
        if self.weight:
            spelling, about["letters"] = self.spelling(features, letters, samples, step)
            loss = loss + self.weight * spelling
        return loss, about | {"samples": float(len(samples.question)), "waited": pool.waited}

    def spelling(
        self, features: Float[Tensor, "b gh gw c"], letters: Tensor, samples: Samples, step: int
    ) -> tuple[Tensor, Tensor]:
        """The loss of letters, on some leaves of each image; of these most have letters, where there are enough."""
        height, width = samples.images.shape[-2:]
        targets = leaf_letters(letters, (width, height), (features.shape[2], features.shape[1]))
        chance = torch.rand(targets.shape[:2], generator=torch.Generator().manual_seed(step))
        preferred = sent(chance, targets.device) + 0.8 * (targets[..., 0] != PAD)
        leaves = preferred.topk(min(LEAVES, targets.shape[1]), sorted=False).indices[..., None]  # [b, n, 1]
        own = features.flatten(1, 2).gather(1, leaves.expand(-1, -1, features.shape[-1]))
        logits = self.letters(own).unflatten(-1, (SLOTS, FIRST_PIECE))
        targets = targets.gather(1, leaves.expand(-1, -1, SLOTS))
        return letter_loss(logits, targets, known(letters).expand(targets.shape[:2]))


def fill(pools: Sequence[Pool], step: int) -> None:
    """Bring pools, of which each step draws from the next, to their state at a step."""
    for number, pool in enumerate(pools):
        pool.fill((step + len(pools) - 1 - number) // len(pools))


def truth_of(samples: Samples, grid: tuple[int, int]) -> Float[Tensor, "b gh gw"]:
    return on_leaves(samples.boxes, samples, grid)


def on_leaves(boxes: Float[Tensor, "b k 4"], samples: Samples, grid: tuple[int, int]) -> Float[Tensor, "b gh gw"]:
    """What share of each leaf boxes on the images of samples cover."""
    height, width = samples.images.shape[-2:]
    return true_density(boxes, (width, height), grid)
