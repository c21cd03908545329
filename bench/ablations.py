"""What helps training: lessons before reading, letters and names for the scorer, Muon or AdamW; each from nothing.

    python -m bench.ablations --workers 14            twelve minutes of a GPU; or --only reader, --only scorer
    python -m bench.ablations --preset tiny           seconds on a CPU: tries all of it, measures nothing

All variants see the same pages, draw the same samples from them and are asked the same held-out questions. A reader
learns one lesson (or none) and then to read on true regions of few tokens; a scorer learns to find. Everything is kept
under --out: the same command goes on where it stopped, and ends with a table in OUT/ablations.md.
"""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.timing import announce, where
from homunculus.model.config import small, tiny
from homunculus.model.vlm import CompactVLM
from homunculus.train.check import Check
from homunculus.train.compiling import compiled
from homunculus.train.curriculum import BEGIN, LEARN
from homunculus.train.journal import read_journal
from homunculus.train.loop import Settings, fit
from homunculus.train.recipe import WITH_DRILLS, Recipe, Stage, make_pool, stage_loss


@dataclass(frozen=True)
class Variant:
    """One way to train, and the stages of it."""

    part: str  # reader, scorer
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    recipe: Recipe
    lesson: Settings
    read: Settings
    score: Settings
    budget: int = 96
    lessons: dict[str, Any] = field(default_factory=dict)
    reads: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    images: int = 192  # that are asked about
    pages: int = 4096


def on_gpu() -> Scale:
    rest = Recipe(small(), (), families=WITH_DRILLS, renewed=0)
    return Scale(rest, Settings(500, rate=1e-3), Settings(800, rate=8e-4), Settings(1000, rate=1e-3))


def on_cpu() -> Scale:
    rest = Recipe(tiny(), (), families={"scenes": 1.0}, sizes=((128, 128),), renewed=0, readings=8)
    quick, few = Settings(3, rate=1e-3, warmup=1), {"tokens": 4 * 64, "each": 2}
    lessons, scores = {"batch": 2, "budget": 64}, {"images": 2, "each": 2}
    return Scale(rest, quick, quick, quick, 64, lessons, few, scores, images=2, pages=2)


PRESETS = {"small": on_gpu, "tiny": on_cpu}


def variants(scale: Scale) -> dict[str, Variant]:
    """By name, what is compared."""
    phases = tuple(replace(phase, budgets={scale.budget: 1.0}) for phase in (BEGIN, LEARN))

    def reader(lesson: str | None, optimiser: str = "adamw") -> Variant:
        settings = [replace(one, optimiser=optimiser) for one in (scale.lesson, scale.read)]
        first = Stage("lesson", "pretrain", settings[0], options={"lesson": lesson, **scale.lessons})
        then = Stage("read", "read", settings[1], phases, scale.reads)
        return Variant("reader", (then,) if lesson is None else (first, then))

    def scorer(letters: float, names: float, optimiser: str = "adamw") -> Variant:
        settings, options = replace(scale.score, optimiser=optimiser), {"letters": letters, "names": names}
        return Variant("scorer", (Stage("score", "score", settings, options=options | scale.scores),))

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
    }


def train(variant: Variant, scale: Scale, out: Path, pool: Any, check: Check) -> dict[str, float]:
    """Train one from nothing and ask it; what it answers right, and the seconds that took."""
    torch.manual_seed(0)
    model = CompactVLM(scale.recipe.config).to(pool.device)
    seconds = 0.0
    for stage in variant.stages:
        loss, trained = stage_loss(stage, model, [pool], 0)
        with compiled(loss.parts, loss.fixed, model.device):
            whole = loss if isinstance(loss, nn.Module) else model
            outcome = fit(whole, loss, stage.settings, out, name=stage.name, trained=trained, begin=loss.begin)
        seconds += outcome.seconds
    with torch.no_grad(), _fast(pool.device):
        found = check.hits(model) if variant.part == "scorer" else check.answers(model, scale.budget, ("true",))
    return {"seconds": seconds} | found


def _fast(device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table for each part.

    >>> print(to_markdown([{"variant": "bands", "part": "reader", "steps": 9, "seconds": 1.5, "scenes: true": 0.5}]))
    | reader | steps | seconds | scenes: true |
    |---|---|---|---|
    | bands | 9 | 2 | 50.0 % |
    <BLANKLINE>
    """
    lines: list[str] = []
    for part in dict.fromkeys(row["part"] for row in rows):
        own = [row for row in rows if row["part"] == part]
        names = [name for name in own[0] if ":" in name]
        lines += ["", f"| {part} | steps | seconds | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
        for row in own:
            shares = " | ".join(f"{100 * row[name]:.1f} %" for name in names)
            lines.append(f"| {row['variant']} | {row['steps']} | {row['seconds']:.0f} | {shares} |")
    return "\n".join(lines[1:]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--out", type=Path, default=Path("out/ablations"))
    parser.add_argument("--only", choices=["reader", "scorer"])
    parser.add_argument("--workers", type=int, default=0, help="processes that draw images")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = announce(device, width=120)
    scale = PRESETS[options.preset]()
    wanted = {n: v for n, v in variants(scale).items() if options.only in (None, v.part)}
    file, began = options.out / "ablations.json", time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = json.loads(file.read_text()) if file.exists() else []
    left = {name: one for name, one in wanted.items() if name not in {row["variant"] for row in rows}}
    size = scale.recipe.sizes[0]
    if left:
        check = Check(scale.recipe.families, images=scale.images, size=size, device=device, workers=options.workers)
        with make_pool(scale.recipe, size, device, options.workers, capacity=scale.pages) as pool:
            for name, variant in left.items():
                folder = options.out / name.replace(",", "").replace(" ", "-")
                found = train(variant, scale, folder, pool, check)
                steps = sum(stage.settings.steps for stage in variant.stages)
                rows.append({"variant": name, "part": variant.part, "steps": steps} | found)
                file.write_text(json.dumps(rows, indent=1))
                loss = read_journal(folder / f"{variant.stages[-1].name}.jsonl")[-1]["loss"]
                console.print(f"{name}: loss {loss:.3f}, {time.monotonic() - began:.0f} s so far")
    text = f"{where(device)}\n\n{to_markdown(rows)}"
    (options.out / "ablations.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
