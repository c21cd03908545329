"""Image and question to a density over leaves: where the answer is likely to be seen.

It reads the image at full resolution, since small type is gone at any other, and is cheap: convolutions down to the
leaf grid, which know no question and serve all; every leaf is held against every word of the question, since what is
asked for stands beside the words that name it; then a few blocks in which squares of two by two leaves look along
their row, along their column and at the words of the question; then each leaf decides for itself. Rows and columns are
what forms, tables and lines of text are made of, and their cost grows with the image's area times its side, not with
its area squared.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn

from homunculus.geometry import Size
from homunculus.kernels.resample import area_resample, area_resample_in_strips
from homunculus.model.blocks import MLP, Attention, Block, Norm, attend
from homunculus.model.config import Config
from homunculus.model.rotary import Turns, turns
from homunculus.model.tokenizer import PAD

MOST_PIXELS = 3 << 19  # an image and a half as large as those it learns on


class QuestionEncoder(nn.Module):
    """Words to features that know each other; padding is masked where they are looked at."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.scorer_width
        self.heads = config.scorer_heads
        self.embedding = nn.Embedding(config.vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, config.scorer_heads) for _ in range(config.question_layers))
        self.norm = Norm(width)

    def forward(self, question: Int64[Tensor, "b q"]) -> Float[Tensor, "b q c"]:
        x = self.embedding(question)
        real = (question != PAD)[:, None, None]  # [b, 1, 1, q]
        times = torch.arange(question.shape[1], device=question.device).float()[None, :, None]
        where = turns(times, x.shape[-1] // self.heads)
        for block in self.blocks:
            x = block(x, where, real)
        return self.norm(x)


class LeafNorm(Norm):
    """Each place normalised over its channels, alone: what is said of it does not depend on the image's size."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Residual(nn.Module):
    """Two 3 x 3 convolutions on a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            LeafNorm(channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return x + self.body(x)


class Looking(nn.Module):
    """Every square looks along its row, along its column, and at the question."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(width) for _ in range(4))
        self.along_row, self.along_column = Attention(width, heads), Attention(width, heads)
        self.at_question = Attention(width, heads)
        self.mlp = MLP(width, 2)

    def forward(
        self,
        x: Float[Tensor, "b gh gw c"],
        rows: Turns,
        columns: Turns,
        words: Float[Tensor, "b q c"],
        real: Bool[Tensor, "b 1 1 q"],
    ) -> Float[Tensor, "b gh gw c"]:
        b, gh, gw, _ = x.shape
        row_norm, column_norm, question_norm, mlp_norm = self.norms
        x = x + self.along_row(row_norm(x).flatten(0, 1), rows).unflatten(0, (b, gh))
        turned = column_norm(x).transpose(1, 2).flatten(0, 1)
        x = x + self.along_column(turned, columns).unflatten(0, (b, gw)).transpose(1, 2)
        query = self.at_question.queries(question_norm(x).flatten(1, 2), None)
        key, value = self.at_question.keys_values(words, None)
        found = attend(query, key, value, real)
        x = x + self.at_question.out(found).unflatten(1, (gh, gw))
        return x + self.mlp(mlp_norm(x))


class Scorer(nn.Module):
    """Log-density over the leaf grid, [b, gh, gw]; a softmax over leaves makes it a density of mass 1."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        fine, middle = config.scorer_stem
        width = config.scorer_width
        self.leaf, self.heads = config.leaf, config.scorer_heads
        self.question = QuestionEncoder(config)
        self.stem = nn.Sequential(
            nn.Conv2d(3, fine, 4, stride=4),
            Residual(fine),
            nn.Conv2d(fine, middle, 2, stride=2),
            Residual(middle),
            nn.Conv2d(middle, width, config.leaf // 8, stride=config.leaf // 8),
            Residual(width),
        )
        self.place = nn.Linear(4, width)
        self.shown, self.asked = nn.Sequential(Norm(width), MLP(width, 2)), nn.Linear(width, width)
        self.hint = nn.Linear(4, width)
        self.merge = nn.Linear(4 * width, width)
        self.blocks = nn.ModuleList(Looking(width, config.scorer_heads) for _ in range(config.scorer_blocks))
        self.norm = Norm(width)
        self.part = nn.Linear(width, 4 * width)
        self.leaf_norm = Norm(width)
        self.mlp = MLP(width, 2)
        self.out = nn.Linear(width, 1)

    def features(self, images: Shaped[Tensor, "b 3 h w"]) -> Float[Tensor, "b gh gw c"]:
        """What does not depend on the question. Images of no whole leaves are scaled to some, as sampling does, and
        those of more than `MOST_PIXELS` to fewer: so large is the type it knows."""
        unit = 255.0 if images.dtype == torch.uint8 else 1.0
        size = fitting(images.shape[-1], images.shape[-2], self.leaf)
        if size != (images.shape[-1], images.shape[-2]):
            resample = area_resample if images.shape[-1] * images.shape[-2] <= MOST_PIXELS else area_resample_in_strips
            images = resample(images, size)
        x = images.to(self.out.weight.dtype) * (4 / unit) - 2
        x = self.stem(x.contiguous(memory_format=torch.channels_last)).permute(0, 2, 3, 1)
        return x + self.place(corners(x.shape[1], x.shape[2], x.device).to(x.dtype))

    def forward(self, features: Float[Tensor, "b gh gw c"], question: Int64[Tensor, "b q"]) -> Float[Tensor, "b gh gw"]:
        return self.scores_and_names(features, question)[0]

    def scores_and_names(
        self, features: Float[Tensor, "b gh gw c"], question: Int64[Tensor, "b q"]
    ) -> tuple[Float[Tensor, "b gh gw"], Float[Tensor, "b gh gw"]]:
        """Where the answer is, and where words of the question stand: a log-density over leaves each."""
        words, real = self.question(question), (question != PAD)[:, None, None]
        names = self.named(features, words, real)
        x = self.merge(squares(features)) + self.hint(squares(torch.tanh(names[..., None] / 4).to(features.dtype)))
        head = x.shape[-1] // self.heads
        rows, columns = (  # in leaves
            turns(2 * torch.arange(n, device=x.device).float()[None, :, None], head) for n in (x.shape[2], x.shape[1])
        )
        for block in self.blocks:
            x = block(x, rows, columns, words, real)
        return self.decided(features, x), names

    def named(
        self, features: Float[Tensor, "b gh gw c"], words: Float[Tensor, "b q c"], real: Bool[Tensor, "b 1 1 q"]
    ) -> Float[Tensor, "b gh gw"]:
        """How well what each leaf shows agrees with any word of the question, or with none: nats above the mean."""
        shown = self.shown(features).flatten(1, 2)  # [b, leaves, c]
        alike = shown @ self.asked(words).mT / math.sqrt(shown.shape[-1])  # [b, leaves, q]
        best = F.pad(alike.float().masked_fill(~real[:, 0], -torch.inf), (0, 1)).logsumexp(-1)
        above = best - best.logsumexp(-1, keepdim=True) + math.log(best.shape[1])
        return above.unflatten(1, features.shape[1:3])

    def decided(self, features: Float[Tensor, "b gh gw c"], x: Float[Tensor, "b sh sw c"]) -> Float[Tensor, "b gh gw"]:
        """Each leaf alone, by what its square has found."""
        leaves = features + apart(self.part(self.norm(x)), features.shape[1], features.shape[2])
        return self.out(self.mlp(self.leaf_norm(leaves))).squeeze(-1).float()


def fitting(width: int, height: int, leaf: int, most: int = MOST_PIXELS) -> Size:
    """The size, in whole leaves, at which an image is read: its own, or one of no more than about so many pixels.

    >>> fitting(1000, 700, 16), fitting(4096, 2048, 16)
    ((992, 704), (1776, 880))
    """
    scale = min(1.0, math.sqrt(most / (width * height)))
    across, down = (max(1, round(side * scale / leaf)) * leaf for side in (width, height))
    return across, down


def as_density(scores: Float[Tensor, "b gh gw"]) -> Float[Tensor, "b gh gw"]:
    """Scores as a density: mass 1 over the leaves of each image.

    >>> as_density(torch.zeros(1, 2, 2)).tolist()
    [[[0.25, 0.25], [0.25, 0.25]]]
    """
    return scores.flatten(1).softmax(-1).view_as(scores)


def squares(leaves: Float[Tensor, "b gh gw c"]) -> Float[Tensor, "b sh sw c4"]:
    """Two by two leaves side by side; beyond an edge there is nothing.

    >>> squares(torch.arange(6.0).view(1, 2, 3, 1))[0, 0].tolist()
    [[0.0, 1.0, 3.0, 4.0], [2.0, 0.0, 5.0, 0.0]]
    """
    _, gh, gw, _ = leaves.shape
    even = F.pad(leaves, (0, 0, 0, gw % 2, 0, gh % 2))
    return even.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)


def apart(merged: Float[Tensor, "b sh sw c4"], gh: int, gw: int) -> Float[Tensor, "b gh gw c"]:
    """The inverse of `squares`, for a grid of known size."""
    each = merged.unflatten(3, (2, 2, -1)).transpose(2, 3)  # [b, sh, 2, sw, 2, c]
    return each.flatten(3, 4).flatten(1, 2)[:, :gh, :gw]


def corners(gh: int, gw: int, device: torch.device) -> Float[Tensor, "gh gw 4"]:
    """How far each leaf is from the left, top, right and lower edge: squashed distances in leaves, so that margins are
    told apart on images of any size."""
    x, y = torch.arange(gw, device=device) + 0.5, torch.arange(gh, device=device) + 0.5
    distances = (x.expand(gh, gw), y[:, None].expand(gh, gw), (gw - x).expand(gh, gw), (gh - y)[:, None].expand(gh, gw))
    return torch.log2(1 + torch.stack(distances, dim=-1) / 4)
