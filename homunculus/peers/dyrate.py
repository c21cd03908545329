"""`dyrate`: the longer an answer gets, the less of the image is kept (Liang et al., 2025, arXiv 2501.14204).

Attention on the image falls while an answer is written, so the keys and values of visual tokens are dropped on the way,
at a rising rate. The paper trains a classifier that picks the rate anew for every token; here it is a schedule. Before
letter t is written, the first being letter 0, a share `rate` * t of what is left goes, until `least` are left. Their
number is the same for all images, so batches stay rectangular and nobody waits for the device.

The newest token looks at all that is left, by the attention of its heads, drops what it looks at least, and reads what
remains; those after it never see the rest again. Each layer drops by its own attention: layers look for different
things, they may have been shown different tokens, and none has to wait for the others. Keys are kept turned, so what
is gathered out of a cache stays where it was in the image.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from homunculus.errors import AllocatorError, BudgetError, ModelError
from homunculus.model.decoder import Decoder, Layer, Memory, Written
from homunculus.model.rotary import Turns
from homunculus.model.tokenizer import PAD
from homunculus.peers.layers import looks
from homunculus.peers.likeness import top

RATE = 0.02  # two fifths are left for the tenth letter, a tenth for the fifteenth
LETTERS = 16  # of an answer, over which a mean number of tokens is asked for


@dataclass(frozen=True)
class Schedule:
    """How many visual tokens are left for each letter: `rate` * t of the rest go before letter t, `least` stay.

    With `every` above 1 they go only before every so many letters, as many as would have gone by then.
    """

    rate: float = RATE
    least: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1 or self.least < 0 or self.every < 1:
            raise AllocatorError(
                f"dyrate takes a rate from 0 to 1, least >= 0 and every >= 1, got {self.rate}, {self.least}, "
                f"{self.every}"
            )

    def left(self, tokens: int, letters: int) -> list[int]:
        """Of `tokens`, for each of so many letters.

        >>> Schedule(0.1).left(100, 8), Schedule(0.1, least=50, every=2).left(100, 8)
        ([100, 90, 72, 50, 30, 15, 6, 1], [100, 100, 72, 72, 50, 50, 50, 50])
        """
        share, counts = 1.0, []
        for letter in range(letters):
            share *= max(0.0, 1 - self.rate * letter)
            if letter % self.every == 0:
                count = max(int(tokens * share + 1e-6), min(self.least, tokens))
            counts.append(count)
        return counts


def schedule_for(tokens: int, mean: float, *, letters: int = LETTERS, least: int = 1, every: int = 1) -> Schedule:
    """The lowest rate that leaves at most `mean` tokens on average over the letters of an answer of that length.

    >>> schedule = schedule_for(400, 100)
    >>> round(schedule.rate, 3), sum(schedule.left(400, 16)) / 16
    (0.085, 100.0)
    """
    if mean > tokens:
        raise BudgetError(f"a mean of {mean:g} tokens is more than all {tokens}: give a smaller budget")
    if sum(Schedule(1.0, least, every).left(tokens, letters)) > mean * letters:
        raise BudgetError(
            f"the first of {letters} letters is written with all {tokens} tokens, so a mean of {mean:g} cannot be: "
            f"give at least {least_mean(tokens, letters=letters, least=least, every=every)}"
        )
    low, high = 0.0, 1.0
    if sum(Schedule(0.0, least, every).left(tokens, letters)) <= mean * letters:
        return Schedule(0.0, least, every)
    for _ in range(60):
        rate = (low + high) / 2
        fits = sum(Schedule(rate, least, every).left(tokens, letters)) <= mean * letters
        low, high = (low, rate) if fits else (rate, high)
    return Schedule(high, least, every)


def least_mean(tokens: int, *, letters: int = LETTERS, least: int = 1, every: int = 1) -> int:
    """The least whole mean over the letters of an answer that a schedule can have.

    >>> least_mean(4096)
    257
    """
    return math.ceil(sum(Schedule(1.0, least, every).left(tokens, letters)) / letters)


@torch.no_grad()
def write_forgetting(
    decoder: Decoder, memory: Memory, question: Int64[Tensor, "b q"], schedule: Schedule, longest: int = 160
) -> Written:
    """As `Decoder.write`, with fewer and fewer visual tokens before it; every layer keeps a share of its own number.
    Where no letter is written with fewer it is `Decoder.write`, whose steps can be recorded.

    >>> from homunculus.model.config import tiny
    >>> from homunculus.model.encoder import Cells
    >>> decoder, nothing = Decoder(tiny()), torch.zeros(1, 40, 4)
    >>> memory = decoder.remember(torch.randn(1, 40, 32), Cells(nothing, nothing[..., 0], nothing[..., :3]))
    >>> write_forgetting(decoder, memory, torch.tensor([[70, 71]]), Schedule(0.1), longest=5).letters.shape
    torch.Size([1, 5])
    """
    if memory.real is not None:
        raise ModelError("dyrate drops real tokens and these have padding among them: give images the same count")
    left = [schedule.left(count, longest) for count in memory.counts]
    if all(own[-1] == own[0] for own in left):
        return decoder.write(memory, question, longest)

    def forget(
        letter: int, number: int, x: Tensor, where: Turns, seen: tuple[Tensor, Tensor], sees: Tensor
    ) -> tuple[Tensor, Tensor]:
        return forgotten(cast(Layer, decoder.layers[number]), x, where, seen, sees, left[number][letter])

    return decoder.write(memory, question, longest, forget)


def forgotten(
    layer: Layer,
    x: Float[Tensor, "b 1 c"],
    where: Turns,
    seen: tuple[Tensor, Tensor],
    sees: Bool[Tensor, "b 1 1 text"],
    count: int,
) -> tuple[Tensor, Tensor]:
    """Keys and values of the `count` visual tokens that the newest token looks at most, and of all text before it.

    `seen` is visual tokens, then text; `sees` says which of the text are words, the newest token itself last.
    """
    total = seen[0].shape[2]
    visual = total + 1 - sees.shape[3]
    if count >= visual:
        return seen
    query = layer.attention.queries(layer.norm(x), where)
    mask = torch.nn.functional.pad(sees[..., :-1], (visual, 0), value=True)
    index = top(looks(query, seen[0], mask)[:, 0, :visual], count).sort(1).values
    text = torch.arange(visual, total, device=x.device).expand(len(x), -1)
    whole = torch.cat((index, text), 1)[:, None, :, None]  # [b, 1, left, 1]
    key, value = (part.gather(2, whole.expand(-1, part.shape[1], -1, part.shape[3])) for part in seen)
    return key, value


def mean_left(written: Written, counts: Sequence[int], schedule: Schedule) -> Int64[Tensor, "b"]:
    """How many visual tokens the letters of each answer were written with, the mean over them and over layers."""
    longest = written.letters.shape[1]
    left = [sum(each) / len(counts) for each in zip(*(schedule.left(n, longest) for n in counts), strict=True)]
    letters = (written.letters != PAD).sum(1).clamp(min=1)
    total = torch.tensor(left, dtype=torch.float64).cumsum(0).to(letters.device)
    return (total[letters - 1] / letters).round().long()
