"""A list of plans to rows: every image is drawn once, and asked about in every way while it is at hand.

Questions are taken in chunks, and all plans about a chunk are asked before the next: whenever a run is stopped, every
method has been asked nearly the same questions, which is what a comparison needs. With several processes (torchrun,
`accelerate launch`) each takes every so-manyth image and writes a file of its own.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch

from homunculus.allocation import DEFAULT, get_allocator
from homunculus.eval.answers import SEGMENTED, Chunk, answered
from homunculus.eval.drawing import AHEAD, EACH, Ahead, Asked, Draw, Drawn, Pictures, drawers, to_ask
from homunculus.eval.packed import MATES
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.rows import Kept, Row
from homunculus.geometry import Size
from homunculus.model.looking import BUDGETS
from homunculus.model.vlm import CompactVLM

Tick = Callable[[Plan, int], None]  # of a plan so many more questions are done

MOST = 512  # questions of a batch
LEAF = 16


def without_repeats(plans: Iterable[Plan]) -> list[Plan]:
    """Each way once, with the most questions that anybody asks, in the order of their first.

    >>> [plan.questions for plan in without_repeats([Plan("scenes", questions=5), Plan("scenes", questions=9)])]
    [9]
    """
    most: dict[str, Plan] = {}
    for plan in plans:
        known = most.get(plan.mark(""), plan)
        most[plan.mark("")] = replace(known, questions=max(known.questions, plan.questions))
    return list(most.values())


def together(plan: Plan, device: torch.device) -> int:
    """How many questions to answer at once: as many as memory has room for, by tokens that are read and by pixels.

    >>> [together(Plan("scenes", budget=n), torch.device("cpu")) for n in (273, 4096)]
    [16, 4]
    """
    tokens, pixels = 1 << 14, 1 << 24
    if device.type == "cuda":
        tokens, pixels = 1 << 18, torch.cuda.get_device_properties(device).total_memory // 64
    area = plan.size[0] * plan.size[1]
    allocator, budget = (None, 0) if plan.peer is not None else plan.cells
    if allocator is not None and get_allocator(allocator).batchwide:
        return MATES
    if plan.peer is not None:
        read = area // LEAF**2
    elif plan.how.get("progressive"):
        read = max(BUDGETS)
    else:
        read = budget * plan.how.get("looks", 1)
    return max(1, min(MOST, tokens // max(1, read), pixels // area))


def chunk_size(size: Size, device: torch.device) -> int:
    """How many questions to keep images, densities and encodings of: whole images.

    >>> chunk_size((1024, 1024), torch.device("cpu"))
    16
    """
    images = MOST // EACH if device.type == "cuda" else 4
    images = min(images, max(1, (images << 20) // (size[0] * size[1])))
    return EACH * images


def run(
    model: CompactVLM,
    plans: Sequence[Plan],
    kept: Kept,
    *,
    workers: int = 0,
    until: float = float("inf"),
    part: tuple[int, int] = (0, 1),
    tick: Tick = lambda plan, questions: None,
    draw: Draw | None = None,
) -> bool:
    """Answer all that the kept rows do not have yet; False if the time, as of `time.monotonic`, was over before.

    `part` says which process this is and how many there are; `tick` is told of every plan how many questions are done.
    `draw` draws the images, in place of `workers` that are ours.
    """
    groups: dict[Pictures, list[Plan]] = {}
    for plan in without_repeats(plans):
        groups.setdefault(plan.pictures, []).append(plan)
    weights = weights_key(model)
    works = {pictures: Work(model, weights, own, kept, part) for pictures, own in groups.items()}
    expected = [(pictures, index) for pictures, work in works.items() for index in work.expected()]
    segmented = any(plan.method == SEGMENTED for plan in plans)
    ahead = max(AHEAD * workers, MOST // EACH if workers > AHEAD or draw is not None else 0)
    with drawers(workers) if draw is None else nullcontext(draw) as drawer:
        drawn = Ahead(drawer, expected, ahead, segmented)
        for pictures, work in works.items():
            for chunk in work.chunks(partial(drawn, pictures), tick):
                if not work.answer(chunk, until, tick):
                    return False
    return True


class Task(NamedTuple):
    """A plan, how many of its questions are this process's, and the rows there are."""

    plan: Plan
    questions: int
    rows: Mapping[str, Row]


class Work:
    """Plans about the same images: which images are left to ask about, in chunks."""

    def __init__(
        self, model: CompactVLM, weights: str, plans: Sequence[Plan], kept: Kept, part: tuple[int, int]
    ) -> None:
        self.model, self.weights, self.kept, self.part = model, weights, kept, part
        process, parts = part
        self.tasks = [
            Task(plan, len(range(process, plan.questions, parts)), kept.rows[plan.mark(weights)]) for plan in plans
        ]
        self.most = max(task.questions for task in self.tasks)
        self.size, self.keys = plans[0].size, plans[0].keys

    def known(self, index: int) -> int | None:
        """How many questions an image has, if a row has told."""
        fact = self.kept.facts.get(self.keys(index, 1)[0])
        return None if fact is None else fact["of"]

    def done(self, index: int, start: int) -> bool:
        """Whether all questions of an image are answered, the first of which is the `start`th of this process."""
        of = self.known(index)
        if of is None:
            return False
        keys = self.keys(index, of)
        return all(key in task.rows for task in self.tasks for key in keys[: max(0, task.questions - start)])

    def expected(self) -> list[int]:
        """Images that will probably be drawn."""
        process, parts = self.part
        found, start = list[int](), 0
        for index in count(process, parts):
            if start >= self.most:
                return found
            if not self.done(index, start):
                found.append(index)
            start += self.known(index) or EACH
        raise AssertionError

    def chunks(self, drawn: Callable[[int], Drawn], tick: Tick) -> Iterator[list[tuple[int, Asked]]]:
        """Questions with their numbers, of images that are not done; of the others only how many there are is told."""
        process, parts = self.part
        size = chunk_size(self.size, self.model.device)
        start, chunk = 0, list[tuple[int, Asked]]()
        for index in count(process, parts):
            if start >= self.most:
                break
            if self.done(index, start):
                of = self.known(index) or 0
                for task in self.tasks:
                    tick(task.plan, max(0, min(of, task.questions - start)))
                start += of
                continue
            asked = to_ask(self.keys(index, EACH), drawn(index), self.model.device)
            chunk += list(enumerate(asked, start))
            start += len(asked)
            if len(chunk) >= size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def answer(self, numbered: Sequence[tuple[int, Asked]], until: float, tick: Tick) -> bool:
        """All plans about a chunk; False if the time was over before."""
        chunk = Chunk(self.model, [one for _, one in numbered], self.size)
        for task in self.tasks:
            wanted = [i for i, (number, _) in enumerate(numbered) if number < task.questions]
            left = [i for i in wanted if chunk.asked[i].key not in task.rows]
            tick(task.plan, len(wanted) - len(left))
            size = together(task.plan, self.model.device)
            while left:
                if time.monotonic() >= until:
                    return False
                fresh = _answered_if_it_fits(self.model, task.plan, chunk, left[:size])
                if fresh is None:
                    size = min(size, len(left)) // 2
                    continue
                self.kept.add(task.plan, self.weights, fresh)
                left = left[len(fresh) :]
                tick(task.plan, len(fresh))
        return True


def _answered_if_it_fits(model: CompactVLM, plan: Plan, chunk: Chunk, places: Sequence[int]) -> list[Row] | None:
    try:
        return answered(model, plan, chunk, places)
    except torch.OutOfMemoryError:
        if len(places) == 1:
            raise
    torch.cuda.empty_cache()  # not before the error is gone, which holds on to all that was computed
    return None


def evaluate(
    model: CompactVLM,
    family: str,
    split: str = "test-iid",
    *,
    questions: int = 2000,
    budget: int | None = 273,
    method: str = DEFAULT,
    relevance: str = "predicted",
    size: Size = (1024, 1024),
    file: Path | None = None,
    dtype: str = "float32",
    workers: int = 2,
    tick: Callable[[int], None] = lambda questions: None,
    **how: Any,
) -> list[Row]:
    """A row for each question: those that `file` has already, and the others answered and appended to it.

    `tick` is told how many questions are done; `how` goes to `answer` and the method. `workers=0` draws here.

    >>> from homunculus.model.config import tiny
    >>> quick = {"size": (256, 256), "budget": 32, "longest": 4, "workers": 0}
    >>> [row["key"] for row in evaluate(CompactVLM(tiny()), "scenes", questions=2, **quick)]
    ['scenes/test-iid/0#0', 'scenes/test-iid/0#1']
    """
    plan = Plan(family, split, questions, budget, method, relevance, size, how, dtype)
    kept = Kept(file)
    run(model, [plan], kept, workers=workers, tick=lambda _, questions: tick(questions))
    return in_order(kept.rows[plan.mark(weights_key(model))].values())[:questions]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows by the numbers of their images and questions.

    >>> [row["key"] for row in in_order([{"key": "scenes/val/10#0"}, {"key": "scenes/val/9#1"}])]
    ['scenes/val/9#1', 'scenes/val/10#0']
    """

    def number(row: Row) -> tuple[str, int, int]:
        image, _, place = row["key"].partition("#")
        name, _, index = image.rpartition("/")
        return name, int(index), int(place)

    return sorted(rows, key=number)
