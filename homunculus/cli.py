"""The command line: `homunculus look` and `homunculus gallery`. Mistakes cost one line and exit code 2."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from homunculus.errors import BudgetError, FixationError, HomunculusError, OutputError

app = typer.Typer(
    help="A fixed visual budget for vision-language models, spent where the question looks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ImagePath = Annotated[Path | None, typer.Argument(help="An image file. Without one, an example page is drawn.")]
Question = Annotated[
    str | None, typer.Argument(help='A question; its spatial words ("top left", "footer") guide the gaze.')
]
Budget = Annotated[int, typer.Option(help="Visual tokens to spend.")]
Fixations = Annotated[
    list[str] | None, typer.Option("--fixation", metavar="X,Y", help="Look here: pixels, or 50%,30%. May be repeated.")
]
Seed = Annotated[int, typer.Option(help="For methods that draw at random.")]


@app.command()
def look(
    image: ImagePath = None,
    question: Question = None,
    budget: Budget = 273,
    allocator: Annotated[str, typer.Option(help="How to spend them; see `homunculus gallery`.")] = "foveated-pyramid",
    fixation: Fixations = None,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("look.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers and cells as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Draw where the tokens went: cells over the image, relevance, and what the model would see."""
    from homunculus.allocation import allocate_view, get_allocator
    from homunculus.sampling import sample
    from homunculus.structures import VisualTokens, rectangular
    from homunculus.viz.figures import look_figure

    check_output(out, image)
    method = get_allocator(allocator)
    start = time.perf_counter()
    pixels, question, view = view_of(image, question, budget, fixation)
    allocation = rectangular(allocate_view(view, budget, allocator, seed=seed))
    tokens = VisualTokens(sample(pixels[None], allocation), allocation)
    seconds = time.perf_counter() - start
    write_png(look_figure(pixels, view, tokens, question, method.density(view), allocator), out)
    report = summary(view, tokens, question, allocator, seconds) | {"out": str(out)}
    if as_json:
        print(json.dumps(report | {"cells": cell_list(tokens)}))
    else:
        print_summary(report)


@app.command()
def gallery(
    image: ImagePath = None,
    question: Question = None,
    budget: Budget = 273,
    fixation: Fixations = None,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("gallery.png"),
    seed: Seed = 0,
) -> None:
    """Draw every allocator on one image, side by side."""
    from homunculus.allocation import allocate_view, allocators
    from homunculus.sampling import sample
    from homunculus.structures import VisualTokens, rectangular
    from homunculus.viz.figures import gallery_figure

    check_output(out, image)
    pixels, question, view = view_of(image, question, budget, fixation)
    looks = {}
    table = Table("allocator", "what it does", box=None, header_style="bold")
    for name, what in allocators().items():
        try:
            allocation = rectangular(allocate_view(view, budget, name, seed=seed))
        except BudgetError as error:  # this method cannot, others can
            table.add_row(name, f"not drawn: {error}")
            continue
        looks[name] = VisualTokens(sample(pixels[None], allocation), allocation)
        table.add_row(name, what)
    write_png(gallery_figure(pixels, looks, view, question or f"{budget} tokens"), out)
    console = Console()
    console.print(table)
    console.print(f"[bold]{out}[/bold]", highlight=False, soft_wrap=True)


def view_of(
    image: Path | None, question: str | None, budget: int, fixation: list[str] | None
) -> tuple[Any, str | None, Any]:
    """Pixels `[3, H, W]`, the question, and the view of the image (or of the example page with its own question)."""
    from homunculus.foveate import gaze_points, make_view
    from homunculus.images import open_image
    from homunculus.viz import example

    pixels = example.example_page() if image is None else open_image(image)
    question = example.QUESTION if image is None and question is None else question
    points = [parse_fixation(text, (pixels.shape[2], pixels.shape[1])) for text in fixation or []] or None
    gaze = gaze_points([pixels], [question], points)
    return pixels, question, make_view(pixels[None], [question], gaze, budget=budget)


def parse_fixation(text: str, size: tuple[int, int]) -> tuple[float, float]:
    """`X,Y` in pixels or percent.

    >>> parse_fixation("50%,30", (640, 480))
    (320.0, 30.0)
    """
    parts = text.split(",")
    if len(parts) != 2:
        raise FixationError(
            f"cannot read the fixation '{text}': write X,Y in pixels, or with percent signs, as in 50%,30%"
        )
    try:
        x, y = (
            float(part.strip().removesuffix("%")) * (side / 100 if part.strip().endswith("%") else 1.0)
            for part, side in zip(parts, size, strict=True)
        )
    except ValueError:
        raise FixationError(
            f"cannot read the fixation '{text}': write X,Y in pixels, or with percent signs, as in 50%,30%"
        ) from None
    return x, y


def summary(view: Any, tokens: Any, question: str | None, allocator: str, seconds: float) -> dict[str, Any]:
    """The numbers of one look."""
    from homunculus.allocation import coverage
    from homunculus.viz.figures import level_counts

    allocation = tokens.allocation
    covered = coverage(allocation)
    fixations = [] if view.fixations is None else view.fixations[0, :, :2].tolist()
    return {
        "question": question,
        "allocator": allocator,
        "image_size": list(view.image_size),
        "grid": list(view.grid),
        "tokens": allocation.budget,
        "tokens_per_level": {f"{level:g}": count for level, count in level_counts(allocation)},
        "context_tokens": int(allocation.is_context.sum()),
        "coverage": covered.union.item(),
        "multiplicity": covered.multiplicity.item(),
        "fixations": fixations,
        "attention_share": attention_share(view, allocation),
        "seconds": seconds,
    }


def attention_share(view: Any, allocation: Any) -> float:
    """The share of tokens within 0.2 of the longer side from a fixation, or from the peak of relevance without one."""
    import torch

    from homunculus.geometry import leaf_centers

    width, height = view.image_size
    if view.fixations is not None:
        points = view.fixations[0, :, :2]
    else:
        xs, ys = leaf_centers(view.grid, view.image_size)
        peak = int(view.relevance[0].argmax())
        points = torch.stack((xs[peak % view.grid[0]], ys[peak // view.grid[0]]))[None]
    distance = torch.cdist(allocation.centers[0].double(), points).amin(1)
    return (distance <= 0.2 * max(width, height)).double().mean().item()


def cell_list(tokens: Any) -> list[dict[str, Any]]:
    """Every cell, in canonical order."""
    allocation = tokens.allocation
    names = {
        "box": "boxes",
        "level": "levels",
        "eccentricity": "eccentricity",
        "score": "scores",
        "context": "is_context",
    }
    columns = [getattr(allocation, field)[0].tolist() for field in names.values()]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def print_summary(report: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    width, height = report["image_size"]
    table.add_row("image", f"{width} x {height} px on {report['grid'][0]} x {report['grid'][1]} leaves")
    table.add_row("tokens", f"{report['tokens']} by {report['allocator']}")
    levels = ", ".join(f"{count} of level {level}" for level, count in report["tokens_per_level"].items())
    context = f", {report['context_tokens']} context" if report["context_tokens"] else ""
    table.add_row("per level", levels + context)
    table.add_row("coverage", f"{report['coverage']:.1%}")
    table.add_row("near the gaze", f"{report['attention_share']:.1%} of the tokens")
    table.add_row("time", f"{report['seconds'] * 1000:.0f} ms")
    table.add_row("picture", f"[bold]{report['out']}[/bold]")
    Console().print(table, highlight=False)


def check_output(out: Path, image: Path | None) -> None:
    """Refuse a place we cannot write to before any work is done."""
    if out.suffix.lower() != ".png":
        raise OutputError(
            f"the picture is a PNG and '{out}' does not end in .png: choose a name such as {out.stem or 'look'}.png"
        )
    if out.is_dir():
        raise OutputError(f"{out} is a directory: give the name of a PNG file in it")
    if not out.parent.is_dir():
        raise OutputError(f"the folder {out.parent} does not exist: create it or write elsewhere with --out")
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"cannot write into {out.parent}: check its permissions or write elsewhere with --out")
    if image is not None and image.exists() and out.exists() and out.samefile(image):
        raise OutputError(f"{out} is the image itself and would be overwritten: choose another --out")


def write_png(picture: Any, out: Path) -> None:
    """The whole file or nothing: written beside its place and moved there."""
    handle, name = tempfile.mkstemp(suffix=".png", prefix=f".{out.stem}-", dir=out.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            picture.save(file, format="PNG", optimize=True)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, out)
    except OSError as error:
        raise OutputError(f"cannot write {out} ({error.strerror or error}): choose another --out") from None
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def main() -> None:
    """The entry point: mistakes, ours to refuse or typer's, become one line on stderr and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False))
    except HomunculusError as error:
        fail(str(error))
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        # Usage errors; typer has moved their class between releases, so they are known by how they print themselves.
        if not hasattr(error, "format_message"):
            raise
        if len(sys.argv) == 1:
            error.show()  # type: ignore[attr-defined]  # no arguments at all: the help page
            sys.exit(2)
        fail(f"{error.format_message().rstrip('.')}: see `homunculus --help`")


def fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
