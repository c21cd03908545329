"""`homunculus look`: where the tokens went, drawn and in numbers."""

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from homunculus.cli.arguments import Budget, Fixations, ImagePath, Question, Seed, read
from homunculus.cli.output import check_output, write_png


def look(
    image: ImagePath = None,
    question: Question = None,
    budget: Budget = 273,
    allocator: Annotated[str, typer.Option(help="How to spend them; see `homunculus gallery`.")] = "foveated-pyramid",
    relevance: Annotated[
        str | None,
        typer.Option(help="Where to look: learned (of a question), pixels, detail, saliency or uniform; see below."),
    ] = None,
    fixation: Fixations = None,
    fixations: Annotated[
        int, typer.Option(help="Look up to so many times, at one place after another, and draw the scanpath.")
    ] = 1,
    cortex: Annotated[
        bool, typer.Option("--cortex", help="Draw the image and its cells as visual cortex sees them, and back.")
    ] = False,
    degrees: Annotated[
        float, typer.Option(help="The field of view that the longer side spans, for --cortex, v1 and acuity-bins.")
    ] = 40.0,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("look.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers and cells as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Draw where the tokens went: cells over the image, relevance, and what the model would see.

    A question is heard by the compact model's scorer, beside what the pixels say; without one, pixels decide alone.
    """
    from homunculus.allocation import allocate_view, get_allocator
    from homunculus.biology.field import check_field
    from homunculus.foveate import make_view
    from homunculus.relevance import default_for
    from homunculus.sampling import sample
    from homunculus.structures import VisualTokens, rectangular
    from homunculus.viz.figures import look_figure

    check_output(out, image)
    method = get_allocator(allocator)
    check_field(degrees)
    options = {"degrees": degrees} if "degrees" in method.options() else {}
    pixels, question, points = read(image, question, fixation)
    leave_room()
    source = default_for(question, pixels.device) if relevance is None else [(relevance, 1.0)]  # loads the scorer
    start = time.perf_counter()
    scan: dict[str, Any] = {}
    if fixations == 1:
        view = make_view(pixels, question, budget, points, source)
        allocation = rectangular(allocate_view(view, budget, allocator, seed=seed, **options))
        tokens = VisualTokens(sample(view.pyramid.images, allocation), allocation)
    else:
        view, tokens, scan = look_around(pixels, question, budget, points, source, allocator, seed, fixations, options)
    seconds = time.perf_counter() - start
    report = summary(view, tokens, question, method, source, seconds) | scan | {"out": str(out)}
    scanpath = view.fixations[0] if scan and view.fixations is not None else None
    if cortex:
        figure, report["cortex"] = cortical_view(pixels, view, tokens, question, method, degrees)
    else:
        figure = look_figure(pixels, view, tokens, question, method, scanpath=scanpath)
    write_png(figure, out)
    if as_json:
        print(json.dumps(report | {"cells": cell_list(tokens)}))
    else:
        print_summary(report)


def look_around(
    pixels: Any,
    question: str | None,
    budget: int,
    points: Any,
    source: Any,
    allocator: str,
    seed: int,
    n: int,
    options: dict[str, Any],
) -> tuple[Any, Any, dict[str, Any]]:
    """Several looks: the view with all fixations, the tokens of the last look, and how each look fared."""
    from dataclasses import replace

    from homunculus.cache import TokenCache
    from homunculus.fixation import Observer

    cache = TokenCache()
    observer = Observer(pixels, budget, allocator, source, cache=cache, seed=seed, **options)
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


def cortical_view(
    pixels: Any, view: Any, tokens: Any, question: str | None, method: Any, degrees: float
) -> tuple[Any, dict[str, Any]]:
    """The figure of `--cortex`, about the first fixation or the peak of relevance, and its numbers."""
    from homunculus.allocation.polar import gaze_of
    from homunculus.biology import acuity_similarity
    from homunculus.viz.cortex import cortex_figure, for_the_eye, image_share

    gaze = gaze_of(view)[0]
    figure = cortex_figure(pixels, tokens, gaze, question, method, degrees)
    small, moved, shown = for_the_eye(pixels, tokens, gaze)
    seen = acuity_similarity(small, shown, moved, degrees)
    rings = dict(zip((f"{edge:g}" for edge in seen.edges[1:]), seen.rings, strict=True))
    known = {edge: ring for edge, ring in rings.items() if ring == ring}  # a ring outside of the image has none
    share = image_share(gaze, view.image_size, degrees)
    numbers = {"degrees": degrees, "gaze": gaze.tolist(), "share": share, "similarity": seen.whole, "within": known}
    return figure, numbers


def leave_room() -> None:
    """Half of the cores, unless OMP_NUM_THREADS says how many: threads that share a core with something else wait for
    each other by spinning, and a small model is then ten times slower on two threads than on one."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))


def summary(view: Any, tokens: Any, question: str | None, method: Any, source: Any, seconds: float) -> dict[str, Any]:
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
        "relevance": {name: weight / sum(share for _, share in source) for name, weight in source},
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
    table.add_row("relevance", ", ".join(f"{name} {share:.0%}" for name, share in report["relevance"].items()))
    if not report["fixations"] and "cortex" in report:
        x, y = report["cortex"]["gaze"]
        gaze = f"{x:.0f}, {y:.0f}: the peak of relevance"
    elif not report["fixations"]:
        gaze = "none: the question names no place" if report["question"] else "none given"
    else:
        gaze = "; ".join(f"{x:.0f}, {y:.0f}" for x, y in report["fixations"][:6])
        gaze += "; ..." if len(report["fixations"]) > 6 else ""
        gaze += "" if report["gaze_used"] else f" (not used by {report['allocator']})"
    table.add_row("gaze", gaze)
    near = "the gaze" if report["fixations"] else "the peak of relevance"
    table.add_row("attention", f"{report['attention_share']:.1%} of the tokens near {near}")
    if "cortex" in report:
        seen = report["cortex"]
        table.add_row("cortex", f"{seen['share']:.0%} of V1 sees the image, {seen['degrees']:g} degrees large")
        rings = ", ".join(f"{ring:.2f} to {edge} deg" for edge, ring in seen["within"].items())
        table.add_row("to the eye", f"{seen['similarity']:.3f} alike (SSIM at the scale of acuity): {rings}")
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
