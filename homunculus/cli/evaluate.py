"""`homunculus eval`: methods on questions with known answers, one file of rows for all of them."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from homunculus.cli.arguments import named_device, words
from homunculus.cli.output import progress
from homunculus.errors import DataError, ModelError, OutputError

STOPPED = "stopped before all was asked, give the command again to go on"


def evaluate(
    suite: Annotated[
        str,
        typer.Option(
            help="main, budgets, fewer, forgiving, ablations, turns, looks, large, unlike, tiny; with commas."
        ),
    ] = "main",
    out: Annotated[Path, typer.Option(help="The file of rows; one that is there is continued.")] = Path("rows.jsonl"),
    methods: Annotated[
        str | None, typer.Option(help="Only these, with commas: allocators, peers/NAME, whole. Default: the suite's.")
    ] = None,
    families: Annotated[
        str, typer.Option(help="documents, scenes, scene-text; with commas.")
    ] = "documents,scenes,scene-text",
    split: Annotated[str, typer.Option(help="val, test-iid or test-ood.")] = "test-iid",
    budget: Annotated[int, typer.Option(help="Visual tokens, where a suite does not say.")] = 273,
    questions: Annotated[int, typer.Option(help="For each method and family, at most 4 of an image.")] = 2000,
    few: Annotated[int, typer.Option(help="For each arm of an ablation.")] = 1000,
    relevance: Annotated[
        str, typer.Option(help="predicted, true, hit-70, moved-4, first-turn, first-cells, a source, or a mixture.")
    ] = "predicted",
    size: Annotated[str, typer.Option(metavar="PIXELS", help="Of an image: 1024, or 1024x1280.")] = "1024",
    weights: Annotated[Path | None, typer.Option(help="A folder of `homunculus train`; ours by default.")] = None,
    device: Annotated[str | None, typer.Option(help="By default a GPU if there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; bfloat16 by default on a GPU.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that draw images.")] = 2,
    minutes: Annotated[float | None, typer.Option(help="Stop in time; the same command goes on.")] = None,
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="Also time every method.")] = True,
    cost_seconds: Annotated[
        float | None, typer.Option(min=0, help="To time each, in turns: 5 on a GPU, else 1. A p99 needs 100 batches.")
    ] = None,
    graphs: Annotated[
        bool, typer.Option("--graphs/--no-graphs", help="Time with steps of writing recorded as CUDA graphs.")
    ] = False,
    memory: Annotated[
        float,
        typer.Option(min=0.01, max=1.0, help="Of a GPU's memory for tensors of all processes that share it."),
    ] = 0.95,
    tune: Annotated[
        int | None, typer.Option(help="First tune a reader for each method, on so many samples of its own tokens.")
    ] = None,
    tune_seconds: Annotated[float | None, typer.Option(help="The same for so many seconds each.")] = None,
) -> None:
    """Ask the same questions by every method of a suite: what each answers, and what it costs.

    Rows are appended as answers come, so a run that was stopped goes on where it was; what is there is not asked again.
    `homunculus report` makes tables, charts and a decision of them.
    """
    import time

    import torch
    from rich.console import Console

    from homunculus.cli.ask import leave_room
    from homunculus.cli.data import parse_size
    from homunculus.eval.cost import add_costs
    from homunculus.eval.plans import weights_key
    from homunculus.eval.rows import Kept, own_file
    from homunculus.eval.running import run, without_repeats
    from homunculus.eval.suites import Scope, plans_of
    from homunculus.eval.summary import table, time_taken
    from homunculus.eval.surroundings import sharing
    from homunculus.model.weights import load_model
    from homunculus.train.fair import dealt, run_tuned
    from homunculus.train.processes import share
    from homunculus.train.tune import Tuning

    place = named_device(device)
    scope = Scope(
        named("--families", families),
        split,
        questions,
        few,
        budget,
        parse_size(size),
        dtype=dtype or ("bfloat16" if place.type == "cuda" else "float32"),
        methods=None if methods is None else named("--methods", methods),
        relevance=relevance,
    )
    plans, part = without_repeats(plans_of(named("--suite", suite), scope)), share()
    tuning = None
    if graphs and place.type != "cuda":
        raise ModelError(f"steps are recorded on a CUDA device, not on {place}: leave out --graphs")
    if tune is not None or tune_seconds is not None:
        if tune is not None and tune_seconds is not None:
            raise ModelError("readers are tuned on equal samples or for equal seconds: give --tune or --tune-seconds")
        tuning = Tuning(samples=tune) if tune is not None else Tuning(seconds=tune_seconds)
        if tune_seconds is not None and part[1] > 1:
            raise ModelError("equal seconds would be shared by processes: leave out torchrun, or give --tune")
        plans = dealt(plans, part)
    if not out.parent.is_dir():
        raise OutputError(f"the folder {out.parent} does not exist: create it or write elsewhere with --out")
    until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    if place.type == "cpu":
        leave_room()
    elif sharing(place) > 1:  # nobody takes what is another's, even if only for later
        share_of_memory = memory / sharing(place)
        torch.cuda.set_per_process_memory_fraction(share_of_memory, None if place.index is None else place)
    model = load_model(weights, str(place))
    # autocast keeps its copy of a weight only where the weight asks for gradients; nothing here makes any.
    model.requires_grad_(scope.dtype == "bfloat16")
    kept = Kept(out, part[0])
    whole = tuning is not None  # a process asks all questions of a reader it has tuned
    total = sum(plan.questions if whole else len(range(part[0], plan.questions, part[1])) for plan in plans)
    with progress(total, suite) as advance:
        how: dict[str, Any] = {"workers": workers, "until": until, "tick": lambda plan, questions: advance(questions)}
        if tuning is not None:
            done = run_tuned(model, plans, kept, tuning, say=partial(print, flush=True), **how)
        else:
            done = run(model, plans, kept, part=part, **how)
    if part[0] > 0 or tuning is not None:  # the first process tells; a reader's tuning changes no time
        print(f"{own_file(out, part[0])}: {'all is asked' if done else STOPPED}")
        return
    if done and cost and part[1] == 1:  # beside others everything takes longer
        with progress(len(plans), "timing") as advance:
            seconds = cost_seconds if cost_seconds is not None else (5.0 if place.type == "cuda" else 1.0)
            how = {"until": until, "tick": advance, "say": partial(print, flush=True)}
            done = add_costs(model, plans, kept, seconds=seconds, graphs=graphs, **how)
    Console(width=120).print(table(kept, plans, weights_key(model)), highlight=False)
    print(time_taken(kept, plans, weights_key(model)))
    untimed = "; give the command without torchrun to time methods" if done and cost and part[1] > 1 else ""
    print(f"{out}: {'all is asked' if done else STOPPED}{untimed}")


def named(option: str, text: str) -> tuple[str, ...]:
    """What an option names, parted by commas; something at least.

    >>> named("--methods", "topk, peers/tome")
    ('topk', 'peers/tome')
    """
    if not words(text):
        raise DataError(f"{option} {text!r} names nothing: give a name, or several with commas, or leave it out")
    return words(text)
