"""Relevance from the model itself, without training and without attention maps: a small uniform view is shown first.

`text-similarity`  how alike the view's visual tokens and the question's words are, as the language model embeds both
`coarse-pass`      where the question's last token looks: the view and the whole prompt go through the first layers of
                   the language model, and one row q . K^T is taken against the visual keys, in a hook, of one layer

The attention that runs is whatever the model runs with, SDPA or FlashAttention: nothing asks it for its weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from homunculus.allocation import allocate_view
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.call import Call
from homunculus.integrations.qwen_vl.features import cell_shares, encode_cells
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.plan import Looking, Plan, alike, scorer_in
from homunculus.integrations.qwen_vl.prompts import Prompts, read
from homunculus.integrations.qwen_vl.rope import extent, places
from homunculus.structures import Allocation, View, rectangular

NAMES = ("text-similarity", "coarse-pass")


@dataclass(frozen=True)
class Coarse:
    """The first view: how many tokens it has, and which layer is asked (from 0; DeepStack feeds the first three)."""

    tokens: int = 64
    layer: int = 3


@dataclass(frozen=True, eq=False)
class FirstView:
    """The coarse view of a call's images: equal cells, which leaves each is made of, the prompts that go with it, and
    the words of each row's question, for who asks for them."""

    plan: Plan
    shares: tuple[Float64[Tensor, "_n _leaves"], ...]
    prompts: Prompts
    words: tuple[Int64[Tensor, "_words"], ...] = ()


def first_view(
    call: Call, layout: Layout, coarse: Coarse, tokenize: Callable[[str], list[int]] | None = None
) -> FirstView:
    """What the host can say of the first view before anything runs."""
    own = [_equal_cells(grid, layout, coarse.tokens, call.device) for grid in call.grids]
    plan = Plan(tuple(allocation for allocation, _ in own), call.grids, call.rows)
    extents = [extent(plan, image, "true") for image in range(len(call.grids))]
    prompts = call.prompts_with(plan.counts, extents)
    words = () if tokenize is None else tuple(torch.tensor(tokenize(q or " ")).to(call.device) for q in call.questions)
    return FirstView(plan, tuple(shares for _, shares in own), prompts, words)


def first_views(call: Call, layout: Layout, coarse: Coarse, looking: Looking, tokenizer: Any) -> list[FirstView]:
    """What the model is shown first, for each question it is to be asked, where it is asked at all."""
    name = scorer_in(looking.relevance, NAMES)
    if name is None or call.every_leaf:
        return []

    def tokenize(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    calls = [call, *(call.asking(question, tokenize(question), end) for question in looking.expect)]
    words = tokenize if name == "text-similarity" else None
    return [first_view(one, layout, coarse, words) for one in calls]


@lru_cache(maxsize=32)
def _equal_cells(
    grid: Size, layout: Layout, tokens: int, device: torch.device
) -> tuple[Allocation, Float64[Tensor, "n leaves"]]:
    columns, lines = grid
    view = View(torch.ones(1, lines, columns, dtype=torch.float64), (columns * layout.leaf, lines * layout.leaf),
                layout.leaf)  # fmt: skip
    allocation = rectangular(allocate_view(view, min(tokens, columns * lines), "uniform"))
    return allocation.to(device), cell_shares(allocation, grid).to(device)


def model_maps(
    name: str,
    inner: Any,
    pixel_values: Float[Tensor, "patches values"],
    views: Sequence[FirstView],
    layout: Layout,
    coarse: Coarse,
) -> list[Float64[Tensor, "_lines _columns"]]:
    """A density over the leaves of every image, mass 1: the mean of what each question finds. The questions share the
    cells of the first view, which the tower sees once."""
    plan = views[0].plan
    with torch.no_grad():
        output = encode_cells(inner.visual, pixel_values, plan, layout)
        ask = _words_alike if name == "text-similarity" else last_token_looks
        found = [ask(inner, output, view, coarse.layer) for view in views]
        values = [torch.stack(own).mean(0) for own in zip(*found, strict=True)]
        maps: list[Any] = [None] * len(values)
        for images in alike(plan.grids):  # all images of one size at once
            first = images[0]
            spreads = spread(torch.stack([values[i] for i in images]), views[0].shares[first], plan.grids[first])
            for image, own in zip(images, spreads, strict=True):
                maps[image] = own
        return maps


def _words_alike(inner: Any, output: Any, view: FirstView, layer: int) -> list[Float[Tensor, "_n"]]:
    """How alike the tokens of every image and the words of its question are; no layer is asked."""
    rows = [row for row, images in enumerate(view.plan.rows) for _ in images]
    words = [inner.get_input_embeddings()(view.words[row]) for row in rows]
    return [similarity(*pair) for pair in zip(output.pooler_output.split(view.plan.counts), words, strict=True)]


def similarity(features: Float[Tensor, "n d"], words: Float[Tensor, "words d"]) -> Float[Tensor, "n"]:
    """The cosine of every token with the word it is nearest to, sharpened: shares of one.

    >>> similarity(torch.eye(3), torch.tensor([[0.0, 1.0, 0.0]])).argmax().item()
    1
    """
    cosines = torch.nn.functional.normalize(features.float(), dim=1) @ torch.nn.functional.normalize(words.float()).T
    nearest = cosines.amax(1)
    return torch.softmax(2 * (nearest - nearest.mean()) / nearest.std(correction=0).clamp(min=1e-6), dim=0)


class _Seen(Exception):
    """Raised in the hook: what follows in the language model is of no interest."""


def last_token_looks(inner: Any, output: Any, view: FirstView, layer: int) -> list[Float[Tensor, "_n"]]:
    """For every image, how the last token of its prompt shares its attention among the coarse tokens."""
    prompts = view.prompts
    visual = torch.zeros_like(prompts.ids, dtype=torch.bool).flatten().index_fill(0, prompts.slots, True)
    weights: list[Tensor] = []

    def look(attention: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        weights.append(attention_row(attention, hidden, kwargs["position_embeddings"], visual.view_as(prompts.ids)))
        raise _Seen

    layers = inner.language_model.layers
    hook = layers[min(layer, len(layers) - 1)].self_attn.register_forward_pre_hook(look, with_kwargs=True)
    deepstack = getattr(output, "deepstack_features", None)
    try:
        read(inner, prompts, output.pooler_output, deepstack, places(view.plan, "true"), use_cache=False)
    except _Seen:
        pass  # as intended: the layers after this one would be wasted work
    finally:
        hook.remove()
    return list(weights[0].flatten()[prompts.slots].split(view.plan.counts))


def attention_row(
    attention: Any, hidden: Float[Tensor, "b t d"], rotation: tuple[Tensor, Tensor], visual: Bool[Tensor, "b t"]
) -> Float[Tensor, "b t"]:
    """softmax(q . K^T) of the last token over the visual keys, mean over heads: one row of what attention computes."""
    heads = (*hidden.shape[:2], -1, attention.head_dim)
    query, key = attention.q_proj(hidden[:, -1:]), attention.k_proj(hidden)
    query, key = query.view(heads[0], 1, -1, attention.head_dim), key.view(heads)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    cos, sin = (table[:, :, None].float() for table in rotation)  # [B, T, 1, d]
    query, key = _rotate(query.float(), cos[:, -1:], sin[:, -1:]), _rotate(key.float(), cos, sin)
    key = key.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
    scores = torch.einsum("bihd,bthd->bht", query, key) * attention.scaling
    scores = scores.masked_fill(~visual[:, None], -torch.inf)
    return torch.softmax(scores, dim=2).nan_to_num(0.0).mean(1)  # a row without images looks at none


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def spread(
    values: Float[Tensor, "*b n"], shares: Float64[Tensor, "n leaves"], grid: Size
) -> Float64[Tensor, "*b lines columns"]:
    """What each cell has, spread evenly over the leaves under it; `shares` are those of `cell_shares`."""
    return (values.double() @ shares).unflatten(-1, (grid[1], grid[0]))
