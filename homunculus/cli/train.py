"""`homunculus train`: a compact model of your own, by a recipe, in as many sittings as it takes."""

from pathlib import Path
from typing import Annotated

import typer


def train(
    out: Annotated[Path, typer.Option(help="The folder for checkpoints, journals and weights.")],
    preset: Annotated[
        str,
        typer.Option(
            help="The recipe: small (one GPU, 24 minutes), longer and together (from its weights), or tiny (a CPU)."
        ),
    ] = "small",
    minutes: Annotated[float | None, typer.Option(help="Stop in time, and go on when called again.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Begin from the weights in this folder.")] = None,
    stage: Annotated[list[str] | None, typer.Option(help="Only this stage; give it several times for several.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to train; by default a GPU if there is one.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that draw images (default: all cores but two).")
    ] = None,
    faces: Annotated[Path | None, typer.Option(help="A folder of more typefaces (runs/faces.py).")] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another model.")] = None,
) -> None:
    """Train the compact model from scratch, or go on where the last call stopped."""
    import os
    from dataclasses import replace

    from homunculus.cli.arguments import named_device
    from homunculus.errors import ModelError, OutputError
    from homunculus.train.journal import plot
    from homunculus.train.processes import share
    from homunculus.train.recipe import RECIPES, follow

    if preset not in RECIPES:
        raise ModelError(f"no recipe '{preset}': choose one of {', '.join(RECIPES)}")
    device = str(named_device(device))
    if workers is None:
        workers = max(0, (os.cpu_count() or 1) - 2)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write into {out} ({error.strerror or error}): choose another --out") from None
    recipe = replace(RECIPES[preset](), faces=None if faces is None else str(faces))
    done = follow(
        recipe,
        out,
        device=device,
        workers=workers,
        minutes=minutes,
        weights=weights,
        only=stage or (),
        seed=seed,
    )
    if share()[0] > 0:  # the first process tells
        return
    plot(out, [stage.name for stage in recipe.stages])
    print(f"done: weights in {out / 'weights'}" if done else f"stopped in time: give the same command again ({out})")
