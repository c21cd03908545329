"""Relevance from the model itself, without training and without attention maps: a small uniform view is shown first.

`text-similarity`  how alike the view's visual tokens and the question's words are, as the language model embeds both
`coarse-pass`      where the question's last token looks: the view and the whole prompt go through the first layers of
                   the language model, and one row q . K^T is taken against the visual keys, in a hook, of one layer

The attention that runs is whatever the model runs with, SDPA or FlashAttention: nothing asks it for its weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from homunculus.allocation import allocate_view
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.features import cell_shares, encode_cells
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.plan import Plan
from homunculus.integrations.qwen_vl.rope import padded_positions, rope_positions
from homunculus.structures import Allocation, View, rectangular

NAMES = ("text-similarity", "coarse-pass")


@dataclass(frozen=True)
class Coarse:
    """The first view: how many tokens it has, and which layer is asked (from 0; DeepStack feeds the first three)."""

    tokens: int = 64
    layer: int = 3


def coarse_plan(plan_rows: Sequence[Sequence[int]], grids: Sequence[Size], layout: Layout, coarse: Coarse) -> Plan:
    """Every image in equal cells."""
    allocations = []
    for columns, lines in grids:
        view = View(torch.ones(1, lines, columns, dtype=torch.float64), (columns * layout.leaf, lines * layout.leaf),
                    layout.leaf)  # fmt: skip
        allocations.append(rectangular(allocate_view(view, min(coarse.tokens, columns * lines), "uniform")))
    return Plan(tuple(allocations), tuple(grids), tuple(tuple(row) for row in plan_rows))


def model_maps(
    name: str,
    inner: Any,
    tokenizer: Any,
    inputs: dict[str, Any],
    questions: Sequence[str],
    image_token: int,
    plan: Plan,
    layout: Layout,
    coarse: Coarse,
) -> list[Float64[Tensor, "_lines _columns"]]:
    """A density over the leaves of every image. `plan` is the coarse one."""
    device = inputs["pixel_values"].device
    plan = replace(plan, allocations=tuple(allocation.to(device) for allocation in plan.allocations))
    with torch.no_grad():
        output = encode_cells(inner.visual, inputs["pixel_values"], plan, layout)
        features = output.pooler_output.split(plan.counts)
        if name == "text-similarity":
            owners = [row for row, images in enumerate(plan.rows) for _ in images]
            words = [_embedded(inner, tokenizer, question, device) for question in questions]
            values = [similarity(own, words[row]) for own, row in zip(features, owners, strict=True)]
        else:
            values = last_token_looks(inner, inputs, output, image_token, plan, coarse.layer)
    triples = zip(values, plan.allocations, plan.grids, strict=True)
    return [spread(value, allocation, grid) for value, allocation, grid in triples]


def _embedded(inner: Any, tokenizer: Any, question: str, device: torch.device) -> Float[Tensor, "words d"]:
    ids = tokenizer(question or " ", return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    return inner.get_input_embeddings()(ids.to(device))


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


def last_token_looks(
    inner: Any, inputs: dict[str, Any], output: Any, image_token: int, plan: Plan, layer: int
) -> list[Float[Tensor, "_n"]]:
    """For every image, how the last token of its prompt shares its attention among the coarse tokens."""
    ids, mask = coarse_prompts(inputs["input_ids"], inputs.get("attention_mask"), image_token, plan)
    visual = ids == image_token
    embeds = inner.get_input_embeddings()(ids)
    embeds[visual] = output.pooler_output.to(embeds.dtype)
    rows = [(row[own.bool()] == image_token).tolist() for row, own in zip(ids, mask, strict=True)]
    positions, _ = rope_positions(rows, plan, "true", ids.device)
    extra = {}
    if (deepstack := getattr(output, "deepstack_features", None)) is not None:
        extra = {"visual_pos_masks": visual, "deepstack_visual_embeds": list(deepstack)}
    weights: list[Tensor] = []

    def look(attention: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        weights.append(attention_row(attention, hidden, kwargs["position_embeddings"], visual))
        raise _Seen

    layers = inner.language_model.layers
    hook = layers[min(layer, len(layers) - 1)].self_attn.register_forward_pre_hook(look, with_kwargs=True)
    try:
        inner.language_model(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=padded_positions(positions, mask, ids.shape[1]),
            use_cache=False,
            **extra,
        )
    except _Seen:
        pass  # as intended: the layers after this one would be wasted work
    finally:
        hook.remove()
    return list(weights[0][visual].split(plan.counts))


def coarse_prompts(
    input_ids: Int64[Tensor, "b t"], attention_mask: Tensor | None, image_token: int, plan: Plan
) -> tuple[Int64[Tensor, "b s"], Int64[Tensor, "b s"]]:
    """The prompts with as many placeholders for each image as the coarse plan has tokens, padded on the left."""
    prompts = []
    for number, row in enumerate(input_ids):
        own = row if attention_mask is None else row[attention_mask[number].bool()]
        counts = iter(plan.rows[number])
        prompt: list[int] = []
        for token, run in groupby(own.tolist()):
            prompt += [token] * (plan.counts[next(counts)] if token == image_token else len(list(run)))
        prompts.append(prompt)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids.to(input_ids.device), mask.to(input_ids.device)


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


def spread(values: Float[Tensor, "n"], allocation: Allocation, grid: Size) -> Float64[Tensor, "lines columns"]:
    """What each cell has, spread evenly over the leaves under it."""
    shares = cell_shares(allocation, grid).to(values.device)
    return (values.double() @ shares).view(grid[1], grid[0])
