"""Every peer by its name, whatever it acts on: images and questions in, answers out, and what they cost in tokens.

Where a peer acts is its stage: `none` (all leaves are read), `features` after the encoder, `layers` of the language
model, `decoding` while it writes, `batch` (a count for each image, padded), `combined`. Peers of the first four see
every leaf encoded, which is the same work for all of them: `seen` lets several share it. Unless `told` is False the
encoder is told how relevant each leaf is, as it is of cells, so that a peer begins with what full resolution reads.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from homunculus.allocation.registry import called, check_numbers, options_of
from homunculus.errors import AllocatorError, BudgetError, ModelError
from homunculus.geometry import MIN_TREE_BUDGET
from homunculus.model.decoder import Written
from homunculus.model.looking import question_ids
from homunculus.model.vlm import CompactVLM
from homunculus.peers import combined, dyrate, variable
from homunculus.peers.compact import on_grid, remember_tokens, seen_whole
from homunculus.peers.layers import LAYER_PEERS, least_mean, remember_reduced
from homunculus.peers.registry import get_peer, peers
from homunculus.peers.tokens import Known, Reduced, Seen, in_parts, of_images

# Tokens that are reduced at a time: of 64 images of 1024 x 1024 pixels, 17 GB where all are compared; elsewhere of 4.
TOGETHER = {"cuda": 1 << 18}
ALL_LEAVES = ("none", "features", "layers", "decoding")  # stages of peers that every leaf is encoded for


@dataclass(frozen=True, eq=False)
class PeerRead:
    """Answers, and what of the images they were read from.

    `tokens` is how many visual tokens the language model was shown: one number, or one for each image; the mean over
    layers, and over the letters of an answer, where these differ. `covered` is the share of an image's leaves that
    anything it was shown, in any layer and at any letter, stands for. `waste` is the share of tokens that are padding.
    """

    written: Written
    density: Float64[Tensor, "b gh gw"] | None  # of relevance, where the encoder was told or the peer asks
    tokens: int | Int64[Tensor, "b"]
    covered: Float[Tensor, "b"]
    waste: float = 0.0


@dataclass(frozen=True, eq=False)
class Task:
    """What every way of reading is given; what few of them need is made when it is first asked for."""

    model: CompactVLM
    images: Shaped[Tensor, "b 3 h w"]
    question: Int64[Tensor, "b q"]
    budget: Any
    longest: int
    given: Seen | None
    which: Sequence[int] | None
    relevance: Float[Tensor, "b gh gw"] | None
    told: bool

    @cached_property
    def density(self) -> Float64[Tensor, "b gh gw"]:
        """The relevance that was given, with the task or with what was seen, or else the model's own."""
        if self.relevance is not None:
            return self.relevance.double()
        if self.given is not None and self.given.relevance is not None:
            columns, rows = self.given.grid
            return self.given.relevance.double().unflatten(1, (rows, columns))
        return self.model.relevance(self.images, self.question).double()

    def seen(self, attention: Collection[str] = ()) -> Seen:
        """All leaves of each question's image, encoded."""
        return self.for_each(self.seen_once(attention))

    def seen_once(self, attention: Collection[str] = ()) -> Seen:
        """The same, but where questions share an image, of that image once."""
        if self.given is not None:
            return self.given
        return seen_whole(self.model, self.images, attention=attention, density=self.heard)

    @property
    def heard(self) -> Float64[Tensor, "b gh gw"] | None:
        """The relevance that the leaves are encoded with."""
        return self.density if self.told else None

    def for_each(self, own: Known) -> Known:
        """What is known of images, for their questions."""
        if self.which is None:
            return own
        return of_images(own, torch.tensor(list(self.which)).to(self.model.device))

    @property
    def everything(self) -> Float[Tensor, "b"]:
        return torch.ones(len(self.images), device=self.model.device)


def _whole(task: Task) -> PeerRead:
    seen = task.seen()
    count = seen.features.shape[1]
    if task.budget not in (None, count):
        raise BudgetError(f"whole reads all {count} tokens, got a budget of {task.budget!r}: give None")
    memory = remember_tokens(task.model, seen.features, seen.places)
    written = task.model.decoder.write(memory, task.question, task.longest)
    return PeerRead(written, task.heard, count, task.everything)


def _features(name: str, task: Task, **options: Any) -> PeerRead:
    peer, seed = get_peer(name), options.pop("seed", 0)
    density, tokens = task.heard, TOGETHER.get(task.model.device.type, 1 << 14)

    def reduce(part: Seen, own: slice) -> Reduced:
        return peer(part, task.budget, seed=seed[own] if isinstance(seed, Tensor) else seed, **options)

    if peer.query:
        seen, density = task.seen(peer.attention), task.density
        seen = seen._replace(relevance=on_grid(density, seen.grid))
        reduced = in_parts(reduce, seen, tokens)
    else:
        seen = task.seen_once(peer.attention)
        reduced = task.for_each(in_parts(reduce, seen, tokens))
    memory = remember_tokens(task.model, reduced.features, reduced.places)
    written = task.model.decoder.write(memory, task.question, task.longest)
    return PeerRead(written, density, reduced.features.shape[1], reduced.mass.sum(1) / seen.features.shape[1])


def _layers(name: str, task: Task, *, shown: int | None = None) -> PeerRead:
    if task.budget is not None and shown is not None:
        raise AllocatorError(f"{name} takes a budget or shown, not both: the one follows from the other")
    seen, decoder, peer = task.seen(), task.model.decoder, LAYER_PEERS[name]
    mean = task.budget
    if mean is None:
        mean = least_mean(peer.counts, seen.features.shape[1], len(decoder.layers), 1 if shown is None else shown)
    memory = remember_reduced(decoder, seen.features, seen.places, task.question, peer, mean)
    written = decoder.write(memory, task.question, task.longest)
    return PeerRead(written, task.heard, round(sum(memory.counts) / len(memory.counts)), task.everything)


def _dyrate(
    task: Task, *, rate: float | None = None, letters: int = dyrate.LETTERS, least: int = 1, every: int = 1
) -> PeerRead:
    seen, decoder = task.seen(), task.model.decoder
    if task.budget is None:
        schedule = dyrate.Schedule(dyrate.RATE if rate is None else rate, least, every)
    elif rate is None:
        count = seen.features.shape[1]
        schedule = dyrate.schedule_for(count, task.budget, letters=letters, least=least, every=every)
    else:
        raise AllocatorError("dyrate takes a budget or a rate, not both: the one follows from the other")
    memory = remember_tokens(task.model, seen.features, seen.places)
    written = dyrate.write_forgetting(decoder, memory, task.question, schedule, task.longest)
    return PeerRead(written, task.heard, dyrate.mean_left(written, memory.counts, schedule), task.everything)


def _variable(
    task: Task, *, thresholds: Sequence[float] | None = None, counts: Sequence[int] | None = None
) -> PeerRead:
    counts = tuple(counts or variable.COUNTS)
    if thresholds is None:
        if task.budget not in (None, variable.MEAN) or counts != variable.COUNTS:
            raise BudgetError(
                f"variable has thresholds for a mean of {variable.MEAN} by {list(variable.COUNTS)}, not for "
                f"{task.budget!r} by {list(counts)}: give thresholds, as variable.thresholds_for finds them"
            )
        thresholds = variable.THRESHOLDS
    own = variable.counts_of(task.density, thresholds, counts)
    leaf = task.model.config.leaf
    tokens = variable.padded(task.images, task.density, own, leaf=leaf)
    memory = variable.remember_padded(task.model, tokens)
    written = task.model.decoder.write(memory, task.question, task.longest)
    many = torch.tensor(own).to(task.model.device)
    return PeerRead(written, task.density, many, task.everything, tokens.waste)


def _combined(
    task: Task,
    *,
    merged: float = combined.MERGED,
    shown: float = combined.SHOWN,
    rate: float = dyrate.RATE,
    least: int = 1,
    every: int = 1,
) -> PeerRead:
    cells = combined.CELLS if task.budget is None else task.budget
    schedule = dyrate.Schedule(rate, least, every)
    memory = combined.remember_combined(
        task.model, task.images, task.density, task.question, cells, merged=merged, shown=shown
    )
    written = dyrate.write_forgetting(task.model.decoder, memory, task.question, schedule, task.longest)
    return PeerRead(written, task.density, dyrate.mean_left(written, memory.counts, schedule), task.everything)


class Way(NamedTuple):
    """A peer as this file knows it; options are those of its function."""

    stage: str
    summary: str
    read: Callable[..., PeerRead]


def _ways() -> dict[str, Way]:
    others = {
        "whole": Way("none", "all leaves, nothing reduced", _whole),
        "dyrate": Way("decoding", "fewer kept for every letter written, at a rising rate", _dyrate),
        "variable": Way("batch", "64 to 400 by how spread relevance is, padded to the batch", _variable),
        "combined": Way(
            "combined", "fewer cells, merged, fewer by layer and by letter: the ceiling of speed", _combined
        ),
    }
    layers = {name: Way("layers", peer.summary, partial(_layers, name)) for name, peer in LAYER_PEERS.items()}
    after = {name: Way("features", line, partial(_features, name)) for name, line in peers().items()}
    return after | layers | others


def all_peers() -> dict[str, str]:
    """Every peer's name with one line about it, whatever it acts on: those after the encoder first.

    >>> list(all_peers())[-7:]
    ['fastv', 'pyramiddrop', 'sparsevlm', 'whole', 'dyrate', 'variable', 'combined']
    """
    return {name: way.summary for name, way in _ways().items()}


def stage_of(name: Any) -> str:
    """Where a peer acts.

    >>> [stage_of(name) for name in ("whole", "tome", "fastv", "dyrate", "variable", "combined")]
    ['none', 'features', 'layers', 'decoding', 'batch', 'combined']
    """
    return _way(name).stage


def least_budget(peer: Any, tokens: int, layers: int, *, shown: int = 1) -> int:
    """The smallest whole budget a peer can keep, of so many tokens and in a language model of so many layers.

    In layers it is the mean over them, the first shown all and none fewer than `shown`. While decoding it is the mean
    over the letters of an answer, the first written with all.

    >>> [least_budget(name, 4096, 3) for name in ("tome", "fastv", "pyramiddrop", "dyrate", "whole")]
    [1, 1366, 1387, 257, 4096]
    """
    stage = stage_of(peer)
    if stage == "layers":
        return least_mean(LAYER_PEERS[peer].counts, tokens, layers, shown)
    others = {
        "none": tokens,
        "decoding": dyrate.least_mean(tokens),
        "batch": min(variable.COUNTS),
        "combined": MIN_TREE_BUDGET,
    }
    return others.get(stage, 1)


@torch.no_grad()
def read_with(
    model: CompactVLM,
    peer: str,
    images: Shaped[Tensor, "b 3 h w"],
    questions: Sequence[str],
    budget: Any,  # a number or None
    *,
    longest: int = 160,
    seen: Seen | None = None,
    which: Sequence[int] | None = None,
    relevance: Float[Tensor, "b gh gw"] | None = None,
    told: bool = True,
    **options: Any,
) -> PeerRead:
    """Answers to a question for each image, read by a peer within a budget; `options` are the peer's own.

    `budget` is exact for peers after the encoder and for the cells of `combined`; a mean over layers for those in
    layers, over the letters of an answer for `dyrate`, over images for `variable`. None is what a peer does of itself:
    layers have the least mean they can, with at least `shown` tokens in each.

    `relevance` is a density to use in place of the model's own; with `told=False` the encoder is not told of it.

    `seen` is all leaves as `seen_whole` gives them, with the same density unless `told=False`; if it has a relevance,
    that is taken to be of these questions. Leaves that were told nothing may be there once for all questions about an
    image, and `which` says which of them each is about: a peer that does not hear the question reduces an image once.

    >>> from homunculus.model.config import tiny
    >>> read = read_with(CompactVLM(tiny()), "fastv", torch.rand(2, 3, 96, 96), ["Who?", "When?"], None, longest=4)
    >>> read.written.letters.shape, read.tokens
    (torch.Size([2, 4]), 19)
    """
    way = _way(peer)
    about = len(images) if seen is None else len(seen.features) if which is None else len(which)
    if not len(questions) == len(images) == about or (which is not None and seen is None):
        raise ModelError(f"{len(images)} images, {len(questions)} questions: give one for each image, and their seen")
    _check_budget(peer, way.stage, budget)
    if told and which is not None:
        raise ModelError("leaves that are told of relevance are of one question: leave out which, or give told=False")
    if not told and way.stage not in ALL_LEAVES:
        raise AllocatorError(f"{peer} cuts cells, and of those the encoder is always told: leave out told=False")
    if way.stage != "features":  # those check their own
        _check_options(peer, way.read, options)
    task = Task(model, images, question_ids(model, questions), budget, longest, seen, which, relevance, told)
    return way.read(task, **options)


def _check_budget(name: str, stage: str, budget: Any) -> None:
    """Peers after the encoder check their own, and a few take only what they can do."""
    if stage not in ("layers", "decoding", "combined") or budget is None:
        return
    fine = isinstance(budget, Integral if stage == "combined" else Real) and not isinstance(budget, bool)
    if not fine or not 1 <= budget < math.inf:
        raise BudgetError(f"a budget of {name} is a number of tokens, 1 or more, or None, got {budget!r}")


def _way(name: Any) -> Way:
    ways = _ways()
    return called(name, ways, "a peer", ways)


def _check_options(name: str, function: Callable, options: dict[str, Any]) -> None:
    known = options_of(function)
    for option in options.keys() - known:
        raise AllocatorError(f"{name} has no option '{option}': it takes {', '.join(known) or 'none'}")
    check_numbers(name, function, options, tensors=False)
