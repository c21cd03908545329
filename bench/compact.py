"""All accuracy tables of the compact model, from one drawing of the images.

    python -m bench.compact --weights DIR --out rows.jsonl --workers 14 --minutes 8    the answers; a GPU
    python -m bench.compact --weights DIR --out rows.jsonl --workers 14 --calibrate    how sure it may be, from `val`
    python -m bench.compact --out rows.jsonl --report                                  rows to Markdown, without a model

Every image is drawn once, by processes, and stays on the device while it is asked about in every way; the next images
are drawn meanwhile. Questions are taken in chunks, so tables of one command fill side by side; what must be whole first
is a command of its own. A run that was stopped, or whose minutes are over, goes on where it was when it is given again.

    main        273 tokens where the model itself looks; also what `scorer` is read from
    true        273 tokens at the true region
    budgets     64 to 4096 tokens
    allocators  every way to spend 273 tokens that needs no other library and no budget of a whole batch
    looks       once, three times, coarse to fine; on small and on large images, whose type grows with them

Looks go on to the end whatever the model thinks of its answers: what stopping earlier would have cost and saved is read
from the rows of every look. Rows hold bare probabilities, so that a calibration can come before or after them.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench import plainly
from bench.compact_report import error_of_confidence, report, way_of
from bench.timing import announce
from homunculus.allocation import DEFAULT, allocators, get_allocator
from homunculus.cli.arguments import words
from homunculus.cli.output import write_whole
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.rows import Kept, Row
from homunculus.eval.running import run, without_repeats
from homunculus.model.calibration import BELIEVED, Calibration, fit_calibration
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import SHIPPED, add_about, load_model

GROUPS = (("documents", "test-iid"), ("documents", "test-ood"), ("scenes", "test-iid"), ("scene-text", "test-iid"))
TABLES = ("main", "true", "budgets", "scorer", "allocators", "looks")
OTHER_BUDGETS = (64, 100, 150, 512, 1024, 4096)
SEGMENTS = ("atlas",)  # cut by another library
THRICE: dict[str, Any] = {"looks": 3, "threshold": None}
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"how": THRICE | {"combine": "concat"}},
    {"budget": 819},
    {"how": THRICE | {"combine": "tree"}},
    {"how": THRICE | {"combine": "best"}},
    {"how": {"progressive": True, "threshold": None}},
)


@dataclass(frozen=True)
class Scope:
    """How much is asked, and of what."""

    questions: int = 2000
    few: int = 500  # for each allocator
    looks: int = 1000  # for each way to look
    large: int = 400  # of them on large images
    sides: tuple[int, int] = (1024, 4096)
    longest: int = 112  # letters; few answers are longer
    dtype: str = "float32"

    def plan(self, group: tuple[str, str], questions: int, side: int | None = None, **settings: Any) -> Plan:
        size = (side or self.sides[0],) * 2
        how = {"longest": self.longest} | settings.pop("how", {})
        return Plan(*group, questions, size=size, how=how, dtype=self.dtype, **settings)


def plans_of(table: str, scope: Scope) -> Iterator[Plan]:
    """What is asked for a table.

    >>> [plan.split for plan in plans_of("true", Scope())]
    ['test-iid', 'test-ood', 'test-iid', 'test-iid']
    """
    for group in GROUPS:
        if table in ("main", "scorer"):
            yield scope.plan(group, scope.questions)
        elif table == "true":
            yield scope.plan(group, scope.questions, relevance="true")
        elif table == "budgets":
            yield from (scope.plan(group, scope.questions, budget=budget) for budget in OTHER_BUDGETS)
        elif table == "allocators":
            yield from (scope.plan(group, scope.few, method=name) for name in comparable())
        else:
            yield from (scope.plan(group, scope.looks, **way) for way in WAYS)
    if table == "looks":
        yield from (scope.plan(group, scope.large, scope.sides[1], **way) for group in GROUPS for way in WAYS)


def comparable() -> list[str]:
    """Allocators that give every image of a batch its 273 tokens with what is installed here.

    >>> "uniform" in comparable(), "token-bank" in comparable(), "atlas" in comparable()
    (True, False, False)
    """
    return [name for name in allocators() if name not in SEGMENTS and not get_allocator(name).batchwide]


def validation(scope: Scope) -> list[Plan]:
    """What a calibration is fitted on: the main table of images that no table shows."""
    return [scope.plan((family, "val"), scope.questions) for family in dict.fromkeys(family for family, _ in GROUPS)]


def calibrate(kept: Kept, plans: Sequence[Plan], weights: str) -> tuple[Calibration, str]:
    """The curve that the answers on `val` give, and what it does to those on `test-iid`, as far as they are there."""
    fitted_on = _rows(kept, plans, weights)
    fitted = fit_calibration([row["logp"] for row in fitted_on], [row["exact"] for row in fitted_on])
    tested = _rows(kept, [replace(plan, split="test-iid") for plan in plans], weights)
    said = f"slope {fitted.slope:.4f}, offset {fitted.offset:.4f}, from {len(fitted_on)} answers on val"
    if tested:
        errors = [error_of_confidence(tested, curve) for curve in (BELIEVED, fitted)]
        said += f"; expected calibration error on test-iid {errors[0]:.4f} before, {errors[1]:.4f} after"
    return fitted, said


def _rows(kept: Kept, plans: Sequence[Plan], weights: str) -> list[Row]:
    return [row for plan in plans for row in kept.rows[plan.mark(weights)].values()]


def follow(model: CompactVLM, plans: Sequence[Plan], kept: Kept, console: Any, **how: Any) -> bool:
    """`run`, with a bar for somebody who watches and a line for every plan that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    weights, done, start = weights_key(model), Counter[str](), time.perf_counter()
    known = {plan.mark(weights): len(kept.rows[plan.mark(weights)]) for plan in plans}
    total = sum(plan.questions for plan in plans)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("questions", total=total)

        def tick(plan: Plan, questions: int) -> None:
            mark = plan.mark(weights)
            name = f"{plan.family} {plan.split} {plan.size[0]}: {way_of(plan.settings())}, {plan.relevance}"
            name += "" if plan.method == DEFAULT else f", {plan.method}"
            done[mark] += questions
            bar.update(task, advance=questions, description=name)
            if done[mark] >= plan.questions > known[mark]:
                rows = kept.rows[mark].values()
                exact = sum(row["exact"] for row in rows) / len(rows)
                console.print(
                    f"{time.perf_counter() - start:6.1f} s  {name}: {len(rows)} questions, {exact:.1%} exact",
                    highlight=False,
                )

        return run(model, plans, kept, tick=tick, **how)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="a folder of `homunculus train`; the shipped one by default")
    parser.add_argument("--out", type=Path, required=True, help="the file of rows; one that is there is continued")
    parser.add_argument("--tables", type=words, default=",".join(TABLES), help="some of " + ",".join(TABLES))
    parser.add_argument("--report", action="store_true", help="write the tables of the rows there are beside them")
    parser.add_argument("--calibrate", action="store_true", help="fit the confidence on val, into the weights' folder")
    parser.add_argument("--questions", type=int, default=Scope.questions, help="of each family and split")
    parser.add_argument("--questions-few", type=int, default=Scope.few, help="for each allocator")
    parser.add_argument("--questions-looks", type=int, default=Scope.looks, help="for each way to look")
    parser.add_argument("--questions-large", type=int, default=Scope.large, help="for each of them on large images")
    parser.add_argument("--sides", type=int, nargs=2, default=Scope.sides, help="of small and large images, in pixels")
    parser.add_argument("--longest", type=int, default=Scope.longest, help="letters of an answer")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="bfloat16 on a GPU, else float32")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw images")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * options.minutes
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"no table {', '.join(sorted(unknown))}: choose from {', '.join(TABLES)}")
    if options.report:
        text = report(Kept(options.out, process=None))
        write_whole(options.out.with_suffix(".md"), text.encode())
        print(text)
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = announce(device, width=140)
    dtype = options.dtype or ("bfloat16" if device == "cuda" else "float32")
    scope = Scope(
        options.questions,
        options.questions_few,
        options.questions_looks,
        options.questions_large,
        tuple(options.sides),
        options.longest,
        dtype,
    )
    model = load_model(options.weights, device)
    model.calibration = BELIEVED
    # autocast keeps its copy of a weight only where the weight asks for gradients; nothing here makes any.
    model.requires_grad_(dtype == "bfloat16")
    plans = validation(scope) if options.calibrate else [p for table in options.tables for p in plans_of(table, scope)]
    kept = Kept(options.out)
    how: dict[str, Any] = {"workers": options.workers, "until": until}
    try:
        finished = follow(model, without_repeats(plans), kept, console, **how)
    except KeyboardInterrupt:
        finished = False
    if not finished:
        console.print("stopped before all was asked: give the command again to go on")
    elif options.calibrate:
        fitted, said = calibrate(kept, plans, weights_key(model))
        add_about(options.weights or SHIPPED, {"calibration": {"slope": fitted.slope, "offset": fitted.offset}})
        console.print(said, highlight=False)
    else:
        console.print(f"all is asked: python -m bench.compact --out {options.out} --report", highlight=False)


if __name__ == "__main__":
    plainly.run(main)
