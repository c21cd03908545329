"""What `bench.ablations` compares: variants of training, how much of everything, and the questions they are asked.

reader      lessons before reading, from nothing
scorer      what a scorer learns beside regions, from nothing
positions   how cells say where they are: rotary (level, x, y); the same with x and y told beside the pixels; an
            embedding of the level and rotary (x, y); rotary (log rho, theta) about the gaze; from nothing
coverage    a scorer that the answers refine, and that pays for every region left empty; from weights
gap         a model that learns on what the relaxed tree shows or on what the hard one does, asked both ways; from
            weights
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from homunculus.allocation import DEFAULT
from homunculus.allocation.relaxed import coverage_penalty, hard_topk_mask
from homunculus.model.config import small, tiny
from homunculus.model.rotary import POSITIONS
from homunculus.model.vlm import CompactVLM, look
from homunculus.model.weights import SHIPPED
from homunculus.train.check import part, same_letters
from homunculus.train.curriculum import BEGIN, LEARN, Phase
from homunculus.train.joint import seen
from homunculus.train.loop import Settings
from homunculus.train.pool import Pool
from homunculus.train.recipe import FAMILIES, WITH_DRILLS, Recipe, Stage
from homunculus.train.samples import Samples
from homunculus.train.score import TOGETHER, predicted

PARTS = ("reader", "scorer", "positions", "coverage", "gap")
REGIONS = ("target", "secondary", "periphery")
COVERAGES = (0.0, 0.01, 0.1, 1.0)
SOFTNESS = (1.0, 0.3)  # temperatures of the relaxed tree; it is asked at the last


@dataclass(frozen=True)
class Variant:
    """One way to train, and the stages of it; without any, what it begins with is asked."""

    part: str
    stages: tuple[Stage, ...]
    positions: str = "level-x-y"

    @property
    def goes_on(self) -> bool:
        """Whether it begins with weights instead of nothing."""
        return self.part in ("coverage", "gap")


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    recipe: Recipe
    lesson: Settings
    read: Settings
    score: Settings
    joint: Settings
    budget: int = 96  # tokens of readers that learn from nothing
    asked: int = 273  # tokens of those that go on
    lessons: dict[str, Any] = field(default_factory=dict)
    reads: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    joints: dict[str, Any] = field(default_factory=dict)
    families: dict[str, float] = field(default_factory=lambda: dict(FAMILIES))  # those who go on are asked about
    images: int = 192  # that are asked about
    pages: int = 4096
    weights: Path | None = SHIPPED


def on_gpu() -> Scale:
    rest = Recipe(small(), (), families=WITH_DRILLS, renewed=0)
    return Scale(
        rest,
        lesson=Settings(500, rate=1e-3),
        read=Settings(800, rate=8e-4),
        score=Settings(1000, rate=1e-3),
        joint=Settings(400, rate=1e-4, warmup=50),
    )


def on_cpu() -> Scale:
    rest = Recipe(tiny(), (), families={"scenes": 1.0}, sizes=((128, 128),), renewed=0, readings=8)
    quick, few = Settings(3, rate=1e-3, warmup=1), {"tokens": 4 * 64, "each": 2}
    return Scale(
        rest,
        lesson=quick,
        read=quick,
        score=quick,
        joint=quick,
        budget=64,
        asked=48,
        lessons={"batch": 2, "budget": 64},
        reads=few,
        scores={"images": 2, "each": 2},
        joints=few,
        families={"scenes": 1.0},
        images=2,
        pages=2,
        weights=None,
    )


PRESETS = {"small": on_gpu, "tiny": on_cpu}


def variants(scale: Scale) -> dict[str, Variant]:
    """By name, what is compared."""
    phases = tuple(replace(phase, budgets={scale.budget: 1.0}) for phase in (BEGIN, LEARN))
    asked = Phase(1.0, {scale.asked: 1.0}, relevance={"predicted": 1.0})

    def reader(lesson: str | None, optimiser: str = "adamw") -> Variant:
        settings = [replace(one, optimiser=optimiser) for one in (scale.lesson, scale.read)]
        first = Stage("lesson", "pretrain", settings[0], options={"lesson": lesson, **scale.lessons})
        then = Stage("read", "read", settings[1], phases, scale.reads)
        return Variant("reader", (then,) if lesson is None else (first, then))

    def scorer(letters: float, names: float, optimiser: str = "adamw") -> Variant:
        settings, options = replace(scale.score, optimiser=optimiser), {"letters": letters, "names": names}
        return Variant("scorer", (Stage("score", "score", settings, options=options | scale.scores),))

    def joint(of: str, **options: Any) -> Variant:
        every = {"temperature": SOFTNESS, **scale.joints, **options}
        return Variant(of, (Stage("joint", "joint", scale.joint, (asked,), every),))

    return {
        "no lesson": reader(None),
        "bands": reader("bands"),
        "letters": reader("letters"),
        "letters and bands": reader("both"),
        "letters, Muon": reader("letters", "muon"),
        "regions alone": scorer(0.0, 0.0),
        "regions and letters": scorer(0.5, 0.0),
        "regions, letters and names": scorer(0.5, 0.5),
        "regions, letters and names, Muon": scorer(0.5, 0.5, "muon"),
        **{name: replace(reader("letters"), part="positions", positions=name) for name in POSITIONS},
        "scorer as it was": Variant("coverage", ()),
        **{f"coverage {weight:g}": joint("coverage", frozen="reader", coverage=weight) for weight in COVERAGES},
        "model as it was": Variant("gap", ()),
        "soft sight": joint("gap", frozen="nothing", sight="soft"),
        "hard sight": joint("gap", frozen="nothing", sight="hard"),
    }


# ---------------------------------------------------------------------------------------------------------- questions


class Questions:
    """Held-out images, each with `each` questions of which it is known what region they ask about."""

    def __init__(self, scale: Scale, device: str, workers: int = 0, each: int = 8) -> None:
        size = scale.recipe.sizes[0]
        even = dict.fromkeys(scale.families, 1.0)
        with Pool(
            even, split="val", size=size, capacity=scale.images, renewed=0, device=device, workers=workers
        ) as pool:
            pool.fill()
        number = [i % len(asked) for asked in pool.asked_of for i in range(each)]
        slot = torch.arange(scale.images).repeat_interleave(each)
        self.samples = pool.samples(slot.to(device), torch.tensor(number, device=device), each)
        self.regions = [str(question.region) for question in pool.asked(self.samples)]
        self.families = [pool.plan.record(i)[0] for i in range(scale.images) for _ in range(each)]
        self.budget = scale.asked

    def by_region(self, model: CompactVLM) -> dict[str, float]:
        """Answers right in every letter by region, for the hard top-k and for the one with a bonus for coverage; and
        the share of the 8 x 8 regions of an image that the top-k sees."""
        occupied = torch.cat([seen_share(predicted(model, some), self.budget) for some in self._parts()])
        found = {"topk: regions seen": occupied.mean().item()}
        for allocator in ("topk", "topk-coverage"):
            own = shares(self.right(model, allocator), self.regions, REGIONS)
            found |= {f"{allocator}: {name}": share for name, share in own.items()}
        return found

    def soft_and_hard(self, model: CompactVLM) -> dict[str, float]:
        """Answers right in every letter by family, asked through the relaxed tree and through the hard one, and what is
        lost from the one to the other."""
        families = sorted(set(self.families))
        soft, hard = (shares(self.right(model, soft=soft), self.families, families) for soft in (True, False))
        columns = {"soft": soft, "hard": hard, "lost": {name: soft[name] - hard[name] for name in soft}}
        return {f"{name}: {way}": own[name] for name in soft for way, own in columns.items()}

    def right(self, model: CompactVLM, allocator: str = DEFAULT, soft: bool = False) -> Bool[Tensor, " b"]:
        """Which answers are right in every letter; `soft` fades patches as the relaxed tree does in training."""
        found = []
        for some in self._parts():
            density = predicted(model, some)
            tokens = look(some.images, density, self.budget, allocator, leaf=model.config.leaf)
            if soft:
                patches, cells = seen(tokens, density, SOFTNESS[1], "soft")
                memory = model.decoder.remember(model.encoder(patches, cells), cells)
            else:
                memory = model.see(tokens)
            written = model.decoder.write(memory, some.question, some.answer.shape[1])
            found.append(same_letters(written.letters, some.answer))
        return torch.cat(found)

    def _parts(self) -> list[Samples]:
        count = len(self.samples.images)
        return [part(self.samples, first, min(first + TOGETHER, count)) for first in range(0, count, TOGETHER)]


def shares(right: Bool[Tensor, " b"], kinds: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """How many are right of all and of each kind; NaN of none.

    >>> shares(torch.tensor([True, False, True]), ["a", "a", "b"], ["a", "b", "c"])
    {'all': 0.6666666666666666, 'a': 0.5, 'b': 1.0, 'c': nan}
    """
    values = right.tolist()
    groups = {"all": values} | {
        name: [v for v, kind in zip(values, kinds, strict=True) if kind == name] for name in names
    }
    return {name: sum(own) / len(own) if own else float("nan") for name, own in groups.items()}


def seen_share(density: Float[Tensor, "b gh gw"], budget: int) -> Float[Tensor, " b"]:
    """The share of the 8 x 8 regions of an image in which one of its densest leaves lies.

    >>> seen_share(torch.eye(16)[None], 16)
    tensor([0.1250])
    """
    chosen = hard_topk_mask(density, min(budget, density[0].numel()))
    return 1 - coverage_penalty(chosen.to(density.dtype))
