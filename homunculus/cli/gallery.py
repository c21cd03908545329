"""`homunculus gallery` and `homunculus example`: every allocator on one image, and an image to try them on."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from homunculus.cli.arguments import Budget, Fixations, ImagePath, Question, Seed, read
from homunculus.cli.output import check_output, write_png
from homunculus.errors import AllocatorError, BudgetError


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


def example(out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("page.png")) -> None:
    """Write the example page, an invoice, to try things on."""
    from homunculus.viz.example import example_page
    from homunculus.viz.overlay import to_pil

    check_output(out, None)
    write_png(to_pil(example_page()), out)
    print(out)
