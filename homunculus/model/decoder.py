"""Features and a question to an answer, letter by letter.

The sequence is question, BOS, answer. Its tokens look at all features and at the whole question; those of the answer
also at what was written before them. Features are not changed here: each layer reads them through keys and values of
its own, which are computed once for an image and kept, together with those of the question, while an answer is written.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from homunculus.model.blocks import MLP, Attention, Norm, attend
from homunculus.model.config import Config
from homunculus.model.encoder import Cells
from homunculus.model.rotary import POSITIONS, Turns, turns
from homunculus.model.tokenizer import BOS, EOS, FIRST_PIECE, PAD

WAITS = 8  # letters written before it is asked which answers have ended, which waits for the device


class Layer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = Norm(config.width)
        self.attention = Attention(config.width, config.heads)
        self.mlp_norm = Norm(config.width)
        self.mlp = MLP(config.width, config.decoder_growth)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        where: Turns,
        seen: tuple[Tensor, Tensor],
        mask: Bool[Tensor, "b 1 t s"],
    ) -> tuple[Float[Tensor, "b t c"], tuple[Tensor, Tensor]]:
        """Text after one layer, and all keys and values it looked at: those `seen` before, then its own."""
        normed = self.norm(x)
        own = self.attention.keys_values(normed, where)
        key, value = (torch.cat(parts, dim=2) for parts in zip(seen, own, strict=True))
        x = x + self.attention.out(attend(self.attention.queries(normed, where), key, value, mask))
        return x + self.mlp(self.mlp_norm(x)), (key, value)


class Memory(NamedTuple):
    """What a decoder keeps of an image: keys and values of every layer, of as many tokens as that layer is shown."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    real: Bool[Tensor, "b n"] | None = None  # which tokens are not padding, the same in all layers; None: all

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tokens each layer is shown."""
        return tuple(key.shape[2] for key, _ in self.layers)


@dataclass(frozen=True, eq=False)
class Written:
    """Answers, PAD after their EOS, with the probability that each letter had."""

    letters: Int64[Tensor, "b t"]
    probabilities: Float[Tensor, "b t"]  # 1 after EOS

    @property
    def confidence(self) -> Float[Tensor, "b"]:
        """The probability of the whole answer, its end included."""
        return self.probabilities.log().sum(1).exp()


# What is left of all that a layer has looked at, before the newest token looks: the letters that are written, the
# layer's number, the token going in, its turns, keys and values so far, and which of the text, itself last, it sees.
Forget = Callable[[int, int, Tensor, Turns, tuple[Tensor, Tensor], Tensor], tuple[Tensor, Tensor]]


Writer = Callable[[Memory, Tensor, int], Written]


class Decoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.turns = POSITIONS[config.positions]  # of what is seen; text is turned alike in all of them
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)  # it is the head as well
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.decoder_layers))
        self.norm = Norm(config.width)
        self.writer: Writer | None = None  # who writes instead, for a while: see model/recorded.py

    def remember(self, features: Float[Tensor, "b n c"], cells: Cells) -> Memory:
        """Keys and values of the features, for every layer."""
        where = self.turns(cells.places, features.shape[-1] // self.heads)
        layers = cast(Iterable[Layer], self.layers)
        return Memory(tuple(layer.attention.keys_values(features, where) for layer in layers))

    def forward(
        self, memory: Memory, question: Int64[Tensor, "b q"], answer: Int64[Tensor, "b t"]
    ) -> Float[Tensor, "b t letters"]:
        """Logits of every letter of the answer, given those before it."""
        begun = torch.cat((question, F.pad(answer[:, :-1], (1, 0), value=BOS)), dim=1)
        hidden, _ = self._read(begun, question.shape[1], memory)
        return self._logits(hidden[:, question.shape[1] :])

    def _logits(self, hidden: Float[Tensor, "*b c"]) -> Float[Tensor, "*b letters"]:
        """Answers are spelled: of all numbers only special ones and bytes can come."""
        return F.linear(self.norm(hidden), self.embedding.weight[:FIRST_PIECE])

    def _read(
        self, text: Int64[Tensor, "b t"], asked: int, memory: Memory
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The first `asked` tokens are a question, padded on the right; the rest is an answer without gaps."""
        times, sees = sight(text, asked)
        where = text_turns(times, self.embedding.embedding_dim // self.heads)
        x = self.embedding(text)
        kept = []
        for layer, seen in zip(self.layers, memory.layers, strict=True):
            x, all_seen = layer(x, where, seen, beside(seen[0].shape[2], sees, memory.real))
            kept.append(all_seen)
        return x, kept

    @torch.no_grad()
    def write(
        self, memory: Memory, question: Int64[Tensor, "b q"], longest: int = 160, forget: Forget | None = None
    ) -> Written:
        """The likeliest letter each time, until all answers have ended. `forget` may drop features on the way.

        Most answers are short and a few are long: those that have ended leave the batch once they are half of it.
        """
        if self.writer is not None and forget is None:
            return self.writer(memory, question, longest)
        batch, asked = question.shape
        begun = F.pad(question, (0, 1), value=BOS)
        hidden, kept = self._read(begun, asked, memory)
        logits = self._logits(hidden[:, -1])
        is_text = F.pad(question != PAD, (0, 1), value=True)
        times = is_text.sum(1, keepdim=True) + torch.arange(1, longest + 1, device=question.device)
        ahead = text_turns(times, self.embedding.embedding_dim // self.heads)
        going = torch.arange(batch, device=question.device)  # the answers that are still written
        ended = torch.zeros_like(going, dtype=torch.bool)
        sees, real = is_text[:, None, None], memory.real  # [b, 1, 1, q + 1]
        letters = question.new_full((batch, longest), PAD)
        chances = torch.ones(batch, longest, device=question.device)
        for step in range(longest):
            chance, letter = logits.float().softmax(-1).max(-1)
            letters[going, step] = letter.masked_fill(ended, PAD)
            chances[going, step] = chance.masked_fill(ended, 1.0)
            ended = ended | (letter == EOS)
            count = step + 1
            if count == longest:
                break
            if count % WAITS == 0:
                left = (~ended).nonzero()[:, 0]  # waits for the device
                if not len(left):
                    break
                if len(left) <= len(going) // 2:
                    going, ended, letter, sees = (part[left] for part in (going, ended, letter, sees))
                    ahead = Turns(*(part[left] for part in ahead))
                    kept = [(key[left], value[left]) for key, value in kept]
                    real = None if real is None else real[left]
            sees = F.pad(sees, (0, 1), value=True)
            where = Turns(*(part[:, :, step : step + 1] for part in ahead))
            x = self.embedding(letter)[:, None]
            for number, layer in enumerate(self.layers):
                if forget is not None:
                    kept[number] = forget(count, number, x, where, kept[number], sees)
                shown = kept[number][0].shape[2] + 1 - sees.shape[3]
                x, kept[number] = layer(x, where, kept[number], beside(shown, sees, real))
            logits = self._logits(x[:, -1])
        return Written(letters[:, :count], chances[:, :count])


def sight(text: Int64[Tensor, "b t"], asked: int) -> tuple[Int64[Tensor, "b t"], Bool[Tensor, "b 1 t t"]]:
    """The place of each token in its text, and what of the text it sees: the question, and an answer up to itself."""
    is_text = text != PAD
    is_text[:, asked:] = True  # behind an answer's end nobody looks at what comes out
    order = torch.arange(text.shape[1], device=text.device)
    sees = is_text[:, None] & ((order[None] < asked) | (order[None] <= order[:, None]))
    return is_text.cumsum(1), sees[:, None]


def beside(
    shown: int, sees: Bool[Tensor, "b 1 t s"], real: Bool[Tensor, "b n"] | None = None
) -> Bool[Tensor, "b 1 t ns"]:
    """What text looks at: all that a layer is shown of an image but padding, and of the text what it sees."""
    if real is None:
        return F.pad(sees, (shown, 0), value=True)
    return torch.cat((real[:, None, None].expand(-1, -1, sees.shape[2], -1), sees), dim=3)


def text_turns(times: Int64[Tensor, "b t"], head: int) -> Turns:
    return turns(F.pad(times[..., None].float(), (3, 0)), head)
