"""`homunculus report`: the page of an evaluation, from its rows."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from homunculus.cli.output import write_whole
from homunculus.errors import DataError, OutputError


def report(
    rows: Annotated[
        list[Path],
        typer.Argument(help="Files that `homunculus eval` wrote, .jsonl, or packed as .jsonl.gz or .jsonl.xz."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML page to write: one file that needs nothing else.")] = Path(
        "report.html"
    ),
    markdown: Annotated[Path | None, typer.Option(help="Write the same tables and sentences as Markdown too.")] = None,
    examples: Annotated[bool, typer.Option(help="Show wins and losses; the images are drawn anew.")] = True,
    weights: Annotated[Path | None, typer.Option(help="Whose relevance the examples show (default: shipped).")] = None,
    legibility: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The rows.jsonl of `homunculus bench legibility`, for a table of it."),
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The ablations.json of `python -m bench.ablations`, for tables of it."),
    ] = None,
) -> None:
    """Write what was measured as one page: the decision, the predictions, every table and curve."""
    from homunculus.eval.rows import Kept
    from homunculus.report.blocks import to_markdown
    from homunculus.report.decision import deciding_arm
    from homunculus.report.legible import read_legibility
    from homunculus.report.page import document, to_page
    from homunculus.report.sheet import Sheet
    from homunculus.report.trained import read_training

    more = {name: file for name, file in (("legibility", legibility), ("training", training)) if file is not None}
    check_places(rows, [out, *([markdown] if markdown else [])], more.values())
    read = None if legibility is None else read_legibility(legibility)
    trained = None if training is None else read_training(training)
    sheet = Sheet([Kept(rows[0], None, *rows[1:])])
    shown = example_blocks(deciding_arm(sheet), weights) if examples else []
    command = f"homunculus report {' '.join(file.name for file in rows)} --out {out.name}"
    command += "".join(f" --{name} {file.name}" for name, file in more.items())
    blocks = document(sheet, shown, command, read, trained)
    write_whole(out, to_page(blocks).encode())
    if markdown is not None:
        write_whole(markdown, to_markdown(blocks).encode())
    print(f"{out}" + (f" and {markdown}" if markdown else ""))
    if text := sheet.left_out():
        print(f"left out: {text}")


def example_blocks(arm: Any, weights: Path | None) -> list[Any]:
    """Wins and losses, as the model of these weights looks."""
    from homunculus.cli.look import leave_room
    from homunculus.eval.plans import weights_key
    from homunculus.model.weights import load_model
    from homunculus.report.examples import example_sections

    leave_room()
    model = load_model(weights)
    own = weights_key(model)
    return example_sections(arm, model, any(way.weights == own for way in arm.ways()))


def check_places(rows: list[Path], outs: list[Path], more: Iterable[Path] = ()) -> None:
    """Refuse what cannot be read or written before any work is done."""
    for file in rows:
        if not file.is_file():
            raise DataError(f"{file} is not there: give a file that `homunculus eval --out` wrote")
    for out in outs:
        if out.is_dir():
            raise OutputError(f"{out} is a directory: give the name of a file in it")
        if not out.parent.is_dir():
            raise OutputError(f"the folder {out.parent} does not exist: create it or write elsewhere")
        given = [*rows, *(file for file in more if file.exists())]
        if any(out.exists() and out.samefile(file) for file in given):
            raise OutputError(f"{out} is one of the files of rows and would be overwritten: choose another --out")
