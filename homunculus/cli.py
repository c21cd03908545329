"""The command line: `homunculus look`, `ask`, `gallery` and `example`. Mistakes cost one line and exit code 2."""

import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from homunculus.errors import AllocatorError, BudgetError, FixationError, HomunculusError, ImageError, OutputError

app = typer.Typer(
    help="A fixed visual budget for vision-language models, spent where the question looks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ImagePath = Annotated[Path | None, typer.Argument(help="An image file. Without one, an example page is drawn.")]
Question = Annotated[
    str | None, typer.Argument(help='A question; its spatial words in English ("top left", "footer") guide the gaze.')
]
Budget = Annotated[int, typer.Option(help="Visual tokens to spend, at least 16 for the tree methods.")]
Fixations = Annotated[
    list[str] | None, typer.Option("--fixation", metavar="X,Y", help="Look here: pixels, or 50%,30%. May be repeated.")
]
DEFAULT_MODEL = "Qwen/Qwen3-VL-8B-Instruct"
Seed = Annotated[int, typer.Option(help="For methods that draw at random.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from homunculus import __version__

        print(__version__)


@app.command()
def look(
    image: ImagePath = None,
    question: Question = None,
    budget: Budget = 273,
    allocator: Annotated[str, typer.Option(help="How to spend them; see `homunculus gallery`.")] = "foveated-pyramid",
    fixation: Fixations = None,
    fixations: Annotated[
        int, typer.Option(help="Look up to so many times, at one place after another, and draw the scanpath.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("look.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers and cells as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Draw where the tokens went: cells over the image, relevance, and what the model would see."""
    from homunculus.allocation import allocate_view, get_allocator
    from homunculus.foveate import make_view
    from homunculus.sampling import sample
    from homunculus.structures import VisualTokens, rectangular
    from homunculus.viz.figures import look_figure

    check_output(out, image)
    method = get_allocator(allocator)
    pixels, question, points = read(image, question, fixation)
    start = time.perf_counter()
    scan: dict[str, Any] = {}
    if fixations == 1:
        view = make_view(pixels, question, budget, points)
        allocation = rectangular(allocate_view(view, budget, allocator, seed=seed))
        tokens = VisualTokens(sample(view.pyramid.images, allocation), allocation)
    else:
        view, tokens, scan = look_around(pixels, question, budget, points, allocator, seed, fixations)
    seconds = time.perf_counter() - start
    report = summary(view, tokens, question, method, seconds) | scan | {"out": str(out)}
    scanpath = view.fixations[0] if scan and view.fixations is not None else None
    write_png(look_figure(pixels, view, tokens, question, method, scanpath=scanpath), out)
    if as_json:
        print(json.dumps(report | {"cells": cell_list(tokens)}))
    else:
        print_summary(report)


@app.command()
def ask(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    question: Annotated[str, typer.Argument(help="A question about it.")],
    model: Annotated[str, typer.Option(help="A Qwen3-VL or Qwen2.5-VL: hub id or folder.")] = DEFAULT_MODEL,
    budget: Budget = 273,
    stage: Annotated[str, typer.Option(help="pre, post or views; see docs/qwen.md.")] = "pre",
    relevance: Annotated[str | None, typer.Option(help="Where to look, such as coarse-pass or detail.")] = None,
    allocator: Annotated[str, typer.Option(help="How to spend them; see `homunculus gallery`.")] = "foveated-pyramid",
    region: Annotated[str | None, typer.Option(help='Look here instead, in words such as "the footer".')] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The longest answer.")] = 128,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("ask.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer and the cells as JSON.")] = False,
) -> None:
    """Ask a Qwen-VL model about an image on a budget, and draw what it looked at."""
    from homunculus.integrations.qwen_vl.ask import answer_figure, ask_once

    check_output(out, image)
    pixels, _, _ = read(image, question, None)
    where: dict[str, Any] = {"relevance": relevance, "allocator": allocator, "region": region}
    answer = ask_once(model, pixels, question, budget=budget, stage=stage, max_new_tokens=max_new_tokens, **where)
    write_png(answer_figure(pixels, answer), out)
    if as_json:
        cells = cell_list(answer)
        print(json.dumps(answer.report() | {"model": model, "stage": stage, "out": str(out), "cells": cells}))
    else:
        print(f"{answer.text}\n\n{answer.tokens} visual tokens, {answer.seconds:.1f} s without loading; {out}")


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
    from homunculus.foveate import make_view
    from homunculus.sampling import sample
    from homunculus.structures import VisualTokens, rectangular
    from homunculus.viz.figures import gallery_figure

    check_output(out, image)
    pixels, question, points = read(image, question, fixation)
    view = make_view(pixels, question, budget, points)
    looks = {}
    table = Table("allocator", "what it does", box=None, header_style="bold")
    for name, what in allocators().items():
        try:
            allocation = rectangular(allocate_view(view, budget, name, seed=seed))
        except (BudgetError, AllocatorError) as error:  # this method cannot, or lacks a library; others can
            table.add_row(name, f"not drawn: {error}")
            continue
        looks[name] = VisualTokens(sample(view.pyramid.images, allocation), allocation)
        table.add_row(name, what)
    write_png(gallery_figure(pixels, looks, view, question or f"{budget} tokens"), out)
    console = Console()
    console.print(table)
    console.print(str(out), style="bold", markup=False, highlight=False, soft_wrap=True)


@app.command()
def example(out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("page.png")) -> None:
    """Write the example page, an invoice, to try things on."""
    from homunculus.viz.example import example_page
    from homunculus.viz.overlay import to_pil

    check_output(out, None)
    write_png(to_pil(example_page()), out)
    print(out)


def read(image: Path | None, question: str | None, fixation: list[str] | None) -> tuple[Any, str | None, Any]:
    """Pixels `[3, H, W]` of the image (or of the example page), the question, and the points to look at, if any."""
    from homunculus.images import open_image
    from homunculus.viz.example import QUESTION, example_page

    if image is not None and question is None and " " in str(image) and not is_file(image):
        raise ImageError(
            f"'{image}' is not a file: the image comes first, then the question (`homunculus example` makes one)"
        )
    pixels = example_page() if image is None else open_image(image)
    question = QUESTION if image is None else question
    points = [parse_fixation(text, (pixels.shape[2], pixels.shape[1])) for text in fixation or []]
    return pixels, question, points or None


def look_around(
    pixels: Any, question: str | None, budget: int, points: Any, allocator: str, seed: int, n: int
) -> tuple[Any, Any, dict[str, Any]]:
    """Several looks: the view with all fixations, the tokens of the last look, and how each look fared."""
    from dataclasses import replace

    from homunculus.cache import TokenCache
    from homunculus.fixation import Observer

    cache = TokenCache()
    observer = Observer(pixels, budget, allocator, cache=cache, seed=seed)
    glances: list[Any] = []
    looks: list[dict[str, Any]] = []
    for glance in observer.fixate(question, n, points):
        before, _, after = cache.stats.misses, glance.tokens, cache.stats.misses
        sampled = after - before
        at = glance.fixations[0, len(glances) :, :2].tolist()
        looks.append({"at": at, "sampled": sampled, "reused": budget - sampled, "left": glance.left.item()})
        glances.append(glance)
    view = replace(observer.view(question, points), fixations=glances[-1].fixations)
    held = {"hits": cache.stats.hits, "misses": cache.stats.misses, "bytes": cache.stats.bytes}
    return view, glances[-1].tokens, {"looks": looks, "looks_asked": n, "cache": held}


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


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


def summary(view: Any, tokens: Any, question: str | None, method: Any, seconds: float) -> dict[str, Any]:
    """The numbers of one look."""
    from homunculus.allocation import coverage
    from homunculus.geometry import leaf_side
    from homunculus.viz.figures import level_counts

    allocation = tokens.allocation
    covered = coverage(allocation)
    fixations = [] if view.fixations is None else view.fixations[0, :, :2].tolist()
    return {
        "question": question,
        "allocator": method.name,
        "image_size": list(view.image_size),
        "grid": list(view.grid),
        "leaf_pixels": leaf_side(view.grid, view.image_size),
        "tokens": allocation.budget,
        "tokens_per_level": {f"{level:g}": count for level, count in level_counts(allocation)},
        "context_tokens": int(allocation.is_context.sum()),
        "coverage": covered.union.item(),
        "multiplicity": covered.multiplicity.item(),
        "fixations": fixations,
        "gaze_used": bool(fixations) and method.uses_gaze,
        "attention_share": attention_share(view, allocation),
        "seconds": seconds,
    }


def attention_share(view: Any, allocation: Any) -> float:
    """The foveal share about the fixations, or about the peak of relevance without one."""
    from dataclasses import replace

    from torch.nn.functional import pad

    from homunculus.allocation.foveal import foveal_share
    from homunculus.relevance.gaze import eccentricity, peak

    points = view.fixations
    if points is None:
        points = pad(peak(view.relevance, view.image_size), (0, 1), value=1.0)[:, None]
    distance = eccentricity(allocation.centers.double(), points, view.grid, view.image_size)
    return foveal_share(replace(allocation, eccentricity=distance)).item()


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
    from homunculus.viz.figures import pixels

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    width, height = report["image_size"]
    table.add_row("image", f"{width} x {height} px on {report['grid'][0]} x {report['grid'][1]} leaves")
    table.add_row("tokens", f"{report['tokens']} by {report['allocator']}")
    counts = report["tokens_per_level"].items()
    cells = ", ".join(f"{count} of {pixels(report['leaf_pixels'] * 2 ** float(level))}" for level, count in counts)
    context = f", {report['context_tokens']} more, repeating a coarse one" if report["context_tokens"] else ""
    table.add_row("cells", cells + context)
    table.add_row("coverage", f"{report['coverage']:.1%}")
    if not report["fixations"]:
        gaze = "nowhere: the question names no place" if report["question"] else "nowhere"
    else:
        gaze = "; ".join(f"{x:.0f}, {y:.0f}" for x, y in report["fixations"][:6])
        gaze += "; ..." if len(report["fixations"]) > 6 else ""
        gaze += "" if report["gaze_used"] else f" (not used by {report['allocator']})"
    table.add_row("gaze", gaze)
    near = "the gaze" if report["fixations"] else "the peak of relevance"
    table.add_row("attention", f"{report['attention_share']:.1%} of the tokens near {near}")
    for number, look in enumerate(report.get("looks", []), 1):
        at = "; ".join(f"{x:.0f}, {y:.0f}" for x, y in look["at"])
        table.add_row(f"look {number}", f"{at}: {look['sampled']} cells sampled, {look['left']:.0%} left to see")
    if "cache" in report:
        if len(report["looks"]) < report["looks_asked"]:
            table.add_row("stopped", "little is left to see")
        hits, misses = report["cache"]["hits"], report["cache"]["misses"]
        share = f"{misses / (hits + misses):.0%}"
        table.add_row("cache", f"{misses} of {hits + misses} cells sampled ({share}), {hits} reused")
    table.add_row("time", f"{report['seconds'] * 1000:.0f} ms without reading and drawing")
    table.add_row("picture", Text(report["out"], style="bold"))
    Console().print(table, highlight=False)


def check_output(out: Path, image: Path | None) -> None:
    """Refuse a place we cannot write to before any work is done."""
    try:
        _check_output(out, image)
    except OSError as error:  # a name too long, a loop of links
        raise OutputError(f"cannot write {out} ({error.strerror or error}): choose another --out") from None


def _check_output(out: Path, image: Path | None) -> None:
    if out.suffix.lower() != ".png":
        raise OutputError(f"the picture is a PNG and '{out}' is no name for one: choose a name such as look.png")
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
    beside = None
    try:
        handle, name = tempfile.mkstemp(suffix=".png", prefix=".homunculus-", dir=out.parent)
        beside = Path(name)
        with os.fdopen(handle, "wb") as file:
            picture.save(file, format="PNG")
        beside.chmod(0o666 & ~_umask())
        beside.replace(out)
    except OSError as error:
        raise OutputError(f"cannot write {out} ({error.strerror or error}): choose another --out") from None
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def main() -> None:
    """The entry point: mistakes, ours to refuse or typer's, become one line on stderr and exit code 2."""
    warnings.filterwarnings("ignore", module="PIL")  # a broken file gets its one line
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
        command = next((word for word in sys.argv[1:2] if word in ("look", "ask", "gallery", "example")), "")
        fail(f"{error.format_message().rstrip('.')}: see `{f'homunculus {command}'.strip()} --help`")


def fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
