"""Questions to ask, with images drawn by processes, a little ahead of those who answer.

Records come from a split of their own, in order of their numbers; of each image at most `EACH` questions are asked, one
on every region first. An image about which everything is known already is not drawn.

Pixels come from processes in files, each read at once and removed. Through a pipe they would come in pieces of 64 kB,
one worker at a time, and take several times as long of the process that asks, which needs that time itself.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int16, Int64, UInt8
from torch import Tensor

from homunculus.data import Question, make
from homunculus.errors import DataError
from homunculus.eval.relevances import LEAF
from homunculus.geometry import Size
from homunculus.pyramid import ImagePyramid
from homunculus.segments import classical_labels

EACH = 4  # questions asked of an image
AHEAD = 3  # images that a worker may be ahead

Pictures = tuple[str, str, Size]  # a family, a split and the size of its images
Draw = Callable[[Pictures, int, bool], Callable[[], "Drawn"]]  # an image to be drawn; what waits for it


class Drawn(NamedTuple):
    """An image with its questions; and its segments, where a method needs them: cutting takes longer than drawing."""

    image: UInt8[np.ndarray, "h w 3"]
    questions: tuple[Question, ...]
    labels: Int16[np.ndarray, "lh lw"] | None = None


class Asked(NamedTuple):
    """A question to be answered: its key, how many are asked of its image and which comes first, the image and its
    segments."""

    key: str
    of: int
    first: str
    image: UInt8[Tensor, "3 h w"]
    question: Question
    labels: Int64[Tensor, "lh lw"] | None = None

    @property
    def of_image(self) -> str:
        return self.key.partition("#")[0]


def to_ask(keys: Sequence[str], drawn: Drawn, device: torch.device | str = "cpu") -> list[Asked]:
    """The questions of an image, under the first of the keys. The image is sent to a device once for all of them."""
    image, questions, labels = drawn
    pixels = torch.from_numpy(image).to(device).permute(2, 0, 1)
    segments = None if labels is None else torch.from_numpy(labels).to(device, torch.int64)
    about = len(questions), questions[0].text, pixels
    return [Asked(key, *about, question, segments) for key, question in zip(keys, questions, strict=False)]


@contextmanager
def drawers(workers: int) -> Iterator[Draw]:
    """Processes that draw images, while this lasts. With none an image is drawn when it is waited for. If one is ended
    from outside, whoever waits for an image is told."""
    if workers < 1:
        yield lambda *which: partial(_draw, *which)
        return
    from multiprocessing import get_context

    with TemporaryDirectory(prefix="homunculus-") as folder:
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin)

        def draw(*which: Any) -> Callable[[], Drawn]:
            coming: Future[Drawn] = Future()
            try:
                pool.submit(_leave, folder, *which).add_done_callback(partial(_take, coming))
            except BrokenProcessPool as error:
                coming.set_exception(error)
            return partial(_waited_for, coming)

        try:
            yield draw
        finally:
            pool.shutdown(cancel_futures=True)


def remembering(draw: Draw) -> Draw:
    """The same images again and again, each drawn once."""
    drawn: dict[tuple[Pictures, int, bool], Drawn] = {}

    def once(waiting: Callable[[], Drawn], *which: Any) -> Drawn:
        return drawn.setdefault(which, waiting())

    def known(*which: Any) -> Callable[[], Drawn]:
        return (lambda: drawn[which]) if which in drawn else partial(once, draw(*which), *which)

    return known


def _begin() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it is told, and ends it


def _draw(pictures: Pictures, index: int, segmented: bool) -> Drawn:
    family, split, size = pictures
    record = make(family, split, index, size=size)  # type: ignore[arg-type]
    drawn = Drawn(record.image, record.questions[:EACH])
    return drawn._replace(labels=_labels(record.image)) if segmented else drawn


def _leave(folder: str, *which: Any) -> tuple[Path, Drawn]:
    """Draw, and leave the pixels in a file of the folder."""
    drawn = _draw(*which)
    try:
        number, name = mkstemp(".npy", dir=folder)
        with open(number, "wb") as file:
            np.save(file, drawn.image)
    except OSError as error:
        raise DataError(f"no room for an image in {folder} ({error}): set TMPDIR to a folder with more") from None
    return Path(name), drawn._replace(image=drawn.image[:0])


def _take(coming: "Future[Drawn]", left: "Future[tuple[Path, Drawn]]") -> None:
    """Read what a process has left, as soon as it tells; the thread that hears of it must not stop at an error."""
    try:
        file, drawn = left.result()
        image = np.load(file)
        file.unlink()
    except Exception as error:
        coming.set_exception(error)
    else:
        coming.set_result(drawn._replace(image=image))


def _waited_for(coming: "Future[Drawn]") -> Drawn:
    try:
        return coming.result()
    except BrokenProcessPool:
        raise DataError(
            "a process that draws images was ended from outside, as happens where memory is short: give the command "
            "again with fewer --workers"
        ) from None


def _labels(image: UInt8[np.ndarray, "h w 3"]) -> Int16[np.ndarray, "lh lw"]:
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
    grid = -(-image.shape[1] // LEAF), -(-image.shape[0] // LEAF)
    return classical_labels(ImagePyramid(pixels, grid, LEAF))[0].numpy().astype(np.int16)


class Ahead:
    """Images by request, with those that are likely to be asked for next under way: `expected`, in their order."""

    def __init__(
        self, draw: Draw, expected: Sequence[tuple[Pictures, int]], ahead: int, segmented: bool = False
    ) -> None:
        self.ahead = ahead
        self.draw = lambda pictures, index: draw(pictures, index, segmented)
        self.expected = list(expected)
        self.place = {one: i for i, one in enumerate(self.expected)}
        self.under_way: dict[tuple[Pictures, int], Callable[[], Drawn]] = {}
        self.begun = 0

    def __call__(self, pictures: Pictures, index: int) -> Drawn:
        wanted = pictures, index
        here = self.place.get(wanted, self.begun)
        for one in self.expected[self.begun : here + self.ahead + 1]:
            self.under_way[one] = self.draw(*one)
        self.begun = max(self.begun, min(len(self.expected), here + self.ahead + 1))
        waiting = self.under_way.pop(wanted, None) or self.draw(*wanted)  # some images have fewer questions
        return waiting()
