"""An image and a question to an answer, how sure it is, and what was looked at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.allocation import DEFAULT, check_budget, get_allocator
from homunculus.errors import BudgetError, ModelError, QueryError
from homunculus.foveate import alike, one_each, select
from homunculus.images import load_images
from homunculus.model.calibration import BELIEVED, Calibration
from homunculus.model.looking import (
    BUDGETS,
    LONGEST_QUESTION,
    SURE,
    Look,
    Reader,
    check_looks,
    refinements,
    saccades,
)
from homunculus.model.vlm import CompactVLM
from homunculus.relevance import as_fixations, stack_fixations
from homunculus.structures import Allocation

MOST = 1 << 16  # tokens: every leaf of 4096 x 4096 pixels


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model said about an image, and how likely that is right, from 0 to 1. `looks` tells it look by look."""

    looks: tuple[Look, ...]
    look: Look  # the one that answered: the last, or the surest of looks apart

    @property
    def text(self) -> str:
        return self.look.text

    @property
    def confidence(self) -> float:
        return self.look.confidence

    @property
    def allocation(self) -> Allocation:
        """The cells of the look that answered."""
        return self.look.allocation

    @property
    def density(self) -> Float64[Tensor, "gh gw"]:
        """What they were spent by."""
        return self.look.density

    @property
    def tokens(self) -> int:
        """Visual tokens spent in all."""
        return sum(look.tokens for look in self.looks)

    def report(self) -> dict[str, Any]:
        """What can be written as JSON."""
        looks = [
            {
                "answer": look.text,
                "confidence": look.confidence,
                "tokens": look.tokens,
                "at": look.fixations[look.fixations[:, 2] > 0, :2].tolist(),
            }
            for look in self.looks
        ]
        size = list(self.allocation.image_sizes[0])
        said = {"answer": self.text, "confidence": self.confidence, "tokens": self.tokens}
        return said | {"image_size": size, "looks": looks}

    def __repr__(self) -> str:
        looks = "1 look" if len(self.looks) == 1 else f"{len(self.looks)} looks"
        return f"Answer({self.text!r}, {self.confidence:.0%} sure, {self.tokens} tokens in {looks})"


@torch.no_grad()
def answer(
    model: CompactVLM,
    image: Any,
    question: Any,
    *,
    budget: int = 273,
    allocator: str = DEFAULT,
    relevance: Any = None,
    fixation: Any = None,
    looks: int = 1,
    progressive: bool = False,
    combine: str = "tree",
    budgets: Sequence[int] = BUDGETS,
    threshold: float | None = SURE,
    longest: int = 160,
    calibration: Calibration | None = None,
    batch: int = 32,
    **options: Any,
) -> Answer | list[Answer]:
    """Answer a question about an image; or one each about a list of images, of one size or several, in their order.

    `image` is anything `foveate` takes. `relevance` says where to look, as there; None is the model's own scorer.
    `looks` are tried one after another until the answer is as sure as `threshold` (None: all of them); with
    `progressive` the tokens of `budgets`, coarse to fine, take the place of `budget`: see model/looking.py. An answer
    is written in at most `longest` steps, a letter each. `batch` images are looked at together, which changes nothing
    but the time; `options` go to the allocator.

    >>> from homunculus.model.config import tiny
    >>> said = answer(CompactVLM(tiny()), torch.rand(3, 200, 300), "What is the total?", budget=64, longest=4)
    >>> 0 <= said.confidence <= 1, said.allocation.boxes.shape, said.tokens
    (True, torch.Size([1, 64, 4]), 64)
    """
    get_allocator(allocator)  # all mistakes before any work
    budget = check_budget(budget)
    if budget > MOST:
        raise BudgetError(f"{budget} tokens are more than the model can read of an image: give at most {MOST}")
    check_looks(looks, combine, allocator, progressive)
    for name, value in (("longest", longest), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{name} must be a positive whole number, got {value!r}")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ModelError(f"threshold is a confidence from 0 to 1, or None to go on to the end, got {threshold!r}")
    images = load_images(image)
    questions = check_questions(model, one_each(question, len(images)))
    sizes = [(one.shape[2], one.shape[1]) for one in images]
    points = None if fixation is None else as_fixations(fixation, sizes)
    if calibration is None:
        calibration = getattr(model, "calibration", BELIEVED)
    found: dict[int, Answer] = {}
    for group in (every[i : i + batch] for every in alike(images) for i in range(0, len(every), batch)):
        own = select(relevance, group, len(images))
        reader = Reader(model, [questions[i] for i in group], own, longest, calibration)
        named = None if points is None else stack_fixations([points[i] for i in group])
        fixations = None if named is None else named.to(model.device)
        how: dict[str, Any] = {"allocator": allocator, "fixations": fixations, "threshold": threshold} | options
        pixels = torch.stack([images[i] for i in group]).to(model.device)
        if progressive:
            stages = refinements(reader, pixels, budgets, **how)
        else:
            stages = saccades(reader, pixels, looks, budget=budget, combine=combine, **how)
        said = gather(stages, len(group))
        for i, seen in zip(group, said, strict=True):
            found[i] = Answer(seen, max(seen, key=lambda look: look.confidence) if combine == "best" else seen[-1])
    several = isinstance(image, (list, tuple)) or getattr(image, "ndim", 3) == 4
    return [found[i] for i in range(len(images))] if several else found[0]


def gather(stages: Iterator[dict[int, Look]], count: int) -> list[tuple[Look, ...]]:
    """The looks of each of `count` images, from looks at those that were not sure yet."""
    looks: list[tuple[Look, ...]] = [()] * count
    for stage in stages:
        for i, look in stage.items():
            looks[i] += (look,)
    return looks


def check_questions(model: CompactVLM, questions: Sequence[Any]) -> list[str]:
    """Questions that are text, are not empty and are no longer than the model reads."""
    for question in questions:
        if not isinstance(question, str):
            raise QueryError(f"a question is text, got {type(question).__name__}: write one, as in 'What is it?'")
        if not question.strip():
            raise QueryError("the question is empty: write one, as in 'What is it?'")
        pieces = len(model.tokenizer.encode(question))
        if pieces > LONGEST_QUESTION:
            raise QueryError(
                f"a question of {pieces} pieces is too long, the model reads {LONGEST_QUESTION}: shorten it"
            )
    return list(questions)
