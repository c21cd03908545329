"""Reducers inside a language model: each layer is shown what the layers before it found worth looking at.

Such a method pays for the whole image in the encoder and in its first layers, and chooses by attention, so a layer
cannot hide it in a fused kernel: what text tokens give to visual ones is computed once more, and that is its price.
Budgets are means over the layers: with few layers and many tokens the first layer alone may cost more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from homunculus.errors import BudgetError
from homunculus.model.decoder import Decoder, Layer, Memory, beside, sight, text_turns
from homunculus.model.rotary import Turns
from homunculus.model.tokenizer import BOS, PAD
from homunculus.peers.likeness import top, unit
from homunculus.peers.merging import nearest_kept, themselves, weighted_mean
from homunculus.peers.registry import full_precision
from homunculus.peers.tokens import picked


class Shown(NamedTuple):
    """What a layer has been shown of images, and how the text looked at it."""

    features: Float[Tensor, "b n c"]
    places: Float[Tensor, "b n axes"]
    attention: Float[Tensor, "b t n"]  # of every text token on every visual one, the mean over heads
    text: Float[Tensor, "b t c"]  # going in
    question: Bool[Tensor, "b t"]  # which text tokens are words of the question; behind them stands one mark

    @property
    def likeness(self) -> Float[Tensor, "b t n"]:
        """Cosine of the text going in and of the features."""
        return unit(self.text) @ unit(self.features.detach()).mT


Chosen = tuple[Float[Tensor, "b k c"], Float[Tensor, "b k axes"]]


@dataclass(frozen=True)
class LayerPeer:
    """A published method: what it keeps after a layer, and how many tokens each layer is shown."""

    name: str
    summary: str
    choose: Callable[[Shown, int], Chosen]
    counts: Callable[[int, int, float], list[int]]  # tokens, layers and the mean over layers to the count of each


def by_last_word(shown: Shown, count: int) -> Chosen:
    """Those the last token before the answer looks at most, in their order."""
    return _kept(shown, shown.attention[:, -1], count)


def by_raters(shown: Shown, count: int) -> Chosen:
    """Those that the words which have most to do with the image look at most; what is given up joins the last ones.

    Words whose mean likeness to the image is above that of all words rate. A tenth of the tokens are kept for what is
    given up: of it the highest rated, each the mean of itself and of those most like it.
    """
    likeness = shown.likeness.mean(2)  # [b, t]
    words = shown.question.float()
    mean = (likeness * words).sum(1, keepdim=True) / words.sum(1, keepdim=True).clamp_min(1)
    raters = shown.question & (likeness >= mean)
    rated = (shown.attention * raters[..., None]).sum(1)
    recycled = count // 10
    order = top(rated, count)
    index, centres = order[:, : count - recycled].sort(1).values, order[:, count - recycled :].sort(1).values
    if not recycled:
        return _picked(shown, index)
    everyone = torch.cat((index, centres), 1)
    belongs = nearest_kept(shown.features, everyone) | themselves(everyone, shown.features.shape[1])
    merged = weighted_mean(belongs[:, count - recycled :].float(), shown.features).to(shown.features.dtype)
    features, places = _picked(shown, everyone)
    features = torch.cat((features[:, : count - recycled], merged), 1)
    everyone, order = everyone.sort(1)
    return picked(features, order), picked(places, order)


def _kept(shown: Shown, values: Float[Tensor, "b n"], count: int) -> Chosen:
    return _picked(shown, top(values, count).sort(1).values)


def _picked(shown: Shown, index: Int64[Tensor, "b k"]) -> Chosen:
    return picked(shown.features, index), picked(shown.places, index)


def all_then(tokens: int, layers: int, mean: float) -> list[int]:
    """All in the first layer, and as many in each of the others as the mean allows.

    >>> all_then(400, 3, 200)
    [400, 100, 100]
    """
    rest = (mean * layers - tokens) / max(1, layers - 1)
    return _checked([tokens] + [int(rest)] * (layers - 1), tokens, layers, mean)


def falling(tokens: int, layers: int, mean: float) -> list[int]:
    """The same share less from each layer to the next, the first shown all.

    >>> falling(400, 3, 200)
    [400, 146, 53]
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        low, high = (share, high) if sum(share**i for i in range(layers)) * tokens < mean * layers else (low, share)
    return _checked([int(tokens * low**i + 1e-6) for i in range(layers)], tokens, layers, mean)


def _checked(counts: list[int], tokens: int, layers: int, mean: float) -> list[int]:
    if mean > tokens:
        raise BudgetError(f"a mean of {mean:g} tokens is more than all {tokens}: give a smaller budget")
    if min(counts) < 1 or sum(counts) > mean * layers + 1e-3:  # one layer has no others that make up for it
        raise BudgetError(
            f"the first of {layers} layers is shown all {tokens} tokens, so the mean is at least {tokens / layers:g}: "
            f"give fewer tokens, or a larger budget than {mean:g}"
        )
    return counts


def least_mean(counts: Callable[[int, int, float], list[int]], tokens: int, layers: int, shown: int = 1) -> int:
    """The least whole mean over layers at which none of them is shown fewer than `shown` tokens, or all there are.

    >>> least_mean(all_then, 4096, 3), least_mean(falling, 4096, 3), least_mean(all_then, 4096, 3, shown=273)
    (1366, 1387, 1548)
    """
    low, high = 0, tokens  # every mean up to low shows a layer fewer, high does not
    while high - low > 1:
        mean = (low + high) // 2
        try:
            enough = min(counts(tokens, layers, mean)) >= min(shown, tokens)
        except BudgetError:
            enough = False
        low, high = (low, mean) if enough else (mean, high)
    return high


LAYER_PEERS = {
    peer.name: peer
    for peer in (
        LayerPeer("fastv", "after the first layer, those the last token looks at most", by_last_word, all_then),
        LayerPeer("pyramiddrop", "the same, some fewer after every layer", by_last_word, falling),
        LayerPeer("sparsevlm", "after every layer, those the telling words look at; others merged", by_raters, falling),
    )
}


def remember_reduced(
    decoder: Decoder,
    features: Float[Tensor, "b n c"],
    places: Float[Tensor, "b n 4"],
    question: Int64[Tensor, "b q"],
    peer: LayerPeer,
    mean: float,
) -> Memory:
    """What a decoder keeps of images for a question when every layer is shown fewer tokens than the one before.
    Gradients reach the features that are kept, not the choice of them."""
    counts = peer.counts(features.shape[1], len(decoder.layers), mean)
    text = F.pad(question, (0, 1), value=BOS)
    times, sees = sight(text, question.shape[1])
    head = decoder.embedding.embedding_dim // decoder.heads
    where = text_turns(times, head)
    x, remembered = decoder.embedding(text).detach(), []
    fewer = [after < before for before, after in pairwise((*counts, counts[-1]))]  # after which layers is chosen
    for number, module in enumerate(decoder.layers):
        layer = cast(Layer, module)
        seen = layer.attention.keys_values(features, decoder.turns(places, head))
        remembered.append(seen)
        mask = beside(seen[0].shape[2], sees)
        if fewer[number]:
            is_question = F.pad(question != PAD, (0, 1), value=False)
            with torch.no_grad():
                attention = attention_on(layer, x, where, seen, mask)
            with full_precision(x.device.type):
                shown = Shown(features, places, attention, x, is_question)
                features, places = peer.choose(shown, counts[number + 1])
        if any(fewer[number + 1 :]):  # somebody looks at the text again
            with torch.no_grad():
                x, _ = layer(x, where, seen, mask)
    if torch.is_grad_enabled():  # autocast may keep weights that it cast here, where they have no gradients
        torch.clear_autocast_cache()
    return Memory(tuple(remembered))


def attention_on(
    layer: Layer, x: Float[Tensor, "b t c"], where: Turns, seen: tuple[Tensor, Tensor], mask: Bool[Tensor, "b 1 t s"]
) -> Float[Tensor, "b t n"]:
    """How much each text token looks at each visual one, the mean over heads: of all it looks at, text included."""
    normed = layer.norm(x)
    key, _ = layer.attention.keys_values(normed, where)
    keys = torch.cat((seen[0], key), 2)
    query = layer.attention.queries(normed, where)
    return looks(query, keys, mask)[..., : seen[0].shape[2]]


def looks(
    query: Float[Tensor, "b heads t d"], key: Float[Tensor, "b heads s d"], mask: Bool[Tensor, "b 1 t s"]
) -> Float[Tensor, "b t s"]:
    """How much each query looks at each key, the mean over heads; in full precision even inside autocast, where few of
    thousands of keys could be told apart."""
    with full_precision(query.device.type):
        scores = query.float() @ key.float().mT / query.shape[-1] ** 0.5
        return scores.masked_fill(~mask, -torch.inf).softmax(-1).mean(1)
