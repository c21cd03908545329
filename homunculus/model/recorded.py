"""Writing in tensors that stay where they are, so that a step can be recorded once and replayed: a CUDA graph.

`Decoder.write` launches some hundred and thirty small operations for each letter, one by one; with a few answers at a
time a GPU spends most of that waiting for its host, however much or little there is to read. Here keys and values lie
in tensors with room for a whole answer, a step writes its own into them, and all that changes from letter to letter is
on the device, its number included. Answers are those of `Decoder.write`: what is not written yet is not looked at.

    with recorded(model.decoder):
        answer(model, images, questions)

Shapes are few: a budget, a batch, and questions padded to a multiple of eight. What drops features while it writes
(`forget`) changes shapes as it goes and is written as ever. Weights must stay what they are meanwhile.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor

from homunculus.model.blocks import attend
from homunculus.model.decoder import WAITS, Decoder, Layer, Memory, Written, text_turns
from homunculus.model.rotary import Turns
from homunculus.model.tokenizer import BOS, EOS, PAD

WIDE = 8  # questions are padded to a multiple of it
WARM = 3  # steps before one is recorded, as kernels are chosen and loaded in the first


class Shape(NamedTuple):
    """What a recorded step is for."""

    batch: int
    asked: int  # words of a question
    longest: int
    counts: tuple[int, ...]  # tokens each layer is shown
    dtype: torch.dtype  # of keys and values
    cast: torch.dtype | None  # of products, under autocast


class Steps:
    """The state of answers that are being written, all of it on the device, and one step of it."""

    def __init__(self, decoder: Decoder, shape: Shape, device: torch.device) -> None:
        self.decoder, self.shape = decoder, shape
        batch, asked, longest = shape.batch, shape.asked, shape.longest
        head = decoder.embedding.embedding_dim // decoder.heads
        rooms = [count + asked + 1 + longest for count in shape.counts]
        self.kept = [
            tuple(torch.zeros(batch, decoder.heads, room, head, dtype=shape.dtype, device=device) for _ in range(2))
            for room in rooms
        ]
        self.sees = [torch.zeros(batch, 1, 1, room, dtype=torch.bool, device=device) for room in rooms]
        self.turns = Turns(*(torch.zeros(batch, 1, longest, head // 2, device=device) for _ in range(2)))
        self.number = torch.zeros(1, dtype=torch.int64, device=device)  # of the letter that comes next
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)
        self.letters = torch.zeros(batch, longest, dtype=torch.int64, device=device)
        self.chances = torch.ones(batch, longest, device=device)
        self.logits = torch.zeros_like(decoder._logits(torch.zeros(batch, head * decoder.heads, device=device)))

    def begin(self, memory: Memory, question: Int64[Tensor, "b q"]) -> None:
        """Read the question, and be about to write the first letter."""
        begun = F.pad(question, (0, 1), value=BOS)
        hidden, kept = self.decoder._read(begun, question.shape[1], memory)
        self.logits.copy_(self.decoder._logits(hidden[:, -1]))
        is_text = begun != PAD
        for (keys, values), sees, (key, value) in zip(self.kept, self.sees, kept, strict=True):
            read = key.shape[2]
            keys[:, :, :read], values[:, :, :read] = key, value
            shown = read - begun.shape[1]
            sees.zero_()
            sees[:, 0, 0, :shown] = True if memory.real is None else memory.real
            sees[:, 0, 0, shown:read] = is_text
        times = is_text.sum(1, keepdim=True) + torch.arange(1, self.shape.longest + 1, device=question.device)
        for own, turn in zip(self.turns, text_turns(times, self.kept[0][0].shape[-1]), strict=True):
            own.copy_(turn)
        self.number.zero_()
        self.ended.zero_()
        self.letters.fill_(PAD)
        self.chances.fill_(1.0)

    def step(self) -> None:
        """One letter, and what it takes to write the next."""
        chance, letter = self.logits.float().softmax(-1).max(-1)
        self.letters.index_copy_(1, self.number, letter.masked_fill(self.ended, PAD)[:, None])
        self.chances.index_copy_(1, self.number, chance.masked_fill(self.ended, 1.0)[:, None])
        self.ended |= letter == EOS
        where = Turns(*(part.index_select(2, self.number) for part in self.turns))
        x = self.decoder.embedding(letter)[:, None]
        layers = (cast(Layer, layer) for layer in self.decoder.layers)
        for layer, (keys, values), sees in zip(layers, self.kept, self.sees, strict=True):
            place = self.number + (sees.shape[3] - self.shape.longest)
            normed = layer.norm(x)
            key, value = layer.attention.keys_values(normed, where)
            keys.index_copy_(2, place, key.to(keys.dtype))
            values.index_copy_(2, place, value.to(values.dtype))
            sees.index_fill_(3, place, True)
            query = layer.attention.queries(normed, where)
            x = x + layer.attention.out(attend(query, keys.to(query.dtype), values.to(query.dtype), sees))
            x = x + layer.mlp(layer.mlp_norm(x))
        self.logits.copy_(self.decoder._logits(x[:, -1]))
        self.number += 1


class Recorder:
    """Writes with one recorded step for each shape; on a CPU, where nothing can be recorded, with the step as it is."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.steps: dict[Shape, Steps] = {}
        self.graphs: dict[Shape, torch.cuda.CUDAGraph] = {}

    @torch.no_grad()
    def __call__(self, memory: Memory, question: Int64[Tensor, "b q"], longest: int) -> Written:
        device = question.device
        question = F.pad(question, (0, -question.shape[1] % WIDE), value=PAD)
        cast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        dtype = memory.layers[0][0].dtype
        shape = Shape(len(question), question.shape[1], longest, memory.counts, dtype, cast)
        if shape not in self.steps:
            self.steps[shape] = Steps(self.decoder, shape, device)
        steps = self.steps[shape]
        if device.type == "cuda" and shape not in self.graphs:
            steps.begin(memory, question)
            self.graphs[shape] = record(steps)
        steps.begin(memory, question)
        step = self.graphs[shape].replay if shape in self.graphs else steps.step
        for count in range(1, longest + 1):
            step()
            if count % WAITS == 0 and bool(steps.ended.all()):  # waits for the device
                break
        return Written(steps.letters[:, :count].clone(), steps.chances[:, :count].clone())

    def forget(self, shapes: Iterable[Shape]) -> None:
        """What was recorded for some shapes, and the memory it holds."""
        for shape in list(shapes):
            self.graphs.pop(shape, None)
            self.steps.pop(shape, None)


def record(steps: Steps) -> torch.cuda.CUDAGraph:
    """A step as a graph; the state is left somewhere in the midst of an answer."""
    # Copies of weights that autocast keeps would be freed when the graph needs them: inside it makes its own.
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside), uncached():
        for _ in range(min(WARM, steps.shape.longest - 1)):
            steps.step()
    torch.cuda.current_stream().wait_stream(beside)
    steps.number.zero_()
    graph = torch.cuda.CUDAGraph()
    with uncached(), torch.cuda.graph(graph):
        steps.step()
    return graph


@contextmanager
def uncached() -> Iterator[None]:
    """Autocast as it is, but for its copies of weights."""
    enabled = torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=enabled, cache_enabled=False):
        yield


@contextmanager
def recorded(decoder: Decoder) -> Iterator[Recorder]:
    """While this lasts, a decoder writes with recorded steps.

    >>> from homunculus.model.config import tiny
    >>> from homunculus.model.encoder import Cells
    >>> decoder, nothing = Decoder(tiny()), torch.zeros(1, 40, 4)
    >>> memory = decoder.remember(torch.randn(1, 40, 32), Cells(nothing, nothing[..., 0], nothing[..., :3]))
    >>> plain = decoder.write(memory, torch.tensor([[70, 71]]), longest=5)
    >>> with recorded(decoder):
    ...     same = decoder.write(memory, torch.tensor([[70, 71]]), longest=5)
    >>> torch.equal(plain.letters, same.letters)
    True
    """
    decoder.writer = Recorder(decoder)
    try:
        yield decoder.writer
    finally:
        decoder.writer = None
