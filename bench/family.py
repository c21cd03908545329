"""docs/allocators.md, made from the code: every allocator described, drawn and measured.

    python -m bench.family            write docs/allocators.md and docs/allocators/*.png
    python -m bench.family --costs    measure and print the costs only

Everything but the costs is deterministic, and tests/test_docs.py makes it again and compares.
"""

import argparse
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

import homunculus
from bench.timing import median_ms, where
from homunculus.allocation import Allocator, allocate_view, coverage, get_allocator
from homunculus.allocation.foveal import foveal_share
from homunculus.foveate import make_view
from homunculus.pyramid import ImagePyramid
from homunculus.structures import Allocation, View, rectangular
from homunculus.viz import example_page, overlay
from homunculus.viz.example import QUESTION
from homunculus.viz.overlay import mark_fixations

DOCS = Path(__file__).parent.parent / "docs"
BUDGET, SIDE = 273, 1024
GAZES = {"centre": (512.0, 512.0), "edge": (1000.0, 500.0), "corner": (0.0, 0.0)}
# e0 in leaves of those that follow the law of acuity; the tree does where the gaze alone decides.
LAWS = {
    "foveated-pyramid": (3.0, {"fixation_share": 1.0}),
    "hi-z": (3.0, {"fixation_share": 1.0}),
    "log-polar-rings": (3.0, {}),
    "acuity-bins": (2.3 / 40 * 64, {}),
    "scene-aware": (3.0, {"beta": 0.0}),
    "v1": (0.75 / 40 * 64, {}),
    "vortex": (3.0, {}),
}
PICTURE = (300, 375)


def square_page() -> torch.Tensor:
    """The lower 1024 rows of the example page."""
    return example_page()[:, -SIDE:]


def geometry_rows() -> Iterator[list[str]]:
    """For every allocator and gaze: coverage, boxes over a place, duplicates, cells by level, foveal share, slope."""
    views = {gaze: make_view(square_page(), fixation=point) for gaze, point in GAZES.items()}
    for name in homunculus.allocators():
        method = get_allocator(name)
        gazes = GAZES if method.uses_gaze else {"centre": GAZES["centre"]}
        for gaze in gazes:
            allocation = rectangular(allocate_view(views[gaze], BUDGET, name))
            covered = coverage(allocation)
            yield [
                f"`{name}`",
                gaze if method.uses_gaze else "any",
                f"{covered.union.item():.1%}",
                f"{covered.multiplicity.item():.2f}",
                str(duplicates(allocation)),
                histogram(allocation),
                f"{foveal_share(allocation).item():.0%}" if method.uses_gaze else "",
                f"{slope(name, GAZES[gaze]):.2f}" if name in LAWS else "",
            ]


def duplicates(allocation: Allocation) -> int:
    cells = torch.cat((allocation.boxes[0], allocation.angle[0, :, None]), dim=1)
    return allocation.budget - cells.unique(dim=0).shape[0]


def histogram(allocation: Allocation) -> str:
    """Cells of level 0 and finer, 1, 2, 3, and 4 and coarser, context apart."""
    levels = allocation.levels[0][~allocation.is_context[0]].round().clamp(0, 4).long()
    counts = "/".join(str(count) for count in torch.bincount(levels, minlength=5).tolist())
    context = int(allocation.is_context.sum())
    return counts + (f" +{context}" if context else "")


def slope(name: str, gaze: tuple[float, float]) -> float:
    """Of log cell side against log(e + e0) where the finest cell does not bind, over a flat relevance."""
    e0, options = LAWS[name]
    flat = View(
        torch.ones(1, SIDE // 16, SIDE // 16, dtype=torch.float64),
        (SIDE, SIDE),
        fixations=torch.tensor([[(*gaze, 1.0)]], dtype=torch.float64),
    )
    allocation = rectangular(allocate_view(flat, BUDGET, name, **options))
    coarse = (allocation.levels[0] > 0.2) & ~allocation.is_context[0]
    x = (allocation.eccentricity[0][coarse].double() + e0).log2()
    y = allocation.levels[0][coarse].double()
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def costs(batch: int = 64) -> dict[str, float]:
    """Microseconds an image at batch 64 on this machine, pixels already in the pyramid."""
    pages = square_page()[None].expand(batch, -1, -1, -1)
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(batch, 1, 2, generator=generator, dtype=torch.float64) * SIDE
    one = make_view(square_page())
    pyramid = ImagePyramid(pages, one.grid)
    _ = pyramid.gaussian
    fixations = torch.cat((points, torch.ones(batch, 1, 1, dtype=torch.float64)), dim=2)
    view = View(one.density.expand(batch, -1, -1).contiguous(), (SIDE, SIDE), 16, pyramid, fixations)
    _ = view.relevance
    names = list(homunculus.allocators())
    return {
        name: median_ms(lambda n=name: allocate_view(view, BUDGET, n), repeats=3, warmup=1) * 1000 / batch
        for name in track(names, "costs at batch 64", transient=True)
    }


def paragraphs() -> Iterator[str]:
    """A heading, a picture, a paragraph and the properties of every allocator."""
    for name, summary in homunculus.allocators().items():
        method = get_allocator(name)
        said = " ".join(inspect.cleandoc(method.function.__doc__ or "").partition(">>>")[0].split())
        yield "\n".join(
            (
                f"### `{name}`",
                "",
                f"![{name}](allocators/{name}.png)",
                "",
                textwrap.fill(f"{summary[0].upper()}{summary[1:]}. {said}", 116),
                "",
                *(f"- {line}" for line in properties(method)),
                "",
            )
        )


def properties(method: Allocator) -> Iterator[str]:
    exact = f"{BUDGET} cells an image on average, exact for the batch" if method.batchwide else "N in every image"
    yield f"exact: {exact}; at least {method.minimum}"
    yield f"coverage: {'tiles the image' if method.tiles else 'as measured below'}"
    yield f"looks at: {', '.join(looks_at(method))}"
    yield f"trains: {method.trains or 'the density it is given, through relaxed top-k (allocation/relaxed.py)'}"
    options = inspect.signature(method.function).parameters.values()
    told = [f"`{p.name}={p.default!r}`" for p in options if p.kind is p.KEYWORD_ONLY and p.name != "seed"]
    yield f"options: {', '.join(told) or 'none'}"


def looks_at(method: Allocator) -> list[str]:
    return [
        what
        for what, used in (
            ("relevance", method.uses_relevance),
            ("gaze", method.uses_gaze),
            ("pixels", method.needs_pixels),
        )
        if used
    ] or ["nothing but the image's shape"]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def described() -> str:
    """All of the page that does not depend on the machine."""
    head = ["allocator", "gaze", "coverage", "boxes over a place", "duplicates", "cells by level 0/1/2/3/4+"]
    head += ["foveal share", "slope"]
    return "\n".join(
        (
            "# Allocators",
            "",
            "Made by `python -m bench.family` from the code; do not edit.",
            "",
            f"Every allocator spends exactly {BUDGET} tokens on the example page, question: *{QUESTION}*",
            "Light cells are fine, dark ones coarse; the ring marks the gaze of those that use it.",
            "",
            *paragraphs(),
            "## Geometry",
            "",
            textwrap.fill(
                f"Measured on {SIDE}x{SIDE} pixels (the lower part of the example page, its relevance), N = {BUDGET}. "
                "Coverage is the union of the cells' true regions, context excluded; *boxes over a place* how many "
                "sampled boxes an included place lies in; *cells by level* counts sides of up to 16, 32, 64, 128 and "
                "from 256 pixels; *foveal share* the cells within 0.2 of the side from the gaze; *slope* that of log "
                "cell side against log(e + e0), over a flat relevance and where the finest cell does not bind "
                "(1 is the law of cortical magnification; the tree with `fixation_share=1`).",
                116,
            ),
            "",
            table(head, list(geometry_rows())),
            "",
        )
    )


def priced(measured: dict[str, float]) -> str:
    rows = [[f"`{name}`", f"{us:.0f}"] for name, us in measured.items()]
    note = f"Microseconds an image at batch 64, {where('cpu')}. Pixels wait in the pyramid; `atlas` includes its"
    return "\n".join(("## Cost", "", f"{note} segmentation.", "", table(["allocator", "µs an image"], rows), ""))


def draw(folder: Path) -> None:
    page = example_page()
    full = page.shape[2], page.shape[1]
    view = make_view(page, QUESTION, relevance="pixels")
    for name in track(list(homunculus.allocators()), "pictures", transient=True):
        allocation = rectangular(allocate_view(view, BUDGET, name))
        picture = overlay(page, allocation, (PICTURE[0] * 2, PICTURE[1] * 2))
        if get_allocator(name).uses_gaze:
            mark_fixations(picture, view.fixations[0], (picture.width / full[0], picture.height / full[1]))
        picture.resize(PICTURE).quantize(64).save(folder / f"{name}.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", action="store_true", help="print the costs and write nothing")
    arguments = parser.parse_args()
    measured = costs()
    if arguments.costs:
        Console().print(priced(measured), highlight=False, markup=False)
        return
    folder = DOCS / "allocators"
    folder.mkdir(exist_ok=True)
    for picture in folder.glob("*.png"):
        picture.unlink()
    draw(folder)
    (DOCS / "allocators.md").write_text(described() + "\n" + priced(measured))


if __name__ == "__main__":
    main()
