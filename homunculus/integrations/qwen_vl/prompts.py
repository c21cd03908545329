"""Where the tokens of a batch of prompts lie and from where each is counted: what the host reads of a call, once.

All that follows is tensors on the device at places known beforehand, so nothing waits for the device again, and a whole
pass can be captured in a graph. The library's own way, boolean masks, asks the device for every image and layer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Prompts:
    """Tokens `[B, T]`, padding included, with the slots of the visual ones.

    `slots` are the placeholders' numbers in the flattened batch, image after image. `starts` are positions: text counts
    on by one, a placeholder has the position its image begins at, padding 0. `deltas` say how much further than its
    length each row has counted. Without padding there is no mask.
    """

    ids: Int64[Tensor, "b t"]
    mask: Int64[Tensor, "b t"] | None
    slots: Int64[Tensor, "visual"]
    starts: Float[Tensor, "3 b t"]
    deltas: Int64[Tensor, "b 1"]

    def positions(self, places: Float[Tensor, "visual 3"]) -> Float[Tensor, "3 b t"]:
        """(time, line, column) of every token, visual ones at these places of their images."""
        return self.starts.flatten(1).index_add(1, self.slots, places.T).view_as(self.starts)

    def with_tokens(self, embeds: Float[Tensor, "b t d"], tokens: Float[Tensor, "visual d"]) -> Float[Tensor, "b t d"]:
        """The embedded prompts with visual tokens in their slots."""
        return embeds.flatten(0, 1).index_copy(0, self.slots, tokens.to(embeds.dtype)).view_as(embeds)


def lay_out(
    ids: Int[np.ndarray, "b t"],
    mask: Int[np.ndarray, "b t"] | None,
    image_token: int,
    extents: Sequence[Sequence[int]],
    device: torch.device,
) -> Prompts:
    """Prompts of known contents. `extents` are how far each row's images count, in the order of the prompt.

    >>> prompts = lay_out(np.array([[5, 9, 9, 9, 5, 5]]), None, 9, [[2]], torch.device("cpu"))
    >>> prompts.slots.tolist(), prompts.starts[0].tolist(), prompts.deltas.tolist()
    ([1, 2, 3], [[0.0, 1.0, 1.0, 1.0, 3.0, 4.0]], [[-1]])
    """
    starts = np.zeros(ids.shape, dtype=np.float32)
    slots, deltas = [], []
    for row in range(len(ids)):
        columns = np.arange(ids.shape[1]) if mask is None else np.flatnonzero(mask[row])
        own = iter(extents[row])
        now = 0
        for is_image, low, high in _runs(ids[row, columns] == image_token):
            here = columns[low:high]
            starts[row, here] = now if is_image else now + np.arange(high - low)
            if is_image:
                slots.append(row * ids.shape[1] + here)
            now += next(own) if is_image else high - low
        deltas.append([now - len(columns)])
    padded = mask is not None and not mask.all()
    return Prompts(
        torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)).to(device),
        torch.from_numpy(np.ascontiguousarray(mask, dtype=np.int64)).to(device) if padded else None,
        torch.from_numpy(np.concatenate(slots or [np.zeros(0, dtype=np.int64)])).to(device),
        torch.from_numpy(starts).to(device).expand(3, -1, -1),
        torch.tensor(deltas).to(device),
    )


def shortened(
    ids: Int[np.ndarray, "b t"],
    mask: Int[np.ndarray, "b t"] | None,
    image_token: int,
    counts: Sequence[Sequence[int]],
) -> tuple[Int[np.ndarray, "b s"], Int[np.ndarray, "b s"]]:
    """The prompts with so many placeholders for each image of each row, padded on the left, and their mask.

    >>> shortened(np.array([[5, 9, 9, 9, 6], [0, 0, 0, 5, 6]]), np.array([[1] * 5, [0, 0, 0, 1, 1]]), 9, [[1], []])[0]
    array([[5, 9, 6],
           [0, 5, 6]])
    """
    prompts = []
    for row in range(len(ids)):
        own = ids[row] if mask is None else ids[row, mask[row].astype(bool)]
        wanted = iter(counts[row])
        parts = [
            np.full(next(wanted), image_token) if is_image else own[low:high]
            for is_image, low, high in _runs(own == image_token)
        ]
        prompts.append(np.concatenate(parts))
    return padded(prompts)


def padded(prompts: Sequence[Int[np.ndarray, "_t"]]) -> tuple[Int[np.ndarray, "b t"], Int[np.ndarray, "b t"]]:
    """Prompts of several lengths as one array, padded on the left with zeros, and the mask of what is real."""
    longest = max(map(len, prompts))
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    return ids, mask


def image_runs(ids: Int[np.ndarray, "b t"], image_token: int) -> list[list[int]]:
    """The lengths of the runs of image placeholders in each row.

    >>> image_runs(np.array([[7, 7, 1, 7], [1, 1, 2, 2]]), 7)
    [[2, 1], []]
    """
    return [[high - low for is_image, low, high in _runs(row == image_token) if is_image] for row in ids]


def _runs(marks: np.ndarray) -> Iterator[tuple[bool, int, int]]:
    """(whether marked, begin, end) of every run."""
    edges = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(marks)]
    for low, high in pairwise(edges):
        if low < high:
            yield bool(marks[low]), low, high


def read(inner: Any, prompts: Prompts, tokens: Tensor, deepstack: Sequence[Tensor] | None, places: Tensor,
         **how: Any) -> Any:  # fmt: skip
    """The language model's output for prompts with visual tokens in their slots."""
    embeds = prompts.with_tokens(inner.get_input_embeddings()(prompts.ids), tokens)
    extra = {} if deepstack is None else {"visual_pos_masks": prompts.slots, "deepstack_visual_embeds": list(deepstack)}
    with _deepstack_by_slot(inner.language_model):
        return inner.language_model(
            inputs_embeds=embeds,
            attention_mask=prompts.mask,
            position_ids=prompts.positions(places),
            **extra,
            **how,
        )


@contextmanager
def _deepstack_by_slot(language_model: Any) -> Iterator[None]:
    """While this lasts, DeepStack features are added at slots instead of under a boolean mask."""
    if not hasattr(language_model, "_deepstack_process"):
        yield
        return

    def add(hidden: Tensor, slots: Tensor, features: Tensor) -> Tensor:
        flat = hidden.flatten(0, 1)
        return flat.index_copy(0, slots, flat[slots] + features.to(hidden.dtype)).view_as(hidden)

    language_model._deepstack_process = add
    try:
        yield
    finally:
        del language_model._deepstack_process
