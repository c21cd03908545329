"""Records drawn ahead of need by worker processes, straight into memory shared with them.

Each worker has a pipe of its own and no lock is shared, so one that is killed can hold up nobody: its pipe breaks, and
so do the workers' pipes when their parent dies. Images never pass through a pipe; a record that is done is a few
kilobytes of questions and the place where its tensors lie. Results come in any order and are taken in the stream's.
"""

import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int16, UInt8
from torch import Tensor

from homunculus.data.dice import Dice
from homunculus.data.record import Box, Question, Record, Split
from homunculus.errors import DataError
from homunculus.geometry import Size
from homunculus.model.tokenizer import EOS, default_tokenizer, words_of
from homunculus.train.anchors import ANCHORS, anchors, places_of_words
from homunculus.train.drills import make
from homunculus.train.marks import marks

BOXES = 9  # of a question; our families have no more
READ, READING = "Read this.", "reading"  # asked where a text is only to be read, and the kind of such a question
LONGEST_READING = 40  # letters
MARKED = 256  # rows of as many letters that an image has room for, of all its texts
AHEAD = 2  # records that are under way for each worker

_DIED = "a worker died, perhaps of too little memory: repeat with fewer workers"


@dataclass(frozen=True)
class Plan:
    """Which records a stream has and how much of each is kept; part k of n has every n-th record, from k on."""

    families: Mapping[str, float]  # and how often each comes
    split: Split = "train"
    size: Size = (1024, 1024)
    clean: bool = False
    seed: int = 0
    part: int = 0
    parts: int = 1
    questions: int = 24
    longest_question: int = 48
    longest_answer: int = 64
    spelled: float = 0.0  # the share of words in questions that are given in bytes
    faces: str | None = None  # a folder of more of them, for drills
    readings: int = 0  # texts of an image, of those whose place is known, that are to be read without being asked for

    @property
    def rows(self) -> int:
        """How many questions and readings a record has at most."""
        return self.questions + self.readings

    def record(self, number: int) -> tuple[str, int]:
        """The family and the index of record `number` of the stream.

        >>> Plan({"scenes": 1.0, "documents": 2.0}, part=1, parts=4).record(3)
        ('documents', 13)
        """
        index = self.part + self.parts * number
        return Dice("pool", self.seed, index).weighted(list(self.families), list(self.families.values())), index


class Rows(NamedTuple):
    """Room for n records: pixels, numbers of questions and then of answers, boxes of what is asked for and of words."""

    images: UInt8[Tensor, "n h w 3"]
    text: Int16[Tensor, "n rows length"]
    boxes: Float32[Tensor, "n rows boxes 4"]
    anchors: Float32[Tensor, "n rows anchors 4"]  # where the words of each question stand: see anchors.py
    letters: Int16[Tensor, "n marked length 3"]  # what lies where: see marks.py

    @classmethod
    def empty(cls, plan: Plan, count: int, device: torch.device | None = None) -> "Rows":
        """Room for `count` records of a plan."""
        width, height = plan.size
        length = plan.longest_question + plan.longest_answer
        return cls(
            torch.zeros(count, height, width, 3, dtype=torch.uint8, device=device),
            torch.zeros(count, plan.rows, length, dtype=torch.int16, device=device),
            torch.zeros(count, plan.rows, BOXES, 4, device=device),
            torch.zeros(count, plan.rows, ANCHORS, 4, device=device),
            torch.zeros(count, MARKED * bool(plan.readings), LONGEST_READING, 3, dtype=torch.int16, device=device),
        )


def render(plan: Plan, number: int, rows: Rows, place: int) -> tuple[Question, ...]:
    """Draw record `number` of a plan into a place of `rows`; its questions and then its readings, those that are kept.

    >>> plan = Plan({"scenes": 1.0}, size=(64, 48), questions=2)
    >>> rows = Rows.empty(plan, 1)
    >>> asked = render(plan, 0, rows, 0)
    >>> default_tokenizer().decode(rows.text[0, 1, :48].tolist()) == asked[1].text
    True
    """
    family, index = plan.record(number)
    try:
        record = make(family, plan.split, index, size=plan.size, clean=plan.clean, faces=plan.faces)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        how = f"size={plan.size}, clean={plan.clean}" + (f", faces='{plan.faces}'" if plan.faces else "")
        call = f"homunculus.train.drills.make('{family}', '{plan.split}', {index}, {how})"
        raise DataError(f"{family}/{plan.split}/{index} cannot be drawn ({said}): see where with {call}") from error
    asked = (*record.questions[: plan.questions], *readings(record, plan))
    tokenizer = default_tokenizer()
    text = torch.zeros(rows.text.shape[1:], dtype=torch.int64)  # [questions, length]
    dice = Dice("spelled", plan.seed, family, index)
    questions = [_numbers(question.text, dice, plan.spelled) for question in asked]
    answers = [[*tokenizer.spell(question.answer), EOS] for question in asked]
    text[: len(asked), : plan.longest_question] = tokenizer.batch(questions, plan.longest_question)
    text[: len(asked), plan.longest_question :] = tokenizer.batch(answers, plan.longest_answer)
    places = places_of_words(record.meta.get("texts", ()), record.meta.get("sine", 0.0))
    named = [anchors(question.text, places) if question.kind != READING else [] for question in asked]
    rows.images[place].copy_(torch.from_numpy(np.require(record.image, requirements=["C", "W"])))
    rows.text[place].copy_(text)
    rows.boxes[place].copy_(_in_rows([question.boxes for question in asked], *rows.boxes.shape[1:3]))
    rows.anchors[place].copy_(_in_rows(named, *rows.anchors.shape[1:3]))
    if plan.readings:
        rows.letters[place].copy_(marks(record, MARKED, LONGEST_READING))
    return asked


def _in_rows(boxes: Sequence[Sequence[Box]], rows: int, most: int) -> Float32[Tensor, "rows most 4"]:
    """Boxes of questions, at most so many of each; zeros where there are no more."""
    made = torch.zeros(rows, most, 4)
    for row, own in zip(made, boxes, strict=False):
        if own:
            row[: len(own)] = torch.tensor(own[:most])
    return made


def readings(record: Record, plan: Plan) -> list[Question]:
    """Short texts of an image as questions that name no place: only relevance says which of them is meant. Shortest
    first: they are the easiest.

    >>> record = make("documents", "train", 0, size=(512, 512))
    >>> [question.text for question in readings(record, Plan({"documents": 1.0}, readings=2))]
    ['Read this.', 'Read this.']
    """
    if not plan.readings:
        return []
    width, height = record.image_size
    found = []
    for known in record.meta.get("texts", ()):
        text, (x0, y0, x1, y1) = known["text"], known["box"]
        if 2 <= len(text) <= LONGEST_READING and 0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height:
            found.append(Question(READ, (text,), ((x0, y0, x1, y1),), kind=READING))
    chosen = Dice("readings", plan.seed, record.key).shuffled(found)[: plan.readings]
    return sorted(chosen, key=lambda question: len(question.answer))


def _numbers(text: str, dice: Dice, spelled: float) -> list[int]:
    """A question's numbers, its words spelled in bytes at random: so letters are known when a word is not."""
    tokenizer = default_tokenizer()
    ways = ((tokenizer.spell if dice.chance(spelled) else tokenizer.encode, word) for word in words_of(text))
    return [number for way, word in ways for number in way(word)]


class Renderers:
    """Worker processes that draw a plan's records ahead of need; `take` hands them over one by one.

    `rows` is the shared memory: two places for each worker, and `ahead` for records that are done. With `pinned` a CUDA
    device can copy from it by itself.
    """

    def __init__(self, plan: Plan, workers: int, ahead: int = 0, pinned: bool = False) -> None:
        places = ahead + AHEAD * workers
        try:
            self.rows = Rows(*(values.share_memory_() for values in Rows.empty(plan, places)))
        except RuntimeError as error:
            raise DataError(f"no shared memory for {places} records ({error}): take fewer workers") from None
        self._pinned = pinned
        if pinned:
            for values in filter(Tensor.numel, self.rows):  # nothing cannot be pinned
                torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(values.data_ptr(), values.nbytes, 0))
        self._free = list(range(places))
        self._lent: deque[tuple[int, Any]] = deque()
        self._ready: dict[int, tuple[int, tuple[Question, ...] | str]] = {}
        self._next = self._following = 0  # the next to be taken, and the next to be drawn
        self._era = 0  # what was asked for before a jump in the stream is thrown away when it comes
        context = get_context("spawn")  # forked threads may deadlock
        self._processes, self._pipes = [], []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, plan, self.rows), daemon=True)
            process.start()
            theirs.close()  # so that our end breaks when the worker dies
            self._processes.append(process)
            self._pipes.append(ours)
        self._load = dict.fromkeys(self._pipes, 0)  # records under way

    def take(self, number: int) -> tuple[int, tuple[Question, ...]]:
        """Where in `rows` record `number` lies and what is asked of it. The ones after it are begun; `release` it."""
        if number != self._next:
            self._free += [place for place, _ in self._ready.values()]
            self._ready.clear()
            self._era += 1
            self._following = number
        self._next = number + 1
        self._hand_out()
        while number not in self._ready:
            if any(self._load.values()):
                self._receive()
            else:  # every place is being copied from
                self._lent[0][1].synchronize()
            self._hand_out()
        place, told = self._ready.pop(number)
        if isinstance(told, str):
            self.release(place)
            raise DataError(told)
        return place, told

    def release(self, place: int, event: Any = None) -> None:
        """Give a place back, to be drawn into again once the event (as of CUDA), a copy from it, has passed."""
        self._lent.append((place, event))

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._pinned:
            self._pinned = False
            torch.cuda.synchronize()
            for values in filter(Tensor.numel, self.rows):
                torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(values.data_ptr()))

    def _hand_out(self) -> None:
        """Every free place to the worker with the least to do."""
        while self._lent and (self._lent[0][1] is None or self._lent[0][1].query()):
            self._free.append(self._lent.popleft()[0])
        while self._free:
            pipe = min(self._pipes, key=self._load.__getitem__)
            try:
                pipe.send((self._era, self._following, self._free[-1]))
            except OSError:
                raise DataError(_DIED) from None
            self._load[pipe] += 1
            self._free.pop()
            self._following += 1

    def _receive(self) -> None:
        """Wait until a worker is done, or several."""
        for pipe in wait(self._pipes):
            assert isinstance(pipe, Connection)
            try:
                era, number, place, told = pipe.recv()
            except (EOFError, OSError):
                raise DataError(_DIED) from None
            self._load[pipe] -= 1
            if era == self._era:
                self._ready[number] = place, told
            else:
                self._free.append(place)


def _work(pipe: Connection, plan: Plan, rows: Rows) -> None:
    """The life of a worker: it ends when its pipe breaks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    torch.set_num_threads(1)
    told: tuple[Question, ...] | str
    with suppress(EOFError, OSError):
        while True:
            era, number, place = pipe.recv()
            try:
                told = render(plan, number, rows, place)
            except DataError as error:
                told = str(error)
            pipe.send((era, number, place, told))
