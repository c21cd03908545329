"""The compact model on questions it was not trained on: it writes its own answers, letter by letter.

Records come from a split of their own, drawn by worker processes, in order of their numbers; of each image at most
`EACH` questions are asked, one on every region first. Relevance is the model's own (`predicted`), the true region
(`true`), or any source of the library by name.

`exact` forgives case and spaces at either end, nothing else. `vqa` is VQA accuracy as if ten annotators had said the
same. Of the density of the first look: `hit`, whether its highest leaf has its centre in the place of the answer grown
by half a leaf; `mass`, the share of it in that place grown by one leaf; `r2`, the squared correlation with the true
map, None where either is flat.

One line of JSON for every question, appended as batches are done, so that a stopped run goes on where it was. A line
counts only for the same weights and settings.
"""

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from homunculus.allocation import DEFAULT, check_budget, get_allocator
from homunculus.cache import content_key
from homunculus.data import Question, make, relevance_map
from homunculus.data.record import Box
from homunculus.data.stream import check
from homunculus.errors import DataError
from homunculus.eval.legibility import read_rows
from homunculus.eval.metrics import anls, vqa
from homunculus.geometry import Size
from homunculus.model.answer import Answer, answer
from homunculus.model.vlm import CompactVLM

EACH = 4  # questions asked of an image
AHEAD = 3  # images that a worker may be ahead
LEAF = 16

Row = dict[str, Any]
Drawn = tuple[UInt8[np.ndarray, "h w 3"], tuple[Question, ...]]


class Asked(NamedTuple):
    """A question to be answered: its key, how many are asked of its image, the image."""

    key: str
    of: int
    image: UInt8[np.ndarray, "h w 3"]
    question: Question


@dataclass(frozen=True)
class Plan:
    """What to ask and how. `how` are further options of `answer`, such as looks or progressive."""

    family: str
    split: str = "test-iid"
    questions: int = 2000
    budget: int = 273
    allocator: str = DEFAULT
    relevance: str = "predicted"
    size: Size = (1024, 1024)
    how: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self.family, self.split)
        check_budget(self.budget)
        get_allocator(self.allocator)
        if self.questions < 2:
            raise DataError(f"{self.questions} questions give no interval: ask at least 2")

    def settings(self) -> str:
        """All that an answer depends on but the question and the weights."""
        told = asdict(self)
        del told["questions"]
        return json.dumps(told, sort_keys=True, default=str)


def evaluate(
    model: CompactVLM,
    family: str,
    split: str = "test-iid",
    *,
    questions: int = 2000,
    budget: int = 273,
    allocator: str = DEFAULT,
    relevance: str = "predicted",
    size: Size = (1024, 1024),
    file: Path | None = None,
    batch: int = 16,
    workers: int = 2,
    tick: Callable[[int], None] = lambda questions: None,
    **how: Any,
) -> list[Row]:
    """A row for each question: those that `file` has already, and the others answered and appended to it.

    `tick` is told how many questions are done; `how` goes to `answer`. `workers=0` draws in this process.

    >>> from homunculus.model.config import tiny
    >>> quick = {"size": (256, 256), "budget": 32, "longest": 4, "workers": 0}
    >>> [row["key"] for row in evaluate(CompactVLM(tiny()), "scenes", questions=2, **quick)]
    ['scenes/test-iid/0#0', 'scenes/test-iid/0#1']
    """
    plan = Plan(family, split, questions, budget, allocator, relevance, size, how)
    mark = content_key(plan.settings(), *model.state_dict().values())
    known = {} if file is None else {row["key"]: row for row in read_rows(file) if row["mark"] == mark}
    rows: dict[str, Row] = {}
    waiting: list[Asked] = []

    def answer_them() -> None:
        fresh = [row | {"mark": mark} for row in answered(model, plan, waiting)]
        if file is not None:
            with file.open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(row) + "\n" for row in fresh)
        rows.update((row["key"], row) for row in fresh)
        tick(len(fresh))
        waiting.clear()

    with closing(_questions(plan, known, workers)) as every:
        for one in islice(every, questions):
            if isinstance(one, Asked):
                rows[one.key] = {}  # its place in the order
                waiting.append(one)
            else:
                rows[one["key"]] = one
                tick(1)
            if len(waiting) == batch:
                answer_them()
    if waiting:
        answer_them()
    return list(rows.values())


def answered(model: CompactVLM, plan: Plan, asked: Sequence[Asked]) -> list[Row]:
    """A row for each question."""
    relevance: Any = None if plan.relevance == "predicted" else plan.relevance
    if plan.relevance == "true":
        grid = -(-plan.size[0] // LEAF), -(-plan.size[1] // LEAF)
        relevance = torch.stack([relevance_map(one.question.boxes, plan.size, grid) for one in asked])
    how: dict[str, Any] = {"budget": plan.budget, "allocator": plan.allocator, "relevance": relevance} | plan.how
    texts = [one.question.text for one in asked]
    said = answer(model, [one.image for one in asked], texts, batch=len(asked), **how)
    assert isinstance(said, list)  # as a list of images was given
    return [_row(one, own) for one, own in zip(asked, said, strict=True)]


def _row(asked: Asked, said: Answer) -> Row:
    key, question, answers = asked.key, asked.question, asked.question.answers
    size = said.allocation.image_sizes[0]
    return {
        "key": key,
        "image": key.partition("#")[0],
        "of": asked.of,
        "question": question.text,
        "kind": question.kind,
        "region": question.region,
        "answers": list(answers),
        "said": said.text,
        "exact": exactly(said.text, answers),
        "anls": anls(said.text, answers),
        "vqa": max(vqa(said.text, [one] * 10) for one in answers),
        "confidence": said.confidence,
        "logp": said.look.logp,
        "tokens": said.tokens,
        "looks": [{"said": look.text, "logp": look.logp, "tokens": look.tokens} for look in said.looks],
    } | grounding(said.looks[0].density.cpu(), question.boxes, size)


def exactly(said: str, answers: Iterable[str]) -> float:
    """1 if the answer is one of those that count, case and spaces at either end aside.

    >>> exactly(" ab-12", ["AB-12"]), exactly("AB 12", ["AB-12"]), exactly("AB-12.", ["AB-12"])
    (1.0, 0.0, 0.0)
    """
    return float(said.strip().lower() in {one.strip().lower() for one in answers})


def grounding(density: Float64[Tensor, "gh gw"], boxes: Sequence[Box], size: Size) -> dict[str, float | None]:
    """How well a density knows where the answer is: hit, mass and r2, as the top of this file says.

    >>> density = torch.zeros(4, 4, dtype=torch.float64); density[1, 2] = 1.0
    >>> grounding(density, [(32, 16, 48, 32)], (64, 64))
    {'hit': 1.0, 'mass': 1.0, 'r2': 1.0}
    """
    gh, gw = density.shape
    across, down = size[0] / gw, size[1] / gh
    y, x = divmod(int(density.argmax()), gw)
    place = (x + 0.5) * across, (y + 0.5) * down
    hit = any(inside(place, grown(box, across / 2, down / 2)) for box in boxes)
    near = relevance_map([grown(box, across, down) for box in boxes], size, (gw, gh))
    true = relevance_map(boxes, size, (gw, gh))
    pair = torch.stack((density.flatten(), true.flatten()))
    spread = pair.var(1, correction=0)
    r2 = torch.cov(pair, correction=0)[0, 1] ** 2 / spread.prod() if bool((spread > 0).all()) else None
    mass = (density * near).sum() / density.sum()
    return {"hit": float(hit), "mass": float(mass), "r2": None if r2 is None else min(1.0, float(r2))}


def grown(box: Box, across: float, down: float) -> Box:
    x0, y0, x1, y1 = box
    return x0 - across, y0 - down, x1 + across, y1 + down


def inside(place: tuple[float, float], box: Box) -> bool:
    return box[0] <= place[0] < box[2] and box[1] <= place[1] < box[3]


def _questions(plan: Plan, known: dict[str, Row], workers: int) -> Generator[Row | Asked, None, None]:
    """Every question in order, without end: the row where it is known, else what to ask. No image whose rows are all
    there is drawn again."""

    def keys(index: int, count: int) -> list[str]:
        return [f"{plan.family}/{plan.split}/{index}#{place}" for place in range(count)]

    def done(index: int) -> list[str]:
        first = known.get(keys(index, 1)[0])
        asked = [] if first is None else keys(index, first["of"])
        return asked if all(key in known for key in asked) else []

    with closing(_drawn(plan, (index for index in count() if not done(index)), workers)) as drawn:
        for index in count():
            if asked := done(index):
                yield from (known[key] for key in asked)
                continue
            image, questions = next(drawn)
            for key, question in zip(keys(index, len(questions)), questions, strict=True):
                yield known.get(key) or Asked(key, len(questions), image, question)


def _drawn(plan: Plan, images: Iterator[int], workers: int) -> Generator[Drawn, None, None]:
    """Images with their questions, in order, without end; workers are a few ahead."""
    if workers < 1:
        yield from (_draw(plan, index) for index in images)
        return
    from multiprocessing import get_context

    waiting: deque[Any] = deque()
    with get_context("spawn").Pool(workers, torch.set_num_threads, (1,)) as pool:
        for index in images:
            waiting.append(pool.apply_async(_draw, (plan, index)))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().get()


def _draw(plan: Plan, index: int) -> Drawn:
    record = make(plan.family, plan.split, index, size=plan.size)  # type: ignore[arg-type]
    return record.image, record.questions[:EACH]
