"""`homunculus ask`: a question to a Qwen-VL model on a budget."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from homunculus.cli.arguments import Budget, read
from homunculus.cli.look import cell_list
from homunculus.cli.output import check_output, write_png

DEFAULT_MODEL = "Qwen/Qwen3-VL-8B-Instruct"


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
