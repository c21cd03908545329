"""What a pretrained tower might make of our tokens, tried on a reader of ours that only ever saw plain pictures.

    python -m bench.proxy --weights DIR      train it, five minutes of a GPU; DIR: a reader trained on cells, to compare
    python -m bench.proxy --preset tiny      a minute on a CPU: tries all of it, measures nothing

It learns letters and then answers from windows and scaled pages as plain grids (train/proxy.py), is asked about pages
nobody trained on in ways it never saw (eval/proxy.py), and then again after a little training on each way's own tokens,
equally many samples for each. `grid` is trained further as well: it says what more training alone is worth. The scorer
that predicts relevance, and the reader that was trained on cells of all kinds, are those of `--weights`.

All is kept under --out, and the same command goes on where it stopped: training, then what has not been asked yet.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench import plainly
from bench.timing import announce, where
from homunculus.cache.keys import content_key
from homunculus.eval.lines import append_rows, read_rows
from homunculus.eval.proxy import BLIND, ORDINARY, WAYS, Shower, exact_answers, ordinary_memory
from homunculus.eval.statistics import interval
from homunculus.model.config import small, tiny
from homunculus.model.decoder import Memory
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_model, load_weights, save_weights, weights_in
from homunculus.train.compiling import compiled
from homunculus.train.loop import Settings, fit
from homunculus.train.pool import Pool
from homunculus.train.proxy import LETTERS, PAGES, PICTURES, on_way
from homunculus.train.recipe import Recipe, Stage, follow, make_pool, stage_loss
from homunculus.train.renderers import READING
from homunculus.train.samples import Samples
from homunculus.train.score import predicted, truth_of

FAMILIES = {"documents": 0.75, "scene-text": 0.25}
READERS = {"pictures": "pictures only", "further": "and trained further on it", "cells": "trained on cells"}
TUNED = tuple(way for way in WAYS if way != "whole")
SPLIT = "test-iid"

Row = dict[str, Any]
ROW = {"mark", "reader", "way", "relevance", "tokens", "exact"}


@dataclass(frozen=True)
class Plan:
    """How much is trained and asked."""

    recipe: Recipe
    further: Settings  # on each way's tokens
    options: dict[str, int] = field(default_factory=lambda: {"tokens": 64 * 273, "each": 4})  # of these steps
    pages: int = 1024  # that they are about
    budget: int = 273
    images: int = 384  # that are asked about, of both families together
    each: int = 4  # questions of each


def on_gpu(length: float) -> Plan:
    """A model of the size that ships: some six minutes of an H200 at length 1."""
    stages = (
        Stage("letters", "pretrain", Settings(_steps(500, length), rate=1e-3), options={"windows": LETTERS}),
        Stage("read", "proxy", Settings(_steps(1800, length), rate=8e-4), PICTURES),
        Stage("pages", "proxy", Settings(_steps(100, length), rate=2e-4, warmup=20), (PAGES,), {"tokens": 128 * 4096}),
    )
    recipe = Recipe(small(), stages, families=FAMILIES, first=1024)
    return Plan(recipe, Settings(_steps(100, length), rate=2e-4, warmup=20))


def on_cpu(length: float) -> Plan:
    """Everything, tiny."""
    quick = Settings(_steps(6, length), rate=2e-3, warmup=2)
    few = {"tokens": 4 * 64, "each": 2}
    phases = tuple(replace(phase, budgets={64: 1.0}) for phase in PICTURES)
    pages = (replace(PAGES, budgets={1024: 0.6, 64: 0.4}),)
    stages = (
        Stage("letters", "pretrain", quick, options={"windows": ((8, 8), (10, 6)), "batch": 4}),
        Stage("read", "proxy", quick, phases, few),
        Stage("pages", "proxy", quick, pages, few),
    )
    recipe = Recipe(tiny(), stages, families=FAMILIES, sizes=((512, 512),), capacity=6, renewed=1)
    return Plan(recipe, replace(quick, steps=_steps(2, length)), few, pages=4, budget=64, images=6, each=2)


PRESETS = {"small": on_gpu, "tiny": on_cpu}


def _steps(steps: int, length: float) -> int:
    return max(1, round(steps * length))


# ------------------------------------------------------------------------------------------------------------- training


def train_further(
    plan: Plan, ways: Sequence[str], out: Path, *, device: str, workers: int, minutes: float | None
) -> bool:
    """From the same weights once for each way, on that way's tokens; True when all are done."""
    until = None if minutes is None else time.monotonic() + 60 * minutes
    left = [way for way in ways if not weights_in(_further(out, way)).exists()]
    if not left:
        return True
    still = replace(plan.recipe, renewed=0, first=None)  # all ways see the same pages
    model = load_model(out / "weights", device)
    with make_pool(still, plan.recipe.sizes[0], device, workers, capacity=plan.pages) as pool:
        for way in left:
            load_weights(model, out / "weights")
            stage = Stage(f"further-{way}", "proxy", plan.further, (on_way(way, plan.budget),), plan.options)
            loss, trained = stage_loss(stage, model, [pool], 0)
            minutes_left = None if until is None else (until - time.monotonic()) / 60
            with compiled(loss.parts, loss.fixed, model.device):
                how: dict[str, Any] = {"name": stage.name, "trained": trained, "begin": loss.begin}
                outcome = fit(model, loss, stage.settings, out, minutes=minutes_left, **how)
            if not outcome.finished:
                return False
            save_weights(model, _further(out, way), {"stage": stage.name})
    return True


def _further(out: Path, way: str) -> Path:
    return out / f"weights-{way}"


# --------------------------------------------------------------------------------------------------------------- asking


class HeldOut:
    """Questions about pages of a split of their own, drawn when they are first needed."""

    def __init__(self, plan: Plan, device: str, workers: int, ordinary: CompactVLM | None) -> None:
        self.plan, self.device, self.workers, self.ordinary = plan, device, workers, ordinary

    @cached_property
    def pool(self) -> Pool:
        recipe = self.plan.recipe
        even = dict.fromkeys(recipe.families, 1.0)
        how: dict[str, Any] = {"split": SPLIT, "device": self.device, "workers": self.workers}
        with Pool(even, size=recipe.sizes[0], capacity=self.plan.images, renewed=0, **how) as pool:
            pool.fill()
        return pool

    @cached_property
    def samples(self) -> Samples:
        asked = [sum(one.kind != READING for one in own) for own in self.pool.asked_of]
        number = torch.tensor([i % count for count in asked for i in range(self.plan.each)])
        slot = torch.arange(self.plan.images).repeat_interleave(self.plan.each)
        return self.pool.samples(slot.to(self.device), number.to(self.device), self.plan.each)

    @cached_property
    def answers(self) -> list[tuple[str, ...]]:
        return [question.answers for question in self.pool.asked(self.samples)]

    @cached_property
    def families(self) -> list[str]:
        """Of every question."""
        return [self.pool.plan.record(slot)[0] for slot in self.samples.slot.tolist()]

    @cached_property
    def densities(self) -> dict[str, Tensor]:
        """By how relevance is known."""
        (width, height), leaf = self.plan.recipe.sizes[0], self.plan.recipe.config.leaf
        found = {"true": truth_of(self.samples, (width // leaf, height // leaf))}
        if self.ordinary is not None:
            with torch.no_grad(), _fast(self.device):
                found["predicted"] = predicted(self.ordinary, self.samples).float()
        return found


class Asking(NamedTuple):
    """One figure of the table: which reader is asked, in which way, by which relevance."""

    reader: str
    way: str
    relevance: str
    weights: Path
    scorer: Path | None = None  # the weights that predict relevance

    def mark(self, plan: Plan) -> str:
        """What the figure depends on."""
        folders = [weights_in(folder) for folder in (self.weights, self.scorer) if folder is not None]
        shards = [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.safetensors"))]
        asked = plan.budget, plan.images, plan.each, plan.recipe.sizes[0], SPLIT
        return content_key(self.reader, self.way, self.relevance, repr(asked), *shards)


def askings(out: Path, ways: Sequence[str], further: Sequence[str], ordinary: Path | None) -> Iterator[Asking]:
    """All of them; ways that do not depend on relevance are asked once."""
    for relevance, scorer in (("true", None), ("predicted", ordinary)):
        for way in ways:
            if relevance == "predicted" and (scorer is None or way in BLIND):
                continue
            yield Asking("pictures", way, relevance, out / "weights", scorer)
            if way in further:
                yield Asking("further", way, relevance, _further(out, way), scorer)
            if way in ORDINARY and ordinary is not None:
                yield Asking("cells", way, relevance, ordinary, scorer)


def ask(asking: Asking, plan: Plan, held: HeldOut) -> Row:
    """Which questions a reader answers exactly, by family, with the image of each."""
    model = load_model(asking.weights, held.device)
    counts: list[int] = []

    def remember(images: Tensor, density: Tensor) -> Memory:
        if asking.reader == "cells":
            memory = ordinary_memory(model, asking.way, images, density, plan.budget)
        else:
            memory = Shower(model, plan.budget).memory(asking.way, images, density)
        counts.append(memory.counts[0])
        return memory

    samples, density = held.samples, held.densities[asking.relevance]
    with _fast(held.device):
        exact = exact_answers(model, remember, samples.images, samples.question, density, held.answers)
    found: dict[str, list[tuple[float, int]]] = {family: [] for family in plan.recipe.families}
    for family, right, slot in zip(held.families, exact, samples.slot.tolist(), strict=True):
        found[family].append((right, slot))
    told = {"reader": asking.reader, "way": asking.way, "relevance": asking.relevance, "tokens": counts[0]}
    return told | {"exact": found, "mark": asking.mark(plan)}


def _fast(device: str) -> Any:
    return torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda")


# ---------------------------------------------------------------------------------------------------------------- table


def to_markdown(rows: Sequence[Row]) -> str:
    """A table for each relevance and family: a line for each way, a column for each reader.

    >>> row = {"reader": "pictures", "way": "pre", "relevance": "true", "tokens": 273}
    >>> print(to_markdown([row | {"exact": {"documents": [(1.0, 0), (0.0, 1)]}}]).splitlines()[-1])
    | pre | 273 | 50.0 [0.0, 100.0] |  |  |
    """
    lines: list[str] = []
    for relevance in dict.fromkeys(row["relevance"] for row in rows):
        for family in rows[0]["exact"]:
            count = len(rows[0]["exact"][family])
            lines += ["", f"{family}, {relevance} relevance, {count} questions: exact answers, % [95 %]", ""]
            lines += [f"| way | tokens | {' | '.join(READERS.values())} |", "|---|---|---|---|---|"]
            for way in dict.fromkeys(row["way"] for row in rows):
                own = {row["reader"]: row for row in rows if row["way"] == way and _counts(row, relevance)}
                if own:
                    cells = [_cell(own[reader]["exact"][family]) if reader in own else "" for reader in READERS]
                    lines.append(f"| {way} | {own['pictures']['tokens']} | {' | '.join(cells)} |")
    return "\n".join(lines[1:]) + "\n"


def is_row(row: Row) -> bool:
    """Whether a line of a file is one of these.

    >>> is_row({"mark": "m"}), is_row(dict.fromkeys(ROW, "") | {"exact": {}})
    (False, True)
    """
    return row.keys() >= ROW and isinstance(row["exact"], dict)


def _counts(row: Row, relevance: str) -> bool:
    return row["relevance"] == relevance or row["way"] in BLIND


def _cell(exact: Sequence[tuple[float, int]]) -> str:
    if len({image for _, image in exact}) < 2:
        return "?"
    found = interval(*zip(*exact, strict=True))
    return f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


# ----------------------------------------------------------------------------------------------------------------- main


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--out", type=Path, default=Path("out/proxy"))
    parser.add_argument("--weights", type=Path, help="a reader trained on cells, with its scorer")
    parser.add_argument("--minutes", type=float, help="of training in this call; the same command goes on")
    parser.add_argument("--length", type=float, default=1.0, help="so many times the steps")
    parser.add_argument("--images", type=int, help="held-out pages that are asked about")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="that are asked in")
    parser.add_argument("--further", nargs="*", default=list(TUNED), choices=list(WAYS), help="that are trained on")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw pages")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = announce(device, width=120)
    plan = PRESETS[options.preset](options.length)
    plan = replace(plan, images=options.images or plan.images)
    further = [way for way in options.further if way in options.ways]
    began = time.monotonic()
    finished = follow(plan.recipe, options.out, device=device, workers=options.workers, minutes=options.minutes)
    if finished:
        left = None if options.minutes is None else options.minutes - (time.monotonic() - began) / 60
        how: dict[str, Any] = {"device": device, "workers": options.workers, "minutes": left}
        finished = train_further(plan, further, options.out, **how)
    if not finished:
        console.print("out of time: the same command goes on from here")
        return
    ordinary = None if options.weights is None else load_model(options.weights, device)
    held = HeldOut(plan, device, options.workers, ordinary)
    file = options.out / "asked.jsonl"
    known = {row["mark"]: row for row in read_rows(file, is_row)}
    rows = []
    for asking in askings(options.out, options.ways, further, options.weights):
        row = known.get(asking.mark(plan)) or ask(asking, plan, held)
        if row["mark"] not in known:
            append_rows(file, [row])
        rows.append(row)
        console.print(f"{asking.reader}, {asking.way}, {asking.relevance}: {time.monotonic() - began:.0f} s")
    steps = ", ".join(f"{stage.name} {stage.settings.steps}" for stage in plan.recipe.stages)
    text = f"{where(device)}; steps: {steps}, further {plan.further.steps} each\n\n{to_markdown(rows)}"
    (options.out / "proxy.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    plainly.run(main)
