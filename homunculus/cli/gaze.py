"""`homunculus gaze`: where the library would look, against where people looked."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from homunculus.cli.look import leave_room
from homunculus.cli.output import progress, write_whole
from homunculus.errors import DataError, OutputError, RelevanceError

EXAMPLES = 4  # images drawn


def gaze(
    data: Annotated[Path, typer.Option(help="The folder with the images and the gaze, as published.")],
    format: Annotated[str, typer.Option(help="coco-search18, mit1003 or salicon.")],
    sources: Annotated[
        str, typer.Option(help="Relevance sources, with commas; by default all, learned where there is a target.")
    ] = "",
    maps: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FOLDER", help="Maps of others, one an image. May be repeated.")
    ] = None,
    condition: Annotated[str, typer.Option(help="Of coco-search18: present, absent or both.")] = "present",
    looks: Annotated[int, typer.Option(min=1, help="Fixations of a path that are compared.")] = 10,
    limit: Annotated[int | None, typer.Option(min=2, help="Only the first so many images.")] = None,
    out: Annotated[Path, typer.Option(help="A folder for table.json, table.md and pictures.")] = Path("out/gaze"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw plot.png and examples.png.")] = True,
) -> None:
    """Compare the choice of fixations with that of people: every relevance source and the saccade loop.

    Interrupted, it tells what the images so far say. The files stay on this machine: nothing is downloaded.
    """
    from homunculus.gaze import compare, table
    from homunculus.gaze.formats import gather, load
    from homunculus.gaze.given import parse_maps
    from homunculus.gaze.made_up import SAYS, is_made_up
    from homunculus.gaze.scanpath import FEWEST

    given = parse_maps(maps or [])
    chosen = [word.strip() for word in sources.split(",") if word.strip()]
    check_sources(chosen)
    if plots:
        import_plots()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {out} ({error.strerror or error}): choose another --out") from None
    leave_room()
    counts: Counter[str] = Counter()
    both = "" if condition.lower() == "both" else condition
    of_others = [path for own in given.values() for path in own.files.values()]
    stimuli = gather(load(data, format, counts, limit, both, of_others))
    if not stimuli:
        raise DataError(f"{data} holds no fixation that counts: check --format and --condition")
    chosen = choose_sources(chosen, stimuli)
    bench = compare.Bench(stimuli)
    rows: list[Any] = []
    examples: list[Any] = []
    done = 0
    try:
        with progress(len(stimuli), "images") as advance:
            for stimulus, found, drawn, path in compare.evaluate(bench, chosen, given, looks):
                rows += found
                done += 1
                if len(examples) < EXAMPLES:
                    examples.append((stimulus, drawn, path))
                advance(1)
    except KeyboardInterrupt:
        if len({row.image for row in rows}) < 2:
            raise
        print(f"interrupted: the table is of the first {done} of {len(stimuli)} images", file=sys.stderr)
    seen = stimuli[:done]
    title = f"{format} ({SAYS})" if is_made_up(data) else format
    about: dict[str, Any] = {
        "data": title,
        "images": len({stimulus.picture.name for stimulus in seen}),
        "viewings": sum(len(stimulus.paths) for stimulus in seen),
        "fixations": sum(len(stimulus.fixations) for stimulus in seen),
        "left out": dict(counts),
        "short paths": sum(len(path) < FEWEST for stimulus in seen for path in stimulus.paths),
        "complete": done == len(stimuli),
    }
    lines = table.summarise(rows)
    show(lines, about)
    write_whole(out / "table.json", table.as_json(lines, about).encode())
    write_whole(out / "table.md", table.markdown(lines, about).encode())
    if plots:
        from homunculus.gaze.figure import draw_examples, draw_table

        write_whole(out / "plot.png", draw_table(lines, title))
        write_whole(out / "examples.png", draw_examples(examples, title))
    drawings = ", plot.png and examples.png" if plots else ""
    print(f"wrote table.json, table.md{drawings} into {out}")


def check_sources(chosen: list[str]) -> None:
    """Refuse names that are none before anything is read."""
    from homunculus.relevance.maps import SOURCES

    for name in chosen:
        if name not in SOURCES:
            raise RelevanceError(f"unknown relevance source '{name}': choose from {', '.join(SOURCES)}")


def choose_sources(chosen: list[str], stimuli: Any) -> list[str]:
    """Those asked for, or all that have something to say; `learned` is of a question and wants weights."""
    import torch

    from homunculus.relevance.learned import scorer_for
    from homunculus.relevance.maps import SOURCES

    asked = all(stimulus.question for stimulus in stimuli)
    if "learned" in chosen and not asked:
        raise RelevanceError("'learned' relevance is that of a question, and nobody was asked to find anything here")
    if chosen:
        return [name for name in chosen if name != "uniform"]  # it is a baseline already
    knows = asked and scorer_for(torch.device("cpu")) is not None
    return [name for name in SOURCES if name != "uniform" and (name != "learned" or knows)]


def import_plots() -> None:
    """Say what to install before any work is done."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise DataError("plots are drawn with matplotlib: pip install 'homunculus[data]', or use --no-plots") from None


def show(lines: Any, about: dict[str, Any]) -> None:
    """The table on the screen: three parts that fit a terminal."""
    from rich.console import Console
    from rich.table import Table

    from homunculus.gaze import table as tables

    console = Console()
    console.print(tables.about_line(about), highlight=False, soft_wrap=True)
    parts = (
        ("maps: what a density says of fixations, with 95 % intervals", ("gain", "shuffled AUC", "NSS"), True),
        ("maps, other measures", ("gain with centre", "AUC", "KL", "CC", "SIM", "CC 64x64"), False),
        ("scanpaths", ("sequence", "direction", "shape", "length", "position"), False),
    )
    for title, names, spread in parts:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title, title_justify="left")
        table.add_column("method", no_wrap=True)
        for name in names:
            table.add_column(name, no_wrap=True, justify="right")
        for line in lines:
            if any(line.means[name] is not None for name in names):
                baseline = line.method in tables.BASELINES
                cells = (tables.cell(line.means[name], spread=spread) for name in names)
                table.add_row(line.method, *cells, style="dim" if baseline else None)
        console.print("\n", table, highlight=False)
    console.print(f"\n{tables.WHY_NOT_CC}", highlight=False, soft_wrap=True)
