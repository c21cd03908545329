"""Images kept on the device that trains, with their questions, renewed a few at a time while training goes on.

What lies in the pool at a step is a pure function of the arguments and the step, and what is drawn at a step of that:
a run that is resumed sees what it would have seen, with any number of workers. At step s the first s * renewed + first
records of the stream have come and the last `capacity` of them are there, record i in slot i % capacity.
"""

from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from homunculus.data.dice import Dice
from homunculus.data.record import Question, Split
from homunculus.errors import DataError
from homunculus.geometry import Size
from homunculus.train.drills import check
from homunculus.train.drills.typefaces import check_faces
from homunculus.train.renderers import READING, Plan, Renderers, Rows, render
from homunculus.train.samples import Pages, Samples, sent


class Pool:
    """Records of some families, mixed by weight, in `capacity` slots on a device; `renewed` of them come each step.

    `first` are there at step 0, by default as many as there is room for: fewer begin sooner.

    `workers` processes draw ahead of need; with none the caller draws. Process `part` of `parts` has its share of one
    stream. Of each image at most `questions` are kept, and tokens beyond the longest question or answer are cut. Of the
    words in questions a share `spelled` is given in bytes, so that a reader knows letters when it meets a new word.
    Kinds of questions that are named in `kinds` are drawn so many times as often as others of their image.

    >>> with Pool({"scenes": 1.0}, size=(64, 48), capacity=4, renewed=1) as pool:
    ...     pool.fill()
    ...     samples = pool.draw(3, step=0)
    >>> samples.images.shape, samples.question.shape, samples.answer.shape
    (torch.Size([3, 3, 48, 64]), torch.Size([3, 48]), torch.Size([3, 64]))
    """

    def __init__(
        self,
        families: Mapping[str, float],
        *,
        size: Size = (1024, 1024),
        capacity: int = 4096,
        device: torch.device | str = "cpu",
        workers: int = 0,
        seed: int = 0,
        split: Split = "train",
        part: int = 0,
        parts: int = 1,
        questions: int = 24,
        renewed: int = 8,
        first: int | None = None,
        longest_question: int = 48,
        longest_answer: int = 64,
        clean: bool = False,
        spelled: float = 0.0,
        faces: str | None = None,
        readings: int = 0,
        kinds: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        for family in families:
            check(family, split)
        if faces is not None:
            check_faces(faces)  # before any worker starts
        if min(families.values(), default=0) < 0 or sum(families.values()) <= 0:
            raise DataError(f"the weights {dict(families)} choose no family: give at least one that is above 0")
        if not 0 <= renewed <= capacity or capacity < 1:
            raise DataError(f"cannot renew {renewed} of {capacity} images a step: give 0 <= renewed <= capacity")
        first = capacity if first is None else first
        if not 1 <= first <= capacity:
            raise DataError(f"cannot begin with {first} of {capacity} images: give 1 <= first <= capacity")
        if not 0 <= part < parts:
            raise DataError(f"there is no part {part} of {parts}: parts are counted from 0")
        if min(kinds.values(), default=1) <= 0:
            raise DataError(f"the weights {dict(kinds)} leave a kind of question out: give numbers above 0")
        if min(questions, longest_question, longest_answer, *size) < 1 or workers < 0:
            raise DataError("a pool needs room for a pixel, a question and a token of each text, and workers >= 0")
        self.plan = Plan(
            dict(families),
            split,
            size,
            clean,
            seed,
            part,
            parts,
            questions,
            longest_question,
            longest_answer,
            spelled,
            faces,
            readings,
        )
        self.capacity, self.renewed, self.first, self.device = capacity, renewed, first, torch.device(device)
        self.rows = Rows.empty(self.plan, capacity, self.device)
        self.asked_of: list[tuple[Question, ...]] = [()] * capacity  # what can be asked of each slot's image
        self.families = torch.zeros(capacity, dtype=torch.int8, device=self.device)  # of each slot: which of the plan's
        self.waited = 0.0  # seconds in which `advance` had no next record
        self._holds = np.full(capacity, -1)  # the number of each slot's record
        self._counts = np.zeros((capacity, 2), dtype=np.int64)  # of each slot: questions and readings, readings alone
        self._kinds, self._weights = kinds, np.ones((capacity, self.plan.rows))  # of each slot's questions
        self._next: int | None = None  # the record that `advance` takes first
        cuda = self.device.type == "cuda"
        self._beside = torch.cuda.Stream(self.device) if cuda else None  # copies pass while the device works
        # The host runs a few steps ahead of the device, which copies their records only when it comes to them.
        self._renderers = Renderers(self.plan, workers, 6 * renewed, pinned=cuda) if workers else None

    def fill(self, step: int = 0, progress: Callable[[int], Any] | None = None) -> None:
        """Bring the pool to its state at a step, drawing only what it does not hold; tell `progress` of each record."""
        end, self._next = step * self.renewed + self.first, None
        for number in range(max(0, end - self.capacity), end):
            if self._holds[number % self.capacity] != number:
                self._put(number)
            if progress is not None:
                progress(1)
        self._next = end

    def advance(self) -> None:
        """One step on: the next records take the slots of the oldest. Waits where workers are late.

        On CUDA the copies wait for all that was begun before: called right after `draw` they pass beside the step.
        """
        for number in range(self._start(), self._start() + self.renewed):
            self._put(number)
            self._next = number + 1

    def draw(self, count: int, step: int, each: int = 1, readings: float = 0.0) -> Samples:
        """Random questions, `each` in a row of one image; the same for the same step.

        Any image is as likely as another, and then any question of it, by the weight of its kind; none twice while
        there are others. With `readings` texts are to be read instead where an image has any: of these the shortest,
        this share of them.
        """
        held = min(self._start(), self.capacity)
        if count < 1 or each < 1 or count % each:
            raise DataError(f"cannot draw {count} questions, {each} of each image: give a multiple of {each}")
        images, most = count // each, self.plan.rows
        chance = Dice("draw", self.plan.seed, step, self.plan.part).array(images * (1 + most))
        slot = (chance[:images] * held).astype(np.int64)
        all_of, read = self._counts[slot].T[..., None]  # [images, 1] each
        reads = (readings > 0) & (read > 0)
        first = np.where(reads, all_of - read, 0)
        last = np.where(reads, first + np.ceil(readings * read).astype(np.int64), all_of - read)
        row = np.arange(most)
        drawn = (first <= row) & (row < last)
        # Waiting times: the question whose weight is w times another's comes first w times as often.
        wait = -np.log1p(-chance[images:].reshape(images, most)) / self._weights[slot]
        order = np.where(drawn, wait, np.inf).argsort(1)
        number = np.take_along_axis(order, np.arange(each) % (last - first), 1)  # [images, each]
        slots, numbers = sent(torch.from_numpy(np.stack((slot.repeat(each), number.ravel()))), self.device)
        return self.samples(slots, numbers, each)

    def samples(self, slot: Int64[Tensor, " b"], number: Int64[Tensor, " b"], each: int = 1) -> Samples:
        """These questions: of which slot, and which of its questions; `each` in a row have one slot."""
        self._await_copies()
        text = self.rows.text[slot, number].long()
        question, answer = text.split((self.plan.longest_question, self.plan.longest_answer), 1)
        images = self.rows.images.index_select(0, slot[::each]).permute(0, 3, 1, 2)
        boxes, anchors = self.rows.boxes[slot, number], self.rows.anchors[slot, number]
        return Samples(images, question, answer, boxes, anchors, slot, number)

    def pages(self, count: int, step: int) -> Pages:
        """Random images whole, with the letters on them; the same for the same step."""
        held = min(self._start(), self.capacity)
        chance = Dice("pages", self.plan.seed, step, self.plan.part).array(count)
        slot = sent(torch.from_numpy((chance * held).astype(np.int64)), self.device)
        self._await_copies()
        images = self.rows.images.index_select(0, slot).permute(0, 3, 1, 2)
        return Pages(images, self.rows.letters.index_select(0, slot).long())

    def letters(self, samples: Samples) -> Int64[Tensor, "images texts length 3"]:
        """The letters on each image, as `pages` has them."""
        return self.rows.letters.index_select(0, samples.slot[:: samples.each]).long()

    def colours(self, samples: Samples) -> Bool[Tensor, " images"]:
        """Whether colours are asked for on each image: it is a scene."""
        known = list(self.plan.families)
        return self.families[samples.slot[:: samples.each]] == (known.index("scenes") if "scenes" in known else -1)

    @property
    def own_seed(self) -> int:
        """A seed that no other part of the stream has."""
        return self.plan.seed * self.plan.parts + self.plan.part

    def asked(self, samples: Samples) -> list[Question]:
        """The question of each sample as it was made, with all answers, kind and region. Waits for the device."""
        return [self.asked_of[i][j] for i, j in zip(samples.slot.tolist(), samples.number.tolist(), strict=True)]

    def close(self) -> None:
        """End the workers; what the pool holds stays."""
        if self._renderers is not None:
            self._renderers.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _await_copies(self) -> None:
        if self._beside is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._beside)

    def _start(self) -> int:
        if self._next is None:
            raise DataError("the pool is not filled: call fill first")
        return self._next

    def _put(self, number: int) -> None:
        """Record `number` into its slot."""
        slot = number % self.capacity
        self._holds[slot] = -1  # until it is whole
        started = perf_counter()
        if self._renderers is None:
            self.asked_of[slot] = render(self.plan, number, self.rows, slot)
            self.waited += perf_counter() - started
        else:
            place, self.asked_of[slot] = self._renderers.take(number)
            self.waited += perf_counter() - started
            self._renderers.release(place, self._copy(place, slot))
        self.families[slot].fill_(list(self.plan.families).index(self.plan.record(number)[0]))  # no wait, as = would
        asked = self.asked_of[slot]
        self._counts[slot] = len(asked), sum(question.kind == READING for question in asked)
        self._weights[slot, : len(asked)] = [self._kinds.get(question.kind, 1.0) for question in asked]
        self._holds[slot] = number

    def _copy(self, place: int, slot: int) -> torch.cuda.Event | None:
        """From shared memory to the device; the event that says when it is done, where it is not done at once."""
        assert self._renderers is not None
        if self._beside is not None:  # what reads the slot now comes first
            self._beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._beside):
            for ours, theirs in zip(self.rows, self._renderers.rows, strict=True):
                ours[slot].copy_(theirs[place], non_blocking=True)
        return None if self._beside is None else self._beside.record_event()
