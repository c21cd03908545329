"""The compact model on questions it was not trained on: it writes its own answers, letter by letter.

`exact` forgives case and spaces at either end, nothing else. `vqa` is VQA accuracy as if ten annotators had said the
same. For what rows tell of where a method looks see `eval.grounding`; how much is covered is measured for the first
`COVERED` questions of a set, since the exact area takes longer than the answer.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from homunculus.allocation import get_allocator
from homunculus.allocation.cells import retold
from homunculus.density import normalise, resample_mass
from homunculus.eval.drawing import EACH, Asked
from homunculus.eval.grounding import densest, found, grounding, overlap, shown, where_quick
from homunculus.eval.metrics import anls, vqa
from homunculus.eval.packed import allocated_together, groups_of, padded_cells
from homunculus.eval.plans import Plan
from homunculus.eval.relevances import KEPT_CELLS, LEAF, LEARNED, mixture_of, told_region
from homunculus.eval.rows import Row, short
from homunculus.geometry import Size
from homunculus.model.answer import answer
from homunculus.model.decoder import Written
from homunculus.model.looking import LearnedRelevance, one_by_one, question_ids
from homunculus.model.vlm import CompactVLM, look
from homunculus.peers.compact import seen_whole
from homunculus.peers.reading import ALL_LEAVES, read_with, stage_of
from homunculus.peers.tokens import BOTH, Seen, of_images
from homunculus.peers.variable import remember_padded
from homunculus.pyramid import ImagePyramid
from homunculus.relevance import relevance as relevance_of
from homunculus.structures import Allocation, VisualTokens, rectangular

COVERED = 64
SEGMENTED = "atlas"  # is given segments, found when the image was drawn
HELD = 2  # encodings of all leaves that are kept, such as one that was told and one that was not

AT_ONCE = 1 << 24  # pixels that the scorer looks at, or leaves * LEAF**2 that are encoded, together


class Shared:
    """What models with the same scorer can take from each other: where to look, and how well that is known. By
    relevance, precision, size and the questions."""

    def __init__(self) -> None:
        self.densities: dict[tuple[Any, ...], Float64[Tensor, "n gh gw"]] = {}
        self.grounded: dict[tuple[Any, ...], list[dict[str, float | None]]] = {}


class Chunk:
    """Questions that are asked in many ways: images, densities and encodings are made once for all of them. Encodings
    say how much leaves are looked at, which takes longer than encoding them, in the layers where somebody will ask."""

    def __init__(
        self,
        model: CompactVLM,
        asked: Sequence[Asked],
        size: Size,
        shared: Shared | None = None,
        *,
        attention: Collection[str] = BOTH,
    ) -> None:
        self.model, self.asked, self.size, self.attention = model, asked, size, attention
        names = list(dict.fromkeys(one.of_image for one in asked))
        place = {name: i for i, name in enumerate(names)}
        self.which = [place[one.of_image] for one in asked]  # the image of each question
        first = {one.of_image: one.image for one in reversed(asked)}
        self.images = torch.stack([first[name] for name in names]).to(model.device)
        self.grid = -(-size[0] // LEAF), -(-size[1] // LEAF)
        self._shared = Shared() if shared is None else shared
        self._seen: dict[tuple[str, str | None], Seen] = {}  # by precision, and the relevance that was told
        self._first: dict[str, dict[str, Any]] = defaultdict(dict)  # by plan and image

    def images_of(self, places: Sequence[int]) -> Shaped[Tensor, "b 3 h w"]:
        """The image of each of these questions."""
        return self.images[[self.which[i] for i in places]]

    def density(self, plan: Plan) -> Float64[Tensor, "n gh gw"]:
        """Where a plan says to look, for every question."""
        name, densities = self._name(plan), self._shared.densities
        if name not in densities:
            parts = [(self._map(source, plan.dtype), weight) for source, weight in mixture_of(plan.relevance)]
            densities[name] = normalise(sum(weight * normalise(one) for one, weight in parts))  # type: ignore[arg-type]
        return densities[name]

    def _name(self, plan: Plan) -> tuple[Any, ...]:
        """What the density of a plan is known by."""
        words = "predicted" if plan.relevance == KEPT_CELLS else plan.relevance  # of this question, as that is
        return words, plan.dtype, self.size, *(one.key for one in self.asked)

    def grounded(self, plan: Plan, place: int) -> dict[str, float | None]:
        """How well the density of a plan knows where the answer to a question is: once, for all methods."""
        name, grounded = self._name(plan), self._shared.grounded
        if name not in grounded:
            each = zip(self.density(plan).cpu(), self.asked, strict=True)
            grounded[name] = [grounding(own, one.question.boxes, self.size) for own, one in each]
        return dict(grounded[name][place])

    def _map(self, source: str, dtype: str) -> Float64[Tensor, "n gh gw"]:
        told = [told_region(source, one.key, one.question.boxes, self.size) for one in self.asked]
        if told[0] is not None:
            return torch.stack(told).to(self.model.device)  # type: ignore[arg-type]  # all of them or none
        together = max(1, AT_ONCE // (self.size[0] * self.size[1]))
        if source not in LEARNED:
            parts = [relevance_of(ImagePyramid(own, self.grid, LEAF), source) for own in self.images.split(together)]
            return torch.cat(parts)[self.which]
        texts = [one.first if source == "first-turn" else one.question.text for one in self.asked]
        with computed_in(dtype, self.model):
            features = torch.cat([self.model.scorer.features(own) for own in self.images.split(together)])
            learned = LearnedRelevance(self.model)
            parts = []
            for start in range(0, len(texts), 4 * together):
                part = slice(start, start + 4 * together)
                parts.append(learned.heard(features[self.which[part]], texts[part]).double())
        return resample_mass(torch.cat(parts), self.grid)

    def first_cells(self, plan: Plan) -> dict[str, Any]:
        """Where each image is shown how finely for its first question: however few are answered at a time, the others
        are compared with it. Where an earlier run has answered that one, there is nothing to compare with."""
        return self._first[plan.mark("")]

    def seen(self, places: Sequence[int], plan: Plan) -> tuple[Seen, list[int] | None]:
        """Every leaf of the images of these questions, encoded. What is told is told by each question; otherwise each
        image is there once, and which of them a question is about is said."""
        name = plan.dtype, plan.relevance if plan.told else None
        if name not in self._seen:
            if len(self._seen) == HELD:
                del self._seen[next(iter(self._seen))]  # the oldest
            self._seen[name] = self._encoded(plan)
        images = list(places) if plan.told else list(dict.fromkeys(self.which[i] for i in places))
        own = of_images(self._seen[name], torch.tensor(images).to(self.model.device))
        return own, None if plan.told else [images.index(self.which[i]) for i in places]

    def _encoded(self, plan: Plan) -> Seen:
        """Every leaf for each question, which tells how relevant it is, or, where nothing is told, of each image."""
        density = self.density(plan) if plan.told else None
        images = self.which if plan.told else list(range(len(self.images)))
        together = max(1, AT_ONCE // (self.size[0] * self.size[1]))
        parts = []
        with computed_in(plan.dtype, self.model):
            for first in range(0, len(images), together):
                own = slice(first, first + together)
                told = None if density is None else density[own]
                leaves = self.images[images[own]]
                parts.append(seen_whole(self.model, leaves, attention=self.attention, density=told))
        fields = zip(*parts, strict=True)
        return Seen._make(torch.cat(field) if isinstance(field[0], Tensor) else field[0] for field in fields)


def computed_in(dtype: str, model: CompactVLM) -> torch.autocast:
    """Products in bfloat16 where a plan says so."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16")


def answered(model: CompactVLM, plan: Plan, chunk: Chunk, places: Sequence[int]) -> list[Row]:
    """A row for each of these questions of a chunk, all answered together."""
    if plan.peer is not None:
        return _answered_by_peer(model, plan, chunk, places)
    allocator, budget = plan.cells
    if get_allocator(allocator).batchwide:
        return _answered_together(model, plan, chunk, places)
    if plan.relevance == KEPT_CELLS:
        return _answered_on_kept_cells(model, plan, chunk, places)
    asked = [chunk.asked[i] for i in places]
    hears_drafts = plan.looks_again and plan.relevance == "predicted"
    if hears_drafts:
        relevance: Any = OncePerImage(model, [one.of_image for one in asked])
    else:
        relevance = chunk.density(plan)[list(places)]
    how: dict[str, Any] = {"budget": budget, "allocator": allocator, "relevance": relevance} | plan.how
    if plan.method == SEGMENTED:
        how["segments"] = torch.stack([one.labels for one in asked])  # type: ignore[misc]
    with computed_in(plan.dtype, model):
        said = answer(model, chunk.images_of(places), [one.question.text for one in asked], batch=len(asked), **how)
    assert isinstance(said, list)  # as several images were given
    densities = torch.stack([own.looks[0].density for own in said]).cpu() if hears_drafts else None
    centres = densest([own.allocation for own in said])
    answers = zip(asked, said, strict=True)
    cells = {one.key: where_quick(own.allocation) for one, own in answers if question_number(one.key) < COVERED}
    first = chunk.first_cells(plan)
    first |= {one.of_image: cells[one.key] for one in asked if _is_first(one) and one.key in cells}
    rows = []
    for i, (one, own, centre) in enumerate(zip(asked, said, centres, strict=True)):
        size = own.allocation.image_sizes[0]
        told = {"confidence": own.confidence, "logp": own.look.logp, "tokens": own.tokens}
        if densities is None:
            looked = chunk.grounded(plan, places[i])
        else:
            looked = grounding(densities[i], one.question.boxes, size)
        looked["cell"] = found(centre, one.question.boxes, own.allocation.leaf)
        if one.key in cells:
            looked |= shown(cells[one.key])
            alone = _is_first(one) or one.of_image not in first
            looked["overlap"] = None if alone else overlap(cells[one.key], first[one.of_image])
        looks = [{"said": look.text, "logp": short(look.logp), "tokens": look.tokens} for look in own.looks]
        rows.append(_row(one, own.text, told | looked, size) | ({"looks": looks} if len(looks) > 1 else {}))
    return rows


def _is_first(one: Asked) -> bool:
    return one.key.endswith("#0")


def question_number(key: str) -> int:
    """At most how many questions of a set come before this one.

    >>> question_number("scenes/test-iid/12#1")
    49
    """
    image, _, place = key.rpartition("/")[2].partition("#")
    return EACH * int(image) + int(place)


def _answered_by_peer(model: CompactVLM, plan: Plan, chunk: Chunk, places: Sequence[int]) -> list[Row]:
    """The rows of a reducer; all leaves are encoded once, whatever the number of reducers."""
    peer, asked = str(plan.peer), [chunk.asked[i] for i in places]
    texts = [one.question.text for one in asked]
    seen, which = chunk.seen(places, plan) if stage_of(peer) in ALL_LEAVES else (None, None)
    with computed_in(plan.dtype, model):
        read = read_with(
            model,
            peer,
            chunk.images_of(places),
            texts,
            plan.budget,
            seen=seen,
            which=which,
            relevance=chunk.density(plan)[list(places)],
            **plan.how,
        )
    said = words_of(model, read.written)
    tokens = [read.tokens] * len(asked) if isinstance(read.tokens, int) else read.tokens.tolist()
    rows = []
    for i, (one, (text, told)) in enumerate(zip(asked, said, strict=True)):
        looked: dict[str, float | None] = {"hit": None, "mass": None, "r2": None, "cell": None}
        if read.density is not None:
            looked = chunk.grounded(plan, places[i])
        if question_number(one.key) < COVERED:
            looked["stands_for"] = float(read.covered[i])
        rows.append(_row(one, text, told | {"tokens": tokens[i]} | looked, chunk.size))
    return rows


def _answered_together(model: CompactVLM, plan: Plan, chunk: Chunk, places: Sequence[int]) -> list[Row]:
    """The rows of a method with one budget for several of these questions."""
    asked, density = [chunk.asked[i] for i in places], chunk.density(plan)[list(places)]
    how = dict(plan.how)
    longest = how.pop("longest", 160)
    with computed_in(plan.dtype, model):
        images = chunk.images_of(places)
        cells = [
            own
            for lot in groups_of([one.of_image for one in asked])
            for own in allocated_together(model, images[lot], density[lot], plan.budget or 0, plan.method, **how)
        ]  # in their order, as the questions of a group stand side by side
        ids = question_ids(model, [one.question.text for one in asked])
        written = model.decoder.write(remember_padded(model, padded_cells(images, cells)), ids, longest)
    return _rows_of_cells(model, plan, chunk, places, written, cells)


def _answered_on_kept_cells(model: CompactVLM, plan: Plan, chunk: Chunk, places: Sequence[int]) -> list[Row]:
    """The rows of cells that were chosen for the first question of an image, each told what it holds for this one."""
    asked, allocator, budget = [chunk.asked[i] for i in places], *plan.cells
    first, own = (chunk.density(replace(plan, relevance=words))[list(places)] for words in ("first-turn", "predicted"))
    how = dict(plan.how)
    longest = how.pop("longest", 160)
    if plan.method == SEGMENTED:
        how["segments"] = torch.stack([one.labels for one in asked])  # type: ignore[misc]
    with computed_in(plan.dtype, model):
        tokens = look(chunk.images_of(places), first, budget, allocator, leaf=LEAF, **how)
        cells = retold(rectangular(tokens.allocation), own)
        ids = question_ids(model, [one.question.text for one in asked])
        written = model.decoder.write(model.see(VisualTokens(tokens.patches, cells)), ids, longest)
    return _rows_of_cells(model, plan, chunk, places, written, one_by_one(cells))


def _rows_of_cells(
    model: CompactVLM, plan: Plan, chunk: Chunk, places: Sequence[int], written: Written, cells: Sequence[Allocation]
) -> list[Row]:
    """What was written about each of these questions, with the cells it was read from."""
    rows = []
    for i, (text, told), own, centre in zip(places, words_of(model, written), cells, densest(cells), strict=True):
        one, looked = chunk.asked[i], chunk.grounded(plan, i)
        looked["cell"] = found(centre, one.question.boxes, own.leaf)
        if question_number(one.key) < COVERED:
            looked |= shown(where_quick(own))
        rows.append(_row(one, text, told | {"tokens": own.budget} | looked, chunk.size))
    return rows


def words_of(model: CompactVLM, written: Written) -> list[tuple[str, dict[str, float | None]]]:
    """What was written, as text, and how sure it is."""
    texts = [model.tokenizer.decode(letters) for letters in written.letters.tolist()]
    logps = written.probabilities.double().log().sum(1)
    sure = zip(model.calibration(logps).tolist(), logps.tolist(), strict=True)
    told = [{"confidence": confidence, "logp": logp} for confidence, logp in sure]
    return list(zip(texts, told, strict=True))  # type: ignore[arg-type]


def _row(asked: Asked, said: str, told: Mapping[str, float | None], size: Size) -> Row:
    question, answers = asked.question, asked.question.answers
    return {
        "key": asked.key,
        "image": asked.of_image,
        "of": asked.of,
        "question": question.text,
        "kind": question.kind,
        "region": question.region,
        "answers": list(answers),
        "boxes": [[short(edge) for edge in box] for box in question.boxes],
        "size": list(size),
        "said": said,
        "exact": exactly(said, answers),
        "anls": short(anls(said, answers)),
        "vqa": short(max(vqa(said, [one] * 10) for one in answers)),
    } | {name: short(value) if isinstance(value, float) else value for name, value in told.items()}


def exactly(said: str, answers: Iterable[str]) -> float:
    """1 if the answer is one of those that count, case and spaces at either end aside.

    >>> exactly(" ab-12", ["AB-12"]), exactly("AB 12", ["AB-12"]), exactly("AB-12.", ["AB-12"])
    (1.0, 0.0, 0.0)
    """
    return float(said.strip().lower() in {one.strip().lower() for one in answers})


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
