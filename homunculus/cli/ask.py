"""`homunculus ask`: a question about an image, to the compact model of the package or to a Qwen-VL model."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from homunculus.cli.arguments import Budget, read
from homunculus.cli.ask_csv import ask_csv
from homunculus.cli.look import cell_list, leave_room
from homunculus.cli.output import check_output, write_png
from homunculus.errors import ImageError, ModelError, QueryError

DEFAULT = "foveated-pyramid"
EXAMPLE = 'homunculus ask page.png "What is the total?"'


def ask(
    image: Annotated[Path | None, typer.Argument(help="An image file.")] = None,
    question: Annotated[str | None, typer.Argument(help="A question about it.")] = None,
    budget: Budget = 273,
    allocator: Annotated[
        str | None, typer.Option(help="How to spend them, foveated-pyramid by default; see `homunculus gallery`.")
    ] = None,
    relevance: Annotated[
        str | None, typer.Option(help="Where to look, such as pixels, or coarse-pass with --model; the model's own.")
    ] = None,
    looks: Annotated[int | None, typer.Option(help="Look up to so many times, until it is sure.")] = None,
    progressive: Annotated[bool, typer.Option("--progressive", help="100, 273, 512 tokens, until it is sure.")] = False,
    weights: Annotated[Path | None, typer.Option(help="A folder of `homunculus train`; ours by default.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Ask all of a file with columns image and question.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Draw what was looked at (--model always does).")] = False,
    out: Annotated[Path | None, typer.Option(help="The PNG to write, ask.png by default; with --csv a CSV.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer and the cells as JSON.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Ask a Qwen3-VL or Qwen2.5-VL instead: hub id or folder; see docs/qwen.md.")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Of --model: pre (the default), post or views.")] = None,
    peer: Annotated[
        str | None, typer.Option(help="Of --model at --stage post: a published reducer instead; see docs/peers.md.")
    ] = None,
    region: Annotated[str | None, typer.Option(help='Of --model: look here, in words such as "the footer".')] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Of --model: the longest answer, 128 by default.")] = None,
) -> None:
    """Ask about an image on a budget: our own small model, offline, or a Qwen-VL model with --model."""
    theirs = {"--stage": stage, "--peer": peer, "--region": region, "--max-new-tokens": max_new_tokens}
    ours = {"--looks": looks, "--progressive": progressive or None, "--weights": weights, "--csv": csv}
    for option, value in (theirs if model is None else ours).items():
        if value is not None:
            raise ModelError(f"{option} goes {'only' if model is None else 'not'} with --model: leave one of them out")
    if peer is not None and allocator is not None:
        raise ModelError("--peer reduces in place of an allocator: leave out --peer or --allocator")
    own = model is None and relevance == "learned"  # the scorer of the weights that answer, whichever they are
    where: dict[str, Any] = {"budget": budget, "allocator": allocator or DEFAULT}
    where["relevance"] = None if own else relevance
    again: dict[str, Any] = {"looks": 1 if looks is None else looks, "progressive": progressive}
    if csv is not None:
        if image is not None or show or as_json:
            raise QueryError("--csv names its own images and writes a CSV: leave out the image, --show and --json")
        ask_csv(csv, out, partial(load, weights), where | again, weights)
        return
    if image is None:
        raise ImageError(f"no image and no question: write {EXAMPLE}, or give --csv FILE")
    picture = out or (Path("ask.png") if show or model is not None else None)
    if picture is not None:
        check_output(picture, image)
    pixels, _, _ = read(image, question, None)
    if question is None:
        raise QueryError(f"no question: write {EXAMPLE}")
    if model is None:
        _ask_ours(pixels, question, weights, where | again, picture, as_json)
    else:
        longest = 128 if max_new_tokens is None else max_new_tokens
        how = where | {"stage": stage or "pre", "peer": peer, "region": region, "max_new_tokens": longest}
        _ask_qwen(model, pixels, question, how, picture or Path("ask.png"), as_json)


def _ask_ours(
    pixels: Any, question: str, weights: Path | None, how: dict[str, Any], picture: Path | None, as_json: bool
) -> None:
    from homunculus.allocation import check_budget, get_allocator
    from homunculus.model.answer import Answer, answer
    from homunculus.model.answer_figure import answer_figure

    method = get_allocator(how["allocator"])  # before weights are read
    check_budget(how["budget"])
    model = load(weights)
    start = time.perf_counter()
    said = answer(model, pixels, question, **how)
    seconds = time.perf_counter() - start
    assert isinstance(said, Answer)  # of one image
    if picture is not None:
        write_png(answer_figure(pixels, question, said, method), picture)
    if as_json:
        out = {"out": None if picture is None else str(picture), "cells": cell_list(said)}
        print(json.dumps(said.report() | {"question": question, "seconds": seconds} | out))
        return
    looks = "" if len(said.looks) == 1 else f" in {len(said.looks)} looks"
    drawn = "" if picture is None else f"; {picture}"
    cost = f"{said.tokens} visual tokens{looks}, {seconds:.1f} s without loading"
    print(f"{said.text}\n\n{said.confidence:.0%} sure, {cost}{drawn}")


def load(weights: Path | None) -> Any:
    """The compact model, on a GPU where there is one."""
    import torch

    from homunculus.model.weights import load_model

    if torch.cuda.is_available():
        return load_model(weights, "cuda")
    leave_room()
    return load_model(weights)


def _ask_qwen(name: str, pixels: Any, question: str, how: dict[str, Any], picture: Path, as_json: bool) -> None:
    from homunculus.integrations.qwen_vl.ask import answer_figure, ask_once

    said = ask_once(name, pixels, question, **how)
    write_png(answer_figure(pixels, said), picture)
    if as_json:
        more = {
            "model": name,
            "stage": how["stage"],
            "peer": how["peer"],
            "out": str(picture),
            "cells": cell_list(said),
        }
        print(json.dumps(said.report() | more))
    else:
        print(f"{said.text}\n\n{said.tokens} visual tokens, {said.seconds:.1f} s without loading; {picture}")
