"""Looking again: more of the same image until the answer is sure, coarse to fine or from place to place.

Coarse to fine, every set of tokens refines the one before and is read whole. From place to place, the first look goes
to the peak of relevance (the centre where it is flat), each next one to the peak of the density's entropy times the
detail that no look has shown, away from the places looked at, and the last of three or more to where most detail is
left, whatever the density says. The scorer reads the question and the draft answer, so the density may change between
looks.

Looks are put together in one of three ways: `tree`, whose cells serve all fixations so far; `concat`, where the decoder
has before it what each look was encoded to, all side by side; `best`, the surest answer of looks apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from homunculus.allocation import DEFAULT, get_allocator
from homunculus.errors import FixationError
from homunculus.fixation import Observer, progressive
from homunculus.foveate import make_view
from homunculus.model.calibration import BELIEVED, Calibration
from homunculus.model.decoder import Memory
from homunculus.model.scorer import as_density
from homunculus.model.vlm import CompactVLM
from homunculus.relevance import relevance as relevance_of
from homunculus.relevance.gaze import peak
from homunculus.structures import CELL_FIELDS, Allocation, View, VisualTokens, rectangular
from homunculus.unseen import RADIUS, left_to_see, next_fixation, shown_level

COMBINE = ("tree", "concat", "best")
LONGEST_QUESTION = 96  # pieces; what a draft answer goes beyond it is cut
SURE = 0.6  # going on from place to place when it is surer than this loses more than it mends: docs/model.md
BUDGETS = (100, 273, 512)


@dataclass(frozen=True, eq=False)
class Look:
    """What one look at one image saw and said. `logp` is the log-probability of the answer, of which `confidence`, the
    probability of being right, is made; `fixations` are (x, y, weight) in pixels, the latest one last."""

    text: str
    logp: float
    confidence: float
    allocation: Allocation
    density: Float64[Tensor, "gh gw"]
    fixations: Float64[Tensor, "f 3"]

    @property
    def tokens(self) -> int:
        return self.allocation.budget


class LearnedRelevance:
    """A model's scorer as a source of relevance, for all that takes one. The image is looked at once, whatever the
    number of questions that follow.

    >>> import homunculus
    >>> from homunculus.model.config import tiny
    >>> learned = LearnedRelevance(CompactVLM(tiny()))
    >>> homunculus.foveate(torch.rand(3, 128, 128), "What is the total?", 64, relevance=learned).patches.shape
    torch.Size([1, 64, 3, 16, 16])
    """

    def __init__(self, model: CompactVLM) -> None:
        self.model = model
        self._seen: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def __call__(self, images: Shaped[Tensor, "b 3 h w"], questions: Sequence[str]) -> Float[Tensor, "b gh gw"]:
        if self._seen is None or self._seen[0] is not images:
            self._seen = images, self.features(images)
        return self.heard(self._seen[1], questions)

    def features(self, images: Shaped[Tensor, "b 3 h w"]) -> Float[Tensor, "b gh gw c"]:
        """What the scorer makes of the images before any question is asked."""
        return self.model.scorer.features(images)

    def heard(self, features: Float[Tensor, "b gh gw c"], questions: Sequence[str]) -> Float[Tensor, "b gh gw"]:
        """A density for each question, of what the scorer made of its image."""
        return as_density(self.model.scorer(features, question_ids(self.model, questions)))


def question_ids(model: CompactVLM, questions: Sequence[str]) -> Int64[Tensor, "b q"]:
    """Questions as the model reads them, cut at `LONGEST_QUESTION` pieces."""
    pieces = [model.tokenizer.encode(question)[:LONGEST_QUESTION] for question in questions]
    return model.tokenizer.batch(pieces).to(model.device)


@dataclass(frozen=True, eq=False)
class Reader:
    """A model with one question for each image of a batch."""

    model: CompactVLM
    questions: Sequence[str]
    relevance: Any = None  # where to look; None is the model's scorer
    longest: int = 160
    calibration: Calibration = BELIEVED

    @cached_property
    def ids(self) -> Int64[Tensor, "b q"]:
        return question_ids(self.model, self.questions)

    @cached_property
    def source(self) -> Any:
        return LearnedRelevance(self.model) if self.relevance is None else self.relevance

    def read(self, memory: Memory, images: Sequence[int]) -> list[tuple[str, float, float]]:
        """Answers to the questions of these images, their log-probabilities, and how likely each is right."""
        written = self.model.decoder.write(memory, self.ids[list(images)], self.longest)
        texts = [self.model.tokenizer.decode(letters) for letters in written.letters.tolist()]
        logps = written.probabilities.double().log().sum(1)
        return list(zip(texts, logps.tolist(), self.calibration(logps).tolist(), strict=True))


def saccades(
    reader: Reader,
    images: Shaped[Tensor, "b 3 h w"],
    n: int = 1,
    *,
    budget: int = 273,
    allocator: str = DEFAULT,
    fixations: Float64[Tensor, "b f 3"] | None = None,
    combine: str = "tree",
    threshold: float | None = SURE,
    radius: float = RADIUS,
    **options: Any,
) -> Iterator[dict[int, Look]]:
    """Up to `n` looks at images of one size, from place to place: for every image that is not sure yet, what it said.

    Places that are given are looked at first, all at once. `options` go to the `Observer`.
    """
    check_looks(n, combine, allocator)
    model = reader.model
    observer = Observer(images, budget, allocator, leaf=model.config.leaf, validate=False, **options)
    size = observer.image_size
    asked, going = list(reader.questions), list(range(len(images)))
    shown = torch.tensor(torch.inf, dtype=torch.float64, device=model.device)
    memories: list[Memory] = []
    for k in range(n):
        density = relevance_of(observer.pyramid, reader.source, asked, floor=0.0)
        view = View(density, size, observer.leaf, observer.pyramid)
        if k == 0:
            gaze = first_fixations(fixations, peak(density, size))
        else:
            fills_gaps = 1 < k == n - 1
            open_to = torch.ones_like(density) if fills_gaps else torch.special.entr(view.relevance)
            left = left_to_see(replace(view, density=open_to), shown)
            chosen = F.pad(next_fixation(left, gaze, size, radius), (0, 1), value=1.0)
            gaze = torch.cat((gaze, chosen[:, None]), dim=1)
            if fills_gaps and combine != "tree":
                view = replace(view, density=left)
        here = gaze if k == 0 or combine == "tree" else gaze[:, -1:]
        allocation = observer.allocate(replace(view, fixations=here))
        memories = [*(memories if combine == "concat" else []), model.see(observer.tokens(allocation))]
        said = reader.read(side_by_side(memories), range(len(images)))
        cells = one_by_one(allocation)
        looks = {i: Look(*said[i], cells[i], view.relevance[i], gaze[i]) for i in going}
        yield looks
        going = unsure_of(looks, threshold)
        if not going or k + 1 == n:
            return
        shown = torch.minimum(shown, shown_level(allocation))  # by any look so far
        asked = [f"{question} {draft}".strip() for question, (draft, *_) in zip(reader.questions, said, strict=True)]


def refinements(
    reader: Reader,
    images: Shaped[Tensor, "b 3 h w"],
    budgets: Sequence[int] = BUDGETS,
    *,
    allocator: str = DEFAULT,
    fixations: Float64[Tensor, "b f 3"] | None = None,
    threshold: float | None = SURE,
    **options: Any,
) -> Iterator[dict[int, Look]]:
    """Images of one size, coarse to fine: for every image that is not sure yet, what it said. See
    `homunculus.progressive`."""
    model, leaf = reader.model, reader.model.config.leaf
    view = make_view(images, list(reader.questions), max(budgets), relevance=reader.source, leaf=leaf, validate=False)
    gaze = first_fixations(fixations, peak(view.density, view.image_size))
    points = [[(x, y) for x, y, weight in own if weight > 0] for own in gaze.tolist()]
    how: dict[str, Any] = {"allocator": allocator, "relevance": view.density, "leaf": leaf, "validate": False}
    going = list(range(len(images)))
    for tokens in progressive(images, None, budgets, points, **how, **options):
        allocation = rectangular(tokens.allocation).select(going)
        memory = model.see(VisualTokens(tokens.patches[going], allocation))
        said = zip(going, reader.read(memory, going), one_by_one(allocation), strict=True)
        looks = {i: Look(*words, cells, view.relevance[i], gaze[i]) for i, words, cells in said}
        yield looks
        going = unsure_of(looks, threshold)
        if not going:
            return


def one_by_one(allocation: Allocation) -> list[Allocation]:
    """The allocation of each image of a batch, none of it copied: a batch is cut as fast as one image is selected."""
    parts = {name: getattr(allocation, name).split(1) for name in (*CELL_FIELDS, "gaze")}
    places = zip(allocation.image_sizes, allocation.grids, strict=True)
    return [
        replace(allocation, image_sizes=(size,), grids=(grid,), **{name: own[i] for name, own in parts.items()})
        for i, (size, grid) in enumerate(places)
    ]


def unsure_of(looks: dict[int, Look], threshold: float | None) -> list[int]:
    """The images whose last look did not make them sure; all of them without a threshold."""
    return [i for i, look in looks.items() if threshold is None or look.confidence < threshold]


def check_looks(n: Any, combine: Any, allocator: str, progressive: bool = False) -> None:
    """Refuse a number of looks or a way to combine them that there is not."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise FixationError(f"the number of looks must be a positive whole number, got {n!r}")
    if progressive and n > 1:
        raise FixationError("progressive looks are coarse to fine, others go from place to place: ask for one of them")
    if combine not in COMBINE:
        raise FixationError(f"looks combine by 'tree', 'concat' or 'best', got {combine!r}")
    if combine == "tree" and n > 1 and get_allocator(allocator).single_gaze:
        raise FixationError(
            f"{allocator} has a single gaze and no tree over several: use combine='concat' or 'best', or a method with "
            f"several such as {DEFAULT}"
        )


def first_fixations(
    given: Float64[Tensor, "b f 3"] | None, otherwise: Float64[Tensor, "b 2"]
) -> Float64[Tensor, "b more 3"]:
    """The places that were given, and for images without any the one there is otherwise.

    >>> given = torch.tensor([[[5.0, 6, 1]], [[0, 0, 0]]]).double()
    >>> first_fixations(given, torch.tensor([[1.0, 2], [3, 4]]).double())[1].tolist()
    [[0.0, 0.0, 0.0], [3.0, 4.0, 1.0]]
    """
    found = F.pad(otherwise, (0, 1), value=1.0)[:, None]
    if given is None:
        return found
    none_given = (given[..., 2] <= 0).all(1)[:, None, None]
    return torch.cat((given, torch.where(none_given, found, 0.0)), dim=1)


def side_by_side(memories: Sequence[Memory]) -> Memory:
    """What was remembered of several looks, as one: keys and values of every layer, look after look."""
    layers = zip(*(memory.layers for memory in memories), strict=True)
    return Memory(tuple((torch.cat([k for k, _ in own], 2), torch.cat([v for _, v in own], 2)) for own in layers))
