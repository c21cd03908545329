"""What helps training: lessons before reading, letters and names for the scorer, Muon or AdamW, how cells say where
they are, paying for coverage, and seeing softly while learning. What is compared: bench/ablation_variants.py.

    python -m bench.ablations --workers 14 --minutes 9   some twenty-five minutes of a GPU: give it until it is done
    python -m bench.ablations --only positions,gap       some of the parts
    python -m bench.ablations --preset tiny              a minute on a CPU: tries all of it, measures nothing

All variants see the same pages, draw the same samples from them and are asked the same held-out questions. A reader
learns one lesson (or none) and then to read on true regions of few tokens; a scorer learns to find; what is refined
begins with the shipped weights, or those of --weights. Everything is kept under --out: the same command goes on where
it stopped, and ends with a table in OUT/ablations.md. `homunculus report --training OUT/ablations.json` shows it too.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench import plainly
from bench.ablation_variants import PARTS, PRESETS, Questions, Scale, Variant, variants
from bench.timing import announce, where
from homunculus.cli.output import write_whole
from homunculus.eval.surroundings import surroundings
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_weights
from homunculus.report.trained import read_training
from homunculus.train.check import Check
from homunculus.train.compiling import compiled
from homunculus.train.journal import read_journal
from homunculus.train.loop import fit
from homunculus.train.recipe import make_pool, stage_loss

ASKING = 30.0  # seconds that are kept for asking, once a variant has learned


class Exam:
    """What variants are asked, by part; questions are drawn when the first of a part that needs them has learned."""

    def __init__(self, scale: Scale, device: str, workers: int) -> None:
        self.budget = scale.budget
        families, size = scale.recipe.families, scale.recipe.sizes[0]
        self.check = cache(lambda: Check(families, images=scale.images, size=size, device=device, workers=workers))
        self.questions = cache(lambda: Questions(scale, device, workers))

    @torch.no_grad()
    def __call__(self, part: str, model: CompactVLM) -> dict[str, float]:
        """What a model answers right."""
        with _fast(model.device):
            if part == "scorer":
                return self.check().hits(model)
            if part == "coverage":
                return self.questions().by_region(model)
            if part == "gap":
                return self.questions().soft_and_hard(model)
            return self.check().answers(model, self.budget, ("true",))


def begun(variant: Variant, scale: Scale, device: torch.device) -> CompactVLM:
    """The model a variant begins with: the same weights for all of a part, but for what only some have."""
    torch.manual_seed(0)
    model = CompactVLM(replace(scale.recipe.config, positions=variant.positions)).to(device)
    if variant.goes_on and scale.weights is not None:
        load_weights(model, scale.weights)
    return model


def train(
    variant: Variant,
    scale: Scale,
    out: Path,
    pool: Any,
    exam: Callable[[str, CompactVLM], dict[str, float]],
    until: float,
) -> dict[str, float] | None:
    """Train one and ask it: what it answers right, and the seconds that training took. None where time ran out."""
    model = begun(variant, scale, pool.device)
    seconds = 0.0
    for stage in variant.stages:
        loss, trained = stage_loss(stage, model, [pool], 0)
        left = None if until == math.inf else (until - ASKING - time.monotonic()) / 60
        with compiled(loss.parts, loss.fixed, model.device):
            whole = loss if isinstance(loss, nn.Module) else model
            how = {"trained": trained, "begin": loss.begin, "minutes": left}
            outcome = fit(whole, loss, stage.settings, out, name=stage.name, **how)
        if not outcome.finished:
            return None
        seconds += outcome.seconds
    return {"seconds": seconds} | exam(variant.part, model)


def _fast(device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table for each part, in the order of the parts.

    >>> print(to_markdown([{"variant": "bands", "part": "reader", "steps": 9, "seconds": 1.5, "scenes: true": 0.5}]))
    | reader | steps | seconds | scenes: true |
    |---|---|---|---|
    | bands | 9 | 2 | 50.0 % |
    <BLANKLINE>
    """
    lines: list[str] = []
    for part in PARTS:
        own = [row for row in rows if row["part"] == part]
        if not own:
            continue
        names = [name for name in own[0] if ":" in name]
        lines += ["", f"| {part} | steps | seconds | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
        for row in own:
            shares = " | ".join("none" if math.isnan(row[name]) else f"{100 * row[name]:.1f} %" for name in names)
            lines.append(f"| {row['variant']} | {row['steps']} | {row['seconds']:.0f} | {shares} |")
    return "\n".join(lines[1:]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--out", type=Path, default=Path("out/ablations"))
    parser.add_argument("--only", type=parts_of, default=PARTS, help=f"of {', '.join(PARTS)}, with commas between")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw images")
    parser.add_argument("--minutes", type=float, help="stop by then; the same command goes on")
    parser.add_argument("--weights", type=Path, help="that coverage and gap begin with; by default the shipped ones")
    options = parser.parse_args(arguments)
    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = announce(device, width=120)
    scale = PRESETS[options.preset]()
    if options.weights is not None:
        scale = replace(scale, weights=options.weights)
    wanted = {name: one for name, one in variants(scale).items() if one.part in options.only}
    file, began = options.out / "ablations.json", time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = read_training(file) if file.exists() else []
    left = {name: one for name, one in wanted.items() if name not in {row["variant"] for row in rows}}
    if left:
        exam = Exam(scale, device, options.workers)
        with make_pool(scale.recipe, scale.recipe.sizes[0], device, options.workers, capacity=scale.pages) as pool:
            for number, (name, variant) in enumerate(left.items()):
                late = number > 0 and time.monotonic() + ASKING > until  # the first has its turn, so that all come
                folder = options.out / name.replace(",", "").replace(" ", "-")
                found = None if late else train(variant, scale, folder, pool, exam, until)
                if found is None:
                    console.print(f"{name}: out of time, the same command goes on from there")
                    break
                steps = sum(stage.settings.steps for stage in variant.stages)
                rows.append({"variant": name, "part": variant.part, "steps": steps} | found | surroundings(pool.device))
                write_whole(file, json.dumps(rows, indent=1).encode())
                told = f"loss {last_loss(folder, variant):.3f}" if variant.stages else "nothing to learn"
                console.print(f"{name}: {told}, {time.monotonic() - began:.0f} s so far")
    text = f"{where(device)}\n\n{to_markdown(rows)}"
    (options.out / "ablations.md").write_text(text)
    print(text)


def parts_of(text: str) -> tuple[str, ...]:
    """Parts by name, with commas between.

    >>> parts_of("gap,reader")
    ('gap', 'reader')
    """
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part '{unknown[0]}': choose from {', '.join(PARTS)}")
    return names


def last_loss(folder: Path, variant: Variant) -> float:
    return read_journal(folder / f"{variant.stages[-1].name}.jsonl")[-1]["loss"]


if __name__ == "__main__":
    plainly.run(main)
