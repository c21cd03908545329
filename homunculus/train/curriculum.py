"""What a reader is shown, step by step: first short texts on few tokens, then everything.

A reader that met all allocators and wrong relevance from the start had hardly begun to read when one that was shown
true regions first could; and a method whose tokens were never seen in training scores near zero. So: learn to read,
then mix. All images of a step share an allocator and a budget, so that a step is one batch.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Relevance = Literal["true", "corrupted", "predicted"]
T = TypeVar("T")

# Every method that takes a density, or none, and waits for nothing; none that segments or looks at pixels. The default
# comes as often as any other that it is compared with.
ALL = {
    "foveated-pyramid": 3.0,
    "topk": 3.0,
    "pyramid": 3.0,
    "log-polar-rings": 3.0,
    "stratified": 3.0,
    "uniform": 1.0,
    "random": 0.5,
    "v1": 0.75,
    "acuity-bins": 0.75,
    "scene-aware": 0.75,
    "vortex": 0.5,
    "log-polar-bins": 0.75,
    "pseudo-log-polar": 0.75,
    "topk-coverage": 0.75,
    "adaptive-stratified": 0.75,
    "views": 1.0,
}


@dataclass(frozen=True)
class Phase:
    """A part of the steps, and what is drawn in it, each by its weight."""

    share: float
    budgets: Mapping[int, float]
    allocators: Mapping[str, float] = field(default_factory=lambda: {"foveated-pyramid": 1.0})
    relevance: Mapping[Relevance, float] = field(default_factory=lambda: {"true": 1.0})
    untold: float = 0.2  # samples whose encoder is not told how relevant its cells were found
    readings: float = 0.0  # steps in which texts are read that only relevance points at
    reach: float = 1.0  # of these the shortest, this share of them
    enlarged: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})  # how many times, before cells are cut
    aside: "Phase | None" = None  # shown instead in its share of these steps


@dataclass(frozen=True)
class Showing:
    """What one step shows."""

    budget: int
    allocator: str
    relevance: Relevance
    untold: float
    readings: float  # the share of texts, the shortest, that are read instead of questions; 0: questions
    enlarged: int = 1


SIZES = {1: 0.85, 2: 0.1, 4: 0.05}

BEGIN = Phase(0.1, {96: 1.0}, readings=1.0, reach=0.3)
LEARN = Phase(0.25, {96: 1.0}, readings=0.8)
MIX = Phase(
    0.45,
    {100: 1.0, 150: 1.0, 273: 6.0, 512: 1.0},
    ALL,
    {"true": 0.25, "corrupted": 0.5, "predicted": 0.25},
    readings=0.2,
    enlarged=SIZES,
)
WHOLE = Phase(  # every leaf; often nothing told, as by others
    0.2, {4096: 1.0}, {"uniform": 1.0}, {"corrupted": 0.3, "predicted": 0.7}, untold=0.4
)
SETTLE = Phase(  # as it will be used; every leaf in between: by themselves they made a reader unlearn 273 cells
    1.0,
    {150: 1.0, 273: 8.0, 512: 1.0},
    ALL,
    {"corrupted": 0.2, "predicted": 0.8},
    untold=0.1,
    readings=0.2,
    enlarged=SIZES,
    aside=WHOLE,
)
READING = (BEGIN, LEARN, MIX)


def showing(phases: Sequence[Phase], steps: int, step: int, seed: int = 0) -> Showing:
    """What a step of so many shows: the same whenever it is asked.

    >>> showing(READING, 1000, 0).budget, showing([WHOLE], 10, 5).untold
    (96, 0.4)
    """
    place = (step + 0.5) / steps * sum(phase.share for phase in phases)
    phase = phases[-1]
    for candidate in phases:
        if place < candidate.share:
            phase = candidate
            break
        place -= candidate.share
    dice = random.Random(f"{seed} {step}")
    if phase.aside is not None and dice.random() < phase.aside.share:
        phase = phase.aside
    budget, allocator = _drawn(phase.budgets, dice), _drawn(phase.allocators, dice)
    relevance = _drawn(phase.relevance, dice)
    reads = dice.random() < phase.readings
    enlarged = _drawn(phase.enlarged, dice)
    if reads:  # nothing but relevance says what is meant
        return Showing(budget, allocator, "true", 0.0, phase.reach, enlarged)
    return Showing(budget, allocator, relevance, phase.untold, 0.0, enlarged)


def _drawn(weights: Mapping[T, float], dice: random.Random) -> T:
    return dice.choices(list(weights), list(weights.values()))[0]
