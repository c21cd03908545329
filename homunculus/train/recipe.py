"""Whole recipes: which stages, for how long, on what. One command follows a recipe, stops when its time is up, and goes
on where it stopped when it is given again, with the same result as if it had not stopped: weights and all that is drawn
follow from the seed, and each stage begins with the weights that were saved after the one before, in bfloat16.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from homunculus.cache.keys import content_key
from homunculus.errors import ModelError
from homunculus.geometry import Size
from homunculus.model.config import Config, small, tiny
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_weights, read_about, save_weights, weights_in
from homunculus.train.check import Check
from homunculus.train.checkpoint import replace_file
from homunculus.train.compiling import compiled
from homunculus.train.curriculum import LEARN, MIX, READING, SETTLE, WHOLE, Phase
from homunculus.train.drills.typefaces import check_faces
from homunculus.train.joint import Joint
from homunculus.train.loop import Settings, fit
from homunculus.train.parts import InParts, own_parts
from homunculus.train.pool import Pool
from homunculus.train.pretrain import Pretraining
from homunculus.train.processes import share
from homunculus.train.proxy import GridReading
from homunculus.train.read import Reading
from homunculus.train.score import Scoring

FAMILIES = {"documents": 0.6, "scenes": 0.2, "scene-text": 0.2}
WITH_DRILLS = {"documents": 0.4, "drills": 0.3, "scenes": 0.15, "scene-text": 0.15}
MORE_DRILLS = {"documents": 0.3, "drills": 0.42, "scenes": 0.13, "scene-text": 0.15}
HARD = {"side": 4.0, "count": 3.0}  # questions about scenes, each one in sixteen of them, that are slow to learn


@dataclass(frozen=True)
class Stage:
    """A part of a recipe: what is trained, on how much."""

    name: str
    kind: str  # pretrain, score, read, proxy, joint
    settings: Settings
    phases: tuple[Phase, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of the stage's loss


@dataclass(frozen=True)
class Recipe:
    config: Config
    stages: tuple[Stage, ...]
    families: Mapping[str, float] = field(default_factory=lambda: dict(FAMILIES))
    sizes: tuple[Size, ...] = ((1024, 1024),)
    capacity: int = 4096  # images kept, of each size
    first: int | None = None  # of them at the first step; None is all
    renewed: int = 6  # that come at each step
    readings: int = 64  # texts of an image that can be read without being asked for
    longest_answer: int = 96  # letters; what is longer is cut
    spelled: float = 0.1  # words in questions that are given in letters
    faces: str | None = None  # a folder of more typefaces, for drills
    kinds: Mapping[str, float] = field(default_factory=dict)  # of questions, that are asked so many times as often
    seed: int = 0  # by default: another seed, other images
    continues: bool = False  # it begins from weights
    checked: int = 0  # held-out images that score and read stages are checked by
    check_every: int = 1000  # steps
    parts: int | None = None  # of which each has a batch at every step; None is one for each process


def _settle(steps: int) -> Stage:
    """The reader as it will be used; of every leaf 32 pages in each fifth step."""
    return Stage("settle", "read", Settings(steps, rate=5e-4, warmup=100), (SETTLE,), {"augment": 0.5})


def speedrun() -> Recipe:
    """A model from nothing: 24 minutes of one H200. The one that ships had 70, by earlier recipes."""
    return Recipe(
        small(),
        (
            Stage("letters", "pretrain", Settings(1300, rate=1e-3), options={"batch": 384, "augment": 0.34}),
            Stage("score", "score", Settings(3400, rate=1e-3), options={"augment": 0.5}),
            Stage("read", "read", Settings(3700, rate=8e-4, warmup=300), READING, {"augment": 0.5}),
            _settle(2500),
        ),
        families=WITH_DRILLS,
        kinds=HARD,
        first=1024,
        checked=128,
        check_every=1500,
    )


def longer() -> Recipe:
    """More of the same, from the weights of a speedrun."""
    return replace(
        speedrun(),
        stages=(
            Stage("score", "score", Settings(3000, rate=8e-4), options={"augment": 0.5}),
            Stage("read", "read", Settings(2000, rate=6e-4, warmup=200), (LEARN, MIX), {"augment": 0.5}),
            _settle(3000),
        ),
        families=MORE_DRILLS,
        check_every=2000,
        seed=1,
        continues=True,
    )


def together() -> Recipe:
    """Scorer and reader at once, from weights."""
    asked = Phase(1.0, {150: 1.0, 273: 4.0, 512: 1.0}, relevance={"predicted": 1.0})
    both = {"frozen": "nothing", "sight": "hard", "augment": 0.5}
    return replace(
        speedrun(),
        stages=(
            Stage("joint", "joint", Settings(600, rate=1e-4, warmup=100), (asked,), both),
            _settle(2500),
        ),
        seed=2,
        continues=True,
    )


def cpu() -> Recipe:
    """Everything there is, tiny: minutes on two cores."""
    quick = Settings(30, rate=2e-3, warmup=5)
    few = {"tokens": 8 * 96, "each": 2}
    first = replace(LEARN, budgets={64: 1.0})
    whole = replace(WHOLE, budgets={1024: 1.0}, relevance={"predicted": 1.0})
    asked = Phase(1.0, {64: 1.0}, relevance={"predicted": 1.0})
    return Recipe(
        tiny(),
        (
            Stage("pretrain", "pretrain", quick, options={"batch": 8, "budget": 100, "lesson": "both"}),
            Stage("score", "score", quick, options={"images": 2, "each": 4}),
            Stage("read", "read", quick, (first, replace(READING[1], budgets={64: 1.0, 100: 1.0})), few),
            Stage("aware", "joint", replace(quick, steps=5), (asked,), few),
            Stage("joint", "joint", replace(quick, steps=5), (asked,), few | {"frozen": "nothing"}),
            Stage("whole", "read", replace(quick, steps=5), (whole,), {"tokens": 2 * 1024, "each": 2}),
        ),
        sizes=((512, 512),),
        capacity=16,
        renewed=1,
    )


RECIPES: dict[str, Callable[[], Recipe]] = {"small": speedrun, "longer": longer, "together": together, "tiny": cpu}


def follow(
    recipe: Recipe,
    out: Path,
    *,
    device: str = "cpu",
    workers: int = 0,
    minutes: float | None = None,
    weights: Path | None = None,
    only: Sequence[str] = (),
    seed: int | None = None,
) -> bool:
    """Train by a recipe into a folder; True when all of it is done. Weights after each stage lie in `out/weights`.

    `weights` begins from those of an earlier run, with new optimisers; `only` takes some of the stages; the recipe's
    seed is taken where none is given. What is done is not done again.
    """
    seed = recipe.seed if seed is None else seed
    until = None if minutes is None else time.monotonic() + 60 * minutes
    if unknown := set(only) - {stage.name for stage in recipe.stages}:
        raise ModelError(f"no stage {', '.join(unknown)}: choose from {', '.join(s.name for s in recipe.stages)}")
    left = [s for s in recipe.stages if (not only or s.name in only) and not _is_done(out, s, seed)]
    if not left:
        return True
    torch.manual_seed(seed)
    begun = out / "weights" if weights_in(out / "weights").exists() else weights
    if begun is None and recipe.continues:
        raise ModelError("this recipe goes on from weights: give a folder of them with --weights")
    model = CompactVLM(recipe.config if begun is None else _as_begun(recipe.config, begun)).to(device)
    if begun is not None:
        load_weights(model, begun)
    _keep(out, recipe)
    with ExitStack() as stack:
        own, parts = own_parts(recipe.parts)
        each = -(-workers // (len(recipe.sizes) * len(own)))
        pools = [
            [stack.enter_context(make_pool(recipe, size, device, each, seed, part, parts)) for size in recipe.sizes]
            for part in own
        ]
        check = _check(recipe, device, workers) if recipe.checked else None
        for stage in left:
            torch.manual_seed(seed)  # also what a stage adds to the model follows from the seed
            loss, trained = stage_loss(stage, model, pools[0], _before(recipe, stage))
            step = loss if len(pools) == 1 else InParts(loss, pools)
            with compiled(loss.parts, loss.fixed, model.device):
                outcome = fit(
                    loss if isinstance(loss, nn.Module) else model,
                    step,
                    replace(stage.settings, seed=seed),
                    out,
                    name=stage.name,
                    trained=trained,
                    begin=step.begin,
                    evaluate=_evaluation(check, stage, model, loss),
                    evaluate_every=recipe.check_every,
                    minutes=None if until is None else (until - time.monotonic()) / 60,
                )
            if not outcome.finished:
                return False
            if share()[0] == 0:
                save_weights(model, out / "weights", {"stage": stage.name})
                _done(out, stage).write_text(_as_done(stage, seed))
            for value in model.state_dict().values():  # what was saved, as after a kill here
                value.copy_(value.bfloat16())
    return True


def _as_begun(config: Config, weights: Path) -> Config:
    """The config of a recipe that goes on from weights: its cells say where they are as they did before."""
    return replace(config, positions=Config.from_dict(read_about(weights)["config"]).positions)


def _check(recipe: Recipe, device: str, workers: int) -> Check:
    return Check(recipe.families, images=recipe.checked, size=recipe.sizes[0], device=device, workers=workers)


def _evaluation(
    check: Check | None, stage: Stage, model: CompactVLM, loss: Any
) -> Callable[[int], dict[str, float]] | None:
    """What is measured on held-out images now and then."""
    if check is None:
        return None
    ways = {
        "pretrain": lambda _: check.letters(loss),
        "score": lambda _: check.hits(model),
        "read": lambda _: check.answers(model),
        "joint": lambda _: check.hits(model) | check.answers(model),
        "proxy": lambda _: {},  # it reads pictures, and is asked by bench/proxy.py
    }
    return ways[stage.kind]


def _done(out: Path, stage: Stage) -> Path:
    return out / f"{stage.name}.done"


def _as_done(stage: Stage, seed: int) -> str:
    settings = stage.settings
    return f"{stage.kind}: {settings.steps} steps at {settings.rate}, seed {seed}"


def _is_done(out: Path, stage: Stage, seed: int) -> bool:
    """Whether this stage is done; one of the same name that another recipe or seed did is refused."""
    mark = _done(out, stage)
    said = mark.read_text() if mark.exists() else None
    if said and said != _as_done(stage, seed):
        raise ModelError(f"{out} has '{stage.name}' of another recipe or seed ({said}): write elsewhere with --out")
    return said is not None


def _keep(out: Path, recipe: Recipe) -> None:
    """A run goes on with the images it began with."""
    if recipe.faces and not recipe.families.get("drills"):
        raise ModelError("only drills are set in other typefaces, and this recipe has none: leave out --faces")
    weights = json.dumps([dict(recipe.families), dict(recipe.kinds)], sort_keys=True)
    key = content_key(weights, check_faces(recipe.faces) if recipe.faces else "")
    known = out / "images.key"
    if known.exists() and known.read_text() != key:
        raise ModelError(
            f"{out} was begun with other questions or typefaces: give the same --faces, or write elsewhere"
        )
    if not known.exists() and share()[0] == 0:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(known, lambda beside: beside.write_text(key))


def _before(recipe: Recipe, stage: Stage) -> int:
    """The steps of all stages before this one."""
    return sum(other.settings.steps for other in recipe.stages[: recipe.stages.index(stage)])


def make_pool(
    recipe: Recipe,
    size: Size,
    device: str = "cpu",
    workers: int = 0,
    seed: int = 0,
    part: int = 0,
    parts: int = 1,
    capacity: int | None = None,
) -> Pool:
    """Images of one size, for all stages: each goes on where the one before it stopped."""
    return Pool(
        recipe.families,
        size=size,
        capacity=capacity or recipe.capacity,
        device=device,
        workers=workers,
        renewed=recipe.renewed,
        first=recipe.first if capacity is None else None,
        readings=recipe.readings,
        longest_answer=recipe.longest_answer,
        spelled=recipe.spelled,
        faces=recipe.faces,
        kinds=recipe.kinds,
        seed=seed,
        part=part,
        parts=parts,
    )


def stage_loss(stage: Stage, model: CompactVLM, pools: Sequence[Pool], offset: int) -> tuple[Any, list[Any]]:
    """What a stage minimises, and what it may change."""
    steps, options = stage.settings.steps, {**stage.options, "offset": offset}
    if stage.kind == "pretrain":
        loss = Pretraining(model, pools, **options)
        return loss, [*model.encoder.parameters(), *loss.letters.parameters(), *loss.bands.parameters()]
    if stage.kind == "score":
        scoring = Scoring(model, pools, **options)
        return scoring, [*model.scorer.parameters(), *scoring.letters.parameters()]
    if stage.kind == "read":
        reader = [*model.encoder.parameters(), *model.decoder.parameters()]
        return Reading(model, pools, stage.phases, steps, **options), reader
    if stage.kind == "proxy":
        reader = [*model.encoder.parameters(), *model.decoder.parameters()]
        return GridReading(model, pools, stage.phases, steps, **options), reader
    if stage.kind == "joint":
        joint = Joint(model, pools, stage.phases, steps, **options)
        return joint, joint.trained()
    raise ModelError(f"no kind of stage '{stage.kind}': choose pretrain, score, read, joint or proxy")
