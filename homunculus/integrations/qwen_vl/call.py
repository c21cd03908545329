"""What the host reads of one call, at its start and only then: tokens, grids, questions, and which image is whose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from homunculus.errors import ImageError
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.prompts import Prompts, image_runs, lay_out, padded, shortened


@dataclass(frozen=True, eq=False)
class Call:
    """Rows of tokens, and for every image its grid (columns, lines) of leaves and its number of placeholders."""

    ids: Int[np.ndarray, "b t"]
    mask: Int[np.ndarray, "b t"] | None
    image_token: int
    grids: tuple[Size, ...]
    runs: tuple[tuple[int, ...], ...]  # the placeholders of each row's images
    questions: tuple[str, ...]  # one for each row
    device: torch.device

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.grids):
            raise ImageError(
                f"the prompt has placeholders for {len(self.counts)} images and {len(self.grids)} were given: "
                "make inputs with the processor that was patched"
            )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Tokens of each image."""
        return tuple(count for row in self.runs for count in row)

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of each row's images."""
        numbers = iter(range(len(self.counts)))
        return tuple(tuple(next(numbers) for _ in row) for row in self.runs)

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The row of each image."""
        return tuple(row for row, own in enumerate(self.runs) for _ in own)

    @property
    def every_leaf(self) -> bool:
        """Whether there is nothing to choose: a placeholder for every leaf, as an unpatched processor writes them."""
        return self.counts == tuple(columns * lines for columns, lines in self.grids)

    def prompts(self, extents: Sequence[int]) -> Prompts:
        """Its prompts, with how far each image counts."""
        return lay_out(self.ids, self.mask, self.image_token, self._by_row(extents), self.device)

    def prompts_with(self, counts: Sequence[int], extents: Sequence[int]) -> Prompts:
        """Its prompts with another number of placeholders for each image, padded on the left."""
        ids, mask = shortened(self.ids, self.mask, self.image_token, self._by_row(counts))
        return lay_out(ids, mask, self.image_token, self._by_row(extents), self.device)

    def asking(self, question: str, tokens: Sequence[int], end_of_turn: int) -> "Call":
        """The same call with another question: these tokens stand after each row's last image, to the end of its
        turn. Rows without an image stay as they are."""
        prompts = []
        for row in range(len(self.ids)):
            own = self.ids[row] if self.mask is None else self.ids[row, self.mask[row].astype(bool)]
            images = np.flatnonzero(own == self.image_token)
            if len(images):
                begin = images[-1] + 2  # after the mark that ends the image
                ends = np.flatnonzero(own[begin:] == end_of_turn)
                rest = own[begin + ends[0] :] if len(ends) else own[:0]
                own = np.concatenate((own[:begin], np.asarray(tokens, dtype=own.dtype), rest))
            prompts.append(own)
        ids, mask = padded(prompts)
        return replace(self, ids=ids, mask=mask, questions=(question,) * len(self.questions))

    def _by_row(self, of_images: Sequence[int]) -> list[list[int]]:
        return [[of_images[image] for image in row] for row in self.rows]


def leaf_grids(image_grid_thw: Int64[Tensor, "images 3"], layout: Layout) -> list[Size]:
    """(columns, lines) of leaves of each image (waits for the device)."""
    return [(w // layout.merge, h // layout.merge) for _, h, w in image_grid_thw.tolist()]


def last_question(ids: list[int], tokenizer: Any, image_token: int) -> str:
    """The text of the last turn of the user, or all text after the last image where turns are not marked."""
    turn = tokenizer.convert_tokens_to_ids("<|im_start|>")
    marks = [i for i, token in enumerate(ids) if token == turn]
    for start, stop in reversed(list(pairwise([*marks, len(ids)]))):
        text = tokenizer.decode(ids[start:stop], skip_special_tokens=True)
        if text.startswith("user"):
            return text.removeprefix("user").strip()
    images = [i for i, token in enumerate(ids) if token == image_token]
    return tokenizer.decode(ids[images[-1] + 1 if images else 0 :], skip_special_tokens=True).strip()


def read_call(inputs: dict[str, Any], layout: Layout, image_token: int, question: Callable[[list[int]], str]) -> Call:
    """The call of these inputs (waits for the device). `question` finds the last question in a row of tokens."""
    ids = inputs["input_ids"].cpu().numpy()
    given = inputs.get("attention_mask")
    mask = None if given is None or given.ndim != 2 else given.cpu().numpy()
    grids = tuple(leaf_grids(inputs["image_grid_thw"], layout))
    runs = tuple(tuple(row) for row in image_runs(ids, image_token))
    questions = tuple(question(row) for row in ids.tolist())
    return Call(ids, mask, image_token, grids, runs, questions, inputs["pixel_values"].device)
