"""The compact model on questions it was not trained on: it writes its own answers, letter by letter.

Records come from a split of their own, drawn by worker processes, in order of their numbers; of each image at most
`EACH` questions are asked, one on every region first. Relevance is the model's own (`predicted`), the true region
(`true`), or any source of the library by name.

`exact` forgives case and spaces at either end, nothing else. `vqa` is VQA accuracy as if ten annotators had said the
same. Of the density of the first look: `hit`, whether its highest leaf has its centre in the place of the answer grown
by half a leaf; `mass`, the share of it in that place grown by one leaf; `r2`, the squared correlation with the true
map, None where either is flat.

One line of JSON for every question, appended as batches are done, so that a stopped run goes on where it was. A line
counts only for the same weights and settings; one before the first of them says what these were.
"""

import json
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Shaped, UInt8
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
from homunculus.model.looking import LearnedRelevance
from homunculus.model.vlm import CompactVLM

EACH = 4  # questions asked of an image
AHEAD = 3  # images that a worker may be ahead
LEAF = 16

DTYPES = ("float32", "bfloat16")

Row = dict[str, Any]
Drawn = tuple[UInt8[np.ndarray, "h w 3"], tuple[Question, ...]]
Draw = Callable[["Plan", int], Callable[[], Drawn]]  # an image to be drawn; what waits for it


class Asked(NamedTuple):
    """A question to be answered: its key, how many are asked of its image, the image."""

    key: str
    of: int
    image: UInt8[Tensor, "3 h w"]
    question: Question

    @property
    def of_image(self) -> str:
        return self.key.partition("#")[0]


@dataclass(frozen=True)
class Plan:
    """What to ask and how. `how` are further options of `answer`, such as looks or progressive. With bfloat16 products
    are computed in it, as in training, and sums in float32."""

    family: str
    split: str = "test-iid"
    questions: int = 2000
    budget: int = 273
    allocator: str = DEFAULT
    relevance: str = "predicted"
    size: Size = (1024, 1024)
    how: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check(self.family, self.split)
        check_budget(self.budget)
        get_allocator(self.allocator)
        if self.questions < 2:
            raise DataError(f"{self.questions} questions give no interval: ask at least 2")
        if self.dtype not in DTYPES:
            raise DataError(f"answers are computed in {' or '.join(DTYPES)}, got {self.dtype!r}")

    def settings(self) -> dict[str, Any]:
        """All that an answer depends on but the question and the weights."""
        told = asdict(self)
        del told["questions"]
        return told

    def mark(self, weights: str) -> str:
        """What rows of this plan are known by, for weights with this name."""
        return content_key(json.dumps(self.settings(), sort_keys=True, default=str), weights)

    def keys(self, index: int, count: int) -> list[str]:
        """The keys of the first questions of an image."""
        return [f"{self.family}/{self.split}/{index}#{place}" for place in range(count)]


def weights_key(model: CompactVLM) -> str:
    """A name made of a model's weights and calibration."""
    return content_key(model.calibration.slope, model.calibration.offset, *model.state_dict().values())


class Kept:
    """The rows of a file, by mark and key, and where more of them go; without a file they are only kept here."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.settings: dict[str, Row] = {}
        self.rows: dict[str, dict[str, Row]] = defaultdict(dict)
        for line in [] if file is None else read_rows(file):
            if "key" in line:
                self.rows[line["mark"]][line["key"]] = line
            else:
                self.settings[line["mark"]] = line

    def add(self, plan: Plan, weights: str, rows: Sequence[Row]) -> list[Row]:
        """The rows with their mark, once they are in the file."""
        mark = plan.mark(weights)
        marked = [row | {"mark": mark} for row in rows]
        lines = list(marked)
        if mark not in self.settings:
            self.settings[mark] = {"mark": mark, "weights": weights} | plan.settings()
            lines.insert(0, self.settings[mark])
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        self.rows[mark].update((row["key"], row) for row in marked)
        return marked


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
    kept, weights = Kept(file), weights_key(model)
    known = dict(kept.rows[plan.mark(weights)])
    rows: dict[str, Row] = {}
    waiting: list[Asked] = []

    def answer_them() -> None:
        fresh = kept.add(plan, weights, answered(model, plan, waiting))
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
    """A row for each question, all answered together; they may be on any device."""
    relevance: Any = plan.relevance
    if plan.relevance == "predicted":
        relevance = OncePerImage(model, [one.of_image for one in asked])
    elif plan.relevance == "true":
        grid = -(-plan.size[0] // LEAF), -(-plan.size[1] // LEAF)
        relevance = torch.stack([relevance_map(one.question.boxes, plan.size, grid) for one in asked])
    how: dict[str, Any] = {"budget": plan.budget, "allocator": plan.allocator, "relevance": relevance} | plan.how
    images, texts = [one.image for one in asked], [one.question.text for one in asked]
    with torch.autocast(model.device.type, torch.bfloat16, enabled=plan.dtype == "bfloat16"):
        said = answer(model, images, texts, batch=len(asked), **how)
    assert isinstance(said, list)  # as a list of images was given
    densities = torch.stack([own.looks[0].density for own in said]).cpu()
    return [_row(*each) for each in zip(asked, said, densities, strict=True)]


class OncePerImage(LearnedRelevance):
    """A model's scorer for a batch in which images come back: of those with one name only the first is looked at.

    >>> from homunculus.model.config import tiny
    >>> images = torch.rand(2, 3, 64, 64)[[0, 0, 1]]
    >>> OncePerImage(CompactVLM(tiny()), ["one", "one", "other"])(images, ["Who?", "What?", "Who?"]).shape
    torch.Size([3, 4, 4])
    """

    def __init__(self, model: CompactVLM, names: Sequence[str]) -> None:
        super().__init__(model)
        self.first = {name: names.index(name) for name in names}  # in order of appearance
        place = {name: i for i, name in enumerate(self.first)}
        self.which = [place[name] for name in names]

    def features(self, images: Shaped[Tensor, "b 3 h w"]) -> Float[Tensor, "b gh gw c"]:
        return super().features(images[list(self.first.values())])[self.which]


def _row(asked: Asked, said: Answer, density: Float64[Tensor, "gh gw"]) -> Row:
    key, question, answers = asked.key, asked.question, asked.question.answers
    size = said.allocation.image_sizes[0]
    return {
        "key": key,
        "image": asked.of_image,
        "of": asked.of,
        "question": question.text,
        "kind": question.kind,
        "region": question.region,
        "answers": list(answers),
        "said": said.text,
        "exact": exactly(said.text, answers),
        "anls": anls(said.text, answers),
        "vqa": max(vqa(said.text, [one] * 10) for one in answers),
        "confidence": short(said.confidence),
        "logp": short(said.look.logp),
        "tokens": said.tokens,
        "looks": [{"said": look.text, "logp": short(look.logp), "tokens": look.tokens} for look in said.looks],
    } | {name: short(value) for name, value in grounding(density, question.boxes, size).items()}


def short(value: float | None) -> float | None:
    """Six digits, which is more than any measure here means, and half the file.

    >>> short(2 / 3), short(-1.23456789e-9), short(None)
    (0.666667, -1.23457e-09, None)
    """
    return None if value is None else float(f"{value:.6g}")


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
    values = density.numpy()
    gh, gw = values.shape
    across, down = size[0] / gw, size[1] / gh
    y, x = divmod(int(values.argmax()), gw)
    place = (x + 0.5) * across, (y + 0.5) * down
    hit = any(inside(place, grown(box, across / 2, down / 2)) for box in boxes)
    near, true = _regions(tuple(boxes), size, (gw, gh))
    mass = (values * near).sum() / values.sum()
    if values.min() == values.max() or true.min() == true.max():
        return {"hit": float(hit), "mass": float(mass), "r2": None}
    apart, from_true = values - values.mean(), true - true.mean(dtype=np.float64)
    r2 = (apart * from_true).sum() ** 2 / ((apart**2).sum() * (from_true**2).sum())
    return {"hit": float(hit), "mass": float(mass), "r2": min(1.0, float(r2))}


@lru_cache(1 << 14)  # the same questions are asked in many ways, and this is half of what a row costs
def _regions(
    boxes: tuple[Box, ...], size: Size, grid: Size
) -> tuple[Float32[np.ndarray, "gh gw"], Float32[np.ndarray, "gh gw"]]:
    """The place of an answer on a grid, grown by one leaf and as it is."""
    near = [grown(box, size[0] / grid[0], size[1] / grid[1]) for box in boxes]
    first, second = (relevance_map(own, size, grid).float().numpy() for own in (near, boxes))
    return first, second


def grown(box: Box, across: float, down: float) -> Box:
    x0, y0, x1, y1 = box
    return x0 - across, y0 - down, x1 + across, y1 + down


def inside(place: tuple[float, float], box: Box) -> bool:
    return box[0] <= place[0] < box[2] and box[1] <= place[1] < box[3]


def _questions(plan: Plan, known: dict[str, Row], workers: int) -> Generator[Row | Asked, None, None]:
    """Every question in order, without end: the row where it is known, else what to ask. No image whose rows are all
    there is drawn again."""

    def done(index: int) -> list[str]:
        first = known.get(plan.keys(index, 1)[0])
        asked = [] if first is None else plan.keys(index, first["of"])
        return asked if all(key in known for key in asked) else []

    with closing(_drawn(plan, (index for index in count() if not done(index)), workers)) as drawn:
        for index in count():
            if asked := done(index):
                yield from (known[key] for key in asked)
                continue
            for one in to_ask(plan, index, next(drawn)):
                yield known.get(one.key) or one


def to_ask(plan: Plan, index: int, drawn: Drawn, device: torch.device | str = "cpu") -> list[Asked]:
    """The questions of an image, which is sent to a device once for all of them."""
    image, questions = drawn
    pixels = torch.from_numpy(image).to(device).permute(2, 0, 1)
    keys = plan.keys(index, len(questions))
    return [Asked(key, len(keys), pixels, question) for key, question in zip(keys, questions, strict=True)]


def _drawn(plan: Plan, images: Iterator[int], workers: int) -> Generator[Drawn, None, None]:
    """Images with their questions, in order, without end; workers are a few ahead."""
    waiting: deque[Callable[[], Drawn]] = deque()
    with drawers(workers) as draw:
        for index in images:
            waiting.append(draw(plan, index))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft()()


@contextmanager
def drawers(workers: int) -> Iterator[Draw]:
    """Processes that draw images, while this lasts. With none an image is drawn when it is waited for."""
    if workers < 1:
        yield lambda *which: partial(_draw, *which)
        return
    from multiprocessing import get_context

    with get_context("spawn").Pool(workers, _begin) as pool:
        yield lambda *which: pool.apply_async(_draw, which).get


def _begin() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it is told, and ends it


def _draw(plan: Plan, index: int) -> Drawn:
    record = make(plan.family, plan.split, index, size=plan.size)  # type: ignore[arg-type]
    return record.image, record.questions[:EACH]
