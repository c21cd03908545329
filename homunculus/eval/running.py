"""A list of plans to rows: every image is drawn once, and asked about in every way while it is at hand.

Questions are taken in chunks, and all plans about a chunk are asked before the next: whenever a run is stopped, every
method has been asked nearly the same questions, which is what a comparison needs. With several processes (torchrun,
`accelerate launch`) each takes every so-manyth image and writes a file of its own. They may share a GPU: answers are
short, and while one process prepares its next operations the others compute.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from homunculus.allocation import DEFAULT, get_allocator
from homunculus.eval.answers import SEGMENTED, Chunk, Shared, answered
from homunculus.eval.drawing import AHEAD, EACH, Ahead, Asked, Draw, Drawn, Pictures, drawers, to_ask
from homunculus.eval.packed import GROUP, MATES, groups_of
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.relevances import LEAF
from homunculus.eval.rows import Kept, Row
from homunculus.eval.surroundings import sharing, surroundings
from homunculus.geometry import Size
from homunculus.model.looking import BUDGETS
from homunculus.model.vlm import CompactVLM
from homunculus.peers.reading import stage_of
from homunculus.peers.registry import get_peer
from homunculus.peers.variable import COUNTS

T = TypeVar("T")
Tick = Callable[[Plan, int], None]  # of a plan so many more questions are done

MOST = 512  # questions of a batch


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
        memory = own_memory(device)
        tokens, pixels = memory >> 18, memory // 64
    area = plan.size[0] * plan.size[1]
    if plan.peer is not None:
        read = max(read_by_peer(plan.peer, area // LEAF**2), plan.budget or 0)
    elif plan.how.get("progressive"):
        read = max(BUDGETS)
    else:
        read = plan.cells[1] * plan.how.get("looks", 1)
    return max(1, min(MOST, tokens // max(1, read), pixels // area))


def own_memory(device: torch.device) -> int:
    """Bytes of a GPU that are this process's, where several may share it."""
    return torch.cuda.get_device_properties(device).total_memory // sharing(device)


def read_by_peer(peer: str, leaves: int) -> int:
    """How many tokens of an image of so many leaves a reducer holds for each question. Those that act on features are
    given encodings that are there already, some of them at a time, and hold what they keep.

    >>> [read_by_peer(name, 4096) for name in ("whole", "fastv", "dyrate", "tome", "variable", "combined")]
    [4096, 4096, 4096, 1024, 400, 400]
    """
    stage = stage_of(peer)
    if stage in ("batch", "combined"):  # cells before the encoder
        return min(leaves, max(COUNTS))
    return leaves // EACH if stage == "features" else leaves


def attention_for(plan: Plan) -> Collection[str]:
    """In which layers a plan's reducer wants to know how much leaves are looked at.

    >>> [attention_for(Plan("scenes", method=name)) for name in ("topk", "peers/visionzip", "peers/divprune")]
    [(), ('late',), ()]
    """
    if plan.peer is None or stage_of(plan.peer) != "features":
        return ()
    return get_peer(plan.peer).attention


def chunk_size(size: Size, device: torch.device) -> int:
    """How many questions to keep images, densities and encodings of: whole images.

    >>> chunk_size((1024, 1024), torch.device("cpu"))
    16
    """
    images = 4
    if device.type == "cuda":  # each of an image's questions may hold all leaves twice: 100 MB in all at 1024 x 1024
        images = min(MOST // EACH, max(1, own_memory(device) >> 29))
    images = min(images, max(1, (images << 20) // (size[0] * size[1])))
    return EACH * images


@torch.no_grad()
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
    shared: Shared | None = None,
) -> bool:
    """Answer all that the kept rows do not have yet; False if the time, as of `time.monotonic`, was over before.

    `part` says which process this is and how many there are; `tick` is told of every plan how many questions are done.
    `draw` draws the images, in place of `workers` that are ours. `shared` is what models with the same scorer can take
    from each other.
    """
    groups: dict[Pictures, list[Plan]] = {}
    for plan in without_repeats(plans):
        groups.setdefault(plan.pictures, []).append(plan)
    weights = weights_key(model)
    works = {pictures: Work(model, weights, own, kept, part, shared) for pictures, own in groups.items()}
    coming = [[(pictures, index) for index in work.expected()] for pictures, work in works.items()]
    chunks = [chunk_size(size, model.device) // EACH for *_, size in works]
    expected = in_turn(coming, chunks)
    segmented = any(plan.method == SEGMENTED for plan in plans)
    ahead = max(AHEAD * workers, max(chunks, default=0) if workers > AHEAD or draw is not None else 0)
    with drawers(workers) if draw is None else nullcontext(draw) as drawer:
        drawn = Ahead(drawer, expected, ahead, segmented)
        going = [(work, work.chunks(partial(drawn, pictures), tick)) for pictures, work in works.items()]
        while going:  # a chunk of each family in turn, so that a run that is stopped has asked all of them
            for one in list(going):
                chunk = next(one[1], None)
                if chunk is None:
                    going.remove(one)
                elif not one[0].answer(chunk, until, tick):
                    return False
    return True


def in_turn(lists: Sequence[Sequence[T]], each: Sequence[int]) -> list[T]:
    """Some of every list, then some more of every list; of each so many at a time.

    >>> "".join(in_turn(["aaaaa", "bbb"], [2, 1]))
    'aabaabab'
    """
    turns = max((-(-len(own) // some) for own, some in zip(lists, each, strict=True)), default=0)
    pairs = list(zip(lists, each, strict=True))
    return [item for turn in range(turns) for own, some in pairs for item in own[turn * some : (turn + 1) * some]]


class Task(NamedTuple):
    """A plan, how many of its questions are this process's, and the rows there are."""

    plan: Plan
    questions: int
    rows: Mapping[str, Row]

    def lacks(self, numbered: Sequence[tuple[int, Asked]]) -> list[int]:
        """Which of some questions, each with its number, it has still to answer."""
        return [i for i, (place, one) in enumerate(numbered) if place < self.questions and one.key not in self.rows]


def own_questions(questions: int, part: tuple[int, int]) -> int:
    """How many of so many questions are a process's: of every few images in turn.

    >>> own_questions(20, (0, 2)), own_questions(20, (1, 2)), own_questions(20, (0, 1))
    (12, 8, 20)
    """
    process, parts = part
    return sum(number // MATES % parts == process for number in range(questions))


class Work:
    """Plans about the same images: which images are left to ask about, in chunks.

    Where a method has one budget for several questions, images come in groups of `GROUP`, which are done or not done
    together: it has the same questions before it whenever it is asked.
    """

    def __init__(
        self,
        model: CompactVLM,
        weights: str,
        plans: Sequence[Plan],
        kept: Kept,
        part: tuple[int, int],
        shared: Shared | None,
    ) -> None:
        self.model, self.weights, self.kept, self.part, self.shared = model, weights, kept, part, shared
        self.tasks = [Task(plan, own_questions(plan.questions, part), kept.rows[plan.mark(weights)]) for plan in plans]
        self.most = max(task.questions for task in self.tasks)
        self.shares = any(_is_batchwide(plan) for plan in plans)
        self.fits: dict[int, int] = {}  # questions at once, by the number of a task that once was short of memory
        self.size, self.keys = plans[0].size, plans[0].keys

    def groups(self) -> Iterator[range]:
        """Images of this process, without end: those together that must be."""
        process, parts = self.part
        for number in count(process, parts):
            images = range(GROUP * number, GROUP * (number + 1))
            yield from [images] if self.shares else (range(index, index + 1) for index in images)

    def known(self, images: Sequence[int]) -> int | None:
        """How many questions images have, if rows have told of all of them."""
        facts = [self.kept.facts.get((self.keys(index, 1)[0], self.size)) for index in images]
        return sum(fact["of"] for fact in facts if fact) if all(facts) else None

    def done(self, images: Sequence[int], start: int) -> bool:
        """Whether all questions of images are answered, the first of which is the `start`th of this process."""
        if self.known(images) is None:
            return False
        keys = [key for index in images for key in self.keys(index, self.known([index]) or 0)]
        return all(key in task.rows for task in self.tasks for key in keys[: max(0, task.questions - start)])

    def expected(self) -> list[int]:
        """Images that will probably be drawn."""
        found, start = list[int](), 0
        for images in self.groups():
            if start >= self.most:
                break
            if not self.done(images, start):
                found += images
            start += self.known(images) or EACH * len(images)
        return found

    def chunks(self, drawn: Callable[[int], Drawn], tick: Tick) -> Iterator[list[tuple[int, Asked]]]:
        """Questions with their numbers, of images that are not done; of the others only how many there are is told."""
        size = chunk_size(self.size, self.model.device)
        start, chunk = 0, list[tuple[int, Asked]]()
        for images in self.groups():
            if start >= self.most:
                break
            if self.done(images, start):
                of = self.known(images) or 0
                for task in self.tasks:
                    tick(task.plan, max(0, min(of, task.questions - start)))
                start += of
                continue
            for index in images:
                asked = to_ask(self.keys(index, EACH), drawn(index), self.model.device)
                chunk += list(enumerate(asked, start))
                start += len(asked)
            if len(chunk) >= size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def answer(self, numbered: Sequence[tuple[int, Asked]], until: float, tick: Tick) -> bool:
        """All plans about a chunk; False if the time was over before. The time that is noted for each has in it what
        others then find done, such as densities and encodings."""
        lacking = [task.lacks(numbered) for task in self.tasks]
        busy = [task for task, left in zip(self.tasks, lacking, strict=True) if left]
        attention = {layer for task in busy for layer in attention_for(task.plan)}
        chunk = Chunk(self.model, [one for _, one in numbered], self.size, self.shared, attention=attention)
        for number, (task, left) in enumerate(zip(self.tasks, lacking, strict=True)):
            tick(task.plan, sum(place < task.questions for place, _ in numbered) - len(left))
            size = self.fits.get(number) or together(task.plan, self.model.device)
            lots = lots_of(task.plan, chunk, left)
            start, missing = time.monotonic(), len(left)
            while left and time.monotonic() < until:
                now = max(1, size // len(lots[0]))
                places = [place for lot in lots[:now] for place in lot]
                rows = _answered_if_it_fits(self.model, task.plan, chunk, places, alone=now == 1)
                if rows is None:
                    self.fits[number] = size = max(1, min(size, len(places)) // 2)
                    continue
                del lots[:now]
                wanting, left = set(left), sorted(set(left).difference(places))
                fresh = [row for i, row in zip(places, rows, strict=True) if i in wanting]
                self.kept.add(task.plan, self.weights, fresh)
                tick(task.plan, len(fresh))
            if missing > len(left):
                taken = (time.monotonic() - start) / sharing(self.model.device)  # of the device's time, its part
                self.kept.add_spent(
                    task.plan, self.weights, missing - len(left), taken, surroundings(self.model.device)
                )
            if left:
                return False
        return True


def lots_of(plan: Plan, chunk: Chunk, left: Sequence[int]) -> list[list[int]]:
    """What cannot be parted of the questions that are left: where a method has one budget for several, all of these."""
    if not _is_batchwide(plan):
        return [[place] for place in left]
    wanted = set(left)
    return [lot for lot in groups_of([one.of_image for one in chunk.asked]) if wanted.intersection(lot)]


def _is_batchwide(plan: Plan) -> bool:
    return plan.peer is None and get_allocator(plan.cells[0]).batchwide


def _answered_if_it_fits(
    model: CompactVLM, plan: Plan, chunk: Chunk, places: Sequence[int], alone: bool
) -> list[Row] | None:
    try:
        return answered(model, plan, chunk, places)
    except torch.OutOfMemoryError:
        if alone:
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
