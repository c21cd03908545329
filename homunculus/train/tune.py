"""A reader for each method: answer training goes on for a little on the method's own tokens, so that none is asked for
what it has never seen.

Encoder and decoder learn; the scorer is frozen and says where to look, as when questions are asked. Every method sees
the same questions in the same order, in batches of as many; what differs is only what is shown of an image. A reducer
that acts on all leaves has them all encoded: for each question, which tells how relevant they are, or, told nothing,
once for the questions of an image.
"""

import copy
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from homunculus.allocation import get_allocator
from homunculus.errors import ModelError
from homunculus.eval.answers import SEGMENTED
from homunculus.eval.packed import MATES, allocated_together, padded_cells
from homunculus.eval.plans import Plan
from homunculus.eval.surroundings import sharing
from homunculus.model.decoder import Memory
from homunculus.model.encoder import cells_of
from homunculus.model.vlm import CompactVLM, look
from homunculus.peers import combined, variable
from homunculus.peers.compact import every_leaf, on_grid, remember_tokens, seen_cells
from homunculus.peers.layers import LAYER_PEERS, least_mean, remember_reduced
from homunculus.peers.reading import stage_of
from homunculus.peers.registry import Peer, get_peer
from homunculus.peers.tokens import Seen, fingerprints
from homunculus.pyramid import ImagePyramid
from homunculus.segments import classical_labels
from homunculus.structures import rectangular
from homunculus.train.loop import Outcome, Settings, fit
from homunculus.train.pool import Pool
from homunculus.train.read import answer_loss
from homunculus.train.samples import Samples
from homunculus.train.score import fill, predicted

EACH = 8  # questions of an image in a batch
WARMUP = 10  # steps, of those that seconds allow
REHEARSED = 2  # steps of a short rehearsal
FURTHER = range(4, 25)  # and how many more a longer one has

Segments = dict[tuple[int, int], Tensor]  # of images, by the number of the pool and the slot in it


@dataclass(frozen=True)
class Tuning:
    """How much a reader is tuned: so many samples, or, with `seconds`, as many as that time allows."""

    samples: int = 6400
    batch: int = 64
    rate: float = 1e-4
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.batch < EACH or self.batch % EACH:
            raise ModelError(f"a batch is a multiple of {EACH} samples, got {self.batch}")
        if self.samples < self.batch:
            raise ModelError(
                f"readers are tuned on batches of {self.batch} samples: ask for at least as many, got {self.samples}"
            )
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ModelError(f"readers are tuned for some seconds above 0, got {self.seconds}")

    @property
    def asked(self) -> dict[str, Any]:
        """What is equal for all methods, and how much of it."""
        if self.seconds is None:
            return {"equal": "samples", "asked": self.samples}
        return {"equal": "seconds", "asked": self.seconds}

    @property
    def settings(self) -> Settings:
        steps = self.samples // self.batch
        return Settings(steps, rate=self.rate, warmup=max(1, steps // 10), final=0.1, save_every=1e9)


def tuned(base: CompactVLM, plan: Plan, pools: Sequence[Pool], tuning: Tuning) -> tuple[CompactVLM, dict[str, Any]]:
    """A copy of a model, tuned for the method of a plan, and what was done to it."""
    settings, about = tuning.settings, dict[str, Any](tuning.asked)
    segments = cut(pools, base.config.leaf) if plan.method == SEGMENTED else None  # beforehand: no part of the time

    def learned(settings: Settings) -> tuple[CompactVLM, Outcome, float]:
        return _learned(base, plan, pools, tuning.batch, settings, segments)

    if tuning.seconds is not None:
        steps = steps_in(tuning.seconds, lambda count: learned(replace(settings, steps=count))[2])
        settings = replace(settings, steps=steps, warmup=WARMUP)
    model, outcome, seconds = learned(settings)
    taken = seconds / sharing(base.device)  # of the device's time, its part
    about |= {"samples": outcome.step * tuning.batch, "seconds": round(taken, 2)}
    return model.eval().requires_grad_(False), about | {"loss": round(outcome.loss, 4)}


def _learned(
    base: CompactVLM, plan: Plan, pools: Sequence[Pool], batch: int, settings: Settings, segments: Segments | None
) -> tuple[CompactVLM, Outcome, float]:
    """A copy of a model after some steps, and the seconds they took."""
    model = copy.deepcopy(base).train()
    reader = [*model.encoder.parameters(), *model.decoder.parameters()]
    loss = OwnTokens(model, pools, plan, batch, segments)
    with TemporaryDirectory() as folder:
        started = time.monotonic()
        outcome = fit(
            model, loss, settings, Path(folder), name="tune", trained=reader, begin=loss.begin, progress=False
        )
        return model, outcome, time.monotonic() - started


def steps_in(seconds: float, taken: Callable[[int], float]) -> int:
    """How many steps take so many seconds, beginning and end included: by the clock of rehearsals that are thrown away,
    two short ones and two that have about a third of the time, after a first in which kernels are chosen. Of equal ones
    the quicker counts, so that a machine that is busy for a moment changes nothing; if it was busy for more, a step is
    taken to be a quarter of the longer ones' mean at least.

    >>> steps_in(6.0, lambda steps: 0.5 + 0.1 * steps)
    55
    """
    taken(REHEARSED)
    short = taken(REHEARSED)
    further = min(max(int(seconds / 3 * REHEARSED / short), FURTHER[0]), FURTHER[-1])
    more = REHEARSED + further
    long = taken(more)
    short, long = min(short, taken(REHEARSED)), min(long, taken(more))
    each = max((long - short) / further, long / (4 * more))
    return max(WARMUP, int((seconds - short) / each + REHEARSED + 1e-6))


def cut(pools: Sequence[Pool], leaf: int) -> Segments:
    """The segments of all images of pools that stay as they are."""
    return {
        (number, slot): labels_of(image, leaf)
        for number, pool in enumerate(pools)
        for slot, image in enumerate(pool.rows.images.movedim(3, 1))
    }


def labels_of(image: Shaped[Tensor, "3 h w"], leaf: int) -> Int64[Tensor, "lh lw"]:
    """They are cut on the CPU."""
    grid = max(1, image.shape[2] // leaf), max(1, image.shape[1] // leaf)
    return classical_labels(ImagePyramid(image[None].cpu(), grid, leaf))[0]


class OwnTokens:
    """The loss of a step on the tokens of a plan's method, for `loop.fit`."""

    def __init__(
        self, model: CompactVLM, pools: Sequence[Pool], plan: Plan, batch: int, segments: Segments | None = None
    ) -> None:
        self.model, self.pools, self.plan, self.batch = model, pools, plan, batch
        self.how = {name: value for name, value in plan.how.items() if name not in ("longest", "told")}  # of the method
        self.dtype = torch.bfloat16 if model.device.type == "cuda" else torch.float32
        self.segments: Segments = {} if segments is None else segments  # found when an image first comes

    def begin(self, step: int) -> None:
        fill(self.pools, step)

    def __call__(self, step: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        pool = self.pools[step % len(self.pools)]
        samples = pool.draw(self.batch, step, EACH)
        pool.advance()
        with torch.no_grad():
            density = predicted(self.model, samples)
        memory = self.memory(samples, density, step)
        loss, about = answer_loss(self.model.decoder(memory, samples.question, samples.answer), samples.answer)
        return loss, about | {"samples": float(self.batch)}

    def memory(self, samples: Samples, density: Float[Tensor, "b gh gw"], step: int) -> Memory:
        """What the decoder is shown of each question's image."""
        model, peer = self.model, self.plan.peer
        leaf, images = model.config.leaf, samples.images
        if peer is None:
            allocator, budget = self.plan.cells
            if get_allocator(allocator).batchwide:
                return self._together(samples, density)
            how = self.how | ({"segments": self._labels(samples, step)} if allocator == SEGMENTED else {})
            how |= {"leaf": leaf, "seed": step, "dtype": self.dtype}
            tokens = look(images, density, budget, allocator, **how)
            cells = cells_of(rectangular(tokens.allocation))
            return model.decoder.remember(model.encoder(tokens.patches, cells), cells)
        stage = stage_of(peer)
        if stage == "batch":
            counts = variable.counts_of(density, **self.how)
            own = variable.padded(
                images.repeat_interleave(samples.each, 0), density, counts, leaf=leaf, dtype=self.dtype
            )
            return variable.remember_padded(model, own)
        if stage == "combined":
            # Its other options are about writing, of which there is none here.
            shares = {name: self.how[name] for name in ("merged", "shown") if name in self.how}
            whole, count = images.repeat_interleave(samples.each, 0), self.plan.budget or combined.CELLS
            return combined.remember_combined(model, whole, density, samples.question, count, **shares)
        if stage == "features":
            return self._reduced(get_peer(peer), samples, density, step)
        seen = self._seen(samples, density)
        if stage == "layers":
            layers = LAYER_PEERS[peer]
            mean = least_mean(layers.counts, seen.features.shape[1], len(model.decoder.layers), **self.how)
            return remember_reduced(model.decoder, seen.features, seen.places, samples.question, layers, mean)
        return remember_tokens(model, seen.features, seen.places)

    def _seen(self, samples: Samples, density: Float[Tensor, "b gh gw"], attention: Collection[str] = ()) -> Seen:
        """Every leaf of every question's image."""
        own = self._seen_once(samples, density, attention)
        return own if self.plan.told else for_each(own, samples.each)

    def _seen_once(self, samples: Samples, density: Float[Tensor, "b gh gw"], attention: Collection[str]) -> Seen:
        """The same, but where questions tell nothing, of an image once."""
        with torch.no_grad():
            told = density if self.plan.told else None
            images = samples.images if told is None else samples.images.repeat_interleave(samples.each, 0)
            patches, cells, grid = every_leaf(images, self.model.config.leaf, told)
        seen = seen_cells(self.model, patches.to(self.dtype), cells, grid, attention=attention)
        return seen._replace(fingerprint=fingerprints(images))

    def _reduced(self, peer: Peer, samples: Samples, density: Float[Tensor, "b gh gw"], step: int) -> Memory:
        """What a reducer leaves; one that hears nothing of the question is asked once for an image, and one that draws
        lots draws others at every step."""
        if peer.query:
            seen = self._seen(samples, density, peer.attention)
            seen = seen._replace(relevance=on_grid(density, seen.grid))
        else:
            seen = self._seen_once(samples, density, peer.attention)
        reduced = peer(seen, self.plan.budget, **self.how | {"seed": step})
        each = len(samples.question) // len(seen.features)
        features, places = (part.repeat_interleave(each, 0) for part in (reduced.features, reduced.places))
        return remember_tokens(self.model, features, places)

    def _labels(self, samples: Samples, step: int) -> Int64[Tensor, "b lh lw"]:
        """The segments of every question's image, cut once for each image of the pool."""
        keys = [(step % len(self.pools), slot) for slot in samples.slot[:: samples.each].tolist()]
        for key, image in zip(keys, samples.images, strict=True):
            if key not in self.segments:
                self.segments[key] = labels_of(image, self.model.config.leaf)
        found = torch.stack([self.segments[key] for key in keys]).to(self.model.device)
        return found.repeat_interleave(samples.each, 0)

    def _together(self, samples: Samples, density: Float[Tensor, "b gh gw"]) -> Memory:
        """One budget for every few questions; padded alike, so that they are one batch again."""
        images = samples.images.repeat_interleave(samples.each, 0)
        allocator, budget = self.plan.cells
        parts = []
        for first in range(0, self.batch, MATES):
            own = slice(first, first + MATES)
            parts += allocated_together(self.model, images[own], density[own], budget, allocator, **self.how)
        return variable.remember_padded(self.model, padded_cells(images, parts))


def for_each(seen: Seen, each: int) -> Seen:
    """What is seen of images, once for each of their questions."""
    return Seen._make(part.repeat_interleave(each, 0) if isinstance(part, Tensor) else part for part in seen)
