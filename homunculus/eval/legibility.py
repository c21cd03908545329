"""The legibility benchmark: how much of the text a question asks for can be read in what N tokens show of an image.

Page -> tokens -> reconstruction -> the answer's boxes cut out -> Tesseract -> share of the answer that came back. The
whole image is the ceiling. Relevance is the true region (what a perfect scorer would say), or model-free (the library's
default mixture and the question's spatial words), or none, for methods that look at nothing. Scenes hold no text: there
the measure is the structural similarity (SSIM) of the target's region with the original, which is no legibility.

One line of JSON for every page and arm, appended as pages are done, so that a stopped run goes on where it was. A line
counts only while its page is still drawn as it was.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from PIL import Image

from homunculus.allocation import allocate_view, get_allocator
from homunculus.allocation import allocators as all_allocators
from homunculus.cache.keys import content_key
from homunculus.data import FAMILIES, Record, make, relevance_map
from homunculus.data.record import Box, Question, Split
from homunculus.errors import AllocatorError, DataError
from homunculus.eval.judge import legibility, read_text
from homunculus.eval.lines import append_rows, read_rows
from homunculus.foveate import make_view
from homunculus.geometry import MIN_TREE_BUDGET, fit_grid
from homunculus.reconstruct import reconstruct
from homunculus.sampling import sample
from homunculus.structures import View, VisualTokens, rectangular

FULL = "full image"
SOURCES = ("true", "model-free", "none")
LARGEST = 0.25  # of the image that the place of an answer may take
CONTEXT = 8  # pixels round a box that count for the similarity of a region: its window is 7 wide

Reader = Callable[[Image.Image, Sequence[Box]], str]
Row = dict[str, Any]
ROW = {"key", "print", "budget", "allocator", "source", "measure", "score"}
Done = frozenset[tuple[str, str, str]]  # print of the page, allocator, source


class Arm(NamedTuple):
    """A method and what tells it where to look."""

    allocator: str
    source: str


@dataclass(frozen=True)
class Plan:
    """What to measure. Page i is number i of its family's split; the first question about a small place is asked."""

    families: tuple[str, ...] = tuple(FAMILIES)
    allocators: tuple[str, ...] = ()  # empty: all that can take part
    count: int = 200
    budget: int = 273
    others: int = 0  # the first so many pages are measured with all allocators
    split: Split = "test-iid"
    size: tuple[int, int] = (1024, 1024)

    def __post_init__(self) -> None:
        for family in self.families:
            if family not in FAMILIES:
                raise DataError(f"no family '{family}': choose from {', '.join(FAMILIES)}")
        if self.count < 1:
            raise DataError(f"{self.count} pages are none: give a --count of at least 1")
        self.arms(0)  # refuses what it does not know

    def arms(self, index: int) -> list[Arm]:
        """What page `index` is measured with: the whole image, then every method with each source it listens to.

        >>> [" / ".join(arm) for arm in Plan(allocators=("uniform", "topk")).arms(0)]
        ['full image / none', 'uniform / none', 'topk / true', 'topk / model-free']
        """
        everyone = taking_part() if index < self.others or not self.allocators else []
        arms = [Arm(FULL, "none")]
        for name in dict.fromkeys([*self.allocators, *everyone]):
            method = get_allocator(name)
            if method.batchwide:
                raise AllocatorError(f"{name} spends one budget on a whole batch, so a page alone says nothing of it")
            listens = method.uses_relevance or method.uses_gaze
            arms += [Arm(name, source) for source in (SOURCES[:2] if listens else SOURCES[2:])]
        return arms


Job = tuple[str, int, Plan, Done]


def taking_part() -> list[str]:
    """All allocators but token-bank, which spends one budget on a whole batch: a page alone says nothing of it.

    >>> "token-bank" in taking_part(), "topk" in taking_part()
    (False, True)
    """
    return [name for name in all_allocators() if not get_allocator(name).batchwide]


def look(image: UInt8[np.ndarray, "h w 3"], question: Question, arm: Arm, budget: int, seed: int = 0) -> Image.Image:
    """What `budget` tokens of a method show of an image: its reconstruction at full size."""
    return next(_looks(image, question, [arm], budget, seed))


def _looks(
    image: UInt8[np.ndarray, "h w 3"], question: Question, arms: Sequence[Arm], budget: int, seed: int
) -> Iterator[Image.Image]:
    """One reconstruction for each arm; arms with the same source share the view."""
    views: dict[str, View] = {}
    for arm in arms:
        if arm.allocator == FULL:
            yield Image.fromarray(image)
            continue
        if arm.source not in views:
            views[arm.source] = _view(image, question, arm.source, budget)
        view = views[arm.source]
        allocation = rectangular(allocate_view(view, budget, arm.allocator, seed=seed))
        assert view.pyramid is not None  # make_view gives one
        images, mask = reconstruct(VisualTokens(sample(view.pyramid.images, allocation), allocation))
        shown = (images[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        yield Image.fromarray(filled(shown, mask[0].numpy()))


def filled(shown: UInt8[np.ndarray, "h w 3"], mask: Bool[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """Gaps take the median colour of what is shown. The edges of grey gaps would be read as letters, and a method that
    shows the answer and nothing round it would be blamed for the grey.

    >>> filled(np.array([[[250] * 3, [128] * 3, [250] * 3]], np.uint8), np.array([[True, False, True]])).tolist()
    [[[250, 250, 250], [250, 250, 250], [250, 250, 250]]]
    """
    if mask.all():
        return shown
    seen = shown[mask]
    paper = np.median(seen[:: 1 + len(seen) // 50_000], axis=0)
    return np.where(mask[..., None], shown, paper.astype(np.uint8))


def _view(image: UInt8[np.ndarray, "h w 3"], question: Question, source: str, budget: int) -> View:
    if source == "model-free":
        return make_view(image, question.text, budget, relevance="pixels")
    if source == "none":
        return make_view(image, None, budget, relevance="uniform")
    height, width = image.shape[:2]
    grid = fit_grid(width, height, max(budget, MIN_TREE_BUDGET))
    truth = relevance_map(question.boxes, (width, height), (grid.gw, grid.gh))
    return make_view(image, None, budget, relevance=truth)


def similarity(shown: Image.Image, image: UInt8[np.ndarray, "h w 3"], boxes: Sequence[Box]) -> float:
    """Mean over the boxes of the structural similarity with the original, at least 0."""
    try:
        from skimage.metrics import structural_similarity
    except ImportError:
        raise DataError("scenes are compared with scikit-image: pip install scikit-image") from None
    height, width = image.shape[:2]
    scores = []
    for x0, y0, x1, y1 in boxes:
        rows = slice(max(0, int(y0) - CONTEXT), min(height, int(y1) + CONTEXT))
        columns = slice(max(0, int(x0) - CONTEXT), min(width, int(x1) + CONTEXT))
        pair = np.asarray(shown)[rows, columns], image[rows, columns]
        scores.append(max(0.0, float(structural_similarity(*pair, channel_axis=2, data_range=255))))
    return float(np.mean(scores))


def measure_page(
    family: str, index: int, plan: Plan, done: Done = frozenset(), reader: Reader = read_text
) -> tuple[str, str, list[Row]]:
    """A page's key, the print of its pixels and question, and a row for every arm not `done` with that print."""
    record = make(family, plan.split, index, size=plan.size)
    question, image = asked(record), record.image
    mark = fingerprint(image, question)
    arms = [arm for arm in plan.arms(index) if (mark, *arm) not in done]
    rows = []
    for arm, shown in zip(arms, _looks(image, question, arms, plan.budget, index), strict=True):
        row: Row = {"key": record.key, "print": mark, "budget": plan.budget, **arm._asdict()}
        row |= {"family": family, "region": question.region, "kind": question.kind}
        if family == "scenes":
            row |= {"measure": "ssim", "score": similarity(shown, image, question.boxes)}
        else:
            read = reader(shown, question.boxes)
            score = max(legibility(answer, read) for answer in question.answers)
            row |= {"measure": "legibility", "score": score, "answers": list(question.answers), "read": read}
        rows.append(row)
    return record.key, mark, rows


def asked(record: Record) -> Question:
    """The first question whose answer is seen in a small place: that nothing is there is seen everywhere."""
    width, height = record.image_size
    for question in record.questions:
        area = sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in question.boxes)
        if 0 < area <= LARGEST * width * height:
            return question
    raise DataError(f"{record.key} has no question about a small place, so there is nothing to read")


def fingerprint(image: UInt8[np.ndarray, "h w 3"], question: Question) -> str:
    """Changes when the page or its question does."""
    boxes = [[float(edge) for edge in box] for box in question.boxes]
    return content_key(torch.from_numpy(image), question.text, question.answers, boxes)


def is_row(row: Row) -> bool:
    """Whether a line of a file is one of these.

    >>> is_row({"key": "documents/val/0"}), is_row(dict.fromkeys(ROW, ""))
    (False, True)
    """
    return row.keys() >= ROW


def run(
    plan: Plan, file: Path, *, workers: int = 1, reader: Reader = read_text, tick: Callable[[], None] = lambda: None
) -> list[Row]:
    """Measure what `file` does not have yet and append it; the rows of the plan. Every page done is a `tick`."""
    known = read_rows(file, is_row)
    done: dict[str, set[tuple[str, str, str]]] = {}
    for row in known:
        if row["budget"] == plan.budget:
            done.setdefault(row["key"], set()).add((row["print"], row["allocator"], row["source"]))
    jobs = [
        (family, index, plan, frozenset(done.get(f"{family}/{plan.split}/{index}", ())))
        for index in range(plan.count)
        for family in plan.families
    ]
    prints: dict[str, str] = {}
    with closing(_pages(jobs, workers, reader)) as pages:
        for key, mark, rows in pages:
            append_rows(file, rows)
            known += rows
            prints[key] = mark
            tick()
    wanted = {(prints[f"{family}/{plan.split}/{i}"], *arm) for family, i, *_ in jobs for arm in plan.arms(i)}
    same = (row for row in known if row["budget"] == plan.budget)
    return [row for row in same if (row["print"], row["allocator"], row["source"]) in wanted]


def _pages(jobs: Sequence[Job], workers: int, reader: Reader) -> Generator[tuple[str, str, list[Row]], None, None]:
    measure = partial(_measure, reader=reader)
    if workers == 1:
        yield from map(measure, jobs)
        return
    from multiprocessing import get_context

    with get_context("spawn").Pool(workers, torch.set_num_threads, (1,)) as pool:
        yield from pool.imap_unordered(measure, jobs)


def _measure(job: Job, reader: Reader) -> tuple[str, str, list[Row]]:
    return measure_page(*job, reader)
