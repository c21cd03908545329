"""`homunculus bench`: what an independent reader makes of the image that N tokens show, and what our own model does."""

from pathlib import Path
from typing import Annotated, Any

import typer

from homunculus.cli.arguments import words
from homunculus.cli.output import progress, write_whole
from homunculus.errors import OutputError

app = typer.Typer(name="bench", help="Measure methods against each other.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure methods against each other."""


@app.command()
def legibility(
    families: Annotated[str, typer.Option(help="Families of images, with commas.")] = "documents,scenes,scene-text",
    allocators: Annotated[str, typer.Option(help="Methods, with commas; all by default.")] = "",
    others: Annotated[
        int, typer.Option(help="Images of each family on which all other methods are tried as well.")
    ] = 0,
    count: Annotated[int, typer.Option(help="Images of each family.")] = 200,
    budget: Annotated[int, typer.Option(help="Visual tokens to spend on each.")] = 273,
    out: Annotated[Path, typer.Option(help="A folder for rows.jsonl, table.csv, table.md and plot.png.")] = Path(
        "out/legibility"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Tesseract reads what N tokens show of pages: all methods, with the true region and with model-free relevance.

    A run that was stopped goes on where it was; rows.jsonl holds what is done.
    """
    from rich.console import Console
    from rich.table import Table

    from homunculus.eval import legibility as benchmark
    from homunculus.eval import legibility_table as tables
    from homunculus.eval.judge import versions
    from homunculus.eval.legibility_figure import draw

    plan = benchmark.Plan(words(families), words(allocators), count, budget, others)
    console = Console()
    if any(family != "scenes" for family in plan.families):
        console.print(versions(), highlight=False)  # before any work: says what to install
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {out} ({error.strerror or error}): choose another --out") from None
    with progress(count * len(plan.families), "images") as advance:
        rows = benchmark.run(plan, out / "rows.jsonl", workers=workers, tick=lambda: advance(1))
    lines = tables.summarise(rows)
    markdown = []
    for family in plan.families:
        own = [line for line in lines if line.family == family]
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
            title=f"{family}: {own[0].measure}, {budget} tokens",
            title_justify="left",
        )
        for name in tables.HEADER[: tables.BRIEF]:
            table.add_column(name, no_wrap=True, justify="right" if name == "pages" else "left")
        for line in own:
            table.add_row(*tables.to_cells(line, places=2)[: tables.BRIEF])
        console.print("\n", table, highlight=False)
        markdown.append(f"### {family}: {own[0].measure}\n\n{tables.to_markdown(own)}")
    write_whole(out / "table.csv", tables.to_csv(lines).encode())
    write_whole(out / "table.md", "\n".join(markdown).encode())
    write_whole(out / "plot.png", draw(lines, budget))
    console.print(f"wrote table.csv, table.md and plot.png into {out}", highlight=False)


@app.command()
def answers(
    family: Annotated[str, typer.Option(help="documents, scenes or scene-text.")] = "documents",
    split: Annotated[str, typer.Option(help="val, test-iid or test-ood.")] = "test-iid",
    questions: Annotated[int, typer.Option(help="How many to ask, at most 4 of an image.")] = 2000,
    budget: Annotated[int, typer.Option(help="Visual tokens to spend on each.")] = 273,
    allocator: Annotated[str, typer.Option(help="How to spend them.")] = "foveated-pyramid",
    relevance: Annotated[str, typer.Option(help="predicted, true, or a source such as detail.")] = "predicted",
    size: Annotated[str, typer.Option(metavar="PIXELS", help="Of an image: 1024, or 1024x1280.")] = "1024",
    looks: Annotated[int, typer.Option(help="Look up to so many times.")] = 1,
    progressive: Annotated[bool, typer.Option("--progressive", help="100, 273, 512 tokens, until it is sure.")] = False,
    weights: Annotated[Path | None, typer.Option(help="A folder of `homunculus train`; ours by default.")] = None,
    out: Annotated[Path, typer.Option(help="The file of rows; one that is there is continued.")] = Path("rows.jsonl"),
    workers: Annotated[int, typer.Option(min=0, help="Processes that draw images.")] = 2,
) -> None:
    """The compact model answers questions it was not trained on; means with intervals, by kind, region and type.

    A run that was stopped goes on where it was; rows of other weights or settings may be in the same file.
    """
    from rich.console import Console
    from rich.table import Table

    from homunculus.cli.ask import load
    from homunculus.cli.data import parse_size
    from homunculus.eval import answers_table as tables
    from homunculus.eval.plans import Plan
    from homunculus.eval.running import evaluate

    how: dict[str, Any] = {"budget": budget, "method": allocator, "relevance": relevance, "size": parse_size(size)}
    Plan(family, split, questions, **how)  # refuses what it does not know
    if not out.parent.is_dir():
        raise OutputError(f"the folder {out.parent} does not exist: create it or write elsewhere with --out")
    model = load(weights)
    how |= {"looks": looks, "progressive": progressive, "workers": workers}
    with progress(questions, f"{family} {split}") as advance:
        rows = evaluate(model, family, split, questions=questions, file=out, tick=advance, **how)
    title = f"{family}, {split}, {budget} tokens by {allocator}, relevance {relevance}"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for name in tables.HEADER:
        table.add_column(name, no_wrap=True, justify="left" if name == tables.HEADER[0] else "right")
    for line in tables.summarise(rows):
        table.add_row(*tables.to_cells(line))
    Console().print(table, highlight=False)
    print(out)
